"""Computes the mean and the inverse deviation that a LayerNormalization gives beside its result on their own.

The normalization keeps its result and loses the other outputs, which compilers do not have. No name changes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from onnx import helper

from deploykit.encodings.place import keep_entries
from deploykit.model.graph import GraphCopy, view_of
from deploykit.model.nodes import attribute, label
from deploykit.model.operators import is_standard
from deploykit.model.shape_inference import Shape, infer
from deploykit.rewrites.contract import MatchResult, Refusal, Rewritten, Site, Transform

if TYPE_CHECKING:
    from onnx import ModelProto, NodeProto

    from deploykit.encodings.values import EncodingSet

__all__ = ["transform"]

_AXES_ARE_AN_INPUT = 18
"""From this opset on ReduceMean takes its axes as an input."""


def match(model: ModelProto) -> MatchResult:
    """Every float32 LayerNormalization with more than one output."""
    graph = view_of(model)
    norms = [n for n in graph.nodes if n.op_type == "LayerNormalization" and is_standard(n) and any(n.output[1:])]
    types = infer(model).types if norms else {}
    sites, refusals = list[Site](), list[Refusal]()
    for node in norms:
        dtype, shape = types.get(node.input[0], ("", None))
        problem = _problem(node, dtype, shape)
        if problem:
            refusals.append(Refusal(nodes=(label(node),), reason=problem))
        else:
            why = "it gives its statistics beside its result"
            axes = list(range(int(attribute(node, "axis", -1)) % len(shape or ()), len(shape or ())))
            sites.append(Site(nodes=(label(node),), tensors=(node.output[0],), why=why, data=axes))
    reason = "" if sites or refusals else "no LayerNormalization gives its statistics"
    return MatchResult(sites=tuple(sites), refusals=tuple(refusals), reason=reason)


def _problem(node: NodeProto, dtype: str, shape: Shape) -> str:
    """Why the statistics cannot be written out; "" where they can."""
    if shape is None:
        return f"the shape of {node.input[0]} is not known"
    return "" if dtype == "float" else f"{node.input[0]} is {dtype or 'of unknown type'}, its statistics need not be"


def apply(model: ModelProto, encodings: EncodingSet | None, matched: MatchResult) -> Rewritten:
    """Take the outputs from the normalization and compute them from its input."""
    graph = GraphCopy(model)
    touched: set[str] = set()
    for site in matched.sites:
        node = graph.makers[site.tensors[0]]
        steps = _statistics(graph, node, site.data)
        touched.update(step.output[0] for step in steps)
        del node.output[1:]
        graph.replace_nodes([], {graph.index_of(node): steps})
    note = f"{len(matched.sites)} normalizations give their result only"
    kept, made = keep_entries(encodings, graph), touched & graph.tensor_names
    fresh = frozenset(name for name in made if encodings is None or name not in encodings)
    return Rewritten(model=graph.model, encodings=kept, touched=fresh, notes=(note,))


def _statistics(graph: GraphCopy, node: NodeProto, axes: list[int]) -> list[NodeProto]:
    """Mean, deviation from it, its square's mean, and one over the root; what nothing reads is dropped later."""
    source, made = node.input[0], node.output[0]
    given = zip([*node.output[1:], ""][:2], _OUTPUTS, strict=True)
    mean, inverse = (name or graph.fresh(f"{made}_{what}") for name, what in given)
    off, square, variance, sum_, root = (graph.fresh(f"{inverse}_{what}") for what in _STEPS)
    epsilon = graph.store(f"{inverse}_epsilon", np.asarray(attribute(node, "epsilon", 1e-5), np.float32))
    return [
        _mean(graph, source, mean, axes),
        helper.make_node("Sub", [source, mean], [off], name=off),
        helper.make_node("Mul", [off, off], [square], name=square),
        _mean(graph, square, variance, axes),
        helper.make_node("Add", [variance, epsilon], [sum_], name=sum_),
        helper.make_node("Sqrt", [sum_], [root], name=root),
        helper.make_node("Reciprocal", [root], [inverse], name=inverse),
    ]


_OUTPUTS = ("mean", "inverse")
_STEPS = ("deviation", "square", "variance", "sum", "root")


def _mean(graph: GraphCopy, source: str, made: str, axes: list[int]) -> NodeProto:
    if graph.opset < _AXES_ARE_AN_INPUT:
        return helper.make_node("ReduceMean", [source], [made], name=made, axes=axes, keepdims=1)
    stored = graph.store(f"{made}_axes", np.asarray(axes, np.int64))
    return helper.make_node("ReduceMean", [source, stored], [made], name=made, keepdims=1)


transform = Transform(
    name="norm-statistics",
    summary="Computes the statistics that a LayerNormalization gives on their own.",
    match=match,
    apply=apply,
    ulps=64.0,
)
