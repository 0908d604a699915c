"""The child process: a compilation ends in a plain outcome, whatever happens to it, and leaves no half-made files."""

import json
import os
import re
import shutil
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn

import numpy as np
import onnx
import pytest
from msgspec.structs import fields, replace

from deploykit.errors import InputError, ToolError, UsageError
from deploykit.findings.records import Arrays
from deploykit.system.processes import ProgramEnd
from deploykit_ort_qnn.compiler import jobs as module
from deploykit_ort_qnn.compiler import worker as child
from deploykit_ort_qnn.compiler.graphs import QnnTensor, parse_graph, parse_schematic
from deploykit_ort_qnn.compiler.jobs import CompileJob, compile_model, execute_both, write_dlc
from emulator import execute_model
from tables import each_row
from told import check_told

pytestmark = pytest.mark.usefixtures("every_compilation_runs")
AIMET = Path(__file__).parents[1] / "data" / "aimet"


def job_for(root: Path, fixture: str, **more: object) -> CompileJob:
    shutil.copy(AIMET / f"{fixture}.qdq.onnx", root / "model.onnx")
    given: dict[str, object] = {"options": {"soc_model": "57"}, "context": "out/model_ctx.onnx", **more}
    return CompileJob(root=root, model="model.onnx", **given)  # type: ignore[arg-type]


def names(root: Path) -> set[str]:
    return {path.relative_to(root).as_posix() for path in root.rglob("*") if path.is_file()}


def test_a_compilation_leaves_the_context_and_tells_the_types(tmp_path: Path) -> None:
    news: list[str] = []
    outcome = compile_model(job_for(tmp_path, "mlp/w8a16"), news.append)
    assert outcome.status == "compiled" and not outcome.cpu_nodes
    assert outcome.files == ("out/model_ctx.onnx", "out/model_ctx_qnn.bin")
    assert names(tmp_path) == {"model.onnx", *outcome.files}
    assert any("compiling" in line for line in news)
    assert outcome.peak_rss_mb is not None and outcome.peak_rss_mb > 50
    (graph,), (schematic,) = outcome.graphs, outcome.schematics
    assert {node.type for node in graph.nodes} >= {"FullyConnected", "Conv2d", "Sigmoid", "Quantize"}
    assert graph.tensors["/act_fn/Mul_output_0_q"].dtype == "uint16"
    assert {tensor.dtype for tensor in graph.tensors.values() if tensor.fixed} >= {"int8", "uint16"}
    made = [op for op in schematic.after if op.computes]
    assert "QUInt16" in {dtype for op in made if schematic.names.get(op.origin) == "/Add" for dtype in op.dtypes}
    assert "Float16" not in {dtype for op in made for dtype in op.dtypes}


def test_refused_nodes_are_named_and_nothing_is_left(tmp_path: Path) -> None:
    outcome = compile_model(job_for(tmp_path, "vit/w8a8"))
    assert outcome.status == "refused"
    assert [(node.name, node.type) for node in outcome.refused] == [("/blocks/blocks.0/mlp/act/Erf", "Erf")]
    assert names(tmp_path) == {"model.onnx"}


END = ProgramEnd(argv=(), returncode=0, tail=(), seconds=1.0, peak_rss_mb=1234.4)
SAID = ("one", "Unsupported nodes in QNN EP: { name: n, type: Erf }")


class Worker:
    """In the place of the process: how it ends, what it answers, and the operators that its context model has."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.gives: tuple[ProgramEnd, Any, tuple[str, ...]] = (END, {"ok": True}, ())
        self.operators: tuple[str, ...] = ("EPContext",)
        self.asked: list[Any] = []
        monkeypatch.setattr("deploykit_ort_qnn.compiler.hosts.Worker.work", lambda _, *given: self.work(*given))

    def work(self, request: Any, root: Path, scratch: Path, timeout: float, progress: Any) -> Any:
        self.asked.append({**request, "timeout": timeout})
        nodes = [onnx.helper.make_node(kind, [], ["y"], name=kind) for kind in self.operators]
        if "context" in request:
            onnx.save(onnx.helper.make_model(onnx.helper.make_graph(nodes, "g", [], [])), root / request["context"])
        for run in request.get("runs", ()):
            made: Any = {f"{at}:y": np.full(1, at) for at in range(2 if run["provider"] == "cpu" else 1)}
            np.savez(run["outputs"], **made)
        return self.gives


ENDS: dict[str, tuple[dict[str, Any], dict[str, Any] | None, str, bool]] = {
    "It takes too long": ({"timed_out": True}, None, "", False),
    "It dies": ({"returncode": -11}, None, "", False),
    "It ends": ({"returncode": 3}, None, "", False),
    "It grows": ({"grown": True}, None, "", False),
    "It refuses": ({}, {"ok": False, "error": "no"}, "", False),
    "It leaves a node": ({}, {"ok": True}, "Erf", False),
    "It may leave a node": ({}, {"ok": True}, "Erf", True),
    "It compiles all": ({}, {"ok": True}, "", False),
}


def test_what_a_compilation_comes_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    worker, told = Worker(monkeypatch), dict[str, list[str]]()
    for number, (title, (end, answer, left, free)) in enumerate(ENDS.items()):
        root = tmp_path / str(number)
        root.mkdir()
        worker.gives, worker.operators = (replace(END, **end), answer, SAID), ("EPContext", *filter(None, [left]))
        job = job_for(root, "mlp/w8a8", allow_cpu=free, trace=free, embed=free, entries={"a.b": "1"})
        outcome = compile_model(job)
        asked = json.dumps(worker.asked[-1])
        made = [f"{one.name}: {value}" for one in fields(outcome) if (value := getattr(outcome, one.name))]
        told[title] = [*made, *([re.sub(r"\.compile-\w+", "HERE", asked)] if outcome.ok else [])]
    check_told(Path(__file__).with_name("outcomes.told"), told)


def test_what_is_compiled_otherwise_is_compiled_again_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DEPLOYKIT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(module, "is_off", lambda: False)
    (root := tmp_path / "root").mkdir()
    worker, told = Worker(monkeypatch), list[str]()
    worker.gives = END, {"ok": True}, SAID

    def asked(**change: Any) -> tuple[int, str]:
        shutil.rmtree(root / "out", ignore_errors=True)
        before = len(worker.asked)
        outcome = compile_model(job_for(root, "mlp/w8a8", **change), told.append)
        assert outcome.log == worker.gives[2] and (root / "out").exists() is outcome.ok
        return len(worker.asked) - before, outcome.status

    assert (asked(), asked(), asked(timeout=9.0)) == ((1, "compiled"), (0, "compiled"), (0, "compiled"))
    assert "done before" in told[-1]
    changes: dict[str, Any] = {"embed": True, "allow_cpu": True, "trace": False, "context": "out/other.onnx"}
    for name, value in {**changes, "options": {"soc_model": "43"}, "entries": {"a.b": "1"}}.items():
        assert asked(**{name: value})[0] == 1, name
    for file in ("weights", "more"):
        (root / file).write_bytes(b"other")
        assert asked()[0] == 1, file
    other = {"wheel": "2.7.1", "qairt": "2.51", "onnxruntime": "1.32.0"}
    for what, value in (("who_compiles", lambda _: other), ("code_digest", lambda _: "another")):
        monkeypatch.setattr(module, what, value)
        assert asked()[0] == 1, what
    failed: Any = (replace(END, returncode=-11), None, ("l",)), (END, {"ok": False, "error": "n"}, ())
    for worker.gives, status in zip(failed, ("crashed", "failed"), strict=True):
        assert [asked(options={"soc_model": "69"}) for _ in range(2)] == [(1, status)] * 2, "a failure is not kept"


def test_what_fails_names_no_node_and_leaves_no_dlc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    worker, job = Worker(monkeypatch), job_for(tmp_path, "mlp/w8a16")
    told = write_dlc(job, tmp_path / "model.dlc")
    assert told == "the provider wrote 0 files, where one whole graph is one" and names(tmp_path) == {"model.onnx"}
    worker.gives = END, {"ok": False, "error": "no"}, ()
    assert (write_dlc(job, tmp_path / "model.dlc"), compile_model(job).status) == ("no", "failed")
    worker.gives = replace(END, returncode=-6), None, ()
    assert write_dlc(job, tmp_path / "model.dlc") == "the compiler's process died of SIGABRT"
    (tmp_path / "model_ctx_qnn.bin").touch()
    with pytest.raises(UsageError, match=r"model_ctx_qnn\.bin: exists already"):
        compile_model(replace(job, context="model_ctx.onnx"))


def test_outputs_are_those_of_the_sets_that_both_ran(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    worker, sets = Worker(monkeypatch), [{"x": np.zeros(1, np.float32)}] * 3
    run = partial(execute_both, tmp_path, "m.onnx", "c.onnx", sets, options={"soc_model": "57"}, timeout=10.0)
    made: Any = run()
    assert made == ([{"y": 0}], [{"y": 0}])
    asked = [(one["model"], one["provider"], one["options"], one["seconds"]) for one in worker.asked[0]["runs"]]
    assert asked == [("m.onnx", "cpu", {}, 8.0), ("c.onnx", "npu", {"soc_model": "57"}, 8.0)]
    for answer, where in (({"ok": False, "error": "died", "provider": "npu"}, "npu"), (None, "cpu/npu")):
        worker.gives = replace(END, returncode=2), answer, ("a", "b", "c", "d")
        with pytest.raises(ToolError) as caught:
            run()
        why = "died" if answer else "the compiler's process ended with status 2"
        told = caught.value.what, caught.value.why, caught.value.next
        assert told == (f"m.onnx, c.onnx: cannot be run ({where})", why, "b\nc\nd")


def test_a_dead_worker_is_an_outcome(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # A worker that kills itself stands for a crash inside the vendor's library.
    (tmp_path / "sitecustomize.py").write_text("import os, signal\nos.kill(os.getpid(), signal.SIGSEGV)\n")
    root = tmp_path / "root"
    root.mkdir()
    job = job_for(root, "mlp/w8a8")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    outcome = compile_model(job)
    assert outcome.status == "crashed" and "SIGSEGV" in outcome.message


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (RuntimeError("  no form of it\nat node 3\n"), "no form of it"),
        (RuntimeError(" \n"), "RuntimeError"),
        (child.NotOnProviderError("the first is CPU\nand there is no other"), "not on the NPU: the first is CPU"),
    ],
)
def test_what_is_told_of_an_error_is_its_first_line(
    error: Exception, told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(request: object) -> NoReturn:
        raise error

    monkeypatch.setitem(child._ACTIONS, "dlc", (fail, Exception))
    (tmp_path / "asked").write_text('{"action": "dlc"}')
    assert child.main([str(tmp_path / "asked"), str(tmp_path / "said")]) == 0
    said = json.loads((tmp_path / "said").read_text())
    assert said["ok"] is False and said["error"].splitlines()[0] == told


def test_a_model_that_cannot_run_is_a_tool_error(tmp_path: Path) -> None:
    (tmp_path / "model.onnx").write_bytes(b"no model")
    np.savez(tmp_path / "in.npz", **{"0:x": np.zeros(1, np.float32)})  # type: ignore[arg-type]
    with pytest.raises(ToolError, match=r"model\.onnx"):
        execute_model(tmp_path, "model.onnx", tmp_path / "in.npz", provider="cpu")


@pytest.mark.parametrize("dies", [False, True])
def test_inputs_are_shared_where_a_processor_is_free(
    dies: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = os.getpid()

    def run(_names: None, feed: Arrays) -> list[Any]:
        if dies and os.getpid() != here:
            os._exit(3)
        return [feed["x"] + 1, np.array(os.getpid())]

    outputs = [SimpleNamespace(name="y"), SimpleNamespace(name="pid")]
    emulator = SimpleNamespace(get_outputs=lambda: outputs, run=run)
    monkeypatch.setattr(child, "npu_session", lambda *_, **__: emulator)
    monkeypatch.setattr(child, "_WORTH", 1e-12)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(100_000))
    given: Any = {f"{index}:x": np.array(index) for index in range(11)}
    np.savez(tmp_path / "in.npz", **given)
    paths = {"inputs": str(tmp_path / "in.npz"), "outputs": str(tmp_path / "out.npz")}
    asked = {"provider": "npu", "model": "c.onnx", "options": {}, "seconds": 60.0, "memory": 1 << 50, **paths}
    assert child.run_both({"runs": [asked]}) == {}
    with np.load(tmp_path / "out.npz") as made:
        assert [int(made[f"{index}:y"]) for index in range(11)] == list(range(1, 12))
        assert len({int(made[f"{index}:pid"]) for index in range(11)}) == (1 if dies else 2)


@each_row(
    "text",
    "",
    "graph_after_optimization = {\n",
    'qnn_graph_name = "g"\n',
    "# :::BEGIN:graph_after_optimization:::\n\t0x1: {\n",
    '# :::BEGIN:graph_before_optimization:::\n# :::END:graph_before_optimization:::\nqnn_graph_name = "g"\n',
)
def test_a_schematic_of_another_form_is_refused(text: str) -> None:
    with pytest.raises(InputError, match="schematic"):
        parse_schematic(text.splitlines(keepends=True), where="s")


@pytest.mark.parametrize("bad", [None, {}, {"graph": {}}, {"graph": {"tensors": {"t": {}}, "nodes": {}}}])
def test_a_graph_of_another_form_is_refused(bad: object) -> None:
    with pytest.raises(InputError, match="graph of a known form"):
        parse_graph(bad, where="g.json", name="g")


def test_a_graph_is_read_with_the_real_grids_of_its_tensors() -> None:
    """Types and roles by their numbers; scale and offset are those of a tensor only where they are for all of it."""
    grid = {"scale": 0.5, "offset": -3}
    told = {
        "x": {"type": 0, "data_type": 0x408, "dims": [1, 4], "quant_params": {"definition": 1, "encoding": 0}},
        "w": {"type": 4, "data_type": 0x308, "dims": [4], "quant_params": {"definition": 1, "encoding": 1}},
        "v": {"type": 3, "data_type": 0x416, "quant_params": {"definition": 0, "encoding": 0}},
        "f": {"type": 1, "data_type": 0x216, "dims": [], "quant_params": {"definition": 1, "encoding": 0}},
        "i": {"type": 9, "data_type": 0x32},
    }
    for tensor in told.values():
        tensor.get("quant_params", {})["scale_offset"] = grid  # type: ignore[attr-defined]
    node = {"n": {"type": "Relu", "input_names": ["x"], "output_names": ["v", "f"]}}
    graph = parse_graph({"graph": {"tensors": told, "nodes": node}}, where="g.json", name="g")
    assert graph.tensors == {
        "x": QnnTensor("uint8", "input", (1, 4), "per-tensor", 0.5, 3, fixed=True),
        "w": QnnTensor("int8", "static", (4,), "per-channel", fixed=True),
        "v": QnnTensor("uint16", "native", (), fixed=True),
        "f": QnnTensor("float16", "output", ()),
        "i": QnnTensor("int32", "other", ()),
    }
    assert [(one.name, graph.producers[made].name) for made, (one,) in (("v", graph.consumers["x"]),)] == [("n", "n")]
