"""What a detector that AIMET quantized loses, as the commands tell it."""

import re
from pathlib import Path
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


def test_the_worst_come_first_and_the_page_shows_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = tmp_path / "page.html"
    call = ["accuracy", "layers", DETR, "--encodings", W8A8, "--data", data_of("w8a8", tmp_path)]
    call += ["--top", "3", "--report", str(page)]
    assert run(cli, call) == 0
    said = capsys.readouterr().out
    assert "7.91 dB with everything quantized" in said
    assert said.index("/decoder/Div ") < said.index("/decoder/Add_2 ")
    assert re.search(r" \+\d\d?\.\d\d dB +/decoder/Div ", said), "what is gained where it stays in float"
    text = page.read_text("utf-8")
    assert "/decoder/Div_output_0" in text
    chart = text[text.index("<svg") : text.index("</section>", text.index("<svg"))]
    drawing = ElementTree.fromstring(chart[: chart.rindex("</svg>") + 6])
    assert len(drawing.findall(".//rect")) >= 28
    assert "http" not in text  # nothing from outside
    assert run(cli, call) == 6
    assert "--force" in capsys.readouterr().err
