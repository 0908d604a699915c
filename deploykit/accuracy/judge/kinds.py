"""What an output holds, and so how it is measured: read from operators and shapes. Names of tensors say nothing here.

No arrays are read and nothing is compared.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from enum import StrEnum
from itertools import accumulate, pairwise
from math import prod
from typing import Any, TypeAlias

from deploykit.accuracy.judge.verdict import limits
from deploykit.encodings.post_processing import concat_parts
from deploykit.findings.records import Names, Published, Shape, replace
from deploykit.model.facts import GraphFacts, NodeFact
from deploykit.model.operators import QUANTIZERS, Trait, has, ops

__all__ = ["STRIDES", "DetectionSet", "OutputKind", "Piece", "Reading", "Task", "detection_sets", "pieces_of"]

STRIDES = (8, 16, 32, 64, 128)
"""Pixels from a cell of a detector to the next, finest first."""


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


class Piece(Published, kw_only=False):
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
        """The number of slices."""
        return self.stop - self.start

    def __str__(self) -> str:
        return "" if self.axis is None else f"slices {self.start} to {self.stop - 1} of axis {self.axis}"


class DetectionSet(Published, kw_only=False):
    """The pieces that together are detections. ``sizes`` is the graph input that boxes are multiplied by, "" for none.

    Without ``labels`` the scores are per class, classes along the last axis of the piece (or its sliced axis).
    ``picture`` is its height and width, () where there is none; ``coarser`` are more levels of the same.
    """

    boxes: Piece
    scores: Piece
    labels: Piece | None = None
    objectness: Piece | None = None
    sizes: str = ""
    picture: tuple[int, ...] = ()
    coarser: tuple[DetectionSet, ...] = ()

    @property
    def outputs(self) -> Names:
        """The outputs that hold the pieces."""
        levels = (self, *self.coarser)
        pieces = [piece for one in levels for piece in (one.boxes, one.scores, one.labels, one.objectness)]
        return tuple(dict.fromkeys(piece.output for piece in pieces if piece is not None))


class Reading(Published):
    """How the outputs of a model are read: the pieces of each one, and the detections among them.

    ``doubt`` says why what they are held against is no reference for a yes.
    """

    pieces: Mapping[str, tuple[Piece, ...]]
    detections: tuple[DetectionSet, ...]
    doubt: str = ""

    @classmethod
    def of(cls, facts: GraphFacts) -> Reading:
        """The reading of a graph's outputs."""
        return cls(pieces={name: pieces_of(facts, name) for name in facts.outputs}, detections=detection_sets(facts))


_Shape: TypeAlias = tuple[int | str | None, ...]

# Operators whose values come from their first input and keep their meaning: the best of some scores is a score.
_MOVES = ops(Trait.REARRANGES, Trait.SELECTS) | {*QUANTIZERS, "Clip"}
_SAME = frozenset({*QUANTIZERS, "Identity", "Cast"})
_WHOLE = _SAME | ops(Trait.RESHAPES) | {"Transpose"}
_ARITHMETIC = ops(Trait.COMBINES, Trait.JOINS)
_PROBABLE = frozenset({"Sigmoid", "Softmax", "HardSigmoid"})
_AROUND_A_NORM = frozenset({*QUANTIZERS, "Sqrt", "Pow", "Clip", "Max", "Add", "Expand", "Abs", "Cast"})
_NO_BOXES = (OutputKind.SCORES, OutputKind.LABELS, OutputKind.EMBEDDING)
_BOX = 4
_BINS = (32, 64, 68)  # 8, 16 or 17 distances to each side, as PicoDet, YOLOv8 and GFL weigh them
_MOST_STEPS = 400
# A head that gives one of fewer than so many characters or words is not told from any other projection.
_LEAST_WORDS = 20
_LEAST_FEATURES = 64
_LAYERS = ops(Trait.LINEAR, Trait.INTEGER_LINEAR) | {"DynamicQuantizeLinear", "LogSoftmax"}
_FEWEST_LETTERS = 11
"""The fewest letters of a text: ten digits and a blank."""


def _kind_of(facts: GraphFacts, tensor: str) -> OutputKind:
    """What a tensor holds, from what makes it, its type and its shape."""
    maker = facts.maker_behind(tensor, _MOVES)
    # Whole numbers as such: of an integer type, or cast from one; the integers of a quantizer are none.
    if maker is not None and maker.op_type == "Cast":
        is_whole = not facts.is_data(maker.inputs[0]) and facts.producer_of(maker.inputs[0]) is not None
    else:
        steps = facts.maker_behind(tensor, _MOVES - {"QuantizeLinear", "TopK"}, "QuantizeLinear")
        is_whole = not facts.is_data(tensor) and steps is None
    if is_whole:
        return OutputKind.LABELS
    if maker is not None:
        mean = facts.maker_behind(tensor, _MOVES | ops(Trait.AVERAGES))  # a mean of probabilities is one
        if (mean or maker).op_type in _PROBABLE or _made_of_scores(facts, maker):
            return OutputKind.SCORES
        if maker.op_type == "LpNormalization":
            return OutputKind.EMBEDDING
        if maker.op_type == "Div":  # by its own norm, as exporters write it
            norm = facts.maker_behind(maker.inputs[1], _AROUND_A_NORM, "ReduceSum", "ReduceL2", "ReduceSumSquare")
            if norm is not None and norm.op_type == "ReduceSum":
                norm = facts.producer_of(norm.inputs[0], "Mul", "Pow")
            if norm is not None and norm.inputs[0] == maker.inputs[0]:
                return OutputKind.EMBEDDING
    shape = facts.tensors[tensor].shape
    if shape is None:
        return OutputKind.OTHER
    if len(shape) >= 4:  # a 1 in the place of height and width makes a map a vector
        return OutputKind.LOGITS if shape[2:] == (1,) * (len(shape) - 2) else OutputKind.DENSE
    if len(shape) == 3:
        return OutputKind.SEQUENCE
    return OutputKind.LOGITS if len(shape) == 2 and shape[1] != 1 else OutputKind.OTHER


def _made_of_scores(facts: GraphFacts, node: NodeFact, depth: int = 3) -> bool:
    """True for products of scores, such as objectness times class scores, and for a Where of scores and a constant."""
    read = {"Mul": node.inputs, "Where": [n for n in node.inputs[1:] if not facts.is_stored(n)]}.get(node.op_type, ())
    makers = [facts.maker_behind(name, _MOVES) for name in read if depth]
    return bool(makers) and all(
        maker is not None and (maker.op_type in _PROBABLE or _made_of_scores(facts, maker, depth - 1))
        for maker in makers
    )


def pieces_of(facts: GraphFacts, output: str) -> tuple[Piece, ...]:
    """An output in pieces of one kind each: the operands of the Concat that makes it, or the whole."""
    for node, axes in _upwards(facts, output):
        if node.op_type == "Concat":
            along, parts = node.axis() % len(axes), concat_parts(facts, node)
            shape, axis = facts.tensors[node.outputs[0]].shape or (), axes[along]
            if axis is not None and _are_features(facts, parts, shape, along):
                break
    else:
        kind = _kind_of(facts, output)
        class_axis, task = _task(facts, output, kind)
        return (Piece(output, kind, class_axis=class_axis, task=task),)
    moved = [found for part in parts for found in _in_place(facts, part, along, parts[-1][2])]
    # The operands of a Concat are known even where its result is decoded afterwards.
    found, read = list[Piece](), set(_reached(facts, parts[0][0]) if len(moved) == len(parts) else ())
    parts = tuple(moved)
    kinds = [_kind_of(facts, name) for name, _, _ in parts]
    scores = sum(stop - start for kind, (_, start, stop) in zip(kinds, parts, strict=True) if kind is OutputKind.SCORES)
    for kind, (name, start, stop) in zip(kinds, parts, strict=True):
        maker = facts.maker_behind(name, _MOVES)
        # Boxes and scores of one Sigmoid: a head that is decoded behind it. Its first score is objectness.
        whole = kind is not OutputKind.SCORES or maker is None or maker.outputs[0] not in read
        for begin, end in pairwise((start, stop) if whole or not found else (start, start + 1, stop)):
            piece = Piece(output, kind, axis=axis, start=begin, stop=end)
            last = found[-1] if found else None
            # Neighbours of one kind are one piece: two corners of boxes, scores of several heads. A box stays by
            # itself, and so does one score before those of the classes, or of the only one: whether there is anything.
            alone = () if last is None else (_BOX, 1) if last.kind is OutputKind.SCORES else (_BOX,)
            unlike = last is not None and (last.width != piece.width or (len(found) > 1 and scores == 2))
            if last is not None and last.kind is kind and not (last.width in alone and unlike):
                found[-1] = replace(last, stop=end)
            elif end > begin:
                found.append(piece)
    return tuple(found)


def _in_place(facts: GraphFacts, part: tuple[str, int, int], along: int, total: int) -> list[tuple[str, int, int]]:
    """What an inner Concat joins at the places of a part that is cut out of it and nothing else; else the part itself.

    Values that a decoder leaves as they are stay where they were.
    """
    name, start, stop = part
    for node, axes in _upwards(facts, name, "Slice", "Split"):
        inner = concat_parts(facts, node) if node.op_type == "Concat" else ()
        if inner and inner[-1][2] == total and axes[node.axis() % len(axes)] == along:
            return [(one, max(low, start), min(high, stop)) for one, low, high in inner if low < stop and start < high]
    return [part]


_SOFT = ("Softmax", "LogSoftmax")


def _task(facts: GraphFacts, output: str, kind: OutputKind) -> tuple[int | None, Task]:
    """The axis along which one of several is the answer, and what people measure of such an output."""
    shape = facts.tensors[output].shape
    best = facts.maker_behind(output, _WHOLE, "ArgMax")
    if kind is OutputKind.LABELS and best is not None and not _reads_words(facts):
        # The letter that leads in each step, picked inside of the model.
        steps = facts.static_shape(best.inputs[0]) or ()
        if len(steps) == 3 and steps[best.axis()] >= _FEWEST_LETTERS:
            return None, Task.TEXT
    if kind in (OutputKind.LABELS, OutputKind.EMBEDDING):
        return None, Task(kind)
    if shape is None:
        return None, Task.SIGNAL
    pictures = [other for name in facts.inputs if len(other := facts.tensors[name].shape or ()) == 4]
    rank, default = len(shape), -1 if facts.opset >= 13 else 1
    # A single number has no axis, and no other class.
    made = [(node, axes) for node, axes in _upwards(facts, output) if axes and node.op_type in _SOFT]
    axis = next((axes[node.axis(default) % len(axes)] for node, axes in made), None)
    if axis is None and kind is OutputKind.LOGITS:
        # A model that gives probabilities in one output does so in all outputs that are classes.
        beside = OutputKind.SCORES in [_kind_of(facts, name) for name in facts.outputs]
        end, wide = None if beside else _no_logits(facts, output), shape[1] if isinstance(shape[1], int) else 0
        # Vectors have 128, 192, 256, 512 numbers; a vocabulary may as well.
        usual = wide > _LEAST_FEATURES and wide % _LEAST_FEATURES == 0 and not _reads_words(facts)
        # A sum of products with stored weights is a small layer for each number, as many heads have.
        heads = facts.producer_of(end.inputs[0], "Mul") if end is not None and end.op_type == "ReduceSum" else None
        layer = heads is not None and any(map(facts.is_stored, heads.inputs))
        if not beside and (usual if end is None else wide >= _LEAST_FEATURES and not layer):
            return None, Task.EMBEDDING
        axis = None if beside or end is not None else 1
    elif axis is None and rank == 3:
        # A projection onto many more values than it reads: logits of a vocabulary. Onto fewer, of the states of a layer
        # that went over a picture step by step: logits of letters.
        words, maker = shape[2], facts.maker_behind(output, _WHOLE - {"Transpose"})
        read = [dim for dim in _weight_shape(facts, maker, "MatMul", "Gemm") if isinstance(dim, int) and dim != words]
        linear = _without_bias(facts, maker)
        states = linear and facts.maker_behind(linear.inputs[0], _WHOLE, *ops(Trait.RECURRENT))
        least = _FEWEST_LETTERS if pictures and states else max([*read, _LEAST_WORDS]) + 1
        axis = 2 if isinstance(words, int) and len(read) == 1 and words >= least else None
    if axis is not None:
        if rank == 3 and axis == 2:
            # Words in, words out: one token per place. From pictures and sound: texts, by CTC.
            if _reads_words(facts):
                return axis, Task.TOKENS
            few = isinstance(shape[2], int) and shape[2] < _FEWEST_LETTERS  # states of a signal, one for each step
            return axis, Task.CLASSES if few else Task.TEXT
        return axis, Task.SEGMENTATION if rank >= 4 and kind is not OutputKind.LOGITS else Task.CLASSES
    if kind is OutputKind.SCORES:
        return None, Task.MASK if rank >= 4 else Task.DECISIONS
    for other in pictures if rank == 4 and shape[1] in (1, 3) else ():
        # As large as an input with as many channels, or larger: what a denoiser or a super-resolution gives.
        known = [dim for dim in (*shape[2:], *other[2:]) if isinstance(dim, int)]
        if other[1] == shape[1] and len(known) == 4 and known[0] >= known[2] and known[1] >= known[3]:
            return None, Task.IMAGE
    if rank == 4 and _gives_pixel_classes(facts, output, shape, pictures):
        return 1, Task.SEGMENTATION
    return None, Task.REGRESSION if kind in (OutputKind.OTHER, OutputKind.LOGITS) else Task.SIGNAL


def _reads_words(facts: GraphFacts) -> bool:
    """True where an input holds whole numbers, and not one alone, such as the width of a line."""
    known = map(facts.tensor, facts.inputs)
    return any(given.dtype in ("int32", "int64") and given.shape not in ((), (1,)) for given in known)


def _no_logits(facts: GraphFacts, output: str) -> NodeFact | None:
    """The node that shows that a row is no logits; None where nothing shows it.

    Logits are what a linear layer gives, averaged over places or added up with others. Features are an average of an
    activation's results, a state, or the result of a norm. An average over a Relu is logits where the layer before it
    gives fewer channels than it reads, or those of a data set.
    """
    todo, seen = [(output, False)], set[tuple[str, bool]]()
    while todo:
        place = tensor, averaged = todo.pop()
        node = None if place in seen else facts.maker_behind(tensor, _MOVES - {"Clip"} | {"Cast"})
        seen.add(place)
        if node is None or node.op_type in _LAYERS:
            continue
        parts = [name for name in node.inputs if not facts.is_stored(name)] if has(node, Trait.COMBINES) else []
        if has(node, Trait.CLAMPS, Trait.RECTIFIES):
            kernel = _weight_shape(facts, facts.producer_of(node.inputs[0]), "Conv")
            made, read = ([dim for dim in part if isinstance(dim, int)] for part in (kernel[:1], kernel[1:2]))
            known = made < read or any(made == [size] for row in limits().data_set for size in row.classes)
            parts = [node.inputs[0]] if known or not averaged else []
        elif has(node, Trait.AVERAGES):
            parts, averaged = [node.inputs[0]], True
        if not parts:
            return node
        todo += [(name, averaged) for name in reversed(parts)]
    return None


def _without_bias(facts: GraphFacts, node: NodeFact | None) -> NodeFact | None:
    """The operator whose result a separate bias is added to, for an Add; else the node itself."""
    if node is None or node.op_type != "Add":
        return node
    return next(filter(None, map(facts.producer_of, node.inputs)), None)


def _weight_shape(facts: GraphFacts, node: NodeFact | None, *op_types: str) -> _Shape:
    """The shape of the stored weight of a linear operator of some types; () for another operator."""
    linear = _without_bias(facts, node)
    if linear is None or linear.op_type not in op_types or not facts.is_stored(linear.inputs[1]):
        return ()
    return facts.tensors[linear.inputs[1]].shape or ()


def _gives_pixel_classes(facts: GraphFacts, output: str, shape: _Shape, pictures: list[_Shape]) -> bool:
    """True for a 1 by 1 convolution onto classes, perhaps enlarged.

    These are logits of a segmentation whose ArgMax is left to the host. They have the size of the picture or, by the
    number of classes of a public data set, a smaller one: there heat maps of key points are made alike.
    """
    kernel = _weight_shape(facts, facts.maker_behind(output, _SAME | {"Resize", "Upsample"}), "Conv")
    if kernel[2:] != (1, 1) or shape[1] in (None, 1) or kernel[0] != shape[1]:
        return False
    sizes = [other[2:] for other in pictures if other[1] in (1, 3, 4)]
    return shape[2:] in sizes or (bool(sizes) and any(shape[1] in known.classes for known in limits().data_set))


def _upwards(facts: GraphFacts, output: str, *also: str) -> Iterator[tuple[NodeFact, list[int | None]]]:
    """The nodes that make an output through moves only, each with the output's axis for each axis of the node's result.

    A Concat of levels (along the axis of rows) is seen through: its operands are made alike. An axis is None where the
    output's is not known. ``also`` are more operators that keep axes.
    """
    tensor, axes = output, list[int | None](range(len(facts.tensors[output].shape or ())))
    while (node := facts.producer_of(tensor)) is not None and node.inputs:
        if (made := facts.tensors[tensor].shape) is None:
            return
        yield node, axes
        if node.op_type == "Transpose":
            order = [int(axis) for axis in node.attributes.get("perm", range(len(made))[::-1])]
            axes = [axes[order.index(axis)] for axis in range(len(order))]
        elif has(node, Trait.RESHAPES):
            read = facts.tensor(node.inputs[0]).shape or ()
            axes = [None if axis is None else axes[axis] for axis in _same_axes(read, made)]
        elif node.op_type not in _SAME | {"Clip", "Concat", *also}:
            return
        tensor = node.inputs[0]


def _are_features(facts: GraphFacts, parts: tuple[tuple[str, int, int], ...], shape: _Shape, axis: int) -> bool:
    """True for coordinates beside scores, False for levels below levels: those are longer than wide."""
    if axis == 0 or not parts:
        return False
    if len({_kind_of(facts, name) for name, _, _ in parts}) > 1:
        return True
    rest = [dim for place, dim in enumerate(shape) if place != axis and isinstance(dim, int)]
    total = parts[-1][2]
    channels = axis == len(shape) - 1 or (axis == 1 and len(shape) >= 4)
    return total <= max(rest, default=total) or (channels and any(stop - start == _BOX for _, start, stop in parts))


def _same_axes(inner: _Shape, made: _Shape) -> list[int | None]:
    """For each axis of a Reshape's input, the axis of its result that is the same one; None where there is none.

    The same axis is as long, with as much before it or as much behind it. An unknown length is like no other: NaN.
    """
    one, two = ([dim if isinstance(dim, int) else float("nan") for dim in shape] for shape in (inner, made))
    before = {(prod(two[:axis]), size): axis for axis, size in enumerate(two)}
    behind = {(size, prod(two[axis + 1 :])): axis for axis, size in reversed(list(enumerate(two)))}
    return [
        before.get((prod(one[:axis]), size), behind.get((size, prod(one[axis + 1 :])))) for axis, size in enumerate(one)
    ]


def detection_sets(facts: GraphFacts) -> tuple[DetectionSet, ...]:
    """The detections among the outputs: one output that joins boxes and scores, or several of one length."""
    pieces = {name: pieces_of(facts, name) for name in facts.outputs}
    # The largest of the inputs that are pictures.
    maps = [known for name in facts.inputs if len(known := facts.static_shape(name) or ()) == 4]
    planes = [known[-2:] for known in maps if known[1] <= _BOX] or [known[1:3] for known in maps]
    picture = max(planes, key=max, default=())
    found = [made for parts in pieces.values() if (made := _in_one(facts, parts)) is not None]
    found = found or [*_of_cells(facts, picture)]
    taken = {name for made in found for name in made.outputs}
    left = {name: parts[0] for name, parts in pieces.items() if len(parts) == 1 and name not in taken}

    def doubt(name: str) -> int:
        """How doubtful it is that an output holds boxes.

        Scores of four classes look like boxes: plain projections are logits, and a Sigmoid may be over either.
        """
        maker = _without_bias(facts, facts.producer_of(name))
        is_plain = maker is not None and maker.op_type in ("Conv", "Gemm", "MatMul")
        return 2 if is_plain else int(left[name].kind is OutputKind.SCORES)

    for name in sorted(left, key=doubt):
        shape = facts.tensors[name].shape or ()
        # Four numbers per row, of which there may be several; a sigmoid over boxes is still boxes.
        is_box = len(shape) >= 2 and (shape[-1] == _BOX or (len(shape) == 3 and shape[1] == _BOX))
        is_free = left[name].kind not in (OutputKind.LABELS, OutputKind.EMBEDDING)
        if is_box and is_free and facts.is_data(name) and not any(name in made.outputs for made in found):
            # Of other tensors, as they are or as probabilities: four logits are no box.
            seen = _WHOLE | _PROBABLE
            source = facts.origin(name, seen)
            others = [piece for other, piece in left.items() if facts.origin(other, seen) != source]
            found += filter(None, [_among(facts, name, shape[-2] if shape[-1] == _BOX else shape[-1], others)])
    return tuple(replace(made, picture=picture) for made in found)


def _of_cells(facts: GraphFacts, picture: Sequence[int]) -> Iterator[DetectionSet]:
    """Scores beside weighed distances to four sides, a row for each cell of two levels or more, before decoding."""
    counts = [prod(-(-side // stride) for side in picture) for stride in STRIDES if picture]
    beside, found, sums = dict[Shape, list[Piece]](), dict[int, DetectionSet](), [*accumulate(counts)][1:]
    for output in facts.outputs:
        shape = facts.static_shape(output) or ()
        for along in range(1, len(shape)):
            joins = [
                concat_parts(facts, node)
                for node, axes in _upwards(facts, output)
                if node.op_type == "Concat" and axes[node.axis() % len(axes)] == along
            ]
            for name, start, stop in (joins or [((output, 0, shape[along]),)])[-1]:
                piece = Piece(output, _kind_of(facts, name), axis=along, start=start, stop=stop)
                beside.setdefault(shape[:along] + shape[along + 1 :], []).append(piece)
    for shape, pieces in beside.items():
        pieces.sort(key=lambda piece: (piece.kind is OutputKind.SCORES, piece.width))
        boxes = [piece for piece in pieces if piece.width in _BINS and piece.kind is not OutputKind.SCORES][-1:]
        scores = [piece for piece in pieces if piece not in boxes][-1:]
        found |= {prod(shape): DetectionSet(box, score) for box in boxes for score in scores}
    levels = sorted({*counts, *sums} & found.keys(), reverse=True)
    if sum(levels) in sums:
        finest, *coarser = map(found.__getitem__, levels)
        yield replace(finest, coarser=tuple(coarser))


def _in_one(facts: GraphFacts, parts: tuple[Piece, ...]) -> DetectionSet | None:
    """The detections in one output, ``[1, 4+C, N]``, ``[1, N, 5+C]``, ``[N, 6]`` or ``[N, 7]``; None if not.

    The pieces are one of four values, scores, and perhaps labels.
    """
    boxes = [piece for piece in parts if piece.width == _BOX and piece.kind not in _NO_BOXES][:1]
    boxes = boxes or [piece for piece in parts[:1] if piece.width == _BOX and piece.kind is OutputKind.SCORES]
    scores = [piece for piece in parts if piece.kind is OutputKind.SCORES and piece not in boxes]
    labels = [piece for piece in parts if piece.kind is OutputKind.LABELS and piece.width == 1]
    if not boxes or not scores:
        return None
    best = max(scores, key=lambda piece: piece.width)
    other = next((piece for piece in scores if piece is not best and piece.width == 1), None)
    single = labels[-1] if labels and best.width == 1 else None
    return DetectionSet(boxes[0], best, labels=single, objectness=other, sizes=_size_input(facts, boxes[0].output))


def _among(facts: GraphFacts, name: str, rows: int | str | None, others: list[Piece]) -> DetectionSet | None:
    """The detections with boxes in one output, and scores and perhaps labels in others with a row for each.

    None where no outputs fit together.
    """

    def is_column(piece: Piece) -> bool:
        shape = [dim for dim in facts.tensors[piece.output].shape or (None,) if dim != 1]
        return shape[-1:] == [dim for dim in (rows,) if dim != 1]

    def is_scores(piece: Piece) -> bool:
        """One score per row, or one per row and class, as probabilities or logits."""
        shape = facts.tensors[piece.output].shape or ()
        if 0 in shape or piece.kind in (OutputKind.LABELS, OutputKind.EMBEDDING, OutputKind.DENSE):
            return False
        by_class = len(shape) >= 2 and rows in (shape[-2], shape[1] if len(shape) == 3 else None)
        return by_class or (piece.kind is OutputKind.SCORES and is_column(piece))

    labels = [piece for piece in others if piece.kind is OutputKind.LABELS and is_column(piece)]
    scores = list(filter(is_scores, others))
    if not scores:
        return None
    best = min(scores, key=lambda piece: piece.kind is not OutputKind.SCORES)
    box, single = Piece(name, OutputKind.BOXES), labels[0] if labels else None
    return DetectionSet(box, best, labels=single, sizes=_size_input(facts, name))


def _size_input(facts: GraphFacts, boxes: str) -> str:
    """The graph input that boxes are multiplied by, "" for none. It has a few numbers, such as the target's size."""
    sides: dict[str, Any] = {n: (shape := facts.tensors[n].shape or ("",))[1:] or shape for n in facts.inputs}
    small = {name for name, known in sides.items() if {*map(type, known)} == {int} and prod(known) <= _BOX}
    return next((name for name in _reached(facts, boxes) if name in small), "")


def _reached(facts: GraphFacts, tensor: str) -> Iterator[str]:
    """A tensor and the tensors that its values are moved or computed from, through moves and arithmetic only."""
    todo = [tensor]
    for name in todo:  # grows while it is walked
        yield name
        node = facts.producer_of(name)
        if node is not None and len(todo) < _MOST_STEPS and node.op_type in _MOVES | _ARITHMETIC | {"Cast"}:
            reached = node.inputs if node.op_type in _ARITHMETIC else node.inputs[:1]
            todo += [other for other in reached if other and other not in todo]
