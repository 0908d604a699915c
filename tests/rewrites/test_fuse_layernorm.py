"""The layer normalization written in single operators, fused: equal on the CPU."""

import re
from typing import Any

import numpy as np
import onnx

from deploykit.flow.cure import rewrite
from sample_models.feeds import random_feeds
from tables import each_row
from text_models import text_model


def decomposed(
    shape: tuple[int, ...] = (2, 3, 8),
    *,
    eps: float = 1e-5,
    gamma: bool = True,
    beta: bool = True,
    axis: int = -1,
    square: str = "Pow",
    opset: int = 13,
    two_subs: bool = False,
) -> onnx.ModelProto:
    """What exporters write; tensors are called after what they are."""
    rng = np.random.default_rng(5)
    stored: dict[str, Any] = {"two": 2.0, "eps": eps, "axes": [axis]}
    stored |= {"gamma": rng.normal(1, 0.5, shape[-1]).tolist(), "beta": rng.normal(size=shape[-1]).tolist()}

    def mean(source: str) -> str:
        return f"ReduceMean ({source}, axes)" if opset >= 18 else f"ReduceMean <axes = [{axis}]> ({source})"

    body = f"mean = {mean('x')}  sub = Sub (x, mean)  " + ("sub2 = Sub (x, mean)  " if two_subs else "")
    body += f"square = {square} (sub, {'two' if square == 'Pow' else 'sub'})  variance = {mean('square')}"
    body += f"  plus = Add (variance, eps)  root = Sqrt (plus)  div = Div ({'sub2' if two_subs else 'sub'}, root)"
    body += "  scaled = Mul (gamma, div)" if gamma else ""
    body += f"  shifted = Add ({'scaled' if gamma else 'div'}, beta)" if beta else ""
    body += f"  y = Identity ({'shifted' if beta else 'scaled' if gamma else 'div'})"
    sizes = ",".join(map(str, shape))
    model = text_model(f"float[{sizes}] x", body, f"float[{sizes}] y", opset=opset, **stored)
    used = set(re.findall(r"\w+", body))
    for tensor in [tensor for tensor in model.graph.initializer if tensor.name not in used]:
        model.graph.initializer.remove(tensor)
    return model


@each_row(
    ("shape", "how"),
    ((2, 3, 8), {"opset": 11, "eps": 1e-12}),
    ((2, 3, 8), {"opset": 16, "axis": 2, "square": "Mul", "two_subs": True}),
    ((5,), {"opset": 17, "gamma": False, "eps": 0.1}),
    ((1, 4, 3, 40), {"opset": 18, "beta": False}),
    ((6, 2), {"opset": 21, "gamma": False, "beta": False, "square": "Mul"}),
)
def test_the_fused_operator_computes_the_same(shape: tuple[int, ...], how: dict[str, Any]) -> None:
    model = decomposed(shape, **how)
    made = rewrite(model, None, ["fuse-layernorm"], random_feeds(model, samples=2))
    done = made.model
    onnx.checker.check_model(done)
    assert made.kept and [node.op_type for node in done.graph.node] == ["LayerNormalization", "Identity"]
    assert done.opset_import[0].version == max(how["opset"], 17)
    assert len(done.graph.initializer) == 1 + how.get("beta", True)
