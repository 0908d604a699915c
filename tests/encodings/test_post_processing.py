"""The post-processing of detectors, found in graphs: its nodes, where it starts and ends, and what hurts in it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from deploykit.encodings.post_processing import Harm, PostProcessing, find_post_processing
from deploykit.model import wrap_proto
from deploykit.model.collect import collect_facts
from deploykit.model.graph import GraphCopy
from deploykit.model.ranges import graph_bounds
from sample_models.finished_detectors import DETECTORS
from sample_models.networks import attention_net, conv_net
from sample_models.tiny_graphs import TinyGraph
from tables import each_row

if TYPE_CHECKING:
    from onnx import ModelProto

    from deploykit.model.facts import GraphFacts


def found_in(model: ModelProto) -> tuple[GraphFacts, PostProcessing | None]:
    facts = collect_facts(wrap_proto(model, path=Path("model.onnx")))
    return facts, find_post_processing(facts, graph_bounds(GraphCopy(model, copy=False)))


EXPECTED = {
    "yolo": (
        ("Concat:head0", "Concat:head1"),
        ("Concat:output0",),
        ["Conv:box0", "Conv:cls0", "Conv:box1", "Conv:cls1"],
        (Harm.UNLIKE, Harm.COORDINATES, Harm.EXPECTATION),
    ),
    "ssd": (
        ("Transpose:loc0.rows", "Transpose:conf0.rows", "Transpose:loc1.rows", "Transpose:conf1.rows"),
        ("Concat:detections",),
        ["Conv:loc0", "Conv:conf0", "Conv:loc1", "Conv:conf1"],
        (Harm.UNLIKE, Harm.COORDINATES, Harm.EXPONENTIAL),
    ),
    "detr": (
        ("Sigmoid:points", "Sigmoid:probable"),
        ("TopK:scores", "Sub:labels", "GatherElements:boxes"),
        ["MatMul:class.product", "Add:class", "MatMul:bbox.product", "Add:bbox"],
        (Harm.COORDINATES, Harm.CHOICE),
    ),
}


@each_row("name", EXPECTED)
def test_the_end_of_a_detector_with_what_hurts_in_it(name: str) -> None:
    facts, found = found_in(DETECTORS[name]())
    assert found is not None
    starts, ends, heads, harms = EXPECTED[name]
    assert (set(found.starts), set(found.ends), found.harms) == (set(starts), set(ends), harms)
    assert {facts.nodes[index].label for index in found.heads} == set(heads)
    # What computed values enter it comes from its heads, and what leaves it are outputs of the graph.
    for node in map(facts.nodes.__getitem__, found.nodes):
        makers = [facts.producer_of(tensor) for tensor in node.inputs]
        assert {maker.index for maker in makers if maker is not None} <= found.nodes | found.heads
        assert all(reader.index in found.nodes for tensor in node.outputs for reader in facts.consumers_of(tensor))
    if name == "yolo":  # the parts of a join are told with their ranges
        (join,) = [hurt for hurt in found.hurts if hurt.harm is Harm.UNLIKE]
        pixels, scores = join.parts
        assert (scores.low, scores.high) == (0.0, 1.0) and pixels.high > 100


def test_observed_ranges_outrank_bounds() -> None:
    model = DETECTORS["ssd"]()
    facts = collect_facts(wrap_proto(model, path=Path("model.onnx")))
    stored = graph_bounds(GraphCopy(model, copy=False))
    seen = find_post_processing(facts, {**stored, "pixels": (0.0, 1.0), "scores": (0.0, 1.0)})
    assert seen is not None
    assert Harm.UNLIKE not in seen.harms


def test_networks_without_one() -> None:
    graph = TinyGraph()  # a classifier that ends in Softmax and TopK
    x = graph.op("Conv", [graph.input("x", (1, 3, 8, 8)), graph.stored("w", [[[[1.0]], [[0.5]], [[0.25]]]] * 6)], "c")
    flat = graph.op("Flatten", [graph.op("GlobalAveragePool", [x], "pool")], "flat")
    graph.op("TopK", [graph.op("Softmax", [flat], "p"), graph.stored("k", [3], "int64")], ["best", "which"])
    for model in (attention_net(), conv_net(), graph.model("best", "which")):
        assert found_in(model)[1] is None
