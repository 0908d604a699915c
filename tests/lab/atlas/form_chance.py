"""Forms drawn by chance: settings, sizes and ranges from a seed that is the form's own name. Layers stand elsewhere.

What the listed forms have in common by accident, these do not have: borders that hold for both mean something.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import numpy as np

from atlas.form_chance_layers import LAYERS_BY_CHANCE
from atlas.sketch import Sketch

__all__ = ["BY_CHANCE", "drawn_by_chance", "opset_by_chance"]

Draw = Callable[[Sketch], str]
Maker = Callable[[Random], Draw]

_PLAIN = (
    *("Abs", "Neg", "Relu", "Sigmoid", "Tanh", "Exp", "Sin", "Cos", "Floor", "Ceil", "Round", "Sign", "HardSwish"),
    *("Softplus", "Elu", "LeakyRelu", "HardSigmoid", "Sqrt", "Log", "Reciprocal", "Gelu", "Atan", "Selu", "Mish"),
    *("Softsign", "Erf", "Celu", "Asin", "ThresholdedRelu"),
)
_POSITIVE = ("Sqrt", "Log", "Reciprocal")
_EDGED = ("Floor", "Ceil", "Round", "Sign", "ThresholdedRelu")
_OPSETS = {"Gelu": 20, "Mish": 18}


def drawn_by_chance(op: str, number: int) -> tuple[str, str, int, Draw]:
    """Operator, name, opset and who draws it: the same on every call."""
    return op, f"by chance {number}", opset_by_chance(op), BY_CHANCE[op](Random(f"{op} {number}"))


def opset_by_chance(op: str) -> int:
    """The lowest that has the operator as it is drawn here."""
    return _OPSETS.get(op, 17)


def _shape(random: Random, low: int = 2, high: int = 5) -> list[int]:
    rank = random.randint(low, high)
    return [1, *(random.choice((2, 3, 4, 5, 7, 8, 11, 16, 20)) for _ in range(rank - 1))]


def _unary(op: str) -> Maker:
    def make(random: Random) -> Draw:
        shape = _shape(random)
        settings: dict[str, Any] = {"alpha": round(random.uniform(0.05, 1.5), 2)} if op in ("Elu", "LeakyRelu") else {}
        low = 0.3 if op in _POSITIVE else -0.9 if op == "Asin" else -2.0
        high = 0.9 if op == "Asin" else random.choice((0.8, 2.0, 4.0))
        return lambda sketch: sketch.op(op, sketch.input(*shape, low=low, high=high, coarse=op in _EDGED), **settings)

    return make


def _binary(op: str) -> Maker:
    def make(random: Random) -> Draw:
        one = _shape(random)
        two = [size if random.random() < 0.6 else 1 for size in one][random.randint(0, len(one) - 1) :]
        low, stored = (0.4 if op in ("Div", "Pow") else -1.7), random.random() < 0.4
        first = 0.3 if op == "Pow" else -2.0

        def draw(sketch: Sketch) -> str:
            x = sketch.input(*one, low=first)
            if op == "Pow":
                return sketch.op(op, x, sketch.stored(random_power, "float32"))
            return sketch.op(op, x, sketch.between(low, 2.1, *two) if stored else sketch.input(*two, low=low, high=2.1))

        random_power = random.choice((0.5, 2.0, 3.0, 1.5))
        return draw

    return make


def _reduction(op: str) -> Maker:
    def make(random: Random) -> Draw:
        shape = _shape(random, 3)
        axes = sorted(random.sample(range(1, len(shape)), random.randint(1, len(shape) - 1)))
        kept = random.randint(0, 1) if len(axes) < len(shape) - 1 else 1

        def draw(sketch: Sketch) -> str:
            x = sketch.input(*shape)
            if op == "ReduceSum":
                return sketch.op(op, x, sketch.stored(axes, "int64"), keepdims=kept)
            return sketch.op(op, x, axes=axes, keepdims=kept)

        return draw

    return make


def _along(op: str) -> Maker:
    def make(random: Random) -> Draw:
        shape = _shape(random, 2)
        axis = random.choice((-1, -1, random.randint(1, len(shape) - 1)))
        if op == "CumSum":
            return lambda sketch: sketch.op(op, sketch.input(*shape), sketch.stored(axis, "int64"))
        return lambda sketch: sketch.op(op, sketch.input(*shape), axis=axis)

    return make


def _norm(op: str) -> Maker:
    def make(random: Random) -> Draw:
        shape = _shape(random, 3 if op == "LayerNormalization" else 4, 4)
        size = shape[-1] if op == "LayerNormalization" else shape[1]
        biased = random.random() < 0.7 or op != "LayerNormalization"

        def draw(sketch: Sketch) -> str:
            inputs = [sketch.input(*shape), sketch.between(0.6, 1.4, size)]
            if biased:
                inputs.append(sketch.between(-0.4, 0.4, size))
            if op == "BatchNormalization":
                inputs += [sketch.between(-0.3, 0.3, size), sketch.between(0.4, 1.2, size)]
            return sketch.op(op, *inputs)

        return draw

    return make


def _transpose(random: Random) -> Draw:
    shape = _shape(random, 3)
    order = [0, *random.sample(range(1, len(shape)), len(shape) - 1)]
    return lambda sketch: sketch.op("Transpose", sketch.input(*shape), perm=order)


def _reshape(random: Random) -> Draw:
    shape = _shape(random, 3)
    wanted = [1, shape[1], -1] if random.random() < 0.5 else [1, -1]
    return lambda sketch: sketch.op("Reshape", sketch.input(*shape), sketch.stored(wanted, "int64"))


def _slice(random: Random) -> Draw:
    shape = _shape(random, 2)
    axis = random.randint(1, len(shape) - 1)
    step = random.choice((1, 1, 2, -1))
    bounds = (shape[axis] - 1, -(1 << 30)) if step < 0 else (random.randint(0, shape[axis] - 1), 1 << 30)
    return lambda sketch: sketch.op(
        "Slice", sketch.input(*shape), *(sketch.stored([value], "int64") for value in (*bounds, axis, step))
    )


def _concat(random: Random) -> Draw:
    shape, count = _shape(random, 2), random.randint(2, 4)
    axis = random.randint(1, len(shape) - 1)
    highs = [random.choice((0.5, 1.0, 2.0, 5.0)) for _ in range(count)]
    lows = [random.choice((-2.0, -0.5, 0.0)) for _ in range(count)]
    return lambda sketch: sketch.op(
        "Concat", *(sketch.input(*shape, low=low, high=high) for low, high in zip(lows, highs, strict=True)), axis=axis
    )


def _split(random: Random) -> Draw:
    shape = _shape(random, 2)
    axis = random.randint(1, len(shape) - 1)
    shape[axis] = 3 * random.randint(1, 4)

    def draw(sketch: Sketch) -> str:
        one, two, three = sketch.split(
            "Split", sketch.input(*shape), sketch.stored([shape[axis] // 3] * 3, "int64"), outputs=3, axis=axis
        )
        return sketch.op("Add", sketch.op("Sub", one, two), three)

    return draw


def _repeated(random: Random) -> Draw:
    shape = _shape(random, 2, 4)
    times = [1, *(random.choice((1, 2, 3)) for _ in shape[1:])]
    return lambda sketch: sketch.op("Tile", sketch.input(*shape), sketch.stored(times, "int64"))


def _expanded(random: Random) -> Draw:
    shape = _shape(random, 3)
    axis = random.randint(1, len(shape) - 1)
    wanted = list(shape)
    shape[axis] = 1
    return lambda sketch: sketch.op("Expand", sketch.input(*shape), sketch.stored(wanted, "int64"))


def _padded(random: Random) -> Draw:
    shape = [1, random.choice((1, 3, 8)), random.choice((4, 7, 12)), random.choice((5, 9, 16))]
    mode = random.choice(("constant", "constant", "reflect", "edge"))
    sides = [0, 0, *(random.randint(0, 3) for _ in range(2))] * 2
    value = random.choice((0.0, 0.7, -1.1))

    def draw(sketch: Sketch) -> str:
        filling = [sketch.stored(value, "float32")] if mode == "constant" else []
        return sketch.op("Pad", sketch.input(*shape), sketch.stored(sides, "int64"), *filling, mode=mode)

    return draw


def _blocks(op: str) -> Maker:
    def make(random: Random) -> Draw:
        size = random.choice((2, 3))
        if op == "DepthToSpace":
            shape = [1, size * size * random.randint(1, 4), random.randint(2, 6), random.randint(2, 7)]
            mode = random.choice(("DCR", "CRD"))
            return lambda sketch: sketch.op(op, sketch.input(*shape), blocksize=size, mode=mode)
        shape = [1, random.randint(1, 5), size * random.randint(1, 4), size * random.randint(1, 5)]
        return lambda sketch: sketch.op(op, sketch.input(*shape), blocksize=size)

    return make


def _new_axis(random: Random) -> Draw:
    shape = _shape(random, 2, 4)
    axis = random.randint(1, len(shape))
    return lambda sketch: sketch.op("Unsqueeze", sketch.input(*shape), sketch.stored([axis], "int64"))


def _fewer_axes(random: Random) -> Draw:
    shape = _shape(random, 3)
    return lambda sketch: sketch.op("Squeeze", sketch.input(*shape), sketch.stored([0], "int64"))


_MOVES: dict[str, Maker] = {
    "Transpose": _transpose,
    "Reshape": _reshape,
    "Slice": _slice,
    "Concat": _concat,
    "Split": _split,
    "Tile": _repeated,
    "Expand": _expanded,
    "Pad": _padded,
    "DepthToSpace": _blocks("DepthToSpace"),
    "SpaceToDepth": _blocks("SpaceToDepth"),
    "Unsqueeze": _new_axis,
    "Squeeze": _fewer_axes,
}


def _selection(op: str) -> Maker:
    def make(random: Random) -> Draw:
        shape = _shape(random, 3, 4)
        axis = random.randint(1, len(shape) - 1)
        negative = random.random() < 0.3
        size = shape[axis]
        count = random.randint(1, min(4, size))
        places = random.sample(range(size), count)
        if negative:
            places = [place - size for place in places]
        if op == "Gather":
            given = random.random() < 0.4
            return lambda sketch: sketch.op(
                op,
                sketch.input(*shape),
                sketch.places(5, below=size) if given else sketch.stored(places, "int64"),
                axis=axis,
            )
        if op == "GatherND":
            points = [[0, random.randrange(shape[1])] for _ in range(3)]
            return lambda sketch: sketch.op(op, sketch.input(*shape), sketch.stored(points, "int64"))
        if op == "TopK":
            return lambda sketch: sketch.op(
                op, sketch.input(*shape), sketch.stored([count], "int64"), outputs=2, axis=axis
            )
        if op == "ScatterND":
            points = [[0, place] for place in random.sample(range(shape[1]), min(2, shape[1]))]
            news = [len(points), *shape[2:]]
            return lambda sketch: sketch.op(
                op, sketch.input(*shape), sketch.stored(points, "int64"), sketch.input(*news)
            )
        return _elements(op, shape, axis, places, random)

    return make


def _elements(op: str, shape: list[int], axis: int, places: list[int], random: Random) -> Draw:
    wanted = list(shape)
    wanted[axis] = len(places)
    along = [1] * len(shape)
    along[axis] = len(places)
    stored = np.broadcast_to(np.reshape(places, along), wanted)
    reduction = random.choice(("none", "none", "none", "add", "max"))

    def draw(sketch: Sketch) -> str:
        x, where = sketch.input(*shape), sketch.stored(stored, "int64")
        if op == "GatherElements":
            return sketch.op(op, x, where, axis=axis)
        return sketch.op(op, x, where, sketch.input(*wanted), axis=axis, reduction=reduction)

    return draw


def _choice(op: str) -> Maker:
    def make(random: Random) -> Draw:
        shape, edge = _shape(random, 2), random.choice((0.0, 0.25, -0.5))

        def draw(sketch: Sketch) -> str:
            x = sketch.input(*shape, coarse=True)
            if op in ("ArgMax", "ArgMin"):
                return sketch.op(op, x, axis=-1, keepdims=1)
            return sketch.op(
                "Where", sketch.op(op, x, sketch.stored(edge, "float32")), x, sketch.stored(-1.0, "float32")
            )

        return draw

    return make


def _clip(op: str) -> Maker:
    def make(random: Random) -> Draw:
        shape, low, high = _shape(random), random.choice((-1.0, 0.0, -0.3)), random.choice((0.4, 1.0, 6.0))
        slope = round(random.uniform(0.05, 0.5), 2)

        def draw(sketch: Sketch) -> str:
            x = sketch.input(*shape)
            if op == "Clip":
                return sketch.op(op, x, sketch.stored(low, "float32"), sketch.stored(high, "float32"))
            return sketch.op(op, x, sketch.stored([slope], "float32"))

        return draw

    return make


BY_CHANCE: dict[str, Maker] = {
    **{op: _unary(op) for op in _PLAIN},
    **{op: _binary(op) for op in ("Add", "Sub", "Mul", "Div", "Max", "Min", "Pow")},
    **{op: _reduction(op) for op in ("ReduceMean", "ReduceMax", "ReduceMin", "ReduceSum", "ReduceL2", "ReduceProd")},
    **{op: _along(op) for op in ("Softmax", "LogSoftmax", "LpNormalization", "CumSum")},
    **{op: _norm(op) for op in ("LayerNormalization", "InstanceNormalization", "BatchNormalization")},
    **_MOVES,
    **{op: _selection(op) for op in ("Gather", "GatherElements", "GatherND", "TopK", "ScatterND", "ScatterElements")},
    **{op: _choice(op) for op in ("Greater", "Less", "LessOrEqual", "ArgMax", "ArgMin")},
    **{op: _clip(op) for op in ("Clip", "PRelu")},
    **LAYERS_BY_CHANCE,
}
"""Who draws a form of an operator, from a source of chance."""
