"""Writes an AveragePool whose one window holds the whole map as a GlobalAveragePool; the mean is the same.

Exporters write such windows larger than the map, counting on the rounding up of the number of windows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from onnx import helper

from deploykit.encodings.place import keep_entries
from deploykit.model.graph import GraphCopy, view_of
from deploykit.model.nodes import attribute, label
from deploykit.model.operators import is_standard
from deploykit.model.shape_inference import infer
from deploykit.rewrites.contract import MatchResult, Rewritten, Site, Transform

if TYPE_CHECKING:
    from onnx import ModelProto, NodeProto

    from deploykit.encodings.values import EncodingSet

__all__ = ["transform"]

_NONE = "no AveragePool has a window that is larger than its map"


def match(model: ModelProto) -> MatchResult:
    """Every AveragePool without padding whose window is larger than a map of known size, and covers all of it."""
    graph = view_of(model)
    pools = [node for node in graph.nodes if node.op_type == "AveragePool" and is_standard(node)]
    types = infer(model).types if pools else {}
    sites = []
    for node in pools:
        shape = types.get(node.input[0], ("", None))[1] or ()
        if _is_global(node, shape[2:]):
            why = f"its window holds all of {list(shape)}"
            sites.append(Site(nodes=(label(node),), tensors=(node.output[0],), why=why, data=node.output[0]))
    return MatchResult(sites=tuple(sites), reason="" if sites else _NONE)


def _is_global(node: NodeProto, sizes: tuple[int | str | None, ...]) -> bool:
    window = attribute(node, "kernel_shape", [])
    plain = not any(attribute(node, "pads", [0])) and attribute(node, "auto_pad", "NOTSET") in ("NOTSET", "VALID")
    known = [size for size in sizes if isinstance(size, int)]
    if not plain or not known or len(known) != len(sizes) or len(window) != len(known):
        return False
    pairs = list(zip(known, window, strict=True))
    return all(size <= side for size, side in pairs) and any(size < side for size, side in pairs)


def apply(model: ModelProto, encodings: EncodingSet | None, matched: MatchResult) -> Rewritten:
    """Another operator in the place of each."""
    graph = GraphCopy(model)
    for site in matched.sites:
        node = graph.makers[site.data]
        pool = helper.make_node("GlobalAveragePool", [node.input[0]], [node.output[0]], name=node.name)
        graph.replace_nodes([node], {graph.index_of(node): [pool]})
    note = f"{len(matched.sites)} pools are over the whole map"
    return Rewritten(model=graph.model, encodings=keep_entries(encodings, graph), notes=(note,))


transform = Transform(
    name="global-pool",
    summary="Write an AveragePool whose window is larger than its map as a GlobalAveragePool.",
    match=match,
    apply=apply,
    ulps=16.0,
)
