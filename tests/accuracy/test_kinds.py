"""What outputs are is read from the graph, and never from their names."""

import re
from pathlib import Path
from typing import Any

import numpy as np
from onnx.shape_inference import infer_shapes

from deploykit.accuracy.judge.kinds import detection_sets, pieces_of
from deploykit.model.collect import facts_of
from text_models import text_model
from told import check_file

STORED: dict[str, Any] = {
    "k": [10],
    "scale": np.float32(0.1),
    "zero": np.uint8(3),
    "eps": np.float32(1e-12),
    "eight": np.float32(8),
    "flat": np.asarray([1, 12, -1]),
    "many": np.asarray([1, 74, -1]),
    "rows": np.asarray([1, 6, 128]),
    "last": np.asarray([1, 64, 12]),
    "each": np.asarray([1, 8, 1]),
    "cut": np.asarray([4, 5]),
    "bias": np.ones(30, np.float32),
    "wide": np.ones((1, 30), np.float32),
    "narrow": np.ones((1, 20), np.float32),
    "larger": [1.0, 1.0, 4.0, 4.0],
    "maps": np.asarray([1, 3, 8, 8]),
    "tall": np.ones((64, 30), np.float32),
    "four": np.ones((3, 4), np.float32),
    **{f"w{n}x{k}": np.ones((n, 3, k, k), np.float32) for n in (3, 5, 17, 19) for k in (1, 3)},
}


def _answer(question: str) -> list[str]:
    """``inputs; body``, and ``; outputs`` where there are others than y: what each is, and what are detections.

    ``opset 12: `` before it is another operator set than 17.
    """
    version, _, rest = question.rpartition(": ")
    given, body, *made = rest.split("; ")
    stored = {name: value for name, value in STORED.items() if re.search(rf"\b{name}\b", body)}
    facts = facts_of(infer_shapes(text_model(given, body, *made, opset=int(version[6:] or 17), **stored)))
    lines = []
    for piece in (piece for output in facts.outputs for piece in pieces_of(facts, output)):
        classes = "" if piece.class_axis is None else f", classes along axis {piece.class_axis}"
        lines.append(" ".join(filter(None, (piece.output, str(piece)))) + f": {piece.kind}, {piece.task}{classes}")
    for group in detection_sets(facts):
        named = {name: getattr(group, name) for name in ("boxes", "scores", "labels", "objectness")}
        parts = [f"{name} {piece.output} {piece}".strip() for name, piece in named.items() if piece is not None]
        coarser = [f"coarser {one.boxes.output}" for one in group.coarser]
        lines.append(f"detections: {', '.join(parts + coarser)}{', sizes ' * bool(group.sizes)}{group.sizes}")
    return lines


def test_operators_and_shapes_say_what_outputs_are() -> None:
    check_file(Path(__file__).with_name("kinds.told"), _answer)
