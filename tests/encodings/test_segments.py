"""Graphs in segments of integers and of floats, and post-processing at their end."""

from pathlib import Path

import numpy as np
import onnx

from deploykit.accuracy.simulate.sessions import Session, run_chain
from deploykit.accuracy.simulate.simulation import compare_outputs
from deploykit.encodings.float_sets import predict_float_set
from deploykit.encodings.formats.aimet import read_encodings
from deploykit.encodings.place import place
from deploykit.encodings.segments import Partition, SegmentCosts, partition, split_model
from deploykit.encodings.values import EncodingSet
from deploykit.flow.ways import prove_chain, segment_pieces
from deploykit.model.collect import collect_facts
from deploykit.model.facts import GraphFacts
from deploykit.model.load import load_model
from parts_in_order import check_parts
from tables import each_row

DETR = Path(__file__).parents[1] / "data" / "aimet" / "detr"
MIXES = [
    "w8a16-fp16mix-omit.v0.6.1",
    "w8a16-fp16mix-explicit.v1.0.0",
    "w8a8-fp16mix-explicit.v0.6.1",
    "aimet-2.31.0/w8a8-litemp-fp16.v1.0.0",
]
NEVER_CHANGE = SegmentCosts(changed_op=1e12)


def _detr(variant: str) -> tuple[onnx.ModelProto, GraphFacts, EncodingSet, list[dict[str, np.ndarray]]]:
    model = load_model(DETR / "model.onnx")
    facts = collect_facts(model)
    with np.load(DETR / f"{variant.rsplit('.v', 1)[0]}.io.npz") as data:
        feed = {key.split(":", 1)[1]: data[key] for key in data.files if key.startswith("input.0:")}
    return model.proto, facts, place(read_encodings(DETR / f"{variant}.encodings"), facts), [feed]


def _cut(facts: GraphFacts, encodings: EncodingSet, most: int | None = None) -> Partition:
    prediction = predict_float_set(facts, encodings)
    return partition(facts, prediction.intended, absorbed=list(prediction.absorbed), max_segments=most)


@each_row(("variant", "most"), *((variant, None) for variant in MIXES), (MIXES[0], 2), (MIXES[3], 1))
def test_the_detector_in_segments_equals_the_whole_and_keeps_its_accuracy(variant: str, most: int | None) -> None:
    """With float segments wholly in float16, as the device computes them; AIMET's all-float16 model has 73.55 dB."""
    model, facts, encodings, feeds = _detr(variant)
    cut = _cut(facts, encodings, most)
    segments = split_model(model, encodings, cut)
    check_parts(segments, model)
    assert most is None or len(segments) <= most
    proof = prove_chain(model, encodings, cut, segments, segment_pieces(segments), feeds)
    assert proof.float_equal and proof.steps <= 1 and proof.holds
    if most is None:
        reference, runs = Session(model), run_chain(segment_pieces(segments, half=True), feeds)
        least = 73.0 if "w8a16" in variant else 60.0
        assert compare_outputs([reference.run(feed) for feed in feeds], runs)[0].sqnr_db >= least


def test_which_islands_join_their_neighbours() -> None:
    model, facts, encodings, _ = _detr("w8a16-fp16mix-omit.v0.6.1")
    cut = _cut(facts, encodings)
    assert [segment.is_float for segment in cut.segments] == [False, True, False]
    changed = {facts.nodes[index].name for index in cut.changed}
    assert changed == {"/decoder/Clip", "/decoder/Sub", "/decoder/Clip_1"}
    prediction = predict_float_set(facts, encodings)
    dear = partition(facts, prediction.intended, absorbed=list(prediction.absorbed), costs=NEVER_CHANGE)
    assert dear.changed == () and len(dear.segments) == 5
    # What crosses costs as well: where nothing else does, the least of it crosses that can be had.
    crossing = partition(facts, prediction.intended, costs=SegmentCosts(segment=0.0, changed_op=0.0, changed_byte=0.0))
    assert len(crossing.changed) > len(cut.changed)
    whole = partition(facts, frozenset())
    assert [segment.is_float for segment in whole.segments] == [False]
    assert split_model(model, encodings, whole)[0].outputs == ("detections",)
