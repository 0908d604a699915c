"""Writes the remainder of integers that keeps the dividend's sign (Mod with fmod = 1) with what devices have.

Where neither side can be negative it is the other Mod; else the truncating quotient is taken off. Floats stay.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from onnx import helper

from deploykit.encodings.place import keep_entries
from deploykit.model.graph import GraphCopy, view_of
from deploykit.model.nodes import attribute, label
from deploykit.model.ranges import ANYTHING, graph_bounds
from deploykit.model.shape_inference import infer
from deploykit.rewrites.contract import MatchResult, Refusal, Rewritten, Site, Transform

if TYPE_CHECKING:
    from onnx import ModelProto, NodeProto

    from deploykit.encodings.values import EncodingSet

__all__ = ["transform"]


def match(model: ModelProto) -> MatchResult:
    """Every Mod with fmod = 1 of integers."""
    graph = view_of(model)
    nodes = [node for node in graph.nodes if node.op_type == "Mod" and attribute(node, "fmod", 0)]
    if not nodes:
        return MatchResult(reason="no Mod keeps the sign of its dividend")
    types = infer(model).types
    sites, refusals = [], []
    for node in nodes:
        if "int" in types.get(node.input[0], ("", None))[0]:
            why = "it is a remainder of integers"
            sites.append(Site(nodes=(label(node),), tensors=(node.output[0],), why=why))
        else:
            refusals.append(Refusal(nodes=(label(node),), reason="it is a remainder of floats"))
    return MatchResult(sites=tuple(sites), refusals=tuple(refusals), reason="" if sites else refusals[0].reason)


def apply(model: ModelProto, encodings: EncodingSet | None, matched: MatchResult) -> Rewritten:
    """The other Mod where signs cannot differ, else a - (a / b) * b: integer division cuts towards zero."""
    graph = GraphCopy(model)
    bounds = graph_bounds(graph)
    for site in matched.sites:
        node = graph.makers[site.tensors[0]]
        if all(bounds.get(name, ANYTHING)[0] >= 0 for name in node.input):
            del node.attribute[:]
        else:
            graph.replace_nodes([node], {graph.index_of(node): _by_quotient(graph, node)})
    note = f"{len(matched.sites)} remainders of integers need no fmod"
    return Rewritten(model=graph.model, encodings=keep_entries(encodings, graph), notes=(note,))


def _by_quotient(graph: GraphCopy, node: NodeProto) -> list[NodeProto]:
    (dividend, divisor), made = node.input, node.output[0]
    quotient, whole = graph.fresh(f"{made}_quotient"), graph.fresh(f"{made}_whole")
    return [
        helper.make_node("Div", [dividend, divisor], [quotient], name=quotient),
        helper.make_node("Mul", [quotient, divisor], [whole], name=whole),
        helper.make_node("Sub", [dividend, whole], [made], name=node.name),
    ]


transform = Transform(
    name="integer-remainder",
    summary="Writes Mod with fmod = 1 of integers with what devices have.",
    match=match,
    apply=apply,
)
