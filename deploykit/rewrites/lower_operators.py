"""Rewrites of operators that devices lack with operators that they have.

Pools are in ``lower_pools``, ranks and orders of tensors in ``lower_shapes``.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from deploykit.model.nodes import attribute, label
from deploykit.model.ranges import ANYTHING, graph_bounds
from deploykit.rewrites.contract import Match, ModelLook, NodeSteps, NoMatchError, rewrite

if TYPE_CHECKING:
    from onnx import NodeProto

__all__ = [
    "clip_to_extremes",
    "cumulate_forward",
    "divide_by_root",
    "einsum_to_matmul",
    "flat_index",
    "gathernd_to_gather",
    "index_from_front",
    "integer_remainder",
    "last_index",
    "norm_statistics",
    "product_by_halves",
]

# Factors of one product: each doubling costs three nodes, and float products of more mean little.
_MOST_FACTORS = 4096


@rewrite(
    "Einsum",
    name="einsum-to-matmul",
    summary="Writes an Einsum of two operands as a MatMul between transpositions and reshapes.",
    none="there is no Einsum",
    note="{} Einsums are products of matrices",
    ulps=16.0,
    completes=True,
)
def einsum_to_matmul(look: ModelLook, node: NodeProto) -> Match:
    """Letters of both operands that the result keeps are batches, those that it lacks are summed over."""
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
    size: dict[str, int] = {}
    for name, term in zip(node.input, terms, strict=True):
        known = look.sizes(name)
        if len(known) != len(term) or any(size.setdefault(x, n) != n for x, n in zip(term, known, strict=True)):
            raise NoMatchError(f"the shape of {name} does not fit its equation")
    batch = "".join(letter for letter in result if letter in a and letter in b)
    left = "".join(letter for letter in result if letter not in b)
    summed = "".join(letter for letter in a if letter not in result)
    right = "".join(letter for letter in result if letter not in a)

    def ordered(to: NodeSteps, source: str, term: str, order: str) -> str:
        perm = [term.index(letter) for letter in order]
        return source if term == order else to.add("Transpose", [source], f"{node.output[0]}_transpose", perm=perm)

    def write(to: NodeSteps) -> None:
        made, moved = to.node.output[0], list[str]()
        flat = [math.prod(size[letter] for letter in batch)] if batch else []
        rows, inner, columns = (math.prod(size[letter] for letter in part) for part in (left, summed, right))
        factors = []
        for source, term, order, matrix in (
            (to.node.input[0], a, batch + left + summed, [*flat, rows, inner]),
            (to.node.input[1], b, batch + summed + right, [*flat, inner, columns]),
        ):
            turned = ordered(to, source, term, order)
            if [size[letter] for letter in order] != matrix:
                turned = to.reshape(turned, matrix, f"{made}_reshape")
            factors.append(turned)
            to.share(source, *(step.output[0] for step in to.nodes if step.output[0] not in {*moved}))
            moved += [step.output[0] for step in to.nodes]
        shaped = product = to.add("MatMul", factors, f"{made}_matmul")
        letters = batch + left + right
        if [*flat, rows, columns] != [size[letter] for letter in letters]:
            shaped = to.reshape(product, [size[letter] for letter in letters], f"{made}_reshape")
        turned = ordered(to, shaped, letters, result)
        to.share(made, product, shaped, turned)
        to.nodes[-1].output[0], to.nodes[-1].name = made, to.node.name

    return Match(why=f"it sums over {summed or 'nothing'} and repeats over {batch or 'nothing'}", write=write)


@rewrite(
    "GatherND",
    name="gathernd-to-gather",
    summary="Write a GatherND with stored indices as a Gather from rows, or as a Reshape.",
    none="no GatherND has stored indices",
    note="{} GatherNDs take rows",
)
def gathernd_to_gather(look: ModelLook, node: NodeProto) -> Match | None:
    """The axes that an index points into become one axis of rows, and each index the number of a row."""
    indices = look.array(node.input[1])
    if indices is None or node.input[0] in look.static():
        return None
    shape = look.sizes(node.input[0])
    if attribute(node, "batch_dims", 0):
        raise NoMatchError("it takes other rows of each sample")
    pointed, rest = shape[: indices.shape[-1]], shape[indices.shape[-1] :]
    counted = np.where(indices < 0, indices + np.asarray(pointed), indices)
    numbers = np.ravel_multi_index(tuple(np.moveaxis(counted, -1, 0)), pointed).reshape(-1)
    result = (*indices.shape[:-1], *rest)

    def write(to: NodeSteps) -> None:
        source, made = to.node.input[0], to.node.output[0]
        if not np.array_equal(numbers, np.arange(math.prod(pointed))):
            rows = to.reshape(source, (math.prod(pointed), *rest), f"{made}_rows")
            picked = to.add("Gather", [rows, to.store(f"{made}_picked_numbers", numbers)], f"{made}_picked", axis=0)
            to.share(source, rows)
            to.share(made, picked)
            source = picked
        to.reshape(source, result)

    return Match(why="its indices are stored", write=write)


@rewrite(
    "Gather",
    name="flat-index",
    summary="Gather from a list by a flat index and shape the result, instead of by an index of several dimensions.",
    none="no computed list is gathered from by a stored index of several dimensions",
    note="{} lists are gathered from by flat indices",
)
def flat_index(look: ModelLook, node: NodeProto) -> Match | None:
    """An index that counts through the whole list leaves nothing to gather."""
    index = look.array(node.input[1])
    if index is None or index.ndim < 2 or node.input[0] in look.static():
        return None
    if look.rank(node.input[0]) != 1:
        return None
    whole = look.shape(node.input[0]) == (index.size,) and bool((index.reshape(-1) == np.arange(index.size)).all())

    def write(to: NodeSteps) -> None:
        source, made = to.node.input[0], to.node.output[0]
        if whole:
            to.reshape(source, index.shape)
            return
        stored = to.store(f"{made}_flat_index", index.reshape(-1))
        flat = to.add("Gather", [source, stored], f"{made}_flat", name=to.node.name, axis=0)
        to.share(made, flat)
        to.reshape(flat, index.shape, name=to.graph.fresh(f"{made}_shaped"))

    return Match(why=f"an index of {index.ndim} dimensions into a list", write=write)


@rewrite(
    *("Gather", "GatherElements", "GatherND"),
    name="index-from-front",
    summary="Counts the stored indices of Gather, GatherElements and GatherND from the front.",
    none="no stored index of a Gather, GatherElements or GatherND is negative",
    note="{} index lists count from the front",
)
def index_from_front(look: ModelLook, node: NodeProto) -> Match | None:
    """Devices count from the front only; the sum is stored beside the indices, which others may read as they are."""
    indices: Any = look.array(node.input[1])
    if indices is None or indices.dtype.kind != "i" or not (indices < 0).any():
        return None
    first, count = int(attribute(node, "axis", 0)), 1
    if node.op_type == "GatherND":
        first, count = int(attribute(node, "batch_dims", 0)), indices.shape[-1]
    sizes = look.sizes(node.input[0], *range(first, first + count))
    added = np.asarray(sizes if len(sizes) > 1 else sizes[0], indices.dtype)

    def write(to: NodeSteps) -> None:
        to.gone = []
        counted = np.where(indices < 0, indices + added, indices)
        to.node.input[1] = to.store(f"{to.node.input[1]}_from_front", counted)

    why = f"{node.input[1]} counts from the end of a dimension that is known"
    return Match(why=why, write=write, tensors=(node.input[1],))


@rewrite(
    *("ArgMax", "ArgMin"),
    name="last-index",
    summary="Writes ArgMax and ArgMin that take the last of equal values with those that take the first.",
    none="no ArgMax or ArgMin selects the last index",
    note="{} searches take the first of equal values in reversed order",
)
def last_index(look: ModelLook, node: NodeProto) -> Match | None:
    """The first over the reversed axis, counted from the end."""
    if not attribute(node, "select_last_index", 0):
        return None
    axis = int(attribute(node, "axis", 0))
    (size,) = look.sizes(node.input[0], axis)

    def write(to: NodeSteps) -> None:
        source, made = to.node.input[0], to.node.output[0]
        turned = _reversed(to, source, f"{made}_reversed", (axis, size))
        keeps = int(attribute(to.node, "keepdims", 1))
        first = to.add(to.node.op_type, [turned], f"{made}_first", name=to.node.name, axis=axis, keepdims=keeps)
        last = to.store(f"{made}_last", size - 1)
        to.end("Sub", [last, first], name=f"{made}_from_end")
        to.share(source, turned)

    return Match(why=f"the last of {size} places is wanted where values are equal", write=write)


def _reversed(to: NodeSteps, source: str, made: str, along: tuple[int, int], *, ends: bool = False) -> str:
    """The values along an axis of a size from the last to the first."""
    axis, size = along
    order = to.store(f"{made}_order", np.arange(size - 1, -1, -1))
    if ends:
        to.end("Gather", [source, order], name=f"{made}_turn", axis=axis)
        return made
    return to.add("Gather", [source, order], made, axis=axis)


@rewrite(
    "CumSum",
    name="cumulate-forward",
    summary="Writes a reversed or exclusive CumSum with one that is neither.",
    none="no CumSum is exclusive or reversed",
    note="{} cumulative sums run forwards over all values",
    ulps=4.0,
)
def cumulate_forward(look: ModelLook, node: NodeProto) -> Match | None:
    """Turn, shift by a zero, cumulate, turn back."""
    shifts, turns = (bool(attribute(node, name, 0)) for name in ("exclusive", "reverse"))
    if not (shifts or turns):
        return None
    rank = look.rank(node.input[0])
    axis = 0 if rank == 1 else int(look.values(node.input[1]).reshape(())) % rank  # a vector has one axis
    (size,) = look.sizes(node.input[0], axis)
    if size < 1:
        raise NoMatchError(f"{node.input[0]} is empty")

    def write(to: NodeSteps) -> None:
        made, source = to.node.output[0], to.node.input[0]
        given = _reversed(to, source, f"{made}_turned", (axis, size)) if turns else source
        if shifts:  # one zero in front, and the last value gone
            pads = [int(at == axis) for at in range(2 * rank)]
            longer = to.add("Pad", [given, to.store(f"{made}_longer_pads", pads)], f"{made}_longer")
            bounds = [to.store(f"{made}_shifted_{w}", [at]) for w, at in (("start", 0), ("end", size), ("axis", axis))]
            given = to.add("Slice", [longer, *bounds], f"{made}_shifted")
        to.share(source, *(step.output[0] for step in to.nodes))
        place = to.store(f"{made}_axis", axis)
        if not turns:
            to.end("CumSum", [given, place])
            return
        summed = to.add("CumSum", [given, place], f"{made}_forward", name=to.node.name)
        to.share(made, summed)
        _reversed(to, summed, made, (axis, size), ends=True)

    words = [word for word, holds in (("exclusive", shifts), ("reverse", turns)) if holds]
    return Match(why=f"it is {' and '.join(words)}", write=write)


@rewrite(
    "Mod",
    name="integer-remainder",
    summary="Writes Mod with fmod = 1 of integers with what devices have.",
    none="no Mod keeps the sign of its dividend",
    note="{} remainders of integers need no fmod",
)
def integer_remainder(look: ModelLook, node: NodeProto) -> Match | None:
    """The other Mod where signs cannot differ, else a - (a / b) * b: integer division cuts towards zero."""
    if not attribute(node, "fmod", 0):
        return None
    if "int" not in look.dtype(node.input[0]):
        raise NoMatchError("it is a remainder of floats")
    bounds = graph_bounds(look)
    positive = all(bounds.get(name, ANYTHING)[0] >= 0 for name in node.input)

    def write(to: NodeSteps) -> None:
        (dividend, divisor), made = to.node.input, to.node.output[0]
        if positive:
            to.end("Mod", [dividend, divisor])
            return
        quotient = to.add("Div", [dividend, divisor], f"{made}_quotient")
        whole = to.add("Mul", [quotient, divisor], f"{made}_whole")
        to.end("Sub", [dividend, whole])

    return Match(why="it is a remainder of integers", write=write)


@rewrite(
    "ReduceProd",
    name="product-by-halves",
    summary="Writes ReduceProd as products of halves.",
    none="there is no ReduceProd",
    note="{} products are made by halves",
    ulps=64.0,
    completes=True,
)
def product_by_halves(look: ModelLook, node: NodeProto) -> Match:
    """Axes are brought to the end and made one; then one half times the other, until one value is left."""
    sizes = look.sizes(node.input[0])
    axes = look.axes(node, len(sizes))
    kept = [axis for axis in range(len(sizes)) if axis not in axes]
    rows, columns = (math.prod(sizes[axis] for axis in part) for part in (kept, axes))
    if not 0 < columns <= _MOST_FACTORS:
        raise NoMatchError(f"it multiplies {columns} values, from 1 to {_MOST_FACTORS} are written out")
    keeps = bool(attribute(node, "keepdims", 1))
    result = [1 if axis in axes else size for axis, size in enumerate(sizes) if keeps or axis not in axes]

    def write(to: NodeSteps) -> None:
        made = to.node.output[0]
        ordered = to.add("Transpose", [to.node.input[0]], f"{made}_ordered", perm=[*kept, *axes])
        last, left = to.reshape(ordered, [rows, columns], f"{made}_matrix"), columns
        to.share(to.node.input[0], ordered, last)
        while left > 1:
            half, odd = divmod(left, 2)
            names = [to.graph.fresh(f"{made}_{what}{left}") for what in ("front", "back", "rest")[: 2 + odd]]
            to.listed("Split", last, "split", [half, half, odd][: 2 + odd], names, axis=1)
            last = to.add("Mul", names[:2], f"{made}_product{left}")
            if odd:  # the last column goes on as it is
                last = to.add("Concat", [last, names[2]], f"{made}_joined{left}", axis=1)
            left = half + odd
        to.reshape(last, result)
        to.share(made, last)

    return Match(why=f"it multiplies {columns} values", write=write)


@rewrite(
    "LayerNormalization",
    name="norm-statistics",
    summary="Computes the statistics that a LayerNormalization gives on their own.",
    none="no LayerNormalization gives its statistics",
    note="{} normalizations give their result only",
    ulps=64.0,
    completes=True,
)
def norm_statistics(look: ModelLook, node: NodeProto) -> Match | None:
    """Mean, deviation from it, its square's mean, and one over the root; what nothing reads is dropped."""
    if not any(node.output[1:]):
        return None
    rank, dtype = look.rank(node.input[0]), look.dtype(node.input[0])
    if dtype != "float":
        raise NoMatchError(f"{node.input[0]} is {dtype or 'of unknown type'}, its statistics need not be")
    axes = list(range(int(attribute(node, "axis", -1)) % rank, rank))

    def write(to: NodeSteps) -> None:
        source, made = to.node.input[0], to.node.output[0]
        given = zip([*to.node.output[1:], ""][:2], ("mean", "inverse"), strict=True)
        mean, inverse = (name or to.graph.fresh(f"{made}_{what}") for name, what in given)
        to.gone = []
        del to.node.output[1:]
        to.listed("ReduceMean", source, "axes", axes, mean, keepdims=1)
        off = to.add("Sub", [source, mean], f"{inverse}_deviation")
        square = to.add("Mul", [off, off], f"{inverse}_square")
        variance = to.listed("ReduceMean", square, "axes", axes, to.graph.fresh(f"{inverse}_variance"), keepdims=1)
        epsilon = to.store(f"{inverse}_epsilon", float(attribute(to.node, "epsilon", 1e-5)))
        total = to.add("Add", [variance, epsilon], f"{inverse}_sum")
        root = to.add("Sqrt", [total], f"{inverse}_root")
        # The statistics keep their names, so the last step takes the given one.
        to.add("Reciprocal", [root], f"{inverse}_of_root")
        to.nodes[-1].output[0] = to.nodes[-1].name = inverse

    return Match(why="it gives its statistics beside its result", write=write)


@rewrite(
    "Reciprocal",
    name="divide-by-root",
    summary="Divide by a Sqrt where a graph multiplies by its Reciprocal.",
    none="the graph has no Reciprocal of a Sqrt",
    note="{} products with the reciprocal of a root are quotients",
    ulps=4.0,
)
def divide_by_root(look: ModelLook, node: NodeProto) -> Match | None:
    """As norms have it; it changes the order of two roundings and nothing else."""
    root, inverse = node.input[0], node.output[0]
    if look.maker(root, "Sqrt") is None:
        return None
    product = look.only_reader(inverse)
    if product is None or product.op_type != "Mul" or list(product.input).count(inverse) != 1:
        raise NoMatchError(f"{inverse} is read by something else than one product")

    def write(to: NodeSteps) -> None:
        (dividend,) = (name for name in to.node.input if name != inverse)
        to.gone = [to.node, to.graph.makers[inverse]]
        to.end("Div", [dividend, root])

    why = f"{product.output[0]} is a quotient by {root}"
    nodes = (label(node), label(product))
    return Match(why=why, write=write, output=product.output[0], nodes=nodes, tensors=(inverse,))


@rewrite(
    "Clip",
    name="clip-to-extremes",
    summary="Writes a Clip with computed bounds as a Max and a Min.",
    none="no Clip has computed bounds",
    note="{} Clips are made of Max and Min",
    completes=True,
)
def clip_to_extremes(look: ModelLook, node: NodeProto) -> Match | None:
    """A bound that is infinite bounds nothing and is left out."""
    bounds = [*node.input[1:], "", ""][:2]
    if all(not name or look.array(name) is not None for name in bounds):
        return None

    def write(to: NodeSteps) -> None:
        source, made = to.node.input[0], to.node.output[0]
        for op_type, name in zip(("Max", "Min"), bounds, strict=True):
            value = look.array(name) if name else None
            if name and (value is None or np.isfinite(value).all()):
                source = to.add(op_type, [source, name], f"{made}_{op_type.lower()}")
        to.share(made, *(step.output[0] for step in to.nodes))
        to.nodes[-1].output[0], to.nodes[-1].name = made, to.node.name

    return Match(why="its bounds are computed", write=write)
