"""Random entries through every conversion and back, and random graphs in segments, against the whole.

Looks for new ones with ``DEPLOYKIT_EXAMPLES=1000 pytest -m "" tests/encodings/test_random_encodings.py``.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deploykit.encodings.float_sets import float_nodes
from deploykit.encodings.formats.aimet import parse_encodings
from deploykit.encodings.formats.conversion import OutcomeKind, convert
from deploykit.encodings.formats.differences import diff
from deploykit.encodings.infer import infer_entries
from deploykit.encodings.place import Layout, place_entry
from deploykit.encodings.segments import SegmentCosts, partition, split_model
from deploykit.encodings.values import Affine, Encoding, EncodingSet, Float, Float8, Lpbq
from deploykit.flow.samples import observed_ranges
from deploykit.flow.ways import prove_chain, segment_pieces
from deploykit.model.collect import collect_facts
from deploykit.model.facts import GraphFacts
from deploykit.model.load import wrap_proto
from parts_in_order import check_parts
from sample_models.feeds import random_feeds
from sample_models.tiny_graphs import TinyGraph

pytestmark = pytest.mark.heavy

SCALES = st.floats(1e-12, 1e30, allow_subnormal=False)


@st.composite
def values(draw: st.DrawFn) -> Affine | Lpbq | Float | Float8:
    kind = draw(st.sampled_from(["tensor", "channel", "block", "lpbq", "float", "float8"]))
    bits = draw(st.sampled_from([2, 4, 8, 16, 32]))
    signed = draw(st.booleans())
    if kind == "float":
        return Float(dtype="float16")
    shape = {"tensor": (), "channel": (3,), "float8": (3,), "block": (2, 3), "lpbq": (2, 3)}[kind]
    scale = np.array(draw(st.lists(SCALES, min_size=6, max_size=6)))[: int(np.prod(shape))].reshape(shape)
    if kind == "float8":
        return Float8(dtype="float8e5m2", scale=scale, axis=0)
    if kind == "lpbq":
        ints = draw(st.lists(st.integers(1, 16), min_size=6, max_size=6))
        blocks = np.array(ints, dtype=np.float64).reshape(2, 3)
        where: dict[str, Any] = {"axis": 1, "block_axis": 0, "block_size": 8}
        return Lpbq(bits=4, decompressed_bits=8, channel_scale=scale[:1], block_scale=blocks, **where)
    lowest = -(1 << (bits - 1)) if signed else 0
    step = draw(st.sampled_from([0.0, 0.5]))
    point = draw(st.integers(lowest, lowest + (1 << bits) - 2)) + step
    block = kind == "block"
    return Affine(
        bits=bits,
        signed=signed,
        scale=scale,
        zero_point=np.full(shape, point),
        symmetric=signed,
        axis=1 if block else 0 if kind == "channel" else None,
        block_axis=0 if block else None,
        block_size=8 if block else None,
    )


@settings(max_examples=200, deadline=None)
@given(found=st.lists(values(), min_size=1, max_size=4), version=st.sampled_from(["0.6.1", "1.0.0", "2.0.0"]))
def test_whatever_is_called_lossless_reads_back_the_same(found: list[Any], version: str) -> None:
    """Property: what a conversion calls lossless is what a reader of the written file gets."""
    entries = {f"t{i}": Encoding(name=f"t{i}", value=value, is_param=i % 2 == 0) for i, value in enumerate(found)}
    layout = {
        name: Layout(shape=(3,))
        if entry.value.granularity == "per-channel" or isinstance(entry.value, Float | Float8)
        else Layout(shape=(16, 3), channel_axis=1, block_axis=0)
        for name, entry in entries.items()
    }
    source = EncodingSet(version="2.0.0", entries=entries)
    result = convert(source, version, layouts=layout)
    assert len(result.outcomes) == len(entries)
    back = parse_encodings(json.loads(result.text), where="back")
    placed = {
        name: place_entry(entry, layout[name], source="back", version=version) for name, entry in back.entries.items()
    }
    lossless = {o.name for o in result.of(OutcomeKind.LOSSLESS)}
    kept = EncodingSet(version="x", entries={n: e for n, e in entries.items() if n in lossless})
    again = EncodingSet(version="x", entries={n: e for n, e in placed.items() if n in lossless})
    assert not diff(kept, again)
    impossible = {o.name for o in result.of(OutcomeKind.IMPOSSIBLE)}
    assert not impossible & back.entries.keys()
    assert entries.keys() - impossible - back.entries.keys() == (result.float_tensors - impossible)


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
