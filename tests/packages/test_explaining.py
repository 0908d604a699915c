"""A package in words, as its manifest tells them."""

import json
from pathlib import Path

import pytest

import deploykit
from deploykit.cli import cli
from deploykit.cli.frame import run
from deploykit.packages.manifests import sealed
from tables import each_row

AIMET = Path(__file__).parents[1] / "data" / "aimet"


@pytest.fixture(scope="module")
def rewritten(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("explained") / "out"
    made = deploykit.package(
        AIMET / "detr/model.onnx",
        target="sm8650",
        sdk="2.33",
        encodings=AIMET / "detr/w8a16-fp16mix-explicit.v0.6.1.encodings",
        out=out,
    )
    assert made.package == out
    return out


def test_a_rewritten_package_is_told_by_its_chapters(rewritten: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(cli, ["explain", str(rewritten), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["title"] == "model.onnx for SM8650 (qnn-htp, qairt 2.33)"
    assert told["shipping"]["word"] == "not judged"
    chapters = {chapter["title"]: "\n".join(chapter["lines"]) for chapter in told["chapters"]}
    assert all(chapters.values()) and "legacy-complete" in chapters["What was decided"]
    assert "Insist on it with --route provider-context" in chapters["What was not taken"]
    assert chapters["What was tried"].startswith("rewrite (taken): ")
    before, _, after = chapters["What was changed in the graph"].splitlines()[0].partition(" → ")
    assert "Log" in before
    assert after.startswith("Clip, at 1 place")
    assert "QNN102 explicit-float-entries" in chapters["What was changed in the graph"]
    assert "detections" in chapters["What was measured"]
    assert run(cli, ["explain", str(rewritten)]) == 0
    text = capsys.readouterr().out
    assert text.splitlines()[1].startswith("not judged: ")
    assert all(len(line) <= 120 for line in text.splitlines())


def test_no_package_is_an_error_and_no_explanation(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(cli, ["explain", str(tmp_path)]) == 6
    assert "has no manifest.json" in capsys.readouterr().err


@each_row("key", "status", "decision", "quantization", "target", "findings", "executed")
def test_a_sealed_manifest_that_says_nothing_there_is_explained(key: str, rewritten: Path, tmp_path: Path) -> None:
    """Whoever can write to a package can seal it again."""
    told = json.loads((rewritten / "manifest.json").read_text())
    values: tuple[object, ...] = (None, [], "x", 7, {"a": None})
    for value in values:
        (tmp_path / "manifest.json").write_text(sealed({**told, key: value})[0])
        assert run(cli, ["explain", str(tmp_path)]) in (0, 6), value
