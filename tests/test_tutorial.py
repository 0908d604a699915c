"""The tutorial's commands are run as a reader runs them, and what it says of their answers is so."""

from __future__ import annotations

import json
import re
import runpy
import shlex
from pathlib import Path

import pytest

from deploykit.cli import cli
from deploykit.cli.frame import run

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "tutorial-quantize.md").read_text("utf-8")
SCRIPTS = ("make_detector.py", "make_pictures.py")


def _blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)


def _run(line: str) -> int:
    """The exit status of a command of the page, within this process."""
    words = shlex.split(line, comments=True)
    if words[0] == "python":
        runpy.run_path(words[1])
        return 0
    assert words[0] == "deploykit"
    return run(cli, words[1:])


@pytest.mark.heavy
def test_every_command_of_the_tutorial_ends_well(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name, script in zip(SCRIPTS, _blocks("python"), strict=True):
        Path(name).write_text(script, "utf-8")
    lines = "".join(_blocks("sh")).splitlines()
    assert {line.split()[1] for line in lines} >= {*SCRIPTS, "package", "quantize", "accuracy", "verify"}
    for line in lines:
        assert _run(line) == 0, line
    told = {name: json.loads(Path(name, "manifest.json").read_text()) for name in ("first", "second", "best", "seen")}
    rights = {name: manifest["status"]["right"] for name, manifest in told.items()}
    assert rights == {"first": "yes", "second": "yes", "best": "yes", "seen": "yes"}
    assert "DK205" in {finding["code"] for finding in told["first"]["findings"]}  # what the encodings lose is told
    assert told["seen"]["quantization"]["calibration"]["kind"] == "images"
    ladder = told["best"]["quantization"]["ladder"]
    reached = {row["precision"]: row["sqnr_db"] for row in ladder["candidates"]}
    assert reached["w16a16"] - reached["w8a8"] < 1
    assert ladder["steps"][-1]["raised"]["best"]["to"] == "float16"
    page = Path("ladder.html").read_text("utf-8")
    assert re.search('<td class="words">w8a8 <span.*</span><td class="words">reaches<td', page)
    assert "How the precision was chosen" in Path("best", "report.html").read_text("utf-8")


def test_the_readme_leads_to_the_tutorial() -> None:
    assert "](docs/tutorial-quantize.md)" in (ROOT / "README.md").read_text("utf-8")
