"""AIMET's job as data: configuration of the chip, encodings that the SDK reads, options that exclude each other."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import deploykit
from deploykit.backend.backend import Request
from deploykit.backend.options import check_options
from deploykit.backend.quantizers import QuantizerAsked
from deploykit.encodings.formats.aimet import read_encodings
from deploykit.encodings.values import Affine
from deploykit.errors import UsageError
from deploykit.flow.read import resolve_target
from deploykit_qualcomm.aimet import AIMET
from real_aimet import install_aimet
from tables import each_row
from text_models import text_model


def asked(precision: str = "w8a16", target: str = "sm8650", sdk: str | None = None, **options: Any) -> QuantizerAsked:
    _, resolved = resolve_target(Request(model=Path("m.onnx"), target=target, sdk=sdk))
    return QuantizerAsked(precision=precision, target=resolved, options=check_options(AIMET.options(), options))


def test_the_widths_become_types() -> None:
    settings = AIMET.plan(asked("w4a16", lpbq=True, block_size=32)).settings
    assert (settings["param_type"], settings["activation_type"]) == ("int4", "int16")
    assert settings["lpbq"]["block_size"] == 32
    assert (settings["adaround"], settings["seq_mse"], settings["percentile"]) == (None, None, None)
    assert AIMET.plan(asked(scheme="percentile", percentile=99.0)).settings["percentile"] == 99.0


@each_row(
    ("backend", "sdk", "blocked"),
    ("qnn-htp", None, ("Conv", "Gemm", "MatMul")),
    ("ort-qnn", None, ("Gemm", "MatMul")),
    ("ort-qnn", "2.33", ()),
)
def test_blocks_are_made_for_layers_whose_blocks_are_taken(backend: str, sdk: str | None, blocked: Any) -> None:
    found, target = resolve_target(Request(model=Path("m.onnx"), target="sm8650", backend=backend, sdk=sdk))
    (aimet,) = found.quantizers(target)
    options = check_options(aimet.options(), {"lpbq": True})
    if blocked:
        asked_for = QuantizerAsked(precision="w4a16", target=target, options=options)
        assert aimet.plan(asked_for).settings["lpbq"]["operators"] == blocked
    else:
        with pytest.raises(UsageError, match="lpbq for this release"):
            aimet.plan(QuantizerAsked(precision="w4a16", target=target, options=options))


@each_row(
    ("precision", "options", "what"),
    ("w8a16", {"lpbq": True}, "LPBQ holds 4-bit weights"),
    ("w8a8", {"adaround": True, "seq_mse": True}, "both choose"),
    ("w8a8", {"scheme": "tf_enhanced", "seq_mse": True}, "from that one only"),
    ("w8a8", {"lite_mp": 10.0, "amp": 40.0}, "both choose which layers"),
    ("w8a16", {"lite_mp": 10.0}, "have 16 bits already"),
    ("w8a16", {"amp": 40.0}, "have 16 bits already"),
)
def test_options_that_exclude_each_other_are_refused(precision: str, options: dict[str, Any], what: str) -> None:
    with pytest.raises(UsageError) as refused:
        AIMET.plan(asked(precision, **options))
    assert what in refused.value.why


DATA = Path(__file__).parents[1] / "data"


@pytest.fixture(scope="module")
def installed() -> None:
    """As a user would; found again where it is there already."""
    install_aimet()


@pytest.mark.heavy
@pytest.mark.xdist_group("aimet")
@pytest.mark.usefixtures("installed")
def test_package_takes_aimet_by_itself_and_adds_int32_biases(tmp_path: Path) -> None:
    model = DATA / "aimet" / "cnn" / "model.onnx"
    np.save(tmp_path / "x.npy", np.random.default_rng(0).normal(size=(10, 1, 3, 16, 16)).astype(np.float32))
    options = [("aimet.cle", "true"), ("aimet.scheme", "tf_enhanced")]
    asked: Any = {"target": "sm8650", "backend": "qnn-htp", "sdk": "2.33", "precision": "w8a8", "options": options}
    made = deploykit.package(model, calibration=tmp_path / "x.npy", out=tmp_path / "out", **asked)
    assert made.package is not None and made.executed[0] == "quantize"
    codes = {finding.code for finding in made.findings}
    assert "DK221" in codes and not codes & {"DK220", "DK222"}
    told = json.loads((made.package / "manifest.json").read_text("utf-8"))["quantization"]
    assert told["toolchain"] == "aimet==2.42.0" and told["options"]["cle"] is True


@pytest.mark.heavy
@pytest.mark.xdist_group("aimet")
@pytest.mark.usefixtures("installed")
def test_indices_in_floats_keep_their_rows(tmp_path: Path) -> None:
    """A step of 1 for what a Cast makes indices of: of the range alone, index 300 would become the 299 below."""
    table = np.random.default_rng(0).normal(size=(301, 8)).astype(np.float32)
    body = "i = Cast <to = 6> (ids)  g = Gather (table, i)  k = Cast <to = 6> (few)  y = Gather <axis = 2> (g, k)"
    onnx.save(text_model("float[1,3] ids, float[1] few", body, "float[1,3,1] y", table=table), tmp_path / "m.onnx")
    ids = np.random.default_rng(1).integers(0, 301, (20, 1, 3)).astype(np.float32)
    ids[0] = [300, 0, 299]
    np.savez(tmp_path / "s.npz", ids=ids, few=np.arange(20, dtype=np.float32)[:, None] % 8)
    asked: Any = {"target": "sm8650", "backend": "qnn-htp", "sdk": "2.33", "precision": "w8a8"}
    made = deploykit.package(tmp_path / "m.onnx", calibration=tmp_path / "s.npz", out=tmp_path / "out", **asked)
    assert made.package is not None and made.exit_status == 0
    entries = read_encodings(made.package / "encodings/m.json").entries
    grids = [entries[name].value for name in ("ids", "few")]
    assert [(grid.bits, grid.scale.item()) for grid in grids if isinstance(grid, Affine)] == [(16, 1.0)] * 2
