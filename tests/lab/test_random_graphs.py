"""Random graphs in segments, against the whole.

Looks for new ones with ``DEPLOYKIT_EXAMPLES=1000 pytest -m "" tests/lab/test_random_graphs.py``.
"""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deploykit.encodings.float_sets import float_nodes
from deploykit.encodings.infer import infer_entries
from deploykit.encodings.segments import SegmentCosts, partition, split_model
from deploykit.encodings.values import EncodingSet
from deploykit.flow.samples import observed_ranges
from deploykit.flow.ways import prove_chain, segment_pieces
from deploykit.model.collect import collect_facts
from deploykit.model.facts import GraphFacts
from deploykit.model.load import wrap_proto
from parts_in_order import check_parts
from sample_models.feeds import random_feeds
from sample_models.tiny_graphs import TinyGraph

pytestmark = pytest.mark.heavy

NO_COST = SegmentCosts(changed_op=0.0, changed_byte=0.0)


NEVER_CHANGE = SegmentCosts(changed_op=1e12)


def _facts(model: onnx.ModelProto) -> GraphFacts:
    return collect_facts(wrap_proto(model, path=Path("tiny.onnx")))


@st.composite
def _graphs(draw: st.DrawFn) -> tuple[onnx.ModelProto, frozenset[str]]:
    """A random DAG of unary and binary ops and a random set of float tensors."""
    graph = TinyGraph()
    names = [graph.input("x", (2, 3)), graph.input("z", (2, 3))]
    count = draw(st.integers(1, 12))
    for index in range(count):
        op = draw(st.sampled_from(["Sigmoid", "Tanh", "Add", "Mul", "Sub"]))
        arity = 1 if op in ("Sigmoid", "Tanh") else 2
        sources = [draw(st.sampled_from(names)) for _ in range(arity)]
        names.append(graph.op(op, sources, f"t{index}"))
    made = names[2:]
    floats = frozenset(draw(st.lists(st.sampled_from(made), unique=True)))
    outputs = draw(st.lists(st.sampled_from(made), min_size=1, max_size=3, unique=True))
    return graph.model(*dict.fromkeys([*outputs, made[-1]])), floats


@settings(max_examples=40, deadline=None)
@given(graph=_graphs(), most=st.sampled_from([None, None, 1, 2, 3]), cheap=st.booleans())
def test_random_graphs_in_segments_equal_the_whole(
    graph: tuple[onnx.ModelProto, frozenset[str]], most: int | None, cheap: bool
) -> None:
    model, floats = graph
    facts = _facts(model)
    cut = partition(facts, floats, max_segments=most, costs=NO_COST if cheap else NEVER_CHANGE)
    assert most is None or len(cut.segments) <= most
    forced = float_nodes(facts, floats)
    for segment in cut.segments:
        assert segment.is_float or not forced & set(segment.nodes)
    run = [index for segment in cut.segments for index in segment.nodes]
    assert len(run) == len(set(run))
    assert forced & _needed(facts) <= set(run) <= set(range(len(facts.nodes)))
    feeds = random_feeds(model, samples=1)
    names = [name for name, fact in facts.tensors.items() if name not in floats and not fact.is_weight]
    nothing, seen = EncodingSet(version="1.0.0", entries={}), observed_ranges(model, names, feeds)
    encodings = infer_entries(model, facts, nothing, names, proven=seen).encodings
    segments = split_model(model, encodings, cut)
    check_parts(segments, model)
    proof = prove_chain(model, encodings, cut, segments, segment_pieces(segments), feeds)
    assert proof.float_equal
    assert proof.steps <= 1


def _needed(facts: GraphFacts) -> set[int]:
    """Nodes that an output needs, by walking back."""
    needed: set[int] = set()
    for node in reversed(facts.nodes):
        readers = {index for name in node.outputs for index in facts.tensors[name].consumers}
        if readers & needed or any(facts.tensors[name].is_output for name in node.outputs):
            needed.add(node.index)
    return needed


@settings(max_examples=40, deadline=None)
@given(graph=_graphs())
def test_without_changes_no_cut_could_have_fewer_segments(graph: tuple[onnx.ModelProto, frozenset[str]]) -> None:
    """The number of segments is the most alternations on any path (plus one for beginning with the other kind)."""
    model, floats = graph
    facts = _facts(model)
    cut = partition(facts, floats, costs=NEVER_CHANGE)
    forced = float_nodes(facts, floats)
    runs: dict[int, int] = {}
    for node in facts.nodes:
        makers = [m for name in node.inputs if (m := facts.tensors[name].producer) is not None]
        runs[node.index] = max([1, *(runs[m] + ((m in forced) != (node.index in forced)) for m in makers)])
    longest = max(runs[index] for index in _needed(facts))
    assert longest <= len(cut.segments) <= longest + 1
