"""What each reader of an integer tensor says about its values, told backwards to the tensor they come from.

Claims travel through operators that move values or shift and scale them by constants. They are collected here and not
weighed against each other; nothing is run.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from deploykit.model.facts import GraphFacts, NodeFact
from deploykit.model.operators import Trait, is_standard, ops

if TYPE_CHECKING:
    import numpy.typing as npt

__all__ = ["Claim", "Rank", "ReadConstant", "Walk", "stored_integers"]

ReadConstant: TypeAlias = Callable[[str], "npt.NDArray[Any] | None"]
"""The values of a stored tensor, or None for one that is computed or not read."""


class Rank(IntEnum):
    """How much a claim counts: those of a higher rank leave the lower ones out."""

    UNKNOWN = 0
    LOOKS_LIKE = 1  # compared with 0 or 1
    BY_TYPE = 2  # bytes that are taken as numbers, such as pixels
    ONE_SIDED = 3  # a size, a count
    MASK = 4  # turned into a choice
    LIMIT = 5  # an index, a stored grid


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """The values that one reader, ``node``, is made for; infinite where it states no end."""

    rank: Rank
    low: float
    high: float
    why: str
    node: str


_MOVES = ops(Trait.REARRANGES) | {"Concat", "Pad", "ReduceMax", "ReduceMin"}
"""Ops whose first input (of Concat: every input) keeps its values."""

_SILENT = frozenset({"Shape", "Size"})
"""Readers that do not look at the values."""

_FAR = 100.0
"""From this factor on a mask is made into what is added to scores before a Softmax (-100, -1e4, -3.4e38)."""


def stored_integers(dtype: str) -> tuple[int, int] | None:
    """The smallest and largest value of an integer type by its ONNX name, None for other types."""
    digits = dtype.removeprefix("u").removeprefix("int")
    if not digits.isdecimal() or not dtype.removeprefix("u").startswith("int"):
        return None
    bits = int(digits)
    return (0, (1 << bits) - 1) if dtype.startswith("u") else (-(1 << (bits - 1)), (1 << (bits - 1)) - 1)


class Walk:
    """The claims on each tensor, each asked for once."""

    def __init__(self, facts: GraphFacts, read: ReadConstant) -> None:
        self.facts = facts
        self.read = read
        self._known: dict[str, tuple[Claim, ...]] = {}

    def claims(self, name: str) -> tuple[Claim, ...]:
        """What the readers of a tensor say, followed from the last tensors back without recursion."""
        waiting, entered = [name], set()
        while waiting:
            current = waiting[-1]
            missing = [made for made in self._next(current) if made not in self._known]
            if missing and current not in entered:
                entered.add(current)
                waiting += missing
                continue
            waiting.pop()
            if current not in self._known:
                readers = self.facts.consumers_of(current)
                self._known[current] = tuple(claim for node in readers for claim in _claims_of(self, node, current))
        return self._known[name]

    def of(self, name: str) -> tuple[Claim, ...]:
        """The claims on a tensor that was walked to before."""
        return self._known.get(name, ())

    def _next(self, name: str) -> Iterator[str]:
        """The tensors whose claims those of ``name`` may follow from."""
        for node in self.facts.consumers_of(name):
            if node.op_type in _PULLS or node.op_type in _MOVES:
                yield from node.outputs

    def constant(self, name: str) -> tuple[float, float] | None:
        """The smallest and largest value of a stored tensor."""
        values = self.read(name) if name else None
        if values is None or not values.size or values.dtype.kind not in "fiub" or not np.isfinite(values).all():
            return None
        return float(values.min()), float(values.max())

    def size_of(self, name: str, axis: int) -> int | None:
        """One dimension of a tensor, None when it is not a number."""
        shape = self.facts.tensors[name].shape if name in self.facts.tensors else None
        if shape is None or not -len(shape) <= axis < len(shape):
            return None
        dim = shape[axis]
        return dim if isinstance(dim, int) else None


_Rule: TypeAlias = Callable[[Walk, NodeFact, str], "Iterator[Claim]"]


def _claims_of(walk: Walk, node: NodeFact, name: str) -> Iterator[Claim]:
    if not is_standard(node) or name not in node.inputs:
        yield _open(node, f"it is read by {node.op_type}, which is not looked into")
    elif node.op_type in _INDEXED and node.inputs.index(name) == 1:
        yield from _index(walk, node)
    elif node.op_type in _MOVES and (node.op_type == "Concat" or node.inputs.index(name) == 0):
        for made in node.outputs:
            yield from walk.of(made)
    elif node.op_type not in _SILENT:
        yield from _RULES.get(node.op_type, _other)(walk, node, name)


def _open(node: NodeFact, why: str) -> Claim:
    return Claim(rank=Rank.UNKNOWN, low=-math.inf, high=math.inf, why=why, node=node.label)


def _mask(rank: Rank, node: NodeFact, why: str) -> Claim:
    return Claim(rank=rank, low=0, high=1, why=why, node=node.label)


def _other(_walk: Walk, node: NodeFact, _name: str) -> Iterator[Claim]:
    yield _open(node, f"it is used in {node.op_type}, which states no limit")


# Indices: the operators' specifications allow -n .. n-1 into n rows, except Gather before operator set 11.


def _index(walk: Walk, node: NodeFact) -> Iterator[Claim]:
    rows = _INDEXED[node.op_type](walk, node)
    if rows is None or rows < 1:
        yield _open(node, f"{node.op_type} looks up rows, how many there are is not known")
        return
    low = 0 if walk.facts.opset < 11 else -rows
    yield Claim(rank=Rank.LIMIT, low=low, high=rows - 1, why=f"{node.op_type} looks up {rows} rows", node=node.label)


def _along_axis(walk: Walk, node: NodeFact) -> int | None:
    return walk.size_of(node.inputs[0], node.attributes.get("axis", 0))


def _of_leading_axes(walk: Walk, node: NodeFact) -> int | None:
    """The least of the dimensions that the last axis of the indices counts off."""
    count = walk.size_of(node.inputs[1], -1)
    first = node.attributes.get("batch_dims", 0)
    sizes = [] if count is None else [walk.size_of(node.inputs[0], first + axis) for axis in range(count)]
    known = [size for size in sizes if size is not None]
    return min(known) if known and len(known) == len(sizes) else None


_INDEXED: Mapping[str, Callable[[Walk, NodeFact], int | None]] = {
    "Gather": _along_axis,
    "GatherElements": _along_axis,
    "GatherND": _of_leading_axes,
    "ScatterElements": _along_axis,
    "ScatterND": _of_leading_axes,
}
"""Ops whose second input is an index into their first, and how many rows that has."""


def _one_hot(walk: Walk, node: NodeFact, name: str) -> Iterator[Claim]:
    depth = walk.constant(node.inputs[1])
    if node.inputs.index(name) != 0 or depth is None:
        yield from _other(walk, node, name)
        return
    rows = int(depth[0])
    yield Claim(rank=Rank.LIMIT, low=-rows, high=rows - 1, why=f"OneHot has depth {rows}", node=node.label)


def _stored_grid(walk: Walk, node: NodeFact, name: str) -> Iterator[Claim]:
    grid = stored_integers(walk.facts.tensors[name].dtype)
    if grid is None or node.inputs.index(name) != 0:
        yield from _other(walk, node, name)
        return
    dtype = walk.facts.tensors[name].dtype
    yield Claim(rank=Rank.LIMIT, low=grid[0], high=grid[1], why=f"it holds stored integers ({dtype})", node=node.label)


# Arithmetic with constants: what is claimed of the result, told of the operand.


def _cast(walk: Walk, node: NodeFact, name: str) -> Iterator[Claim]:
    made = walk.facts.tensors[node.outputs[0]].dtype
    if made == "bool":
        yield _mask(Rank.MASK, node, "it is turned into true and false")
        return
    given = walk.facts.tensors[name].dtype
    grid = stored_integers(given) if given in ("uint8", "int8") and made.startswith("float") else None
    for claim in walk.of(node.outputs[0]):
        if grid is not None and claim.rank is Rank.UNKNOWN:
            why = f"{given} values are taken as numbers"
            yield replace(claim, rank=Rank.BY_TYPE, low=grid[0], high=grid[1], why=why)
        else:
            yield claim


def _add(walk: Walk, node: NodeFact, name: str) -> Iterator[Claim]:
    shift = _partner(walk, node, name)
    if shift is None:
        yield from _other(walk, node, name)
    elif not any(_wrapped(walk, reader, name) for reader in walk.facts.consumers_of(node.outputs[0])):
        yield from _shifted(walk.of(node.outputs[0]), *shift)
        yield from _mask_as_penalty(walk, node, shift, (-1.0,))


def _sub(walk: Walk, node: NodeFact, name: str) -> Iterator[Claim]:
    other = _partner(walk, node, name)
    if other is None:
        yield from _other(walk, node, name)
    elif node.inputs[0] == name:
        yield from _shifted(walk.of(node.outputs[0]), -other[1], -other[0])
        yield from _mask_as_penalty(walk, node, other, (1.0,))
    else:
        for claim in walk.of(node.outputs[0]):
            yield replace(claim, low=other[1] - claim.high, high=other[0] - claim.low)
        yield from _mask_as_penalty(walk, node, other, (1.0,))


def _partner(walk: Walk, node: NodeFact, name: str) -> tuple[float, float] | None:
    """The constant on the other side of a binary operator."""
    others = [given for given in node.inputs if given != name]
    return walk.constant(others[0]) if len(others) == 1 else None


def _shifted(claims: tuple[Claim, ...], least: float, most: float) -> Iterator[Claim]:
    """Claims on x + c, told of x, for c from ``least`` to ``most``."""
    for claim in claims:
        yield replace(claim, low=claim.low - least, high=claim.high - most)


def _mask_as_penalty(
    walk: Walk, node: NodeFact, other: tuple[float, float], units: tuple[float, ...]
) -> Iterator[Claim]:
    """A mask in ``(1 - mask) * -10000``: a difference from 1 that is multiplied by a large constant."""
    if other[0] != other[1] or other[0] not in units:
        return
    for reader in walk.facts.consumers_of(node.outputs[0]):
        factor = _partner(walk, reader, node.outputs[0]) if reader.op_type == "Mul" else None
        if factor is not None and min(abs(factor[0]), abs(factor[1])) >= _FAR:
            yield _mask(Rank.MASK, reader, f"its difference from 1 is multiplied by {factor[0]:g}")


def _mul(walk: Walk, node: NodeFact, name: str) -> Iterator[Claim]:
    factor = _partner(walk, node, name)
    if factor is not None and factor[0] == factor[1] and factor[0] > 0:
        for claim in walk.of(node.outputs[0]):
            yield replace(claim, low=claim.low / factor[0], high=claim.high / factor[0])
    elif factor is None and node.inputs[0] != node.inputs[1]:
        yield from _size(walk, node, name, "multiplied into")
    else:
        yield from _other(walk, node, name)


def _div(walk: Walk, node: NodeFact, name: str) -> Iterator[Claim]:
    divisor = _partner(walk, node, name)
    if node.inputs[1] == name:
        yield from _size(walk, node, name, "divided out of") if walk.facts.tensors[name].is_float else _divisor(node)
    elif divisor is not None and divisor[0] == divisor[1] and divisor[0] > 0 and walk.facts.tensors[name].is_float:
        for claim in walk.of(node.outputs[0]):
            yield replace(claim, low=claim.low * divisor[0], high=claim.high * divisor[0])
    else:
        yield from _other(walk, node, name)


def _mod(walk: Walk, node: NodeFact, name: str) -> Iterator[Claim]:
    yield from _divisor(node) if node.inputs[1] == name != node.inputs[0] else _other(walk, node, name)


def _divisor(node: NodeFact) -> Iterator[Claim]:
    why = "others are divided by it: it is not zero, and no upper end is stated"
    yield Claim(rank=Rank.ONE_SIDED, low=1, high=math.inf, why=why, node=node.label)


def _size(walk: Walk, node: NodeFact, name: str, how: str) -> Iterator[Claim]:
    """Sizes and counts scale other values; as numbers, so only once they are floats."""
    if not walk.facts.tensors[name].is_float:
        yield from _other(walk, node, name)
        return
    why = f"it is {how} computed values, as a size or a count is: positive, with no stated upper end"
    yield Claim(rank=Rank.ONE_SIDED, low=1, high=math.inf, why=why, node=node.label)


def _clip(walk: Walk, node: NodeFact, name: str) -> Iterator[Claim]:
    """Within its bounds a Clip changes nothing; beyond them the graph says what it does with a wrong value."""
    if node.inputs[0] != name:
        yield from _other(walk, node, name)
        return
    ends = [walk.constant(end) if end else None for end in (*node.inputs[1:3], "", "")[:2]]
    low = -math.inf if ends[0] is None else ends[0][0]
    high = math.inf if ends[1] is None else ends[1][1]
    for claim in walk.of(node.outputs[0]):
        yield replace(claim, low=max(claim.low, low), high=min(claim.high, high))
    if math.isfinite(low) and math.isfinite(high):
        yield Claim(rank=Rank.LIMIT, low=low, high=high, why=f"it is clipped to {low:g}..{high:g}", node=node.label)


def _compared(walk: Walk, node: NodeFact, name: str) -> Iterator[Claim]:
    """Equal and the order relations with 0, 1 or what lies between: a mask, unless other readers know better."""
    other = _partner(walk, node, name)
    is_sign = node.op_type == "Less" and other == (0.0, 0.0)
    if other is not None and 0 <= other[0] == other[1] <= 1 and not is_sign:
        yield _mask(Rank.LOOKS_LIKE, node, f"it is compared with {other[0]:g}")
    else:
        yield _open(node, f"it is compared by {node.op_type}, which states no limit")


def _where(walk: Walk, node: NodeFact, name: str) -> Iterator[Claim]:
    if node.inputs.index(name) == 0:
        yield _mask(Rank.MASK, node, "it chooses between two values")
        return
    wrapped = _wrapped(walk, node, name)
    for claim in walk.of(node.outputs[0]):
        if wrapped is not None and claim.rank is Rank.LIMIT:
            yield replace(claim, low=max(claim.low, -wrapped))
        else:
            yield claim


def _wrapped(walk: Walk, node: NodeFact, name: str) -> float | None:
    """The n of ``Where(x < 0, x + n, x)``, by which negative indices are made positive."""
    if node.op_type != "Where":
        return None
    moved = walk.facts.producer_of(node.inputs[1])
    if moved is None or moved.op_type != "Add" or name not in moved.inputs or node.inputs[2] != name:
        return None
    shift = _partner(walk, moved, name)
    return None if shift is None else shift[0]


_PULLS = frozenset({"Add", "Cast", "Clip", "Div", "Mul", "Sub", "Where"})
"""Ops that tell the claims on their result to their operand."""

_RULES: Mapping[str, _Rule] = {
    "Add": _add,
    "Cast": _cast,
    "Clip": _clip,
    "ConvInteger": _stored_grid,
    "DequantizeLinear": _stored_grid,
    "Div": _div,
    "Equal": _compared,
    "Greater": _compared,
    "GreaterOrEqual": _compared,
    "Less": _compared,
    "LessOrEqual": _compared,
    "MatMulInteger": _stored_grid,
    "Mod": _mod,
    "Mul": _mul,
    "OneHot": _one_hot,
    "QLinearConv": _stored_grid,
    "QLinearMatMul": _stored_grid,
    "Sub": _sub,
    "Where": _where,
}
