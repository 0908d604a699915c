"""Calibration data against the model: wrong scales, swapped colours, missing normalisation, too few, unlike classes."""

from dataclasses import replace

import numpy as np
import numpy.typing as npt
import onnx
from onnx import numpy_helper

from deploykit.accuracy.samples.data_quality import data_fit, range_growth, takes_pictures
from deploykit.accuracy.samples.data_rules import FIT_RULES, DataFit, FirstLayer, Preparation, RangeGrowth
from deploykit.accuracy.simulate.sessions import Session
from deploykit.model.collect import facts_of
from rule_cases import check_pairs
from sample_models.tiny_graphs import TinyGraph
from tables import each_row

GOOD = DataFit(origin="frames", input="x", low=0.0, high=1.0, whole_numbers=False)
BYTES = replace(GOOD, whole_numbers=True, high=255.0, first_layer=FirstLayer(node="c", deviation=1.5))


def _prepared(change: str) -> DataFit:
    return replace(GOOD, preparation=Preparation(node="norm", as_given=8.0, changed={change: 0.5}))


CASES: dict[str, tuple[DataFit, DataFit]] = {
    "DK230": (replace(GOOD, divides_by=255.0), replace(GOOD, divides_by=255.0, high=255.0)),
    "DK231": (_prepared("divided by 255"), GOOD),
    "DK232": (_prepared("channels in the other order"), GOOD),
    "DK233": (_prepared("normalised by mean and deviation"), GOOD),
    "DK234": (
        replace(GOOD, growth=RangeGrowth(samples=8, tensors=50, unseen=0.21)),
        replace(GOOD, growth=RangeGrowth(samples=8, tensors=50, unseen=0.2)),
    ),
    "DK235": (replace(GOOD, labels={"cat": 7, "dog": 2}), replace(GOOD, labels={"cat": 4, "dog": 1})),
    "DK236": (replace(GOOD, unused=["a.webp"]), GOOD),
    "DK252": (replace(BYTES, first_layer=FirstLayer(node="c", deviation=50.0)), BYTES),
}


def test_each_rule_fires_and_stays_silent() -> None:
    check_pairs(CASES, FIT_RULES)


MEAN = np.asarray([0.485, 0.456, 0.406], np.float32).reshape(1, 3, 1, 1)
DEVIATION = np.asarray([0.229, 0.224, 0.225], np.float32).reshape(1, 3, 1, 1)
Pictures = npt.NDArray[np.float32]


def _pictures(count: int) -> Pictures:
    """Colours in 0..1 of warm scenes: much red, little blue, large patches."""
    rng = np.random.default_rng(11)
    patches = rng.uniform(0, 1, size=(count, 3, 4, 4)) * np.asarray([1.0, 0.7, 0.3]).reshape(1, 3, 1, 1)
    noise = rng.normal(scale=0.03, size=(count, 3, 16, 16))
    return np.clip(np.kron(patches, np.ones((1, 1, 4, 4))) + noise, 0, 1).astype(np.float32)


def _normalised(pictures: Pictures) -> Pictures:
    return ((pictures - MEAN) / DEVIATION).astype(np.float32)


def _network(trained_on: Pictures, *, divides: bool = False) -> onnx.ModelProto:
    """Conv, BatchNormalization, Relu, pooling: the statistics are those of what it was trained on."""
    rng = np.random.default_rng(3)
    graph = TinyGraph()
    x = graph.input("x", (1, 3, 16, 16))
    if divides:
        x = graph.op("Div", [x, graph.stored("most", 255.0)], "unit")
    weight = graph.stored("w", rng.normal(size=(8, 3, 3, 3)) / 5)
    y = graph.op("Conv", [x, weight], "c", pads=[1, 1, 1, 1])
    names = [graph.stored(name, np.ones(8) if name in ("s", "v") else np.zeros(8)) for name in ("s", "b", "m", "v")]
    y = graph.op("Relu", [graph.op("BatchNormalization", [y, *names], "n")], "r")
    model = graph.model(graph.op("GlobalAveragePool", [y], "y"))
    session = Session(model, capture=["c"])
    seen = np.concatenate([session.run({"x": picture[None]})["c"] for picture in trained_on])
    for tensor in model.graph.initializer:
        if tensor.name in ("m", "v"):
            value = seen.mean(axis=(0, 2, 3)) if tensor.name == "m" else seen.var(axis=(0, 2, 3))
            tensor.CopyFrom(numpy_helper.from_array(value.astype(np.float32), tensor.name))
    return model


def _fit(model: onnx.ModelProto, pictures: Pictures) -> DataFit:
    facts = facts_of(model)
    feeds = [{"x": picture[None]} for picture in pictures]
    return data_fit(model, facts, feeds, DataFit(origin="frames", growth=range_growth(model, facts, feeds)))


def _codes(model: onnx.ModelProto, pictures: Pictures) -> set[str]:
    return {finding.code for finding in FIT_RULES.run(_fit(model, pictures))}


@each_row(("shape", "is_picture"), ((1, 1, 8, 8), True), ((1, 3, 8, 8), True), ((1, 2, 8, 8), False), ((1, 3), False))
def test_a_picture_has_one_colour_or_three(shape: tuple[int, ...], is_picture: bool) -> None:
    graph = TinyGraph()
    assert takes_pictures(facts_of(graph.model(graph.op("Relu", [graph.input("x", shape)], "y")))) is is_picture


PLAIN = _pictures(24)


@each_row(
    ("trained_on", "given", "code"),
    (_normalised(PLAIN), _normalised(PLAIN[::2]), None),
    (PLAIN, PLAIN[::2], None),
    (PLAIN * 255, PLAIN[::2] * 255, None),
    (PLAIN, PLAIN[::2] * 255, "DK231"),
    (PLAIN * 255, PLAIN[::2], "DK231"),
    (_normalised(PLAIN), PLAIN[::2], "DK233"),
    (_normalised(PLAIN), PLAIN[::2] * 255, "DK233"),
    (_normalised(PLAIN), np.ascontiguousarray(_normalised(PLAIN)[::2, ::-1]), "DK232"),
    (PLAIN, np.ascontiguousarray(PLAIN[::2, ::-1]), "DK232"),
)
def test_the_first_normalization_tells_what_data_is(trained_on: Pictures, given: Pictures, code: str | None) -> None:
    told = _codes(_network(trained_on), given.astype(np.float32)) - {"DK234"}
    assert told == ({code} if code else set())


def test_few_samples_of_different_scenes_leave_ranges_open() -> None:
    dark = PLAIN.copy()
    dark[1::2] *= 0.2
    bright = dark[[1, 0, 3, 2]]
    found = _fit(_network(dark), bright)
    assert found.growth is not None
    assert found.growth.unseen == 0.5, "of the two halves the dark one shows nothing of the bright one"
    assert "DK234" in _codes(_network(dark), bright)
    told = next(f for f in FIT_RULES.run(found) if f.code == "DK234")
    assert "about 100 samples" in told.hint
