"""Does a package do the model's task as well as its numbers allow? Right ones, costly ones, and wrong ones."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from deploykit.accuracy.judge.judge import judge_outputs
from deploykit.accuracy.judge.verdict import Context, Verdict
from deploykit.model.collect import facts_of
from deploykit.model.facts import GraphFacts
from sample_models.tiny_graphs import TinyGraph
from tables import each_row

Outputs: TypeAlias = list[dict[str, npt.NDArray[Any]]]
GIVEN = Context(label="given")
RNG = np.random.default_rng(11)
SIDE = 320


def detector() -> GraphFacts:
    """Boxes, scores and labels of 40 rows."""
    graph = TinyGraph()
    graph.input("image", (1, 3, SIDE, SIDE))
    graph.op("Relu", [graph.input("b", (1, 40, 4))], "boxes")
    graph.op("Sigmoid", [graph.input("s", (1, 40))], "scores")
    graph.op("ArgMax", [graph.input("l", (1, 40, 20))], "labels", axis=2, keepdims=0)
    return facts_of(graph.model("boxes", "scores", "labels"))


def found(samples: int = 6) -> Outputs:
    """What the float model finds: 20 clear objects in each picture, 20 rows of nothing."""
    made: Outputs = []
    for _ in range(samples):
        corner = RNG.uniform(0, 200, (1, 40, 2))
        boxes = np.concatenate([corner, corner + RNG.uniform(30, 100, (1, 40, 2))], axis=2).astype(np.float32)
        scores = np.concatenate([RNG.uniform(0.6, 0.95, (1, 20)), RNG.uniform(0.01, 0.1, (1, 20))], axis=1)
        labels = RNG.integers(0, 20, (1, 40))
        made.append({"boxes": boxes, "scores": scores.astype(np.float32), "labels": labels})
    return made


DETECTOR, FOUND = detector(), found()
FEEDS = [{"image": np.zeros((1, 3, SIDE, SIDE), np.float32)}] * len(FOUND)


def each(change: Callable[[dict[str, npt.NDArray[Any]]], dict[str, npt.NDArray[Any]]]) -> Outputs:
    return [{**sample, **change({name: value.copy() for name, value in sample.items()})} for sample in FOUND]


def noisy(pixels: float = 1.0, lost: int = 0) -> Outputs:
    """A quantization: boxes a little off, and the weakest detections gone in the first pictures."""
    made = each(lambda v: {"boxes": v["boxes"] + RNG.normal(0, pixels, v["boxes"].shape).astype(np.float32)})
    for number in range(lost):
        sample = made[number % len(made)]
        sample["scores"] = sample["scores"].copy()
        sample["scores"][0, number // len(made)] = 0.05
    return made


def first_is_nan(values: Outputs) -> Outputs:
    return [{**values[0], "boxes": np.full_like(values[0]["boxes"], np.nan)}, *values[1:]]


def one_kernel(values: dict[str, npt.NDArray[Any]]) -> dict[str, npt.NDArray[Any]]:
    """A wrong kernel in the box head: widths are taken for heights."""
    return {"boxes": values["boxes"][..., [1, 0, 3, 2]]}


def half_lost(values: dict[str, npt.NDArray[Any]]) -> dict[str, npt.NDArray[Any]]:
    values["scores"][0, ::2] = 0.02
    return {"scores": values["scores"]}


WRONG: dict[str, Outputs] = {
    "swapped classes": each(lambda v: {"labels": 19 - v["labels"]}),
    "boxes shifted by 5 %": each(lambda v: {"boxes": v["boxes"] + np.float32(0.05 * SIDE)}),
    "one wrong kernel": each(one_kernel),
    "a scale off by two": each(lambda v: {"boxes": v["boxes"] * np.float32(2)}),
    "NaN for one input": first_is_nan(FOUND),
    "samples exchanged": [*FOUND[1:], FOUND[0]],
    "weights of another model": found(),
    "calibration of another recipe": each(lambda v: {"scores": v["scores"] * np.float32(0.2)}),
    "half the detections lost": each(half_lost),
    "a label off by one": each(lambda v: {"labels": v["labels"] + 1}),
}


def judged(outputs: Outputs, quantized: Outputs | None = None) -> Verdict:
    judge = partial(judge_outputs, DETECTOR, GIVEN)
    verdict = judge(FOUND, outputs, FEEDS)
    return verdict if quantized is None else verdict.beside(judge(FOUND, quantized, FEEDS))


@each_row("name", WRONG)
def test_a_wrong_package_is_no(name: str) -> None:
    verdict = judged(WRONG[name], noisy())
    assert verdict.right is False, verdict.lines()
    assert verdict.reason


def test_a_package_that_does_as_its_quantization_is_yes_and_the_words_say_what_that_costs() -> None:
    verdict = judged(noisy(lost=24), noisy(lost=24))
    assert judged(noisy(lost=24)).right is False
    assert judged(noisy(lost=25), noisy(lost=24)).right is True, "one in a hundred is no difference"
    assert verdict.right is True, verdict.lines()
    assert "in your encodings, not in the package: 96 of 120 detections kept" in verdict.cost


def test_a_package_that_loses_more_than_its_quantization_is_no() -> None:
    verdict = judged(noisy(lost=24), noisy(lost=3))
    assert verdict.right is False
    assert "96 of 120 detections kept" in verdict.reason


def test_what_is_good_in_absolute_terms_is_yes_although_the_quantization_is_better() -> None:
    verdict = judged(noisy(lost=6), noisy())
    assert verdict.right is True
    assert "120 of 120 detections kept" in verdict.cost


def test_encodings_that_leave_nothing_of_the_task_excuse_nothing() -> None:
    assert judged(noisy(lost=70), noisy(lost=70)).right is False


def test_another_order_of_rows_is_no_loss() -> None:
    order = RNG.permutation(40)
    graph = TinyGraph()
    graph.input("image", (1, 3, SIDE, SIDE))
    graph.op("TopK", [graph.input("s", (1, 90)), graph.stored("k", [40], "int64")], ["best", "i"], axis=1)
    graph.op("Sigmoid", ["best"], "scores")
    graph.op("Mod", ["i", graph.stored("c", 20, "int64")], "labels")
    index = graph.op("Unsqueeze", ["i", graph.stored("last", [-1], "int64")], "i3")
    where = graph.op("Tile", [index, graph.stored("reps", [1, 1, 4], "int64")], "where")
    graph.op("GatherElements", [graph.input("b", (1, 90, 4)), where], "boxes", axis=1)
    judge = partial(judge_outputs, facts_of(graph.model("boxes", "scores", "labels")), GIVEN)
    other = [{name: value[:, order] for name, value in sample.items()} for sample in noisy()]
    assert judge(FOUND, other, FEEDS).right is True


def test_outputs_that_are_exchanged_are_no() -> None:
    graph = TinyGraph()
    for name in ("first", "second"):
        graph.op("Tanh", [graph.input(f"x_{name}", (1, 64))], name)
    judge = partial(judge_outputs, facts_of(graph.model("first", "second")), GIVEN)
    one = [{name: RNG.normal(size=(1, 64)) for name in ("first", "second")} for _ in range(4)]
    assert judge(one, [{"first": s["second"], "second": s["first"]} for s in one]).right is False


def test_a_mask_that_is_applied_twice_is_no() -> None:
    graph = TinyGraph()
    graph.op("Softmax", [graph.input("x", (2, 8, 16))], "attention", axis=-1)
    judge = partial(judge_outputs, facts_of(graph.model("attention")), GIVEN)
    logits = [RNG.normal(size=(2, 8, 16)) * 2 for _ in range(4)]
    mask = np.where(np.arange(16) < 12, 0.0, -2.0)  # soft, so that twice is another answer

    def attention(times: int) -> Outputs:
        made = [np.exp(x + times * mask * np.arange(16)) for x in logits]
        return [{"attention": (e / e.sum(-1, keepdims=True)).astype(np.float32)} for e in made]

    shifted = [{"attention": np.roll(s["attention"], 1, axis=-1)} for s in attention(1)]
    assert judge(attention(1), attention(1)).right is True
    assert judge(attention(1), shifted).right is False


def test_a_row_of_pixels_with_nothing_in_it_is_no_lost_part() -> None:
    """A trained detector of text found all its boxes and was called wrong for one row of its map."""
    graph = TinyGraph()
    graph.op("Sigmoid", [graph.input("x", (1, 1, 32, 32))], "y")
    judge = partial(judge_outputs, facts_of(graph.model("y")), GIVEN)
    maps = np.full((6, 1, 1, 32, 32), 0.01, np.float32)
    maps[..., 4:12, 4:20] = 0.97
    other = maps.copy()
    maps[..., 20, ::2] = 0.2  # far from a half, and the other side has it elsewhere
    other[..., 20, 1::2] = 0.2
    verdict = judge([{"y": one} for one in maps], [{"y": one} for one in other])
    assert verdict.right is True and "mean overlap of areas 100.0%" in verdict.words
    gone = np.full_like(maps, 0.01)
    assert judge([{"y": one} for one in maps], [{"y": one} for one in gone]).right is False


def texts(rows: Sequence[Sequence[int]]) -> Outputs:
    """Lines as a recognizer gives them; 0 is nothing."""
    return [{"y": np.eye(30, dtype=np.float32)[list(row)][None] * 0.9 + 0.001} for row in rows]


def test_texts_are_read_letter_by_letter() -> None:
    graph = TinyGraph()
    graph.op("Softmax", [graph.input("x", (1, 8, 30))], "y", axis=-1)
    judge = partial(judge_outputs, facts_of(graph.model("y")), GIVEN)
    lines = [[0, letter, letter, 0, letter + 1, 0, 0, 0] for letter in range(1, 25)]
    same = [[letter - 0, letter, 0, 0, letter + 1, letter + 1, 0, 0] for letter in range(1, 25)]
    assert "24 of 24 texts equal" in judge(texts(lines), texts(same)).words
    wrong = [[0, letter, 0, 0, 29, 0, 0, 0] if letter < 11 else row for letter, row in enumerate(lines, 1)]
    verdict = judge(texts(lines), texts(wrong))
    assert verdict.right is False and "14 of 24 texts equal" in verdict.reason


@each_row(
    ("items", "flipped", "right"),
    [(8, 1, None), (16, 2, None), (16, 4, False), (40, 4, None), (40, 5, False), (100, 1, True), (100, 6, False)],
)
def test_few_decisions_are_no_proof_and_one_in_a_hundred_is_no_loss(items: int, flipped: int, right: bool) -> None:
    """The sample that is decided otherwise is counted once: it is no broken sample besides."""
    graph = TinyGraph()
    graph.op("Softmax", [graph.input("x", (1, 10))], "y", axis=-1)
    judge = partial(judge_outputs, facts_of(graph.model("y")), GIVEN)
    one = [{"y": np.eye(10, dtype=np.float32)[[n % 10]] * 0.9 + 0.01} for n in range(items)]
    verdict = judge(one, [*({"y": np.roll(s["y"], 1)} for s in one[:flipped]), *one[flipped:]])
    assert verdict.right is right, verdict.lines()
    if right is None:
        assert f"{flipped} of {items} may differ by chance; at least 100 show" in verdict.reason
    assert judge(one, one).right is True


def test_rare_decisions_are_not_hidden_by_all_the_others() -> None:
    """A transcriber that loses every fifth note agrees in 99.6 % of all that could sound."""
    graph = TinyGraph()
    graph.op("Sigmoid", [graph.input("x", (1, 50, 40))], "y")
    judge = partial(judge_outputs, facts_of(graph.model("y")), GIVEN)
    notes = np.full((6, 1, 50, 40), 0.02, np.float32)
    notes[..., ::10, ::5] = 0.9
    lost = notes.copy()
    lost[..., ::10, ::25] = 0.1
    one, two = ([{"y": sample} for sample in side] for side in (notes, lost))
    verdict = judge(one, two)
    assert verdict.right is False
    assert "180 of 240 positive decisions equal" in verdict.reason
    assert judge(one, one).right is True
