"""Segments: few, wholly of one kind, in an order that runs, and together equal to the whole."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper

from deploykit.accuracy.simulate.sessions import Session
from deploykit.accuracy.simulate.simulation import compare_outputs
from deploykit.encodings.float_sets import float_nodes, predict_float_set
from deploykit.encodings.formats.aimet import read_encodings
from deploykit.encodings.infer import infer_entries
from deploykit.encodings.place import place
from deploykit.encodings.segments import Partition, Segment, SegmentCosts, partition, split_model
from deploykit.encodings.values import EncodingSet
from deploykit.flow.samples import observed_ranges
from deploykit.flow.ways import prove_chain, segment_chain
from deploykit.model import load_model
from deploykit.model.collect import collect_facts
from deploykit.model.facts import GraphFacts
from deploykit.model.load import wrap_proto
from sample_models.feeds import random_feeds
from sample_models.tiny_graphs import TinyGraph
from tables import each_row

DETR = Path(__file__).parents[1] / "data" / "aimet" / "detr"
MIXES = [
    "w8a16-fp16mix-omit.v0.6.1",
    "w8a16-fp16mix-explicit.v1.0.0",
    "w8a8-fp16mix-explicit.v0.6.1",
    "aimet-2.31.0/w8a8-litemp-fp16.v1.0.0",
]
NO_COST = SegmentCosts(changed_op=0.0, changed_byte=0.0)
NEVER_CHANGE = SegmentCosts(changed_op=1e12)


def _facts(model: onnx.ModelProto) -> GraphFacts:
    return collect_facts(wrap_proto(model, path=Path("tiny.onnx")))


def _detr(variant: str) -> tuple[onnx.ModelProto, GraphFacts, EncodingSet, list[dict[str, np.ndarray]]]:
    model = load_model(DETR / "model.onnx")
    facts = collect_facts(model)
    with np.load(DETR / f"{variant.rsplit('.v', 1)[0]}.io.npz") as data:
        feed = {key.split(":", 1)[1]: data[key] for key in data.files if key.startswith("input.0:")}
    return model.proto, facts, place(read_encodings(DETR / f"{variant}.encodings"), facts), [feed]


def _cut(facts: GraphFacts, encodings: EncodingSet, most: int | None = None) -> Partition:
    prediction = predict_float_set(facts, encodings)
    return partition(facts, prediction.intended, absorbed=list(prediction.absorbed), max_segments=most)


def _check_parts(segments: tuple[Segment, ...], model: onnx.ModelProto) -> None:
    known = {item.name for item in model.graph.input}
    for before, after in itertools.pairwise(segments):
        assert before.is_float != after.is_float
    for segment in segments:
        onnx.checker.check_model(segment.model)
        assert set(segment.inputs) <= known
        known |= set(segment.outputs)
    assert {item.name for item in model.graph.output} <= known


@pytest.mark.parametrize("most", [None, 2, 1])
@each_row("variant", MIXES)
def test_the_detector_in_segments_equals_the_whole(variant: str, most: int | None) -> None:
    model, facts, encodings, feeds = _detr(variant)
    cut = _cut(facts, encodings, most)
    segments = split_model(model, encodings, cut)
    _check_parts(segments, model)
    assert most is None or len(segments) <= most
    proof = prove_chain(model, encodings, cut, segments, feeds)
    assert proof.float_equal
    assert proof.steps <= 1
    assert proof.holds


@each_row(("variant", "least"), [*((v, 60.0) for v in MIXES), (MIXES[0], 73.0), (MIXES[1], 73.0)])
def test_the_cut_detector_keeps_its_accuracy(variant: str, least: float) -> None:
    """With float segments wholly in float16, as the device computes them; AIMET's all-float16 model has 73.55 dB."""
    model, facts, encodings, feeds = _detr(variant)
    segments = split_model(model, encodings, _cut(facts, encodings))
    reference = [Session(model).run(feed) for feed in feeds]
    chain = segment_chain(segments, quantized=True, half=True)
    assert compare_outputs(reference, [chain.run(feed) for feed in feeds])[0].sqnr_db >= least


def test_a_tiny_quantized_island_joins_its_float_neighbours() -> None:
    _, facts, encodings, _ = _detr("w8a16-fp16mix-omit.v0.6.1")
    cut = _cut(facts, encodings)
    assert [segment.is_float for segment in cut.segments] == [False, True, False]
    changed = {facts.nodes[index].name for index in cut.changed}
    assert changed == {"/decoder/Clip", "/decoder/Sub", "/decoder/Clip_1"}


def test_an_island_that_is_dear_to_change_stays() -> None:
    _, facts, encodings, _ = _detr("w8a16-fp16mix-omit.v0.6.1")
    prediction = predict_float_set(facts, encodings)
    cut = partition(facts, prediction.intended, absorbed=list(prediction.absorbed), costs=NEVER_CHANGE)
    assert cut.changed == ()
    assert len(cut.segments) == 5


def test_a_wholly_quantized_model_is_one_segment() -> None:
    model, facts, encodings, _ = _detr("w8a16-fp16mix-omit.v0.6.1")
    cut = partition(facts, frozenset())
    assert len(cut.segments) == 1
    assert not cut.segments[0].is_float
    segment = split_model(model, encodings, cut)[0]
    assert segment.outputs == ("detections",)


def test_a_fused_pair_is_never_cut() -> None:
    """MatMul and its bias Add: the tensor between them has no entry, so it can be no border."""
    _, facts, encodings, _ = _detr("w8a16.v1.0.0")
    absorbed = list(predict_float_set(facts, encodings).absorbed)
    score = "/decoder/enc_score_head/Add_output_0"
    cut = partition(facts, {score}, absorbed=absorbed, costs=NEVER_CHANGE)
    for segment in cut.segments:
        assert not set(segment.inputs) & set(absorbed)


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
    _check_parts(segments, model)
    proof = prove_chain(model, encodings, cut, segments, feeds)
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


def test_inner_shapes_and_indices_need_no_kind() -> None:
    graph = TinyGraph()
    name = graph.op("Sigmoid", [graph.input("x", (2, 6))], "t0")
    graph.op("Shape", ["t0"], "shape")
    graph.op("TopK", [name, graph.stored("k", [2], "int64")], ["values", "indices"], axis=1)
    graph.op("GatherElements", [graph.op("Tanh", ["t0"], "t1"), "indices"], "y", axis=1)
    model = graph.model("y", "shape")
    facts = _facts(model)
    cut = partition(facts, {"y", "t1"}, costs=NEVER_CHANGE)
    feeds = random_feeds(model)
    segments = split_model(model, EncodingSet(version="1.0.0", entries={}), cut)
    _check_parts(segments, model)
    assert prove_chain(model, EncodingSet(version="1.0.0", entries={}), cut, segments, feeds).float_equal


def test_what_a_branch_reads_from_outside_crosses_into_its_segment() -> None:
    """A branch names no inputs: taken for a node that reads nothing, it ran before what it reads was there."""
    inner = helper.make_graph(
        [helper.make_node("Relu", ["a"], ["inner"])],
        "branch",
        [],
        [helper.make_tensor_value_info("inner", TensorProto.FLOAT, [1, 4])],
    )
    nodes = [
        helper.make_node("Exp", ["x"], ["a"], name="first"),
        helper.make_node("If", ["always"], ["b"], name="chosen", then_branch=inner, else_branch=inner),
        helper.make_node("Neg", ["b"], ["y"], name="last"),
    ]
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 4]) for name in "xy"]
    always = helper.make_tensor("always", TensorProto.BOOL, [], [True])
    graph = helper.make_graph(nodes, "g", values[:1], values[1:], [always])
    facts = _facts(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9))
    cut = partition(facts, {"b"}, costs=NEVER_CHANGE)
    made: set[str] = {"x"}
    for span in cut.segments:
        assert set(span.inputs) <= made
        made |= set(span.outputs)
    assert next(span for span in cut.segments if 1 in span.nodes).inputs == ("a",)
