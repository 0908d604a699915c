"""A partial run gives what a whole run with the same quantizers gives, bit for bit, wherever the change is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import parser

from deploykit.accuracy.simulate.partial_runs import PartialRuns
from deploykit.accuracy.simulate.sessions import Feed
from deploykit.accuracy.simulate.simulation import Simulator
from deploykit.encodings.new_grids import GridKind, affine_for_range
from deploykit.encodings.read import read_placed
from deploykit.encodings.values import Affine, Encoding, EncodingSet, Value
from deploykit.errors import InputError
from deploykit.model.collect import facts_of

DATA = Path(__file__).parents[1] / "data"
DETR = DATA / "aimet" / "detr"


class Case:
    """A model, what quantizes it, and samples."""

    def __init__(self, model: onnx.ModelProto, values: Mapping[str, Value], feeds: list[Feed]) -> None:
        self.model, self.values, self.feeds = model, dict(values), feeds
        self.outputs = [item.name for item in model.graph.output]

    def runs(self, values: Mapping[str, Value] | None = None, *, size: int = 0) -> PartialRuns:
        return PartialRuns(self.model, self.feeds, wanted=self.outputs, values=values, size=size)

    def whole(self, values: Mapping[str, Value]) -> list[dict[str, Any]]:
        entries = {name: Encoding(name=name, value=value) for name, value in values.items()}
        simulator = Simulator(self.model, EncodingSet(version="", entries=entries))
        return [simulator.run(feed) for feed in self.feeds]

    def assert_same(self, found: list[dict[str, Any]], values: Mapping[str, Value], about: str) -> None:
        for one, two in zip(found, self.whole(values), strict=True):
            for name in self.outputs:
                assert one[name].shape == two[name].shape, about
                assert one[name].tobytes() == two[name].tobytes(), about


@pytest.fixture(scope="module")
def detr() -> Case:
    with np.load(DETR / "w8a8.io.npz") as stored:
        feeds: list[Feed] = [
            {key.split(":", 1)[1]: stored[key] for key in stored.files if key.startswith(f"input.{index}:")}
            for index in (0, 1)
        ]
    model = onnx.load(DETR / "model.onnx")
    placed = read_placed(DETR / "w8a8.v1.0.0.encodings", facts_of(model))
    return Case(model, {entry.name: entry.value for entry in placed}, feeds)


@pytest.mark.parametrize("size", [0, 7])
def test_every_tensor_alone_and_left_out(detr: Case, size: int) -> None:
    exact, quantized = detr.runs(size=size), detr.runs(detr.values, size=size)
    detr.assert_same(exact.reference, {}, "float")
    detr.assert_same(quantized.reference, detr.values, "quantized")
    for name in sorted(detr.values, key=lambda name: exact.first_piece([name]))[:: 5 if size == 0 else 11]:
        detr.assert_same(exact.run({name: detr.values[name]}), {name: detr.values[name]}, f"only {name}")
        rest = {other: value for other, value in detr.values.items() if other != name}
        detr.assert_same(quantized.run({name: None}), rest, f"all but {name}")


def _grid(low: float, high: float) -> Affine:
    return affine_for_range(low, high, GridKind(bits=8, signed=False))


CONTROL = """
<ir_version: 8, opset_import: ["" : 17]>
agraph (float[1,6] x, bool c) => (float[k,6] y, float[1,6] z)
<float[6] w = {0.1, -0.2, 0.33, 0.41, 0.57, -0.63}>
{
    a = Mul(x, w)
    b = Sigmoid(a)
    parts = SequenceConstruct(a, b)
    axis = Constant<value_int = 0>()
    zero = Constant<value_int = 0>()
    joined = ConcatFromSequence<axis = 0>(parts)
    first = SequenceAt(parts, zero)
    y = Tanh(joined)
    d = If (c) <
        then_branch = more () => (float[1,6] e) { e = Mul(b, w) },
        else_branch = less () => (float[1,6] f) { f = Sub(b, w) }
    >
    z = Add(d, first)
}
"""


@pytest.mark.parametrize("size", [1, 50])
def test_bodies_and_sequences(size: int) -> None:
    """What a body reads from outside is read, and a sequence never crosses a border."""
    model = parser.parse_model(CONTROL)
    rng = np.random.default_rng(3)
    feeds: list[Feed] = [
        {"x": rng.normal(size=(1, 6)).astype(np.float32), "c": np.asarray(flag)} for flag in (True, False)
    ]
    values: dict[str, Value] = {name: _grid(-2, 2) for name in ("x", "a", "b", "d", "joined", "first", "y", "z", "w")}
    case = Case(model, values, feeds)
    exact, quantized = case.runs(size=size), case.runs(values, size=size)
    for name in values:
        case.assert_same(exact.run({name: values[name]}), {name: values[name]}, name)
        rest = {other: value for other, value in values.items() if other != name}
        case.assert_same(quantized.run({name: None}), rest, name)


def test_a_shared_weight_is_changed_wherever_it_is_read() -> None:
    """The second reader lies pieces behind the first, and nothing else between them changes."""
    text = '<ir_version: 8, opset_import: ["" : 17]> g (float[2,3] x) => (float[2,3] y, float[2,3] v)'
    text += "<float[3] w = {0.123, 0.456, -0.789}> { a = Mul(x, w) y = Relu(a) b = Neg(x) c = Abs(b) d = Exp(c)"
    text += " e = Sqrt(d) v = Add(e, w) }"
    feeds: list[Feed] = [{"x": np.arange(6, dtype=np.float32).reshape(2, 3) / 7}]
    case = Case(parser.parse_model(text), {"w": _grid(-1, 1)}, feeds)
    case.assert_same(case.runs(size=1).run(case.values), case.values, "shared")


def test_an_entry_that_does_not_fit_is_refused(detr: Case) -> None:
    wrong = replace(_grid(0, 1), scale=np.ones(7), zero_point=np.zeros(7), axis=0)
    weight = next(name for name in detr.values if name.endswith("weight"))
    with pytest.raises(InputError, match="does not fit its tensor"):
        detr.runs().run({weight: wrong})
