"""A small deformable decoder (GridSample, TopK, GatherElements, inverse sigmoids, huge anchors) through all ways."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import onnx
import pytest

from deploykit.accuracy.samples.gathering import InputSource, Samples
from deploykit.accuracy.samples.inputs import Label
from deploykit.accuracy.simulate.simulation import simulate
from deploykit.backend.backend import MixedSupport
from deploykit.encodings.new_grids import GridKind, affine_for_range
from deploykit.encodings.values import Affine, Encoding, EncodingSet
from deploykit.flow.choose import Explored, explore
from deploykit.flow.cure import rewrite
from deploykit.flow.samples import observed_ranges
from deploykit.flow.ways import Ground
from deploykit.model.collect import collect_facts
from deploykit.model.load import wrap_proto
from deploykit.rewrites import SAFE_REWRITES
from deploykit.rewrites.contract import load_transform
from sample_models.feeds import random_feeds
from sample_models.tiny_graphs import TinyGraph

WIDTH, SIDE, CLASSES, QUERIES, LAYERS = 16, 8, 5, 10, 2
HUGE = 3.4e38


@dataclass(frozen=True)
class Detector:
    model: onnx.ModelProto
    encodings: EncodingSet
    feeds: list[dict[str, np.ndarray]]


class _Writer(TinyGraph):
    """Adds what a decoder is made of."""

    def __init__(self, seed: int) -> None:
        super().__init__(opset=16)
        self.rng = np.random.default_rng(seed)
        self.one, self.eps = self.stored("one", 1.0), self.stored("eps", 1e-5)

    def linear(self, source: str, name: str, width: int, out: int, scale: float = 1.0) -> str:
        weight = self.stored(f"{name}.weight", self.rng.normal(size=(width, out)) * scale / np.sqrt(width))
        product = self.op("MatMul", [source, weight], f"{name}/product")
        return self.op("Add", [product, self.stored(f"{name}.bias", self.rng.normal(size=out) * 0.1)], f"{name}/sum")

    def inverse_sigmoid(self, source: str, name: str) -> str:
        above = self.op("Clip", [source, self.eps, self.one], f"{name}/above")
        rest = self.op("Sub", [self.one, source], f"{name}/rest")
        below = self.op("Clip", [rest, self.eps], f"{name}/below")
        return self.op("Log", [self.op("Div", [above, below], f"{name}/ratio")], f"{name}/logit")

    def chosen(self, source: str, index: str, width: int, name: str) -> str:
        reps = self.stored(f"{name}/reps", [1, 1, width], "int64")
        return self.op("GatherElements", [source, self.op("Tile", [index, reps], f"{name}/where")], name, axis=1)


def _anchors() -> np.ndarray:
    centre = (np.stack(np.meshgrid(np.arange(SIDE), np.arange(SIDE)), -1).reshape(-1, 2) + 0.5) / SIDE
    anchors = np.concatenate([centre, np.full((SIDE * SIDE, 2), 0.2)], -1)
    anchors = np.log(anchors / (1 - anchors))
    anchors[(centre < 0.1).any(-1)] = HUGE
    return np.asarray(anchors[None])


def _decoder(seed: int = 5) -> onnx.ModelProto:
    """Narrow and random, with the topology of the real thing; outputs boxes in pixels beside scores."""
    graph = _Writer(seed)
    axis1, axis2 = (graph.stored(f"axis{n}", [n], "int64") for n in (1, 2))
    kernel = graph.stored("conv.weight", graph.rng.normal(size=(WIDTH, 3, 3, 3)) * 0.3)
    feature = graph.op(
        "Relu",
        [graph.op("Conv", [graph.input("images", (1, 3, SIDE, SIDE)), kernel], "conv", pads=[1, 1, 1, 1])],
        "feature",
    )
    flat = graph.op("Reshape", [feature, graph.stored("flat", [1, WIDTH, SIDE * SIDE], "int64")], "flattened")
    memory = graph.op("Transpose", [flat], "memory", perm=[0, 2, 1])
    scores = graph.linear(memory, "enc_score", WIDTH, CLASSES)
    raw = graph.op("Add", [graph.linear(memory, "enc_box", WIDTH, 4, 0.3), graph.stored("anchors", _anchors())], "raw")
    best = graph.op("ReduceMax", [scores], "best", axes=[-1], keepdims=0)
    graph.op("TopK", [best, graph.stored("k", [QUERIES], "int64")], ["top", "top/index"], axis=1)
    index = graph.op("Unsqueeze", ["top/index", axis2], "index")
    target = graph.chosen(memory, index, WIDTH, "target")
    reference = graph.op("Sigmoid", [graph.chosen(raw, index, 4, "raw/chosen")], "reference")
    for layer in range(LAYERS):
        name = f"layer{layer}"
        grid = graph.op(
            "Slice",
            [reference, graph.stored(f"{name}/from", [0], "int64"), graph.stored(f"{name}/to", [2], "int64"), axis2],
            f"{name}/centre",
        )
        grid = graph.op("Mul", [grid, graph.stored(f"{name}/two", 2.0)], f"{name}/twice")
        grid = graph.op("Unsqueeze", [graph.op("Sub", [grid, graph.one], f"{name}/grid"), axis1], f"{name}/grid4")
        seen = graph.op("GridSample", [feature, grid], f"{name}/seen", align_corners=0)
        seen = graph.op(
            "Transpose", [graph.op("Squeeze", [seen, axis2], f"{name}/seen3")], f"{name}/turned", perm=[0, 2, 1]
        )
        target = graph.op(
            "Tanh",
            [graph.op("Add", [target, graph.linear(seen, f"{name}/value", WIDTH, WIDTH)], f"{name}/mixed")],
            f"{name}/target",
        )
        delta = graph.linear(target, f"{name}/box", WIDTH, 4, 0.3)
        logit = graph.inverse_sigmoid(reference, f"{name}/inverse")
        reference = graph.op("Sigmoid", [graph.op("Add", [delta, logit], f"{name}/refined")], f"{name}/reference")
    final = graph.op("Sigmoid", [graph.linear(target, "dec_score", WIDTH, CLASSES)], "scores")
    size = graph.op("Tile", [graph.input("size", (1, 2)), graph.stored("pair", [1, 2], "int64")], "sizes")
    boxes = graph.op("Mul", [reference, graph.op("Unsqueeze", [size, axis1], "size3")], "boxes")
    graph.op("Concat", [boxes, final], "detections", axis=-1)
    return graph.model("detections")


def _encodings(model: onnx.ModelProto, feeds: list[dict[str, np.ndarray]]) -> EncodingSet:
    """W8A16 by minimum and maximum: 8 bits per output channel for weights of linears and convs, else 16 bits."""
    stored = {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
    weights = {name: value for name, value in stored.items() if name.endswith(".weight")}
    floats = [
        item.name for item in (*model.graph.value_info, *model.graph.output) if item.type.tensor_type.elem_type == 1
    ]
    floats = [name for name in floats if not name.endswith("/product")]
    ranges = observed_ranges(model, floats, feeds)
    ranges |= {item.name: (0.0, 640.0 if item.name == "size" else 1.0) for item in model.graph.input}
    constants = {name: value for name, value in stored.items() if name in ("anchors", "one") or name.endswith("/two")}
    ranges |= {name: (float(value.min()), float(value.max())) for name, value in constants.items()}
    kind = GridKind(bits=16, signed=False)
    entries = {name: Encoding(name=name, value=affine_for_range(*ends, kind)) for name, ends in ranges.items()}
    entries |= {name: Encoding(name=name, value=_channels(value), is_param=True) for name, value in weights.items()}
    return EncodingSet(version="1.0.0", entries=entries)


def _channels(value: np.ndarray) -> Affine:
    axis = 0 if value.ndim == 4 else 1
    largest = np.abs(value).max(axis=tuple(a for a in range(value.ndim) if a != axis))
    return Affine(bits=8, signed=True, scale=largest.astype(float) / 127, zero_point=np.zeros(largest.size), axis=axis)


@cache
def _detector() -> Detector:
    model = _decoder()
    inputs = {"images": (0.0, 1.0), "size": (320.0, 640.0)}
    feeds = random_feeds(model, samples=3, seed=3, ranges=inputs)
    return Detector(model=model, encodings=_encodings(model, feeds), feeds=feeds)


def _without(encodings: EncodingSet, names: Iterable[str]) -> EncodingSet:
    """The omit style: what is meant to be float has no entry."""
    gone = set(names)
    kept = {name: entry for name, entry in encodings.entries.items() if name not in gone}
    return EncodingSet(version=encodings.version, entries=kept)


SENSITIVE = [
    "anchors",
    "raw",
    "raw/chosen",
    *(f"layer{n}/inverse/ratio" for n in range(LAYERS)),
    *(f"layer{n}/inverse/logit" for n in range(LAYERS)),
    *(f"layer{n}/refined" for n in range(LAYERS)),
]


EVERY_KIND = MixedSupport(kinds=frozenset({"integer", "fallback", "segments"}))


def _ground(*, mixed: bool) -> Ground:
    detector = _detector()
    encodings = _without(detector.encodings, SENSITIVE) if mixed else detector.encodings
    given = {name: InputSource(label=Label.GIVEN, why="given") for name in detector.feeds[0]}
    facts = collect_facts(wrap_proto(detector.model, path=Path("model.onnx")))
    samples = Samples(feeds=tuple(detector.feeds), of_inputs=given)
    return Ground.of(detector.model, encodings, facts, samples)


@cache
def _explored(*, mixed: bool, how: str = "auto") -> Explored:
    return explore(_ground(mixed=mixed), EVERY_KIND, mixed=how, tell=lambda line: None)


def test_the_graph_is_the_hard_case() -> None:
    types = {node.op_type for node in _detector().model.graph.node}
    assert {"GridSample", "TopK", "GatherElements", "Log", "Div"} <= types
    as_given = _explored(mixed=False).reference
    assert as_given is not None
    assert as_given.overall_db < 20


def test_the_anchors_and_every_inverse_sigmoid_are_rewritten() -> None:
    detector = _detector()
    done = rewrite(detector.model, detector.encodings, SAFE_REWRITES, detector.feeds)
    assert done.kept == ("saturating-constant", "logit-of-sigmoid")
    assert len(done.steps[2].sites) == LAYERS
    assert not {"Log", "Div"} & {node.op_type for node in done.model.graph.node}


@pytest.mark.parametrize("mixed", [False, True])
def test_no_float16_is_needed(mixed: bool) -> None:
    explored = _explored(mixed=mixed)
    prepared, reference = explored.winner, explored.reference
    assert prepared is not None
    assert reference is not None
    assert prepared.way.kind == "integer"
    assert prepared.encodings.floats == frozenset()
    assert prepared.way.overall_db >= 45
    gain = prepared.way.overall_db - reference.overall_db
    assert gain >= (-3.1 if mixed else 25)


def test_fallback_finds_the_tensors_that_were_left_out() -> None:
    assert _ground(mixed=True).prediction.intended == set(SENSITIVE)
    prepared = _explored(mixed=True, how="fallback").winner
    assert prepared is not None
    assert prepared.way.float16_tensors == len(SENSITIVE)
    assert prepared.way.borders >= 4


def test_the_segments_equal_the_whole() -> None:
    prepared = _explored(mixed=True, how="segments").winner
    assert prepared is not None
    assert prepared.proof is not None
    assert prepared.proof.holds
    assert 2 <= len(prepared.segments) <= 7
    assert [segment.is_float for segment in prepared.segments].count(True) >= 1


def test_cut_tail_leaves_a_network_that_ends_with_linears() -> None:
    detector = _detector()
    done = rewrite(detector.model, detector.encodings, [*SAFE_REWRITES, "cut-tail"], detector.feeds)
    assert "cut-tail" in done.kept
    assert done.tail is not None
    assert "Mul" in {node.op_type for node in done.tail.graph.node}
    onnx.checker.check_model(done.tail)


def test_saturating_constant_follows_the_gather() -> None:
    matched = load_transform("saturating-constant").match(_detector().model)
    assert {"raw", "raw/chosen"} <= set(matched.sites[0].tensors)


def test_the_simulation_shows_what_another_order_hides() -> None:
    detector = _detector()
    done = rewrite(detector.model, detector.encodings, SAFE_REWRITES, detector.feeds)
    assert done.encodings is not None
    facts = collect_facts(wrap_proto(done.model, path=Path("decoder.onnx")))
    result = simulate(done.model, done.encodings, detector.feeds, facts=facts)
    assert result.reordered is not None
    assert result.sqnr_db < 20
    assert result.reordered.overall_db > 45
    assert result.to_json()["reordered"]["sqnr_db"] > 45
