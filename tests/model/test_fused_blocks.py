"""Operators written out node by node: found in every usual spelling, and not where the inside is read elsewhere."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from deploykit.model import load_model, wrap_proto
from deploykit.model.collect import collect_facts
from deploykit.model.facts import GraphFacts
from deploykit.model.patterns import FusedBlock, find_blocks
from sample_models.tiny_graphs import TinyGraph
from tables import each_row

ZOO = Path(__file__).parents[1] / "data" / "zoo"


def facts_of(graph: TinyGraph, *outputs: str) -> GraphFacts:
    return collect_facts(wrap_proto(graph.model(*outputs), path=Path("tiny.onnx")))


def blocks(graph: TinyGraph, *outputs: str) -> tuple[FusedBlock, ...]:
    return find_blocks(facts_of(graph, *outputs))


def start() -> TinyGraph:
    graph = TinyGraph()
    graph.input("x", (1, 6, 8))
    for name, value in (("two", 2.0), ("eps", 1e-6), ("one", 1.0), ("half", 0.5), ("-half", -0.5), ("root2", 2**0.5)):
        graph.stored(name, value)
    graph.stored("scale", np.arange(1, 9))
    graph.stored("bias", np.arange(8))
    return graph


def mean_square(graph: TinyGraph, centred: str, *, product: bool) -> str:
    """var + eps of a centred tensor."""
    square = graph.op("Mul", [centred] * 2, "sq") if product else graph.op("Pow", [centred, "two"], "sq")
    return graph.op("Add", ["eps", graph.op("ReduceMean", [square], "var", axes=[-1])], "plus")


def normalized(graph: TinyGraph, centred: str, form: str, *, product: bool = False) -> str:
    """centred / sqrt(mean(centred²) + eps), in one of its spellings."""
    plus = mean_square(graph, centred, product=product)
    if form == "pow":
        return graph.op("Mul", [graph.op("Pow", [plus, "-half"], "inv"), centred], "n")
    root = graph.op("Sqrt", [plus], "root")
    if form == "div":
        return graph.op("Div", [centred, root], "n")
    inverse = graph.op("Reciprocal", [root], "inv") if form == "reciprocal" else graph.op("Div", ["one", root], "inv")
    return graph.op("Mul", [centred, inverse], "n")


FORMS = ["div", "reciprocal", "one-over", "pow"]


@pytest.mark.parametrize("form", FORMS)
@each_row("product", [True, False])
def test_an_rms_norm_is_found_in_every_spelling(form: str, product: bool) -> None:
    graph = start()
    graph.op("Mul", ["scale", normalized(graph, "x", form, product=product)], "y")
    (block,) = blocks(graph, "y")
    assert (block.kind, block.source, block.result) == ("RMSNormalization", "x", "y")
    assert {"sq", "var", "plus", "n"} <= block.inside
    assert "eps" in block.settings
    assert (block.scale, block.bias) == ("scale", "")
    assert "scale" not in block.settings, "a scale is a parameter with an entry of its own"


@pytest.mark.parametrize("form", FORMS)
def test_centring_makes_it_a_layer_norm_and_the_bias_belongs_to_it(form: str) -> None:
    graph = start()
    centred = graph.op("Sub", ["x", graph.op("ReduceMean", ["x"], "mean", axes=[-1])], "c")
    scaled = graph.op("Mul", [normalized(graph, centred, form), "scale"], "scaled")
    graph.op("Add", [scaled, "bias"], "y")
    (block,) = blocks(graph, "y")
    assert (block.kind, block.source, block.result) == ("LayerNormalization", "x", "y")
    assert {"mean", "c", "scaled"} <= block.inside
    assert (block.scale, block.bias) == ("scale", "bias")
    assert "eps" in block.settings


@pytest.mark.parametrize("read", ["c", "var", "root", "n"])
def test_what_is_read_outside_is_no_inside(read: str) -> None:
    graph = start()
    centred = graph.op("Sub", ["x", graph.op("ReduceMean", ["x"], "mean", axes=[-1])], "c")
    graph.op("Mul", [normalized(graph, centred, "div"), "scale"], "y")
    graph.op("Abs", [read], "z")
    assert all(read not in block.inside for block in blocks(graph, "y", "z"))


def test_other_powers_are_no_norm() -> None:
    graph = start()
    cubed = graph.op("Pow", ["x", graph.stored("three", 3.0)], "cubed")
    plus = graph.op("Add", [graph.op("ReduceMean", [cubed], "m", axes=[-1]), "eps"], "plus")
    graph.op("Div", ["x", graph.op("Sqrt", [plus], "root")], "y")
    assert blocks(graph, "y") == ()


def _gelu_outer(graph: TinyGraph) -> None:
    plus = graph.op("Add", [graph.op("Erf", [graph.op("Div", ["x", "root2"], "d")], "e"), "one"], "p")
    graph.op("Mul", [graph.op("Mul", ["x", plus], "m"), "half"], "y")


def _gelu_inner(graph: TinyGraph) -> None:
    plus = graph.op("Add", ["one", graph.op("Erf", [graph.op("Mul", ["x", "half"], "d")], "e")], "p")
    graph.op("Mul", [plus, graph.op("Mul", ["half", "x"], "h")], "y")


def _gelu_doubled(graph: TinyGraph) -> None:
    """With its half folded into what follows."""
    plus = graph.op("Add", [graph.op("Erf", [graph.op("Div", ["x", "root2"], "d")], "e"), "one"], "p")
    graph.op("Mul", ["x", plus], "y")


def _gelu_tanh(graph: TinyGraph) -> None:
    cube = graph.op("Pow", ["x", graph.stored("three", 3.0)], "cube")
    inner = graph.op("Add", ["x", graph.op("Mul", [cube, graph.stored("k", 0.044715)], "kc")], "i")
    bounded = graph.op("Tanh", [graph.op("Mul", [inner, graph.stored("r", 0.79788)], "ri")], "t")
    graph.op("Mul", [graph.op("Mul", ["x", "half"], "h"), graph.op("Add", [bounded, "one"], "p")], "y")


def _quick(graph: TinyGraph) -> None:
    graph.op("Mul", ["x", graph.op("Sigmoid", [graph.op("Mul", ["x", "root2"], "d")], "s")], "y")


def _hard(graph: TinyGraph) -> None:
    clipped = graph.op(
        "Clip", [graph.op("Add", ["x", graph.stored("3", 3.0)], "a"), graph.stored("0", 0.0), "six"], "c"
    )
    graph.op("Div", [graph.op("Mul", ["x", clipped], "m"), "six"], "y")


GATES: list[tuple[str, Callable[[TinyGraph], None]]] = [
    ("Gelu", _gelu_outer),
    ("Gelu", _gelu_inner),
    ("Gelu", _gelu_doubled),
    ("Gelu", _gelu_tanh),
    ("Swish", _quick),
    ("HardSwish", _hard),
]


@each_row(("kind", "write"), GATES, ids=lambda value: getattr(value, "__name__", value))
def test_gated_activations_are_found_in_their_forms(kind: str, write: Callable[[TinyGraph], None]) -> None:
    graph = start()
    graph.stored("six", 6.0)
    write(graph)
    (block,) = blocks(graph, "y")
    assert (block.kind, block.source, block.result) == (kind, "x", "y")
    nodes = facts_of(graph, "y").nodes
    assert len(block.nodes) == len(nodes)


def test_a_gate_of_something_else_is_no_activation() -> None:
    """The two branches of a gated linear unit: x times the sigmoid of another tensor."""
    graph = start()
    other = graph.input("z", (1, 6, 8))
    graph.op("Mul", ["x", graph.op("Sigmoid", [other], "s")], "y")
    assert blocks(graph, "y") == ()


def test_softmax_and_group_norm() -> None:
    graph = start()
    shifted = graph.op("Sub", ["x", graph.op("ReduceMax", ["x"], "m", axes=[-1])], "s")
    exponential = graph.op("Exp", [shifted], "e")
    graph.stored("last", [-1], "int64")
    graph.op("Div", [exponential, graph.op("ReduceSum", [exponential, "last"], "t")], "y")
    (block,) = blocks(graph, "y")
    assert (block.kind, block.source) == ("Softmax", "x")
    assert block.inside == {"m", "s", "e", "t"}
    grouped = start()
    grouped.stored("to", [1, 3, 16], "int64")
    grouped.stored("back", [1, 6, 8], "int64")
    grouped.stored("ones", np.ones(3))
    grouped.stored("zeros", np.zeros(3))
    inner = grouped.op("InstanceNormalization", [grouped.op("Reshape", ["x", "to"], "r"), "ones", "zeros"], "i")
    scaled = grouped.op("Mul", [grouped.op("Reshape", [inner, "back"], "b"), "scale"], "s")
    grouped.op("Add", [scaled, "bias"], "y")
    (block,) = blocks(grouped, "y")
    assert (block.kind, block.source, block.result) == ("GroupNormalization", "x", "y")


@pytest.mark.parametrize(
    ("name", "kinds"),
    [("distilbert", {"LayerNormalization": 5, "Gelu": 2}), ("segformer", {"LayerNormalization": 19, "Gelu": 4})],
)
def test_every_block_of_true_exports_is_found(name: str, kinds: dict[str, int]) -> None:
    found = find_blocks(collect_facts(load_model(ZOO / name / "model.onnx")))
    assert Counter(block.kind for block in found) == kinds
