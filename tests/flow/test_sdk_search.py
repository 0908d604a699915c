from __future__ import annotations

import json
from pathlib import Path

import onnx
import onnx.parser
import pytest

from deploykit.backend.backend import Request
from deploykit.cli import cli
from deploykit.cli.frame import run
from deploykit.errors import UsageError
from deploykit.flow.pipeline import lowest_sdk

AIMET = Path(__file__).parents[1] / "data" / "aimet"
MODEL = AIMET / "cnn" / "model.onnx"


def request(target: str = "sm8650", backend: str | None = None, encodings: str | None = None) -> Request:
    path = None if encodings is None else AIMET / "cnn" / encodings
    return Request(model=MODEL, target=target, backend=backend, encodings=path)


def test_every_release_with_tables_is_tried_and_the_lowest_named() -> None:
    found = lowest_sdk(request(encodings="w8a8.v0.6.1.encodings"))
    sdks = [trial.sdk for trial in found.trials]
    assert sdks[0] == "2.29.0"
    assert {"2.33.0", "2.37.0", "2.50.0"} <= set(sdks)
    assert "2.28" not in sdks
    assert found.lowest == next(trial.sdk for trial in found.trials if trial.ok)
    assert found.backend == "qnn-htp"


def test_what_stops_a_release_is_said() -> None:
    found = lowest_sdk(request(target="sc7280x", encodings="w8a8.v0.6.1.encodings"))
    assert found.lowest is None
    assert all("QNN010" in trial.to_json()["blocking"] for trial in found.trials)


def test_what_the_tables_leave_open_is_not_ok(tmp_path: Path) -> None:
    """GridSample: a user could not finalize it with 2.29, nothing is known up to 2.32, 2.33 converts it."""
    text = "g (float[1,4,8,8] x, float[1,8,8,2] p) => (float[1,4,8,8] y) { y = GridSample (x, p) }"
    model = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : 16]> {text}')
    onnx.save(model, tmp_path / "grid.onnx")
    found = lowest_sdk(Request(model=tmp_path / "grid.onnx", target="sm8650", backend="qnn-htp"))
    trials = {trial.sdk: trial for trial in found.trials}
    for release in ("2.29.0", "2.31.0"):
        assert trials[release].state == "unknown" and "QNN212" in trials[release].open
        assert not trials[release].ok and trials[release].to_json()["ok"] is False
    assert "QNN212" not in trials["2.36"].open
    assert found.lowest not in ("2.29.0", "2.30", "2.31.0", "2.32.6")


def test_another_backend_starts_where_its_wheels_start() -> None:
    """2.22 is the oldest release whose compiler can be had as a toolchain; those between come from no wheel."""
    found = lowest_sdk(request(backend="ort-qnn"))
    assert found.lowest == "2.22"
    assert "2.33.0" not in [trial.sdk for trial in found.trials if trial.ok]


def test_a_backend_without_releases_is_no_answer() -> None:
    with pytest.raises(UsageError, match="not kept per SDK release"):
        lowest_sdk(request(target="vek385"))


def test_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    args = ["compat", "--model", str(MODEL), "--encodings", str(AIMET / "cnn" / "w8a8.v0.6.1.encodings")]
    assert run(cli, [*args, "--target", "sm8650", "--json"]) == 0
    value = json.loads(capsys.readouterr().out)
    assert value["lowest"] in [trial["sdk"] for trial in value["trials"] if trial["ok"]]
    assert run(cli, [*args, "--target", "sc7280x"]) == 1
    assert "no release takes it" in capsys.readouterr().out
