"""Bounds number by number, where soundness alone would let them be as loose as they like: operators, and operands that
depend on each other (quotients, weights that add up to one, gates). ``ranges.txt`` has what the bounds of y are, at
which ends of the inputs, after the number of the operator set where that is not 17. After a change that is wanted:
``DEPLOYKIT_WRITE_GOLDEN=1`` with ``-n 0``.
"""

import os
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import onnx.parser

from deploykit.accuracy.simulate.sessions import Session
from deploykit.errors import InputError
from deploykit.findings.records import Interval
from deploykit.model.graph import GraphCopy
from deploykit.model.ranges import graph_bounds
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


RANGES = Path(__file__).with_name("ranges.txt")
ENDS: dict[str, Interval] = {"x": (-3, 2), "z": (0, 1), "g": (-2, 2), "n": (-7, 8), "m": (-3, 2), "r": (-3, 2)}


def bound(body: str, opset: int = 17, **ends: Interval) -> Interval:
    """The bounds of ``y`` from those of the inputs; what nobody bounds can be anything."""
    return graph_bounds(GraphCopy(model_of_y(body, opset)), ends)["y"]


def asked(line: str) -> tuple[str, int, dict[str, Interval]]:
    """Nodes, operator set and the ends of the inputs."""
    body, _, text = line.rpartition(": ")[0].partition(" at ")
    opset, _, rest = body.partition(" ") if body[0].isdecimal() else ("17", "", body)
    spans = dict[str, Interval]()
    for pair in text.split(", ") if text not in ("", "ends") else ():
        name, _, span = pair.partition(" ")
        low, _, high = span.partition("..")
        spans[name] = float(low), float(high)
    return rest, int(opset), ENDS if text == "ends" else spans


def test_bounds_are_those_of_the_list() -> None:
    lines, said = RANGES.read_text("utf-8").splitlines(), []
    for line in lines:
        if line and not line.startswith("#"):
            body, opset, ends = asked(line)
            low, high = bound(body, opset, **ends)
            line = f"{line.rpartition(': ')[0]}: {low:.6g}..{high:.6g}"
        said.append(line)
    if os.environ.get("DEPLOYKIT_WRITE_GOLDEN"):
        RANGES.write_text("\n".join(said) + "\n", "utf-8")
    assert said == lines


def computed(body: str, **ends: Interval) -> np.ndarray:
    """What ONNX Runtime computes of random inputs within their bounds, then of ends alone."""
    session, rng, found = Session(model_of_y(body)), np.random.default_rng(0), []
    shapes = {name: tuple(map(int, shape.split(","))) for name, shape in SHAPES.items()}
    for draw in (rng.uniform, lambda low, high, shape: rng.choice((low, high), shape)):
        drawn = {name: draw(*ends.get(name, (-1, 1)), shape) for name, shape in shapes.items()}
        found.append(session.run({name: value.astype(TYPES.get(name, "f4")) for name, value in drawn.items()})["y"])
    return np.concatenate(found, axis=None)


def test_what_the_runtime_computes_lies_within() -> None:
    """Random graphs of many steps are tried in the laboratory."""
    outside, run = {}, 0
    for line in RANGES.read_text("utf-8").splitlines():
        body, _, ends = line.partition(" at ends: ")
        if not ends or "NoSuchOperator" in body:
            continue
        low, high = map(float, ends.split(".."))
        with suppress(InputError):  # what is no operator of the runtime, or not of these inputs
            values = computed(body, **ENDS).astype(np.float64)
            values, run = values[np.isfinite(values)], run + 1
            if (values < low - 1e-4 * max(1, abs(low))).any() or (values > high + 1e-4 * max(1, abs(high))).any():
                outside[body] = (values.min(), values.max())
    assert outside == {} and run > 75


@each_row(
    ("body", "x", "made"),
    ("s = Add (x, two)  y = Floor (s)", 1 - 2**-24, 3),  # 2.99999994 is no float32: the next one is 3
    ("s = Add (x, two)  y = Ceil (s)", 1 + 2**-23, 3),  # and 3.00000012 is none either
    ("s = Add (x, half)  y = Floor (s)", 0.5 - 2**-25, 1),
    ("s = Sub (x, half)  y = Ceil (s)", 2**-25 - 0.5, -1),
    ("s = Add (x, half)  c = Cast <to = 6> (s)  y = Cast <to = 1> (c)", 0.5 - 2**-25, 1),
    ("s = Add (x, one)  d = Sub (s, one)  y = Sign (d)", 2**-25, 0),
)
def test_a_step_behind_a_sum_that_float32_rounds(body: str, x: float, made: int) -> None:
    """``made`` is what ONNX Runtime gives."""
    low, high = bound(body, x=(x, x))
    assert low <= made <= high and set(computed(body, x=(x, x)).ravel()) == {made}
