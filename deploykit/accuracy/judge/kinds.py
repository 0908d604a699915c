"""What an output is, and so how it is measured: read from operators and shapes.

Names of tensors say nothing here. No arrays, nothing is compared.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from math import prod
from typing import TypeAlias

from deploykit.accuracy.judge.verdict import limits
from deploykit.model.facts import GraphFacts, NodeFact

__all__ = ["DetectionSet", "OutputKind", "Piece", "Task", "detection_sets", "kind_of", "pieces_of"]


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


class Task(StrEnum):
    """What people measure of an output; ``SIGNAL`` where nothing better than decibels is known."""

    CLASSES = "classes"
    DECISIONS = "decisions"
    TEXT = "text"
    TOKENS = "tokens"
    SEGMENTATION = "segmentation"
    MASK = "mask"
    LABELS = "labels"
    EMBEDDING = "embedding"
    IMAGE = "image"
    REGRESSION = "regression"
    SIGNAL = "signal"


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """Slices ``start`` to ``stop`` (excluded) of ``axis`` of an output; all of it where ``axis`` is None.

    ``class_axis`` is the axis along which one of several is the answer, None where there is none.
    """

    output: str
    kind: OutputKind
    axis: int | None = None
    start: int = 0
    stop: int = 0
    class_axis: int | None = None
    task: Task = Task.SIGNAL

    @property
    def width(self) -> int:
        """How many slices."""
        return self.stop - self.start

    def __str__(self) -> str:
        return "" if self.axis is None else f"slices {self.start} to {self.stop - 1} of axis {self.axis}"


@dataclass(frozen=True, slots=True, kw_only=True)
class DetectionSet:
    """The pieces that together are detections. ``sizes`` is the graph input that boxes are multiplied by, "" if none.

    Without ``labels`` the scores are per class, classes along the last axis of the piece (or its sliced axis).
    """

    boxes: Piece
    scores: Piece
    labels: Piece | None = None
    objectness: Piece | None = None
    sizes: str = ""

    @property
    def outputs(self) -> tuple[str, ...]:
        """The outputs it takes its pieces from."""
        pieces = (self.boxes, self.scores, self.labels, self.objectness)
        return tuple(dict.fromkeys(piece.output for piece in pieces if piece is not None))


_Shape: TypeAlias = tuple[int | str | None, ...]

_QDQ = frozenset({"QuantizeLinear", "DequantizeLinear"})
# Operators whose values come from their first input and keep their meaning: the best of some scores is a score.
_MOVES = _QDQ | frozenset(
    {"Identity", "Reshape", "Transpose", "Squeeze", "Unsqueeze", "Flatten", "Gather", "GatherElements", "GatherND"}
    | {"Slice", "Split", "Expand", "Tile", "Dropout", "TopK", "ReduceMax", "Clip"}
)
_MEANS = frozenset({"ReduceMean", "GlobalAveragePool"})
_SAME = _QDQ | {"Identity", "Cast"}
_ARITHMETIC = frozenset({"Mul", "Add", "Sub", "Concat", "Max", "Min"})
_PROBABLE = frozenset({"Sigmoid", "Softmax", "HardSigmoid"})
_INTEGERS = frozenset({"bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"})
_AROUND_A_NORM = frozenset({"Sqrt", "Pow", "Clip", "Max", "Add", "Expand", "Abs", "Cast"}) | _QDQ
_NO_BOXES = (OutputKind.SCORES, OutputKind.LABELS, OutputKind.EMBEDDING)
_BOX = 4
_MOST_STEPS = 400
# A head that gives one of fewer than so many characters or words is not told from any other projection.
_LEAST_WORDS = 20


def kind_of(facts: GraphFacts, tensor: str) -> OutputKind:
    """What a tensor holds, from what makes it, its type and its shape."""
    maker = _origin(facts, tensor)
    if _holds_integers(facts, tensor, maker):
        return OutputKind.LABELS
    if maker is not None:
        mean = _origin(facts, tensor, _MOVES | _MEANS)  # a mean of probabilities is one
        if (mean or maker).op_type in _PROBABLE or _is_product_of_scores(facts, maker):
            return OutputKind.SCORES
        if _is_unit_length(facts, maker):
            return OutputKind.EMBEDDING
    shape = facts.tensors[tensor].shape
    if shape is None:
        return OutputKind.OTHER
    if len(shape) >= 4:  # a 1 in the place of height and width makes a map a vector
        return OutputKind.LOGITS if shape[2:] == (1,) * (len(shape) - 2) else OutputKind.DENSE
    if len(shape) == 3:
        return OutputKind.SEQUENCE
    return OutputKind.LOGITS if len(shape) == 2 and shape[1] != 1 else OutputKind.OTHER


def _origin(facts: GraphFacts, tensor: str, through: Iterable[str] = _MOVES) -> NodeFact | None:
    """The operator that computed a tensor's values, seen through those that only move or pick them."""
    node = facts.producer_of(tensor)
    for _ in range(_MOST_STEPS):
        is_index = node is not None and node.op_type == "TopK" and node.outputs[1:2] == (tensor,)
        if node is None or node.op_type not in through or is_index:
            break
        tensor = node.inputs[0]
        node = facts.producer_of(tensor)
    return node


def _holds_integers(facts: GraphFacts, tensor: str, maker: NodeFact | None) -> bool:
    """Whole numbers as such: of an integer type, or cast from one; stored steps of a quantizer are none."""
    if maker is not None and maker.op_type == "Cast":
        source = facts.tensors.get(maker.inputs[0])
        return source is not None and source.dtype in _INTEGERS and facts.producer_of(maker.inputs[0]) is not None
    stored = _origin(facts, tensor, _MOVES - {"QuantizeLinear", "TopK"})
    is_steps = stored is not None and stored.op_type == "QuantizeLinear"
    return facts.tensors[tensor].dtype in _INTEGERS and not is_steps


def _is_product_of_scores(facts: GraphFacts, node: NodeFact, depth: int = 3) -> bool:
    """Objectness times class scores, times whether there is anything to see."""
    makers = [_origin(facts, name) for name in node.inputs]
    return (node.op_type == "Mul" and depth > 0) and all(
        maker is not None and (maker.op_type in _PROBABLE or _is_product_of_scores(facts, maker, depth - 1))
        for maker in makers
    )


def _is_unit_length(facts: GraphFacts, node: NodeFact) -> bool:
    """LpNormalization, or x divided by its own norm, as exporters write it."""
    if node.op_type != "Div":
        return node.op_type == "LpNormalization"
    x, below = node.inputs[:2]
    for _ in range(6):  # Sqrt, ReduceSum, Clip or Add of an eps, Expand: nobody writes more
        maker = facts.producer_of(below)
        if maker is None:
            return False
        if maker.op_type in ("ReduceL2", "ReduceSumSquare"):
            return maker.inputs[0] == x
        if maker.op_type == "ReduceSum":
            squared = facts.producer_of(maker.inputs[0])
            return squared is not None and squared.op_type in ("Mul", "Pow") and squared.inputs[0] == x
        if maker.op_type not in _AROUND_A_NORM:
            return False
        below = maker.inputs[0]
    return False


def pieces_of(facts: GraphFacts, output: str) -> tuple[Piece, ...]:
    """An output in pieces of one kind each: the operands of the Concat that makes it, or the whole."""
    concat, axis = _joined(facts, output)
    if concat is None:
        kind = kind_of(facts, output)
        class_axis, task = _task(facts, output, kind)
        return (Piece(output=output, kind=kind, class_axis=class_axis, task=task),)
    found: list[Piece] = []
    place = 0
    for name in concat.inputs:
        length = _dim(facts, name, int(concat.attributes.get("axis", 0)))
        assert length is not None
        piece = Piece(output=output, kind=kind_of(facts, name), axis=axis, start=place, stop=place + length)
        place += length
        last = found[-1] if found else None
        # Neighbours of one kind are one piece: two corners of boxes, scores of several heads; a box stays by itself.
        if last is not None and last.kind is piece.kind and not (last.width == _BOX and piece.width != _BOX):
            found[-1] = Piece(output=output, kind=piece.kind, axis=axis, start=last.start, stop=piece.stop)
        else:
            found.append(piece)
    return tuple(found)


def _task(facts: GraphFacts, output: str, kind: OutputKind) -> tuple[int | None, Task]:
    """The axis along which one of several is the answer, and what people measure of such an output."""
    shape = facts.tensors[output].shape
    if kind is OutputKind.LABELS:
        return None, Task.LABELS
    if kind is OutputKind.EMBEDDING:
        return None, Task.EMBEDDING
    if shape is None:
        return None, Task.SIGNAL
    node, rank = _origin(facts, output, _SAME), len(shape)
    axis: int | None = None
    if node is not None and node.op_type in ("Softmax", "LogSoftmax"):
        axis = int(node.attributes.get("axis", -1 if facts.opset >= 13 else 1)) % rank
    elif kind is OutputKind.LOGITS:
        axis = 1
    elif rank == 3 and _gives_words(facts, node):
        axis = 2
    if axis is not None:
        if rank == 3 and axis == 2:
            # Words in, words out: one token per place. From pictures and sound: texts, by CTC.
            whole = any(facts.tensors[name].dtype in ("int32", "int64") for name in facts.inputs)
            return axis, Task.TOKENS if whole else Task.TEXT
        return axis, Task.SEGMENTATION if rank >= 4 and kind is not OutputKind.LOGITS else Task.CLASSES
    if kind is OutputKind.SCORES:
        return None, Task.MASK if rank >= 4 else Task.DECISIONS
    if rank == 4 and shape[1] in (1, 3) and _is_picture(facts, shape):
        return None, Task.IMAGE
    if rank == 4 and _gives_pixel_classes(facts, output, shape):
        return 1, Task.SEGMENTATION
    return None, Task.REGRESSION if kind is OutputKind.OTHER else Task.SIGNAL


def _gives_words(facts: GraphFacts, node: NodeFact | None) -> bool:
    """A projection, perhaps with a bias, onto many more values than it reads: logits of a vocabulary."""
    if node is not None and node.op_type == "Add":
        makers = [facts.producer_of(name) for name in node.inputs]
        node = next((maker for maker in makers if maker is not None), None) if None in makers else None
    if node is None or node.op_type != "MatMul":
        return False
    weight = facts.tensors.get(node.inputs[1])
    shape = None if weight is None or not weight.is_weight else weight.shape
    if shape is None or len(shape) != 2:
        return False
    read, made = shape
    return isinstance(read, int) and isinstance(made, int) and made > max(read, _LEAST_WORDS)


def _gives_pixel_classes(facts: GraphFacts, output: str, shape: _Shape) -> bool:
    """A 1 by 1 convolution onto classes, perhaps enlarged: logits of a segmentation whose ArgMax is left to the host.

    In the size of the picture, or, by the number of classes of a public data set, in a smaller one: there heat maps of
    key points are made alike.
    """
    node = _origin(facts, output, _SAME | {"Resize", "Upsample"})
    if node is not None and node.op_type == "Add":  # a bias that was left outside
        node = next((made for made in map(facts.producer_of, node.inputs) if made is not None), None)
    weight = None if node is None or node.op_type != "Conv" else facts.tensors.get(node.inputs[1])
    kernel = None if weight is None else weight.shape
    if kernel is None or len(kernel) != 4 or kernel[2:] != (1, 1) or shape[1] in (None, 1) or kernel[0] != shape[1]:
        return False
    pictures = [facts.tensors[name].shape or () for name in facts.inputs]
    sizes = [other[2:] for other in pictures if len(other) == 4 and other[1] in (1, 3, 4)]
    return shape[2:] in sizes or (bool(sizes) and any(shape[1] in known.classes for known in limits().data_set))


def _is_picture(facts: GraphFacts, shape: _Shape) -> bool:
    """As large as an input with as many channels, or larger: what a denoiser or a super-resolution gives."""
    shapes = [facts.tensors[name].shape for name in facts.inputs]
    return any(
        other is not None
        and len(other) == 4
        and other[1] == shape[1]
        and all(isinstance(a, int) and isinstance(b, int) and a >= b for a, b in zip(shape[2:], other[2:], strict=True))
        for other in shapes
    )


def _joined(facts: GraphFacts, output: str) -> tuple[NodeFact | None, int]:
    """The Concat whose operands lie side by side in an output, and the output's axis along which they do.

    A Concat of levels (along the axis of rows) is seen through: its operands are made alike.
    """
    tensor, rank = output, len(facts.tensors[output].shape or ())
    # Per axis of the tensor looked at, the axis of the output that it became; None where that is not told.
    axes: list[int | None] = list(range(rank))
    for _ in range(_MOST_STEPS):
        node, made = facts.producer_of(tensor), facts.tensors[tensor].shape
        inner = _shape(facts, node.inputs[0]) if node is not None and node.inputs else None
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
            axes = [None if axis is None else axes[axis] for axis in _same_axes(inner, made)]
        elif node.op_type not in _SAME | {"Clip"}:
            break
        tensor = node.inputs[0]
    return None, 0


def _are_features(facts: GraphFacts, concat: NodeFact, shape: _Shape, axis: int) -> bool:
    """True for coordinates beside scores, False for levels below levels: those are longer than wide."""
    lengths = [_dim(facts, name, axis) for name in concat.inputs]
    if axis == 0 or None in lengths:
        return False
    if len({kind_of(facts, name) for name in concat.inputs}) > 1:
        return True
    rest = [dim for place, dim in enumerate(shape) if place != axis and isinstance(dim, int)]
    total = sum(length or 0 for length in lengths)
    channels = axis == len(shape) - 1 or (axis == 1 and len(shape) >= 4)
    return total <= max(rest, default=total) or (channels and _BOX in lengths)


def _same_axes(inner: _Shape, made: _Shape) -> list[int | None]:
    """Per axis of what a Reshape reads, the axis of what it makes that is the same one.

    That is one as long, with as much before it or as much behind it. An unknown length is like no other.
    """

    def outside(shape: _Shape) -> Iterator[tuple[object, ...]]:
        """Per axis how much lies before it, and its length."""
        names: tuple[object, ...] = ()
        count = 1
        for dim in shape:
            yield (*names, count, object() if dim is None else dim)
            if isinstance(dim, int):
                count *= dim
            else:
                names = (*names, object() if dim is None else dim)

    before = {key: axis for axis, key in enumerate(outside(made))}
    behind = {key: len(made) - 1 - axis for axis, key in enumerate(outside(made[::-1]))}
    from_behind = [behind.get(key) for key in outside(inner[::-1])][::-1]
    return [before.get(key, from_behind[axis]) for axis, key in enumerate(outside(inner))]


def _shape(facts: GraphFacts, tensor: str) -> _Shape | None:
    fact = facts.tensors.get(tensor)
    return None if fact is None else fact.shape


def _dim(facts: GraphFacts, tensor: str, axis: int) -> int | None:
    shape = _shape(facts, tensor)
    if shape is None or not -len(shape) <= axis < len(shape):
        return None
    dim = shape[axis]
    return dim if isinstance(dim, int) else None


def detection_sets(facts: GraphFacts) -> tuple[DetectionSet, ...]:
    """The detections among the outputs: one output that joins boxes and scores, or several of one length."""
    pieces = {name: pieces_of(facts, name) for name in facts.outputs}
    found = [made for parts in pieces.values() if (made := _in_one(facts, parts)) is not None]
    taken = {made.boxes.output for made in found}
    left = {name: parts[0] for name, parts in pieces.items() if len(parts) == 1 and name not in taken}

    def doubt(name: str) -> int:
        """Scores of four classes look like boxes: plain projections are logits, and a Sigmoid may be over either."""
        maker = facts.producer_of(name)
        if maker is not None and maker.op_type == "Add":
            maker = next(filter(None, map(facts.producer_of, maker.inputs)), None)
        is_plain = maker is not None and maker.op_type in ("Conv", "Gemm", "MatMul")
        return 2 if is_plain else int(left[name].kind is OutputKind.SCORES)

    for name in sorted(left, key=doubt):
        if any(name in made.outputs for made in found):
            continue
        piece, shape = left[name], facts.tensors[name].shape or ()
        is_float = facts.tensors[name].is_float or not facts.tensors[name].dtype
        # Four numbers per row, of which there may be several; a sigmoid over boxes is still boxes.
        is_box = len(shape) >= 2 and (shape[-1] == _BOX or (len(shape) == 3 and shape[1] == _BOX))
        if is_float and is_box and piece.kind not in (OutputKind.LABELS, OutputKind.EMBEDDING):
            made = _among(facts, name, {other: one for other, one in left.items() if other != name})
            found += [] if made is None else [made]
    return tuple(found)


def _in_one(facts: GraphFacts, parts: tuple[Piece, ...]) -> DetectionSet | None:
    """``[1, 4+C, N]``, ``[1, N, 5+C]``, ``[N, 6]``, ``[N, 7]``: a piece of four, scores, perhaps labels."""
    boxes = [piece for piece in parts if piece.width == _BOX and piece.kind not in _NO_BOXES][:1]
    boxes = boxes or [piece for piece in parts[:1] if piece.width == _BOX and piece.kind is OutputKind.SCORES]
    scores = [piece for piece in parts if piece.kind is OutputKind.SCORES and piece not in boxes]
    labels = [piece for piece in parts if piece.kind is OutputKind.LABELS and piece.width == 1]
    if not boxes or not scores:
        return None
    best = max(scores, key=lambda piece: piece.width)
    other = next((piece for piece in scores if piece is not best and piece.width == 1 and not labels), None)
    single = labels[-1] if labels and best.width == 1 else None
    sizes = _size_input(facts, boxes[0].output)
    return DetectionSet(boxes=boxes[0], scores=best, labels=single, objectness=other, sizes=sizes)


def _among(facts: GraphFacts, name: str, others: dict[str, Piece]) -> DetectionSet | None:
    """Boxes in one output, scores and perhaps labels in others with a row for each."""

    def without_ones(shape: _Shape) -> _Shape:
        return tuple(dim for dim in shape if dim != 1)

    def is_column(other: str) -> bool:
        shape = _shape(facts, other)
        return shape is not None and without_ones(shape)[-1:] == without_ones((rows,))

    def is_scores(other: str, piece: Piece) -> bool:
        """One score per row, or one per row and class, as probabilities or logits."""
        shape = _shape(facts, other)
        if shape is None or piece.kind in (OutputKind.LABELS, OutputKind.EMBEDDING, OutputKind.DENSE):
            return False
        by_class = len(shape) >= 2 and rows in (shape[-2], shape[1] if len(shape) == 3 else None)
        return by_class or (piece.kind is OutputKind.SCORES and is_column(other))

    shape = _shape(facts, name)
    assert shape is not None
    rows = shape[-2] if shape[-1] == _BOX else shape[-1]
    labels = [piece for other, piece in others.items() if piece.kind is OutputKind.LABELS and is_column(other)]
    scores = [piece for other, piece in others.items() if is_scores(other, piece)]
    if not scores:
        return None
    best = min(scores, key=lambda piece: piece.kind is not OutputKind.SCORES)
    box = Piece(output=name, kind=OutputKind.BOXES)
    single = labels[0] if labels else None
    return DetectionSet(boxes=box, scores=best, labels=single, sizes=_size_input(facts, name))


def _size_input(facts: GraphFacts, boxes: str) -> str:
    """The graph input that boxes are multiplied by, "" when there is none: a few numbers such as the target's size."""
    small = set()
    for name in facts.inputs:
        shape = facts.tensors[name].shape or (None, None)
        sides = [dim for dim in shape[1:] or shape if isinstance(dim, int)]
        if len(sides) == len(shape[1:] or shape) and prod(sides) <= _BOX:
            small.add(name)
    todo = [boxes]
    for name in todo:  # grows while it is walked
        node = facts.producer_of(name)
        if name in small:
            return name
        if node is not None and len(todo) < _MOST_STEPS and node.op_type in _MOVES | _ARITHMETIC | {"Cast", "Div"}:
            reached = node.inputs if node.op_type in _ARITHMETIC | {"Div"} else node.inputs[:1]
            todo += [other for other in reached if other and other not in todo]
    return ""
