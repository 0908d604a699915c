"""Profiles of real runs on the emulator, read by the product and by a second reader that shares nothing with it."""

import json
import re
from pathlib import Path
from statistics import median
from typing import Any

import onnx
import pytest
from msgspec.structs import replace

from deploykit.backend.on_device import MeasuredOperator
from deploykit.devices.profiles import Origins, beside_estimate, origins_of, read_session_profile, units_of
from deploykit.errors import InputError
from deploykit_qualcomm.profiles import read_profile_csv
from text_models import text_model
from told import check_file

ROOT = Path(__file__).parents[1] / "data"
MODEL = ROOT / "aimet/cnn/model.onnx"
# onnxruntime-qnn 2.7.0 on its emulator: a context run three times, and the QDQ model twice with the provider's sources.
CONTEXT, SOURCES, SESSION = (ROOT / "profiles" / name for name in ("context.csv", "sources.csv", "session.json"))
UNITS = {"QNNExecutionProvider": "NPU"}
HEAD = "Msg Timestamp,Message,Time,Unit of Measurement,Timing Source,Event Level,Event Identifier"


def test_an_operator_without_a_name_goes_by_its_first_output(tmp_path: Path) -> None:
    onnx.save(text_model("float[4] x", "[named] a = Relu (x) y = Neg (a)", "float[4] y"), tmp_path / "m.onnx")
    assert origins_of(tmp_path / "m.onnx").nodes == {"named": "Relu", "y": "Neg"}


def by_pattern(path: Path) -> dict[str, list[int]]:
    """The second reader: whole lines by one pattern, and the name before the compiler's number of the operation."""
    found: dict[str, list[int]] = {}
    pattern = r"^[^,]*,NODE,(\d+),CYCLES,[^,]*,[^,]*,(.*?)[ :]OpId_.*\n"
    for match in re.finditer(pattern, path.read_text("utf-8"), re.MULTILINE):
        found.setdefault(match[2], []).append(int(match[1]))
    return found


@pytest.mark.parametrize("path", [CONTEXT, SOURCES], ids=["context", "sources"])
def test_two_readers_rank_the_operators_alike(path: Path) -> None:
    found = read_profile_csv(path, origins_of(MODEL))
    second = {name: median(values) for name, values in by_pattern(path).items()}
    assert [one.raw for one in found.operators] == sorted(second, key=lambda name: (-second[name], name))
    assert {one.raw: one.value for one in found.operators} == second
    assert found.operators[0].node == "/layer1/0/conv2/Conv"
    assert all(one.unit == "cycles" and one.on == "NPU" for one in found.operators)


def test_forms_of_other_releases_are_read(tmp_path: Path) -> None:
    """An older provider, whose runs begin with their sum; and qnn-net-run's own clock, with names of a converter."""
    origins = Origins(nodes={"/a/Conv": "Conv", "b, c": "Relu"})
    older = [
        "something before it",
        HEAD,
        "UNKNOWN,EXECUTE,3100,US,BACKEND,ROOT,NULL",
        "UNKNOWN,BACKEND,2800,US,BACKEND,SUB-EVENT,Accelerator (execute) time",
        "UNKNOWN,NODE,6000,CYCLES,BACKEND,SUB-EVENT,/a/Conv_token_3",
        "UNKNOWN,NODE,10,CYCLES,BACKEND,SUB-EVENT,b, c:OpId_7 (cycles)",
    ]
    path = tmp_path / "profile.csv"
    path.write_text("\r\n".join([*older, ""]), "utf-8")
    found = read_profile_csv(path, origins)
    assert [(one.node, one.value) for one in found.operators] == [("/a/Conv", 6000), ("b, c", 10)]
    assert found.execute_us == (3100,)
    viewer = [
        HEAD,
        "1,INIT,9000,US,NETRUN,ROOT,init",
        "2,EXECUTE,2000,US,BACKEND,ROOT,QNN (execute) time",
        "3,EXECUTE,2500,US,NETRUN,ROOT,model",
        "4,NODE,44,CYCLES,BACKEND,SUB-EVENT,_a_Conv:OpId_12 (cycles)",
    ]
    path.write_text("\n".join([*viewer, ""]), "utf-8")
    found = read_profile_csv(path, origins)
    assert (found.execute_us, found.init_us) == ((2500,), 9000)
    assert [(one.node, one.op_type, one.raw) for one in found.operators] == [("/a/Conv", "Conv", "_a_Conv")]


@pytest.mark.parametrize(
    "data",
    [b"", b"\x00" * 5000, b"no table", HEAD.encode(), HEAD.encode() + b"\n1,NODE,many,CYCLES,B,SUB-EVENT,x:OpId_1\n"]
    + [HEAD.encode() + f"\n1,NODE,{value},CYCLES,B,SUB-EVENT,x:OpId_1\n".encode() for value in ("nan", "inf", "-4")]
    + [b"{" * 100_000, CONTEXT.read_bytes()[:900].replace(b"NODE", b"\xff\xfe")[:400]],
)
def test_garbage_is_no_profile(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "profile"
    path.write_bytes(data)
    with pytest.raises(InputError, match="not a profile"):
        read_profile_csv(path, Origins(nodes={}))
    with pytest.raises(InputError, match="not a profile"):
        read_session_profile(path, Origins(nodes={}), UNITS)


def test_the_profile_of_a_session_tells_kernels_and_units() -> None:
    origins = origins_of(MODEL)
    found = read_session_profile(SESSION, origins, UNITS)
    events = json.loads(SESSION.read_text("utf-8"))
    kernels: dict[str, list[int]] = {}
    for event in events:
        if event["cat"] == "Node":
            kernels.setdefault(event["name"].removesuffix("_kernel_time"), []).append(event["dur"])
    second = {name: median(values) for name, values in kernels.items()}
    assert [one.raw for one in found] == sorted(second, key=lambda name: (-second[name], name))
    assert [one.raw for one in found if one.on == "CPU"] == ["input_QuantizeLinear", "logits_DequantizeLinear"]
    compiled = read_profile_csv(SOURCES, origins).operators
    assert units_of([*compiled, *found]) == {"NPU": 12}
    relu = next(one for one in compiled if one.node == "/relu/Relu")
    assert units_of([*compiled, replace(relu, on="CPU")]) == {"NPU": 12}
    assert units_of([replace(relu, on="CPU"), *(one for one in compiled if one != relu)]) == {"NPU": 11, "CPU": 1}


def test_measured_cycles_stand_beside_the_estimate(tmp_path: Path) -> None:
    measured = [
        MeasuredOperator(node="a", raw="a_1", value=60.0, unit="cycles"),
        MeasuredOperator(node="a", raw="a_2", value=20.0, unit="cycles"),
        MeasuredOperator(node="b", raw="b", value=20.0, unit="cycles"),
        MeasuredOperator(node="c", raw="c", value=7.0, unit="us"),
    ]
    manifest: dict[str, Any] = {"estimate": {"time_us": 2.0, "cycles": 3000, "timeline": "trace.json"}}
    assert beside_estimate(tmp_path, manifest, measured) == ()
    trace: list[dict[str, Any]] = [
        {"ph": "M", "name": "thread_name"},
        {"ph": "X", "name": "b", "cat": "vector", "tid": 0, "ts": 0.0, "dur": 1.0},
        {"ph": "X", "name": "d", "cat": "matrix", "tid": 1, "ts": 1.0, "dur": 1.0},
    ]
    (tmp_path / "trace.json").write_text(json.dumps({"traceEvents": trace}))
    rows = {row.node: row for row in beside_estimate(tmp_path, manifest, measured)}
    assert list(rows) == ["a", "b", "d"]
    assert (rows["a"].cycles, rows["a"].share, rows["a"].estimated_cycles) == (80, 0.8, None)
    assert (rows["b"].cycles, rows["b"].estimated_cycles, rows["b"].estimated_share) == (20, 1500, 0.5)
    assert (rows["d"].cycles, rows["d"].estimated_cycles, rows["d"].estimated_share) == (None, 1500, 0.5)
    for spoiled in ("[]", "{}", '{"traceEvents": [1]}', json.dumps({"traceEvents": [{"ph": "X", "name": "b"}]})):
        (tmp_path / "trace.json").write_text(spoiled)
        with pytest.raises(InputError, match="not the trace"):
            beside_estimate(tmp_path, manifest, measured)
    assert beside_estimate(tmp_path, {}, measured) == beside_estimate(tmp_path, manifest, measured[3:]) == ()


def test_names_in_a_profile_lead_back_to_operators() -> None:
    nodes = {"/a/Conv": "Conv", "b, c": "Relu", "d_1": "Add", "d": "Mul", "last": "Softmax", "_a_Conv2": "Conv"}
    origins = Origins(nodes=nodes, layouts={"t_7": "layout of /a/Conv"})
    check_file(Path(__file__).with_name("names.told"), lambda raw: [origins.node(raw)])
    rows = {"/a/Conv_token_3": [4.0, 8.0, 5.0], "d_1": [5.0], "b, c": [5.0], "stranger_4": [1.0, 2.0]}
    told = [(one.node, one.raw, one.value, one.unit, one.op_type, one.on) for one in origins.measured(rows)]
    assert told == [
        ("/a/Conv", "/a/Conv_token_3", 5.0, "cycles", "Conv", "NPU"),
        ("b, c", "b, c", 5.0, "cycles", "Relu", "NPU"),
        ("d_1", "d_1", 5.0, "cycles", "Add", "NPU"),
        ("stranger_4", "stranger_4", 1.5, "cycles", "", "NPU"),
    ]
    assert next(one.unit + one.on for one in origins.measured(rows, unit="us", on=lambda raw: raw[:1])) == "us/"


def test_a_profile_of_a_session_is_read_as_far_as_it_goes(tmp_path: Path) -> None:
    """Kernels with a time and a name, in the units that providers stand for; everything else is passed over."""
    events: list[dict[str, Any]] = [
        {"cat": "Session", "name": "model_run", "dur": 30},
        {"cat": "Session", "name": "session_initialization", "dur": 90},
        {"cat": "Node", "name": "/a/Conv_kernel_time", "dur": 20, "args": {"provider": "NPUProvider"}},
        {"cat": "Node", "name": "/a/Conv_kernel_time", "dur": 30, "args": {"provider": "NPUProvider"}},
        {"cat": "Node", "name": "b_kernel_time", "dur": 7.5, "args": {"provider": "CPUExecutionProvider"}},
        {"cat": "Node", "name": "c_kernel_time", "dur": 0, "args": {"provider": "Other"}},
        {"cat": "Node", "name": "d_kernel_time", "dur": -1, "args": {}},
        {"cat": "Node", "name": "e_kernel_time", "dur": "long"},
        {"cat": "Node", "name": "f_kernel_time_more", "dur": 4},
        {"cat": "Node", "name": "g_kernel_time", "dur": 3, "args": []},
        {"cat": "Node", "name": 5, "dur": 3},
    ]
    path = tmp_path / "profile.json"
    path.write_text("[\n" + ",\n".join(map(json.dumps, events)) + ',\n{"cat": "Node", "na', "utf-8")
    found = read_session_profile(path, Origins(nodes={"/a/Conv": "Conv"}), {"NPUProvider": "NPU"})
    assert [(one.node, one.value, one.unit, one.op_type, one.on) for one in found] == [
        ("/a/Conv", 25.0, "us", "Conv", "NPU"),
        ("b", 7.5, "us", "", "CPU"),
        ("g", 3.0, "us", "", ""),
        ("c", 0.0, "us", "", ""),
    ]
    path.write_text(json.dumps(events[1]), "utf-8")
    with pytest.raises(InputError, match="not a profile of ONNX Runtime") as caught:
        read_session_profile(path, Origins(nodes={}), {})
    assert (caught.value.why, caught.value.next) == ("it tells of no run", "run once more with --profile")


def test_operators_are_counted_on_the_first_unit_that_ran_them() -> None:
    rows = [("a", "CPU", "Conv"), ("a", "NPU", "Conv"), ("b", "GPU", "Add"), ("c", "CPU", "Relu"), ("d", "", "Relu")]
    rows += [("q", "NPU", "QuantizeLinear"), ("dq", "NPU", "DequantizeLinear"), ("x", "NPU", "")]
    found = [MeasuredOperator(node=n, raw=n, value=1.0, unit="us", op_type=kind, on=on) for n, on, kind in rows]
    assert units_of(found) == {"NPU": 1, "GPU": 1, "CPU": 1}
