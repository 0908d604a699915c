"""Excluded regions on random graphs, against a direct reading of what closed and between mean."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from deploykit.model.facts import GraphFacts, NodeFact, TensorFact, TensorRole
from deploykit_vitis_ai.exclusions import resolve_exclusions


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
