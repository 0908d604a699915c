"""Draws small models of one to three operators, with data of their own: operators of common models in forms by chance.

Nothing of the atlas is in it, and no part of deploykit: the pairs are put in by this file, as plain tools do.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

__all__ = ["EDGED", "KINDS", "OPERATORS", "Drawn", "drawn"]

KINDS = ("w8a8", "w8a16", "fp16")
SAMPLES = 8
"""For calibration; as many again are kept for the truth."""
EDGED = frozenset({"Floor", "Ceil", "Round", "Sign", "Mod", "Cast", "ArgMax", "ArgMin", "TopK", "Equal", "Greater"})
_LAYERS = ("Conv", "ConvTranspose", "Gemm", "MatMul")
_MOVING = (
    *("Reshape", "Transpose", "Slice", "Split", "Gather", "GatherElements", "GatherND", "MaxPool", "DepthToSpace"),
    *("SpaceToDepth", "Squeeze", "Unsqueeze", "Expand", "Tile", "Flatten", "Identity", "TopK"),
)
_LEFT_FLOAT = {"Clip": (1, 2), "Resize": (1, 2), "Pad": (2,), "Trilu": (), "OneHot": ()}
_SIZES = (1, 2, 3, 5, 7, 8, 9, 12, 13, 16, 17, 24, 31, 32, 33, 48, 64)


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawn:
    """One model, float and as it is given; inputs to calibrate with and others for the truth."""

    name: str
    op: str
    kind: str
    nodes: Sequence[str]
    float_model: onnx.ModelProto
    model: onnx.ModelProto
    calibration: Sequence[Mapping[str, Any]]
    truth: Sequence[Mapping[str, Any]]


class Draft:
    """Collects a graph; ``random`` is its one source of chance."""

    def __init__(self, seed: str) -> None:
        self.random = Random(seed)
        self.numbers = np.random.default_rng(self.random.getrandbits(32))
        self.nodes: list[Any] = []
        self.stored: dict[str, Any] = {}
        self.inputs: dict[str, list[Any]] = {}
        self.opset = self.random.choice((17, 18, 20))
        self.around = self.random.random()
        self.count = 0

    def pick(self, *these: Any) -> Any:
        return self.random.choice(these)

    def size(self, most: int = 33) -> int:
        return self.random.choice([size for size in _SIZES if 1 < size <= most])

    def shape(self, low: int = 2, high: int = 5, most: int = 33) -> list[int]:
        rank = self.random.randint(low, high)
        most = {5: min(most, 9), 4: min(most, 24)}.get(rank, most)
        return [self.pick(1, 1, 1, 2) if rank > 1 else self.size(most), *(self.size(most) for _ in range(rank - 1))]

    def x(self, *shape: int, like: str = "") -> str:
        """An input, with a distribution of its own."""
        like = like or self.pick("normal", "normal", "even", "picture", "skewed")
        scale = self.pick(0.3, 1.0, 1.0, 3.0, 8.0)
        make: dict[str, Callable[[], Any]] = {
            "normal": lambda: self.numbers.normal(0, scale, shape),
            "even": lambda: self.numbers.uniform(-scale, scale, shape),
            "picture": lambda: self.numbers.uniform(0, 1, shape),
            "skewed": lambda: np.abs(self.numbers.normal(0, scale, shape)) ** 1.5 - 0.3 * scale,
            "positive": lambda: np.abs(self.numbers.normal(0, scale, shape)) + 0.15 * scale,
            "unit": lambda: self.numbers.uniform(-1, 1, shape),
        }
        name = self.name("x")
        self.inputs[name] = [make[like]().astype(np.float32) for _ in range(2 * SAMPLES)]
        layer = self.around < 0.22 and like not in ("positive", "unit") and len(shape) > 1
        return self.layer(name, shape) if layer else name

    def places(self, *shape: int, below: int, dtype: str = "int64") -> str:
        name = self.name("i")
        self.inputs[name] = [self.numbers.integers(0, below, shape).astype(dtype) for _ in range(2 * SAMPLES)]
        return name

    def layer(self, x: str, shape: Sequence[int]) -> str:
        if len(shape) in (3, 4) and self.random.random() < 0.7:
            channels = shape[1]
            bias = self.w(channels, scale=0.1)
            return self.op("Conv", x, self.w(channels, channels, *[1] * (len(shape) - 2)), bias)
        return self.op("MatMul", x, self.w(shape[-1], shape[-1]))

    def w(self, *shape: int, scale: float = 0.0) -> str:
        scale = scale or max(1, math.prod(shape[1:])) ** -0.5
        return self.keep(self.numbers.normal(0, scale, shape).astype(np.float32))

    def between(self, low: float, high: float, *shape: int) -> str:
        return self.keep(self.numbers.uniform(low, high, shape).astype(np.float32))

    def keep(self, value: Any) -> str:
        name = self.name("w")
        array = np.asarray(value)
        self.stored[name] = array.astype(np.float32) if array.dtype == np.float64 else array
        return name

    def name(self, kind: str) -> str:
        self.count += 1
        return f"{kind}{self.count}"

    def ops(self, op: str, *inputs: str, outputs: int = 1, **settings: Any) -> list[str]:
        made = [self.name("t") for _ in range(outputs)]
        self.nodes.append(helper.make_node(op, list(inputs), made, name=f"{op}_{made[0]}", **settings))
        return made

    def op(self, op: str, *inputs: str, **settings: Any) -> str:
        return self.ops(op, *inputs, **settings)[0]

    def reduce(self, op: str, x: str, axes: Sequence[int], keepdims: int) -> str:
        if op == "ReduceSum" or self.opset >= 18:
            return self.op(op, x, self.keep(np.array(axes, np.int64)), keepdims=keepdims)
        return self.op(op, x, axes=list(axes), keepdims=keepdims)


def _ints(*values: int) -> Any:
    return np.array(values, np.int64)


def _windows(d: Draft, sides: int, *, dilated: bool = True) -> dict[str, Any]:
    kernel = [d.pick(1, 2, 3, 3, 3, 5, 7) for _ in range(sides)]
    settings: dict[str, Any] = {"kernel_shape": kernel, "strides": [d.pick(1, 1, 2, 3) for _ in range(sides)]}
    if dilated and d.random.random() < 0.25:
        settings["dilations"] = [d.pick(1, 2, 3) for _ in range(sides)]
    how = d.random.random()
    if how < 0.15:
        settings["auto_pad"] = d.pick("SAME_UPPER", "SAME_LOWER", "VALID")
    else:
        dilations = settings.get("dilations", [1] * sides)
        half = [(size - 1) * step // 2 for size, step in zip(kernel, dilations, strict=True)]
        begin = half if how < 0.6 else [d.random.randint(0, min(2, size // 2)) for size in kernel]
        end = half if how < 0.6 else [d.random.randint(0, min(2, size // 2)) for size in kernel]
        settings["pads"] = [*begin, *end]
    return settings


def _map(d: Draft, sides: int) -> list[int]:
    most = {1: 64, 2: 24, 3: 9}[sides]
    return [max(size, 8) for size in (d.size(most) for _ in range(sides))]


def _conv(d: Draft) -> list[str]:
    sides = d.pick(1, 2, 2, 2, 2, 3)
    channels = d.pick(3, 4, 6, 8, 12, 16, 24)
    group = d.pick(1, 1, 1, channels, 2 if channels % 2 == 0 else 1)
    made = group * d.pick(1, 2, 3) if group == channels else group * d.pick(1, 3, 4, 8)
    settings = _windows(d, sides)
    x = d.x(d.pick(1, 1, 2), channels, *_map(d, sides))
    weights = [d.w(made, channels // group, *settings["kernel_shape"])]
    if d.random.random() < 0.7:
        weights.append(d.w(made, scale=0.2))
    return [d.op("Conv", x, *weights, group=group, **settings)]


def _conv_transpose(d: Draft) -> list[str]:
    sides = d.pick(1, 2, 2, 2, 2, 3)
    channels = d.pick(3, 4, 8, 12, 16)
    group = d.pick(1, 1, 1, channels, 2 if channels % 2 == 0 else 1)
    kernel, strides = [d.pick(2, 3, 4, 5) for _ in range(sides)], [d.pick(1, 2, 2, 3) for _ in range(sides)]
    pads = [d.random.randint(0, 1) for _ in range(sides)] * 2
    settings: dict[str, Any] = {"kernel_shape": kernel, "strides": strides, "pads": pads, "group": group}
    if d.random.random() < 0.3:
        settings["output_padding"] = [d.random.randint(0, step - 1) for step in strides]
    made = d.pick(1, 2, 4)
    weights = [d.w(channels, made, *kernel)]
    if d.random.random() < 0.7:
        weights.append(d.w(made * group, scale=0.2))
    return [d.op("ConvTranspose", d.x(1, channels, *[d.pick(5, 7, 8, 13)] * sides), *weights, **settings)]


def _matmul(d: Draft) -> list[str]:
    rank, inner, rows, columns = d.random.randint(2, 5), d.size(64), d.size(33), d.size(48)
    lead = [d.pick(1, 2, 3) for _ in range(rank - 2)]
    x = d.x(*lead, rows, inner)
    if d.random.random() < 0.5:
        return [d.op("MatMul", x, d.w(inner, columns))]
    other = [size if d.random.random() < 0.7 else 1 for size in lead]
    return [d.op("MatMul", x, d.x(*other[d.random.randint(0, len(other)) :], inner, columns))]


def _gemm(d: Draft) -> list[str]:
    inner, rows, columns, flipped = d.size(64), d.pick(1, 4, 7), d.size(48), d.random.randint(0, 1)
    x = d.x(rows, inner)
    inputs = [x, d.w(*((columns, inner) if flipped else (inner, columns)))]
    if d.random.random() < 0.8:
        inputs.append(d.w(columns, scale=0.2))
    settings = {"alpha": 0.7, "beta": 1.3} if d.random.random() < 0.2 else {}
    return [d.op("Gemm", *inputs, transB=flipped, **settings)]


def _einsum(d: Draft) -> list[str]:
    sizes = {letter: d.pick(2, 3, 5, 8, 12) for letter in "bhqkdijc"} | {"b": d.pick(1, 2)}
    equation = d.pick(
        *("bhqd,bhkd->bhqk", "bqhd,bkhd->bhqk", "bhqk,bkhd->bqhd", "bij,bjk->bik", "bid,bjd->bij", "ij,jk->ik"),
        *("bchk,bck->bch", "bdk,dkh->bkh", "bqd,hdk->bhqk", "bhqd,hkd->bhqk", "bijc,bjkc->bikc", "bqd,kd->bqk"),
    )
    left, _, right = equation.partition("->")[0].partition(",")
    two = [sizes[letter] for letter in right]
    second = d.w(*two) if "b" not in right and d.random.random() < 0.6 else d.x(*two)
    return [d.op("Einsum", d.x(*(sizes[letter] for letter in left)), second, equation=equation)]


def _along(op: str, low: int = 1) -> Callable[[Draft], list[str]]:
    def make(d: Draft) -> list[str]:
        shape = d.shape(max(low, 1))
        axis = d.pick(-1, -1, d.random.randint(-len(shape), len(shape) - 1))
        if op == "CumSum":
            flags = {"exclusive": d.random.randint(0, 1), "reverse": d.random.randint(0, 1)}
            return [d.op(op, d.x(*shape), d.keep(np.array(axis, np.int64)), **flags)]
        settings = {"p": d.pick(2, 2, 1)} if op == "LpNormalization" else {}
        return [d.op(op, d.x(*shape), axis=axis, **settings)]

    return make


def _reduction(op: str) -> Callable[[Draft], list[str]]:
    def make(d: Draft) -> list[str]:
        shape = d.shape(1 if d.random.random() < 0.1 else 2)
        axes = sorted(d.random.sample(range(len(shape)), d.random.randint(1, max(1, len(shape) - 1))))
        axes = [axis - len(shape) if d.random.random() < 0.5 else axis for axis in axes]
        like = "positive" if op in ("ReduceLogSum", "ReduceProd") else ""
        return [d.reduce(op, d.x(*shape, like=like), axes, d.random.randint(0, 1))]

    return make


def _norm(op: str) -> Callable[[Draft], list[str]]:
    def make(d: Draft) -> list[str]:
        if op == "LayerNormalization":
            shape = d.shape(2, 5, 64)
            axis = -1 if d.random.random() < 0.75 else d.random.randint(-len(shape) + 1, -1)
            inner = shape[axis:]
            inputs = [d.x(*shape), d.between(0.5, 1.5, *inner)]
            if d.random.random() < 0.75:
                inputs.append(d.between(-0.4, 0.4, *inner))
            return [d.op(op, *inputs, axis=axis, epsilon=d.pick(1e-5, 1e-6, 1e-12))]
        shape = d.shape(3, 5)
        if op == "GroupNormalization":
            group = d.pick(1, 2, 4)
            shape[1] = group * d.pick(2, 3, 4)
            d.opset = 21
            inputs = [d.x(*shape), d.between(0.5, 1.5, shape[1]), d.between(-0.4, 0.4, shape[1])]
            return [d.op(op, *inputs, num_groups=group)]
        inputs = [d.x(*shape), d.between(0.5, 1.5, shape[1]), d.between(-0.4, 0.4, shape[1])]
        if op == "BatchNormalization":
            inputs += [d.between(-0.3, 0.3, shape[1]), d.between(0.3, 1.5, shape[1])]
        return [d.op(op, *inputs)]

    return make


def _plain(op: str, like: str = "") -> Callable[[Draft], list[str]]:
    def make(d: Draft) -> list[str]:
        settings: dict[str, Any] = {}
        if op in ("Elu", "LeakyRelu", "ThresholdedRelu") and d.random.random() < 0.6:
            settings["alpha"] = round(d.random.uniform(0.02, 1.3), 3)
        if op == "HardSigmoid":
            settings = d.pick({}, {"alpha": 1 / 6}, {"alpha": 0.2, "beta": 0.4})
        if op == "Gelu":
            d.opset, settings = 20, d.pick({}, {"approximate": "tanh"})
        if op == "Mish":
            d.opset = max(d.opset, 18)
        return [d.op(op, d.x(*d.shape(1), like=like), **settings)]

    return make


def _binary(op: str) -> Callable[[Draft], list[str]]:
    def make(d: Draft) -> list[str]:
        one = d.shape(1)
        two = [size if d.random.random() < 0.6 else 1 for size in one][d.random.randint(0, len(one) - 1) :]
        like = "positive" if op == "Div" else ""
        second = d.x(*two, like=like) if d.random.random() < 0.55 else d.between(0.3, 2.5, *two)
        first = d.x(*one)
        swapped = op in ("Sub", "Add", "Mul", "Max", "Min") and d.random.random() < 0.3
        return [d.op(op, *((second, first) if swapped else (first, second)))]

    return make


def _pow(d: Draft) -> list[str]:
    power = d.pick(2.0, 2.0, 3.0, 0.5, 1.5, -0.5, -1.0)
    like = "positive" if power not in (2.0, 3.0) else ""
    return [d.op("Pow", d.x(*d.shape(1), like=like), d.keep(np.float32(power)))]


def _mod(d: Draft) -> list[str]:
    other = d.keep(np.float32(d.pick(1.0, 0.5, 2.0, 1.7)))
    return [d.op("Mod", d.x(*d.shape(1), like=d.pick("", "positive")), other, fmod=1)]


def _prelu(d: Draft) -> list[str]:
    shape = d.shape(2)
    slope = d.pick([1], [shape[1], *[1] * (len(shape) - 2)], [shape[-1]])
    return [d.op("PRelu", d.x(*shape), d.between(0.05, 0.6, *slope))]


def _clip(d: Draft) -> list[str]:
    ends = (d.pick(-1.0, 0.0, -0.3), d.pick(0.5, 1.0, 6.0))
    ends_kept = [d.keep(np.float32(end)) for end in ends]
    return [d.op("Clip", d.x(*d.shape(1)), *d.pick(ends_kept, ends_kept, [ends_kept[0]], ["", ends_kept[1]]))]


def _resize(d: Draft) -> list[str]:
    sides = d.pick(1, 2, 2, 2, 2, 2, 3)
    shape = [1, d.pick(1, 3, 4, 8, 16), *[d.pick(4, 5, 7, 8, 11, 16) for _ in range(sides)]]
    mode = d.pick("nearest", "linear", "linear", "cubic")
    settings: dict[str, Any] = {"mode": mode}
    settings["coordinate_transformation_mode"] = d.pick(
        "half_pixel", "half_pixel", "asymmetric", "align_corners", "pytorch_half_pixel"
    )
    if mode == "nearest":
        settings["nearest_mode"] = d.pick("floor", "floor", "round_prefer_floor", "round_prefer_ceil", "ceil")
    if mode == "cubic":
        settings["cubic_coeff_a"] = d.pick(-0.75, -0.5)
    x = d.x(*shape)
    if d.random.random() < 0.5:
        sizes = [*shape[:2], *[max(2, size * d.pick(1, 2, 3, 4) // d.pick(1, 1, 2)) for size in shape[2:]]]
        return [d.op("Resize", x, "", "", d.keep(_ints(*sizes)), **settings)]
    factors = [1.0, 1.0, *[d.pick(2.0, 2.0, 0.5, 1.5, 3.0)] * sides]
    return [d.op("Resize", x, "", d.keep(np.array(factors, np.float32)), **settings)]


def _gather(d: Draft) -> list[str]:
    shape = d.shape(1, 4)
    axis = d.random.randint(-len(shape), len(shape) - 1)
    below, wanted = shape[axis], d.pick([], [1], [3], [7], [2, 3])
    if d.random.random() < 0.4:
        where = d.places(*(wanted or [2]), below=below, dtype=d.pick("int64", "int32"))
    else:
        where = d.keep(d.numbers.integers(-below if d.random.random() < 0.3 else 0, below, wanted))
    return [d.op("Gather", d.x(*shape), where, axis=axis)]


def _gather_elements(d: Draft) -> list[str]:
    shape = d.shape(2, 4)
    axis = d.random.randint(-len(shape), len(shape) - 1)
    wanted = list(shape)
    wanted[axis] = d.random.randint(1, shape[axis])
    dynamic = d.random.random() < 0.4
    where = d.places(*wanted, below=shape[axis]) if dynamic else d.keep(d.numbers.integers(0, shape[axis], wanted))
    return [d.op("GatherElements", d.x(*shape), where, axis=axis)]


def _gather_nd(d: Draft) -> list[str]:
    shape = d.shape(2, 4)
    batch = d.pick(0, 0, 1)
    depth = d.random.randint(1, len(shape) - batch)
    lead = [*shape[:batch], d.pick(2, 5)]
    points = np.stack([d.numbers.integers(0, shape[batch + axis], lead) for axis in range(depth)], -1)
    return [d.op("GatherND", d.x(*shape), d.keep(points), batch_dims=batch)]


def _scatter_nd(d: Draft) -> list[str]:
    shape = d.shape(2, 4)
    depth = d.random.randint(1, min(2, len(shape)))
    every = np.stack(np.meshgrid(*[np.arange(size) for size in shape[:depth]], indexing="ij"), -1).reshape(-1, depth)
    points = every[d.numbers.permutation(len(every))[: d.random.randint(1, min(4, len(every)))]]
    settings = {"reduction": "add"} if d.random.random() < 0.2 else {}
    news = d.x(len(points), *shape[depth:])
    return [d.op("ScatterND", d.x(*shape), d.keep(points), news, **settings)]


def _scatter_elements(d: Draft) -> list[str]:
    shape = d.shape(2, 4)
    axis = d.random.randint(0, len(shape) - 1)
    count = d.random.randint(1, shape[axis])
    wanted = list(shape)
    wanted[axis] = count
    places = np.argsort(d.numbers.random(shape), axis)
    places = np.take(places, range(count), axis)
    settings = {"reduction": "add"} if d.random.random() < 0.2 else {}
    return [d.op("ScatterElements", d.x(*shape), d.keep(places), d.x(*wanted), axis=axis, **settings)]


def _blocks(op: str) -> Callable[[Draft], list[str]]:
    def make(d: Draft) -> list[str]:
        size = d.pick(2, 2, 3, 4)
        if op == "DepthToSpace":
            shape = [d.pick(1, 1, 2), size * size * d.pick(1, 2, 3, 4, 8), d.pick(3, 5, 8, 12), d.pick(4, 7, 9, 16, 31)]
            return [d.op(op, d.x(*shape), blocksize=size, mode=d.pick("DCR", "CRD"))]
        shape = [d.pick(1, 1, 2), d.pick(1, 3, 4, 8), size * d.pick(1, 3, 4), size * d.pick(2, 5, 7)]
        return [d.op(op, d.x(*shape), blocksize=size)]

    return make


def _where(d: Draft) -> list[str]:
    shape = d.shape(1)
    how, x = d.random.random(), d.x(*shape)
    asked = d.op(d.pick("Greater", "Less", "GreaterOrEqual"), x, d.keep(np.float32(d.pick(0.0, 0.25, -0.4))))
    if d.random.random() < 0.3:
        asked = d.op("Not", asked)
    other = d.keep(np.float32(d.pick(0.0, -1.0, 1.5))) if how < 0.5 else d.x(*shape) if how < 0.75 else d.w(shape[-1])
    return [d.op("Where", asked, *d.pick((x, other), (other, x)))]


def _top_k(d: Draft) -> list[str]:
    shape = d.shape(1, 4)
    axis = d.pick(-1, -1, d.random.randint(-len(shape), len(shape) - 1))
    count, largest = d.random.randint(1, min(8, shape[axis])), d.pick(1, 1, 1, 0)
    values, places = d.ops("TopK", d.x(*shape), d.keep(_ints(count)), outputs=2, axis=axis, largest=largest)
    return [values, places] if d.random.random() < 0.5 else [values]


def _arg(op: str) -> Callable[[Draft], list[str]]:
    def make(d: Draft) -> list[str]:
        shape = d.shape(1, 5)
        axis = d.random.randint(-len(shape), len(shape) - 1)
        return [d.op(op, d.x(*shape), axis=axis, keepdims=d.random.randint(0, 1))]

    return make


def _pad(d: Draft) -> list[str]:
    shape = d.shape(2, 5, 17)
    mode = d.pick("constant", "constant", "reflect", "edge")
    begin = [0 if axis == 0 else d.random.randint(0, min(2, size - 1)) for axis, size in enumerate(shape)]
    end = [0 if axis == 0 else d.random.randint(0, min(3, size - 1)) for axis, size in enumerate(shape)]
    value = [d.keep(np.float32(d.pick(0.0, 0.0, 0.6, -1.2)))] if mode == "constant" else []
    return [d.op("Pad", d.x(*shape), d.keep(_ints(*begin, *end)), *value, mode=mode)]


def _slice(d: Draft) -> list[str]:
    shape = d.shape(1)
    axes = sorted(d.random.sample(range(len(shape)), d.random.randint(1, len(shape))))
    steps = [d.pick(1, 2, 3, -1, -2) for _ in axes]
    starts = [shape[a] - 1 if s < 0 else d.random.randint(0, shape[a] // 2) for a, s in zip(axes, steps, strict=True)]
    ends = [-(1 << 40) if step < 0 else d.pick(shape[a], 1 << 40) for a, step in zip(axes, steps, strict=True)]
    return [d.op("Slice", d.x(*shape), *(d.keep(_ints(*part)) for part in (starts, ends, axes, steps)))]


def _split(d: Draft) -> list[str]:
    shape = d.shape(1)
    axis = d.random.randint(-len(shape), len(shape) - 1)
    parts = [d.random.randint(1, 5) for _ in range(d.pick(2, 3))]
    if d.random.random() < 0.4:
        parts = [parts[0]] * len(parts)
    shape[axis] = sum(parts)
    return d.ops("Split", d.x(*shape), d.keep(_ints(*parts)), outputs=len(parts), axis=axis)


def _concat(d: Draft) -> list[str]:
    shape = d.shape(1)
    axis = d.random.randint(-len(shape), len(shape) - 1)
    parts = list[str]()
    for _ in range(d.pick(2, 2, 3, 4)):
        shape[axis] = d.random.randint(1, 9)
        parts.append(d.x(*shape) if d.random.random() < 0.8 or not parts else d.w(*shape))
    return [d.op("Concat", *parts, axis=axis)]


def _cast(d: Draft) -> list[str]:
    x, to = d.x(*d.shape(1)), d.pick(TensorProto.INT32, TensorProto.INT64, TensorProto.BOOL, TensorProto.UINT8)
    if to == TensorProto.UINT8:
        x = d.op("Clip", x, d.keep(np.float32(0)), d.keep(np.float32(200)))
    return [d.op("Cast", d.op("Cast", x, to=to), to=TensorProto.FLOAT)]


def _expand(d: Draft) -> list[str]:
    wanted = d.shape(2)
    shape = [size if d.random.random() < 0.5 else 1 for size in wanted][d.random.randint(0, len(wanted) - 1) :]
    return [d.op("Expand", d.x(*shape), d.keep(_ints(*wanted)))]


def _tile(d: Draft) -> list[str]:
    shape = d.shape(1, 4, 16)
    return [d.op("Tile", d.x(*shape), d.keep(_ints(*(d.pick(1, 1, 2, 3) for _ in shape))))]


def _grid_sample(d: Draft) -> list[str]:
    d.opset, height, width = 17, d.pick(4, 7, 9), d.pick(5, 8, 12)
    x, grid = d.x(1, d.pick(1, 3, 8), height, width), d.x(1, d.pick(3, 6), d.pick(4, 7), 2, like="unit")
    mode, padding = d.pick("bilinear", "bilinear", "nearest"), d.pick("zeros", "border")
    return [d.op("GridSample", x, grid, mode=mode, padding_mode=padding, align_corners=d.random.randint(0, 1))]


def _pool(op: str) -> Callable[[Draft], list[str]]:
    def make(d: Draft) -> list[str]:
        sides = d.pick(1, 2, 2, 2, 3)
        x = d.x(1, d.pick(3, 8, 16), *_map(d, sides))
        if op.startswith("Global"):
            return [d.op(op, x)]
        settings = _windows(d, sides, dilated=False)
        if "pads" in settings:
            half = [max(0, size // 2) for size in settings["kernel_shape"]] * 2
            settings["pads"] = [min(pad, most) for pad, most in zip(settings["pads"], half, strict=True)]
            settings["ceil_mode"] = d.pick(0, 0, 1)
        if op == "AveragePool":
            settings["count_include_pad"] = d.random.randint(0, 1)
        return [d.op(op, x, **settings)]

    return make


def _reshape(d: Draft) -> list[str]:
    shape = d.shape(2)
    wanted = d.pick([-1], [0, -1], [shape[0], -1, shape[-1]], [1, *shape[::-1], 1])
    return [d.op("Reshape", d.x(*shape), d.keep(_ints(*wanted)))]


def _transpose(d: Draft) -> list[str]:
    shape = d.shape(2)
    return [d.op("Transpose", d.x(*shape), perm=d.random.sample(range(len(shape)), len(shape)))]


def _flatten(d: Draft) -> list[str]:
    shape = d.shape(2)
    return [d.op("Flatten", d.x(*shape), axis=d.random.randint(0, len(shape)))]


def _equal(d: Draft) -> list[str]:
    shape = d.shape(2, 4)
    where, wanted = d.places(*shape, below=4, dtype="int32"), d.keep(np.array(d.random.randint(0, 3), np.int32))
    return [d.op("Where", d.op("Equal", where, wanted), d.x(*shape), d.keep(np.float32(0.0)))]


def _recurrent(op: str) -> Callable[[Draft], list[str]]:
    def make(d: Draft) -> list[str]:
        gates, hidden, given, steps = {"LSTM": 4, "GRU": 3}[op], d.pick(4, 8, 16), d.pick(3, 8, 12), d.pick(1, 4, 6)
        ways = d.pick(1, 1, 2)
        inputs = [d.x(steps, d.pick(1, 1, 2), given), d.w(ways, gates * hidden, given, scale=0.4)]
        inputs += [d.w(ways, gates * hidden, hidden, scale=0.4), d.w(ways, 2 * gates * hidden, scale=0.1)]
        settings = {"direction": "bidirectional"} if ways == 2 else {}
        return [d.op(op, *inputs, hidden_size=hidden, **settings)]

    return make


def _trilu(d: Draft) -> list[str]:
    return [d.op("Trilu", d.x(*d.shape(2, 4)), upper=d.random.randint(0, 1))]


OPERATORS: Mapping[str, tuple[int, Callable[[Draft], list[str]]]] = {
    "Conv": (6, _conv),
    "ConvTranspose": (4, _conv_transpose),
    "MatMul": (4, _matmul),
    "Gemm": (2, _gemm),
    "Einsum": (3, _einsum),
    "Resize": (5, _resize),
    "Gather": (3, _gather),
    "GatherElements": (2, _gather_elements),
    "GatherND": (2, _gather_nd),
    "ScatterND": (2, _scatter_nd),
    "ScatterElements": (2, _scatter_elements),
    **{op: (2, _blocks(op)) for op in ("DepthToSpace", "SpaceToDepth")},
    "Softmax": (3, _along("Softmax")),
    "LogSoftmax": (1, _along("LogSoftmax")),
    "CumSum": (2, _along("CumSum")),
    "LpNormalization": (1, _along("LpNormalization", 2)),
    **{f"Reduce{name}": (2, _reduction(f"Reduce{name}")) for name in ("Mean", "Sum", "Max", "L2")},
    **{f"Reduce{name}": (1, _reduction(f"Reduce{name}")) for name in ("Min", "L1", "Prod", "SumSquare", "LogSumExp")},
    **{f"{name}Normalization": (2, _norm(f"{name}Normalization")) for name in ("Layer", "Instance", "Group", "Batch")},
    **{op: (1, _plain(op)) for op in ("Abs", "Neg", "Relu", "Sigmoid", "Tanh", "Erf", "HardSigmoid", "Elu", "Mish")},
    **{op: (1, _plain(op)) for op in ("LeakyRelu", "Selu", "Celu", "Sin", "Cos", "Floor", "Ceil", "Round", "Sign")},
    **{op: (1, _plain(op)) for op in ("Softsign", "ThresholdedRelu", "Exp")},
    **{op: (2, _plain(op)) for op in ("Softplus", "Gelu", "HardSwish")},
    **{op: (1, _plain(op, "positive")) for op in ("Sqrt", "Log", "Reciprocal")},
    **{op: (1, _binary(op)) for op in ("Add", "Sub", "Mul", "Div", "Max", "Min")},
    "Pow": (2, _pow),
    "Mod": (2, _mod),
    "PRelu": (2, _prelu),
    "Clip": (1, _clip),
    "Where": (2, _where),
    "TopK": (2, _top_k),
    "ArgMax": (2, _arg("ArgMax")),
    "ArgMin": (1, _arg("ArgMin")),
    "Pad": (3, _pad),
    "Slice": (3, _slice),
    "Split": (2, _split),
    "Concat": (3, _concat),
    "Cast": (2, _cast),
    "Expand": (2, _expand),
    "Tile": (1, _tile),
    "GridSample": (2, _grid_sample),
    "Equal": (1, _equal),
    "Trilu": (1, _trilu),
    "AveragePool": (2, _pool("AveragePool")),
    "MaxPool": (2, _pool("MaxPool")),
    "GlobalAveragePool": (1, _pool("GlobalAveragePool")),
    "GlobalMaxPool": (1, _pool("GlobalMaxPool")),
    "Reshape": (1, _reshape),
    "Transpose": (2, _transpose),
    "Flatten": (1, _flatten),
    "LSTM": (1, _recurrent("LSTM")),
    "GRU": (1, _recurrent("GRU")),
}
"""How often an operator is drawn, and who draws it."""


def _behind(d: Draft, outputs: list[str]) -> list[str]:
    """Another operator after the first output, sometimes."""
    if 0.22 <= d.around < 0.45:
        after = d.pick("Relu", "Sigmoid", "Mul", "Add", "Transpose")
        more = [d.keep(np.float32(d.pick(0.5, 1.7)))] if after in ("Mul", "Add") else []
        return [d.op(after, outputs[0], *more), *outputs[1:]]
    return outputs


def drawn(seed: int, number: int, run: Callable[[onnx.ModelProto, Sequence[Any]], list[dict[str, Any]]]) -> Drawn:
    """One model. ``run`` gives what a float model computes. Raises what ONNX or the runtime says of none."""
    chance = Random(f"common {seed} {number}")
    names = list(OPERATORS)
    op = chance.choices(names, [OPERATORS[name][0] for name in names])[0]
    kind = chance.choice(KINDS)
    d = Draft(f"{seed} {number} {op}")
    outputs = _behind(d, OPERATORS[op][1](d))
    model = _model(d, outputs)
    feeds = [{name: values[at] for name, values in d.inputs.items()} for at in range(2 * SAMPLES)]
    # Grids hold all inputs: none cuts off what is judged.
    given = model if kind == "fp16" else _with_pairs(d, model, run(_all_out(model), feeds), feeds, kind)
    return Drawn(
        name=f"{seed}-{number:03} {op} {kind}",
        op=op,
        kind=kind,
        nodes=[node.op_type for node in d.nodes],
        float_model=model,
        model=given,
        calibration=feeds[:SAMPLES],
        truth=feeds[SAMPLES:],
    )


def _model(d: Draft, outputs: Sequence[str]) -> onnx.ModelProto:
    given = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(values[0].dtype), values[0].shape)
        for name, values in d.inputs.items()
    ]
    used = {name for node in d.nodes for name in node.input}
    stored = [numpy_helper.from_array(np.asarray(value), name) for name, value in d.stored.items() if name in used]
    made = [onnx.ValueInfoProto(name=name) for name in outputs]
    graph = helper.make_graph(d.nodes, "drawn", given, made, stored)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", d.opset)])
    model.ir_version = 10 if d.opset >= 21 else 8
    model = onnx.shape_inference.infer_shapes(model, strict_mode=True)
    onnx.checker.check_model(model)
    return model


def _all_out(model: onnx.ModelProto) -> onnx.ModelProto:
    every, known = onnx.ModelProto(), {value.name for value in model.graph.output}
    every.CopyFrom(model)
    every.graph.output.extend(value for value in model.graph.value_info if value.name not in known)
    return every


def _grid(low: float, high: float, kind: str) -> tuple[np.float32, int, Any]:
    """A grid that holds zero: its step, its zero point, its type."""
    low, high = min(low, 0.0), max(high, 0.0)
    most, dtype = (255, np.uint8) if kind == "w8a8" else (65535, np.uint16)
    step = np.float32(max(high - low, 1e-6) / most)
    return step, int(np.clip(round(-low / float(step)), 0, most)), dtype


class _Pairs:
    """Puts pairs into a graph; ``ranges`` are those of its computed tensors."""

    def __init__(self, d: Draft, kind: str, ranges: Mapping[str, tuple[float, float]]) -> None:
        self.d, self.kind, self.ranges = d, kind, dict(ranges)
        self.domain = "com.microsoft" if kind == "w8a16" and d.opset < 21 else ""
        self.nodes: list[Any] = []
        self.stored: dict[str, Any] = {}
        self.known: dict[str, str] = {}

    def pair(self, name: str, step: Any, zero: Any, dtype: Any, made: str = "") -> str:
        made = made or f"{name}_dq"
        self.stored[f"{name}_scale"], self.stored[f"{name}_zero"] = np.asarray(step), np.asarray(zero, dtype)
        grid = [f"{name}_scale", f"{name}_zero"]
        self.nodes.append(helper.make_node("QuantizeLinear", [name, *grid], [f"{name}_q"], domain=self.domain))
        self.nodes.append(helper.make_node("DequantizeLinear", [f"{name}_q", *grid], [made], domain=self.domain))
        return made

    def activation(self, name: str, made: str = "") -> str:
        return self.pair(name, *_grid(*self.ranges[name], self.kind), made)

    def whole(self, name: str, integers: Any, scale: Any, axis: int | None = None) -> str:
        """A stored integer tensor behind a DequantizeLinear."""
        dtype = integers.dtype
        # Only 16 bits need the other domain below opset 21.
        domain = self.domain if dtype == np.uint16 else ""
        self.stored[f"{name}_i"], self.stored[f"{name}_scale"] = integers, np.asarray(scale, np.float32)
        self.stored[f"{name}_zero"] = np.zeros(np.shape(scale), dtype)
        settings: dict[str, Any] = {} if axis is None else {"axis": axis}
        inputs = [f"{name}_i", f"{name}_scale", f"{name}_zero"]
        self.nodes.append(helper.make_node("DequantizeLinear", inputs, [f"{name}_dq"], domain=domain, **settings))
        return f"{name}_dq"

    def weight(self, name: str, value: Any, axis: int | None) -> str:
        per = np.abs(value).max(tuple(a for a in range(value.ndim) if a != axis)) if axis is not None else None
        scale = np.maximum(np.abs(value).max() if per is None else per, 1e-6).astype(np.float32) / 127
        along = scale if per is None else scale.reshape([-1 if a == axis else 1 for a in range(value.ndim)])
        return self.whole(name, np.clip(np.round(value / along), -127, 127).astype(np.int8), scale, axis)

    def constant(self, name: str, value: Any) -> str:
        self.ranges[name] = (float(value.min()), float(value.max()))
        step, zero, dtype = _grid(*self.ranges[name], self.kind)
        most = np.iinfo(dtype).max
        made = self.whole(name, np.clip(np.round(value / step) + zero, 0, most).astype(dtype), step)
        self.stored[f"{name}_zero"] = np.asarray(zero, dtype)
        return made


_CHANNELS = {"Conv": 0, "ConvTranspose": 1}


def _with_pairs(
    d: Draft, model: onnx.ModelProto, runs: Sequence[Mapping[str, Any]], feeds: Sequence[Any], kind: str
) -> onnx.ModelProto:
    ranges = {}
    for name in runs[0].keys() | feeds[0].keys():
        values = [one[name] for one in (feeds if name in feeds[0] else runs)]
        if values[0].dtype == np.float32:
            ranges[name] = (min(float(v.min()) for v in values), max(float(v.max()) for v in values))
    shared = d.random.random() < 0.8
    for node in model.graph.node:  # what is only moved has the grid of what it was
        if shared and node.op_type in _MOVING:
            ranges |= {name: ranges[node.input[0]] for name in node.output if name in ranges}
    stored = {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
    readers = [name for node in model.graph.node for name in node.input]
    outputs = {value.name for value in model.graph.output}
    fused, by_channel = d.random.random() < 0.5, d.random.random() < 0.6
    pairs = _Pairs(d, kind, ranges)
    now = {name: pairs.activation(name) for name in d.inputs if name in ranges}
    nodes = list(model.graph.node)
    for at, node in enumerate(nodes):
        given = []
        for place, name in enumerate(node.input):
            value = stored.get(name)
            if value is None or value.dtype != np.float32 or place in _LEFT_FLOAT.get(node.op_type, ()):
                given.append(now.get(name, name))
                if value is not None:
                    pairs.stored[name] = value
            elif node.op_type in _LAYERS and place == 1:
                axis = _CHANNELS.get(node.op_type) if by_channel else None
                axis = (
                    None
                    if node.op_type == "ConvTranspose" and any(a.i > 1 for a in node.attribute if a.name == "group")
                    else axis
                )
                given.append(pairs.weight(name, value, axis))
            elif place == 2 and node.op_type in (*_LAYERS, "LayerNormalization", "InstanceNormalization"):
                first, second = (pairs.stored[f"{one.removesuffix('_dq')}_scale"] for one in given[:2])
                scale = (first * second).astype(np.float32)
                whole = np.clip(np.round(value / scale), -(2**31) + 1, 2**31 - 1).astype(np.int32)
                given.append(pairs.whole(name, whole, scale, 0 if np.ndim(scale) else None))
            else:
                given.append(pairs.constant(name, value))
        follower = nodes[at + 1].op_type if at + 1 < len(nodes) else ""
        made = []
        for name in node.output:
            inside = fused and node.op_type in _LAYERS and follower in ("Relu", "Clip") and readers.count(name) == 1
            made.append(f"{name}_raw" if name in outputs and name in ranges else name)
            if name in ranges and not inside and name not in outputs:
                now[name] = f"{name}_dq"
        pairs.nodes.append(helper.make_node(node.op_type, given, made, name=node.name, domain=node.domain))
        pairs.nodes[-1].attribute.extend(node.attribute)
        for name, raw in zip(node.output, made, strict=True):
            if raw != name:
                pairs.ranges[raw] = ranges[name]
                pairs.activation(raw, name)
            elif name in now:
                pairs.activation(name)
    initial = [numpy_helper.from_array(np.asarray(value), name) for name, value in pairs.stored.items()]
    graph = helper.make_graph(pairs.nodes, "drawn", model.graph.input, model.graph.output, initial)
    opsets = [helper.make_opsetid("", d.opset), *([helper.make_opsetid("com.microsoft", 1)] if pairs.domain else [])]
    made_model = helper.make_model(graph, opset_imports=opsets)
    made_model.ir_version = model.ir_version
    return made_model
