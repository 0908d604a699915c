"""An Einsum of two operands as a MatMul: equal, with its entries, and left alone where it is no product of matrices."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

from deploykit.backend.backend import Request
from deploykit.encodings.values import Affine, Encoding, EncodingSet
from deploykit.flow.pipeline import make_package
from deploykit.flow.rewriting import rewrite
from deploykit.rewrites.contract import load_transform
from sample_models.feeds import random_feeds
from sample_models.tiny_graphs import TinyGraph
from tables import each_row

SIZES = {"b": 2, "h": 3, "q": 5, "k": 4, "d": 6}


def product(equation: str) -> onnx.ModelProto:
    graph = TinyGraph()
    terms = equation.replace(" ", "").split("->")[0].split(",")
    names = [graph.input(f"x{n}", tuple(SIZES[letter] for letter in term)) for n, term in enumerate(terms)]
    graph.op("Einsum", names, "y", equation=equation)
    return graph.model("y")


@each_row(
    "equation",
    [
        *("bqd, bkd -> bqk", "bqd,bdhk->bqhk", "qd,dk->kq", "bhqd,bhkd->bhqk", "hbqd,bkd->bqhk", "qd,kd", "q,k->kq"),
        *("bqd,bqd->bq", "bq,bq->qb", "dhb,dq->hqb", "d,d->"),
    ],
)
def test_a_product_of_matrices_stays_what_it_is(equation: str) -> None:
    model = product(equation)
    made = rewrite(model, None, ["einsum-to-matmul"], random_feeds(model, samples=2))
    assert made.kept == ("einsum-to-matmul",), made.steps
    assert {node.op_type for node in made.model.graph.node} <= {"MatMul", "Reshape", "Transpose"}
    onnx.checker.check_model(onnx.shape_inference.infer_shapes(made.model), full_check=True)


def test_what_would_change_nothing_is_left_out() -> None:
    found = load_transform("einsum-to-matmul")
    model = product("bqd,bdk->bqk")
    made = found.apply(model, None, found.match(model)).model
    assert [node.op_type for node in made.graph.node] == ["MatMul"]


@pytest.mark.parametrize(
    ("equation", "reason"),
    [
        ("bqd,bdk,bk->bq", "two operands"),
        ("bqq,bqd->bd", "twice"),
        ("bqd,bkh->bqk", "one operand alone"),
        ("...qd,...dk->...qk", "dots"),
    ],
)
def test_what_is_no_product_of_matrices_is_left_with_the_reason(equation: str, reason: str) -> None:
    model = product(equation.replace("...", "bh")) if "..." in equation else product(equation)
    model.graph.node[0].attribute[0].s = equation.encode()
    (refusal,) = load_transform("einsum-to-matmul").match(model).refusals
    assert reason in refusal.reason


def test_what_is_only_moved_keeps_its_grid() -> None:
    grid = Affine(bits=16, signed=False, scale=np.asarray(0.01), zero_point=np.asarray(32768.0))
    entries = {name: Encoding(name=name, value=grid) for name in ("x0", "x1", "y")}
    found, model = load_transform("einsum-to-matmul"), product("bqd,bhkd->bhqk")
    made = found.apply(model, EncodingSet(version="2.0.0", entries=entries), found.match(model))
    names = {name for node in made.model.graph.node for name in node.output}
    assert made.encodings is not None and names <= made.encodings.entries.keys() and not made.touched


@pytest.mark.heavy
def test_the_provider_gets_the_product(tmp_path: Path) -> None:
    onnx.save(product("bqd,bdhk->bqhk"), tmp_path / "m.onnx")
    given = Request(model=tmp_path / "m.onnx", target="sm8650", backend="ort-qnn", inputs=("x0=-1..1", "x1=-1..1"))
    made = make_package(given, tmp_path / "p")
    assert made.exit_status == 0, [finding.message for finding in made.findings if finding.blocks]
