"""A failure that no row has words for is answered by whose code fails and how, and never where a row speaks."""

from __future__ import annotations

import dataclasses
import io
import tomllib
from collections import defaultdict
from pathlib import Path

import pytest

from deploykit.answers.diagnosis import Diagnosis, diagnose
from deploykit.backend.known_errors import Catalog, FailureKind, KnownError, Speaker, general_errors, merge_catalogs
from deploykit.cli.diagnose import diagnosis_text
from deploykit.findings import Confidence
from deploykit_qualcomm.known_errors import known_errors as qualcomm_errors
from deploykit_vitis_ai.known_errors import known_errors as vitis_errors

WORDS = {"source": ("s",), "confidence": Confidence.INFERRED}
MILL = Speaker(id="mill", name="the mill", marks=("mill/", "[MILL]"), advice="grind less", **WORDS)  # type: ignore[arg-type]
STONE = Speaker(id="stone", name="the stone", marks=("mill/stone",), advice="turn it", **WORDS)  # type: ignore[arg-type]
LOOKUP = FailureKind(
    id="lookup",
    patterns=("KeyError: (?P<name>.+)", "key not found"),
    cause="{speaker} misses {name}",
    workaround="look for {name}",
    **WORDS,  # type: ignore[arg-type]
)
STOPPED = FailureKind(
    id="stopped",
    patterns=("RuntimeError: (?P<name>.+)",),
    cause="{speaker} stopped: {name}",
    workaround="read it",
    root="symptom",
    **WORDS,  # type: ignore[arg-type]
)
NUMBER = FailureKind(
    id="number",
    patterns=("error -7",),
    cause="{speaker} says seven",
    workaround="count",
    speakers=("stone",),
    **WORDS,  # type: ignore[arg-type]
)
BOTH = Catalog(speakers=(MILL, STONE), kinds=(LOOKUP, STOPPED, NUMBER))
EVERY = merge_catalogs([general_errors(), qualcomm_errors(), vitis_errors()])
ALONE = dataclasses.replace(EVERY, errors=())
LINES = Path(__file__).parents[1] / "data" / "logs" / "kinds"
SEEN = [
    (kind, line)
    for path in sorted(LINES.glob("*.toml"))
    for kind, lines in tomllib.loads(path.read_text("utf-8")).items()
    for line in lines
]


def of(log: str, catalog: Catalog = BOTH) -> Diagnosis:
    return diagnose(io.BytesIO(log.encode()), catalog)


def first(log: str, catalog: Catalog = BOTH) -> KnownError | None:
    causes = of(log, catalog).causes
    return causes[0].error if causes else None


def test_both_are_needed() -> None:
    assert first("[MILL] KeyError: 'flour'") is not None
    assert first("[SHOP] KeyError: 'flour'") is None
    assert first("[MILL] error: no flour") is None


def test_the_answer_names_who_what_and_a_way_out() -> None:
    row = first("[MILL] KeyError: 'flour'")
    assert row is not None
    assert (row.id, row.cause) == ("mill/lookup", "the mill misses 'flour'")
    assert row.workaround == "look for 'flour'; grind less"
    assert row.confidence is Confidence.INFERRED


def test_the_text_says_that_no_row_has_these_words() -> None:
    assert "no row has these words" in diagnosis_text(of("[MILL] KeyError: 'flour'"))


def test_the_nearest_frame_speaks() -> None:
    stack = '  File "mill/grind.py", line 3\n  File "mill/stone/turn.py", line 9\nKeyError: 3'
    row = first(stack)
    assert row is not None
    assert row.id == "stone/lookup"
    windows = first(stack.replace("/", "\\"))
    assert windows is not None
    assert windows.id == "stone/lookup"


def test_a_kind_that_says_why_comes_before_one_that_does_not() -> None:
    row = first("[MILL] RuntimeError: it stands\n[MILL] KeyError: 'flour'")
    assert row is not None
    assert row.id == "mill/lookup"


def test_a_number_counts_only_for_its_speakers() -> None:
    assert first("[MILL] error -7") is None
    row = first("mill/stone: error -7")
    assert row is not None
    assert row.id == "stone/number"


@pytest.mark.parametrize(("kind", "line"), SEEN, ids=[f"{kind}-{i}" for i, (kind, _) in enumerate(SEEN)])
def test_a_line_that_says_enough_needs_no_speaker(kind: str, line: str) -> None:
    row = first(line, ALONE)
    assert row is not None
    assert row.id.partition("/")[2] == kind


def test_every_kind_that_stands_alone_has_a_line() -> None:
    assert {kind.id for kind in EVERY.kinds if kind.alone} == {kind for kind, _ in SEEN}


def test_what_stands_above_a_stack_does_not_speak() -> None:
    assert first('[MILL] done\nTraceback (most recent call last):\n  File "app.py", line 3\nKeyError: 3') is None


def test_a_code_is_spelled_out() -> None:
    row = first("Could not initialize backend due to error = 4000", EVERY)
    assert row is not None
    code = EVERY.code(4000)
    assert code is not None
    assert code.meaning in row.cause


def test_a_warning_alone_is_answered_as_one() -> None:
    causes = of("WARNING - Device 'npu' requested but no compatible EP found.", ALONE).causes
    assert [cause.error.severity.value for cause in causes] == ["warning"]
    assert not of("WARNING - no compatible EP found.\nerror: it stands", ALONE).causes


@pytest.mark.parametrize(
    "line",
    ["[W:mill:x] [MILL] KeyError: 'flour'", "WARNING [MILL] key not found", "<V> [MILL] key not found"],
)
def test_a_line_of_a_mild_level_is_none_of_a_failure(line: str) -> None:
    assert first(line) is None


def test_a_row_that_says_why_is_not_talked_over() -> None:
    row = KnownError(
        id="x", cause="c", workaround="w", source=("s",), confidence=Confidence.REPORTED, match=("no flour",)
    )
    catalog = Catalog(errors=(row,), speakers=BOTH.speakers, kinds=BOTH.kinds)
    assert [cause.error.id for cause in of("[MILL] KeyError: 'flour'\nno flour", catalog).causes] == ["x"]


def test_every_kind_can_be_put_into_words_for_every_speaker() -> None:
    assert len(EVERY.speakers) >= 40
    for kind in EVERY.kinds:
        for text in (kind.cause, kind.workaround):
            assert text.format_map(defaultdict(lambda: "a name"))
        assert set(kind.speakers) <= {speaker.id for speaker in EVERY.speakers}, kind.id


def test_marks_are_long_enough_to_be_nobody_elses() -> None:
    owners: dict[str, str] = {}
    for speaker in EVERY.speakers:
        for mark in speaker.marks:
            assert len(mark) >= 4, mark
            assert owners.setdefault(mark, speaker.id) == speaker.id, mark


@pytest.mark.parametrize(
    ("log", "row"),
    [
        (
            '  File "/x/neural_compressor/adaptor/onnxrt.py", line 4\nKeyError: "/post"',
            "neural-compressor/name-not-in-its-table",
        ),
        ("ImportError: cannot import name 'GenieContext' from 'qai_appbuilder'", "appbuilder/name-missing-in-package"),
        ("ModuleNotFoundError: No module named 'executorch.backends.qualcomm.t'", "executorch-qualcomm/module-missing"),
        ("amdxdna 0000:05:00.1: aie2_frobnicate: mailbox wait failed, ret -110", "amdxdna/errno-timed-out"),
    ],
)
def test_tools_that_one_meets(log: str, row: str) -> None:
    found = first(log, EVERY)
    assert found is not None
    assert found.id == row


def test_what_a_destructor_misses_is_not_the_reason() -> None:
    begun = "error: mill/grind.c: RuntimeError: the corn is wet"
    torn_down = "error: mill/grind.c:9 ~Grinder] KeyError: flour"
    assert [cause.error.id for cause in of(f"{begun}\n{torn_down}").causes] == ["mill/stopped"]
    assert [cause.error.id for cause in of(torn_down).causes] == ["mill/lookup"]
