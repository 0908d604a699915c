"""Forty models, each right once and wrong in eight ways: the verdicts are those of docs/numbers.md, and all are true.

Right means: simulated in 16 bits with ranges of the very samples. Wrong means: what a model of that kind does when it is
broken, done to its outputs. On inputs that mean nothing there is no verdict on any of them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import onnx
import pytest

from deploykit.contract.sample_detectors import decoder_detector, decoder_feeds
from deploykit.contract.sample_models import attention_net, conv_net, linear3d_net
from deploykit.contract.tiny_graphs import TinyGraph
from deploykit.deciding.entry_values import GridKind, affine_for_range
from deploykit.encodings.values import Encoding, EncodingSet
from deploykit.graph.collect import collect_facts
from deploykit.graph.facts import GraphFacts
from deploykit.graph.loading import wrap_proto
from deploykit.numerics.detection_sets import detection_sets
from deploykit.numerics.kinds import kind_of
from deploykit.numerics.output_judging import OutputJudge
from deploykit.numerics.sessions import Session
from deploykit.numerics.simulation import Simulator

PAGE = Path(__file__).parents[2] / "docs" / "numbers.md"
SAMPLES = 8

Values: TypeAlias = dict[str, np.ndarray]
Make: TypeAlias = Callable[[np.random.Generator], np.ndarray]
Write: TypeAlias = Callable[[TinyGraph], tuple[str, ...]]


def _floats(*shape: int, low: float = -2.0, high: float = 2.0) -> Make:
    return lambda rng: rng.uniform(low, high, shape).astype(np.float32)


def _whole(*shape: int, below: int, dtype: str = "int64") -> Make:
    return lambda rng: rng.integers(0, below, shape).astype(dtype)


MODELS: dict[str, tuple[Write | Callable[[], onnx.ModelProto], Mapping[str, Make]]] = {}
IMAGE = {"x": _floats(1, 3, 16, 16)}
PIXELS = {"x": _floats(1, 3, 16, 16, low=0, high=255)}
TOKENS = {"x": _floats(1, 12, 16)}
VECTOR = {"x": _floats(4, 24)}


def _model(inputs: Mapping[str, Make]) -> Callable[[Write], Write]:
    def add(write: Write) -> Write:
        MODELS[write.__name__.strip("_").replace("_", " ")] = (write, inputs)
        return write

    return add


def _weight(graph: TinyGraph, name: str, *shape: int) -> str:
    rng = np.random.default_rng(len(name) + sum(shape))
    return graph.stored(name, rng.normal(0, 1 / np.sqrt(np.prod(shape[1:])), shape))


def _conv(graph: TinyGraph, x: str, out: str, depth: int, width: int, **more: Any) -> str:
    return graph.op("Conv", [x, _weight(graph, f"{out}.w", width, depth, 3, 3)], out, pads=[1, 1, 1, 1], **more)


def _x(graph: TinyGraph, inputs: Mapping[str, Make]) -> str:
    shape = next(iter(inputs.values()))(np.random.default_rng(0)).shape
    return graph.input("x", shape)


MODELS["conv net"] = (conv_net, {"input": _floats(1, 3, 16, 16)})
MODELS["linear 3d"] = (linear3d_net, {"input": _floats(1, 8, 16)})
MODELS["attention"] = (attention_net, {"input": _floats(1, 8, 16)})
MODELS["decoder detector"] = (decoder_detector, {})


@_model(IMAGE)
def _segmentation_logits(graph: TinyGraph) -> tuple[str, ...]:
    return (_conv(graph, _x(graph, IMAGE), "y", 3, 6),)


@_model(IMAGE)
def _segmentation_softmax(graph: TinyGraph) -> tuple[str, ...]:
    return (graph.op("Softmax", [_conv(graph, _x(graph, IMAGE), "c", 3, 6)], "y", axis=1),)


@_model(IMAGE)
def _segmentation_labels(graph: TinyGraph) -> tuple[str, ...]:
    return (graph.op("ArgMax", [_conv(graph, _x(graph, IMAGE), "c", 3, 6)], "y", axis=1),)


@_model(IMAGE)
def _depth_sigmoid(graph: TinyGraph) -> tuple[str, ...]:
    return (graph.op("Sigmoid", [_conv(graph, _x(graph, IMAGE), "c", 3, 1)], "y"),)


@_model(PIXELS)
def _super_resolution(graph: TinyGraph) -> tuple[str, ...]:
    return (graph.op("DepthToSpace", [_conv(graph, _x(graph, PIXELS), "c", 3, 12)], "y", blocksize=2),)


@_model(PIXELS)
def _norm_of_pixels(graph: TinyGraph) -> tuple[str, ...]:
    flat = graph.op("Flatten", [_x(graph, PIXELS)], "f")
    return (graph.op("Div", [flat, graph.op("ReduceL2", [flat], "n", axes=[1])], "y"),)


@_model(PIXELS)
def _softplus_of_pixels(graph: TinyGraph) -> tuple[str, ...]:
    return (graph.op("Softplus", [_x(graph, PIXELS)], "y"),)


@_model({"x": _floats(1, 32, 1, low=0, high=100)})
def _sine_of_positions(graph: TinyGraph) -> tuple[str, ...]:
    angles = graph.op("Mul", [graph.input("x", (1, 32, 1)), graph.stored("f", 1 / 10 ** np.arange(0, 3, 0.25))], "a")
    return (graph.op("Concat", [graph.op("Sin", [angles], "s"), graph.op("Cos", [angles], "c")], "y", axis=2),)


@_model({"x": _floats(1, 12, 12), "mask": lambda rng: np.where(rng.random((1, 1, 12)) < 0.3, -100.0, 0.0).astype("f")})
def _masked_softmax_by_hand(graph: TinyGraph) -> tuple[str, ...]:
    masked = graph.op("Add", [graph.input("x", (1, 12, 12)), graph.input("mask", (1, 1, 12))], "m")
    highest = graph.op("ReduceMax", [masked], "h", axes=[-1])
    power = graph.op("Exp", [graph.op("Sub", [masked, highest], "d")], "e")
    total = graph.op("ReduceSum", [power, graph.stored("axis", [-1], "int64")], "t")
    return (graph.op("Div", [power, total], "y"),)


@_model({"ids": lambda rng: rng.integers(-20, 20, (1, 12))})
def _embedded_tokens(graph: TinyGraph) -> tuple[str, ...]:
    rows = graph.op("Gather", [_weight(graph, "table", 20, 16), graph.input("ids", (1, 12), "int64")], "rows")
    return (graph.op("MatMul", [rows, _weight(graph, "w", 16, 24)], "y"),)


@_model({"x": _whole(1, 3, 12, 12, below=256, dtype="uint8")})
def _quantized_input(graph: TinyGraph) -> tuple[str, ...]:
    grid = [graph.stored("scale", 0.02), graph.stored("zero", 128, "uint8")]
    return (_conv(graph, graph.op("DequantizeLinear", [graph.input("x", (1, 3, 12, 12), "uint8"), *grid], "f"), "y", 3, 4),)


@_model(VECTOR)
def _class_logits(graph: TinyGraph) -> tuple[str, ...]:
    return (graph.op("MatMul", [_x(graph, VECTOR), _weight(graph, "w", 24, 10)], "y"),)


@_model(VECTOR)
def _class_probabilities(graph: TinyGraph) -> tuple[str, ...]:
    sharp = graph.op("Mul", [graph.op("MatMul", [_x(graph, VECTOR), _weight(graph, "w", 24, 10)], "l"),
                             graph.stored("four", 4.0)], "s")  # fmt: skip
    return (graph.op("Softmax", [sharp], "y", axis=1),)


@_model(VECTOR)
def _class_log_probabilities(graph: TinyGraph) -> tuple[str, ...]:
    return (graph.op("LogSoftmax", [graph.op("MatMul", [_x(graph, VECTOR), _weight(graph, "w", 24, 10)], "l")], "y"),)


@_model(VECTOR)
def _best_classes(graph: TinyGraph) -> tuple[str, ...]:
    scores = graph.op("Sigmoid", [graph.op("MatMul", [_x(graph, VECTOR), _weight(graph, "w", 24, 40)], "l")], "s")
    graph.op("TopK", [scores, graph.stored("k", [8], "int64")], ["values", "places"])
    return "values", "places"


@_model(VECTOR)
def _embedding(graph: TinyGraph) -> tuple[str, ...]:
    return (graph.op("LpNormalization", [graph.op("MatMul", [_x(graph, VECTOR), _weight(graph, "w", 24, 32)], "p")],
                     "y", axis=1),)  # fmt: skip


@_model(TOKENS)
def _layer_norm(graph: TinyGraph) -> tuple[str, ...]:
    ends = [graph.stored("g", np.linspace(0.5, 1.5, 16)), graph.stored("b", np.linspace(-1, 1, 16))]
    return (graph.op("LayerNormalization", [_x(graph, TOKENS), *ends], "y"),)


@_model(TOKENS)
def _gelu(graph: TinyGraph) -> tuple[str, ...]:
    x = _x(graph, TOKENS)
    root = graph.op("Erf", [graph.op("Mul", [x, graph.stored("r", 0.70710678)], "m")], "e")
    half = graph.op("Mul", [x, graph.stored("h", 0.5)], "half")
    return (graph.op("Mul", [half, graph.op("Add", [root, graph.stored("one", 1.0)], "p")], "y"),)


@_model(TOKENS)
def _einsum_of_tokens(graph: TinyGraph) -> tuple[str, ...]:
    x = _x(graph, TOKENS)
    return (graph.op("Einsum", [x, x], "y", equation="bqc,bkc->bqk"),)


@_model({"x": _floats(6, 1, 8)})
def _lstm(graph: TinyGraph) -> tuple[str, ...]:
    weights = [_weight(graph, "w", 1, 32, 8), _weight(graph, "r", 1, 32, 8)]
    graph.op("LSTM", [graph.input("x", (6, 1, 8)), *weights], ["y", "h", "c"], hidden_size=8)
    return "y", "h", "c"


@_model({"x": _floats(6, 1, 8)})
def _gru(graph: TinyGraph) -> tuple[str, ...]:
    weights = [_weight(graph, "w", 1, 24, 8), _weight(graph, "r", 1, 24, 8)]
    graph.op("GRU", [graph.input("x", (6, 1, 8)), *weights], ["y", "h"], hidden_size=8)
    return "y", "h"


@_model({"x": _floats(1, 4, 8), "past": _floats(1, 12, 8)})
def _cache_step(graph: TinyGraph) -> tuple[str, ...]:
    x = graph.input("x", (1, 4, 8))
    cache = graph.op("Concat", [graph.input("past", (1, 12, 8)), x], "cache", axis=1)
    scores = graph.op("MatMul", [x, graph.op("Transpose", [cache], "t", perm=[0, 2, 1])], "s")
    return graph.op("MatMul", [graph.op("Softmax", [scores], "p"), cache], "y"), "cache"


@_model(IMAGE)
def _upsampling(graph: TinyGraph) -> tuple[str, ...]:
    sizes = ["", "", graph.stored("sizes", [1, 4, 24, 24], "int64")]
    return (graph.op("Resize", [_conv(graph, _x(graph, IMAGE), "c", 3, 4), *sizes], "y", mode="linear"),)


@_model(IMAGE)
def _transposed_convolution(graph: TinyGraph) -> tuple[str, ...]:
    return (graph.op("ConvTranspose", [_x(graph, IMAGE), _weight(graph, "w", 3, 5, 2, 2)], "y", strides=[2, 2]),)


@_model(IMAGE)
def _instance_norm(graph: TinyGraph) -> tuple[str, ...]:
    ends = [graph.stored("s", [1.0, 0.5, 2.0]), graph.stored("b", [0.0, 1.0, -1.0])]
    return (graph.op("InstanceNormalization", [_x(graph, IMAGE), *ends], "y"),)


@_model(IMAGE)
def _hard_swish(graph: TinyGraph) -> tuple[str, ...]:
    return (graph.op("HardSwish", [_conv(graph, _x(graph, IMAGE), "c", 3, 8)], "y"),)


@_model(IMAGE)
def _leaky_slopes(graph: TinyGraph) -> tuple[str, ...]:
    slopes = graph.stored("slopes", np.full((4, 1, 1), 0.2))
    return (graph.op("PRelu", [_conv(graph, _x(graph, IMAGE), "c", 3, 4), slopes], "y"),)


@_model(IMAGE)
def _pooled_features(graph: TinyGraph) -> tuple[str, ...]:
    return (graph.op("GlobalAveragePool", [graph.op("Relu", [_conv(graph, _x(graph, IMAGE), "c", 3, 40)], "r")], "y"),)


@_model(IMAGE)
def _maximum_features(graph: TinyGraph) -> tuple[str, ...]:
    return (graph.op("MaxPool", [_conv(graph, _x(graph, IMAGE), "c", 3, 4)], "y", kernel_shape=[2, 2], strides=[2, 2]),)


@_model({"x": _floats(1, 3, 16, 16), "grid": _floats(1, 16, 16, 2, low=-1, high=1)})
def _warped_image(graph: TinyGraph) -> tuple[str, ...]:
    inputs = [graph.input("x", (1, 3, 16, 16)), graph.input("grid", (1, 16, 16, 2))]
    return (graph.op("GridSample", inputs, "y"),)


@_model(TOKENS)
def _running_sum(graph: TinyGraph) -> tuple[str, ...]:
    return (graph.op("CumSum", [_x(graph, TOKENS), graph.stored("axis", 1, "int64")], "y"),)


@_model(TOKENS)
def _two_outputs(graph: TinyGraph) -> tuple[str, ...]:
    x = _x(graph, TOKENS)
    return graph.op("MatMul", [x, _weight(graph, "w", 16, 8)], "y"), graph.op("Tanh", [x], "z")


@_model(TOKENS)
def _far_above_zero(graph: TinyGraph) -> tuple[str, ...]:
    return (graph.op("Add", [_x(graph, TOKENS), graph.stored("offset", 40.0)], "y"),)


def _raw(graph: TinyGraph, shape: tuple[int, ...], axis: int) -> tuple[str, ...]:
    image = graph.op("Mul", [graph.input("image", (1, 3, 64, 64)), graph.stored("nothing", 0.0)], "none")
    total = graph.op("ReduceSum", [image], "sum", keepdims=0)
    boxes = graph.op("Add", [graph.op("Mul", [graph.input("b", shape), graph.stored("side", 64.0)], "px"), total], "p")
    classes = tuple(5 if place == axis else dim for place, dim in enumerate(shape))
    scores = graph.op("Sigmoid", [graph.input("s", classes)], "q")
    return (graph.op("Concat", [boxes, scores], "y", axis=axis),)


RAW = {"image": _floats(1, 3, 64, 64)}


@_model({**RAW, "b": _floats(1, 4, 60, low=0, high=1), "s": _floats(1, 5, 60, low=-4, high=4)})
def _detections_by_channel(graph: TinyGraph) -> tuple[str, ...]:
    return _raw(graph, (1, 4, 60), 1)


@_model({**RAW, "b": _floats(1, 60, 4, low=0, high=1), "s": _floats(1, 60, 5, low=-4, high=4)})
def _detections_by_row(graph: TinyGraph) -> tuple[str, ...]:
    return _raw(graph, (1, 60, 4), 2)


@_model({**RAW, "b": _floats(1, 60, 4, low=-2, high=2), "s": _floats(1, 60, 6, low=-4, high=4)})
def _boxes_and_logits(graph: TinyGraph) -> tuple[str, ...]:
    graph.input("image", (1, 3, 64, 64))
    logits = graph.op("Mul", [graph.input("s", (1, 60, 6)), graph.stored("two", 1.5)], "logits")
    return graph.op("Sigmoid", [graph.input("b", (1, 60, 4))], "boxes"), logits


@_model({**RAW, "b": _floats(1, 60, 4, low=0, high=64), "s": _floats(1, 60, low=-4, high=4)})
def _rows_of_six(graph: TinyGraph) -> tuple[str, ...]:
    graph.input("image", (1, 3, 64, 64))
    scores = graph.op("Sigmoid", [graph.input("s", (1, 60))], "q")
    graph.op("TopK", [scores, graph.stored("k", [20], "int64")], ["v", "i"], axis=1)
    last = graph.stored("last", [-1], "int64")
    label = graph.op("Cast", [graph.op("Mod", ["i", graph.stored("c", 6, "int64")], "m")], "label", to=1)
    index = graph.op("Tile", [graph.op("Unsqueeze", ["i", last], "i3"), graph.stored("r", [1, 1, 4], "int64")], "w")
    parts = [graph.op("GatherElements", [graph.input("b", (1, 60, 4)), index], "g", axis=1)]
    parts += [graph.op("Unsqueeze", [name, last], f"{name}3") for name in ("v", label)]
    return (graph.op("Concat", parts, "y", axis=2),)


def _built(name: str) -> onnx.ModelProto:
    write, _ = MODELS[name]
    if write in (conv_net, linear3d_net, attention_net, decoder_detector):
        return write()  # type: ignore[call-arg, return-value]
    graph = TinyGraph()
    return graph.model(*write(graph))  # type: ignore[arg-type, misc]


def _feeds(name: str) -> list[Values]:
    if name == "decoder detector":
        return decoder_feeds(SAMPLES)
    rng = np.random.default_rng(17)
    return [{key: make(rng) for key, make in MODELS[name][1].items()} for _ in range(SAMPLES)]


def _quantized(model: onnx.ModelProto, feeds: list[Values]) -> EncodingSet:
    """16-bit ranges of every float tensor on these samples, but of those that no grid holds."""
    made = [name for node in model.graph.node for name in node.output if name]
    session = Session(model, capture=made)
    runs = [session.run(feed) for feed in feeds]
    wide = ("anchors", "enc.boxes", "enc.chosen", ".ratio", ".logit", "sizes")
    entries = {}
    for name in made:
        values = [run[name] for run in runs]
        if values[0].dtype == np.float32 and not name.endswith(wide):
            low, high = min(float(v.min()) for v in values), max(float(v.max()) for v in values)
            entries[name] = Encoding(name=name, value=affine_for_range(low, high, GridKind(bits=16, signed=False)))
    return EncodingSet(version="2.0.0", entries=entries)


WAYS = ("scaled", "negated", "a dead slice", "constant", "NaN", "shifted", "cut off", "of another sample")


def _rolled(value: np.ndarray) -> np.ndarray:
    axis = 0 if value.shape[0] > 1 else int(np.argmax(value.shape))
    return np.roll(value, 1 + value.shape[axis] // 3, axis=axis)


def _broken(way: str, outputs: list[Values], facts: GraphFacts) -> list[Values]:
    """What is wrong, done to every output of every sample."""
    if way == "of another sample":
        return [*outputs[1:], outputs[0]]
    groups = [piece for group in detection_sets(facts) for piece in (group.boxes,)]
    made = []
    for values in outputs:
        changed = {name: _wrong(way, value.copy()) for name, value in values.items()}
        if way == "shifted":
            for box in groups:
                changed[box.output] = _moved(values[box.output].copy(), box.axis, box.start, box.stop)
        made.append(changed)
    return made


def _moved(value: np.ndarray, axis: int | None, start: int, stop: int) -> np.ndarray:
    """Boxes aside by a twentieth of the image."""
    place = (slice(None),) * (axis or 0) + ((slice(start, stop),) if axis is not None else ())
    largest = float(np.abs(value[place]).max())
    value[place] += 0.05 if largest <= 1.5 else 0.05 * largest
    return value


def _wrong(way: str, value: np.ndarray) -> np.ndarray:
    if value.dtype.kind != "f":
        return {"negated": -value - 1, "shifted": _rolled(value), "of another sample": value}.get(way, value * 0 - 1)
    if way == "scaled":
        return value * value.dtype.type(0.8)
    if way == "negated":
        return -value
    if way == "shifted":
        return _rolled(value)
    if way == "constant":
        return np.full_like(value, value.mean())
    if way == "cut off":
        return np.clip(value, value.min(), value.min() + (value.max() - value.min()) * value.dtype.type(0.3))
    if way == "NaN":
        value.reshape(-1)[value.size // 2] = np.nan
        return value
    axis = next((a for a in range(1, value.ndim) if value.shape[a] > 1), value.ndim - 1)
    place = (slice(None),) * axis + (slice(0, max(1, value.shape[axis] // 2)),)
    value[place] = value[place].mean()
    return value


def _row(name: str) -> tuple[str, ...]:
    """Kinds and words of one model: right, wrong in every way, and on arbitrary inputs."""
    model, feeds = _built(name), _feeds(name)
    facts = collect_facts(wrap_proto(model, path=Path("model.onnx")))
    session = Session(model)
    reference = [session.run(feed) for feed in feeds]
    simulator = Simulator(model, _quantized(model, feeds))
    simulated = [{key: run[key] for key in facts.outputs} for run in map(simulator.run, feeds)]
    candidates = [simulated, *(_broken(way, reference, facts) for way in WAYS)]
    words = []
    for label in ("given", "arbitrary"):
        judge = OutputJudge(facts, label=label, bits=16)
        verdicts = [judge.compare(reference, candidate, feeds) for candidate in candidates]
        words.append([{True: "yes", False: "no", None: "not judged"}[verdict.right] for verdict in verdicts])
    kinds = "detections" if detection_sets(facts) else ", ".join(dict.fromkeys(kind_of(facts, o) for o in facts.outputs))
    assert set(words[1]) == {"not judged"}, name
    return (name, kinds, *words[0])


HEADER = ("model", "outputs", "simulated in 16 bits", *WAYS)


def _documented() -> dict[str, tuple[str, ...]]:
    lines = PAGE.read_text("utf-8").splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith("| model |"))
    rows = []
    for line in lines[start + 2 :]:
        if not line.startswith("|"):
            break
        rows.append(tuple(cell.strip() for cell in re.split(r"\s*\|\s*", line.strip("| "))))
    return {row[0]: row for row in rows}


@pytest.mark.parametrize("name", MODELS)
def test_every_verdict_is_true_and_as_documented(name: str) -> None:
    row = _row(name)
    assert row[2:] == ("yes", *("no" for _ in WAYS))
    assert _documented()[name] == row


def test_there_are_forty_models() -> None:
    assert len(MODELS) >= 40
    assert set(_documented()) == set(MODELS)
