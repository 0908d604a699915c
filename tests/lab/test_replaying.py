"""Recorder and replayer for real: a graph that the installed provider builds is recorded, and built again.

The programs are compiled for this machine here; without a C compiler or without the provider that is skipped by name.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper, save

from deploykit.errors import ToolError
from deploykit_qualcomm.hosted import read_calls, read_verdicts
from deploykit_qualcomm.tables import DATA, Wheel, tables
from recording.replaying import Replayed, read_replay, replay, replay_request

RUNNER = DATA.parent / "runner"
HERE = Path(__file__).parent / "recording"
FLAGS = ("-O1", "-std=c11", "-Wall", "-Wextra", "-Werror", "-D_GNU_SOURCE", "-fvisibility=hidden", f"-I{RUNNER}")
RECORDER = ("recorder.c", "record_writing.c", "json.c", "platform.c")
REPLAYER = (*(str(HERE / name) for name in ("replayer.c", "record_reading.c")), "json.c", "platform.c")
RESULT = '{"event":"result","failures":0,"refused":0}'
SESSION = """
import os, sys
import numpy as np
from deploykit_ort_qnn.compiler.worker import npu_session
options = {"backend_path": sys.argv[1], "soc_model": "57"}
session = npu_session("model.onnx", options=options, entries={"session.disable_cpu_ep_fallback": "1"})
np.save("out.npy", session.run(None, {"x": np.load("in.npy")})[0])
os._exit(0)
"""


@dataclass(frozen=True, kw_only=True)
class Bench:
    """The programs, the installed backend, and a record in ``folder/record``."""

    folder: Path
    replayer: str
    recorder: str
    backend: str

    def replay(self, folder: Path, **changes: Any) -> Replayed:
        request = replay_request(newest(), backend=self.backend, record=str(self.folder / "record"), soc_model=57)
        return replay((self.replayer,), {**request, **changes}, cwd=folder, timeout=120.0)


def newest() -> Wheel:
    return tables().wheels[-1]


def compiled(folder: Path) -> tuple[str, str]:
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler: cc")
    recorder, replayer = folder / "librecorder.so", folder / "replayer"
    for words in (("-shared", "-fPIC", "-o", str(recorder), *RECORDER), ("-o", str(replayer), *REPLAYER)):
        subprocess.run([compiler, *FLAGS, *words, "-ldl"], cwd=RUNNER, check=True, timeout=120)
    return str(recorder), str(replayer)


def write_model(path: Path) -> None:
    """A float Conv with a Relu, of a size that takes no time."""
    rng = np.random.default_rng(3)
    nodes = [
        helper.make_node("Conv", ["x", "w", "b"], ["c"], name="conv", kernel_shape=[3, 3], pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["c"], ["y"], name="relu"),
    ]
    stored = {"w": rng.normal(size=(4, 3, 3, 3)), "b": rng.normal(size=4)}
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 3, 8, 8])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 4, 8, 8])],
        [numpy_helper.from_array(value.astype(np.float32), name) for name, value in stored.items()],
    )
    save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Bench:
    qnn = pytest.importorskip("onnxruntime_qnn")
    folder = tmp_path_factory.mktemp("bench")
    recorder, replayer = compiled(folder)
    backend = str(qnn.get_qnn_htp_path())
    write_model(folder / "model.onnx")
    np.save(folder / "in.npy", np.random.default_rng(0).normal(size=(1, 3, 8, 8)).astype(np.float32))
    (folder / "record").mkdir()
    settings = {"DEPLOYKIT_QNN_BACKEND": backend, "DEPLOYKIT_QNN_RECORD": "record"}
    argv = [sys.executable, "-c", SESSION, recorder]
    subprocess.run(argv, cwd=folder, env={**os.environ, **settings}, check=True, timeout=300)
    return Bench(folder=folder, replayer=replayer, recorder=recorder, backend=backend)


def weights(calls: list[Mapping[str, Any]]) -> list[tuple[int, int]]:
    """Where the weight's values lie in record.bin; its name is that of its tensor, or begins with it."""
    tensors = [call["tensor"] for call in calls if call["call"] == "tensor"]
    return [tuple(tensor["data"]) for tensor in tensors if tensor["name"].startswith("w") and tensor["role"] == 4]


def test_what_passed_is_in_the_record(bench: Bench) -> None:
    calls = list(read_calls(bench.folder / "record"))
    assert calls[0]["call"] == "interface" and calls[0]["core"] == [int(n) for n in newest().qnn_api.split(".")]
    verdicts = read_verdicts(calls)
    assert {"Conv2d", "Relu"} <= {verdict.type for verdict in verdicts} and all(verdict.taken for verdict in verdicts)
    assert {size for _, size in weights(calls)} == {4 * 3 * 3 * 3 * 4}
    (execution,) = [call for call in calls if call["call"] == "execute"]
    offset, size = execution["outputs"][0]["data"]
    recorded = (bench.folder / "record" / "record.bin").read_bytes()[offset : offset + size]
    assert recorded == np.load(bench.folder / "out.npy").tobytes()


def test_the_graph_is_built_again_and_its_outputs_are_the_same_bit_for_bit(bench: Bench, tmp_path: Path) -> None:
    done = bench.replay(tmp_path, execute=True, binary="made.bin")
    assert done.ok, done.error
    assert done.build.startswith(f"v{newest().build}")
    assert done.outputs == {"y": 0}
    assert done.binary == (tmp_path / "made.bin").stat().st_size > 0
    assert {"Conv2d", "Relu"} <= {verdict.type for verdict in done.verdicts} and not done.refused


def test_a_difference_is_seen(bench: Bench, tmp_path: Path) -> None:
    """The weights of the record are changed by one bit: no output may be called the same then."""
    record = tmp_path / "record"
    shutil.copytree(bench.folder / "record", record)
    offset, _ = weights(list(read_calls(record)))[0]
    data = bytearray((record / "record.bin").read_bytes())
    data[offset + 3] ^= 0x80
    (record / "record.bin").write_bytes(data)
    done = bench.replay(tmp_path, record="record", execute=True)
    assert done.ok and done.outputs["y"] > 0


def test_asking_alone_builds_nothing(bench: Bench, tmp_path: Path) -> None:
    done = bench.replay(tmp_path, build=False, binary="made.bin")
    assert done.ok and done.verdicts and not done.binary and not (tmp_path / "made.bin").exists()


def test_a_node_that_is_refused_is_told_and_not_built(bench: Bench, tmp_path: Path) -> None:
    """The Conv is given a parameter that no node of that kind has."""
    record = tmp_path / "record"
    shutil.copytree(bench.folder / "record", record)
    path, odd = record / "record.jsonl", '{"name":"no_such","scalar":{"dtype":306,"bits":"1"}},'
    plain = path.read_text("utf-8")
    given = plain.replace('"type":"Conv2d","params":[', f'"type":"Conv2d","params":[{odd}')
    without = [{"type": "Conv2d", "param": "no_such"}]
    path.write_text(given, "utf-8")
    asked = bench.replay(tmp_path, record="record", build=False)
    assert asked.ok and {verdict.type for verdict in asked.refused} == {"Conv2d"}
    assert all(verdict.answer and verdict.said for verdict in asked.refused)
    built = bench.replay(tmp_path, record="record", binary="made.bin")
    assert built.error.startswith("a node is refused: ") and not built.binary
    assert not bench.replay(tmp_path, record="record", leave_out=without).ok, "only a parameter that is 0 says nothing"
    path.write_text(given.replace(odd, odd.replace('"1"', '"0"')), "utf-8")
    assert bench.replay(tmp_path, record="record", leave_out=without).ok


WEIGHT = '"role":4,"format":0,"dtype":562,"dims":['
DAMAGES = {
    "no JSON": ('"call":"graph"', '"call""graph"'),
    "a shape that the values do not have": (
        '"name":"w","role":4,"format":0,"dtype":562,"dims":[',
        '"name":"w","role":4,"format":0,"dtype":562,"dims":[70000,',
    ),
    "a negative side": ('"dims":[1,8,8,4]', '"dims":[1,-8,8,4]'),
    "a broken side": ('"dims":[1,8,8,4]', '"dims":[1,8.5,8,4]'),
    "sides beyond any memory": ('"dims":[1,8,8,4]', '"dims":[4294967296,8,8,4]'),
    "a rank beyond any": ('"dims":[1,8,8,4]', f'"dims":[{",".join("1" * 100)}]'),
    "another version": ('"version":1', '"version":9'),
    "a text for a number": ('"role":3', '"role":"3"'),
    "a graph that is not there": ('"call":"node","graph":0', '"call":"node","graph":7'),
    "a graph beyond any": ('"call":"tensor","graph":0', '"call":"tensor","graph":-1'),
    "a tensor without a name": ('"name":"y"', '"name":""'),
    "a value that is no number": ('"bits":"', '"bits":"zz'),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_a_damaged_record_is_refused_in_words(bench: Bench, tmp_path: Path, name: str) -> None:
    record = tmp_path / "record"
    shutil.copytree(bench.folder / "record", record)
    path = record / "record.jsonl"
    before = path.read_text("utf-8")
    path.write_text(before.replace(*DAMAGES[name]), "utf-8")
    assert path.read_text("utf-8") != before, "the damage is done"
    done = bench.replay(tmp_path, record="record", binary="made.bin")
    assert "the record is damaged" in done.error and not (tmp_path / "made.bin").exists()


def test_values_that_are_not_there_are_refused(bench: Bench, tmp_path: Path) -> None:
    record = tmp_path / "record"
    shutil.copytree(bench.folder / "record", record)
    (record / "record.bin").write_bytes(b"x")
    assert "a tensor's values" in bench.replay(tmp_path, record="record").error
    (record / "record.bin").unlink()
    assert "cannot be read" in bench.replay(tmp_path, record="record").error


@pytest.mark.parametrize(
    "text", ["", "[]", "{", '{"a":' * 40, '{"backend":""}', '{"backend":"libnone.so"}'], ids=range(6)
)
def test_a_request_that_is_none_is_refused(bench: Bench, tmp_path: Path, text: str) -> None:
    (tmp_path / "q.json").write_text(text, "utf-8")
    done = subprocess.run(
        [bench.replayer, "q.json"], cwd=tmp_path, capture_output=True, encoding="utf-8", timeout=60, check=False
    )
    assert done.returncode in (1, 2) and ("usage" in done.stderr or "cannot be loaded" in done.stdout)


def test_the_request_is_made_for_the_version_of_the_backend() -> None:
    wheels = {wheel.version: wheel for wheel in tables().wheels}
    asked = {v: replay_request(wheels[v], backend="b", record="r") for v in ("1.18.1", "1.22.0", "1.22.2", "2.7.0")}
    assert [asked[version]["device_word"] for version in asked] == [0, 0, 0, 1]
    parameter = [{"type": "Conv2d", "param": "reuse_sparse_indices"}]
    assert [asked[version]["leave_out"] for version in asked] == [parameter, parameter, [], []]
    with pytest.raises(ToolError, match=r"1\.20\.1: the versions of its API"):
        replay_request(wheels["1.20.1"], backend="b", record="r")


def test_an_answer_without_its_end_is_none() -> None:
    output = json.dumps({"event": "output", "name": "y", "bytes": 4, "different": 0}, separators=(",", ":"))
    assert read_replay([output, RESULT]).ok and not read_replay([output]).ok
    crash = read_replay(['{"event":"crash","code":"signal 11"}'])
    assert "signal 11" in crash.error


@pytest.mark.parametrize(
    "event",
    [
        '{"event":"output","different":0}',
        '{"event":"output","name":"y","different":"many"}',
        '{"event":"binary","bytes":null}',
        '{"event":"left"}',
        '{"event":"verdict","name":"n","type":"Conv2d"}',
        '{"event":"verdict","name":3,"type":"Conv2d","answer":0}',
        '{"event":' + "[" * 100_000,
    ],
)
def test_a_damaged_event_is_an_error(event: str) -> None:
    assert not read_replay([event]).ok
