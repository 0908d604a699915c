"""Writes an Einsum of two operands as the MatMul that it is, between transpositions and reshapes.

Letters of both operands that the result keeps are batches, those that it lacks are summed over. An Einsum with a
diagonal, with dots, or that sums one operand alone is left as it is.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

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


@dataclass(frozen=True, slots=True, kw_only=True)
class _Product:
    """The letters of both operands and the result as they stand, and by what becomes of them."""

    operands: tuple[str, str]
    result: str
    batch: str
    left: str
    summed: str
    right: str
    sizes: Mapping[str, int]

    def size(self, letters: str) -> int:
        return math.prod(self.sizes[letter] for letter in letters)


def match(model: ModelProto) -> MatchResult:
    """Every Einsum of two operands of known shapes that is a product of matrices."""
    graph = view_of(model)
    nodes = [node for node in graph.nodes if node.op_type == "Einsum" and is_standard(node)]
    types = infer(model).types if nodes else {}
    sites, refusals = list[Site](), list[Refusal]()
    for node in nodes:
        try:
            product = _product(node, [types.get(name, ("", None))[1] for name in node.input])
        except NoMatchError as error:
            refusals.append(Refusal(nodes=(label(node),), reason=error.reason))
        else:
            why = f"it sums over {product.summed or 'nothing'} and repeats over {product.batch or 'nothing'}"
            sites.append(Site(nodes=(label(node),), tensors=(node.output[0],), why=why, data=product))
    reason = "" if sites or refusals else "there is no Einsum"
    return MatchResult(sites=tuple(sites), refusals=tuple(refusals), reason=reason)


def _product(node: NodeProto, shapes: Sequence[Shape]) -> _Product:
    given, arrow, result = str(attribute(node, "equation", "")).replace(" ", "").partition("->")
    terms = given.split(",")
    if len(terms) != 2 or len(node.input) != 2:
        raise NoMatchError("it has other than two operands")
    a, b = terms
    if not arrow:
        result = "".join(sorted(letter for letter in {*a, *b} if (a + b).count(letter) == 1))
    if "." in given or any(len({*term}) != len(term) for term in (a, b, result)):
        raise NoMatchError("its equation has dots, or a letter twice in one term")
    if not ({*a} ^ {*b}) <= {*result} <= {*a, *b}:
        raise NoMatchError("it sums one operand alone")
    return _Product(
        operands=(a, b),
        result=result,
        batch="".join(letter for letter in result if letter in a and letter in b),
        left="".join(letter for letter in result if letter not in b),
        summed="".join(letter for letter in a if letter not in result),
        right="".join(letter for letter in result if letter not in a),
        sizes=_sizes(node, (a, b), shapes),
    )


def _sizes(node: NodeProto, terms: Sequence[str], shapes: Sequence[Shape]) -> Mapping[str, int]:
    sizes: dict[str, int] = {}
    for name, term, shape in zip(node.input, terms, shapes, strict=True):
        known = [dim for dim in shape or () if isinstance(dim, int)]
        if len(known) != len(term):
            raise NoMatchError(f"the shape of {name} is not known")
        for letter, size in zip(term, known, strict=True):
            if sizes.setdefault(letter, size) != size:
                raise NoMatchError(f"{letter} has two sizes")
    return sizes


def apply(model: ModelProto, encodings: EncodingSet | None, matched: MatchResult) -> Rewritten:
    """Per operand Transpose and Reshape, then MatMul, Reshape, Transpose; what would change nothing is left out."""
    graph = GraphCopy(model)
    touched: set[str] = set()
    for site in matched.sites:
        node, product = graph.makers[site.tensors[0]], site.data
        chain = _Chain(graph, node.output[0])
        flat = [product.size(product.batch)] if product.batch else []
        sizes = [product.size(letters) for letters in (product.left, product.summed, product.right)]
        orders = (product.batch + product.left + product.summed, product.batch + product.summed + product.right)
        factors = []
        for name, term, order, matrix in zip(node.input, product.operands, orders, (sizes[:2], sizes[1:]), strict=True):
            moved = chain.turned(name, term, order)
            factors.append(chain.shaped(moved, [product.sizes[letter] for letter in order], [*flat, *matrix]))
            encodings = share_entry(encodings, name, [made for made in (moved, factors[-1]) if made != name])
        made = product.batch + product.left + product.right
        last = chain.add("MatMul", factors)
        shaped = chain.shaped(last, [*flat, sizes[0], sizes[2]], [product.sizes[letter] for letter in made])
        turned = chain.turned(shaped, made, product.result)
        encodings = share_entry(encodings, node.output[0], list({last, shaped, turned}))
        chain.steps[-1].output[0], chain.steps[-1].name = node.output[0], node.name
        touched.update(name for step in chain.steps[:-1] for name in step.output)
        graph.replace_nodes([node], {graph.index_of(node): chain.steps})
    kept = keep_entries(encodings, graph)
    fresh = frozenset(name for name in touched if kept is None or name not in kept)
    note = f"{len(matched.sites)} Einsums are products of matrices"
    return Rewritten(model=graph.model, encodings=kept, touched=fresh, notes=(note,))


class _Chain:
    """The nodes that come in the place of one, named after what it made."""

    def __init__(self, graph: GraphCopy, made: str) -> None:
        self.graph, self.made = graph, made
        self.steps: list[NodeProto] = []

    def add(self, op_type: str, inputs: Sequence[str], **attributes: Any) -> str:
        name = self.graph.fresh(f"{self.made}_{op_type.lower()}")
        self.steps.append(helper.make_node(op_type, inputs, [name], name=name, **attributes))
        return name

    def turned(self, name: str, term: str, order: str) -> str:
        """With its axes in another order."""
        return name if term == order else self.add("Transpose", [name], perm=[term.index(letter) for letter in order])

    def shaped(self, name: str, shape: Sequence[int], wanted: Sequence[int]) -> str:
        """With its values under another shape."""
        if list(shape) == list(wanted):
            return name
        return self.add("Reshape", [name, self.graph.store(f"{name}_shape", np.asarray(wanted, np.int64))])


transform = Transform(
    name="einsum-to-matmul",
    summary="Writes an Einsum of two operands as a MatMul between transpositions and reshapes.",
    match=match,
    apply=apply,
    ulps=16.0,
)
