"""Divides where a graph multiplies by a Reciprocal that nothing else reads: one operator instead of two.

It changes the order of two roundings and nothing else.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from onnx import helper

from deploykit.encodings.place import keep_entries
from deploykit.model.graph import GraphCopy, view_of
from deploykit.model.nodes import label
from deploykit.model.operators import is_standard
from deploykit.rewrites.contract import MatchResult, Refusal, Rewritten, Site, Transform

if TYPE_CHECKING:
    from onnx import ModelProto, NodeProto

    from deploykit.encodings.values import EncodingSet

__all__ = ["transform"]


def match(model: ModelProto) -> MatchResult:
    """Every Reciprocal of a Sqrt, as norms have it."""
    graph = view_of(model)
    sites, refusals = list[Site](), list[Refusal]()
    for node in graph.nodes:
        if node.op_type != "Reciprocal" or not is_standard(node) or graph.maker(node.input[0], "Sqrt") is None:
            continue
        made = node.output[0]
        product = graph.only_reader(made)
        if product is None or product.op_type != "Mul" or list(product.input).count(made) != 1:
            refusals.append(Refusal(nodes=(label(node),), reason=f"{made} is read by something else than one product"))
            continue
        why = f"{product.output[0]} is a quotient by {node.input[0]}"
        sites.append(Site(nodes=(label(node), label(product)), tensors=(made,), why=why, data=product.output[0]))
    reason = "" if sites or refusals else "the graph has no Reciprocal of a Sqrt"
    return MatchResult(sites=tuple(sites), refusals=tuple(refusals), reason=reason)


def apply(model: ModelProto, encodings: EncodingSet | None, matched: MatchResult) -> Rewritten:
    """One Div for each pair, under the product's names."""

    graph = GraphCopy(model)
    gone: list[NodeProto] = []
    made: dict[int, list[NodeProto]] = {}
    for site in matched.sites:
        (inverse,) = site.tensors
        product, reciprocal = graph.makers[site.data], graph.makers[inverse]
        (dividend,) = (name for name in product.input if name != inverse)
        quotient = helper.make_node("Div", [dividend, reciprocal.input[0]], [site.data], name=product.name)
        gone += [product, reciprocal]
        made[graph.index_of(product)] = [quotient]
    graph.replace_nodes(gone, made)
    note = f"{len(matched.sites)} products with the reciprocal of a root are quotients"
    return Rewritten(model=graph.model, encodings=keep_entries(encodings, graph), notes=(note,))


transform = Transform(
    name="divide-by-root",
    summary="Divide by a Sqrt where a graph multiplies by its Reciprocal.",
    match=match,
    apply=apply,
    ulps=4.0,
)
