"""Writes a GatherND with stored indices as one Gather from rows, or as a Reshape where it takes all of them in order.

The axes that the index points into become one axis of rows, and each index the number of a row.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from onnx import helper

from deploykit.encodings.place import keep_entries, share_entry
from deploykit.model.graph import GraphCopy, view_of
from deploykit.model.nodes import attribute, label
from deploykit.model.operators import is_standard
from deploykit.model.shape_inference import Shape, infer
from deploykit.rewrites.contract import MatchResult, NoMatchError, Refusal, Rewritten, Site, Transform

if TYPE_CHECKING:
    from onnx import ModelProto, NodeProto

    from deploykit.encodings.values import EncodingSet

__all__ = ["transform"]

_NONE = "no GatherND has stored indices"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Taken:
    """What a GatherND takes: numbers of rows of a matrix of rows, and the shape of the result."""

    output: str
    rows: tuple[int, ...]
    numbers: npt.NDArray[np.int64]
    shape: tuple[int, ...]

    @property
    def is_whole(self) -> bool:
        """True where every row is taken once, in order."""
        return bool(np.array_equal(self.numbers, np.arange(self.rows[0])))


def match(model: ModelProto) -> MatchResult:
    """Every GatherND with stored indices, on data of known shape."""
    graph = view_of(model)
    static = graph.static()
    nodes = [n for n in graph.nodes if n.op_type == "GatherND" and is_standard(n) and n.input[0] not in static]
    types = infer(model).types if nodes else {}
    sites, refusals = list[Site](), list[Refusal]()
    for node in nodes:
        indices = graph.array(node.input[1])
        if indices is None:
            continue
        try:
            taken = _taken(node, types.get(node.input[0], ("", None))[1], indices)
        except NoMatchError as error:
            refusals.append(Refusal(nodes=(label(node),), reason=error.reason))
        else:
            sites.append(Site(nodes=(label(node),), tensors=(taken.output,), why="its indices are stored", data=taken))
    return MatchResult(sites=tuple(sites), refusals=tuple(refusals), reason="" if sites or refusals else _NONE)


def _taken(node: NodeProto, shape: Shape, indices: npt.NDArray[Any]) -> _Taken:
    known = tuple(dim for dim in shape or () if isinstance(dim, int))
    if shape is None or len(known) != len(shape):
        raise NoMatchError(f"the shape of {node.input[0]} is not known")
    if attribute(node, "batch_dims", 0):
        raise NoMatchError("it takes other rows of each sample")
    depth = indices.shape[-1]
    pointed, rest = known[:depth], known[depth:]
    counted = np.where(indices < 0, indices + np.asarray(pointed), indices)
    numbers = np.ravel_multi_index(tuple(np.moveaxis(counted, -1, 0)), pointed).reshape(-1).astype(np.int64)
    return _Taken(
        output=node.output[0],
        rows=(math.prod(pointed), *rest),
        numbers=numbers,
        shape=(*indices.shape[:-1], *rest),
    )


def apply(model: ModelProto, encodings: EncodingSet | None, matched: MatchResult) -> Rewritten:
    """Reshape to rows, Gather, Reshape; what changes nothing is left out."""
    graph = GraphCopy(model)
    for site in matched.sites:
        encodings = _rewrite(graph, site.data, encodings)
    graph.prune()
    note = f"{len(matched.sites)} GatherNDs take rows"
    return Rewritten(model=graph.model, encodings=keep_entries(encodings, graph), notes=(note,))


def _rewrite(graph: GraphCopy, taken: _Taken, encodings: EncodingSet | None) -> EncodingSet | None:
    node = graph.makers[taken.output]
    source = node.input[0]
    steps: list[NodeProto] = []
    if not taken.is_whole:
        rows, picked = graph.fresh(f"{taken.output}_rows"), graph.fresh(f"{taken.output}_picked")
        numbers = graph.store(f"{picked}_numbers", taken.numbers)
        steps.append(_reshape(graph, source, rows, taken.rows, rows))
        steps.append(helper.make_node("Gather", [rows, numbers], [picked], name=picked, axis=0))
        encodings = share_entry(share_entry(encodings, source, [rows]), taken.output, [picked])
        source = picked
    steps.append(_reshape(graph, source, taken.output, taken.shape, node.name))
    graph.replace_nodes([node], {graph.index_of(node): steps})
    return encodings


def _reshape(graph: GraphCopy, source: str, made: str, shape: tuple[int, ...], name: str) -> NodeProto:
    stored = graph.store(f"{made}_shape", np.asarray(shape, np.int64))
    return helper.make_node("Reshape", [source, stored], [made], name=name)


transform = Transform(
    name="gathernd-to-gather",
    summary="Write a GatherND with stored indices as a Gather from rows, or as a Reshape.",
    match=match,
    apply=apply,
)
