"""A graph that may be changed, and the blocks that are found in it."""

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from deploykit.model.collect import collect_facts
from deploykit.model.facts import GraphFacts
from deploykit.model.load import load_model, wrap_proto
from deploykit.model.patterns import FusedBlock, find_blocks
from tables import each_row
from text_models import text_model

ZOO = Path(__file__).parents[1] / "data" / "zoo"
STORED: dict[str, Any] = {"two": 2.0, "eps": 1e-6, "one": 1.0, "half": 0.5, "mhalf": -0.5, "root2": 2**0.5, "six": 6.0}
STORED |= {"three": 3.0, "zero": 0.0, "k": 0.044715, "r": 0.79788, "scale": [1.0] * 8, "bias": [0.5] * 8, "last": [-1]}
STORED |= {"to": [1, 3, 16], "back": [1, 6, 8], "ones": np.ones(3, np.float32), "zeros": np.zeros(3, np.float32)}
CENTRED = "mean = ReduceMean <axes = [-1]> (x)  c = Sub (x, mean)  "
FORMS = {
    "div": "root = Sqrt (plus)  n = Div ({}, root)",
    "reciprocal": "root = Sqrt (plus)  inv = Reciprocal (root)  n = Mul ({}, inv)",
    "one-over": "root = Sqrt (plus)  inv = Div (one, root)  n = Mul ({}, inv)",
    "pow": "inv = Pow (plus, mhalf)  n = Mul (inv, {})",
}


def normalized(centred: str, form: str, square: str = "Pow ({}, two)") -> str:
    """centred / sqrt(mean(centred²) + eps), in one of its spellings."""
    steps = f"sq = {square}  var = ReduceMean <axes = [-1]> (sq)  plus = Add (eps, var)  {FORMS[form]}  "
    return steps.replace("{}", centred)


def facts_of(body: str, made: str = "y") -> GraphFacts:
    model = text_model("float[1,6,8] x, float[1,6,8] other", body, made, **STORED)
    return collect_facts(wrap_proto(model, path=Path("tiny.onnx")))


def blocks(body: str, made: str = "y") -> tuple[FusedBlock, ...]:
    return find_blocks(facts_of(body, made))


@each_row("form", *FORMS)
def test_a_norm_is_found_in_every_spelling(form: str) -> None:
    for square in ("Pow ({}, two)", "Mul ({}, {})"):
        (block,) = blocks(normalized("x", form, square) + "y = Mul (scale, n)")
        assert (block.kind, block.source, block.result) == ("RMSNormalization", "x", "y")
        assert {"sq", "var", "plus", "n"} <= block.inside and "eps" in block.settings
        assert (block.scale, block.bias) == ("scale", "")
        assert "scale" not in block.settings, "a scale is a parameter with an entry of its own"
    # Centring makes it a layer norm, and the bias belongs to it.
    (block,) = blocks(f"{CENTRED}{normalized('c', form)}scaled = Mul (n, scale)  y = Add (scaled, bias)")
    assert (block.kind, block.source, block.result) == ("LayerNormalization", "x", "y")
    assert {"mean", "c", "scaled"} <= block.inside
    assert (block.scale, block.bias) == ("scale", "bias") and "eps" in block.settings


@each_row(
    ("kind", "body"),
    ("Gelu", "d = Div (x, root2)  e = Erf (d)  p = Add (e, one)  m = Mul (x, p)  y = Mul (m, half)"),
    ("Gelu", "d = Mul (x, half)  e = Erf (d)  p = Add (one, e)  h = Mul (half, x)  y = Mul (p, h)"),
    ("Gelu", "d = Div (x, root2)  e = Erf (d)  p = Add (e, one)  y = Mul (x, p)"),  # its half is elsewhere
    (
        "Gelu",
        "cube = Pow (x, three)  kc = Mul (cube, k)  i = Add (x, kc)  ri = Mul (i, r)  t = Tanh (ri)"
        "  h = Mul (x, half)  p = Add (t, one)  y = Mul (h, p)",
    ),
    ("Swish", "d = Mul (x, root2)  s = Sigmoid (d)  y = Mul (x, s)"),
    ("HardSwish", "a = Add (x, three)  c = Clip (a, zero, six)  m = Mul (x, c)  y = Div (m, six)"),
)
def test_gated_activations_are_found_in_their_forms(kind: str, body: str) -> None:
    (block,) = blocks(body)
    assert (block.kind, block.source, block.result) == (kind, "x", "y")
    assert len(block.nodes) == len(facts_of(body).nodes)
    if kind == "Gelu" and "Mul (m, half)" in body:  # what is an output as well is where the block ends
        assert [block.result for block in blocks(body, "y, m")] == ["m"]


def test_softmax_and_group_norm() -> None:
    (block,) = blocks("m = ReduceMax <axes=[-1]> (x) s = Sub (x, m) e = Exp (s) t = ReduceSum (e, last) y = Div (e, t)")
    assert (block.kind, block.source) == ("Softmax", "x") and block.inside == {"m", "s", "e", "t"}
    (block,) = blocks(
        "q = Reshape (x, to)  i = InstanceNormalization (q, ones, zeros)  b = Reshape (i, back)  s = Mul (b, scale)"
        "  y = Add (s, bias)"
    )
    assert (block.kind, block.source, block.result) == ("GroupNormalization", "x", "y")


@pytest.mark.parametrize(
    ("name", "kinds"),
    [("distilbert", {"LayerNormalization": 5, "Gelu": 2}), ("segformer", {"LayerNormalization": 19, "Gelu": 4})],
)
def test_every_block_of_true_exports_is_found(name: str, kinds: dict[str, int]) -> None:
    found = find_blocks(collect_facts(load_model(ZOO / name / "model.onnx")))
    assert Counter(block.kind for block in found) == kinds
