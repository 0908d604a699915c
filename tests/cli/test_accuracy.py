"""``accuracy simulate`` and ``accuracy layers`` through the front door: text, JSON, the page, data, exit statuses."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest

from deploykit.cli import cli
from deploykit.cli.frame import run

AIMET = Path(__file__).parents[1] / "data" / "aimet"
DETR = str(AIMET / "detr" / "model.onnx")
W8A16, W8A8 = (str(AIMET / "detr" / f"{name}.v1.0.0.encodings") for name in ("w8a16", "w8a8"))


def data_of(precision: str, folder: Path) -> str:
    """Both recorded samples in one file."""
    with np.load(AIMET / "detr" / f"{precision}.io.npz") as stored:
        keys = [key for key in stored.files if key.startswith("input.")]
        np.savez(folder / "all.npz", **{key.removeprefix("input."): stored[key] for key in keys})
    return str(folder / "all.npz")


def test_json_on_given_data_has_the_recorded_sqnr(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    call = ["--json", "accuracy", "simulate", DETR, "--encodings", W8A16, "--data", data_of("w8a16", tmp_path)]
    assert run(cli, call) == 0
    value = json.loads(capsys.readouterr().out)
    assert value["sqnr_db"] == pytest.approx(10.21, abs=0.01)
    assert (value["samples"], value["data"]) == (2, "given")
    assert [output["name"] for output in value["outputs"]] == ["detections"]
    assert run(cli, [*call, "--samples", "1"]) == 0
    assert json.loads(capsys.readouterr().out)["samples"] == 1


def test_without_data_it_says_what_the_inputs_are(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(cli, ["accuracy", "simulate", DETR, "--encodings", W8A16, "--seed", "7"]) == 0
    assert "8 derived samples" in capsys.readouterr().out
    entries = json.loads(Path(W8A16).read_text())
    entries["activation_encodings"] = [e for e in entries["activation_encodings"] if e["name"] != "images"]
    (tmp_path / "less.json").write_text(json.dumps(entries))
    assert run(cli, ["--json", "accuracy", "simulate", DETR, "--encodings", str(tmp_path / "less.json")]) == 0
    value = json.loads(capsys.readouterr().out)
    assert value["data"] == "arbitrary"
    assert value["inputs"]["inputs"]["orig_target_sizes"]["label"] == "derived"


def test_limits_of_the_verdict_can_be_asked_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """AIMET's own W8A16 of this detector is 90 px off: the verdict says so, and the status follows what was asked."""
    call = ["accuracy", "simulate", DETR, "--encodings", W8A16, "--data", data_of("w8a16", tmp_path)]
    assert run(cli, call) == 0
    said = capsys.readouterr().out
    assert "right: no, on 2 given samples" in said and "px where at most 8 px is asked" in said
    for limit, status in (("--min-sqnr=70", 1), ("--min-sqnr=5", 0), ("--max-box-error=200", 0)):
        assert run(cli, [*call, limit]) == status, limit
    assert run(cli, [*call, "--max-box-error", "20"]) == 1
    assert "px where at most 20 px is asked" in capsys.readouterr().out


def test_data_that_does_not_fit_exits_with_3(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for side, second, told in ((32, "other", "orig_target_sizes"), (8, "orig_target_sizes", "images float32[1,3,32")):
        arrays: dict[str, Any] = {"images": np.zeros((1, 3, side, side), np.float32), second: np.ones((1, 2))}
        np.savez(tmp_path / "x.npz", **arrays)
        assert run(cli, ["accuracy", "simulate", DETR, "--encodings", W8A16, "--data", str(tmp_path / "x.npz")]) == 3
        assert told in capsys.readouterr().err


def test_the_worst_come_first_and_the_page_shows_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = tmp_path / "page.html"
    call = [
        "accuracy",
        "layers",
        DETR,
        "--encodings",
        W8A8,
        "--data",
        data_of("w8a8", tmp_path),
        "--top",
        "3",
        "--report",
        str(page),
    ]
    assert run(cli, call) == 0
    said = capsys.readouterr().out
    assert "7.91 dB with everything quantized" in said
    assert said.index("/decoder/Div ") < said.index("/decoder/Add_2 ")
    text = page.read_text("utf-8")
    assert "/decoder/Div_output_0" in text
    chart = text[text.index("<svg") : text.index("</section>", text.index("<svg"))]
    drawing = ElementTree.fromstring(chart[: chart.rindex("</svg>") + 6])
    assert len(drawing.findall(".//rect")) >= 28
    assert "http" not in text  # nothing from outside
    assert run(cli, call) == 6
    assert "--force" in capsys.readouterr().err


def test_layers_in_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert (
        run(
            cli,
            [
                "--json",
                "accuracy",
                "layers",
                DETR,
                "--encodings",
                W8A8,
                "--data",
                data_of("w8a8", tmp_path),
                "--fresh",
                "--seconds",
                "0",
            ],
        )
        == 0
    )
    value = json.loads(capsys.readouterr().out)
    assert value["schema"] == 1
    assert value["whole"]["db"] == pytest.approx(7.91, abs=0.01)
    assert value["samples"]["label"] == "given"
    assert value["unmeasured"] > 0


def test_without_data_the_order_is_no_evidence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    call = ["accuracy", "layers", DETR, "--precision", "w8a8", "--samples", "1", "--seconds", "0"]
    assert run(cli, call) == 0
    assert "no evidence" in capsys.readouterr().out


def test_what_the_model_is_to_be_must_be_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(cli, ["accuracy", "layers", DETR, "--data", data_of("w8a8", tmp_path)]) == 2
    assert "--precision w8a8" in capsys.readouterr().err
