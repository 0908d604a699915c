"""Cuts the post-processing off: everything behind the last op with weights becomes a model for the host.

The device keeps the network; boxes, scores, sorting and scaling run in ONNX Runtime, in float.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from deploykit.encodings.cut import crossing_tensors
from deploykit.encodings.post_processing import NETWORK_OPS
from deploykit.model.graph import GraphCopy, view_of
from deploykit.model.nodes import label
from deploykit.model.operators import Trait, has
from deploykit.rewrites.contract import MatchResult, Site, Transform
from deploykit.rewrites.tails import MOVES, apply_cut

if TYPE_CHECKING:
    from onnx import ModelProto, NodeProto

__all__ = ["transform"]


def match(model: ModelProto) -> MatchResult:
    """The largest end of the graph without an op that belongs to the network, if it is more than moves."""
    graph = view_of(model)
    later = _end(graph)
    work = [index for index in sorted(later) if graph.nodes[index].op_type not in MOVES]
    if not work:
        return MatchResult(reason="behind the last op with weights there is nothing to compute")
    if not crossing_tensors(graph, later):
        return MatchResult(reason="no op with weights comes before: all of the graph would be cut off")
    nodes = tuple(label(graph.nodes[index]) for index in work)
    why = f"{len(later)} nodes follow the last op with weights"
    return MatchResult(sites=(Site(nodes=nodes, tensors=crossing_tensors(graph, later), why=why, data=later),))


def _end(graph: GraphCopy) -> frozenset[int]:
    where = {id(node): index for index, node in enumerate(graph.nodes)}
    static = graph.static()
    later: set[int] = set()
    for index in reversed(range(len(graph.nodes))):
        node = graph.nodes[index]
        if node.op_type == "Constant" or node.op_type in NETWORK_OPS or _belongs(graph, node, static):
            continue
        if all(where[id(reader)] in later for name in node.output for reader in graph.readers(name)):
            later.add(index)
    return frozenset(later)


def _belongs(graph: GraphCopy, node: NodeProto, static: frozenset[str]) -> bool:
    """True for the bias Add of a MatMul and for a clamp right behind an op of the network: they fuse with it."""
    if has(node, Trait.CLAMPS, Trait.RECTIFIES):
        behind = graph.maker(node.input[0])
        return behind is not None and (behind.op_type in NETWORK_OPS or _is_bias_add(graph, behind, static))
    return _is_bias_add(graph, node, static)


def _is_bias_add(graph: GraphCopy, node: NodeProto, static: frozenset[str]) -> bool:
    if node.op_type != "Add":
        return False
    products = [name for name in node.input if graph.maker(name, "MatMul") is not None]
    return bool(products) and any(name in static for name in node.input)


transform = Transform(
    name="cut-tail",
    summary="Cuts the post-processing off into a model that the host runs.",
    match=match,
    apply=apply_cut,
    ulps=0.0,
)
