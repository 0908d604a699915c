"""What each operator does to axes of chosen rows: keeps, merges, joins, picks from or drops them. By shapes alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol, TypeAlias

from deploykit.accuracy.judge.rows import Axes, Chosen, Flat, Joined, Listed, Rows, index_tensors
from deploykit.model.facts import NodeFact

__all__ = ["CHOOSERS", "RULES", "Known", "Rule", "elementwise", "regroup"]


class Known(Protocol):
    """What is known of the tensors before an operator."""

    def axes(self, tensor: str) -> Axes:
        """Per axis its rows; empty when there are none at all."""

    def full(self, tensor: str) -> Axes | None:
        """``axes`` with a None for every axis of a tensor without chosen rows; None when the rank is unknown."""

    def shape(self, tensor: str) -> tuple[int | str | None, ...] | None:
        """The shape as known."""


Rule: TypeAlias = Callable[[Known, NodeFact], tuple[Axes, ...] | Axes | None]


def _axis(node: NodeFact, rank: int, default: int) -> int:
    return int(node.attributes.get("axis", default)) % max(rank, 1)


def _topk(sets: Known, node: NodeFact) -> Axes | None:
    axes, shape = sets.full(node.inputs[0]), sets.shape(node.inputs[0])
    if axes is None or shape is None or len(node.outputs) < 2 or not node.outputs[1]:
        return None
    axis = _axis(node, len(axes), -1)
    size = shape[axis]
    if not isinstance(size, int):
        return None
    chosen = Chosen(index=node.outputs[1], axis=axis, size=size, of=axes[axis])
    return (*axes[:axis], chosen, *axes[axis + 1 :])


def _suppressed(_sets: Known, node: NodeFact) -> Axes:
    return (Listed(index=node.outputs[0], axis=0), None)


def _nonzero(_sets: Known, node: NodeFact) -> Axes:
    return (None, Listed(index=node.outputs[0], axis=1))


def elementwise(sets: Known, node: NodeFact) -> Axes | None:
    """Inputs broadcast to the output, aligned at the right; also what keeps its input's shape, like Softmax."""
    shape = sets.shape(node.outputs[0]) if node.outputs else None
    if shape is None:
        return None
    found: list[Rows | None] = [None] * len(shape)
    for name in node.inputs:
        axes, inner = sets.axes(name), sets.shape(name)
        if not axes or inner is None or len(inner) > len(shape):
            continue
        for place, (rows, dim) in enumerate(zip(reversed(axes), reversed(inner), strict=True), 1):
            if rows is not None and dim == shape[-place] and found[-place] is None:
                found[-place] = rows
    return tuple(found)


def _transpose(sets: Known, node: NodeFact) -> Axes | None:
    axes = sets.full(node.inputs[0])
    if axes is None:
        return None
    order = node.attributes.get("perm", tuple(range(len(axes)))[::-1])
    return tuple(axes[int(axis)] for axis in order)


def _reshape(sets: Known, node: NodeFact) -> Axes | None:
    axes, before = sets.full(node.inputs[0]), sets.shape(node.inputs[0])
    after = sets.shape(node.outputs[0])
    return None if axes is None or before is None or after is None else regroup(axes, before, after)


def regroup(axes: Axes, before: Sequence[int | str | None], after: Sequence[int | str | None]) -> Axes | None:
    """The axes of a tensor after a Reshape: kept, merged, or taken apart again where they were merged before."""
    found: list[Rows | None] = [None] * len(after)
    left, right = 0, 0
    while left < len(before) and right < len(after):
        if before[left] == after[right]:
            found[right] = axes[left]
            left, right = left + 1, right + 1
            continue
        start, stop = (left, right), _group(before, after, left, right)
        if stop is None:
            return tuple(found)
        left, right = stop
        parts = [(axes[i], int(before[i] or 1)) for i in range(start[0], left) if before[i] != 1]
        places = [i for i in range(start[1], right) if after[i] != 1]
        for place, rows in zip(places, _regrouped(parts, [int(after[i] or 1) for i in places]), strict=True):
            found[place] = rows
    return tuple(found)


def _group(
    before: Sequence[int | str | None], after: Sequence[int | str | None], left: int, right: int
) -> tuple[int, int] | None:
    """Where the smallest groups of axes with equal products end."""
    one, two = before[left], after[right]
    left, right = left + 1, right + 1
    while one != two:
        if not isinstance(one, int) or not isinstance(two, int):
            return None
        if one < two and left < len(before):
            one, left = _times(one, before[left]), left + 1
        elif right < len(after):
            two, right = _times(two, after[right]), right + 1
        else:
            return None
    return left, right


def _times(product: int, dim: int | str | None) -> int | None:
    return product * dim if isinstance(dim, int) else None


def _regrouped(parts: list[tuple[Rows | None, int]], lengths: list[int]) -> list[Rows | None]:
    """Rows for each of ``lengths``, from axes of the same product."""
    if len(parts) == 1 and isinstance(parts[0][0], Flat):
        parts = list(parts[0][0].parts)
    if [size for _, size in parts] == lengths:
        return [rows for rows, _ in parts]
    if len(lengths) == 1 and any(rows is not None for rows, _ in parts):
        return [Flat(parts=tuple(parts))]
    return [None] * len(lengths)


def _gather(sets: Known, node: NodeFact) -> Axes | None:
    data, index = sets.full(node.inputs[0]), sets.full(node.inputs[1])
    if data is None or index is None:
        return None
    axis = _axis(node, len(data), 0)
    if index:
        index = (*index[:-1], _picked(sets, node, axis, len(index) - 1, data[axis], index[-1]))
    return (*data[:axis], *index, *data[axis + 1 :])


def _gather_elements(sets: Known, node: NodeFact) -> Axes | None:
    data, index = sets.full(node.inputs[0]), sets.full(node.inputs[1])
    if data is None or index is None or len(data) != len(index):
        return None
    axis = _axis(node, len(data), 0)
    found = [rows or kept for rows, kept in zip(index, data, strict=True)]
    found[axis] = _picked(sets, node, axis, axis, data[axis], index[axis])
    return tuple(found)


def _picked(sets: Known, node: NodeFact, axis: int, place: int, data: Rows | None, index: Rows | None) -> Rows | None:
    """Rows of rows: what the index itself was chosen from says enough where those are the same rows.

    Otherwise what counts is which of the data's rows stand at the places that the index names.
    """
    if data is None or (index is not None and set(index_tensors([data])) <= set(index_tensors([index]))):
        return index
    shape = sets.shape(node.inputs[0])
    size = shape[axis] if shape is not None else None
    return Chosen(index=node.inputs[1], axis=place, size=size, of=data) if isinstance(size, int) else None


def _gather_nd(sets: Known, node: NodeFact) -> Axes | None:
    data, index = sets.full(node.inputs[0]), sets.full(node.inputs[1])
    shape = sets.shape(node.inputs[1])
    if data is None or index is None or not shape or not isinstance(shape[-1], int):
        return None
    return (*index[:-1], *data[int(node.attributes.get("batch_dims", 0)) + shape[-1] :])


def _concat(sets: Known, node: NodeFact) -> Axes | None:
    every = [sets.full(name) for name in node.inputs]
    shapes = [sets.shape(name) for name in node.inputs]
    if any(axes is None for axes in every) or any(shape is None for shape in shapes):
        return None
    known = [axes for axes in every if axes is not None]
    along = _axis(node, len(known[0]), 0)
    lengths = [shape[along] if shape else None for shape in shapes]
    found = [next((axes[place] for axes in known if axes[place]), None) for place in range(len(known[0]))]
    found[along] = None
    if any(axes[along] for axes in known) and all(isinstance(length, int) for length in lengths):
        sizes = [length for length in lengths if isinstance(length, int)]
        found[along] = Joined(parts=tuple(zip((axes[along] for axes in known), sizes, strict=True)))
    return tuple(found)


def _cut(sets: Known, node: NodeFact) -> tuple[Axes, ...] | None:
    """Slice and Split: axes that keep their length; where a Split takes joined axes apart again, its parts."""
    axes, before = sets.full(node.inputs[0]), sets.shape(node.inputs[0])
    if axes is None or before is None:
        return None
    made = []
    for number, name in enumerate(node.outputs):
        after = sets.shape(name)
        kept = tuple(
            _piece(rows, number, dim, len(node.outputs)) if after is None or after[place] != before[place] else rows
            for place, (rows, dim) in enumerate(zip(axes, after or before, strict=True))
        )
        made.append(kept)
    return tuple(made)


def _piece(rows: Rows | None, number: int, size: int | str | None, count: int) -> Rows | None:
    if isinstance(rows, Joined) and len(rows.parts) == count and rows.parts[number][1] == size:
        return rows.parts[number][0]
    return None


def _matmul(sets: Known, node: NodeFact) -> Axes | None:
    shape = sets.shape(node.outputs[0])
    one, two = sets.full(node.inputs[0]), sets.full(node.inputs[1])
    if shape is None or one is None or two is None or len(one) < 2 or len(two) < 2:
        return None
    found: list[Rows | None] = [None] * len(shape)
    for axes in (one, two):
        for place, rows in enumerate(reversed(axes[:-2]), 3):
            found[-place] = found[-place] or rows
    found[-2], found[-1] = one[-2], two[-1]
    return tuple(found)


def _gemm(sets: Known, node: NodeFact) -> Axes | None:
    one, two = sets.full(node.inputs[0]), sets.full(node.inputs[1])
    if one is None or two is None or len(one) != 2 or len(two) != 2:
        return None
    return (one[node.attributes.get("transA", 0)], two[1 - node.attributes.get("transB", 0)])


def _einsum(sets: Known, node: NodeFact) -> Axes | None:
    left, arrow, right = str(node.attributes.get("equation", "")).replace(" ", "").partition("->")
    if not arrow or "." in left:
        return None
    known: dict[str, Rows] = {}
    for letters, name in zip(left.split(","), node.inputs, strict=False):
        axes = sets.full(name) or ()
        known.update({letter: rows for letter, rows in zip(letters, axes, strict=False) if rows is not None})
    return tuple(known.get(letter) for letter in right)


def _reduce(sets: Known, node: NodeFact) -> Axes | None:
    axes, before = sets.full(node.inputs[0]), sets.shape(node.inputs[0])
    after = sets.shape(node.outputs[0])
    if axes is None or before is None or after is None:
        return None
    if len(after) == len(before):
        return tuple(rows if one == two else None for rows, one, two in zip(axes, before, after, strict=True))
    gone = node.attributes.get("axes", node.attributes.get("axis"))
    if gone is None:
        return axes[: len(after)] if tuple(before[: len(after)]) == tuple(after) else None
    dropped = {int(axis) % len(axes) for axis in (gone if isinstance(gone, tuple) else (gone,))}
    return tuple(rows for place, rows in enumerate(axes) if place not in dropped)


def _conv(sets: Known, node: NodeFact) -> Axes | None:
    axes = sets.full(node.inputs[0])
    return None if not axes else (axes[0], *(None for _ in axes[1:]))


def _grid_sample(sets: Known, node: NodeFact) -> Axes | None:
    """Samples lie where the grid's rows say."""
    values, grid = sets.full(node.inputs[0]), sets.full(node.inputs[1])
    return None if not values or not grid else (grid[0] or values[0], values[1], *grid[1:-1])


def _scatter(sets: Known, node: NodeFact) -> Axes | None:
    return sets.full(node.inputs[0])


def _nothing(_sets: Known, _node: NodeFact) -> None:
    return None


CHOOSERS = frozenset({"TopK", "NonMaxSuppression", "NonZero"})
_REDUCES = ("Max", "Min", "Sum", "Mean", "L1", "L2", "LogSum", "LogSumExp", "Prod", "SumSquare")
RULES: Mapping[str, Rule] = {
    "TopK": _topk,
    "NonMaxSuppression": _suppressed,
    "NonZero": _nonzero,
    "Transpose": _transpose,
    **dict.fromkeys(("Reshape", "Squeeze", "Unsqueeze", "Flatten"), _reshape),
    "Gather": _gather,
    "GatherElements": _gather_elements,
    "GatherND": _gather_nd,
    "Concat": _concat,
    **dict.fromkeys(("Slice", "Split"), _cut),
    "MatMul": _matmul,
    "Gemm": _gemm,
    "Einsum": _einsum,
    **dict.fromkeys([f"Reduce{name}" for name in _REDUCES], _reduce),
    **dict.fromkeys(("ArgMax", "ArgMin"), _reduce),
    **dict.fromkeys(("Conv", "ConvTranspose", "MaxPool", "AveragePool", "GlobalAveragePool"), _conv),
    "GridSample": _grid_sample,
    **dict.fromkeys(("ScatterElements", "ScatterND"), _scatter),
    **dict.fromkeys(("Shape", "Size", "ConstantOfShape", "Range", "If", "Loop", "Scan"), _nothing),
}
