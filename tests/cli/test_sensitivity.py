"""``deploykit accuracy layers`` through the front door: tables, JSON, the page, exit statuses."""

from __future__ import annotations

import json
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest

from deploykit.cli import cli
from deploykit.cli.frame import run

AIMET = Path(__file__).parents[1] / "data" / "aimet"
DETR, W8A8 = str(AIMET / "detr" / "model.onnx"), str(AIMET / "detr" / "w8a8.v1.0.0.encodings")


@pytest.fixture
def data(tmp_path: Path) -> str:
    with np.load(AIMET / "detr" / "w8a8.io.npz") as stored:
        keys = [key for key in stored.files if key.startswith("input.")]
        np.savez(tmp_path / "data.npz", **{key.removeprefix("input."): stored[key] for key in keys})
    return str(tmp_path / "data.npz")


def test_the_worst_come_first_and_the_page_shows_them(
    data: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "page.html"
    call = ["accuracy", "layers", DETR, "--encodings", W8A8, "--data", data, "--top", "3", "--report", str(page)]
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


def test_json(data: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert (
        run(
            cli,
            ["--json", "accuracy", "layers", DETR, "--encodings", W8A8, "--data", data, "--fresh", "--seconds", "0"],
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


def test_what_the_model_is_to_be_must_be_said(data: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(cli, ["accuracy", "layers", DETR, "--data", data]) == 2
    assert "--precision w8a8" in capsys.readouterr().err
