"""The forms of operators that are measured: what models are made of, in ranks 3 to 6; it builds no model by itself.

A form draws into a sketch and answers with its outputs. Its name is what the recorded table and ``deploykit compat op``
say, so it is never changed, only added to.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from atlas.form_layers import convolutions, linear_layers, pools, recurrent, resizes
from atlas.form_shapes import SHAPES, at_rank, movements, selections
from atlas.sketch import Sketch

__all__ = ["Form", "all_forms"]

Draw = Callable[[Sketch], str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Form:
    """``op`` is the ONNX operator that the form is about, ``name`` what is particular; ``opset`` is the lowest."""

    op: str
    name: str
    draw: Draw
    opset: int = 17

    @property
    def id(self) -> str:
        """Unique among all forms."""
        return f"{self.op}: {self.name}"


def all_forms() -> tuple[Form, ...]:
    """Every form, in an order that does not change."""
    families = (_unary, _binary, _choices, _reductions, _softmaxes, _norms, _patterns)
    own = [form for family in families for form in family()]
    drawn = (movements, selections, linear_layers, convolutions, pools, resizes, recurrent)
    return (*own, *(Form(op=op, name=name, draw=draw) for family in drawn for op, name, draw in family()))


_ANYWHERE: tuple[tuple[str, dict[str, Any]], ...] = (
    *((op, {}) for op in ("Abs", "Neg", "Relu", "Sigmoid", "Tanh", "Exp", "Erf", "Sin", "Cos", "Floor", "Ceil")),
    *((op, {}) for op in ("Round", "Sign", "HardSwish", "Softplus", "Softsign", "Mish")),
    ("Elu", {}),
    ("LeakyRelu", {"alpha": 0.1}),
    ("HardSigmoid", {"alpha": 0.2, "beta": 0.5}),
)
_WITH_EDGES = ("Floor", "Ceil", "Round", "Sign")
_ABOVE_ZERO = ("Sqrt", "Log", "Reciprocal")


def _unary() -> Iterator[Form]:
    for rank in SHAPES:
        for op, settings in _ANYWHERE:
            yield _one(op, rank, -2.0, settings, 18 if op == "Mish" else 17)
        yield _one("Tan", rank, -1.0, {}, 17)
        for op in _ABOVE_ZERO:
            yield _one(op, rank, 0.5, {}, 17)
        yield _one("Gelu", rank, -2.0, {}, 20)
        yield Form(op="Clip", name=f"0 to 1, rank {rank}", draw=at_rank(rank, _clipped))
        yield Form(op="PRelu", name=f"rank {rank}", draw=at_rank(rank, _prelu))


def _one(op: str, rank: int, low: float, settings: dict[str, Any], opset: int) -> Form:
    def draw(sketch: Sketch, x: str) -> str:
        return sketch.op(op, x, **settings)

    drawn = at_rank(rank, draw, low=low, coarse=op in _WITH_EDGES)
    return Form(op=op, name=f"rank {rank}", draw=drawn, opset=opset)


def _clipped(sketch: Sketch, x: str) -> str:
    return sketch.op("Clip", x, sketch.stored(0.0, "float32"), sketch.stored(1.0, "float32"))


def _prelu(sketch: Sketch, x: str) -> str:
    return sketch.op("PRelu", x, sketch.stored([0.2], "float32"))


def _binary() -> Iterator[Form]:
    for op in ("Add", "Sub", "Mul", "Div", "Max", "Min"):
        low = 0.5 if op == "Div" else -2.0
        for rank, shape in SHAPES.items():
            last = (*(1 for _ in shape[:-1]), shape[-1])
            yield Form(op=op, name=f"two activations, rank {rank}", draw=_two(op, shape, shape, low))
            yield Form(op=op, name=f"two activations, one stretched, rank {rank}", draw=_two(op, shape, last, low))
            yield Form(op=op, name=f"and a stored vector, rank {rank}", draw=_with_stored(op, shape, shape[-1:], low))
        yield Form(op=op, name="and a stored number, rank 3", draw=_with_stored(op, SHAPES[3], (), low))
    for power in (2.0, 0.5):
        yield Form(op="Pow", name=f"to {power:g}, rank 3", draw=_power(power))


def _two(op: str, first: tuple[int, ...], second: tuple[int, ...], low: float) -> Draw:
    def draw(sketch: Sketch) -> str:
        return sketch.op(op, sketch.input(*first), sketch.input(*second, low=low))

    return draw if len(first) < 6 else _between(op, first, second, low)


def _between(op: str, first: tuple[int, ...], second: tuple[int, ...], low: float) -> Draw:
    """Six dimensions only inside: at the border of a graph they are refused for that alone."""

    def draw(sketch: Sketch) -> str:
        sides = [
            sketch.op("Reshape", sketch.input(*_flat(shape), low=least), sketch.stored(list(shape), "int64"))
            for shape, least in ((first, -2.0), (second, low))
        ]
        return sketch.op("Reshape", sketch.op(op, *sides), sketch.stored(list(_flat(first)), "int64"))

    return draw


def _flat(shape: tuple[int, ...]) -> tuple[int, int, int]:
    count = 1
    for size in shape[:-1]:
        count *= size
    return 1, count, shape[-1]


def _with_stored(op: str, shape: tuple[int, ...], other: tuple[int, ...], low: float) -> Draw:
    def draw(sketch: Sketch, x: str) -> str:
        return sketch.op(op, x, sketch.between(low, 2.0, *other))

    return at_rank(len(shape), draw)


def _power(power: float) -> Draw:
    def draw(sketch: Sketch) -> str:
        return sketch.op("Pow", sketch.input(*SHAPES[3], low=0.5), sketch.stored(power, "float32"))

    return draw


def _choices() -> Iterator[Form]:
    for op in ("Greater", "Less", "Equal", "GreaterOrEqual", "LessOrEqual"):
        for rank in SHAPES:
            yield Form(op=op, name=f"behind it Where, rank {rank}", draw=at_rank(rank, _compared(op), coarse=True))
    yield Form(op="Where", name="stored condition, rank 4", draw=at_rank(4, _masked))
    for op in ("And", "Or"):
        yield Form(op=op, name="of two comparisons, rank 3", draw=at_rank(3, _joined(op), coarse=True))
    yield Form(op="Not", name="of a comparison, rank 3", draw=at_rank(3, _negated, coarse=True))


def _compared(op: str) -> Callable[[Sketch, str], str]:
    def draw(sketch: Sketch, x: str) -> str:
        condition = sketch.op(op, x, sketch.stored(0.25, "float32"))
        return sketch.op("Where", condition, x, sketch.stored(-1.5, "float32"))

    return draw


def _masked(sketch: Sketch, x: str) -> str:
    condition = sketch.stored([True, False] * (SHAPES[4][-1] // 2), "bool")
    return sketch.op("Where", condition, x, sketch.stored(-1.5, "float32"))


def _joined(op: str) -> Callable[[Sketch, str], str]:
    def draw(sketch: Sketch, x: str) -> str:
        sides = [sketch.op(kind, x, sketch.stored(0.25, "float32")) for kind in ("Greater", "Less")]
        return sketch.op("Where", sketch.op(op, *sides), x, sketch.stored(-1.5, "float32"))

    return draw


def _negated(sketch: Sketch, x: str) -> str:
    condition = sketch.op("Not", sketch.op("Greater", x, sketch.stored(0.25, "float32")))
    return sketch.op("Where", condition, x, sketch.stored(-1.5, "float32"))


def _reductions() -> Iterator[Form]:
    for op in ("ReduceMean", "ReduceMax", "ReduceMin", "ReduceSum"):
        for rank in SHAPES:
            for where, axis in (("last axis", -1), ("axis 1", 1)):
                yield Form(op=op, name=f"{where}, rank {rank}", draw=at_rank(rank, _reduced(op, axis)))
    yield Form(op="ReduceMean", name="axes 2 and 3, rank 4", draw=at_rank(4, _reduced("ReduceMean", 2, 3)))
    yield Form(op="ReduceL2", name="last axis, rank 3", draw=at_rank(3, _reduced("ReduceL2", -1)))
    for op in ("ArgMax", "ArgMin"):
        for rank in (3, 4):
            yield Form(op=op, name=f"last axis, rank {rank}", draw=at_rank(rank, _placed(op), back=False))
    yield Form(op="CumSum", name="last axis, rank 3", draw=at_rank(3, _cumulated))


def _reduced(op: str, *axes: int) -> Callable[[Sketch, str], str]:
    def draw(sketch: Sketch, x: str) -> str:
        if op == "ReduceSum":
            return sketch.op(op, x, sketch.stored(list(axes), "int64"), keepdims=1)
        return sketch.op(op, x, axes=list(axes), keepdims=1)

    return draw


def _placed(op: str) -> Callable[[Sketch, str], str]:
    return lambda sketch, x: sketch.op(op, x, axis=-1, keepdims=1)


def _cumulated(sketch: Sketch, x: str) -> str:
    return sketch.op("CumSum", x, sketch.stored(-1, "int64"))


def _softmaxes() -> Iterator[Form]:
    for op in ("Softmax", "LogSoftmax"):
        for rank in SHAPES:
            yield Form(op=op, name=f"last axis, rank {rank}", draw=at_rank(rank, _along(op, -1)))
        yield Form(op=op, name="axis 1, rank 4", draw=at_rank(4, _along(op, 1)))


def _along(op: str, axis: int) -> Callable[[Sketch, str], str]:
    return lambda sketch, x: sketch.op(op, x, axis=axis)


def _norms() -> Iterator[Form]:
    for rank, shape in SHAPES.items():
        for words, axes, biased in (("last axis", 1, True), ("last axis, no bias", 1, False), ("two axes", 2, True)):
            yield Form(
                op="LayerNormalization", name=f"{words}, rank {rank}", draw=at_rank(rank, _layer(shape[-axes:], biased))
            )
    for rank in (3, 4, 5):
        channels = SHAPES[rank][1]
        yield Form(op="InstanceNormalization", name=f"rank {rank}", draw=at_rank(rank, _instance(channels)))
        yield Form(op="BatchNormalization", name=f"rank {rank}", draw=at_rank(rank, _batch(channels)))
    yield Form(op="LpNormalization", name="last axis, rank 3", draw=at_rank(3, _along("LpNormalization", -1)))


def _layer(normalized: tuple[int, ...], biased: bool) -> Callable[[Sketch, str], str]:
    def draw(sketch: Sketch, x: str) -> str:
        inputs = [x, sketch.between(0.5, 1.5, *normalized)]
        if biased:
            inputs.append(sketch.between(-0.5, 0.5, *normalized))
        return sketch.op("LayerNormalization", *inputs, axis=-len(normalized))

    return draw


def _instance(channels: int) -> Callable[[Sketch, str], str]:
    return lambda sketch, x: sketch.op(
        "InstanceNormalization", x, sketch.between(0.5, 1.5, channels), sketch.between(-0.5, 0.5, channels)
    )


def _batch(channels: int) -> Callable[[Sketch, str], str]:
    def draw(sketch: Sketch, x: str) -> str:
        sides = [sketch.between(low, low + 1.0, channels) for low in (0.5, -0.5, -0.5, 0.5)]
        return sketch.op("BatchNormalization", x, *sides)

    return draw


def _patterns() -> Iterator[Form]:
    yield Form(op="LayerNormalization", name="written out, rank 3", draw=at_rank(3, _written_out))
    yield Form(op="RMSNormalization", name="written out, rank 3", draw=at_rank(3, _root_mean_square))
    yield Form(op="Gelu", name="written out with Erf, rank 3", draw=at_rank(3, _gelu))
    yield Form(op="Swish", name="written out, rank 4", draw=at_rank(4, _swish))


def _written_out(sketch: Sketch, x: str) -> str:
    centred = sketch.op("Sub", x, sketch.op("ReduceMean", x, axes=[-1]))
    return _scaled(sketch, centred)


def _root_mean_square(sketch: Sketch, x: str) -> str:
    return _scaled(sketch, x)


def _scaled(sketch: Sketch, x: str) -> str:
    square = sketch.op("ReduceMean", sketch.op("Pow", x, sketch.stored(2.0, "float32")), axes=[-1])
    root = sketch.op("Sqrt", sketch.op("Add", square, sketch.stored(1e-5, "float32")))
    return sketch.op("Mul", sketch.op("Div", x, root), sketch.between(0.5, 1.5, SHAPES[3][-1]))


def _gelu(sketch: Sketch, x: str) -> str:
    erf = sketch.op("Erf", sketch.op("Div", x, sketch.stored(2**0.5, "float32")))
    twice = sketch.op("Mul", x, sketch.op("Add", erf, sketch.stored(1.0, "float32")))
    return sketch.op("Mul", twice, sketch.stored(0.5, "float32"))


def _swish(sketch: Sketch, x: str) -> str:
    return sketch.op("Mul", x, sketch.op("Sigmoid", x))
