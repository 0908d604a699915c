"""Writes ReduceProd with what devices have: one half of the values times the other, until one is left.

Axes are brought to the end and made one first. No more than a few thousand values are multiplied.
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

_MOST_VALUES = 4096
"""Factors of one product: each doubling costs three nodes, and float products of more mean little."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Product:
    """The order that brings the reduced axes to the end, the matrix it is then, and the shape of the result."""

    order: tuple[int, ...]
    matrix: tuple[int, int]
    result: tuple[int, ...]


def match(model: ModelProto) -> MatchResult:
    """Every ReduceProd whose shape and axes are known."""
    graph = view_of(model)
    nodes = [node for node in graph.nodes if node.op_type == "ReduceProd" and is_standard(node)]
    types = infer(model).types if nodes else {}
    sites, refusals = list[Site](), list[Refusal]()
    for node in nodes:
        try:
            product = _product(graph, node, types)
        except NoMatchError as error:
            refusals.append(Refusal(nodes=(label(node),), reason=error.reason))
        else:
            why = f"it multiplies {product.matrix[1]} values"
            sites.append(Site(nodes=(label(node),), tensors=(node.output[0],), why=why, data=product))
    reason = "" if sites or refusals else "there is no ReduceProd"
    return MatchResult(sites=tuple(sites), refusals=tuple(refusals), reason=reason)


def _product(graph: GraphCopy, node: NodeProto, types: Mapping[str, tuple[str, Shape]]) -> _Product:
    shape = types.get(node.input[0], ("", None))[1]
    sizes = tuple(dim for dim in shape or () if isinstance(dim, int))
    if shape is None or len(sizes) != len(shape):
        raise NoMatchError(f"the shape of {node.input[0]} is not known")
    axes = _axes(graph, node, len(sizes))
    kept = [axis for axis in range(len(sizes)) if axis not in axes]
    columns = math.prod(sizes[axis] for axis in axes)
    if not 0 < columns <= _MOST_VALUES:
        raise NoMatchError(f"it multiplies {columns} values, from 1 to {_MOST_VALUES} are written out")
    keeps = bool(attribute(node, "keepdims", 1))
    result = tuple(1 if axis in axes else size for axis, size in enumerate(sizes) if keeps or axis not in axes)
    return _Product(order=(*kept, *axes), matrix=(math.prod(sizes[axis] for axis in kept), columns), result=result)


def _axes(graph: GraphCopy, node: NodeProto, rank: int) -> tuple[int, ...]:
    """The reduced axes in order; all of them where none is named, unless that is to mean none."""
    given = attribute(node, "axes", ())
    if len(node.input) > 1 and node.input[1]:
        stored = graph.array(node.input[1])
        if stored is None:
            raise NoMatchError(f"the axes {node.input[1]} are not stored")
        given = stored.reshape(-1).tolist()
    if not len(given) and not attribute(node, "noop_with_empty_axes", 0):
        given = range(rank)
    return tuple(sorted(int(axis) % rank for axis in given))


def apply(model: ModelProto, encodings: EncodingSet | None, matched: MatchResult) -> Rewritten:
    """Transpose, Reshape, halve and multiply, Reshape."""
    graph = GraphCopy(model)
    touched: set[str] = set()
    for site in matched.sites:
        node = graph.makers[site.tensors[0]]
        steps, moved, last = _steps(graph, node, site.data)
        encodings = share_entry(share_entry(encodings, node.input[0], moved), node.output[0], [last])
        touched.update(step.output[0] for step in steps[:-1])
        graph.replace_nodes([node], {graph.index_of(node): steps})
    kept = keep_entries(encodings, graph)
    fresh = frozenset(name for name in touched if kept is None or name not in kept)
    note = f"{len(matched.sites)} products are made by halves"
    return Rewritten(model=graph.model, encodings=kept, touched=fresh, notes=(note,))


def _steps(graph: GraphCopy, node: NodeProto, product: _Product) -> tuple[list[NodeProto], list[str], str]:
    """The nodes, the tensors among theirs that hold values of the input, and the one that holds the products."""
    made, (rows, columns) = node.output[0], product.matrix
    ordered, matrix = graph.fresh(f"{made}_ordered"), graph.fresh(f"{made}_matrix")
    size = graph.store(f"{matrix}_shape", np.asarray([rows, columns], np.int64))
    steps = [
        helper.make_node("Transpose", [node.input[0]], [ordered], name=ordered, perm=list(product.order)),
        helper.make_node("Reshape", [ordered, size], [matrix], name=matrix),
    ]
    last = matrix
    while columns > 1:
        last, columns = _halved(graph, steps, (last, columns), made), (columns + 1) // 2
    whole = graph.store(f"{made}_shape", np.asarray(product.result, np.int64))
    steps.append(helper.make_node("Reshape", [last, whole], [made], name=node.name))
    return steps, [ordered, matrix], last


def _halved(graph: GraphCopy, steps: list[NodeProto], given: tuple[str, int], made: str) -> str:
    """One half of the columns times the other; the last of an odd number goes on as it is."""
    source, columns = given
    half, odd = divmod(columns, 2)
    names = [graph.fresh(f"{made}_{what}{columns}") for what in ("front", "back", "rest")[: 2 + odd]]
    sizes = graph.store(f"{names[0]}_sizes", np.asarray([half, half, odd][: 2 + odd], np.int64))
    product = graph.fresh(f"{made}_product{columns}")
    if graph.opset < _SIZES_ARE_AN_INPUT:
        split = helper.make_node("Split", [source], names, name=names[0], axis=1, split=[half, half, odd][: 2 + odd])
    else:
        split = helper.make_node("Split", [source, sizes], names, name=names[0], axis=1)
    steps += [split, helper.make_node("Mul", names[:2], [product], name=product)]
    if not odd:
        return product
    joined = graph.fresh(f"{made}_joined{columns}")
    steps.append(helper.make_node("Concat", [product, names[2]], [joined], name=joined, axis=1))
    return joined


_SIZES_ARE_AN_INPUT = 13
"""From this opset on Split takes its sizes as an input."""

transform = Transform(
    name="product-by-halves",
    summary="Writes ReduceProd as products of halves.",
    match=match,
    apply=apply,
    ulps=64.0,
)
