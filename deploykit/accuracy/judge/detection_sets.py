"""Which outputs are detections: one that joins boxes and scores, or several that have a row for each.

Read from operators and shapes as the kinds of outputs are, never from names. No arrays, nothing is compared.
"""

from __future__ import annotations

from dataclasses import dataclass

from deploykit.accuracy.judge.kinds import BOX, MOVES, OutputKind, Piece, Shape, pieces_of
from deploykit.model.facts import GraphFacts

__all__ = ["DetectionSet", "detection_sets", "size_input"]

_MOST_STEPS = 400


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


def detection_sets(facts: GraphFacts) -> tuple[DetectionSet, ...]:
    """The detections among the outputs: one output that joins boxes and scores, or several of one length."""
    pieces = {name: pieces_of(facts, name) for name in facts.outputs}
    found = [made for parts in pieces.values() if (made := _in_one(facts, parts)) is not None]
    taken = {made.boxes.output for made in found}
    left = {name: parts[0] for name, parts in pieces.items() if len(parts) == 1 and name not in taken}
    for name, piece in left.items():
        made = _among(facts, name, left) if _looks_like_boxes(facts, name, piece) else None
        if made is not None:
            found.append(made)
    return tuple(found)


def _in_one(facts: GraphFacts, parts: tuple[Piece, ...]) -> DetectionSet | None:
    """``[1, 4+C, N]``, ``[1, N, 5+C]``, ``[N, 6]``, ``[N, 7]``: a piece of four, scores, perhaps labels."""
    boxes = [piece for piece in parts if piece.width == BOX and piece.kind not in _NO_BOXES][:1]
    boxes = boxes or [piece for piece in parts[:1] if piece.width == BOX and piece.kind is OutputKind.SCORES]
    scores = [piece for piece in parts if piece.kind is OutputKind.SCORES and piece not in boxes]
    labels = [piece for piece in parts if piece.kind is OutputKind.LABELS and piece.width == 1]
    if not boxes or not scores:
        return None
    best = max(scores, key=lambda piece: piece.width)
    other = next((piece for piece in scores if piece is not best and piece.width == 1 and not labels), None)
    single = labels[-1] if labels and best.width == 1 else None
    return DetectionSet(
        boxes=boxes[0], scores=best, labels=single, objectness=other, sizes=size_input(facts, boxes[0].output)
    )


_NO_BOXES = (OutputKind.SCORES, OutputKind.LABELS, OutputKind.EMBEDDING)


def _looks_like_boxes(facts: GraphFacts, name: str, piece: Piece) -> bool:
    """Four numbers per row, of rows of which there may be several; a sigmoid over boxes is still boxes."""
    shape = facts.tensors[name].shape
    if shape is None or len(shape) < 2 or piece.kind in (OutputKind.LABELS, OutputKind.EMBEDDING):
        return False
    if not facts.tensors[name].is_float and facts.tensors[name].dtype:
        return False
    return shape[-1] == BOX or (len(shape) == 3 and shape[1] == BOX)


def _among(facts: GraphFacts, name: str, pieces: dict[str, Piece]) -> DetectionSet | None:
    rows = _rows_of_boxes(facts, name)
    others = {other: piece for other, piece in pieces.items() if other != name}
    labels = [piece for other, piece in others.items() if _is_column(facts, other, rows, OutputKind.LABELS, piece)]
    scores = [piece for other, piece in others.items() if _is_scores(facts, other, rows, piece)]
    if not scores:
        return None
    best = min(scores, key=lambda piece: piece.kind is not OutputKind.SCORES)
    box = Piece(output=name, kind=OutputKind.BOXES)
    return DetectionSet(boxes=box, scores=best, labels=labels[0] if labels else None, sizes=size_input(facts, name))


def _rows_of_boxes(facts: GraphFacts, name: str) -> int | str | None:
    shape = facts.tensors[name].shape
    assert shape is not None
    return shape[-2] if shape[-1] == BOX else shape[-1]


def _is_column(facts: GraphFacts, name: str, rows: int | str | None, kind: OutputKind, piece: Piece) -> bool:
    shape = facts.tensors[name].shape
    return piece.kind is kind and shape is not None and _without_ones(shape)[-1:] == _without_ones((rows,))


def _is_scores(facts: GraphFacts, name: str, rows: int | str | None, piece: Piece) -> bool:
    """One score per row, or one per row and class, as probabilities or logits."""
    shape = facts.tensors[name].shape
    if shape is None or piece.kind in (OutputKind.LABELS, OutputKind.EMBEDDING, OutputKind.DENSE):
        return False
    if piece.kind is OutputKind.SCORES and _without_ones(shape)[-1:] == _without_ones((rows,)):
        return True
    return len(shape) >= 2 and rows in (shape[-2], shape[1] if len(shape) == 3 else None)


def _without_ones(shape: Shape) -> Shape:
    return tuple(dim for dim in shape if dim != 1)


def size_input(facts: GraphFacts, boxes: str) -> str:
    """The graph input that boxes are multiplied by, "" when there is none: a few numbers such as the target's size."""
    seen, todo = {boxes}, [boxes]
    while todo and len(seen) < _MOST_STEPS:
        node = facts.producer_of(todo.pop())
        if node is None:
            continue
        if node.op_type == "Mul":
            for name in node.inputs:
                source = _single_input(facts, name)
                if source:
                    return source
        reached = node.inputs if node.op_type in ("Mul", "Add", "Sub", "Concat", "Max", "Min") else node.inputs[:1]
        if node.op_type in MOVES or node.op_type in ("Mul", "Add", "Sub", "Concat", "Max", "Min", "Cast"):
            fresh = [name for name in reached if name and name not in seen]
            seen.update(fresh)
            todo += fresh
    return ""


def _single_input(facts: GraphFacts, tensor: str) -> str:
    """The one small graph input that a tensor is made of by moving, casting and constants, or ""."""
    sources: set[str] = set()
    seen, todo = {tensor}, [tensor]
    while todo:
        name = todo.pop()
        fact = facts.tensors.get(name)
        if fact is None or fact.is_weight:
            continue
        if name in facts.inputs:
            sources.add(name)
            continue
        node = facts.producer_of(name)
        if node is None or node.op_type not in MOVES | {"Cast", "Concat", "Mul", "Div"} or len(seen) > 40:
            return ""
        fresh = [other for other in node.inputs if other and other not in seen]
        seen.update(fresh)
        todo += fresh
    if len(sources) != 1:
        return ""
    (source,) = sources
    shape = facts.tensors[source].shape
    few = shape is not None and all(isinstance(dim, int) for dim in shape[1:]) and _count(shape[1:] or shape) <= BOX
    return source if few else ""


def _count(shape: Shape) -> int:
    count = 1
    for dim in shape:
        count *= dim if isinstance(dim, int) else 1
    return count
