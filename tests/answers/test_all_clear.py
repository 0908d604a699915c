"""A log is called finished only on evidence, and trouble is seen in the dialects of many tools."""

from __future__ import annotations

import io
from string import ascii_lowercase

from deploykit.answers.diagnosis import diagnose
from deploykit.answers.diagnosis.trouble import FAILURES, LEVELS, trouble_of
from deploykit.cli.diagnose import diagnosis_text
from deploykit.findings import Confidence, Severity
from deploykit.tables.known_errors import Catalog, KnownError, Tool
from deploykit_qualcomm.known_errors import known_errors
from tables import each_row

NOTED = KnownError(
    id="x",
    cause="c",
    workaround="w",
    source=("s",),
    confidence=Confidence.REPORTED,
    match=("note this",),
    severity=Severity.WARNING,
)
PRESS = Catalog(
    errors=(NOTED,),
    tools=(
        Tool(id="press", marks=("press 1.0",), done=("pressed, all of it",)),
        Tool(id="loader", marks=("loader 2.0",)),
    ),
)


def test_warnings_and_information_make_no_failure() -> None:
    diagnosis = diagnose(io.BytesIO(b"press 1.0\nWARNING: note this\npressed, all of it\n"), PRESS)
    assert len(diagnosis.causes) == 1
    assert diagnosis.conclusion == "finished"
    assert diagnosis.exit_status == 0
    assert "line 3" in diagnosis_text(diagnosis)


@each_row(
    ("log", "said"),
    [
        ("press 1.0\nnote this\n", "nothing says that a tool did its job"),
        ("press 1.0\nstarted\n", "nothing says that a tool did its job"),
        ("press 1.0\npressed, all of it\nloader 2.0\nreading\n", "loader began"),
        ("press 1.0\nE0501 12:00:01.0 7 a.cc:3] the rest is dark\npressed, all of it\n", "lines that look like"),
        ("press 1.0\npressed, all of it\nmy.so: undefined symbol: create\n", "lines that look like"),
        ("press 1.0\npressed, all of it\n05-01 12:00:01.000  33  34 E dsp: the rest is dark\n", "lines that look"),
    ],
)
def test_an_all_clear_needs_evidence(log: str, said: str) -> None:
    diagnosis = diagnose(io.BytesIO(log.encode()), PRESS)
    assert diagnosis.conclusion == "not-understood"
    assert diagnosis.exit_status == 1
    assert said in diagnosis_text(diagnosis)


def test_lines_that_differ_in_a_number_only_are_each_read() -> None:
    fine = b"step: 0 errors\n" * 3000
    assert diagnose(io.BytesIO(b"press 1.0\n" + fine + b"pressed, all of it\n"), PRESS).conclusion == "finished"
    broken = fine + b"step: 3 errors\n"
    assert diagnose(io.BytesIO(b"press 1.0\n" + broken + b"pressed, all of it\n"), PRESS).conclusion != "finished"


def test_a_failure_behind_thousands_of_warnings_is_not_lost() -> None:
    """More lines than are looked at one by one: then there is no all-clear, whatever else is said."""
    noise = b"".join(b"[ WARN ] layer fails its hint %d\n" % index for index in range(9000))
    kinds = "".join(f"layer {a}{b} failed\n" for a in ascii_lowercase for b in ascii_lowercase).encode()
    assert diagnose(io.BytesIO(noise + b"pressed, all of it\n"), PRESS).conclusion == "not-understood"
    assert diagnose(io.BytesIO(kinds + b"pressed, all of it\n"), PRESS).overlooked


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
    [
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
    ],
)
def test_trouble_is_seen(line: str) -> None:
    assert trouble_of(line) == "failure"
    assert LEVELS.search(line.encode()) or any(fragment in line for fragment in FAILURES)


@each_row(
    "line",
    [
        "converted, 0 errors",
        "mean absolute error of layer 3: 0.002",
        "exit code: 0",
        "status 0",
        "errors: 0, layers: 12",
        "run with --log_level error",
        "Finalizing Graph Sequence (300 us)",
    ],
)
def test_plain_success_is_no_trouble(line: str) -> None:
    assert trouble_of(line) is None


def test_a_number_speaks_only_where_the_words_beside_it_do_and_one_of_no_table_is_called_unknown() -> None:
    log = b"[ ERROR ] createUnsignedPD on domain 3 is not supported (err 1002)"
    assert not [cause for cause in diagnose(io.BytesIO(log), known_errors()).causes if "memory" in cause.error.cause]
    diagnosis = diagnose(io.BytesIO(b"[ ERROR ] it ended with error code 987654"), known_errors())
    assert "code 987654 = 0xf1206: unknown code" in diagnosis_text(diagnosis)
