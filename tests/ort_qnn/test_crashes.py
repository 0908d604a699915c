"""The compiler dies or never ends: the operators that do it are named, and got over where that can be done.

The graph between two transpositions really kills the provider of onnxruntime-qnn 2.7.0.
"""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from deploykit.backend.backend import Instead, Request
from deploykit.encodings.formats.aimet import write_encodings
from deploykit.encodings.values import Affine, Encoding, EncodingSet
from deploykit.flow.pipeline import Packaged, make_package
from deploykit.rewrites import CURES
from deploykit_ort_qnn import execution
from deploykit_ort_qnn.bench import ask
from deploykit_ort_qnn.bench.ask import TimedBench
from deploykit_ort_qnn.bench.repair import find_culprit, rescue
from deploykit_ort_qnn.compiler.jobs import CompileJob, CompileOutcome
from sample_models.tiny_graphs import TinyGraph

pytest.importorskip("onnxruntime_qnn")

KILLING = ["Transpose:turned", "Reshape:list", "Gather:taken", "Transpose:back"]


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DEPLOYKIT_CACHE", str(tmp_path / "cache"))


def killing() -> onnx.ModelProto:
    """Layers, a Gather by a shaped index between transpositions, and layers; its operators are called as in KILLING."""
    graph = TinyGraph(18)
    graph.op("Sigmoid", [graph.input("x", (1, 1, 1, 48))], "first")
    graph.op("Tanh", ["first"], "second")
    graph.op("Transpose", ["second"], "turned", perm=[0, 3, 1, 2])
    graph.op("Reshape", ["turned", graph.stored("shape", [48], "int64")], "list")
    index = graph.stored("index", np.arange(48)[::-1].reshape(1, 48, 1, 1), "int64")
    graph.op("Gather", ["list", index], "taken")
    graph.op("Transpose", ["taken"], "back", perm=[0, 2, 3, 1])
    graph.op("Sigmoid", ["back"], "third")
    graph.op("Tanh", ["third"], "y")
    return graph.model("y")


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "model.onnx"
    onnx.save(killing(), path)
    return path


@pytest.fixture
def unknown_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if no rule had ever heard of it: the repair is not tried before the compiler dies."""
    known = tuple(name for name in CURES if name != "flat-index")
    monkeypatch.setattr("deploykit.flow.cure.CURES", known)


def package(model: Path, **given: Any) -> Packaged:
    np.savez(model.with_name("data.npz"), x=np.random.default_rng(0).normal(size=(4, 1, 1, 1, 48)).astype(np.float32))
    request = Request(model=model, target="sm8650", backend="ort-qnn", calibration=model.with_name("data.npz"), **given)
    return make_package(request, model.with_name("out"), force=True)


def encodings(model: Path) -> Path:
    names = [name for node in onnx.load(model).graph.node for name in node.output]
    value = Affine(bits=16, signed=False, scale=np.asarray(2.0**-12), zero_point=np.asarray(32768.0))
    entries = {name: Encoding(name=name, value=value) for name in ["x", *names]}
    path = model.with_name("model.encodings")
    path.write_text(write_encodings(EncodingSet(version="0.6.1", entries=entries), "0.6.1"), "utf-8")
    return path


@pytest.mark.heavy
@pytest.mark.parametrize("integers", [False, True])
def test_a_known_fault_is_repaired_before_anything_is_compiled(model: Path, integers: bool) -> None:
    made = package(model, encodings=encodings(model) if integers else None)
    assert made.exit_status == 0 and made.status.compiled.state == "yes" and made.status.right.state == "yes"
    (known,) = [finding for finding in made.findings if finding.code == "ORT020"]
    assert known.handled is not None and "flat-index" in known.handled
    assert "ORT112" not in {finding.code for finding in made.findings}


@pytest.mark.heavy
@pytest.mark.usefixtures("unknown_fault")
@pytest.mark.parametrize("integers", [False, True])
def test_an_unknown_one_is_found_and_got_over(model: Path, integers: bool) -> None:
    made = package(model, encodings=encodings(model) if integers else None)
    assert made.exit_status == 0 and made.status.compiled.state == "yes" and made.status.right.state == "yes"
    (died,) = [finding for finding in made.findings if finding.code == "ORT112"]
    assert died.handled is not None and died.handled.startswith("the graph is rewritten (flat-index)")
    assert died.evidence["nodes"] == KILLING and "SIGABRT" in died.message
    assert made.package is not None and not (made.package / "logs" / "compile.log").exists()


@pytest.mark.heavy
def test_what_nothing_helps_against_is_named(model: Path) -> None:
    made = package(model, no_rewrite=("flat-index",))
    assert made.exit_status == 1 and made.status.compiled.state == "refused"
    (died,) = [finding for finding in made.findings if finding.code == "ORT112"]
    assert died.blocks and died.evidence["nodes"] == KILLING
    assert "4 operators do it alone: Transpose Transpose:turned" in died.message


def trial(**given: Any) -> TimedBench:
    job = {"options": {"soc_model": "57"}, "deadline": time.monotonic() + 60, "longest": 30.0}
    return TimedBench(progress=lambda line: None, **{**job, **given})


@pytest.mark.heavy
def test_the_search_is_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    first = find_culprit(killing(), "crashed", trial())
    assert first is not None and [node.name for node in first[1]] == KILLING
    monkeypatch.setattr(ask, "compile_model", lambda job, progress: pytest.fail("compiled again"))
    again = find_culprit(killing(), "crashed", trial())
    assert again is not None and again[1] == first[1]


def test_without_time_or_where_no_part_does_it_again_nothing_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    assert find_culprit(killing(), "crashed", trial(deadline=time.monotonic())) is None
    monkeypatch.setattr(ask, "compile_model", lambda job, progress: CompileOutcome(status="compiled"))
    assert find_culprit(killing(), "crashed", trial()) is None


def hanging_on(kind: str, *, unless_mode: str) -> Any:
    """A compiler that never ends on operators of one type, but in one finalization mode."""

    def compile_model(job: CompileJob, progress: Any = None) -> CompileOutcome:
        mode = job.options.get("htp_graph_finalization_optimization_mode")
        kinds = {node.op_type for node in onnx.load(job.root / job.model).graph.node}
        if kind in kinds and mode != unless_mode:
            return CompileOutcome(status="timed-out", message="not finished after 30 s, the time limit")
        return CompileOutcome(status="compiled")

    return compile_model


def test_what_never_ends_is_found_and_compiled_in_another_mode(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ask, "compile_model", hanging_on("Gather", unless_mode="1"))
    job = CompileJob(root=model.parent, model=model.name, context="c.onnx", options={"soc_model": "57"})
    request = Request(model=model, target="sm8650", no_rewrite=("flat-index",))
    outcome = CompileOutcome(status="timed-out", message="not finished after 600 s, the time limit")
    told, instead = rescue(job, outcome, request, lambda line: None)
    assert [(node.name, node.type) for node in told.culprit] == [("Gather:taken", "Gather")]
    assert instead is not None and instead.request.adapter_options == {"finalization_mode": 1}
    assert instead.how.startswith("it is compiled with finalization mode 1; as it was")
    asked = replace(request, adapter_options={"finalization_mode": 2})
    assert rescue(job, outcome, asked, lambda line: None) == (told, None)
    compiled = CompileOutcome(status="compiled")
    assert rescue(job, compiled, request, lambda line: None) == (compiled, None)


@pytest.mark.heavy
def test_what_cannot_be_packaged_instead_leaves_the_first_answer(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def useless(job: CompileJob, outcome: CompileOutcome, request: Request, progress: Any) -> Any:
        return outcome, Instead(request=replace(request, rewrite=("log-range",)), how="nothing")

    monkeypatch.setattr(execution, "rescue", useless)
    made = package(model, no_rewrite=("flat-index",))
    assert made.exit_status == 1 and made.package is not None
    codes = {finding.code for finding in made.findings if finding.blocks}
    assert codes == {"ORT112"}
