"""What an output is: labels, scores, boxes, an embedding, a dense map …, read from the graph that makes it.

Names of tensors say nothing here; operators, types and shapes do. No arrays, nothing is compared.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeAlias

from deploykit.model.facts import GraphFacts, NodeFact

__all__ = ["BOX", "MOVES", "OutputKind", "Piece", "Shape", "kind_of", "pieces_of", "shape_of"]


class OutputKind(StrEnum):
    """What an output, or a part of one, holds."""

    DETECTIONS = "detections"
    BOXES = "boxes"
    SCORES = "scores"
    LABELS = "labels"
    EMBEDDING = "embedding"
    LOGITS = "logits"
    DENSE = "dense"
    SEQUENCE = "sequence"
    OTHER = "other"


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """Slices ``start`` to ``stop`` (excluded) of ``axis`` of an output; all of it where ``axis`` is None.

    ``class_axis`` is the axis of a Softmax or of class logits, None where the graph names none.
    """

    output: str
    kind: OutputKind
    axis: int | None = None
    start: int = 0
    stop: int = 0
    class_axis: int | None = None

    @property
    def width(self) -> int:
        """How many slices."""
        return self.stop - self.start

    def __str__(self) -> str:
        return "" if self.axis is None else f"slices {self.start} to {self.stop - 1} of axis {self.axis}"


Shape: TypeAlias = tuple[int | str | None, ...]

_QDQ = frozenset({"QuantizeLinear", "DequantizeLinear"})
MOVES = _QDQ | frozenset(
    {"Identity", "Reshape", "Transpose", "Squeeze", "Unsqueeze", "Flatten", "Gather", "GatherElements", "GatherND"}
    | {"Slice", "Split", "Expand", "Tile", "Dropout", "TopK", "ReduceMax", "Clip"}
)
"""Ops whose values come from their first input and keep their meaning: the best of some scores is a score."""

_PROBABLE = frozenset({"Sigmoid", "Softmax", "HardSigmoid"})
_INTEGERS = frozenset({"bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"})
_AROUND_A_NORM = frozenset({"Sqrt", "Pow", "Clip", "Max", "Add", "Expand", "Abs", "Cast"}) | _QDQ
BOX = 4
_MOST_STEPS = 400


def kind_of(facts: GraphFacts, tensor: str) -> OutputKind:
    """What a tensor holds, from what makes it, its type and its shape."""
    maker = _origin(facts, tensor)
    if _holds_integers(facts, tensor, maker):
        return OutputKind.LABELS
    if maker is not None:
        if maker.op_type in _PROBABLE or _is_product_of_scores(facts, maker):
            return OutputKind.SCORES
        if _is_unit_length(facts, maker):
            return OutputKind.EMBEDDING
    return _by_shape(facts.tensors[tensor].shape)


def _origin(facts: GraphFacts, tensor: str) -> NodeFact | None:
    """The op that computed a tensor's values, seen through ops that only move or pick them."""
    node = facts.producer_of(tensor)
    for _ in range(_MOST_STEPS):
        if node is None or node.op_type not in MOVES or _is_index(node, tensor):
            break
        tensor = node.inputs[0]
        node = facts.producer_of(tensor)
    return node


def _is_index(node: NodeFact, tensor: str) -> bool:
    return node.op_type == "TopK" and len(node.outputs) > 1 and node.outputs[1] == tensor


def _holds_integers(facts: GraphFacts, tensor: str, maker: NodeFact | None) -> bool:
    """Whole numbers as such: of an integer type, or cast from one; stored steps of a quantizer are none."""
    if maker is not None and maker.op_type == "Cast":
        source = facts.tensors.get(maker.inputs[0])
        return source is not None and source.dtype in _INTEGERS and facts.producer_of(maker.inputs[0]) is not None
    fact = facts.tensors[tensor]
    return fact.dtype in _INTEGERS and not _is_stored_steps(facts, tensor)


def _is_stored_steps(facts: GraphFacts, tensor: str) -> bool:
    node = facts.producer_of(tensor)
    while node is not None and node.op_type in MOVES - {"QuantizeLinear", "TopK"}:
        node = facts.producer_of(node.inputs[0])
    return node is not None and node.op_type == "QuantizeLinear"


def _is_product_of_scores(facts: GraphFacts, node: NodeFact) -> bool:
    """Objectness times class scores."""
    makers = [_origin(facts, name) for name in node.inputs]
    return node.op_type == "Mul" and all(maker is not None and maker.op_type in _PROBABLE for maker in makers)


def _is_unit_length(facts: GraphFacts, node: NodeFact) -> bool:
    """LpNormalization, or x divided by its own norm, as exporters write it."""
    if node.op_type == "LpNormalization":
        return True
    if node.op_type != "Div":
        return False
    below = node.inputs[1]
    for _ in range(6):  # Sqrt, ReduceSum, Clip or Add of an eps, Expand: nobody writes more
        maker = facts.producer_of(below)
        if maker is None:
            return False
        if maker.op_type == "ReduceL2":
            return maker.inputs[0] == node.inputs[0]
        if maker.op_type in ("ReduceSum", "ReduceSumSquare"):
            return _is_square_of(facts, maker, node.inputs[0])
        if maker.op_type not in _AROUND_A_NORM:
            return False
        below = maker.inputs[0]
    return False


def _is_square_of(facts: GraphFacts, node: NodeFact, x: str) -> bool:
    if node.op_type == "ReduceSumSquare":
        return node.inputs[0] == x
    squared = facts.producer_of(node.inputs[0])
    return squared is not None and squared.op_type in ("Mul", "Pow") and squared.inputs[0] == x


def _by_shape(shape: Shape | None) -> OutputKind:
    """The usual meaning of a rank; a 1 in the place of height and width makes a map a vector."""
    if shape is None:
        return OutputKind.OTHER
    if len(shape) >= 4:
        return OutputKind.LOGITS if shape[2:] == (1,) * (len(shape) - 2) else OutputKind.DENSE
    if len(shape) == 3:
        return OutputKind.SEQUENCE
    return OutputKind.LOGITS if len(shape) == 2 and shape[1] != 1 else OutputKind.OTHER


def pieces_of(facts: GraphFacts, output: str) -> tuple[Piece, ...]:
    """An output in pieces of one kind each: the operands of the Concat that makes it, or the whole."""
    concat, axis = _joined(facts, output)
    if concat is None:
        kind = kind_of(facts, output)
        return (Piece(output=output, kind=kind, class_axis=_class_axis(facts, output, kind)),)
    found: list[Piece] = []
    place = 0
    along = int(concat.attributes.get("axis", 0))
    for name in concat.inputs:
        length = _dim(facts, name, along)
        assert length is not None
        found.append(Piece(output=output, kind=kind_of(facts, name), axis=axis, start=place, stop=place + length))
        place += length
    return tuple(_merged(found))


def _merged(pieces: list[Piece]) -> Iterator[Piece]:
    """Neighbours of one kind as one piece: two corners of boxes, scores of several heads; a box stays by itself."""
    last: Piece | None = None
    for piece in pieces:
        if last is not None and last.kind is piece.kind and not (last.width == BOX and piece.width != BOX):
            last = Piece(output=piece.output, kind=piece.kind, axis=piece.axis, start=last.start, stop=piece.stop)
            continue
        if last is not None:
            yield last
        last = piece
    if last is not None:
        yield last


def _joined(facts: GraphFacts, output: str) -> tuple[NodeFact | None, int]:
    """The Concat whose operands lie side by side in an output, and the output's axis along which they do.

    A Concat of levels (along the axis of rows) is seen through: its operands are made alike.
    """
    tensor, rank = output, len(facts.tensors[output].shape or ())
    axes: list[int | None] = list(range(rank))
    """Per axis of the tensor looked at, the axis of the output that it became; None where that is not told."""
    for _ in range(_MOST_STEPS):
        node, made = facts.producer_of(tensor), facts.tensors[tensor].shape
        inner = shape_of(facts, node.inputs[0]) if node is not None and node.inputs else None
        if node is None or inner is None or made is None:
            break
        if node.op_type == "Concat":
            along = int(node.attributes.get("axis", 0)) % len(made)
            if axes[along] is not None and _are_features(facts, node, made, along):
                return node, axes[along] or 0
        elif node.op_type == "Transpose":
            order = [int(axis) for axis in node.attributes.get("perm", range(len(made))[::-1])]
            axes = [axes[order.index(axis)] for axis in range(len(order))]
        elif node.op_type in ("Reshape", "Flatten", "Squeeze", "Unsqueeze"):
            axes = [None if axis is None else axes[axis] for axis in _kept_axes(inner, made)]
        elif node.op_type not in ("QuantizeLinear", "DequantizeLinear", "Identity", "Cast", "Clip"):
            break
        tensor = node.inputs[0]
    return None, 0


def _are_features(facts: GraphFacts, concat: NodeFact, shape: Shape, axis: int) -> bool:
    """True for coordinates beside scores, False for levels below levels: those are longer than wide."""
    lengths = [_dim(facts, name, axis) for name in concat.inputs]
    if axis == 0 or None in lengths:
        return False
    if len({kind_of(facts, name) for name in concat.inputs}) > 1:
        return True
    rest = [dim for place, dim in enumerate(shape) if place != axis and isinstance(dim, int)]
    total = sum(length or 0 for length in lengths)
    channels = axis == len(shape) - 1 or (axis == 1 and len(shape) >= 4)
    return total <= max(rest, default=total) or (channels and BOX in lengths)


def _kept_axes(inner: Shape, made: Shape) -> list[int | None]:
    """Per axis of what a Reshape reads, the axis of what it makes that is the same one: as long, with as much before
    it or as much behind it. An unknown length is like no other."""
    before = {key: axis for axis, key in enumerate(_outside(made))}
    behind = {key: len(made) - 1 - axis for axis, key in enumerate(_outside(made[::-1]))}
    last = len(inner) - 1
    from_behind = [behind.get(key) for key in _outside(inner[::-1])]
    return [before.get(key, from_behind[last - axis]) for axis, key in enumerate(_outside(inner))]


def _outside(shape: Shape) -> Iterator[tuple[object, ...]]:
    """Per axis its length and how many elements lie before it: named lengths, and the product of the others."""
    names: tuple[str | object, ...] = ()
    count = 1
    for dim in shape:
        yield (*names, count, object() if dim is None else dim)
        if isinstance(dim, int):
            count *= dim
        else:
            names = (*names, object() if dim is None else dim)


def shape_of(facts: GraphFacts, tensor: str) -> Shape | None:
    """The shape of a tensor as known, None without a rank."""
    fact = facts.tensors.get(tensor)
    return None if fact is None else fact.shape


def _dim(facts: GraphFacts, tensor: str, axis: int) -> int | None:
    shape = shape_of(facts, tensor)
    if shape is None or not -len(shape) <= axis < len(shape):
        return None
    dim = shape[axis]
    return dim if isinstance(dim, int) else None


def _class_axis(facts: GraphFacts, output: str, kind: OutputKind) -> int | None:
    """The axis along which one of several is the answer."""
    shape = facts.tensors[output].shape
    if shape is None:
        return None
    node = facts.producer_of(output)
    while node is not None and node.op_type in ("QuantizeLinear", "DequantizeLinear", "Identity", "Cast"):
        node = facts.producer_of(node.inputs[0])
    if node is not None and node.op_type in ("Softmax", "LogSoftmax"):
        return int(node.attributes.get("axis", -1 if facts.opset >= 13 else 1)) % len(shape)
    return 1 if kind is OutputKind.LOGITS else None
