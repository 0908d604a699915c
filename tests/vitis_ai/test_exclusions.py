"""Excluded regions on random graphs, and which activations stay in float: as defined, and as real Quark has it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from deploykit.model import load_model, wrap_proto
from deploykit.model.collect import collect_facts
from deploykit.model.facts import GraphFacts, NodeFact, TensorFact, TensorRole
from deploykit_vitis_ai.exclusions import activation_types, resolve_exclusions
from deploykit_vitis_ai.inspection import actual_types, inspect_quantized
from text_models import text_model


def graph(edges: list[list[int]]) -> GraphFacts:
    """Node ``i`` reads the outputs of ``edges[i]``; -1 is the graph's input."""
    nodes = tuple(
        NodeFact(
            index=i,
            name=f"n{i}",
            op_type="Add",
            domain="",
            inputs=tuple("x" if j < 0 else f"t{j}" for j in before) or ("w",),
            outputs=(f"t{i}",),
        )
        for i, before in enumerate(edges)
    )
    readers = {
        name: tuple(n.index for n in nodes if name in n.inputs) for name in ("x", "w", *(n.outputs[0] for n in nodes))
    }
    tensors = {
        name: TensorFact(
            name=name,
            role={"x": TensorRole.INPUT, "w": TensorRole.INITIALIZER}.get(name, TensorRole.ACTIVATION),
            dtype="float",
            shape=(1,),
            producer=int(name[1:]) if name[0] == "t" else None,
            consumers=found,
        )
        for name, found in readers.items()
    }
    return GraphFacts(
        model_name="m",
        graph_name="g",
        producer="",
        ir_version=8,
        opsets={"": 17},
        inputs=("x",),
        outputs=(nodes[-1].outputs[0],),
        nodes=nodes,
        tensors=tensors,
    )


def paths(edges: list[list[int]], end: int) -> list[list[int]]:
    """Every way from the graph's input to ``end``, as nodes from the first to ``end``."""
    found = []
    for before in dict.fromkeys(edges[end]):
        found += [[end]] if before < 0 else [[*path, end] for path in paths(edges, before)]
    return found


@st.composite
def cases(draw: st.DrawFn) -> tuple[list[list[int]], list[int], list[int]]:
    count = draw(st.integers(2, 8))
    edges = [draw(st.lists(st.integers(-1, i - 1), max_size=2)) for i in range(count)]
    starts = draw(st.lists(st.integers(0, count - 1), min_size=1, max_size=3, unique=True))
    ends = draw(st.lists(st.integers(0, count - 1), min_size=1, max_size=2, unique=True))
    return edges, starts, ends


@settings(max_examples=300, deadline=None)
@given(cases())
def test_closed_means_that_every_way_in_passes_a_start(case: tuple[list[list[int]], list[int], list[int]]) -> None:
    edges, starts, ends = case
    text = f"{','.join(f'n{i}' for i in starts)}:{','.join(f'n{i}' for i in ends)}"
    (region,) = resolve_exclusions(graph(edges), (), (text,)).regions
    ways = [path for end in ends for path in paths(edges, end)]
    assert bool(region.leaks) == any(not set(path) & set(starts) for path in ways)
    last = [max(i for i, node in enumerate(path) if node in starts) for path in ways if set(path) & set(starts)]
    between = {
        node for path, at in zip([p for p in ways if set(p) & set(starts)], last, strict=True) for node in path[at:]
    }
    assert between <= region.nodes
    if not region.leaks:
        assert {f"n{node}" for node in region.nodes} >= {f"n{end}" for end in ends}


def test_a_concat_that_takes_another_in_is_named_after_what_it_makes_too() -> None:
    """So Quark calls the one that it makes of both (observed with 0.12.post1)."""
    names = ("Concat", "Concat", "Add")
    found = graph([[-1], [0], [1]])
    nodes = tuple(replace(node, op_type=kind) for node, kind in zip(found.nodes, names, strict=True))
    facts = replace(found, nodes=nodes)
    assert resolve_exclusions(facts, ("n0", "n1"), ()).names(facts) == ("n0", "n1", "t1")
    assert resolve_exclusions(facts, ("n0", "n2"), ()).names(facts) == ("n0", "n2")


DATA = Path(__file__).parents[1] / "data" / "quark"
POST = "/post/Slice,/post/Slice_1,/post/Sigmoid:/post/Concat_1"


def test_what_is_worked_out_is_what_quark_made() -> None:
    facts = collect_facts(load_model(DATA / "fp32.onnx"))
    for name, subgraphs in (("vint8", ()), ("vint8_mixed", (POST,))):
        excluded = resolve_exclusions(facts, (), subgraphs).indices
        made = inspect_quantized(DATA / f"{name}.onnx", precision="vint8")
        actual = actual_types(made.facts, made.grids)
        wanted = activation_types(facts, excluded, "int8")
        assert {tensor: actual[tensor] for tensor in wanted} == wanted


def of_body(body: str) -> GraphFacts:
    """Operators one after the other; Conv has a weight of its own."""
    w = np.ones((3, 3, 1, 1), np.float32)
    model = text_model("float[1,3,8,8] x", body, body.rpartition(" =")[0].split()[-1], w=w)
    for node in model.graph.node:
        node.name = f"{node.op_type}_{node.output[0]}"
    return collect_facts(wrap_proto(model, path=Path("g.onnx")))


def test_passive_operators_follow_what_they_read() -> None:
    facts = of_body("a = Conv (x, w) b = Relu (a) c = Identity (b) d = Conv (c, w)")
    assert dict(activation_types(facts, {0}, "int8")) == {"a": "float32", "b": "float32", "c": "int8", "d": "int8"}
    assert set(activation_types(facts, (), "int8").values()) == {"int8"}


def test_a_float_value_is_quantized_for_operators_that_quantize() -> None:
    facts = of_body("a = Conv (x, w) b = Sigmoid (a)")
    assert dict(activation_types(facts, {0}, "int8")) == {"a": "int8", "b": "int8"}


def test_a_value_that_is_read_in_both_forms_is_not_spoken_about() -> None:
    facts = of_body("a = Conv (x, w) b = Sigmoid (a) c = Relu (a)")
    assert "a" not in activation_types(facts, {0}, "int8")
