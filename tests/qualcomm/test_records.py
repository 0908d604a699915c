"""What is read out of a record: calls up to where it ends, the last answer to each node, the reason of a refusal."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from deploykit.errors import InputError
from deploykit_qualcomm.hosted import NodeVerdict, read_calls, read_refusals, read_verdicts, refusal_lines
from tables import each_row

ASKED = {
    "call": "validate",
    "name": "fc",
    "type": "FullyConnected",
    "answer": 3110,
    "said": ["QnnDsp <E> bad bias\n", "x"],
}


def record(folder: Path, *calls: Any, end: str = "") -> Path:
    folder.joinpath("record.jsonl").write_text("".join(f"{json.dumps(call)}\n" for call in calls) + end, "utf-8")
    return folder


def test_the_last_answer_counts_and_its_first_line_is_the_reason(tmp_path: Path) -> None:
    taken = {**ASKED, "name": "relu", "type": "Relu", "answer": 0, "said": ["QnnDsp <E> nothing"]}
    calls = [{"call": "interface", "answer": 0}, {**ASKED, "answer": 0}, taken, ASKED]
    verdicts = read_verdicts(read_calls(record(tmp_path, *calls)))
    refused = NodeVerdict(node="fc", type="FullyConnected", answer=3110, said=("QnnDsp <E> bad bias", "x"))
    assert verdicts == (refused, NodeVerdict(node="relu", type="Relu", answer=0, said=("QnnDsp <E> nothing",)))
    assert [verdict.taken for verdict in verdicts] == [False, True]
    assert refusal_lines(verdicts) == ("the backend says of `fc`: bad bias",)


def test_the_reason_follows_the_answer_in_what_is_told_of_a_refused_node() -> None:
    log = [
        "Unsupported nodes in QNN EP: { name: fc, type: Gemm }",
        "QNN.backendValidateOpConfig() failed for node `fc` of type `FullyConnected` with error code 3110",
        "the backend says of `fc`: bad bias: 10",
        "the backend says of `other`: no",
    ]
    (refusal,) = read_refusals(log)
    assert refusal.why == "the backend answers 3110 to FullyConnected: bad bias: 10"


def test_a_record_that_ends_early_is_read_up_to_there(tmp_path: Path) -> None:
    assert len(list(read_calls(record(tmp_path, ASKED, end='{"call":"valid')))) == 1
    assert list(read_calls(record(tmp_path))) == []


@each_row(
    "line",
    ["{", "[]", "7", "null", '{"call":1,"answer":0}', '{"call":"node"}', '{"call":"node","answer":"0"}', "[" * 100_000],
    ids=range(8),
)
def test_what_is_no_record_is_refused(tmp_path: Path, line: str) -> None:
    with pytest.raises(InputError, match="not a record"):
        list(read_calls(record(tmp_path, ASKED, end=f"{line}\n{json.dumps(ASKED)}\n")))


@pytest.mark.parametrize("damage", [{"name": None}, {"type": 3}, {"said": "words"}])
def test_a_node_of_another_shape_is_refused(damage: dict[str, Any]) -> None:
    with pytest.raises(InputError, match="without name, type or words"):
        read_verdicts([{**ASKED, **damage}])


def test_a_folder_without_a_record_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be read"):
        list(read_calls(tmp_path))
