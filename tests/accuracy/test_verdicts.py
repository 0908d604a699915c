"""Does a package do the model's task as well as its numbers allow? Right ones, costly ones and wrong ones."""

import json
import math
import os
from collections.abc import Callable, Iterator, Sequence
from itertools import starmap
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pytest
from msgspec.structs import replace
from onnx import helper
from onnx.shape_inference import infer_shapes as inferred

from deploykit.accuracy.judge.judge import Judge, judge_outputs
from deploykit.accuracy.judge.verdict import (
    Against,
    Context,
    JudgedNumber,
    Measure,
    Oddity,
    Thresholds,
    Verdict,
    decide,
    limits,
)
from deploykit.accuracy.samples.gathering import InputSource, Samples
from deploykit.accuracy.samples.inputs import Label
from deploykit.accuracy.simulate.simulation import settled
from deploykit.errors import InputError
from deploykit.model.collect import facts_of
from deploykit.model.facts import GraphFacts
from tables import each_row
from text_models import text_model
from told import check_file, check_told, verdict_lines

Outputs: TypeAlias = dict[str, np.ndarray]
Change: TypeAlias = Callable[[np.ndarray], np.ndarray]
HERE = Path(__file__).parent
PAGE = HERE.parents[1] / "docs/numbers.md"
RNG = np.random.default_rng(5)
GIVEN = Context(label="given")


def _one(op: str, shape: tuple[int, ...], **attributes: Any) -> GraphFacts:
    model = text_model(f"float[{','.join(map(str, shape))}] x", f"y = {op} (x)")
    model.graph.node[0].attribute.extend(starmap(helper.make_attribute, attributes.items()))
    return facts_of(inferred(model))


def _judged(facts: GraphFacts, reference: Any, candidate: Any, **more: Any) -> Verdict:
    """Of one sample or several of the output y."""
    sides = (side if isinstance(side, list) else [side] for side in (reference, candidate))
    return judge_outputs(facts, Context(**{"label": "given", **more}), *([{"y": y} for y in side] for side in sides))


def _set(place: Any, value: Any) -> Change:
    def apply(array: np.ndarray) -> np.ndarray:
        array[place] = value
        return array

    return apply


def _noise(decibels: float) -> Change:
    def apply(array: np.ndarray) -> np.ndarray:
        rms = float(np.sqrt(np.mean(array.astype(np.float64) ** 2)))
        noise = np.random.default_rng(9).normal(size=array.shape) * rms * 10 ** (-decibels / 20)
        return (array + noise).astype(array.dtype)

    return apply


# --- dense maps, embeddings, labels, classes ------------------------------------------------------------------------

DENSE = RNG.normal(size=(1, 6, 16, 16)).astype(np.float32)
VECTOR = RNG.normal(size=(3, 64)).astype(np.float32)
VECTOR /= np.linalg.norm(VECTOR, axis=1, keepdims=True)
CLASSES = RNG.integers(0, 5, (1, 32, 32))
PROBABLE = np.exp(3 * RNG.normal(size=(8, 10))).astype(np.float32)
PROBABLE /= PROBABLE.sum(axis=1, keepdims=True)
IMAGE = np.kron(RNG.uniform(size=(1, 3, 4, 4)), np.ones((1, 1, 4, 4))).astype(np.float32)
CERTAIN = np.random.default_rng(1).uniform(0.86, 0.94, (24, 10)).astype(np.float32)
SINGLE = np.arange(1.0, 9.0, dtype=np.float32)


def _uneven(size: float) -> np.ndarray:
    return DENSE * np.asarray([1, 1, 1, 1, 1, size], np.float32)[:, None, None]


CASES: list[tuple[str, str, dict[str, Any], np.ndarray, Change, bool]] = [
    ("the same", "Relu", {}, DENSE, lambda y: y, True),
    ("noise of 30 dB", "Relu", {}, DENSE, _noise(30), True),
    ("noise of 10 dB", "Relu", {}, DENSE, _noise(10), False),
    ("scaled by 0.8", "Relu", {}, DENSE, lambda y: y * np.float32(0.8), False),
    ("a dead channel", "Relu", {}, DENSE, _set((0, 3), 0), False),
    ("a channel stuck at its mean", "Relu", {}, DENSE, _set((0, 3), DENSE[0, 3].mean()), False),
    ("a dead row of pixels", "Relu", {}, DENSE, _set((0, slice(None), 5), 0), False),
    ("a dead channel that is tiny beside the others", "Relu", {}, _uneven(0.03), _set((0, 5), 0), True),
    ("a dead channel that is small beside the others", "Relu", {}, _uneven(0.3), _set((0, 5), 0), False),
    ("stuck far above zero", "Relu", {}, DENSE + 1000, lambda y: np.full_like(y, 1000), False),
    ("another sign", "Relu", {}, DENSE, np.negative, False),
    ("two channels swapped", "Relu", {}, DENSE, lambda y: y[:, [1, 0, 2, 3, 4, 5]], False),
    ("an embedding that turned a little", "LpNormalization", {"axis": 1}, VECTOR, _noise(25), True),
    ("an embedding of another sign", "LpNormalization", {"axis": 1}, VECTOR, np.negative, False),
    ("an embedding that is zero", "LpNormalization", {"axis": 1}, VECTOR, np.zeros_like, False),
    ("one of three embeddings is zero", "LpNormalization", {"axis": 1}, VECTOR, _set(0, 0), False),
    ("one label in a hundred", "ArgMax", {"axis": 1, "keepdims": 0}, CLASSES, _set((0, 0, slice(0, 10)), 7), True),
    ("permuted labels", "ArgMax", {"axis": 1, "keepdims": 0}, CLASSES, lambda y: (y + 1) % 5, False),
    ("probabilities, rounded", "Softmax", {"axis": 1}, PROBABLE, lambda y: np.round(y * 255) / 255, True),
    ("probabilities of other classes", "Softmax", {"axis": 1}, PROBABLE, lambda y: np.roll(y, 1, axis=1), False),
    ("all probabilities zero", "Softmax", {"axis": 1}, PROBABLE, np.zeros_like, False),
    ("a probability that stands still, 0.05 off at most", "Sigmoid", {}, CERTAIN, _set((slice(None), 3), 0.9), True),
    ("a probability that stands still", "Sigmoid", {}, 3 * CERTAIN - 1.9, _set((slice(None), 3), 0.8), False),
    ("a picture with little noise", "Relu", {}, IMAGE, _noise(33), True),
    ("a picture with much noise", "Relu", {}, IMAGE, _noise(19), False),
    ("single values, 10 % off", "Relu", {}, SINGLE, lambda y: y + [0.5, -0.5] * 4, True),
    ("single values, 40 % off", "Relu", {}, SINGLE, lambda y: y + [2, -2] * 4, False),
]


def test_right_and_wrong_by_construction() -> None:
    told = {}
    for name, op, attributes, reference, change, right in CASES:
        shape = (1, 5, 32, 32) if op == "ArgMax" else reference.shape
        verdict = _judged(_one(op, shape, **attributes), reference, change(reference.copy()))
        assert verdict.right is right and bool(verdict.reason) is not right, (name, verdict.lines())
        again = Verdict.from_json(json.loads(json.dumps(verdict.to_json(), allow_nan=False)))
        assert again.right is right and verdict_lines(again)[:-1] == verdict_lines(verdict)[:-1]
        told[name] = verdict_lines(verdict)
    check_told(HERE / "verdicts.told", told)


def test_every_limit_has_a_reason_and_a_source() -> None:
    assert {row.measure for row in limits().limit.values()} | {Measure.SQNR} == set(Measure)
    assert all(len(row.reason) > 20 and len(row.source) > 20 for row in limits().limit.values())
    asked = Context(label="given", thresholds=Thresholds(max_box_error=3))
    assert asked.limit(Measure.BOX_ERROR, side=320).value == 3
    assert GIVEN.limit(Measure.BOX_ERROR, side=320).value == 4


def limit_rows() -> str:
    """What is asked, as deploykit has it."""
    lines = [
        f"| {key} | {limit.asked()} | {limit.margin:g} | {'–' if limit.floor is None else f'{limit.floor:g}'} | "
        f"{limit.reason} | {limit.source} |"
        for key, limit in limits().limit.items()
    ]
    head = "| measure | good | margin | never under (or over) | reason | source |"
    return "\n".join([head, "|---|---|---|---|---|---|", *lines, ""])


def test_the_page_shows_the_limits() -> None:
    before, rest = PAGE.read_text("utf-8").split("<!-- limits -->\n")
    inside, after = rest.split("<!-- end of limits -->\n")
    wanted = limit_rows()
    if os.environ.get("DEPLOYKIT_WRITE_DOCS"):
        PAGE.write_text(f"{before}<!-- limits -->\n{wanted}<!-- end of limits -->\n{after}", "utf-8")
        inside = wanted
    assert inside == wanted, "run: DEPLOYKIT_WRITE_DOCS=1 pytest tests/accuracy/test_verdicts.py"


def test_derived_inputs_carry_no_small_no() -> None:
    """What destroys the outputs is one on any input; given samples are settled as they are."""
    for label, decibels, right in ((Label.DERIVED, 30, None), (Label.DERIVED, -30, False), (Label.GIVEN, 30.0, False)):
        assert settled(Verdict(right=False, numbers=(), overall_db=decibels), label).right is right


# --- detections -----------------------------------------------------------------------------------------------------

SIDE = 320
PICTURE, ROWED = f"float[1,3,{SIDE},{SIDE}] image", "float[1,200,4] b, float[1,200,6] s"


def _detector(*, chosen: bool) -> GraphFacts:
    """Boxes, scores and labels of 40 rows, where the graph has them or behind a TopK whose indices nobody shows."""
    if not chosen:
        given = f"{PICTURE}, float[1,40,4] b, float[1,40] s, float[1,40,20] l"
        body = "boxes = Relu (b)  scores = Sigmoid (s)  labels = ArgMax <axis = 2, keepdims = 0> (l)"
        return facts_of(inferred(text_model(given, body, "boxes, scores, labels")))
    body = "p = Sigmoid (s)  scores, place = TopK <axis = 1> (p, k)  labels = Mod (place, classes)"
    body += "  i3 = Unsqueeze (place, last)  where = Tile (i3, reps)  boxes = GatherElements <axis = 1> (b, where)"
    stored: Any = {"k": [40], "classes": 20, "last": [-1], "reps": [1, 1, 4]}
    given = f"{PICTURE}, float[1,99] s, float[1,99,4] b"
    return facts_of(inferred(text_model(given, body, "boxes, scores, labels", **stored)))


def _found(samples: int = 6) -> list[Outputs]:
    """What the float model finds: 20 clear objects in each picture, 20 rows of nothing."""
    made: list[Outputs] = []
    for _ in range(samples):
        corner = RNG.uniform(0, 200, (1, 40, 2))
        boxes = np.concatenate([corner, corner + RNG.uniform(30, 100, (1, 40, 2))], axis=2).astype(np.float32)
        scores = np.concatenate([RNG.uniform(0.6, 0.95, (1, 20)), RNG.uniform(0.01, 0.1, (1, 20))], axis=1)
        made.append({"boxes": boxes, "scores": scores.astype(np.float32), "labels": RNG.integers(0, 20, (1, 40))})
    return made


FOUND = _found()
FEEDS = [{"image": np.zeros((1, 3, SIDE, SIDE), np.float32)}] * len(FOUND)
DETECTORS = {chosen: _detector(chosen=chosen) for chosen in (False, True)}


def _each(name: str, change: Change) -> list[Outputs]:
    return [{**sample, name: change(sample[name].copy())} for sample in FOUND]


def _noisy(lost: int = 0, pixels: float = 1.0) -> list[Outputs]:
    """A quantization: boxes a little off, and the strongest detections gone in the first pictures."""
    rng = np.random.default_rng(lost)
    made = _each("boxes", lambda y: y + rng.normal(0, pixels, y.shape).astype(np.float32))
    for number in range(lost):
        sample = made[number % len(made)]
        sample["scores"] = _set((0, number // len(made)), 0.05)(sample["scores"].copy())
    return made


def _rows(order: Sequence[int]) -> list[Outputs]:
    return [{name: value[:, order] for name, value in sample.items()} for sample in _noisy()]


DETECTIONS: dict[str, tuple[list[Outputs], str]] = {
    "the same": (FOUND, ""),
    "boxes off by a pixel": (_noisy(), ""),
    "scores off by 0.02": (_each("scores", lambda y: y - np.float32(0.02)), ""),
    "swapped classes": (_each("labels", lambda y: 19 - y), " of 120 detections kept"),
    "a label off by one": (_each("labels", lambda y: y + 1), " of 120 detections kept"),
    "boxes off by 6 px of 320": (_each("boxes", lambda y: y + np.float32(6)), "boxes lie 6 pixels off"),
    "one wrong kernel: widths for heights": (_each("boxes", lambda y: y[..., [1, 0, 3, 2]]), "detections kept"),
    "boxes of other rows": (_each("boxes", lambda y: np.roll(y, 1, axis=1)), "detections kept"),
    "NaN for one input": ([_each("boxes", lambda y: y * np.nan)[0], *FOUND[1:]], "160 values are NaN"),
    "samples exchanged": ([*FOUND[1:], FOUND[0]], "detections kept"),
    "calibration of another recipe": (_each("scores", lambda y: y * np.float32(0.2)), "0 of 120 detections kept"),
    "scores scaled by 0.8": (_each("scores", lambda y: y * np.float32(0.8)), "scores are 0.1"),
    "scores of one": (_each("scores", np.ones_like), "120 of 120 detections kept at score 0.25, 120 new"),
    "half the detections lost": (_each("scores", _set((0, slice(0, 40, 2)), 0.02)), "60 of 120 detections kept"),
}


def test_detections_are_judged_as_detections() -> None:
    told = {}
    for chosen, facts in DETECTORS.items():
        quantization = judge_outputs(facts, GIVEN, FOUND, _noisy(), FEEDS)
        for name, (outputs, loss) in DETECTIONS.items():
            verdict = judge_outputs(facts, GIVEN, FOUND, outputs, FEEDS)
            beside = verdict.beside(quantization)
            assert verdict.right is beside.right is not bool(loss), (name, verdict.lines())
            assert loss in verdict.reason and loss in beside.reason
            told[f"{name}, {'rows behind a choice' if chosen else 'rows in order'}"] = verdict_lines(verdict)
            told[f"{name}, beside boxes off by a pixel"] = [*beside.lines()[:3]]
            torn = _each("scores", lambda y: y[:, :39])
            for one, two in ((FOUND, torn), (torn, FOUND)):
                assert "unlike shapes" in judge_outputs(facts, GIVEN, one, two, FEEDS).lines()[1]
    check_told(HERE / "detections.told", told)


def test_another_order_of_rows_is_no_loss_where_the_order_means_nothing() -> None:
    for order in ([1, 0, *range(2, 40)], RNG.permutation(40).tolist()):
        assert judge_outputs(DETECTORS[True], GIVEN, FOUND, _rows(order), FEEDS).right is True
        assert judge_outputs(DETECTORS[False], GIVEN, FOUND, _rows(order), FEEDS).right is False


@each_row(
    ("lost", "before", "right", "says"),
    (24, None, False, "96 of 120 detections kept"),
    (24, 24, True, "in your encodings, not in the package"),  # the number stands beside it already
    (25, 24, True, "not in the package: 96 of 120 detections kept"),  # one in a hundred is no difference
    (0, 0, True, "the encodings by themselves come to the same"),
    (24, 3, False, "96 of 120 detections kept"),
    (6, 0, True, "120 of 120 detections kept"),
    (70, 70, False, ""),  # nothing of the task is left
)
def test_a_package_is_held_against_its_quantization(lost: int, before: int | None, right: bool, says: str) -> None:
    verdict = judge_outputs(DETECTORS[False], GIVEN, FOUND, _noisy(lost), FEEDS)
    if before is not None:
        verdict = verdict.beside(judge_outputs(DETECTORS[False], GIVEN, FOUND, _noisy(before), FEEDS))
    assert verdict.right is right, verdict.lines()
    assert says in (verdict.cost if right else verdict.reason)
    assert Verdict.from_json(verdict.to_json()).lines() == verdict.lines()


def test_what_is_lost_without_words_of_a_task_is_excused_with_both_numbers() -> None:
    facts = _one("Relu", DENSE.shape)
    here, before = (_judged(facts, DENSE, _noise(db)(DENSE)) for db in (10.0, 10.5))
    verdict = here.beside(before)
    assert verdict.right is True and "dB by them alone" in verdict.cost
    assert here.beside(_judged(facts, DENSE, _noise(11.5)(DENSE))).right is False, "more than a decibel"
    other = DENSE.copy()
    other[:, 2] = other[:, 2, ::-1]
    lost = _judged(facts, DENSE, other)
    assert lost.beside(lost).right is False, "nothing is left of a part, whoever loses it"
    assert _judged(facts, DENSE, _noise(14)(DENSE)).beside(_judged(facts, DENSE, _noise(40)(DENSE))).right is False
    assert _judged(facts, DENSE, _noise(14)(DENSE)).beside(_judged(facts, DENSE, _noise(19)(DENSE))).right is True
    assert _judged(facts, DENSE, _noise(21)(DENSE)).beside(_judged(facts, DENSE, _noise(40)(DENSE))).right is True


def test_what_each_output_loses_starts_with_the_words_of_its_task() -> None:
    def number(output: str, measure: Measure, value: float, words: str = "") -> JudgedNumber:
        return GIVEN.number(output, "logits", measure, value, words=words)

    numbers = (
        number("y", Measure.SQNR, 5.0),
        number("y", Measure.GAIN, 0.3),
        number("z", Measure.SQNR, 50.0),
        number("w", Measure.ROWS, 0.1),
        number("y", Measure.TOP_1, 0.2, "1 of 5 classes equal"),
    )
    verdict = Verdict(right=False, numbers=numbers)
    words = "1 of 5 classes equal (y top-1: 0.2 where at least 0.95 is asked)"
    assert [*verdict.lost_outputs()] == [
        ("y", f"{words}; y sqnr: 5 dB where at least 12 dB is asked", [numbers[0], numbers[1], numbers[4]]),
        ("w", "the output has other rows (w rows: 0.1 where at least 0.5 is asked)", [numbers[3]]),
    ]
    told = verdict.to_json()
    numberless: list[Any] = [{"numbers": [{}]}, {"outputs": None}, {"numbers": [{"measure": "x", "part": ""}]}]
    for broken in ({}, *({**told, **spoilt} for spoilt in numberless)):
        with pytest.raises(InputError, match="not a verdict"):
            Verdict.from_json(broken)


def test_the_better_of_two_keeps_more_or_is_less_noisy() -> None:
    right, fewer, fewest = (judge_outputs(DETECTORS[False], GIVEN, FOUND, _noisy(n), FEEDS) for n in (0, 24, 40))
    assert right.is_better_than(fewer) and fewer.is_better_than(fewest) and not fewest.is_better_than(fewer)
    facts = _one("Relu", DENSE.shape)
    one, two, same = (_judged(facts, DENSE, _noise(db)(DENSE)) for db in (10.0, 8.0, 9.5))
    assert one.is_better_than(two) and not one.is_better_than(same)
    assert _judged(facts, DENSE * 1e30, DENSE * 1e30).right is True, "its squares are beyond float32"
    assert "20.0% of the detections lost" in fewer.described


def _pair(form: str) -> tuple[GraphFacts, Callable[[np.ndarray, np.ndarray], Outputs]]:
    """Raw detections of 200 places and 6 classes in an image of 320, in one of the usual layouts."""
    if form == "two outputs":
        model = text_model(f"{PICTURE}, {ROWED}", "boxes = Sigmoid (b)  logits = Relu (s)", "boxes, logits")
        return facts_of(inferred(model)), lambda b, s: {"boxes": b / SIDE, "logits": np.log(s / (1 - s))}
    if form == "two outputs, turned":
        given = f"{PICTURE}, float[1,4,200] b, float[1,6,200] s"
        facts = facts_of(inferred(text_model(given, "boxes = Relu (b)  scores = Sigmoid (s)", "boxes, scores")))
        return facts, lambda b, s: {"boxes": b.swapaxes(1, 2), "scores": s.swapaxes(1, 2)}
    last, sure = form != "[1, 4+C, N]", "objectness, " if form == "[1, N, 5+C]" else ""
    given = (
        f"{PICTURE}, {ROWED if last else 'float[1,4,200] b, float[1,6,200] s'}{', float[1,200,1] o' if sure else ''}"
    )
    body = f"pixels = Relu (b)  p = Sigmoid (s){'  objectness = Sigmoid (o)' if sure else ''}"
    model = text_model(given, f"{body}  out = Concat <axis = {2 if last else 1}> (pixels, {sure}p)", "out")
    facts = facts_of(inferred(model))

    def made(b: np.ndarray, s: np.ndarray) -> Outputs:
        certain = [np.sqrt(s.max(axis=2, keepdims=True))] if form == "[1, N, 5+C]" else []
        out = np.concatenate([b, *certain, s / (certain[0] if certain else 1)], 2)
        return {"out": out if last else out.swapaxes(1, 2)}

    return facts, made


def test_raw_layouts_are_judged_in_place() -> None:
    """Where no score reaches 0.25, a working one, as with random weights, the best rows are judged."""
    told: dict[str, list[str]] = {}
    for form in ("two outputs", "two outputs, turned", "[1, N, 4+C]", "[1, N, 5+C]", "[1, 4+C, N]"):
        facts, made = _pair(form)
        for top in (0.9, 0.1):
            rng = np.random.default_rng(2)
            boxes = rng.uniform(0, SIDE, (1, 200, 4))
            scores = rng.uniform(0.01, top, (1, 200, 6))
            rights = {"same": made(boxes + 1, scores * 0.99)}
            wrongs = {
                "shifted": made(boxes + 15, scores),
                "zeroed": made(boxes, np.full_like(scores, 1e-6)),
                "permuted classes": made(boxes, np.roll(scores, 1, axis=2)),
                "rows swapped": made(boxes[:, ::-1], scores[:, ::-1]),
            }
            if form == "[1, N, 5+C]":
                wrongs["nothing there"] = {"out": _set((..., 4), 0)(made(boxes, scores)["out"])}
            for name, outputs in {**rights, **wrongs}.items():
                verdict = judge_outputs(facts, GIVEN, [made(boxes, scores)], [outputs])
                # Labels that nobody would use are not judged.
                assert verdict.right is (name in rights) or (top < 0.25 and name == "permuted classes"), name
                lines = [line.replace("+".join(facts.outputs), "OUTPUTS") for line in verdict.lines()]
                assert told.setdefault(f"{name}, scores up to {top}", lines) == lines, "the layout changes nothing"
    check_told(HERE / "layouts.told", told)


def test_samples_keep_their_label(decoder_detector: Any) -> None:
    feeds = tuple(decoder_detector.feeds)
    derived = {name: InputSource(label=Label.DERIVED, why="its encoding") for name in feeds[0]}
    judge = Judge(decoder_detector.model, decoder_detector.facts, Samples(feeds=feeds, of_inputs=derived))
    verdict = judge.compare(judge.reference)
    assert verdict.right and math.isinf(verdict.overall_db)
    assert {number.label for number in verdict.numbers} == {"derived"}
    # Ways are chosen by it; people are told that made-up inputs are no evidence.
    assert verdict.answer[0] is None and "is no proof" in verdict.answer[1]
    assert verdict.to_json()["right"] is None
    assert verdict.lines()[0].startswith("right: not judged, on 2 derived samples: made-up inputs show no damage")
    broken = [{name: np.zeros_like(value) for name, value in values.items()} for values in judge.reference]
    assert judge.compare(broken).answer[0] is False


def _texts(rows: Sequence[Sequence[int]]) -> list[np.ndarray]:
    """Lines as a recognizer gives them; 0 is nothing."""
    return [np.eye(30, dtype=np.float32)[list(row)][None] * 0.9 + 0.001 for row in rows]


def _task_cases() -> Iterator[tuple[str, GraphFacts, Any, Any, dict[str, Any]]]:
    """Name, graph, both sides (one sample or several), and what is asked besides."""
    relu, rng = _one("Relu", DENSE.shape), np.random.default_rng(6)
    for value, spoilt in ((0, np.nan), (0, np.inf), (-np.inf, np.nan), (-np.inf, -np.inf), (-np.inf, -65504.0)):
        one, two = (_set((0, 2, 3, 4), each)(DENSE.copy()) for each in (value, spoilt))
        yield f"{value} that becomes {spoilt}", relu, one, two, {}
    broken = _set((0, 2, 3, 4), np.nan)(DENSE.copy())
    yield "NaN in the reference already", relu, broken, DENSE, {}
    yield "NaN on both sides", relu, broken, broken, {}
    flat = DENSE[:, :2] * 0 + 0.25
    yield "no signal", relu, flat, flat, {}
    yield "no signal, and another value", relu, flat, flat + 0.5, {}
    yield "another shape", relu, DENSE, DENSE[:, :5], {}
    yield "beyond what float32 can square", relu, DENSE * 1e30, DENSE * 1e30, {}
    asked: dict[str, dict[str, Any]] = {
        "18 dB where a user asks for 25": {"thresholds": Thresholds(min_sqnr=25)},
        "25 dB beside the very graph, of which more is asked": {"same_graph": True},
        "35 dB beside the very graph": {"same_graph": True},
        "25 dB beside the very graph of 8 bits": {"same_graph": True, "bits": 8, "against": Against.QUANTIZED},
        "18 dB on inputs that mean nothing": {"label": "arbitrary"},
    }
    for name, context in asked.items():
        yield name, relu, DENSE, _noise(int(name[:2]))(DENSE), context
    yield "NaN, on inputs that mean nothing", relu, DENSE, broken, {"label": "arbitrary"}
    # A pattern that every sample shares has most of the energy: only what differs from sample to sample tells.
    pattern, single = rng.normal(size=(1, 40)) * 3, _one("Relu", (1, 40))
    shared = [(pattern + rng.normal(size=(1, 40)) * 0.5).astype(np.float32) for _ in range(6)]
    yield "samples with a common pattern, 30 dB", single, shared, [_noise(30)(sample) for sample in shared], {}
    yield "samples with a common pattern, exchanged", single, shared, [shared[-1], *shared[:-1]], {}
    for step in (1e-4, 1e-2):
        alike = [(pattern + step * index).astype(np.float32) for index in range(6)]
        yield f"samples that differ by {step}", single, alike, [_noise(30)(alike[0])] * 6, {}
    for name, *kept in (("of which some are lost", 90, 93), ("all gone", 90, 100), ("that are all one", 100, 100)):
        a, b = ([*np.where(np.arange(800) % 100 < n, 0, np.arange(800) % 3).reshape(8, 100)] for n in kept)
        yield f"rare labels, {name}", _one("ArgMax", (100, 4), axis=-1, keepdims=0), a, b, {}
    samples = [rng.normal(size=(1, 2, 16)).astype(np.float32) * size for size in (1, 1, 1, 1, 1, 1, 1, 0.01)]
    rows = _one("Relu", (1, 2, 16))
    yield "one broken sample", rows, samples, [*samples[:2], _noise(5)(samples[2]), *samples[3:]], {}
    # Steps of a grid are as large there as elsewhere.
    yield "one broken sample, which is quiet", rows, samples, [*samples[:7], _noise(5)(samples[7])], {}
    for name, base, change in (
        ("one score that is cut off", 0, lambda y: min(y, 0.2)),
        ("one score, a fifth", 0, lambda y: y / 5),
        ("scores, halved", 0.3, lambda y: y / 2),
        ("one score beside weaker ones, a third", 0.15, lambda y: y / 3 if y > 0.5 else y),
    ):
        scores = [np.full((1, 1), base + (0.7 if at == 3 else 0.01 + at / 500)) for at in range(8)]
        yield name, _one("Sigmoid", (1, 1)), scores, [np.vectorize(change)(one) for one in scores], {}
    # A trained detector of text found all its boxes and was called wrong for one row of its map.
    maps, mask = np.full((6, 1, 1, 32, 32), 0.01, np.float32), _one("Sigmoid", (1, 1, 32, 32))
    maps[..., 4:12, 4:20] = 0.97
    other = maps.copy()
    maps[..., 20, ::2] = 0.2  # far from a half, and the other side has it elsewhere
    other[..., 20, 1::2] = 0.2
    yield "areas, and a row of pixels with nothing in it", mask, [*maps], [*other], {}
    yield "areas that moved", mask, [*maps], [*np.roll(maps, 4, axis=-1)], {}
    yield "areas that are gone", mask, [*maps], [*np.full_like(maps, 0.01)], {}
    few = np.concatenate([1 - maps, maps], 2)[:, :, :, 8:]  # the second class has few of the cells
    classed = _one("Softmax", few.shape[1:], axis=1)
    yield "a class of few cells, moved beside one of nearly all", classed, [*few], [*np.roll(few, 1, axis=-1)], {}
    yield "no areas on either side", mask, [*(maps / 4)], [*(other / 4)], {}
    lines = [[0, letter, letter, 0, letter + 1, 0, 0, 0] for letter in range(1, 25)]
    same = [[letter, letter, 0, 0, letter + 1, letter + 1, 0, 0] for letter in range(1, 25)]
    wrong = [[0, letter, 0, 0, 29, 0, 0, 0] if letter < 11 else row for letter, row in enumerate(lines, 1)]
    more = [[0, letter, 0, 29, 0, letter + 1, 0, 0] if letter < 11 else row for letter, row in enumerate(lines, 1)]
    more_or_less = [[0, letter, *[0] * 6] if letter > 20 else row for letter, row in enumerate(more, 1)]
    changed_texts = {"ten of them with another letter": wrong, "a letter more in ten, less in four": more_or_less}
    body = "x = Reshape (p, rows)  h = GRU <hidden_size = 64> (x, w, r)  s = Reshape (h, states)  y = MatMul (s, m)"
    w, r, m = (
        np.zeros(shape, np.float32) for shape in ((1, 192, 4), (1, 192, 64), (64, 30))
    )  # more states than letters
    by_step = facts_of(inferred(text_model("float[1,1,4,8] p", body, rows=[8, 1, 4], states=[8, 1, 64], w=w, r=r, m=m)))
    for name, read in {"as they were": same, **changed_texts}.items():
        yield f"texts, {name}", _one("Softmax", (1, 8, 30), axis=-1), _texts(lines), _texts(read), {}
        steps, changed = ([one.transpose(1, 0, 2) for one in _texts(side)] for side in (lines, read))
        yield f"texts by step, {name}", by_step, steps, changed, {}
        given, got = ([np.asarray([line]) for line in side] for side in (lines, read))
        yield f"texts picked in the model, {name}", _one("ArgMax", (1, 8, 30), axis=-1, keepdims=0), given, got, {}
    heard, late = ([[0] * n + [sound] * 5 + [0] * (3 - n) for sound in range(1, 25)] for n in (2, 3))
    yield "sounds, which last, a step late", _one("Softmax", (1, 8, 30), axis=-1), _texts(heard), _texts(late), {}
    # The sample that is decided otherwise is counted once: it is no broken sample besides.
    classes = _one("Softmax", (1, 12), axis=-1)
    for items, flipped in ((8, 1), (16, 2), (40, 4), (16, 4), (40, 5), (100, 6), (100, 1)):
        sure = [np.eye(12, dtype=np.float32)[[n % 12]] * (0.9 - n / 2000) + 0.01 for n in range(items)]
        moved = [*(np.roll(sample, 1) for sample in sure[:flipped]), *sure[flipped:]]
        yield f"{flipped} of {items} decided otherwise", classes, sure, moved, {}
    shares = [[one / one.sum() for one in side] for side in (sure, [*sure[1:7], *sure[6:]])]
    yield "rows that add up to 1, 6 of 100 decided otherwise", _one("Sigmoid", (1, 12)), shares[0], shares[1], {}
    # Classes that never lead are no measure of how clear a lead is.
    leads = [np.r_[np.roll([32, 31.5, *[30.5] * 10], n), np.zeros(94)][None].astype(np.float32) for n in range(40)]
    for name, beside, step in (("leads of a half", 31.5, 0.62), ("near ties", 31.97, 0.06)):
        leading = [np.where(lead == 31.5, np.float32(beside), lead) for lead in leads]
        behind = [lead - np.float32(step * (n % 5 == 0)) * (lead == 32) for n, lead in enumerate(leading)]
        yield f"{name}, beside many that never lead", _one("Relu", (1, 106)), leading, behind, {}
    ranked = np.linspace(0.3, 0.01, 12, dtype=np.float32)
    clear = [ranked + np.eye(12, dtype=np.float32)[0] * np.float32(n / 200) for n in range(8)]
    turned = [np.roll(sample, n)[None] for n, sample in enumerate(clear)]
    for places in (1, 4, 5):
        order = [*range(1, places + 1), 0, *range(places + 1, 12)]
        behind = [np.roll(sample[np.argsort(order)], n)[None] for n, sample in enumerate(clear)]
        yield f"the leading class falls behind {places}", classes, turned, behind, {}
    # A transcriber that loses every fourth note agrees in 99.5 % of all that could sound.
    notes, sounds = np.full((6, 1, 50, 40), 0.02, np.float32), _one("Sigmoid", (1, 50, 40))
    notes[..., ::10, ::5] = 0.9
    lost = notes.copy()
    lost[..., ::10, ::25] = 0.1
    yield "rare decisions of which a quarter is lost", sounds, [*notes], [*lost], {}
    yield "rare decisions, kept", sounds, [*notes], [*notes], {}
    yield "rare decisions, and as many more beside", sounds, [*notes], [*np.maximum(notes, np.roll(notes, 1, 2))], {}
    yield "rare decisions, and all others too", sounds, [*notes], [*np.maximum(notes, 0.8)], {}
    yield "decisions that are mostly yes", sounds, [*(1 - notes)], [*(1 - notes)], {}
    # Where nothing sounds in any sample, there is nothing to lose; what is invented is damage.
    yield "nothing sounds, and half of that is left", sounds, [*(notes / 1000)], [*(notes / 2000)], {}
    yield "nothing sounds, and something is invented", sounds, [*(notes / 1000)], [*(notes * 1.001)], {}
    # Each picture has its own range; one that hardly has any is held against that of all.
    for name, light in (("is dark", 0.15), ("is as bright", 1), ("is nearly black", 0.05)):
        lands = [IMAGE, IMAGE[..., ::-1], IMAGE[..., ::-1, :], IMAGE * np.float32(light)]
        noisy, size = [_noise(33)(IMAGE) - IMAGE + one for one in lands], IMAGE.shape
        yield f"pictures of which one {name}", _one("Relu", size), lands, noisy, {}
    voice = [np.asarray([[4.0, 3.9, 4.1]], np.float32) + at / 10 for at in range(4)]
    yield "scores of a voice, from 1 to 5", _one("Relu", (1, 3)), voice, [one + np.float32(0.2) for one in voice], {}


def _decided(question: str) -> list[str]:
    """``OUTPUT MEASURE VALUE FIELD=WORDS, …``; ``odd`` values, a broken reference, numbers of the quantization."""
    *rows, last = question.split(", ")
    broken = last.removeprefix("broken: ") if last.startswith("broken: ") else ""
    oddities, numbers, base = list[Oddity](), list[JudgedNumber](), list[JudgedNumber]()
    for row in rows if broken else (*rows, last):
        output, measure, value, *more = row.split()
        fields: dict[str, Any] = dict(word.replace("_", " ").split("=") for word in more)
        if measure == "odd":
            oddities.append(Oddity(output=output, operator="Exp", what=value, count=3))
            continue
        beside = fields.pop("beside", "")
        fields |= {"items": int(fields.get("items", 0)), "limit": limits().limit[measure]}
        whole = {"kind": "logits", "label": "given", "count": 8, "against": Against.FLOAT, **fields}
        numbers.append(JudgedNumber(output=output, value=float(value), **whole))
        base += [replace(numbers[-1], value=float(beside))] if beside else []
    right, reason = decide(numbers, oddities, broken)
    one = Verdict(right=right, reason=reason, numbers=tuple(numbers), oddities=tuple(oddities), broken=broken)
    told = [*one.lines(), f"short: {one.is_short}, loses: {one.loses}, {one.described}, {one.words}"]
    told += [f"{output} lost: {words}; {len(missed)}" for output, words, missed in one.lost_outputs()]
    if base:
        quantization = Verdict(right=None, numbers=tuple(base), wider="wider by int16")
        told += [f"beside it: {line}" for line in one.beside(quantization).lines()]
    return told


def test_numbers_decide() -> None:
    check_file(HERE / "decided.told", _decided)


def test_tasks_and_what_cannot_be_judged() -> None:
    told = {}
    for name, facts, one, two, asked in _task_cases():
        verdict = _judged(facts, one, two, **asked)
        assert verdict.lines() == Verdict.from_json(verdict.to_json()).lines()
        told[name] = [*verdict_lines(verdict), *["  a wider type is looked for"] * verdict.loses]
    check_told(HERE / "tasks.told", told)


def test_a_letter_that_the_encodings_lose_is_lost_once_with_its_text() -> None:
    """What varies of it is gone from its slice besides, in a text that is counted already."""
    rows = [[0, letter, 0, letter + 1, 0, 0] for letter in range(1, 25)]
    facts, read = _one("Softmax", (1, 6, 30), axis=-1), [[0, 28, 0, 29, 0, 0] if row[1] < 4 else row for row in rows]
    lost = _judged(facts, _texts(rows), _texts(read))
    assert lost.right is False and lost.beside(lost).right is True
    both = np.stack([_texts(rows)] * 2)
    both[..., 27] += np.random.default_rng(1).normal(0, 0.1, (2, 24, 1, 6))
    one, two = map(list, both)
    assert _judged(facts, one, two).right is True, "a letter that no text has"
    assert _judged(facts, one[:1] * 4, two[:1] * 4).right is False, "one text shows nothing"
    dead = _judged(facts, _texts([[0] * 6] * 12 + rows), _texts([[0] * 6] * 12 + [[0] * 6] * 24))
    assert dead.beside(dead).right is False


@each_row(("kept", "of", "said"), (97, 100, True), (98, 100, False), (19, 20, False), (1, 2, True))
def test_what_is_short_of_98_in_100_asks_for_a_wider_type_and_passes_it_on(kept: int, of: int, said: bool) -> None:
    """One of twenty may be chance, and changes no layer; a wider type is looked for in any case."""
    number = GIVEN.number("y", "boxes", Measure.KEPT, kept / of, items=of, words=f"{kept} of {of} kept")
    assert Verdict(right=number.passes, numbers=(number,)).is_short is said
    both = (number, replace(number, note="one of few differs: decibels decide"))
    assert {Verdict(right=True, numbers=(one,)).loses for one in both} == {kept / of < 0.98}
    silent = Context(label="arbitrary").number("y", "boxes", Measure.KEPT, kept / of, items=of)
    assert not Verdict(right=None, numbers=(silent,)).loses
    wide = Verdict(right=True, numbers=(number,), wider="float16 keeps it")
    assert wide.beside(wide).cost.endswith("; float16 keeps it")


def test_signals_and_values_that_keep_less_than_98_in_100_ask_for_a_wider_type() -> None:
    """A score between 4 and 5 that is off by a tenth of what varies between samples has an error of 1 %."""
    facts, scores = _one("Relu", (1,)), [np.array([value], np.float32) for value in np.linspace(4, 5, 24)]
    for off, loses in ((0.03, True), (0.002, False)):
        assert _judged(facts, scores, [y + off * (-1) ** n for n, y in enumerate(scores)]).loses is loses
    assert [_judged(_one("Relu", DENSE.shape), DENSE, _noise(db)(DENSE)).loses for db in (30, 36)] == [True, False]
    chance = np.where(np.arange(100) < 5, 0.52, 0.9).astype(np.float32)[None]  # five decide otherwise: forgiven, told
    verdict = _judged(_one("Sigmoid", (1, 100)), [chance] * 3, [np.where(chance < 0.6, 0.48, chance)] * 3)
    assert verdict.right and verdict.loses and "95.0% where nothing near a half is forgiven" in verdict.words


def test_maps_beside_a_map_of_rare_scores_are_judged_where_it_has_some() -> None:
    """A detector of points says where each lies and how large it is, in every place of its map."""
    given, body = "float[1,1,40,40] a, float[1,2,40,40] b", "s = Sigmoid (a) y = Tanh (b)"
    facts, few = facts_of(inferred(text_model(given, body, "s, y"))), RNG.uniform(size=(1, 1, 40, 40)) < 0.03
    where = RNG.normal(size=(1, 2, 40, 40)).astype(np.float32)
    for points, lost, right in ((few, ~few, True), (few, few, False), (few | True, ~few, False)):
        one = {"s": np.where(points, 0.9, 0.01).astype(np.float32), "y": where}
        verdict = judge_outputs(facts, GIVEN, [one], [one | {"y": np.where(lost, 0, where)}])
        assert verdict.right is right, verdict.lines()


def test_places_of_which_a_mask_says_that_no_word_stands_there_are_not_counted() -> None:
    """One label of forty differs, which is one of eight words to one of nineteen."""
    facts, masks = facts_of(inferred(text_model("int64[1,40] m", "y = Identity (m)"))), np.tri(12, 40, 7, np.int64)
    one, two = ([{"y": np.r_[first, mask[1:] * 2][None]} for mask in masks] for first in (3, 7))
    for feeds, right in (((), True), ([{"m": mask[None]} for mask in masks], False)):
        assert judge_outputs(facts, GIVEN, one, two, feeds).right is right
