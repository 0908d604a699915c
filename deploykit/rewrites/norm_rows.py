"""Writes a layer or RMS normalization as one over the rows of a matrix, with a Reshape in front and behind.

For normalizations over several axes, and for those over several samples. No value changes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
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

_NORMS = ("LayerNormalization", "RMSNormalization")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Rows:
    """A normalization of ``shape`` whose last ``shape[axis:]`` are one row."""

    output: str
    shape: tuple[int, ...]
    axis: int

    @property
    def matrix(self) -> tuple[int, int]:
        """Rows and columns."""
        return math.prod(self.shape[: self.axis]), math.prod(self.shape[self.axis :])


def match(model: ModelProto) -> MatchResult:
    """Every normalization over several axes, and every RMS normalization of several samples."""
    graph = view_of(model)
    norms = [node for node in graph.nodes if node.op_type in _NORMS and is_standard(node)]
    shapes = {name: known[1] for name, known in infer(model).types.items()} if norms else {}
    sites, refusals = list[Site](), list[Refusal]()
    for node in norms:
        try:
            rows = _rows(graph, node, shapes)
        except NoMatchError as error:
            refusals.append(Refusal(nodes=(label(node),), reason=error.reason))
            continue
        if rows is not None:
            why = f"{node.input[0]} has {rows.matrix[0]} rows of {rows.matrix[1]}"
            sites.append(Site(nodes=(label(node),), tensors=(rows.output,), why=why, data=rows))
    reason = "" if sites or refusals else "no normalization is over several axes, and no RMS one of several samples"
    return MatchResult(sites=tuple(sites), refusals=tuple(refusals), reason=reason)


def _rows(graph: GraphCopy, node: NodeProto, shapes: Mapping[str, Shape]) -> _Rows | None:
    """The matrix of a normalization, None where it is one over the rows of each sample as it should be."""
    given = shapes.get(node.input[0]) or ()
    axis = int(attribute(node, "axis", -1))
    several = node.op_type == "RMSNormalization" and len(given) > 2 and given[0] != 1
    if axis in (-1, len(given) - 1) and not several:
        return None
    shape = tuple(dim for dim in given if isinstance(dim, int))
    if not shape or len(shape) != len(given):
        raise NoMatchError(f"the shape of {node.input[0]} is not known")
    if len(node.output) > 1:
        raise NoMatchError("it gives its statistics too")
    rows = _Rows(output=node.output[0], shape=shape, axis=axis % len(shape))
    for name in filter(None, node.input[1:]):
        if _count(graph, name, shapes) != rows.matrix[1]:
            raise NoMatchError(f"{name} has not one value for each column, as far as is known")
    return rows


def _count(graph: GraphCopy, name: str, shapes: Mapping[str, Shape]) -> int | None:
    """How many values a scale or bias has; None where its shape is not known."""
    shape = tuple(graph.stored[name].dims) if name in graph.stored else shapes.get(name)
    sizes = [dim for dim in shape or () if isinstance(dim, int)]
    return None if shape is None or len(sizes) != len(shape) else math.prod(sizes)


def apply(model: ModelProto, encodings: EncodingSet | None, matched: MatchResult) -> Rewritten:
    """Reshape, the normalization over the last axis, Reshape."""
    graph = GraphCopy(model)
    for site in matched.sites:
        encodings = _rewrite(graph, site.data, encodings)
    note = f"{len(matched.sites)} norms are over the rows of a matrix"
    return Rewritten(model=graph.model, encodings=keep_entries(encodings, graph), notes=(note,))


def _rewrite(graph: GraphCopy, rows: _Rows, encodings: EncodingSet | None) -> EncodingSet | None:
    node = graph.makers[rows.output]
    source = node.input[0]
    before, behind = graph.fresh(f"{rows.output}_rows"), graph.fresh(f"{rows.output}_normalized")
    matrix = graph.store(f"{before}_shape", np.asarray(rows.matrix, np.int64))
    whole = graph.store(f"{behind}_shape", np.asarray(rows.shape, np.int64))
    encodings = share_entry(share_entry(encodings, source, [before]), rows.output, [behind])
    inputs, steps = [before], [helper.make_node("Reshape", [source, matrix], [before], name=before)]
    for name in node.input[1:]:
        flat, made = _flat(graph, name, rows.matrix[1])
        encodings = encodings if flat == name else share_entry(encodings, name, [flat])
        inputs.append(flat)
        steps += made
    settings = {a.name: helper.get_attribute_value(a) for a in node.attribute if a.name != "axis"}
    steps += [
        helper.make_node(node.op_type, inputs, [behind], name=node.name, axis=-1, **settings),
        helper.make_node("Reshape", [behind, whole], [rows.output], name=f"{behind}_back"),
    ]
    graph.replace_nodes([node], {graph.index_of(node): steps})
    return encodings


def _flat(graph: GraphCopy, name: str, columns: int) -> tuple[str, list[NodeProto]]:
    """A scale or bias with one axis, and the node that makes it so where it is computed; "" is none."""
    value = graph.array(name) if name else None
    if not name or (value is not None and value.ndim == 1):
        return name, []
    if value is not None:
        return graph.store(f"{name}_row", value.reshape(-1)), []
    made, size = graph.fresh(f"{name}_row"), graph.store(f"{name}_row_shape", np.asarray([columns], np.int64))
    return made, [helper.make_node("Reshape", [name, size], [made], name=made)]


transform = Transform(
    name="norm-rows",
    summary="Write a normalization over several axes, or an RMS one of several samples, as one over rows of a matrix.",
    match=match,
    apply=apply,
    ulps=16.0,
)
