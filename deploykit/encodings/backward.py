"""Infers ranges against the flow: from a node's result and other operands to an operand; and records of conclusions.

Two kinds of answers are kept apart. An enclosure holds every value of the operand. A need holds the values that matter
to one reader (a Relu cuts the others off), so it counts only together with the needs of all other readers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from enum import StrEnum

import numpy as np
from onnx import NodeProto

from deploykit.encodings.values import Affine, EncodingSet
from deploykit.findings.records import Interval, Names, Published, Record
from deploykit.model.graph import GraphCopy
from deploykit.model.nodes import attribute, reached
from deploykit.model.operators import FLOATS, INTEGER_RANGES, Trait, ops
from deploykit.model.range_functions import hull, product, total
from deploykit.model.values import dtype_name

__all__ = [
    "TELLING",
    "Clue",
    "Evidence",
    "Inference",
    "InferredRange",
    "OpenTensor",
    "Origin",
    "clue_from",
    "grid_behind",
]


class Origin(StrEnum):
    """What a range comes from, the surest first."""

    FILE = "from_file"
    """The tensor's own entry."""
    CONSTANT = "from_constant"
    """Stored values."""
    OPERATOR = "from_operator"
    """The operator bounds it, or only moves, clamps or joins values whose range is known."""
    DECLARED = "from_declaration"
    """The range that the user stated for an input."""
    NEIGHBOURS = "from_neighbours"
    """Interval arithmetic over neighbours, forwards or backwards."""
    SAMPLES = "from_samples"
    """Values seen on data that the user gave or declared."""


class InferredRange(Published):
    """The range of one tensor, where it comes from, and why in words.

    ``copies`` names a tensor that has the same grid. A ``wide`` range holds, but is much wider than calibration's would
    be; a ``partial`` one holds what matters to all readers, and what lies outside is clamped by them.
    """

    WITHOUT = ("copies", "wide", "partial")

    tensor: str
    low: float
    high: float
    origin: Origin
    why: str
    copies: str
    wide: bool
    partial: bool

    @property
    def interval(self) -> Interval:
        """Both ends of the range."""
        return self.low, self.high


class OpenTensor(Published):
    """A tensor whose range is not known: the graph inputs that it depends on, and why nothing tells its range."""

    ALSO = ("ways_out",)

    tensor: str
    inputs: Names
    why: str

    @property
    def ways_out(self) -> tuple[str, ...]:
        """What the user can give to settle the range, as options of the command line."""
        return ("--calibration DATA", *(f"--input {name}=VALUE" for name in self.inputs))


class Evidence(Record):
    """What the user gave or said about inputs.

    ``inputs`` are those with meaningful values (given, recorded or declared; never derived or arbitrary ones),
    ``declared`` the ranges that were declared. ``observe`` gives the least and the greatest finite value of tensors on
    all samples; it is called only for tensors that depend on ``inputs`` alone.
    """

    inputs: frozenset[str] = frozenset()
    declared: Mapping[str, Interval] = {}
    observe: Callable[[Collection[str]], Mapping[str, Interval]] | None = None
    words: str = "the calibration data"


class Inference(Record):
    """Completed encodings, a conclusion for every new entry, and the tensors that stay open."""

    encodings: EncodingSet
    concluded: Mapping[str, InferredRange]
    open: tuple[OpenTensor, ...]


_KEEPS_ALL = ops(Trait.PERMUTES) | {"Expand", "Tile"}
"""Operators whose result holds every value of the operand."""

_KEEPS_SOME = ops(Trait.REARRANGES) - _KEEPS_ALL - {"Split"}
_CLAMPS = ops(Trait.CLAMPS)

TELLING = 1e6
"""Beyond this a range comes from a mask or padding constant beside a tensor, and tells nothing of the tensor."""

_WHOLE = 1e-4
"""The ratio of two grids counts as whole, a size in pixels, within this share of itself."""

_TWO_SIDED = 0.05
_LEAST_SLOPE = 1 / 64
"""The least slope of a LeakyRelu or PRelu whose result tells its operand's range: below it six bits would be wasted."""

_SPREAD = 256.0
"""A divisor whose largest value is this many times its smallest says too little about a quotient."""


class Clue(Record, kw_only=False):
    """A range for an operand. ``encloses`` is False for a need; ``copies`` names a tensor of the same grid.

    ``exact`` ranges are as narrow as the ones they follow from; others hold whatever two operands do together.
    """

    interval: Interval
    words: str
    encloses: bool
    copies: str = ""
    exact: bool = True


def clue_from(
    graph: GraphCopy, node: NodeProto, name: str, known: Mapping[str, InferredRange], encodings: EncodingSet
) -> Clue | None:
    """What one reader of ``name`` tells of its range, given the ranges of the reader's result and operands.

    None where it tells nothing.
    """
    result = known.get(node.output[0])
    if result is None:
        return None
    position = list(node.input).index(name)
    made, label = result.interval, node.output[0]
    if node.op_type == "Cast":
        holds_all = dtype_name(attribute(node, "to", 0)) in FLOATS
    else:
        holds_all = node.op_type == "Concat" or (node.op_type in _KEEPS_ALL and position == 0)
    if holds_all:
        return Clue(made, f"{label} holds its values", encloses=True, copies=label)
    if node.op_type == "Split":
        parts = [known.get(part) for part in node.output]
        ends = [part.interval for part in parts if part is not None]
        words = f"its parts are {', '.join(node.output)}"
        return Clue(hull(*ends), words, encloses=True) if len(ends) == len(parts) else None
    if node.op_type in _KEEPS_SOME and position == 0:
        return Clue(made, f"{label} holds what is used of it", encloses=False, copies=label)
    if node.op_type in _CLAMPS and position == 0:
        words = f"what lies outside is clamped to {label} anyway"
        return Clue(made, words, encloses=False, copies=label)
    if node.op_type == "Neg":
        return Clue((-made[1], -made[0]), f"{label} is its negative", encloses=True)
    if position == 0 and node.op_type in ops(Trait.RECTIFIES):
        # The operand has the result's range, with the part below zero divided by the least slope.
        slopes = [float(attribute(node, "alpha", 0.01))] if node.op_type == "LeakyRelu" else graph.array(node.input[1])
        least = 0.0 if slopes is None else float(min(map(float, np.ravel(slopes)), default=0.0))
        if least < _LEAST_SLOPE:
            return None
        words = f"{label} is its value, below zero at least {least:g} times it"
        bent = (min(made[0] / least, 0.0), max(made[1], 0.0))
        return Clue(bent, words, encloses=True, exact=made[0] >= 0.0 or least >= 1.0)
    if node.op_type == "HardSwish":
        words = f"above 3 {label} is its value, below -3 it is 0"
        return Clue((-3.0, max(made[1], 3.0)), words, encloses=False)
    if len(node.input) == 2:
        return _of_pair(graph, node, position, known, encodings)
    return None


def _of_pair(
    graph: GraphCopy,
    node: NodeProto,
    position: int,
    known: Mapping[str, InferredRange],
    encodings: EncodingSet,
) -> Clue | None:
    name, other, made = node.input[position], node.input[1 - position], node.output[0]
    beside = known.get(other)
    if beside is None or not all(map(math.isfinite, beside.interval)):
        return None
    result, partner = known[made].interval, beside.interval
    words = f"{made} and {other} leave that to it"
    near, far = sorted(map(abs, partner))
    divides = partner[0] * partner[1] > 0 and far <= _SPREAD * near  # the other operand stays well away from zero
    match node.op_type, position:
        case "Add", _:
            found = total(result, (-partner[1], -partner[0]))
        case "Sub", 0:
            found = total(result, partner)
        case "Sub", _:
            found = total(partner, (-result[1], -result[0]))
        case "Div", 0:
            found = product(result, partner)
        case "Mul", _ if divides:
            found = product(result, (1 / partner[1], 1 / partner[0]))
        case "Mul", _:
            return _ratio(graph, name, (other, made), known, encodings)
        case _:
            return None
    exact = partner[0] == partner[1]
    if not all(map(math.isfinite, found)) or (not exact and max(map(abs, found)) > TELLING):
        return None
    return Clue(found, words, encloses=True, exact=exact)


def _ratio(
    graph: GraphCopy, name: str, pair: tuple[str, str], known: Mapping[str, InferredRange], encodings: EncodingSet
) -> Clue | None:
    """The clue that an operand reaches r where the result's grid is exactly r times the other operand's grid.

    Believed where both ends agree on both sides of zero, or where r is a whole number and the operand comes from
    integers: a size in pixels.
    """
    other, made = pair
    source, target = (grid_behind(one, known, encodings) for one in pair)
    if source is None or target is None:
        return None
    ends = [float(end) for end in (source.minimum, source.maximum, target.minimum, target.maximum)]
    if ends[1] <= ends[0]:
        return None
    ratio = (ends[3] - ends[2]) / (ends[1] - ends[0])
    step = max(float(target.scale), ratio * float(source.scale))
    if abs(ratio * ends[0] - ends[2]) > step:  # the other end is as far off
        return None
    two_sided = ends[0] < 0 < ends[1] and min(-ends[0], ends[1]) >= _TWO_SIDED * max(-ends[0], ends[1])
    whole = ratio >= 1 and abs(ratio - round(ratio)) <= _WHOLE * ratio and _from_integers(graph, name)
    if not two_sided and not whole:
        return None
    reached = float(round(ratio)) if whole else ratio
    words = f"inferred: the grid of {made} is {reached:g} times that of {other}, so {name} reaches {reached:g}"
    return Clue((0.0, reached), words, encloses=True)


def grid_behind(name: str, known: Mapping[str, InferredRange], encodings: EncodingSet) -> Affine | None:
    """The per-tensor grid of a tensor, or of the tensor whose values it copies; None without one."""
    for _ in range(len(known)):
        entry = encodings.get(name)
        if entry is not None:
            value = entry.value
            return value if isinstance(value, Affine) and value.granularity == "per-tensor" else None
        if name not in known or not known[name].copies:
            return None
        name = known[name].copies
    return None


_FROM = _KEEPS_ALL | _KEEPS_SOME | {"Cast", "Concat", "Split"}


def _from_integers(graph: GraphCopy, name: str) -> bool:
    """True for a tensor that only moves the values of integer tensors: its sources are Casts of integers, or inputs."""

    def sources(made: str) -> Sequence[str]:
        node = graph.maker(made)
        return () if node is None else node.input if node.op_type == "Concat" else node.input[:1]

    casts = False
    for source in reached([name], sources):
        node = graph.maker(source)
        # A graph input of floats is not made of integers.
        if node is None and source in graph.inputs and graph.dtype(source) not in INTEGER_RANGES:
            return False
        if node is not None and node.op_type not in _FROM:
            return False
        casts = casts or (node is not None and node.op_type == "Cast")
    return casts
