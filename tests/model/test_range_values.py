"""Bounds number by number, where soundness alone would let them be as loose as they like: operators, and operands that
depend on each other (quotients, weights that add up to one, gates)."""

import math
from contextlib import suppress
from typing import Any

import numpy as np
import onnx.parser
import pytest

from deploykit.accuracy.simulate.sessions import Session
from deploykit.errors import InputError
from deploykit.model.graph import GraphCopy
from deploykit.model.ranges import Interval, graph_bounds
from tables import each_row

STORED: dict[str, Any] = {
    "half": np.float32(0.5),
    "two": np.float32(2),
    "three": np.float32(3),
    "four": np.float32(4),
    "minus": np.float32(-1),
    "square": np.float32(2.5),
    "nothing": np.float32(0),
    "u8": np.uint8(3),
    "i8": np.int8(-2),
    "u16": np.uint16(0),
    "one": np.float32(1),
    "root2": np.float32(2**0.5),
    "mhalf": np.float32(-0.5),
    "last": np.array([-1]),
    "middle": np.array([1]),
    "axis1": np.int64(1),
    "axes": np.array([1, 2], np.int64),
    "w4": np.array([[1, -2], [3, 4], [0, 1], [-1, 0]], np.float32),
    "left": np.array([[1, -2, 3], [0, 0, -1]], np.float32),
    "bias2": np.array([10, 20], np.float32),
    "kernel": np.array([[[1, -2], [3, 0], [0, 4]], [[-1, 0], [0, 0], [0, 0]]], np.float32),
    "grouped": np.array([[[1, -2]], [[3, 4]], [[5, 6]], [[-7, 8]]], np.float32),
    "scale3": np.array([1, -2, 3], np.float32),
    "shift3": np.array([0, 1, 2], np.float32),
    "mean3": np.array([1, 2, 3], np.float32),
    "var3": np.array([1, 4, 9], np.float32),
    "scale4": np.array([1, 2, 3, -4], np.float32),
    "shift4": np.array([0, 0, 10, 0], np.float32),
}
SHAPES = {"x": "2,3,4", "z": "2,3,4", "g": "2,4,4", "n": "2,3,4", "m": "3,4", "r": "1,4", "p": "2,3,3"}
TYPES = {"n": "int32"}


def model_of_y(body: str, opset: int = 17) -> onnx.ModelProto:
    """A graph of the inputs and stored tensors above."""
    inputs = ", ".join(f"{TYPES.get(name, 'float')}[{shape}] {name}" for name, shape in SHAPES.items())
    text = f'<ir_version: 8, opset_import: ["" : {opset}]> g ({inputs}) => (float y) {{ {body} }}'
    model = onnx.parser.parse_model(text)
    model.graph.initializer.extend(onnx.numpy_helper.from_array(np.asarray(v), k) for k, v in STORED.items())
    return model


def bound(body: str, opset: int = 17, **ends: Interval) -> Interval:
    """The bounds of ``y`` from those of the inputs; what nobody bounds can be anything."""
    return graph_bounds(GraphCopy(model_of_y(body, opset)), ends)["y"]


def computed(body: str, **ends: Interval) -> np.ndarray:
    """What ONNX Runtime computes of random inputs within their bounds, then of ends alone."""
    session, rng, found = Session(model_of_y(body)), np.random.default_rng(0), []
    shapes = {name: tuple(map(int, shape.split(","))) for name, shape in SHAPES.items()}
    for draw in (rng.uniform, lambda low, high, shape: rng.choice((low, high), shape)):
        drawn = {name: draw(*ends.get(name, (-1, 1)), shape) for name, shape in shapes.items()}
        found.append(session.run({name: value.astype(TYPES.get(name, "f4")) for name, value in drawn.items()})["y"])
    return np.concatenate(found, axis=None)


INF = math.inf
ALL = (-INF, INF)
ENDS: dict[str, Any] = {"x": (-3, 2), "z": (0, 1), "g": (-2, 2), "n": (-7, 8), "m": (-3, 2), "r": (-3, 2)}
NODES = [
    ("Abs (x)", (0, 3)),
    ("Add (x, z)", (-3, 3)),
    ("Sub (x, z)", (-4, 2)),
    ("Sub (x, x)", (0, 0)),
    ("Mul (x, z)", (-3, 2)),
    ("Mul (x, x)", (0, 9)),
    ("Div (x, four)", (-0.75, 0.5)),
    ("Div (x, minus)", (-2, 3)),
    ("Div (x, z)", ALL),
    ("Div (four, x)", ALL),
    ("Neg (x)", (-2, 3)),
    ("Reciprocal (x)", ALL),
    ("Reciprocal (z)", (1, INF)),
    ("Max (x, z)", (0, 2)),
    ("Min (x, z)", (-3, 1)),
    ("Sum (x, z, z)", (-3, 4)),
    ("Mean (x, z)", (-1.5, 1.5)),
    ("Relu (x)", (0, 2)),
    ("LeakyRelu <alpha = 0.5> (x)", (-1.5, 2)),
    ("LeakyRelu (x)", (-0.03, 2)),
    ("LeakyRelu <alpha = -1.0> (x)", (0, 3)),
    ("PRelu (x, half)", (-1.5, 2)),
    ("PRelu (x, minus)", (0, 5)),
    ("Elu (x)", (math.expm1(-3), 2)),
    ("Elu <alpha = 2.0> (x)", (2 * math.expm1(-3), 2)),
    ("Elu <alpha = -2.0> (x)", ALL),
    ("Selu <alpha = 1.0, gamma = 2.0> (x)", (2 * math.expm1(-3), 4)),
    ("Selu (x)", (1.05070102 * 1.67326319 * math.expm1(-3), 2 * 1.05070102)),
    ("Selu <gamma = -1.0> (x)", ALL),
    ("HardSigmoid (x)", (0, 0.9)),
    ("HardSwish (x)", (-0.375, 2)),
    ("HardSwish (z)", (0, 1)),
    ("Softplus (x)", (math.log1p(math.exp(-3)), math.log1p(math.exp(2)))),
    ("Softsign (x)", (-0.75, 2 / 3)),
    ("Sign (x)", (-1, 1)),
    ("Sign (z)", (0, 1)),
    ("Sigmoid (x)", (1 / (1 + math.exp(3)), 1 / (1 + math.exp(-2)))),
    ("Sqrt (x)", (0, math.sqrt(2))),
    ("Log (x)", (-INF, math.log(2))),
    ("Exp (x)", (math.exp(-3), math.exp(2))),
    ("Sin (x)", (-1, 1)),
    ("Acos (x)", (0, math.pi)),
    ("Asin (x)", (-math.pi / 2, math.pi / 2)),
    ("LpNormalization (x)", (-1, 1)),
    ("Not (x)", (0, 1)),
    ("Pow (x, nothing)", (1, 1)),
    ("Pow (x, two)", (0, 9)),
    ("Pow (x, three)", (-27, 8)),
    ("Pow (x, minus)", ALL),
    ("Pow (x, half)", (0, math.sqrt(2))),
    ("Pow (x, square)", (0, 2**2.5)),
    ("Clip (x, minus, half)", (-1, 0.5)),
    ("Clip (x, , half)", (-3, 0.5)),
    ("Clip (x, minus)", (-1, 2)),
    ("LogSoftmax <axis = -1> (x)", (-5 - math.log(4), 0)),
    ("LogSoftmax <axis = 1> (x)", (-5 - math.log(3), 0)),
    ("Mod (x, four)", (0, 4)),
    ("Mod (x, minus)", (-1, 0)),
    ("Mod <fmod = 1> (x, four)", (-3, 2)),
    ("Mod <fmod = 1> (x, half)", (-0.5, 0.5)),
    ("QuantizeLinear (x, half, u8)", (0, 255)),
    ("QuantizeLinear (x, half, i8)", (-128, 127)),
    ("QuantizeLinear (x, half, u16)", (0, 65535)),
    ("DequantizeLinear (x, half)", (-1.5, 1)),
    ("DequantizeLinear (x, half, i8)", (-0.5, 2)),
    ("DequantizeLinear (x, z)", ALL),
    ("Cast <to = 9> (x)", (0, 1)),
    ("Cast <to = 2> (x)", (0, 255)),
    ("Cast <to = 8> (x)", ALL),
    ("Concat <axis = 1> (x, z)", (-3, 2)),
    ("Where (n, x, z)", (-3, 2)),
    ("Where (x, z, z)", (0, 1)),
    ("ArgMax <axis = 1> (x)", (0, 2)),
    ("ArgMax <axis = 3> (x)", (0, INF)),
    ("Hardmax (x)", (0, 1)),
    ("Shape (x)", (0, INF)),
    ("Trilu (four)", (0, 4)),
    ("Pad (x, axes, four)", (-3, 4)),
    ("Pad (four, axes)", (0, 4)),
    ('Pad <mode = "edge"> (x, axes, four)', (-3, 2)),
    ("ScatterElements (x, n, four)", (-3, 4)),
    ('ScatterElements <reduction = "add"> (x, n, four)', ALL),
    ("GridSample (four, z)", (0, 4)),
    ('GridSample <mode = "bicubic"> (x, z)', ALL),
    ("Resize (x, , axes)", (-3, 2)),
    ('Resize <mode = "cubic"> (x, , axes)', ALL),
    ('Resize <coordinate_transformation_mode = "tf_crop_and_resize"> (x, , axes)', ALL),
    ("OneHot (n, axis1, x)", (-3, 2)),
    ("Range (z, four, half)", (0, 4)),
    ("LSTM (x, z, z)", (-1, 1)),
    ("LSTM (x, z, z, , , x)", (-3, 2)),
    ('LSTM <activations = ["Relu"]> (x, z, z)', ALL),
    ("MatMul (x, w4)", (-19, 16)),
    ("MatMul (left, x)", (-16, 14)),
    ("Gemm <alpha = 2.0> (m, w4)", (-38, 32)),
    ("Gemm <beta = 2.0> (m, w4, bias2)", (1, 56)),
    ("Gemm <transB = 1> (m, left)", (-16, 14)),
    ("Gemm <transA = 1> (m, x)", (-18, 27)),
    ("Conv (x, kernel)", (-28, 22)),
    ("Conv (x, kernel, bias2)", (-18, 32)),
    ("Conv <pads = [0, 1]> (four, kernel)", (-8, 32)),
    ('Conv <auto_pad = "VALID"> (four, kernel)', (-4, 24)),
    ('Conv <auto_pad = "SAME_UPPER"> (four, kernel)', (-8, 32)),
    ("Conv (x, z)", ALL),
    ("ConvTranspose <group = 2> (g, grouped)", (-52, 52)),
    ("ConvTranspose (g, grouped)", (-72, 72)),
    ("ConvTranspose <group = 3> (g, grouped)", ALL),
    ("ReduceSum (x, axes)", (-36, 24)),
    ("ReduceSum (z, n)", (0, INF)),
    ("ReduceSum <noop_with_empty_axes = 1> (x)", ALL),
    ("ReduceSum <noop_with_empty_axes = 1> (x, axis1)", (-9, 6)),
    ("ReduceL1 <axes = [1]> (x)", (0, 9)),
    ("ReduceL2 <axes = [2]> (x)", (0, 6)),
    ("ReduceSumSquare <axes = [2]> (x)", (0, 36)),
    ("ReduceLogSumExp <axes = [1]> (x)", (-3, 2 + math.log(3))),
    ("ReduceMean <axes = [1]> (x)", (-3, 2)),
    ("CumSum (x, axis1)", (-9, 6)),
    ("CumSum (x, n)", ALL),
    ("LayerNormalization (x, scale4, shift4)", (-8, 16)),
    ("LayerNormalization <axis = 1> (x, half, nothing)", (-math.sqrt(12) / 2, math.sqrt(12) / 2)),
    ("LayerNormalization (x, z, z)", (-2, 3)),
    ("InstanceNormalization (x, scale3, shift3)", (-4, 8)),
    ("BatchNormalization <epsilon = 0.0> (x, scale3, shift3, mean3, var3)", (-4, 6)),
    ("BatchNormalization <training_mode = 1> (x, scale3, shift3, mean3, var3)", ALL),
    ("LogSoftmax (u)", (-INF, 0)),
    ("LogSoftmax <axis = 0> (r)", (-5, 0)),
    ("ReduceLogSumExp <axes = [0]> (r)", (-3, 2)),
    ("ReduceL2 <axes = [0]> (r)", (0, 3)),
    ("LayerNormalization (x, z, x)", (-5, 4)),
    ("InstanceNormalization (x, z, x)", (-5, 4)),
    ("ReduceL2 (u)", (0, INF)),
]
"""One operator each, at the ends below; nothing is known of ``u``."""


@each_row(("node", "expected"), *NODES)
def test_one_operator(node: str, expected: Interval) -> None:
    found = bound(f"u = NoSuchOperator (x)  y = {node}", **ENDS)
    assert found == pytest.approx(expected, rel=1e-6)


def test_what_the_runtime_computes_lies_within() -> None:
    """Random graphs of many steps are tried in the laboratory."""
    outside, run = {}, 0
    for node, (low, high) in NODES:
        with suppress(InputError):  # what is no operator of the runtime, or not of these inputs
            values = computed(f"y = {node}", **ENDS).astype(np.float64)
            values, run = values[np.isfinite(values)], run + 1
            if (values < low - 1e-4 * max(1, abs(low))).any() or (values > high + 1e-4 * max(1, abs(high))).any():
                outside[node] = (values.min(), values.max())
    assert outside == {} and run > 75


@each_row(
    ("node", "x", "expected"),
    ("Abs (x)", (-3, -2), (2, 3)),
    ("Abs (x)", (-2, 0), (0, 2)),
    ("Mul (x, x)", (-3, -2), (4, 9)),
    ("Reciprocal (x)", (2, 4), (0.25, 0.5)),
    ("Reciprocal (x)", (-4, -2), (-0.5, -0.25)),
    ("Reciprocal (x)", (-4, 0), ALL),  # 1 / +0 is above everything
    ("LeakyRelu <alpha = 0.5> (x)", (-4, -2), (-2, -1)),
    ("HardSwish (x)", (-0.25, 1), (-0.25, 1)),
    ("HardSigmoid (x)", (-3, 5), (0, 1)),
    ("Pow (x, minus)", (-4, -2), (-0.5, -0.25)),
    ("Pow (x, three)", (-3, -2), (-27, -8)),
    ("Pow (x, half)", (4, 9), (2, 3)),
    ("Pow (x, three)", (-1e200, 1e200), ALL),
    ("Pow (x, two)", (1e200, 1e201), (INF, INF)),
    ("Exp (x)", (709, 710), (math.exp(709), INF)),
    ("Log (x)", (0, INF), ALL),
    ("Log (x)", (1, math.e), (0, 1)),
    ("Sigmoid (x)", (-800, 0), (0, 0.5)),
    ("Softplus (x)", (701, INF), (701, INF)),
    ("Softsign (x)", ALL, (-1, 1)),
    ("Sqrt (x)", (4, 9), (2, 3)),
    ("Ceil (x)", (-2.5, 2.5), (-2, 3)),
    ("Floor (x)", (-2.5, 2.5), (-3, 2)),
    ("Round (x)", (-2.6, INF), (-3, INF)),
    ("Sign (x)", (0, 0), (0, 0)),
    ("Clip (x, minus, half)", (1, 2), (0.5, 0.5)),
    ("Cast <to = 3> (x)", (-2.5, 2.5), (-2, 2)),
    ("Cast <to = 3> (x)", (-128, 127), (-128, 127)),
    ("Cast <to = 3> (x)", (-3, 128), (-128, 127)),
    ("Cast <to = 3> (x)", (-129, -127), (-128, 127)),
    ("Cast <to = 3> (x)", (0, INF), ALL),
    ("Cast <to = 4> (x)", (-1, 0), (0, 65535)),
    ("Cast <to = 5> (x)", (-40000, 0), (-32768, 32767)),
    ("Cast <to = 6> (x)", (-3e9, 0), (-(2.0**31), 2.0**31 - 1)),
    ("Cast <to = 7> (x)", (-1e19, 0), (-(2.0**63), 2.0**63 - 1)),
    ("Cast <to = 12> (x)", (-1, 0), (0, 2.0**32 - 1)),
    ("Cast <to = 13> (x)", (-1, 0), (0, 2.0**64 - 1)),
    ("Cast <to = 1> (x)", ALL, ALL),
    ("Cast <to = 16> (x)", (0.5, 0.5), (0.5, 0.5)),
    ("LogSoftmax (x)", (0, INF), (-INF, 0)),
    ("Mod (z, x)", (-2, 3), (-3, 3)),
    ("Mod (z, x)", (0, 3), (0, 3)),
    ("Mul (x, nothing)", ALL, (0, 0)),
    ("Add (x, x)", (-INF, 1), (-INF, 2)),
    ("MatMul (x, z)", (0, 1), (0, 4)),
    ("ReduceL2 (x)", (-1, 0), (0, math.sqrt(24))),
    ("ReduceLogSumExp (x, n)", (1, 2), (1, INF)),
    ("ConvTranspose (x, kernel)", (1, 2), (-6, 8)),
    ("ReduceSum (x, n)", (-3, 0), (-INF, 0)),
    ("ReduceSum (x, n)", (-3, 0.5), ALL),
)
def test_one_operator_at_other_ends(node: str, x: Interval, expected: Interval) -> None:
    assert bound(f"y = {node}", x=x, z=(0, 1)) == pytest.approx(expected, rel=1e-6)


def test_integers_are_divided_with_room_for_the_cut() -> None:
    body = "d = Cast <to = 6> (x)  y = Div (n, d)"
    assert [bound(body, x=(2, 2), n=n) for n in ((-7, 8), (7, 9))] == [(-4, 4), (3, 5)]


@each_row(
    ("body", "x", "made"),
    ("s = Add (x, two)  y = Floor (s)", 1 - 2**-24, 3),  # 2.99999994 is no float32: the next one is 3
    ("s = Add (x, two)  y = Ceil (s)", 1 + 2**-23, 3),  # and 3.00000012 is none either
    ("s = Add (x, one)  d = Sub (s, one)  y = Sign (d)", 2**-25, 0),
)
def test_a_step_behind_a_sum_that_float32_rounds(body: str, x: float, made: int) -> None:
    """``made`` is what ONNX Runtime gives."""
    low, high = bound(body, x=(x, x))
    assert low <= made <= high


@each_row(
    ("node", "opset", "expected"),
    ("Clip <min = -1.0, max = 1.5> (x)", 10, (-1, 1.5)),
    ("Clip (x)", 11, (-3, 2)),
    ("LogSoftmax <axis = 1> (x)", 12, (-INF, 0)),
    ("Pad <pads = [0,0,0,0,0,1], value = 7.0> (x)", 10, (-3, 7)),
    ("Gelu (x)", 20, (-0.17004075057125412, 2)),
    ("Mish (x)", 18, (-0.30884, 2)),
    ("ReduceSum <axes = [1]> (x)", 11, (-9, 6)),
    ("RMSNormalization (x, scale4)", 23, (-8, 8)),
    ("GroupNormalization <num_groups = 3> (x, half, nothing)", 21, (-1, 1)),
)
def test_operators_of_certain_sets(node: str, opset: int, expected: Interval) -> None:
    assert bound(f"y = {node}", opset, x=(-3, 2)) == pytest.approx(expected, rel=1e-6)


@each_row(
    ("node", "expected"),
    ("first, y = Split <axis = 1> (x)", (-3, 2)),
    ("first, y = TopK (x, axis1)", (0, INF)),
    ("first, y = MaxPool <kernel_shape = [1]> (x)", (0, INF)),
    ("first, y = Dropout (x)", (0, 1)),
    ("first, y = LSTM (x, z, z)", (-1, 1)),
    ("first, second, y = LSTM (x, z, z)", ALL),
    ("first, y = BatchNormalization (x, scale3, shift3, mean3, var3)", ALL),
    ("y = NoSuchOperator (x)", ALL),
    ("y = com.microsoft.Relu (x)", ALL),
)
def test_outputs_behind_the_first_and_operators_that_nobody_knows(node: str, expected: Interval) -> None:
    assert bound(node, x=(-3, 2)) == expected


def test_what_is_known_of_a_tensor_narrows_it() -> None:
    assert bound("a = Relu (x)  y = Neg (a)", x=(-3, 2), a=(-9, 1)) == (-1, 0)
    assert bound("a = Relu (x)  y = Neg (a)", x=(-3, 2), a=(5, 9)) == (-2, 0), "a contradiction is no knowledge"


# What tensors prove of each other.


MEAN = "q = Mul (x, x)  m = ReduceMean <axes = [-1]> (q)"
L2 = "l = ReduceL2 <axes = [-1]> (x)"
RATIOS = [
    # As in the steps of RWKV, whose exponents are differences to the larger of two.
    ("m = Max (z, x)  y = Sub (x, m)", (-INF, 0)),
    ("m = Max (z, x)  y = Sub (m, x)", (0, INF)),
    ("m = Min (z, x)  y = Sub (x, m)", (0, INF)),
    ("m = ReduceMax <axes = [-1]> (x)  d = Sub (x, m)  y = Exp (d)", (0, 1)),
    ("m = ReduceMax <axes = [-1]> (x)  d = Sub (x, m)  e = Exp (d)  t = ReduceSum (e, last)  y = Div (e, t)", (0, 1)),
    # Exports compute x - mean twice, under two names.
    (
        "a = ReduceMean <axes = [-1]> (x)  c = Sub (x, a)  q = Pow (c, two)  m = ReduceMean <axes = [-1]> (q)"
        "  p1 = Add (m, half)  l = Sqrt (p1)  again = Sub (x, a)  y = Div (again, l)",
        (-2, 2),
    ),
    ("m = ReduceMax <axes = [-1]> (x)  y = Sub (x, m)", (-INF, 0)),
    ("m = ReduceMax <axes = [-1], keepdims = 0> (x)  y = Sub (x, m)", ALL),
    ("m = ReduceMax <axes = [-1]> (x)  y = Sub (z, m)", ALL),
    (f"{L2}  y = Div (x, l)", (-1, 1)),
    ("l = ReduceL2 <axes = [-1]> (z)  y = Div (x, l)", ALL),
    ("a = Abs (x)  l = ReduceSum (a, last)  y = Div (x, l)", (-1, 1)),
    ("a = Abs (x)  l = ReduceMax <axes = [-1]> (a)  y = Div (x, l)", (-1, 1)),
    ("a = Abs (z)  l = ReduceMax <axes = [-1]> (a)  y = Div (x, l)", ALL),
    ("l = ReduceMax <axes = [-1]> (x)  y = Div (x, l)", ALL),
    ("q = Mul (x, x)  s = ReduceSum (q, last)  l = Sqrt (s)  y = Div (x, l)", (-1, 1)),
    ("q = Mul (x, z)  s = ReduceSum (q, last)  l = Sqrt (s)  y = Div (x, l)", ALL),
    ("q = Pow (x, two)  s = ReduceSum (q, last)  l = Sqrt (s)  y = Div (x, l)", (-1, 1)),
    ("q = Pow (x, four)  s = ReduceSum (q, last)  l = Sqrt (s)  y = Div (x, l)", ALL),
    ("s = ReduceSumSquare <axes = [-1]> (x)  l = Sqrt (s)  y = Div (x, l)", (-1, 1)),
    (f"{MEAN}  l = Sqrt (m)  y = Div (x, l)", (-2, 2)),
    ("q = Mul (x, x)  m = ReduceMean <axes = [1, 2]> (q)  l = Sqrt (m)  y = Div (x, l)", (-(12**0.5), 12**0.5)),
    ("q = Mul (x, x)  m = ReduceMean (q)  l = Sqrt (m)  y = Div (x, l)", (-(24**0.5), 24**0.5)),
    (f"{MEAN}  l = Pow (m, half)  y = Div (x, l)", (-2, 2)),
    (f"{MEAN}  l = Pow (m, two)  y = Div (x, l)", ALL),
    (f"{MEAN}  p1 = Add (m, half)  l = Sqrt (p1)  y = Div (x, l)", (-2, 2)),
    (f"{MEAN}  p1 = Add (m, minus)  l = Sqrt (p1)  y = Div (x, l)", ALL),
    (f"{MEAN}  p1 = Max (m, minus)  l = Sqrt (p1)  y = Div (x, l)", (-2, 2)),
    (f"{MEAN}  p1 = Mul (m, four)  l = Sqrt (p1)  y = Div (x, l)", (-1, 1)),
    (f"{MEAN}  p1 = Div (m, four)  l = Sqrt (p1)  y = Div (x, l)", (-4, 4)),
    (f"{L2}  d = Mul (l, two)  y = Div (x, d)", (-0.5, 0.5)),
    (f"{L2}  d = Div (l, two)  y = Div (x, d)", (-2, 2)),
    (f"{L2}  d = Mul (l, nothing)  y = Div (x, d)", ALL),
    (f"{L2}  d = Reciprocal (l)  e = Cast <to = 10> (d)  y = Mul (x, e)", (-1, 1)),
    (f"{L2}  d = Reciprocal (l)  e = Cast <to = 6> (d)  f = Cast <to = 1> (e)  y = Mul (x, f)", ALL),
    (f"{L2}  d = Div (two, l)  y = Div (x, d)", ALL),
    (f"{L2}  d = Mul (l, minus)  y = Div (x, d)", ALL),
    (f"{L2}  d = Sub (l, half)  y = Div (x, d)", ALL),
    (f"{L2}  d = Clip (l, half)  y = Div (x, d)", (-1, 1)),
    (f"{L2}  d = Cast <to = 10> (l)  y = Div (x, d)", (-1, 1)),
    (f"{L2}  d = Cast <to = 6> (l)  e = Cast <to = 1> (d)  y = Div (x, e)", ALL),
    (f"{L2}  v = Reciprocal (l)  y = Mul (x, v)", (-1, 1)),
    (f"{L2}  v = Reciprocal (l)  y = Mul (v, z)", ALL),
    (f"{L2}  v = Div (two, l)  y = Mul (x, v)", (-2, 2)),
    (f"{L2}  v = Div (minus, l)  y = Mul (x, v)", (-1, 1)),
    (f"{MEAN}  v = Pow (m, mhalf)  y = Mul (x, v)", (-2, 2)),
]


@each_row(("body", "expected"), *RATIOS)
def test_a_tensor_over_what_is_at_least_as_large(body: str, expected: Interval) -> None:
    """Nothing is known of ``x`` and ``z``."""
    assert bound(body) == pytest.approx(expected, rel=1e-6)


def test_a_tensor_over_its_own_largest_is_at_most_one_where_it_is_not_negative() -> None:
    body = "l = ReduceMax <axes = [-1]> (x)  y = Div (x, l)"
    assert bound(body, x=(0, 9)) == (0, 1) and bound(body, x=(-1, 9)) == ALL


@each_row(
    ("body", "opset", "expected"),
    ("w = Softmax <axis = -1> (p)  y = MatMul (w, x)", 13, (1, 2)),
    ("w = Softmax <axis = 2> (p)  y = MatMul (w, x)", 13, (1, 2)),
    ("w = Softmax <axis = 1> (p)  y = MatMul (w, x)", 13, (0, 6)),
    ("w = Softmax (p)  y = MatMul (w, x)", 13, (1, 2)),
    ("w = Softmax <axis = 2> (p)  y = MatMul (w, x)", 12, (1, 2)),
    ("w = Softmax (p)  y = MatMul (w, x)", 12, (0, 2)),
    ("e = Exp (p)  s = ReduceSum (e, last)  w = Div (e, s)  y = MatMul (w, x)", 13, (1, 2)),
    ("e = Exp (p)  s = ReduceSum (e, middle)  w = Div (e, s)  y = MatMul (w, x)", 13, (0, 6)),
    ("s = ReduceSum (p, last)  w = Div (p, s)  y = MatMul (w, x)", 13, ALL),
    ("v = Softmax (p)  w = Cast <to = 10> (v)  y = MatMul (w, x)", 13, (1, 2)),
    ("v = Softmax (p)  c = Cast <to = 6> (v)  w = Cast <to = 1> (c)  y = MatMul (w, x)", 13, (0, 6)),
)
def test_weights_that_add_up_to_one(body: str, opset: int, expected: Interval) -> None:
    assert bound(body, opset, x=(1, 2)) == pytest.approx(expected)
