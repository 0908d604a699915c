"""Which detections are kept, what boxes are made of, and the file of a picture."""

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import shape_inference

from deploykit.accuracy.judge.detections import Detections, count_kept, read_both, read_detections
from deploykit.accuracy.judge.judge import judge_outputs
from deploykit.accuracy.judge.kinds import DetectionSet, OutputKind, Piece, detection_sets
from deploykit.accuracy.judge.verdict import Context, KeptCount
from deploykit.model.collect import facts_of
from deploykit.report.detections import png
from text_models import text_model
from told import check_file, verdict_lines


def side(boxes: object, scores: object, labels: object, *, classes: int = 5) -> Detections:
    """Detections with clear labels."""
    kept = np.asarray(scores, np.float64)
    return Detections(
        boxes=np.asarray(boxes, np.float64).reshape(-1, 4),
        scores=kept,
        labels=np.asarray(labels, np.int64),
        margins=np.ones_like(kept),
        classes=classes,
    )


def count(*pairs: tuple[Detections, Detections]) -> KeptCount:
    """The count over samples, which must be there."""
    found = count_kept(pairs)
    assert found is not None
    return found


def test_rows_of_nothing_are_no_detections() -> None:
    """A head with a class for nothing: 90 such rows are kept whatever happens to the ten objects."""
    boxes = [[place, place, place + 9, place + 9] for place in range(100)]
    for nothing, score in ((0, 0.9), (4, 0.9), (0, 0.25)):  # the first class or the last
        one = side(boxes, [score] * 100, [nothing] * 90 + [2] * 10)
        two = side(boxes, [score] * 100, [nothing] * 95 + [2] * 5)
        assert count((one, two)) == KeptCount(wanted=(10,), made=(5,), kept=(5,))
    for labels in ([0] * 50 + [2] * 50, [3] * 90 + [2] * 10):  # no more than half; neither the first nor the last
        same = side(boxes, [0.25] * 100, labels)
        assert count((same, same), (same, same)).wanted == (100, 100)
    only = side(boxes, [0.9] * 100, [0] * 100, classes=1)
    assert count((only, only)).wanted == (100,), "of one class none stands for nothing"
    weak = side(boxes, [0.249] * 100, [2] * 100)
    assert count((weak, weak)) == KeptCount(wanted=(0,), made=(0,), kept=(0,))


def test_each_detection_has_one_partner_of_its_class_that_overlaps_by_half() -> None:
    """Best first; on one side rows that come later find what is left."""
    box, half, less = [0, 0, 10, 10], [0, 0, 10, 5], [0, 0, 10, 4.9]
    assert count((side([box], [0.9], [1]), side([half], [0.3], [1]))).kept == (1,)
    assert count((side([box], [0.9], [1]), side([less], [0.9], [1]))).kept == (0,)
    assert count((side([box], [0.9], [1]), side([box], [0.9], [2]))).kept == (0,)
    assert count((side([box, box], [0.5, 0.9], [1, 1]), side([box], [0.9], [1]))).kept == (1,)
    assert count((side([half, box], [0.5, 0.9], [1, 1]), side([box, half], [0.4, 0.4], [1, 1]))).kept == (2,)
    sizes = side([[50, 50, 10, 10], [80, 20, 10, 10]], [0.9, 0.9], [1, 1])  # centres and sizes, since no corners
    moved = side([[53, 50, 10, 10], [84, 20, 10, 10]], [0.9, 0.9], [1, 1])
    assert count((sizes, moved)).kept == (1,), "7 of 13 tenths in common, then 6 of 14"
    flat = side([[5, 5, 0, 9], [6, 6, 9, 0]], [0.9, 0.9], [1, 1])
    assert count_kept([(flat, flat)]) is None, "their form is not known"


def _weighed(question: str) -> list[str]:
    """An image, what is done to both sides, to the candidate alone, and the sizes that are fed."""
    image, both, candidate, sizes = question.split("; ")
    given = f"{image} image, float[1,40,4] b, float[1,40,3] s, float[1,2] size"
    body = "f = Concat<axis=1>(size, size) boxes = Mul(b, f) scores = Sigmoid(s)"
    facts = facts_of(shape_inference.infer_shapes(text_model(given, body, "boxes, scores")))
    rng = np.random.default_rng(0)
    corner = rng.uniform(0, 200, (1, 40, 2))
    one = {"boxes": np.concatenate([corner, corner + 100], 2), "scores": rng.uniform(0.3, 0.9, (1, 40, 3))}
    exec(both, {"np": np}, one)
    two = {name: value.copy() for name, value in one.items()}
    exec(candidate, {"np": np}, two)
    exec(sizes, {}, feed := dict[str, Any]())
    feeds = [{name: np.asarray(value) for name, value in feed.items()}] if feed else []
    return verdict_lines(judge_outputs(facts, Context(label="given"), [one], [two], feeds))


def test_detections_are_weighed_in_pixels_of_their_image_and_by_their_best_score() -> None:
    """The limit of 8 pixels of 640 goes with the longer side."""
    check_file(Path(__file__).with_name("weighed.told"), _weighed)


def _read(question: str) -> list[str]:
    """Pieces as ``name shape``, with ``axis:start:stop`` for a part; ``logits`` are scores, ``!`` makes one a NaN."""
    pieces, values = dict[str, Any](), dict[str, np.ndarray]()
    for name, shape, *cut in (part.split(" ") for part in question.split("; ")):
        sizes = [int(size) for size in shape.rstrip("!").split(",")]
        array = np.arange(np.prod(sizes)) * 5 % 16 / 8
        array[1:2] = np.nan if "!" in shape else array[1:2]
        axis, start, stop = map(int, cut[0].split(":")) if cut else (None, 0, 0)
        output, kind = "out" if cut else name, OutputKind("logits" if name == "logits" else "scores")
        values.setdefault(output, array.reshape(sizes))
        pieces[name.replace("logits", "scores")] = Piece(output=output, kind=kind, axis=axis, start=start, stop=stop)
    found = read_detections(DetectionSet(**pieces), values)
    if found is None:
        return ["do not fit"]
    rows = zip(found.boxes.tolist(), found.scores, found.labels, found.margins, strict=True)
    return [f"{found.classes} of {box}: {score:.4g}, class {label} by {by:.4g}" for box, score, label, by in rows]


def test_rows_are_read_out_of_any_layout() -> None:
    check_file(Path(__file__).with_name("layouts_of_boxes.told"), _read)


def test_boxes_before_they_are_decoded_meet_their_own_row_alone() -> None:
    """The place within a cell and logarithms of sizes, as heads of detectors give them without their grid."""
    rng = np.random.default_rng(3)
    group = DetectionSet(
        boxes=Piece(output="b", kind=OutputKind.BOXES), scores=Piece(output="s", kind=OutputKind.SCORES)
    )
    boxes, scores = rng.normal(0, 0.5, (1, 40, 4)), np.where(np.arange(40) < 20, 0.9, 0.1)[None, :, None]
    far, other = boxes.copy(), scores.copy()
    far[0, 3, 2:] += 2.0  # seven times as large
    other[0, [5, 30], 0] = 0.1, 0.8
    both = [({"b": boxes, "s": scores}, {"b": far, "s": other})]
    assert count_kept(read_both(group, both, in_order=False, label="given")) is None
    assert count_kept(read_both(group, both, in_order=True, label="derived")) is None
    pixels = [({"b": boxes * 100, "s": scores}, {"b": far * 100, "s": other})]
    assert count_kept(read_both(group, pixels, in_order=True, label="given")) is None
    found = count(*read_both(group, both, in_order=True, label="given"))
    assert (found.wanted, found.made, found.kept) == ((20,), (20,), (18,))


def test_weighed_distances_are_boxes_around_their_cells() -> None:
    """Two levels, one object: rows where nobody sees anything decide nothing, a distance of a cell more loses it."""
    given = "float[1,3,64,64] image, float[1,8,8,32] a, float[1,4,4,32] b, float[1,8,8,2] c, float[1,4,4,2] d"
    body = "p = Identity(a) q = Identity(b) s = Sigmoid(c) t = Sigmoid(d)"
    facts = facts_of(shape_inference.infer_shapes(text_model(given, body, "p, q, s, t")))
    group, *others = detection_sets(facts)
    rng = np.random.default_rng(5)
    one = {name: rng.normal(0, 1, (1, side, side, 32)) for name, side in (("p", 8), ("q", 4))}
    one |= {"s": np.full((1, 8, 8, 2), 0.01), "t": np.full((1, 4, 4, 2), 0.01)}
    one["q"][0, 2, 1] = 90 * (np.arange(8) == np.array([[0], [1], [1], [0]])).ravel()
    one["t"][0, 2, 1, 1] = 0.9
    found = read_detections(group, one)
    assert found is not None and not others
    best = int(found.scores.argmax())
    assert (found.boxes[best].tolist(), found.labels[best]) == ([24, 24, 40, 40], 1)
    for name, place, right in (("p", (0, 5, 5), True), ("q", (0, 2, 1), False)):
        two = one | {name: one[name].copy()}
        two[name][place] = -np.roll(two[name][place], 1)
        assert judge_outputs(facts, Context(label="given"), [one] * 9, [two] * 9).right is right


@pytest.mark.parametrize("channels", [1, 3])
def test_a_png_holds_the_pixels_made_smaller_by_whole_factors(channels: int) -> None:
    image = pytest.importorskip("PIL.Image")
    pixels = np.random.default_rng(1).integers(0, 256, (50, 70, channels), np.uint8)
    for longest, factor in ((70, 1), (69, 2), (30, 3)):
        data = png(pixels, longest=longest)
        height, width = 50 // factor, 70 // factor
        cut = pixels[: height * factor, : width * factor].astype(float)
        wanted = np.rint(cut.reshape(height, factor, width, factor, channels).mean(axis=(1, 3)))
        read = np.asarray(image.open(io.BytesIO(data))).reshape(wanted.shape)
        assert np.array_equal(read, wanted)
