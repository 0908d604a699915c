"""Calibration data against the model: wrong scales, swapped colours, missing normalisation, too few, unlike classes."""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import pytest
from msgspec.structs import replace
from onnx import numpy_helper

from deploykit.accuracy.samples.data_quality import data_fit, range_growth, takes_pictures
from deploykit.accuracy.samples.data_rules import (
    FIT_RULES,
    GUIDELINE_RULES,
    DataFit,
    FirstLayer,
    Preparation,
    RangeGrowth,
    Survey,
)
from deploykit.accuracy.simulate.sessions import Session
from deploykit.model.collect import facts_of
from rule_cases import check_pairs
from sample_models.tiny_graphs import TinyGraph
from tables import each_row
from text_models import text_model
from told import check_file, check_told

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


SURVEY = Survey(kind="arrays", origin="data", samples=100)
NESTED = {"preparation": Preparation, "first_layer": FirstLayer, "growth": RangeGrowth}


def _said(question: str) -> list[str]:
    """``fit`` or ``survey``, and what of it is not as in good data, in JSON."""
    word, _, text = question.partition(" ")
    fields = json.loads(text or "{}")
    if word == "survey":
        return [f"{found.code} {found.message}" for found in GUIDELINE_RULES.run(replace(SURVEY, **fields))]
    made = {name: NESTED[name](**value) if name in NESTED else value for name, value in fields.items()}
    return [f"{found.code} {found.message}; {found.hint}" for found in FIT_RULES.run(replace(GOOD, **made))]


def test_each_clause_of_the_rules_about_data() -> None:
    check_file(Path(__file__).with_name("data_rules.told"), _said)


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


@each_row(("shape", "is_picture"), ((1, 1, 8, 8), True), ((1, 3, 8, 8), True), ((1, 2, 8, 8), False), ((1, 3), False))
def test_a_picture_has_one_colour_or_three(shape: tuple[int, ...], is_picture: bool) -> None:
    graph = TinyGraph()
    assert takes_pictures(facts_of(graph.model(graph.op("Relu", [graph.input("x", shape)], "y")))) is is_picture


PLAIN = _pictures(24)


FLIPPED = np.ascontiguousarray(PLAIN[:, ::-1])
SETS = {
    "plain": PLAIN,
    "bytes": np.round(PLAIN * 255),
    "normalised": _normalised(PLAIN),
    "in the other order": FLIPPED,
    "normalised, in the other order": _normalised(FLIPPED),
}


def test_the_first_normalization_tells_what_data_is() -> None:
    told = {}
    for trained_on in ("plain", "bytes", "normalised"):
        for given, pictures in SETS.items():
            found = FIT_RULES.run(
                replace(_fit(_network(SETS[trained_on]), pictures[::2].astype(np.float32)), growth=None)
            )
            told[f"trained on {trained_on}, given {given}"] = [
                re.sub(r"\d{4,}\.\d+", lambda far: f"{float(far[0]):.3g}", f"{one.code} {one.message}") for one in found
            ]
    check_told(Path(__file__).with_name("data_fit.told"), told)


PIXELS = {"x": np.asarray([0, 64, 128, 255, 1, 2], np.float32).reshape(1, 3, 1, 2)}


@each_row(
    ("body", "feeds", "divides", "deviation"),
    ("d = Div(x, number) y = Conv(d, w)", [PIXELS], 250.0, 0.254),
    ("d = Mul(x, factor) y = Conv(d, w)", [PIXELS], 256.0, 0.248),
    ("d = Div(x, several) y = Conv(d, w)", [PIXELS], 0.0, 15.75),
    ("d = Sub(x, number) y = Conv(d, w)", [PIXELS], 0.0, 63.5),
    ("s = Sub(x, number) d = Div(s, number) y = Conv(d, w)", [PIXELS], 0.0, 0.254),
    ("a = Conv(x, w) b = Relu(x) y = Add(a, b)", [PIXELS], 0.0, None),  # two read it
    ("y = Relu(x)", [PIXELS, {"x": PIXELS["x"] / 2}], 0.0, None),
)
def test_what_a_few_samples_and_the_first_layers_tell(
    body: str, feeds: list[Any], divides: float, deviation: float | None
) -> None:
    known: dict[str, Any] = {"number": np.float32(250), "factor": np.float32(1 / 256), "several": [1.0, 2.0]}
    known["w"] = np.asarray([[1, 0, 0], [0, 1, 0], [1, 1, 1]], np.float32).reshape(3, 3, 1, 1)
    model = text_model(
        "float[1,3,1,2] x", body, **{name: value for name, value in known.items() if f" {name})" in body}
    )
    found = data_fit(model, facts_of(model), feeds, GOOD)
    layer = found.first_layer
    assert found == replace(
        GOOD, low=0.0, high=255.0, whole_numbers=len(feeds) == 1, divides_by=divides, first_layer=layer
    )
    assert (layer and layer.node) == (deviation and "Conv -> y")
    assert layer is None or layer.deviation == pytest.approx(deviation, rel=2e-3)


def test_few_samples_of_different_scenes_leave_ranges_open() -> None:
    """Of the two halves the dark one shows nothing of the bright one."""
    dark = PLAIN.copy()
    dark[1::2] *= 0.2
    model = _network(dark)
    assert _fit(model, dark[[1, 0, 3, 2]]).growth == RangeGrowth(samples=4, tensors=4, unseen=0.5)
    assert _fit(model, dark[:3]).growth is None, "too few"
    assert _fit(model, np.concatenate([dark] * 2)).growth == RangeGrowth(samples=48, tensors=4, unseen=0.15)
