"""Gives a BatchNormalization of rank 5 or more an input of rank 4: all axes behind the third are made one.

The statistics are per channel, so that the other axes may be arranged as one likes. No value changes.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
from onnx import helper

from deploykit.encodings.place import keep_entries, share_entry
from deploykit.model.graph import GraphCopy, view_of
from deploykit.model.nodes import label
from deploykit.model.operators import is_standard
from deploykit.model.shape_inference import infer
from deploykit.rewrites.contract import MatchResult, Refusal, Rewritten, Site, Transform

if TYPE_CHECKING:
    from onnx import ModelProto, NodeProto

    from deploykit.encodings.values import EncodingSet

__all__ = ["transform"]

_RANK = 4


def match(model: ModelProto) -> MatchResult:
    """Every BatchNormalization of more than four dimensions of known size."""
    graph = view_of(model)
    nodes = [node for node in graph.nodes if node.op_type == "BatchNormalization" and is_standard(node)]
    types = infer(model).types if nodes else {}
    sites, refusals = list[Site](), list[Refusal]()
    for node in nodes:
        shape = types.get(node.input[0], ("", None))[1] or ()
        sizes = tuple(dim for dim in shape if isinstance(dim, int))
        if len(shape) <= _RANK:
            continue
        if len(sizes) != len(shape):
            refusals.append(Refusal(nodes=(label(node),), reason=f"the shape of {node.input[0]} is not known"))
        elif any(node.output[1:]):
            refusals.append(Refusal(nodes=(label(node),), reason="it gives its statistics too"))
        else:
            why = f"{node.input[0]} has {len(shape)} dimensions"
            sites.append(Site(nodes=(label(node),), tensors=(node.output[0],), why=why, data=sizes))
    reason = "" if sites or refusals else f"no BatchNormalization has more than {_RANK} dimensions"
    return MatchResult(sites=tuple(sites), refusals=tuple(refusals), reason=reason)


def apply(model: ModelProto, encodings: EncodingSet | None, matched: MatchResult) -> Rewritten:
    """Reshape, the normalization, Reshape."""
    graph = GraphCopy(model)
    for site in matched.sites:
        node = graph.makers[site.tensors[0]]
        encodings = _rewrite(graph, node, site.data, encodings)
    note = f"{len(matched.sites)} batch normalizations have {_RANK} dimensions"
    return Rewritten(model=graph.model, encodings=keep_entries(encodings, graph), notes=(note,))


def _rewrite(
    graph: GraphCopy, node: NodeProto, shape: tuple[int, ...], encodings: EncodingSet | None
) -> EncodingSet | None:
    source, made = node.input[0], node.output[0]
    given, normalized = graph.fresh(f"{made}_merged"), graph.fresh(f"{made}_normalized")
    merged = (*shape[: _RANK - 1], math.prod(shape[_RANK - 1 :]))
    sizes = graph.store(f"{given}_shape", np.asarray(merged, np.int64))
    whole = graph.store(f"{normalized}_shape", np.asarray(shape, np.int64))
    settings = {a.name: helper.get_attribute_value(a) for a in node.attribute}
    steps = [
        helper.make_node("Reshape", [source, sizes], [given], name=given),
        helper.make_node(node.op_type, [given, *node.input[1:]], [normalized], name=node.name, **settings),
        helper.make_node("Reshape", [normalized, whole], [made], name=f"{normalized}_back"),
    ]
    graph.replace_nodes([node], {graph.index_of(node): steps})
    return share_entry(share_entry(encodings, source, [given]), made, [normalized])


transform = Transform(
    name="batchnorm-rank",
    summary="Gives a BatchNormalization of rank 5 or more an input of rank 4.",
    match=match,
    apply=apply,
    ulps=4.0,
)
