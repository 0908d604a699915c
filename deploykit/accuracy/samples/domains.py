"""Which values an input may hold, as far as the graph, its quantizers or the encodings say; the rest stays unknown.

Statements of each reader of an integer tensor are carried backwards to the input, through operators that move values or
shift and scale them by constants. Limits that a reader enforces (an index, a stored grid) count before what a
comparison suggests. Arrays between two ends depend on the seed, the input's name and the number of the set alone, and
never leave the ends. Nothing is run.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Iterable, Iterator
from enum import IntEnum, StrEnum
from functools import partial
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from deploykit.encodings.values import Affine, EncodingSet, Float8, Value
from deploykit.findings.records import Doubles, Interval, Numbers, Record, Shape, field, replace
from deploykit.model.facts import GraphFacts, NodeFact
from deploykit.model.nodes import reached
from deploykit.model.operators import INTEGER_RANGES, Trait, is_standard, ops

__all__ = [
    "SETS",
    "VARIED",
    "Domain",
    "EncodedRange",
    "ValuePoint",
    "arbitrary_values",
    "encoded_range",
    "generator",
    "input_domains",
    "make_floats",
    "make_integers",
    "make_mask",
]

ReadConstant: TypeAlias = Callable[[str], "Numbers | None"]
"""A function that gives the values of a stored tensor, or None for one that is computed or not read."""

# Ops whose first input (of Concat: every input) keeps its values.
_MOVES = ops(Trait.REARRANGES) | {"Concat", "Pad", "ReduceMax", "ReduceMin"}
# Ops that carry statements about their result to their operand.
_PULLS = frozenset({"Add", "Cast", "Clip", "Div", "Mul", "Sub", "Where"})
# Ops whose second input is an index into their first.
_INDEXED = frozenset({"Gather", "GatherElements", "GatherND", "ScatterElements", "ScatterND"})
_STORED = ops(Trait.INTEGER_LINEAR) | {"DequantizeLinear"}
_COMPARES = frozenset({"Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual"})
# Ops behind an input that leave every value as it is, so that an entry of their result is one of the input.
_KEEPS = ops(Trait.PERMUTES) | {"Cast"}
# A mask multiplied by at least this becomes a summand of scores before a Softmax (-100, -1e4, -3.4e38).
_FAR = 100.0


class Domain(Record, kw_only=False):
    """The values from ``low`` to ``high``, both included; an end that the graph does not state is None.

    ``why`` says in words what the graph states and ``node`` where. ``is_mask`` is a choice between 0 and 1.
    """

    why: str
    low: int | None = None
    high: int | None = None
    node: str = ""
    is_mask: bool = False


class _Rank(IntEnum):
    """The rank of a statement: only the statements of the highest rank count."""

    UNKNOWN = 0
    LOOKS_LIKE = 1  # compared with 0 or 1
    BY_TYPE = 2  # bytes that are taken as numbers, such as pixels
    ONE_SIDED = 3  # a size, a count
    MASK = 4  # turned into a choice
    LIMIT = 5  # an index, a stored grid


class _Stated(Record):
    """The values that one reader, ``node``, is made for; infinite where it states no end."""

    node: str
    why: str
    rank: _Rank = _Rank.UNKNOWN
    low: float = -math.inf
    high: float = math.inf


def input_domains(facts: GraphFacts, read: ReadConstant) -> dict[str, Domain]:
    """The domain of every integer and bool input. ``read`` is asked for constants beside the paths of these inputs."""
    chosen = [name for name in facts.inputs if not facts.tensors[name].is_float]

    def told(name: str) -> Iterator[str]:
        for node in facts.consumers_of(name):
            if node.op_type in _PULLS | _MOVES:
                yield from node.outputs

    telling, readings = set(reached(chosen, told)), _Readings(facts=facts, read=read)
    order = [*facts.inputs, *(name for node in facts.nodes for name in node.outputs)]
    for name in reversed(order):
        if name in telling:
            readers = facts.consumers_of(name)
            readings.stated[name] = tuple(item for node in readers for item in readings.of_reader(node, name))
    return {name: _domain(facts.tensors[name].dtype, readings.stated[name]) for name in chosen}


def _domain(dtype: str, stated: tuple[_Stated, ...]) -> Domain:
    if dtype == "bool":
        return Domain(low=0, high=1, why="it is of type bool", is_mask=True)
    rank = max((item.rank for item in stated), default=_Rank.UNKNOWN)
    if rank is _Rank.LOOKS_LIKE and any(item.rank is _Rank.UNKNOWN for item in stated):
        rank = _Rank.UNKNOWN
    heard = [item for item in stated if item.rank == rank]
    if not heard:
        return Domain(low=0, high=1, why="nothing in the graph looks at its values")
    if rank is _Rank.UNKNOWN:
        return Domain(heard[0].why, node=heard[0].node)
    # The range is cut to whole numbers that the type holds; None is an open end.
    least, most = INTEGER_RANGES.get(dtype, (-math.inf, math.inf))
    start, end = max(item.low for item in heard), min(item.high for item in heard)
    low = math.ceil(max(start, least)) if math.isfinite(start) else None
    high = math.floor(min(end, most)) if math.isfinite(end) else None
    tightest = min(heard, key=lambda item: (item.high - item.low, item.node))
    if low is not None and high is not None and low > high:
        why = f"what its readers state excludes each other ({'; '.join(item.why for item in heard)})"
        return Domain(why, node=tightest.node)
    is_mask = rank in (_Rank.MASK, _Rank.LOOKS_LIKE) and (low, high) == (0, 1)
    return Domain(low=low, high=high, why=tightest.why, node=tightest.node, is_mask=is_mask)


class _Readings(Record):
    """What the readers of each tensor state, filled from the last tensor of the graph to the first."""

    facts: GraphFacts
    read: ReadConstant
    stated: dict[str, tuple[_Stated, ...]] = field(default_factory=dict)

    def of_reader(self, node: NodeFact, name: str) -> Iterator[_Stated]:
        """What one operator states of a tensor that it reads."""
        stated, limit = partial(_Stated, node=node.label), partial(_Stated, node=node.label, rank=_Rank.LIMIT, low=0)
        op, no_limit = node.op_type, f"it is used in {node.op_type}, which states no limit"
        if not is_standard(node) or name not in node.inputs:
            yield stated(why=f"it is read by {op}, which is not looked into")
            return
        place, fact = node.inputs.index(name), self.facts.tensors[name]
        behind = self.stated.get(node.outputs[0], ()) if node.outputs else ()
        if op in _INDEXED and place == 1:
            rows = self._rows(node)
            # From the front, as tokens and positions are. Indices from the end are allowed, but few models are given
            # any, and a kernel that reads them wrongly would make a right package look wrong (docs/audit.md).
            if rows is None or rows < 1:
                yield stated(why=f"{op} looks up rows, how many there are is not known")
            else:
                yield limit(high=rows - 1, why=f"{op} looks up {rows} rows")
        elif op in _MOVES and (op == "Concat" or place == 0):
            for made in node.outputs:
                yield from self.stated.get(made, ())
        elif op in ("Shape", "Size"):
            return  # they do not look at the values
        elif op in ("Add", "Sub", "Mul", "Div", "Mod"):
            told = self._of_arithmetic(node, name, behind)
            yield from (stated(why=no_limit),) if told is None else told
        elif op == "Cast":
            yield from self._of_cast(node, fact.dtype, behind)
        elif op == "OneHot" and place == 0 and (depth := self._constant(node.inputs[1])) is not None:
            yield limit(high=int(depth[0]) - 1, why=f"OneHot has depth {int(depth[0])}")
        elif op in _STORED and place == 0 and (grid := INTEGER_RANGES.get(fact.dtype)) is not None:
            yield limit(low=grid[0], high=grid[1], why=f"it holds stored integers ({fact.dtype})")
        elif op in ("Clip", "Where", *_COMPARES) and (op != "Clip" or place == 0):
            yield from self._of_choice(node, name, behind)
        else:
            yield stated(why=no_limit)

    def _of_choice(self, node: NodeFact, name: str, behind: Iterable[_Stated]) -> Iterator[_Stated]:
        """What a Clip, a comparison or a Where states of the tensor that it decides on or passes on."""
        op, stated = node.op_type, partial(_Stated, node=node.label)
        if op == "Clip":
            # Within its bounds it changes nothing; beyond them the graph says what it does with a wrong value.
            ends = [self._constant(end) for end in map(node.operand, (1, 2))]
            low, high = -math.inf if ends[0] is None else ends[0][0], math.inf if ends[1] is None else ends[1][1]
            yield from (replace(item, low=max(item.low, low), high=min(item.high, high)) for item in behind)
            if math.isfinite(low) and math.isfinite(high):
                yield stated(rank=_Rank.LIMIT, low=low, high=high, why=f"it is clipped to {low:g}..{high:g}")
        elif op != "Where":
            other = self._beside(node, name)
            is_sign = op in ("Less", "GreaterOrEqual") and other == (0.0, 0.0)
            if other is not None and 0 <= other[0] == other[1] <= 1 and not is_sign:
                yield stated(rank=_Rank.LOOKS_LIKE, low=0, high=1, why=f"it is compared with {other[0]:g}")
            else:
                yield stated(why=f"it is compared by {op}, which states no limit")
        elif node.inputs[0] == name:
            yield stated(rank=_Rank.MASK, low=0, high=1, why="it chooses between two values")
        else:
            wrapped = self._wrapped(node, name)
            for item in behind:
                is_index = wrapped is not None and item.rank is _Rank.LIMIT
                yield replace(item, low=max(item.low, -(wrapped or 0.0))) if is_index else item

    def _of_arithmetic(self, node: NodeFact, name: str, behind: Iterable[_Stated]) -> list[_Stated] | None:
        """Statements about an arithmetic operator's result, carried to its operand; None where nothing is stated."""
        op, other, first = node.op_type, self._beside(node, name), node.inputs[0] == name
        is_float = self.facts.tensors[name].is_float
        readers = self.facts.consumers_of(node.outputs[0])
        one_sided = partial(_Stated, node=node.label, rank=_Rank.ONE_SIDED, low=1)
        if op in ("Add", "Sub") and other is not None:
            least, most = other if op == "Add" else (-other[1], -other[0])
            if op == "Add" and any(self._wrapped(reader, name) for reader in readers):
                return []  # the Where that takes it speaks for both
            if op == "Add" or first:
                told = [replace(item, low=item.low - least, high=item.high - most) for item in behind]
            else:
                told = [replace(item, low=other[1] - item.high, high=other[0] - item.low) for item in behind]
            # A mask in ``(1 - mask) * -10000``: a difference from 1 that is multiplied by a large constant.
            for reader in readers if other == ((-1.0, -1.0) if op == "Add" else (1.0, 1.0)) else ():
                factor = self._beside(reader, node.outputs[0]) if reader.op_type == "Mul" else None
                if factor is not None and min(map(abs, factor)) >= _FAR:
                    why = f"its difference from 1 is multiplied by {factor[0]:g}"
                    told.append(_Stated(rank=_Rank.MASK, low=0, high=1, why=why, node=reader.label))
            return told
        if node.inputs[1] == name and ((op == "Div" and not is_float) or (op == "Mod" and not first)):
            return [one_sided(why="others are divided by it: it is not zero, and no upper end is stated")]
        if other is not None and other[0] == (scale := other[1]) > 0:
            if op == "Mul":
                return [replace(item, low=item.low / scale, high=item.high / scale) for item in behind]
            if op == "Div" and first and is_float:
                return [replace(item, low=item.low * scale, high=item.high * scale) for item in behind]
        # Sizes and counts scale other values; as numbers, so only once they are floats.
        if op == "Mul" and is_float and other is None and node.inputs[0] != node.inputs[1]:
            how = "multiplied into"
        elif op == "Div" and is_float and node.inputs[1] == name:
            how = "divided out of"
        else:
            return None
        return [
            one_sided(why=f"it is {how} computed values, as a size or a count is: positive, with no stated upper end")
        ]

    def _of_cast(self, node: NodeFact, given: str, behind: Iterable[_Stated]) -> Iterator[_Stated]:
        made = self.facts.tensors[node.outputs[0]].dtype
        if made == "bool":
            why = "it is turned into true and false"
            yield _Stated(rank=_Rank.MASK, low=0, high=1, why=why, node=node.label)
            return
        grid = INTEGER_RANGES[given] if given in ("uint8", "int8") and made.startswith("float") else None
        for item in behind:
            if grid is not None and item.rank is _Rank.UNKNOWN:
                why = f"{given} values are taken as numbers"
                yield replace(item, rank=_Rank.BY_TYPE, low=grid[0], high=grid[1], why=why)
            else:
                yield item

    def _constant(self, name: str) -> Interval | None:
        """The smallest and largest value of a stored tensor; None where it is computed, not numeric or not finite."""
        values = self.read(name) if name else None
        if values is None or not values.size or values.dtype.kind not in "fiub" or not np.isfinite(values).all():
            return None
        return float(values.min()), float(values.max())

    def _beside(self, node: NodeFact, name: str) -> Interval | None:
        """The least and greatest value of the constant on the other side of a binary operator, else None."""
        others = [given for given in node.inputs if given != name]
        return self._constant(others[0]) if len(others) == 1 else None

    def _wrapped(self, node: NodeFact, name: str) -> float | None:
        """The n of ``Where(x < 0, x + n, x)``, by which negative indices are made positive."""
        moved = self.facts.producer_of(node.inputs[1], "Add") if node.op_type == "Where" else None
        if moved is None or name not in moved.inputs or node.inputs[2] != name:
            return None
        shift = self._beside(moved, name)
        return None if shift is None else shift[0]

    def _rows(self, node: NodeFact) -> int | None:
        """How many rows an index chooses from: the least of the dimensions that it indexes; None where one is open."""
        shapes = [self.facts.tensor(name).shape for name in node.inputs[:2]]
        table, index = ((),) * 2 if None in shapes else shapes
        first, count = node.axis(), 1
        if node.op_type.endswith("ND"):
            last = index[-1] if index else None
            first, count = int(node.attributes.get("batch_dims", 0)), last if isinstance(last, int) else 0
        rank = len(table or ())
        sizes = [table[at] for at in range(first, first + count) if table and -rank <= at < rank]
        known = [size for size in sizes if isinstance(size, int)]
        return min(known) if known and len(known) == count else None


class EncodedRange(Record, kw_only=False, eq=False):
    """A range: both ends, as arrays that broadcast to the input's shape, and where they come from, in words."""

    low: Doubles
    high: Doubles
    why: str


def encoded_range(
    facts: GraphFacts, read: ReadConstant, encodings: EncodingSet | None, name: str
) -> EncodedRange | None:
    """The range of the input's entry, else of an entry or quantizer behind ops that only move its values."""
    own = None if encodings is None else encodings.get(name)
    if own is not None:
        return _of_value(own.value, facts.tensors[name].rank or 0, "its encoding")
    for tensor, node in _behind(facts, name):
        entry = None if encodings is None else encodings.get(tensor)
        if entry is not None and entry.value.granularity == "per-tensor":
            return _of_value(entry.value, 0, f"the encoding of {tensor!r}, which holds its values")
        if node.op_type == "QuantizeLinear":  # what it can hold, per tensor and with stored parameters
            scale, grid = read(node.inputs[1]), INTEGER_RANGES.get(facts.tensors[tensor].dtype)
            zero = read(node.operand(2)) if node.operand(2) else np.zeros(1)
            if scale is not None and zero is not None and grid is not None and scale.size == zero.size == 1:
                low, high = (np.asarray((end - float(zero.item())) * float(scale.item())) for end in grid)
                return EncodedRange(low, high, why=f"the quantizer behind it ({node.label})")
    return None


def _behind(facts: GraphFacts, name: str) -> Iterator[tuple[str, NodeFact]]:
    """Each tensor that holds the values of an input, with the node that makes it; quantizers included."""
    waiting = [name]
    while waiting:
        for node in facts.consumers_of(waiting.pop()):
            if not is_standard(node) or not node.outputs or node.op_type not in _KEEPS | {"QuantizeLinear"}:
                continue
            given, made = facts.tensors[node.inputs[0]], facts.tensors[node.outputs[0]]
            # A Cast to bool, or from floats to integers, does not keep the values.
            cuts = made.dtype == "bool" or (given.is_float and not made.is_float)
            if node.op_type in _KEEPS and not cuts:
                waiting.append(node.outputs[0])
                yield node.outputs[0], node
            elif node.op_type == "QuantizeLinear":
                yield node.outputs[0], node


def _of_value(value: Value, rank: int, why: str) -> EncodedRange | None:
    if isinstance(value, Float8):
        most = np.asarray(float(value.scale.min()) * value.largest)
        return EncodedRange(-most, most, why=why) if most > 0 else None
    if not isinstance(value, Affine):
        return None
    low, high, shape = value.minimum, value.maximum, list[int]()
    if value.block_size is not None or (value.axis is None and value.scale.size > 1):
        low, high = np.asarray(low.max()), np.asarray(high.min())
    elif value.axis is not None and rank:
        shape = [1] * rank
        shape[value.axis] = -1
    low, high = low.reshape(shape), high.reshape(shape)
    if not (np.isfinite(low).all() and np.isfinite(high).all() and (low <= high).all()):
        return None
    return EncodedRange(low, high, why=why)


class ValuePoint(StrEnum):
    """Where the values of one set lie between the ends."""

    UNIFORM = "uniform"
    LOW = "low"
    HIGH = "high"
    ZERO = "zero"
    CORNERS = "corners"
    CONSTANT = "constant"


SETS = (
    *(ValuePoint.UNIFORM, ValuePoint.LOW, ValuePoint.HIGH, ValuePoint.UNIFORM),
    *(ValuePoint.ZERO, ValuePoint.CORNERS, ValuePoint.UNIFORM, ValuePoint.CONSTANT),
)
"""The points of each derived input, set by set; a caller who wants fewer sets gets the first ones."""
VARIED = frozenset({ValuePoint.UNIFORM, ValuePoint.CORNERS})
"""The points whose values differ within one array; both ends are among them."""
_EXACT = 1 << 31
"""A range of at most this many integers is split into equal parts, one value from each.

In a wider range chance spreads the few values as well.
"""


def generator(seed: int, name: str, number: int) -> np.random.Generator:
    """The random generator of one input in one set, whatever other inputs there are."""
    return np.random.default_rng([seed & 0xFFFFFFFF, zlib.crc32(name.encode()), number])


def make_floats(
    point: ValuePoint,
    low: Doubles,
    high: Doubles,
    shape: Shape,
    dtype: np.dtype[Any],
    rng: np.random.Generator,
) -> Numbers:
    """Floats from ``low`` to ``high``, which broadcast to ``shape``; rounding to ``dtype`` does not leave the range."""
    match point:
        case ValuePoint.LOW:
            values = low
        case ValuePoint.HIGH:
            values = high
        case ValuePoint.ZERO:
            values = np.clip(0.0, low, high)
        case ValuePoint.CORNERS:
            values = np.where(_sides(shape, rng), low, high)
        case ValuePoint.CONSTANT:
            values = low + (high - low) * rng.random()
        case ValuePoint.UNIFORM:
            values = low + (high - low) * rng.random(shape)
    values = np.broadcast_to(values, shape)
    with np.errstate(over="ignore"):  # ends beyond what the type holds round to infinity, and come back one step
        made = np.clip(values, low, high).astype(dtype)
        up, down = (np.nextafter(made, np.array(end, dtype)) for end in (np.inf, -np.inf))
    made = np.where(made.astype(np.float64) < low, up, made)
    made = np.where(made.astype(np.float64) > high, down, made)
    return np.ascontiguousarray(made, dtype=dtype)


def _sides(shape: Shape, rng: np.random.Generator) -> npt.NDArray[np.bool_]:
    """True for half of the elements and False for the others, at random: which of the two ends each one takes."""
    return np.asarray(rng.permutation(np.arange(math.prod(shape)) % 2 == 0).reshape(shape))


def make_integers(
    point: ValuePoint, low: int, high: int, shape: Shape, dtype: np.dtype[Any], rng: np.random.Generator
) -> Numbers:
    """Integers from ``low`` to ``high``.

    Uniform ones take every value in turn, or are spread evenly where there are more values than elements.
    """
    match point:
        case ValuePoint.LOW | ValuePoint.HIGH | ValuePoint.ZERO:
            value = {ValuePoint.LOW: low, ValuePoint.HIGH: high, ValuePoint.ZERO: min(max(0, low), high)}[point]
            return np.full(shape, value).astype(dtype)
        case ValuePoint.CORNERS:
            return np.where(_sides(shape, rng), np.array(low).astype(dtype), np.array(high).astype(dtype))
        case ValuePoint.CONSTANT:
            return np.full(shape, _whole(rng, low, high, 1)[0]).astype(dtype)
        case ValuePoint.UNIFORM:
            return _cycled(rng, low, high, math.prod(shape)).reshape(shape).astype(dtype)


def _cycled(rng: np.random.Generator, low: int, high: int, size: int) -> Numbers:
    width = high - low + 1
    if width <= size:
        start = np.asarray(low)  # of the type that holds it
        return np.asarray(start + np.resize(rng.permutation(width), size).astype(start.dtype))
    if width > _EXACT or high > np.iinfo(np.int64).max:
        return _whole(rng, low, high, size)
    starts = np.arange(size + 1, dtype=np.int64) * width // max(size, 1)
    picked = starts[:-1] + np.floor(rng.random(size) * np.diff(starts)).astype(np.int64)  # one out of each equal part
    return np.asarray(low + rng.permutation(picked))


def _whole(rng: np.random.Generator, low: int, high: int, size: int) -> Numbers:
    wide = np.uint64 if high > np.iinfo(np.int64).max else np.int64
    return np.asarray(rng.integers(low, high, size, dtype=wide, endpoint=True))


def make_mask(point: ValuePoint, shape: Shape, dtype: np.dtype[Any], rng: np.random.Generator) -> Numbers:
    """Zeros and ones. Along a last axis of several positions the first is 1: what hides all of them is no input.

    Behind a causal mask the first position sees nothing but itself. Where values vary at least one is 0 as well, since
    some models mean by 1 what is hidden.
    """
    values = make_integers(point, 0, 1, shape, np.dtype(np.int64), rng)
    if values.ndim and values.shape[-1] > 1:
        values[..., 0] = 1
        if point in VARIED:
            values[..., -1] &= values.min(axis=-1) == 0
    return values.astype(dtype)


def arbitrary_values(
    rng: np.random.Generator, shape: Shape, dtype: np.dtype[Any], *, is_float: bool, low: int = 0
) -> Numbers:
    """Standard normal floats; integers that are ``low`` or one more: something to run, and no ground for a verdict."""
    values = rng.standard_normal(shape) if is_float else rng.integers(low, low + 2, shape)
    return np.asarray(values).astype(dtype)
