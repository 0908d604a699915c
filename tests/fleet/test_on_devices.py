"""Packages of a matrix on the devices of its file: this machine, and one that nobody reaches."""

from __future__ import annotations

import json
from pathlib import Path
from xml.etree import ElementTree

import pytest

from deploykit.cli import cli
from deploykit.cli.frame import run

AIMET = Path(__file__).parents[1] / "data" / "aimet"
FILE = f"""
[models.cnn]
path = "{AIMET}/cnn/model.onnx"
encodings = "{AIMET}/cnn/w8a8.v1.0.0.encodings"

[models.mlp]
path = "{AIMET}/mlp/model.onnx"
precision = "fp16"

[targets.phone]
device = "sm8650"
sdks = ["2.33"]
backends = ["qnn-htp"]
compile = false

[devices.bench]
at = "local"
target = "phone"
"""


@pytest.mark.heavy
def test_a_matrix_runs_what_it_made(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, out = tmp_path / "deploykit.toml", tmp_path / "out"
    file.write_text(FILE + '[devices.phone]\nat = "ssh://nobody@127.0.0.1:1"\n', "utf-8")
    asked = ["matrix", str(file), "-o", str(out), "--run", "--json"]
    assert run(cli, asked) == 1
    told = json.loads(capsys.readouterr().out)
    runs = {(one["device"], one["cell"]): one for one in told["runs"]}
    assert sorted(runs) == [(name, f"{model}/phone") for name in ("bench", "phone") for model in ("cnn", "mlp")]
    for model in ("cnn", "mlp"):
        assert runs["bench", f"{model}/phone"]["outcome"]["where"] == "simulated"
        assert runs["bench", f"{model}/phone"]["exit_status"] == 0
        assert (
            runs["phone", f"{model}/phone"]["exit_status"] == 5
            and "127.0.0.1" in runs["phone", f"{model}/phone"]["error"]
        )
    assert json.loads((out / "runs.json").read_text("utf-8"))["runs"] == told["runs"]
    suites = {suite.get("name"): suite for suite in ElementTree.parse(out / "junit.xml").getroot()}
    assert suites["runs on phone"].get("errors") == "2" and suites["runs on bench"].get("errors") == "0"
    # What was made is not made again for having been run.
    file.write_text(FILE, "utf-8")
    assert run(cli, asked[:-1]) == 0
    said = capsys.readouterr().out
    assert said.count("kept") == 2 and "bench        cnn/phone  right:" in said


@pytest.mark.parametrize(("rows", "told"), [("", "names no device"), ('[devices.x]\nat = "local"\n', "no target of")])
def test_a_device_that_belongs_to_nothing_is_a_usage_error(
    rows: str, told: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "deploykit.toml"
    file.write_text(FILE.partition("[devices")[0] + rows, "utf-8")
    assert run(cli, ["matrix", str(file), "-o", str(tmp_path / "out"), "--run"]) == 2
    assert told in capsys.readouterr().err
