"""Constants in effect: what is computed from stored values only has no type, no border and no place in a segment."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx

from deploykit.encodings.float_sets import find_borders, predict_float_set
from deploykit.encodings.segments import SegmentCosts, partition, split_model
from deploykit.encodings.values import Affine, Encoding, EncodingSet
from deploykit.flow.ways import prove_chain
from deploykit.model.collect import collect_facts
from deploykit.model.facts import GraphFacts, TensorRole, static_nodes, static_tensors, with_static
from deploykit.model.load import wrap_proto
from sample_models.feeds import random_feeds
from sample_models.tiny_graphs import TinyGraph


def _model() -> onnx.ModelProto:
    """Two linears that share a bias through Identity, as exporters write it, and a grid made from constants."""
    graph = TinyGraph()
    bias = graph.stored("bias", np.ones(4))
    alias = graph.op("Identity", [bias], "alias")
    name = graph.input("x", (1, 3, 4))
    for index, read in enumerate((bias, alias)):
        weight = graph.stored(f"w{index}", np.full((4, 4), 0.1))
        product = graph.op("MatMul", [name, weight], f"product{index}")
        name = graph.op("Add", [product, read], f"sum{index}")
    grid = graph.op("Exp", [graph.op("Neg", [graph.stored("base", np.ones(4))], "negated")], "grid")
    graph.op("Mul", [graph.op("Sigmoid", [name], "squashed"), grid], "y")
    return graph.model("y")


def _facts() -> GraphFacts:
    return collect_facts(wrap_proto(_model(), path=Path("tiny.onnx")))


def _encodings(*names: str) -> EncodingSet:
    value = Affine(bits=16, signed=False, scale=np.asarray(0.001), zero_point=np.asarray(9000.0))
    return EncodingSet(version="1.0.0", entries={name: Encoding(name=name, value=value) for name in names})


QUANTIZED = ("x", "w0", "w1", "sum0", "sum1", "squashed", "base", "y")


def test_what_constants_make_is_constant() -> None:
    facts = _facts()
    assert {"alias", "negated", "grid", "bias", "base"} <= static_tensors(facts)
    assert not {"x", "sum0", "y"} & static_tensors(facts)
    assert {facts.nodes[index].op_type for index in static_nodes(facts)} == {"Identity", "Neg", "Exp"}
    assert with_static(facts).tensors["grid"].role is TensorRole.CONSTANT


def test_a_shared_bias_is_no_float_intent_and_its_copies_have_no_type() -> None:
    prediction = predict_float_set(_facts(), _encodings(*QUANTIZED))
    assert prediction.intended == frozenset()
    assert prediction.predicted == {"bias"}
    assert prediction.borders == ()


def test_constants_make_no_border_and_cross_none() -> None:
    facts = _facts()
    assert {border.tensor for border in find_borders(facts, {"squashed"})} == {"sum1", "y"}
    cut = partition(facts, {"squashed"})
    crossing = {name for segment in cut.segments for name in (*segment.inputs, *segment.outputs)}
    assert not crossing & {"alias", "negated", "grid"}


def test_every_segment_computes_the_constants_it_reads() -> None:
    model, facts = _model(), _facts()
    encodings = _encodings(*QUANTIZED, "negated", "grid")
    cut = partition(facts, {"squashed"}, costs=SegmentCosts(changed_op=1e12))
    segments = split_model(model, encodings, cut)
    assert len(segments) == 2
    for segment in segments:
        onnx.checker.check_model(segment.model)
    assert "Exp" in {node.op_type for node in segments[-1].model.graph.node}
    assert prove_chain(model, encodings, cut, segments, random_feeds(model)).holds


def test_random_ops_are_not_constant() -> None:
    graph = TinyGraph()
    graph.op("RandomNormalLike", [graph.stored("shape", np.ones(3))], "noise")
    graph.op("Add", ["noise", graph.input("x", (3,))], "y")
    assert "noise" not in static_tensors(collect_facts(wrap_proto(graph.model("y"), path=Path("tiny.onnx"))))
