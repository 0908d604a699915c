"""The runner's protocol: what counts as an answer, refusals out of the log and the record, a deadline that is kept."""

import json
import time
from pathlib import Path
from typing import Any

import pytest

from deploykit.errors import InputError, ToolError
from deploykit.system.environments import environment_of
from deploykit.system.specs import Need, Stage, ToolchainSpec
from deploykit_qualcomm.hosted import (
    NodeVerdict,
    RunnerAnswer,
    ask_runner,
    read_answer,
    read_calls,
    read_refusals,
    read_verdicts,
    refusal_lines,
)
from stub_backend import a_toolchain
from tables import each_row

RUNTIME = '{"event":"runtime","version":"1.22.2","api":22}'
RESULT = '{"event":"result","failures":0}'


def test_a_whole_answer() -> None:
    answer = read_answer([RUNTIME, "Starting stage: x", '{"event":"log","severity":2,"text":"a word"}', "", RESULT])
    assert answer == RunnerAnswer(error="", log=("Starting stage: x", "a word"), runtime="1.22.2")
    assert answer.ok and not answer.crashed


@each_row(
    "lines",
    [],
    [RUNTIME],
    *([RUNTIME, line] for line in (RESULT[:-4], RESULT.replace("0", "null"), "noise " + RESULT)),
    *([RUNTIME, f'{{"event":{end}}}'] for end in ('"result"', '["result"]', '"result","failures":1')),
    ["{", "[]", "null", '{"event":"\\ud800', "\x00\x01"],
)
def test_a_damaged_answer_is_no_answer(lines: list[str]) -> None:
    answer = read_answer(lines)
    assert not answer.ok and answer.crashed and answer.error == "the runner gave no whole answer"


def test_failures_and_crashes_are_told_and_counted() -> None:
    failed = '{"event":"failure","what":"session","why":"no such file"}'
    answer = read_answer([RUNTIME, failed, '{"event":"result","failures":1}'])
    assert (answer.error, answer.crashed) == ("session: no such file", False)
    assert read_answer([RUNTIME, failed, RESULT]).crashed, "the counts differ: the answer is not whole"
    answer = read_answer([RUNTIME, '{"event":"crash","code":"0xc0000005"}'])
    assert answer.crashed and "0xc0000005" in answer.error


def test_refused_nodes_carry_the_reason() -> None:
    standalone = (
        "Validation FAILED for 1 nodes in NodeUnit (DequantizeLinear) :\n\tOperator type: DequantizeLinear "
        "Node name: c Node index: 120\n\tREASON : simple_op_builder.cc:84 onnxruntime::qnn::X::Check "
        "no standalone DQ per channel\n"
    )
    log = [
        "Unsupported nodes in QNN EP: { name: a/b, type: Erf } { name: two, type: DequantizeLinear }",
        "QNN.backendValidateOpConfig() failed for node `two` of type `Dequantize` with error code 3110",
        standalone,
        standalone.replace("name: c", "name: two"),  # what the backend answers says more
        "the backend says of `two`: bad bias: 10",
        "the backend says of `other`: no",
        "Unsupported nodes in QNN EP: { name: two, type: Renamed }{ name: c, type: DequantizeLinear }",
    ]
    assert [(found.name, found.type, found.why) for found in read_refusals(log)] == [
        ("a/b", "Erf", ""),
        ("two", "DequantizeLinear", "the backend answers 3110 to Dequantize: bad bias: 10"),
        ("c", "DequantizeLinear", "no standalone DQ per channel"),
    ]
    assert read_refusals(["failed for node `x` of type `y` with error code 1", standalone]) == ()


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
    calls = [{"call": "interface", "answer": 0}, {**ASKED, "answer": 0}, {**taken, "call": "node"}, ASKED]
    verdicts = read_verdicts(read_calls(record(tmp_path, *calls)))
    refused = NodeVerdict(node="fc", type="FullyConnected", answer=3110, said=("QnnDsp <E> bad bias", "x"))
    assert verdicts == (refused, NodeVerdict(node="relu", type="Relu", answer=0, said=("QnnDsp <E> nothing",)))
    assert [verdict.taken for verdict in verdicts] == [False, True]
    assert refusal_lines(verdicts) == ("the backend says of `fc`: bad bias",)


@each_row(
    "line",
    *["{", "[]", "7", "null", '{"call":1,"answer":0}', '{"call":"node"}', '{"call":"node","answer":"0"}'],
    "[" * 100_000,
)
def test_what_is_no_record_is_refused(tmp_path: Path, line: str) -> None:
    with pytest.raises(InputError, match="not a record"):
        list(read_calls(record(tmp_path, ASKED, end=f"{line}\n{json.dumps(ASKED)}\n")))


def test_a_node_of_another_shape_and_a_folder_without_a_record_are_refused(tmp_path: Path) -> None:
    for damage in ({"name": None}, {"type": 3}, {"said": "words"}):
        with pytest.raises(InputError, match="without name, type or words"):
            read_verdicts([{**ASKED, **damage}])
    with pytest.raises(InputError, match="no such file"):
        list(read_calls(tmp_path))


def toolchain(folder: Path, script: str, monkeypatch: pytest.MonkeyPatch) -> ToolchainSpec:
    """A toolchain that is ready, whose Wine is a shell script."""
    wine = folder / "wine"
    wine.write_text(f"#!/bin/sh\n{script}\n", "utf-8")
    wine.chmod(0o755)
    monkeypatch.setenv("DEPLOYKIT_TOOLCHAINS", str(folder / "toolchains"))
    stage = Stage(id="one", run=("-c", "pass"))
    spec = a_toolchain((stage,), needs=(Need(name="wine", programs=(str(wine),), install="install Wine"),))
    environment = environment_of(spec)
    environment.python.parent.mkdir(parents=True)
    environment.python.touch()
    environment.mark(stage)
    return spec


def test_the_runner_is_asked_with_paths_of_the_working_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = toolchain(tmp_path, f"echo \"$2\"; cat \"$2\"; echo; echo '{RUNTIME}'; echo '{RESULT}'", monkeypatch)
    place = tmp_path / "work" / ".scratch"
    place.mkdir(parents=True)
    answer = ask_runner(spec, {"model": "modèle.onnx"}, cwd=tmp_path / "work", place=place, timeout=60)
    assert answer.ok and answer.log[0] == ".scratch/runner.json"
    assert json.loads(answer.log[1]) == {"model": "modèle.onnx"}


def test_a_deadline_ends_the_runner_and_what_it_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = toolchain(tmp_path, f"echo '{RUNTIME}'; sleep 300 & wait", monkeypatch)
    started = time.monotonic()
    answer = ask_runner(spec, {}, cwd=tmp_path, place=tmp_path, timeout=0.3)
    assert time.monotonic() - started < 60
    assert answer.done is not None and answer.done.timed_out and not answer.ok


def test_without_the_toolchain_or_wine_one_line_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = toolchain(tmp_path, "exit 0", monkeypatch)
    (tmp_path / "wine").unlink()
    with pytest.raises(ToolError, match="install Wine"):
        ask_runner(spec, {}, cwd=tmp_path, place=tmp_path, timeout=1.0)
    environment_of(spec).python.unlink()
    with pytest.raises(ToolError, match="toolchain install"):
        ask_runner(spec, {}, cwd=tmp_path, place=tmp_path, timeout=1.0)
