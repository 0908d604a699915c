"""Where several known errors stand in one log, the root comes first; a bare number never outranks words."""

from __future__ import annotations

import io

from deploykit.answers.diagnosis import diagnose
from deploykit.backend.plugins import catalog_of, load_backends
from tables import each_row

EVERY = catalog_of(load_backends())


def first_of(log: str) -> str:
    return diagnose(io.BytesIO(log.encode()), EVERY).causes[0].error.id


@each_row(
    ("lines", "first"),
    [
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
                "<E> Stub lib id mismatch: expected (v2.28.0.241029232508_102474), detected (v2.25.17.241017130936_1)",
                "<E> Unable to load Remote symbols 1008",
                "<E> Failed to create transport for device, error: 1008",
            ),
            "library-versions-differ",
        ),
        (
            (
                "<E> fastrpc memory map for fd: 80 with length: 482344960 failed with error: 0x1",
                "<E> Skel failed to process context binary.",
                "<E> Context create from binary failed for deviceId 0 coreId 0 pdId 0 err 5005",
            ),
            "smmu-map",
        ),
        (
            (
                '[ERROR] "Unable to find a valid interface."',
                '[ERROR] "Create From Binary FAILED!"',
                "Failure to initialize model",
            ),
            "qnn-other-libraries-first",
        ),
        (
            (
                "[UNILOG][FATAL][XCOM_UNSUPPORT_QUANTIZATION][The fix info is error or unsupported.] too large.",
                "*** Check failure stack trace: ***",
                "Aborted (core dumped)",
            ),
            "dpu-scales-differ",
        ),
        (
            (
                "ERROR: hexagon_nn_config failed. Error: -1",
                "ERROR: Node number 125 (TfLiteHexagonDelegate) failed to prepare.",
                "ERROR: Restored original execution plan after delegate application failure.",
            ),
            "hexagon-delegate-start",
        ),
        (
            (
                "amdxdna 0000:c6:00.1: AIE2_TDR_WORK: Device isn't making progress... Count 6 timeout 15",
                "amdxdna 0000:c6:00.1: AMD-Vi: Event logged [IO_PAGE_FAULT domain=0x0002 address=0x7fb5 flags=0x0007]",
            ),
            "xdna-page-fault",
        ),
        (
            (
                "SNPE build failed: error_code=7005; error_message= QnnGraph_addNode() failed for layer: Unsqueeze_48; "
                "QNN_GRAPH_ERROR_INVALID_OP_CONFIG: Some elements in the op config data are invalid",
                "[error] [Init] Can't init snpetask instance.",
            ),
            "name-graph-optimize",
        ),
    ],
)
def test_the_root_comes_before_what_follows(lines: tuple[str, ...], first: str) -> None:
    """In the order of the log and in any other: logs of several threads are not in order."""
    assert first_of("\n".join(lines)) == first_of("\n".join(reversed(lines))) == first


@each_row("number", ["3110", "1002", "1100", "6031", "6999", "8002", "14001", "0x36b1", "0x80000406"])
def test_a_number_beside_words_does_not_come_first(number: str) -> None:
    log = f"error code {number}\nModuleNotFoundError: No module named 'timm'\nfailed: {number}\n"
    assert first_of(log) == "line/module-missing"


@each_row("number", [2999, 31337, 14999])
def test_a_number_of_no_table_is_no_cause(number: int) -> None:
    diagnosis = diagnose(io.BytesIO(f"QnnDsp <E> something ended with error code {number}\n".encode()), EVERY)
    assert diagnosis.conclusion != "finished"
    assert all(cause.error.root != "cause" for cause in diagnosis.causes)


@each_row("size", [2097153, 3000000, 99999999])
def test_the_number_of_kilobytes_does_not_matter(size: int) -> None:
    log = f"<E> Graph g: estimated allocation of {size} KB, limit is 2097152 KB\n<E> Failed to finalize graph, err 1002"
    cause = diagnose(io.BytesIO(log.encode()), EVERY).causes[0].error
    assert (cause.stage, cause.root) == ("context-binary", "cause")


def test_each_word_of_success_is_evidence_and_none_outweighs_a_failure() -> None:
    for mark in (mark for row in EVERY.tools for mark in row.done):
        assert diagnose(io.BytesIO(f"starting\n{mark}\n".encode()), EVERY).conclusion == "finished", mark
        failed = f"[ERROR] the last tensor failed\n{mark}\n"
        assert diagnose(io.BytesIO(failed.encode()), EVERY).conclusion != "finished", mark


@each_row(
    ("log", "row"),
    [
        ("ERROR: FAILED TO LOAD DELEGATE; QNN_OPEN FAILED\n", "skel-not-opened"),
        ("KeyError: \u2018param_encodings\u2019\n", "keyerror-param-encodings"),
    ],
)
def test_letters_and_quotation_marks_of_another_form_are_the_same_words(log: str, row: str) -> None:
    assert first_of(log) == row


def test_of_two_general_wordings_on_one_line_the_vaguer_follows_from_the_other() -> None:
    log = b"Status Message: QNN graph execute error. Error code: 6001\n"
    (cause,) = diagnose(io.BytesIO(log), EVERY).causes
    assert cause.error.id == "name-graph-handle"
    assert "graph-execute-failed" in {follow.error.id for follow in cause.follow_ups}
