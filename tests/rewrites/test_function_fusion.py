"""GELU and HardSwish in every form that exporters write: found by their values, and near misses left alone."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper

from deploykit.encodings.values import Affine, Encoding, EncodingSet
from deploykit.flow.cure import rewrite
from deploykit.rewrites.contract import load_transform
from tables import each_row
from text_models import text_model

FEED = {"x": np.linspace(-6, 6, 100, dtype=np.float32).reshape(2, 50)}
NUMBERS: dict[str, Any] = {"half": 0.5, "one": 1.0, "two": 2.0, "three": 3.0, "six": 6.0, "zero": 0.0, "root2": 2**0.5}
NUMBERS |= {"inverse": 0.5**0.5, "small": 0.044715, "root": (2 / np.pi) ** 0.5}

ERF = "scaled = {}  erf = Erf (scaled)  gate = Add (erf, one)"
"""1 + erf(x / sqrt(2))"""
TANH = "cube = {}  bent = Mul (cube, small)  total = Add (x, bent)  inner = Mul (total, root)  tanh = Tanh (inner)"
TANH += "  gate = Add (tanh, one)"
"""1 + tanh(sqrt(2 / pi) * (x + 0.044715 * x^3))"""
ENDS = {
    "halved = Mul (x, half)  y = Mul (halved, gate)": 1.0,
    "product = Mul (gate, x)  y = Mul (half, product)": 1.0,
    "halved = Mul (gate, half)  y = Mul (x, halved)": 1.0,
    "product = Mul (x, gate)  y = Div (product, two)": 1.0,
    "y = Mul (x, gate)": 2.0,  # what is left where the 0.5 was folded into the weights of a neighbour
}
CLIPPED = "total = Add (x, three)  gate = Clip (total, zero, six)"
HARD = "gate = HardSigmoid <alpha = 0.16666667, beta = 0.5> (x)"


def written(body: str, made: str = "y", opset: int = 17, given: str = "float[2,50] x", **other: Any) -> onnx.ModelProto:
    return text_model(given, body, made, opset=opset, **(NUMBERS | other))


def check(model: onnx.ModelProto, name: str, op_types: Iterable[str]) -> onnx.ModelProto:
    done = rewrite(model, None, [name], [FEED])
    assert done.kept == (name,), done.steps
    assert [node.op_type for node in done.model.graph.node if node.op_type != "Constant"] == list(op_types)
    return done.model


@each_row(("end", "factor"), ENDS.items())
def test_a_gelu_in_its_forms(end: str, factor: float) -> None:
    left = ["Gelu"] if factor == 1.0 else ["Gelu", "Mul"]
    for scaled in ("Div (x, root2)", "Mul (x, inverse)"):
        body = f"{ERF.format(scaled)}  {end}"
        # Scalars are initializers, or come out of Constant nodes.
        constants = "one = Constant <value = float {1.0}> ()  half = Constant <value = float {0.5}> ()  "
        for model in (written(body), text_model("float[2,50] x", constants + body, **{n: NUMBERS[n] for n in REST})):
            done = check(model, "fuse-gelu", left)
            assert done.graph.node[-len(left)].domain == "com.microsoft"
            if factor != 1.0:
                assert numpy_helper.to_array(done.graph.initializer[-1]) == factor
    for cube in ("Pow (x, three)", "Mul (square, x)"):
        square = "square = Mul (x, x)  " if "square" in cube else ""
        done = check(written(f"{square}{TANH.format(cube)}  {end}"), "fuse-gelu", left)
        assert done.graph.node[0].attribute[0].s == b"tanh" and done.opset_import[0].version == 20


REST = NUMBERS.keys() - {"one", "half"}


def test_the_approximation_needs_an_operator_set_that_changes_nothing_else() -> None:
    body = f"{TANH.format('Pow (x, three)')}  {next(iter(ENDS))}  mean = ReduceMean <axes = [1]> (y)"
    found = load_transform("fuse-gelu").match(written(body, "mean", 13))
    assert not found and "ReduceMean" in found.refusals[0].reason


@each_row(
    ("body", "left"),
    [
        *((f"{HARD}  y = Mul ({pair})", "HardSwish") for pair in ("x, gate", "gate, x")),
        *((f"{CLIPPED}  y = Mul ({pair})", "HardSwish Mul") for pair in ("x, gate", "gate, x")),
        (f"{CLIPPED}  product = Mul (x, gate)  y = Div (product, six)", "HardSwish"),
    ],
)
def test_a_hardswish(body: str, left: str) -> None:
    check(written(body), "fuse-hardswish", left.split())


@each_row(
    ("body", "made", "numbers"),
    [
        ("y = Mul (x, gate)", "y", {"root2": 1.4}),
        ("y = Mul (x, gate)", "y", {"one": 1.01}),
        ("y = Mul (z, gate)", "y", {}),
        ("y = Mul (x, gate)", "y, gate", {}),
    ],
)
def test_what_is_only_close_is_left_alone_with_the_reason(body: str, made: str, numbers: dict[str, Any]) -> None:
    whole = f"{ERF.format('Div (x, root2)')}  {body}"
    found = load_transform("fuse-gelu").match(written(whole, made, given="float[2,50] x, float[2,50] z", **numbers))
    assert not found and found.refusals[0].reason


def test_a_scalar_that_adds_a_dimension_is_not_dropped() -> None:
    body = f"{ERF.format('Div (x, root2)')}  y = Mul (x, gate)"
    assert not load_transform("fuse-gelu").match(written(body, given="float[50] x", root2=[[2**0.5]]))
    assert load_transform("fuse-gelu").match(written(body, given="float[50] x"))


def test_the_grid_before_a_factor_holds_the_same_integers() -> None:
    model = written(f"{ERF.format('Div (x, root2)')}  y = Mul (x, gate)")
    grid = Affine(bits=16, signed=False, scale=np.asarray(0.004), zero_point=np.asarray(80.0))
    names = ("x", "scaled", "erf", "gate", "root2", "one", "y")
    entries = EncodingSet(version="2.0.0", entries={name: Encoding(name=name, value=grid) for name in names})
    done = rewrite(model, entries, ["fuse-gelu"], [FEED])
    assert done.encodings is not None and done.encodings.entries.keys() == {"x", "y", "y_plain", "y_factor"}
    plain = done.encodings.entries["y_plain"].value
    assert isinstance(plain, Affine) and (float(plain.scale), float(plain.zero_point)) == (0.002, 80.0)
    assert not done.open
