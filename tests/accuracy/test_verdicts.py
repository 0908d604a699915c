"""Models that are right or wrong by construction: the judge tells them apart, and says when it cannot."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, TypeAlias

import numpy as np
import pytest

from deploykit.accuracy.judge.judge import Judge, judge_outputs
from deploykit.accuracy.judge.verdict import (
    NOT_JUDGED,
    Against,
    Context,
    Measure,
    Thresholds,
    Verdict,
    limits,
)
from deploykit.accuracy.samples.gathering import InputSource, Samples
from deploykit.accuracy.samples.inputs import Label
from deploykit.accuracy.simulate.sessions import Session
from deploykit.accuracy.simulate.simulation import Simulator
from deploykit.model.collect import facts_of
from deploykit.model.facts import GraphFacts
from sample_models.tiny_graphs import TinyGraph
from tables import each_row

Outputs: TypeAlias = dict[str, np.ndarray]
Change: TypeAlias = Callable[[Outputs], Outputs]

RNG = np.random.default_rng(5)


def _judged(facts: GraphFacts, reference: Outputs, candidate: Mapping[str, Any], **more: Any) -> Verdict:
    return judge_outputs(facts, Context(label="given", **more), [reference], [candidate])


def _changed(name: str, change: Callable[[np.ndarray], np.ndarray]) -> Change:
    def apply(outputs: Outputs) -> Outputs:
        return {**outputs, name: change(outputs[name].copy())}

    return apply


def _set(place: Any, value: Any) -> Callable[[np.ndarray], np.ndarray]:
    def apply(array: np.ndarray) -> np.ndarray:
        array[place] = value
        return array

    return apply


def _noise(decibels: float) -> Callable[[np.ndarray], np.ndarray]:
    def apply(array: np.ndarray) -> np.ndarray:
        rms = float(np.sqrt(np.mean(array.astype(np.float64) ** 2)))
        noise = np.random.default_rng(9).normal(size=array.shape) * rms * 10 ** (-decibels / 20)
        return (array + noise).astype(array.dtype)

    return apply


# --- dense maps, embeddings, labels, classes ------------------------------------------------------------------------


def _one(op: str, shape: tuple[int, ...], **attributes: Any) -> GraphFacts:
    graph = TinyGraph()
    graph.op(op, [graph.input("x", shape)], "y", **attributes)
    return facts_of(graph.model("y"))


DENSE = RNG.normal(size=(1, 6, 16, 16)).astype(np.float32)
VECTOR = RNG.normal(size=(3, 64)).astype(np.float32)
VECTOR /= np.linalg.norm(VECTOR, axis=1, keepdims=True)
CLASSES = RNG.integers(0, 5, (1, 32, 32))
PROBABLE = np.exp(3 * RNG.normal(size=(8, 10))).astype(np.float32)
PROBABLE /= PROBABLE.sum(axis=1, keepdims=True)

CASES: list[tuple[str, str, dict[str, Any], np.ndarray, Callable[[np.ndarray], np.ndarray], bool]] = [
    ("the same", "Relu", {}, DENSE, lambda y: y, True),
    ("noise of 30 dB", "Relu", {}, DENSE, _noise(30), True),
    ("noise of 10 dB", "Relu", {}, DENSE, _noise(10), False),
    ("scaled by 0.8", "Relu", {}, DENSE, lambda y: y * np.float32(0.8), False),
    ("a dead channel", "Relu", {}, DENSE, _set((0, 3), 0), False),
    ("a channel stuck at its mean", "Relu", {}, DENSE, _set((0, 3), DENSE[0, 3].mean()), False),
    ("a dead row of pixels", "Relu", {}, DENSE, _set((0, slice(None), 5), 0), False),
    ("another sign", "Relu", {}, DENSE, np.negative, False),
    ("two channels swapped", "Relu", {}, DENSE, lambda y: y[:, [1, 0, 2, 3, 4, 5]], False),
    ("an embedding that turned a little", "LpNormalization", {"axis": 1}, VECTOR, _noise(25), True),
    ("an embedding of another sign", "LpNormalization", {"axis": 1}, VECTOR, np.negative, False),
    ("an embedding that is zero", "LpNormalization", {"axis": 1}, VECTOR, np.zeros_like, False),
    ("the same labels", "ArgMax", {"axis": 1, "keepdims": 0}, CLASSES, lambda y: y, True),
    ("one label in a hundred", "ArgMax", {"axis": 1, "keepdims": 0}, CLASSES, _set((0, 0, slice(0, 10)), 7), True),
    ("permuted labels", "ArgMax", {"axis": 1, "keepdims": 0}, CLASSES, lambda y: (y + 1) % 5, False),
    ("probabilities, rounded", "Softmax", {"axis": 1}, PROBABLE, lambda y: np.round(y * 255) / 255, True),
    ("probabilities of other classes", "Softmax", {"axis": 1}, PROBABLE, lambda y: np.roll(y, 1, axis=1), False),
    ("all probabilities zero", "Softmax", {"axis": 1}, PROBABLE, np.zeros_like, False),
]


@each_row(("op", "attributes", "reference", "change", "right"), [c[1:] for c in CASES], ids=[c[0] for c in CASES])
def test_right_and_wrong_by_construction(
    op: str,
    attributes: dict[str, Any],
    reference: np.ndarray,
    change: Callable[[np.ndarray], np.ndarray],
    right: bool,
) -> None:
    shape = (1, 5, 32, 32) if op == "ArgMax" else reference.shape
    facts = _one(op, shape, **attributes)
    verdict = _judged(facts, {"y": reference}, {"y": change(reference.copy())})
    assert verdict.right is right, verdict.lines()
    assert bool(verdict.reason) is not right
    text = json.dumps(verdict.to_json(), allow_nan=False)
    assert json.loads(text)["right"] is right


@each_row(
    ("one", "two", "right", "says"),
    [
        (0.0, np.nan, False, "1 values are NaN behind Relu:y, the reference's are finite"),
        (0.0, np.inf, False, "1 values are infinity behind Relu:y"),
        (-np.inf, np.nan, False, "NaN behind Relu:y"),
        (-np.inf, -np.inf, True, ""),  # an infinity of the reference may be the largest number of the device
        (-np.inf, -65504.0, True, ""),
        (np.nan, 0.0, None, "gives 1 NaN in the reference already"),
        (np.nan, np.nan, None, "gives 1 NaN in the reference already"),
    ],
)
def test_what_is_not_finite_is_named_and_never_compared(one: float, two: float, right: bool | None, says: str) -> None:
    sides = [_set((0, 2, 3, 4), value)(DENSE.copy()) for value in (one, two)]
    verdict = _judged(_one("Relu", DENSE.shape), {"y": sides[0]}, {"y": sides[1]})
    assert verdict.right is right, verdict.lines()
    assert says in verdict.reason
    assert sum(odd.count for odd in verdict.oddities) == (1 if right is False else 0)


@pytest.mark.parametrize(("offset", "says"), [(0.0, "hardly varies"), (0.5, "values differ")])
def test_a_constant_reference_is_not_judged(offset: float, says: str) -> None:
    facts = _one("Relu", DENSE.shape)
    flat = np.full(DENSE.shape, 0.25, np.float32)
    verdict = _judged(facts, {"y": flat}, {"y": flat + np.float32(offset)})
    assert verdict.right is None
    assert says in verdict.reason


def test_what_varies_far_above_zero_is_judged_by_what_varies() -> None:
    """A constant in its place has 60 dB of signal to noise and holds nothing."""
    facts = _one("Relu", DENSE.shape)
    high = DENSE + np.float32(1000)
    stuck = np.full_like(high, 1000)
    verdict = _judged(facts, {"y": high}, {"y": stuck})
    assert verdict.overall_db == pytest.approx(60, abs=1)
    assert verdict.right is False


def test_an_answer_that_is_the_same_for_all_samples_is_no_answer() -> None:
    """A pattern that every sample shares has most of the energy: only what differs from sample to sample tells."""
    facts = _one("Relu", (1, 40))
    rng = np.random.default_rng(6)
    pattern = rng.normal(size=(1, 40)) * 3
    reference = [{"y": (pattern + rng.normal(size=(1, 40)) * 0.5).astype(np.float32)} for _ in range(6)]
    judge = partial(judge_outputs, facts, Context(label="given"))
    assert judge(reference, [{"y": _noise(30)(sample["y"])} for sample in reference]).right is True
    verdict = judge(reference, [reference[-1], *reference[:-1]])
    assert verdict.overall_db > 12
    assert verdict.right is False
    assert any(number.where == "between samples" for number in verdict.failures)


def test_samples_that_hardly_differ_are_not_compared_with_one_another() -> None:
    facts = _one("Relu", (1, 40))
    rng = np.random.default_rng(6)
    pattern = (rng.normal(size=(1, 40)) * 3).astype(np.float32)
    reference = [{"y": pattern + np.float32(1e-4 * index)} for index in range(6)]
    judge = partial(judge_outputs, facts, Context(label="given"))
    assert judge(reference, [{"y": _noise(30)(pattern)} for _ in reference]).right is True


def test_a_channel_that_is_tiny_beside_the_others_is_not_judged_by_itself() -> None:
    facts = _one("Relu", DENSE.shape)
    for size, right in ((0.03, True), (0.3, False)):
        uneven = DENSE * np.asarray([1, 1, 1, 1, 1, size], np.float32)[:, None, None]
        dead = uneven.copy()
        dead[0, 5] = 0
        assert _judged(facts, {"y": uneven}, {"y": dead}).right is right


def test_every_number_says_what_is_asked_and_on_which_samples() -> None:
    facts = _one("LpNormalization", VECTOR.shape, axis=1)
    verdict = _judged(facts, {"y": VECTOR}, {"y": _noise(40)(VECTOR)}, against=Against.QUANTIZED)
    number = next(n for n in verdict.numbers if n.limit.measure is Measure.COSINE)
    assert str(number).startswith(f"{number.value:.4g} where at least 0.99 is asked (cosine 0.9999")
    stated = number.to_json()
    assert {"value", "unit", "threshold", "kind", "samples", "against", "output"} <= stated.keys()
    assert stated["samples"] == {"label": "given", "count": 1}
    assert (stated["kind"], stated["against"], stated["threshold"]) == ("embedding", "quantized", 0.99)
    assert verdict.lines()[0] == "right: yes, on 1 given sample"


def test_a_verdict_survives_json() -> None:
    facts = _one("Relu", DENSE.shape)
    for change in (lambda y: y, _noise(20), _set((0, 0, 0, 0), np.nan)):
        verdict = _judged(facts, {"y": DENSE}, {"y": change(DENSE.copy())})
        again = Verdict.from_json(json.loads(json.dumps(verdict.to_json(), allow_nan=False)))
        assert again.right is verdict.right
        assert [n.passes for n in again.numbers] == [n.passes for n in verdict.numbers]


# --- limits ---------------------------------------------------------------------------------------------------------


def test_every_limit_has_a_reason_and_a_source() -> None:
    assert {row.measure for row in limits().limit.values()} | {Measure.SQNR} == set(Measure)
    assert all(len(row.reason) > 20 and len(row.source) > 20 for row in limits().limit.values())


def test_the_user_can_ask_for_other_limits() -> None:
    facts = _one("Relu", DENSE.shape)
    noisy = {"y": _noise(18)(DENSE)}
    assert _judged(facts, {"y": DENSE}, noisy).right is True
    strict = _judged(facts, {"y": DENSE}, noisy, thresholds=Thresholds(min_sqnr=25))
    assert strict.right is False
    assert "where at least 25 dB is asked" in strict.reason
    asked = Context(label="given", thresholds=Thresholds(max_box_error=3))
    assert asked.limit(Measure.BOX_ERROR, side=320).value == 3
    assert Context(label="given").limit(Measure.BOX_ERROR, side=320).value == 4


def test_more_is_asked_of_the_very_graph_than_of_its_quantization() -> None:
    facts = _one("Relu", DENSE.shape)
    noisy = {"y": _noise(25)(DENSE)}
    assert _judged(facts, {"y": DENSE}, noisy).right is True
    assert _judged(facts, {"y": DENSE}, noisy, same_graph=True).right is False
    assert _judged(facts, {"y": DENSE}, noisy, same_graph=True, bits=8).right is True


def test_nothing_is_judged_on_inputs_that_mean_nothing() -> None:
    facts = _one("Relu", DENSE.shape)
    for change in (lambda y: y, np.negative, _set((0, 0, 0, 0), np.nan)):
        verdict = judge_outputs(facts, Context(label="arbitrary"), [{"y": DENSE}], [{"y": change(DENSE.copy())}])
        assert (verdict.right, verdict.reason) == (None, NOT_JUDGED)
        assert all(number.passes is None for number in verdict.numbers)


# --- detections -----------------------------------------------------------------------------------------------------

BOXES = RNG.uniform(0, 600, (1, 40, 4)).astype(np.float32)
SCORES = np.sort(RNG.uniform(0.1, 0.95, (1, 40)).astype(np.float32))[:, ::-1]
LABELS = RNG.integers(0, 80, (1, 40))
FOUND: Outputs = {"labels": LABELS, "boxes": BOXES, "scores": SCORES}
ORDER = RNG.permutation(40)


def _reordered(outputs: Outputs) -> Outputs:
    return {name: value[:, ORDER] for name, value in outputs.items()}


def _swapped(outputs: Outputs) -> Outputs:
    order = [1, 0, *range(2, 40)]
    return {name: value[:, order] for name, value in outputs.items()}


DETECTIONS: list[tuple[str, Change, bool]] = [
    ("the same", lambda found: found, True),
    ("boxes off by 2 px", _changed("boxes", lambda y: y + 2), True),
    ("two rows swapped", _swapped, True),
    ("all rows in another order", _reordered, True),
    ("scores off by 0.02", _changed("scores", lambda y: y - np.float32(0.02)), True),
    ("boxes off by 30 px", _changed("boxes", lambda y: y + 30), False),
    ("boxes off by 300 px", _changed("boxes", lambda y: y + 300), False),
    ("boxes scaled by 0.8", _changed("boxes", lambda y: y * np.float32(0.8)), False),
    ("boxes of other rows", _changed("boxes", lambda y: np.roll(y, 1, axis=1)), False),
    ("permuted labels", _changed("labels", lambda y: (y + 1) % 80), False),
    ("scores of zero", _changed("scores", np.zeros_like), False),
    ("scores scaled by 0.8", _changed("scores", lambda y: y * np.float32(0.8)), False),
    ("scores of one", _changed("scores", np.ones_like), False),
    ("NaN in one box", _changed("boxes", _set((0, 7, 1), np.nan)), False),
    ("a fifth of the rows lost", _changed("scores", _set((0, slice(0, 40, 5)), 0.0)), False),
]


def _chosen() -> GraphFacts:
    """Boxes, scores and labels behind a TopK whose indices nobody shows."""
    graph = TinyGraph()
    graph.input("image", (1, 3, 640, 640))
    graph.op("TopK", [graph.op("Sigmoid", [graph.input("s", (1, 99))], "p"), graph.stored("k", [40], "int64")],
             ["scores", "place"], axis=1)  # fmt: skip
    graph.op("Mod", ["place", graph.stored("classes", 80, "int64")], "labels")
    index = graph.op("Unsqueeze", ["place", graph.stored("last", [-1], "int64")], "i3")
    where = graph.op("Tile", [index, graph.stored("reps", [1, 1, 4], "int64")], "where")
    graph.op("GatherElements", [graph.input("b", (1, 99, 4)), where], "boxes", axis=1)
    return facts_of(graph.model("labels", "boxes", "scores"))


@each_row(("change", "right"), [case[1:] for case in DETECTIONS], ids=[case[0] for case in DETECTIONS])
def test_detections_are_judged_as_detections(change: Change, right: bool) -> None:
    verdict = _judged(_chosen(), FOUND, change({name: value.copy() for name, value in FOUND.items()}))
    assert verdict.right is right, verdict.lines()


def test_the_error_of_boxes_is_in_pixels() -> None:
    verdict = _judged(_chosen(), FOUND, _changed("boxes", lambda y: y + 2)(FOUND))
    number = next(n for n in verdict.numbers if n.limit.measure is Measure.BOX_ERROR)
    assert number.value == pytest.approx(2, abs=1e-3)
    assert str(number) == "2 px where at most 8 px is asked"


def _pair(form: str) -> tuple[GraphFacts, Callable[[np.ndarray, np.ndarray], Outputs]]:
    """Raw detections of 200 places and 6 classes in an image of 320, in one of the usual layouts."""
    graph = TinyGraph()
    graph.input("image", (1, 3, 320, 320))
    if form == "two outputs":
        graph.op("Sigmoid", [graph.input("b", (1, 200, 4))], "boxes")
        graph.op("Relu", [graph.input("l", (1, 200, 6))], "logits")
        facts = facts_of(graph.model("boxes", "logits"))
        return facts, lambda b, s: {"boxes": b / 320, "logits": np.log(s / (1 - s))}
    last = form == "[1, N, 4+C]"
    boxes = graph.op("Relu", [graph.input("b", (1, 200, 4) if last else (1, 4, 200))], "pixels")
    scores = graph.op("Sigmoid", [graph.input("s", (1, 200, 6) if last else (1, 6, 200))], "p")
    facts = facts_of(graph.model(graph.op("Concat", [boxes, scores], "out", axis=2 if last else 1)))
    return facts, lambda b, s: {"out": np.concatenate([b, s], 2) if last else np.concatenate([b, s], 2).swapaxes(1, 2)}


@pytest.mark.parametrize("form", ["two outputs", "[1, N, 4+C]", "[1, 4+C, N]"])
@each_row("top", [0.9, 0.1])
def test_raw_layouts_are_judged_in_place(form: str, top: float) -> None:
    """With ``top`` 0.1 no score reaches a working one, as with random weights: the best rows are judged."""
    facts, made = _pair(form)
    rng = np.random.default_rng(2)
    boxes = rng.uniform(0, 320, (1, 200, 4))
    scores = rng.uniform(0.01, top, (1, 200, 6))
    reference = made(boxes, scores)
    rights = {"same": made(boxes + 1, scores * 0.99)}
    wrongs = {
        "shifted": made(boxes + 15, scores),
        "zeroed": made(boxes, np.full_like(scores, 1e-6)),
        "permuted classes": made(boxes, np.roll(scores, 1, axis=2)),
        "rows swapped": made(boxes[:, ::-1], scores[:, ::-1]),
    }
    for name, outputs in {**rights, **wrongs}.items():
        verdict = _judged(facts, reference, outputs)
        if top < 0.25 and name == "permuted classes":
            continue  # labels that nobody would use are not judged
        assert verdict.right is (name in rights), (name, verdict.lines())


def test_the_decoder_detector_is_right_without_and_wrong_with_its_anchors(decoder_detector: Any) -> None:
    """Rows change their order in both; with the anchors of 3.4e38 in a grid every box is destroyed."""
    judge = Judge(decoder_detector.model, decoder_detector.facts, decoder_detector.feeds, label="given")
    ranges = [name for name in decoder_detector.encodings.entries if name.endswith(decoder_detector.wide)]
    for dropped, right in ((ranges, True), ([], False)):
        encodings = decoder_detector.without(*dropped)
        verdict = judge.compare(Simulator(decoder_detector.model, encodings).runs(judge.feeds))
        assert verdict.right is right, verdict.lines()
        assert any(n.limit.measure is Measure.BOX_ERROR or n.passes is False for n in verdict.numbers)


def test_a_judge_opens_one_session_and_takes_labelled_samples(
    decoder_detector: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = []
    original = Session.__init__

    def counting(self: Session, *args: Any, **more: Any) -> None:
        opened.append(1)
        original(self, *args, **more)

    monkeypatch.setattr(Session, "__init__", counting)

    feeds = tuple(decoder_detector.feeds)
    derived = {name: InputSource(label=Label.DERIVED, why="its encoding") for name in feeds[0]}
    samples = Samples(feeds=feeds, of_inputs=derived)
    judge = Judge(decoder_detector.model, decoder_detector.facts, samples)
    verdicts = [judge.compare(judge.reference) for _ in range(3)]
    assert len(opened) == 1
    assert all(verdict.right for verdict in verdicts)
    assert {number.label for number in verdicts[0].numbers} == {"derived"}
    assert math.isinf(verdicts[0].overall_db)
    # Ways are chosen by it; people are told that made-up inputs are no evidence.
    assert verdicts[0].answer[0] is None and "is no proof" in verdicts[0].answer[1]
    assert verdicts[0].to_json()["right"] is None
    assert verdicts[0].lines()[0].startswith("right: not judged, on 2 derived samples: made-up inputs show no damage")
    broken = [{name: np.zeros_like(value) for name, value in values.items()} for values in judge.reference]
    assert judge.compare(broken).answer[0] is False
