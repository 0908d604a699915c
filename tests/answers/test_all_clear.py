"""Logs that tell of no failure, and failures that others follow from."""

import io
from dataclasses import replace
from string import ascii_lowercase
from typing import Any

from deploykit.answers.diagnosis import diagnose
from deploykit.answers.diagnosis.trouble import FAILURES, LEVELS, trouble_of
from deploykit.backend.plugins import catalog_of, load_backends
from deploykit.cli.diagnose import diagnosis_text
from deploykit.findings import Confidence, Severity
from deploykit.tables.known_errors import Catalog, KnownError, Tool
from tables import each_row

SAID: Any = {"source": ("s",), "confidence": Confidence.REPORTED, "severity": Severity.WARNING}
NOTED = KnownError(id="x", cause="c", workaround="w", match=("note this",), **SAID)
EVERY = catalog_of(load_backends())
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
    catalog = Catalog(errors=(replace(NOTED, severity=Severity.ERROR),), forms=EVERY.forms)
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
