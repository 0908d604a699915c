"""Logs that tell of no failure, failures that others follow from, and those that no row has words for."""

import dataclasses
import io
from string import ascii_lowercase
from typing import Any

from deploykit.answers.diagnosis import Diagnosis, diagnose
from deploykit.answers.diagnosis.trouble import FAILURES, LEVELS, trouble_of
from deploykit.backend.plugins import catalog_of, load_backends
from deploykit.cli.diagnose import diagnosis_text
from deploykit.findings import Confidence, Severity
from deploykit.tables.known_errors import Catalog, FailureKind, KnownError, Tool
from tables import each_row

WORDS = {"source": ("s",), "confidence": Confidence.INFERRED}
SAYS = {"speaks": ("mill/", "[MILL]"), "done": ("all is milled",), "advice": "grind less"}
MILL = Tool(id="mill", name="the mill", **SAYS, **WORDS)  # type: ignore[arg-type]
STONE = Tool(id="stone", name="the stone", speaks=("mill/stone",), advice="turn it", **WORDS)  # type: ignore[arg-type]


def kind(name: str, *patterns: str, says: str, way_out: str = "read it", **more: Any) -> FailureKind:
    return FailureKind(id=name, patterns=patterns, cause=says, workaround=way_out, **WORDS, **more)  # type: ignore[arg-type]


LOOKUP = kind(
    "lookup",
    "key not found",
    "KeyError: (?P<name>.+)",
    says="{speaker} misses {name}",
    way_out="look for {name}",
    late=True,
)
STOPPED = kind("stopped", "RuntimeError: (?P<name>.+)", says="{speaker} stopped: {name}", root="symptom")
NUMBER = kind("number", "error -7", says="{speaker} says seven", speakers=("stone",))
EVERY = catalog_of(load_backends())
BOTH = Catalog(forms=EVERY.forms, tools=(MILL, STONE), kinds=(LOOKUP, STOPPED, NUMBER))
ALONE = dataclasses.replace(EVERY, errors=())


def of(log: str, catalog: Catalog = BOTH) -> Diagnosis:
    return diagnose(io.BytesIO(log.encode()), catalog)


def first(log: str, catalog: Catalog = BOTH) -> KnownError | None:
    causes = of(log, catalog).causes
    return causes[0].error if causes else None


STACK = '  File "mill/grind.py", line 3\n  File "mill/stone/turn.py", line 9\nKeyError: 3'
STOOD = '  File "mill/grind.py", line 3\n    grind()\nRuntimeError: it stands'
TURNED = '  File "mill/stone/turn.py", line 9\n    turn()\nKeyError: 3'
TORN_DOWN = "error: mill/grind.c:9 ~Grinder] KeyError: flour"


@each_row(
    ("log", "found"),
    # Who speaks and what it says are both needed.
    ("[MILL] KeyError: 'flour'", "mill/lookup"),
    ("[SHOP] KeyError: 'flour'", None),
    ("[MILL] KeyError: 'flour'\nall is milled", "mill/lookup"),
    ("[MILL] error: no flour", None),
    # The nearest frame of a stack speaks, and nothing above it.
    (STACK, "stone/lookup"),
    (STACK.replace("/", "\\"), "stone/lookup"),
    ('[MILL] done\nTraceback (most recent call last):\n  File "app.py", line 3\nKeyError: 3', None),
    # A kind that says why comes before one that does not; what a destructor misses is not the reason.
    ("[MILL] RuntimeError: it stands\n[MILL] KeyError: 'flour'", "mill/lookup"),
    (f"error: mill/grind.c: RuntimeError: the corn is wet\n{TORN_DOWN}", "mill/stopped"),
    (TORN_DOWN, "mill/lookup"),
    # A number counts for its speakers only.
    ("[MILL] error -7", None),
    ("mill/stone: error -7", "stone/number"),
    # A line of a mild level is none of a failure.
    ("[W:mill:x] [MILL] KeyError: 'flour'", None),
    ("WARNING [MILL] key not found", None),
    ("<V> [MILL] key not found", None),
    ("[V:mill:x, mill.cc:3 Log] <E> [MILL] key not found", "mill/lookup"),
    # The code that a stack shows says what might be raised.
    ('  File "mill/grind.py", line 3\n    raise KeyError: corn\nRuntimeError: it stands', "mill/stopped"),
    # What a step that failed should have made is missing after it, unless one exception came of the other.
    (f"{STOOD}\n{TURNED}", "mill/stopped"),
    (f"{STOOD}\n\nDuring handling of the above exception, another exception occurred:\n{TURNED}", "stone/lookup"),
)
def test_who_fails_and_how(log: str, found: str | None) -> None:
    row = first(log)
    assert (row and row.id) == found


def test_the_answer_names_who_what_and_a_way_out() -> None:
    row = first("[MILL] key not found: KeyError: 'flour'")
    assert row is not None
    assert (row.id, row.cause) == ("mill/lookup", "the mill misses 'flour'"), "of two patterns the one that names it"
    assert row.workaround == "look for 'flour'; grind less"
    assert row.confidence is Confidence.INFERRED
    assert "no row has these words" in diagnosis_text(of("[MILL] KeyError: 'flour'"))


@each_row(
    ("log", "code"), ("Could not initialize backend due to error = 4000", 4000), ("[XRT] map: No such device", -19)
)
def test_a_code_is_spelled_out(log: str, code: int) -> None:
    row, known = first(log, ALONE), EVERY.code(code)
    assert row and known and known.meaning in row.cause


def test_a_warning_alone_is_answered_as_one() -> None:
    causes = of("WARNING - Device 'npu' requested but no compatible EP found.", ALONE).causes
    assert [cause.error.severity.value for cause in causes] == ["warning"]
    assert not of("WARNING - no compatible EP found.\nerror: it stands", ALONE).causes


def test_a_failure_beside_the_chain_is_named_as_its_own() -> None:
    foreign = dataclasses.replace(MILL, foreign=True)
    catalog = Catalog(tools=(foreign,), kinds=(LOOKUP,))
    (cause,) = of("[MILL] KeyError: 'flour'", catalog).causes
    assert cause.error.id == "foreign/mill"
    assert "not of the way of a model onto the NPU: its first error is \"[MILL] KeyError: 'flour'" in cause.error.cause
    stack = "File \"/x/site-packages/barn/a.py\", line 3\n    f()\nAttributeError: 'Hay' object has no attribute 'fork'"
    for log in ("tar: Child returned status 1", "rabbit.errors.ChannelError: shut", stack):
        assert "and nothing here speaks of the NPU" in of(log, EVERY).causes[0].error.cause
    assert of("[MILL] KeyError: 'flour'", catalog).conclusion == "failed"
    for name, found in (("amdgpu", "foreign/kernel"), ("fastrpc", "fastrpc/kernel-crashed")):
        assert of(f"[ 1.5]  kthread+0x1/0x2\n[ 1.5]  put+0xb/0x12 [{name}]", EVERY).causes[0].error.id == found


def test_what_the_wording_keeps_is_said() -> None:
    words: Any = {"cause": "{size} KB of {limit} KB", "workaround": "cut it into {parts}", "source": ("s",)}
    row = KnownError(id="x", confidence=Confidence.REPORTED, match=("needs {size:n} KB, has {limit:n} KB",), **words)
    (cause,) = of("error: needs 5,000 KB, has 2000 KB", Catalog(errors=(row,))).causes
    assert (cause.error.cause, cause.error.workaround) == ("5,000 KB of 2000 KB", "cut it into 3")
    assert cause.fields == {"size": "5,000", "limit": "2000"}
    (cause,) = of("error: needs 5,000 KB, has 0 KB", Catalog(errors=(row,))).causes
    assert cause.error.workaround == "cut it into several"


SAID: Any = {"source": ("s",), "confidence": Confidence.REPORTED, "severity": Severity.WARNING}
NOTED = KnownError(id="x", cause="c", workaround="w", match=("note this",), **SAID)
PRESS = Catalog(
    errors=(NOTED,),
    tools=(
        Tool(id="press", marks=("press 1.0",), done=("pressed, all of it",)),
        Tool(id="loader", marks=("loader 2.0",)),
    ),
)


def test_warnings_and_information_make_no_failure() -> None:
    diagnosis = diagnose(io.BytesIO(b"press 1.0\nWARNING: note this\npressed, all of it\n"), PRESS)
    assert len(diagnosis.causes) == 1 and diagnosis.conclusion == "finished"
    assert diagnosis.exit_status == 0 and "line 3" in diagnosis_text(diagnosis)


@each_row(
    ("log", "level"),
    ("[W:a:b] note this", "warning"),
    ("[W:a:b] note this\n[E:a:b] it failed", "error"),
    ("[V:a:b] note this", "warning"),
    ("[V:a:b] note this: it failed", "error"),
    ("[V:a:b] note this: it failed\n[E:a:b] it ended", "warning"),
)
def test_what_only_warnings_or_details_say_is_a_failure_beside_others_or_alone(log: str, level: str) -> None:
    catalog = Catalog(errors=(dataclasses.replace(NOTED, severity=Severity.ERROR),), forms=EVERY.forms)
    assert diagnose(io.BytesIO(log.encode()), catalog).causes[0].error.severity.value == level


@each_row(
    ("log", "said"),
    ("press 1.0\nnote this\n", "nothing says that a tool did its job"),
    ("press 1.0\nstarted\n", "nothing says that a tool did its job"),
    ("press 1.0\npressed, all of it\nloader 2.0\nreading\n", "loader began"),
    ("press 1.0\nE0501 12:00:01.0 7 a.cc:3] the rest is dark\npressed, all of it\n", "lines that look like"),
    ("press 1.0\npressed, all of it\nmy.so: undefined symbol: create\n", "lines that look like"),
    ("press 1.0\n2025-01-01 12:00:01.0 [E:press:, a.cc:3] the rest is dark\npressed, all of it\n", "lines that look"),
    ("press 1.0\npressed, all of it\n05-01 12:00:01.000  33  34 E dsp: the rest is dark\n", "lines that look"),
)
def test_an_all_clear_needs_evidence(log: str, said: str) -> None:
    diagnosis = diagnose(io.BytesIO(log.encode()), PRESS)
    assert diagnosis.conclusion == "not-understood" and diagnosis.exit_status == 1
    assert said in diagnosis_text(diagnosis)


def test_a_known_wording_behind_a_flood_of_trouble_is_found_and_counted() -> None:
    """Past so many lines words of trouble are not sought any more; the wordings of causes and marks of tools are."""
    flood = "".join(f"layer {a}{b}{c} failed\n" for a in ascii_lowercase for b in ascii_lowercase for c in "abcdefghij")
    log = flood.encode() * 12 + b"note this\n" * 30 + b"loader 2.0\n"
    assert len(log) > 1 << 20
    diagnosis = diagnose(io.BytesIO(log), PRESS)
    assert [cause.count for cause in diagnosis.causes if cause.error.id == "x"] == [30]
    assert (diagnosis.overlooked, diagnosis.tools) == (True, ("loader",))


@each_row(
    "line",
    "F20251101 12:00:00.1 7 main.cc:3] Check failed: a == b",
    "[E:onnxruntime:, graph.cc:1] it ended",
    "ImportError: libfoo.so: undefined symbol: CreateEpFactories",
    "Device 3 was not selected",
    "error code 3110",
    "CANNOT LINK EXECUTABLE: library not found",
    "avc:  denied  { read } for name=x",
    "make: *** [all] Error 2",
    "Process finished with exit code 134",
    "vendor/adsprpc/fastrpc_apps_user.c:1023: Error 0x80000406: remote_handle_open failed",
    "'quantizer' is not recognized as an internal or external command",
    "Segmentation fault (core dumped)",
    "terminate called after throwing an instance of 'std::bad_alloc'",
)
def test_trouble_is_seen(line: str) -> None:
    assert trouble_of(line) == "failure"
    assert LEVELS.search(line.encode()) or any(fragment in line for fragment in FAILURES)


def first_of(log: str) -> str:
    return diagnose(io.BytesIO(log.encode()), EVERY).causes[0].error.id


@each_row(
    ("lines", "first"),
    (
        (
            "<E> DspTransport.openSession qnn_open failed, 0x80000406",
            "<E> Failed to create transport for device, error: 4000",
            "[E:onnxruntime:, qnn_execution_provider.cc:99 GetCapability] QNN SetupBackend failed "
            "Failed to create device. Error: 14001",
        ),
        "skel-not-opened",
    ),
    (
        (
            "<E> fastrpc memory map for fd: 80 with length: 482344960 failed with error: 0x1",
            "<E> Skel failed to process context binary.",
            "<E> Context create from binary failed for deviceId 0 coreId 0 pdId 0 err 5005",
        ),
        "smmu-map",
    ),
)
def test_the_root_comes_before_what_follows(lines: tuple[str, ...], first: str) -> None:
    """In the order of the log and in any other: logs of several threads are not in order."""
    assert first_of("\n".join(lines)) == first_of("\n".join(reversed(lines))) == first


def test_each_word_of_success_is_evidence_and_none_outweighs_a_failure() -> None:
    for mark in (mark for row in EVERY.tools for mark in row.done):
        assert diagnose(io.BytesIO(f"starting\n{mark}\n".encode()), EVERY).conclusion == "finished", mark
        failed = f"[ERROR] the last tensor failed\n{mark}\n"
        assert diagnose(io.BytesIO(failed.encode()), EVERY).conclusion != "finished", mark


@each_row(
    ("log", "row"),
    ("ERROR: FAILED TO LOAD DELEGATE; QNN_OPEN FAILED\n", "skel-not-opened"),
    ("KeyError: \u2018param_encodings\u2019\n", "keyerror-param-encodings"),
)
def test_letters_and_quotation_marks_of_another_form_are_the_same_words(log: str, row: str) -> None:
    assert first_of(log) == row
