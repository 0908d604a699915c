"""A package in words: the sentence that heads it, and what its manifest tells."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

import deploykit
from deploykit.backend.status import Compilation, Compiled, Correctness, PackageStatus, Right
from deploykit.cli import cli
from deploykit.cli.frame import run
from deploykit.packages.manifests import sealed
from deploykit.report.explaining import Word, costs_by_output, shipping
from made_findings import a_finding
from tables import each_row

AIMET = Path(__file__).parents[1] / "data" / "aimet"
NUMBER = {"output": "logits", "measure": "sqnr", "value": 40.0, "unit": "dB", "threshold": 12.0, "passes": True}
RIGHT = Correctness(state=Right.YES, label="given", count=8, against="float", numbers=({**NUMBER, "against": "float"},))
GOOD = PackageStatus(compiled=Compilation(state=Compiled.YES, by="a compiler"), right=RIGHT)
ERROR = a_finding(code="DK001", slug="dynamic-input", message="x has no size", hint="give it one")
BESIDE = {**NUMBER, "against": "quantized"}


@each_row(
    ("status", "word", "says"),
    (replace(GOOD, intact=False), Word.NO, "files"),
    (replace(GOOD, compiled=Compilation(state=Compiled.REFUSED, why="no such kernel")), Word.NO, "no such kernel"),
    (replace(GOOD, right=replace(RIGHT, state=Right.NO, why="logits: 3 dB")), Word.NO, "logits: 3 dB"),
    (replace(GOOD, right=Correctness(why="no samples")), Word.NOT_JUDGED, "no samples"),
    (replace(GOOD, right=replace(RIGHT, state=Right.NOT_JUDGED)), Word.NOT_JUDGED, "its samples do not say"),
    (replace(GOOD, compiled=Compilation()), Word.NOT_JUDGED, "no compiler"),
    (replace(GOOD, right=replace(RIGHT, label="derived")), Word.NOT_JUDGED, "made up"),
    (replace(GOOD, right=replace(RIGHT, label="arbitrary")), Word.NOT_JUDGED, "made up"),
    *(
        (replace(GOOD, right=replace(RIGHT, against="quantized", numbers=numbers)), Word.NOT_JUDGED, "good enough")
        for numbers in ((BESIDE,), (BESIDE, {**NUMBER, "against": "float", "threshold": None, "passes": None}))
    ),
)
def test_whatever_is_missing_is_no_yes_and_is_named(status: PackageStatus, word: Word, says: str) -> None:
    answer = shipping(status, ())
    assert answer.word is word and says in answer.why
    assert answer.next or status.compiled.state is Compiled.REFUSED


def test_the_evidence_names_everything_that_numbers_were_held_against() -> None:
    numbers = (BESIDE, {**NUMBER, "against": "float"})
    answer = shipping(replace(GOOD, right=replace(RIGHT, against="quantized", numbers=numbers)), ())
    assert answer.word is Word.SHIP and answer.why.startswith("it is compiled, and its outputs are right")
    assert answer.evidence.endswith("2 numbers held to limits, on 8 given samples against quantized and float")


def test_an_error_that_nothing_handles_is_a_no_and_a_handled_one_is_not() -> None:
    answer = shipping(GOOD, [ERROR])
    assert (answer.word, answer.next) == (Word.NO, "give it one")
    assert "DK001 dynamic-input: x has no size" in answer.why
    assert shipping(GOOD, [ERROR.with_handled("it is fixed")]).word is Word.SHIP


def test_costs_say_who_lost_what() -> None:
    worse = {**NUMBER, "value": 30.0, "against": "quantized"}
    bad = {**NUMBER, "measure": "box-error", "value": 1.5, "unit": "px", "threshold": 0.4, "passes": False}
    (cost,) = costs_by_output([{**NUMBER, "against": "float"}, worse, {**worse, "value": 50.0}, {**bad, "where": ""}])
    assert cost.decibels == {"float": 40.0, "quantized": 30.0}
    assert cost.worst == ("box-error 1.5 px where 0.4 px is asked",)
    assert str(cost).startswith(
        "logits: 40.0 dB left by the precision and all that follows, 30.0 dB left by the device"
    )


def test_parts_that_are_judged_by_themselves_are_told_apart() -> None:
    """Boxes in pixels would hide what scores between 0 and 1 lose."""
    slices = (f"slices {where} of axis 1" for where in ("0 to 3", "4 to 8"))
    boxes, scores = ({**NUMBER, "where": where, "against": "float"} for where in slices)
    rows = costs_by_output([boxes, {**scores, "value": 27.4}, {**boxes, "measure": "gain", "where": "", "value": 0.1}])
    assert [(row.name, row.decibels) for row in rows] == [
        ("logits, slices 0 to 3 of axis 1", {"float": 40.0}),
        ("logits, slices 4 to 8 of axis 1", {"float": 27.4}),
    ]
    (exact,) = costs_by_output([{**NUMBER, "value": "inf"}])
    assert str(exact) == "logits: as asked."


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
