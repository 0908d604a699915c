"""Which part is left in float, and which format is taken, from given measurements: the first right one, or the best."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from deploykit.accuracy.judge.verdict import Against, Context, KeptCount, Measure, Verdict
from deploykit.backend.backend import Request, Situation
from deploykit.backend.status import Right
from deploykit.backend.targets import find_device
from deploykit.errors import ToolError, UsageError
from deploykit.findings import Finding
from deploykit.model import load_model
from deploykit.model.collect import collect_facts
from deploykit_vitis_ai import backend, configs, search
from deploykit_vitis_ai.draft import make_draft
from deploykit_vitis_ai.prepare import QuarkPrepared
from deploykit_vitis_ai.runner import QuarkRun
from deploykit_vitis_ai.search import Measured, QuantizedQuality, SearchResult, find_better
from deploykit_vitis_ai.targets import resolve

MODEL = Path(__file__).parents[1] / "data" / "quark" / "fp32.onnx"
Seen: TypeAlias = Verdict | QuantizedQuality | None
CONTEXT = Context(label="given", count=8, against=Against.FLOAT, bits=0, thresholds=None)


def verdict(lost: float, *, db: float = 40.0) -> Verdict:
    number = CONTEXT.number("output0", "detections", Measure.KEPT, 1 - lost)
    return Verdict(right=lost <= 0.1, numbers=(number,), overall_db=db)


def quality(judged: Verdict, *kept: int) -> QuantizedQuality:
    """Of 1000 detections kept on all samples, then of 100 on those held out."""
    sides = [counted(judged, count, of) for count, of in zip(kept, (1000, 100), strict=False)] or [judged]
    few = QuantizedQuality(verdict=sides[1], samples=2) if sides[1:] else None
    return QuantizedQuality(verdict=sides[0], samples=8, unseen=few)


def counted(judged: Verdict, kept: int, of: int) -> Verdict:
    return replace(judged, detections=KeptCount(wanted=(of,), made=(of,), kept=(kept,), score=0.25, overlap=0.5))


def measured(judged: Verdict | QuantizedQuality | None) -> Measured:
    run = QuarkRun(output="artifacts/m.onnx", result={}, log=Path("log"), seconds=1.0)
    return Measured(run=run, quality=quality(judged) if isinstance(judged, Verdict) else judged)


@pytest.fixture
def package(tmp_path: Path) -> Path:
    (tmp_path / "config").mkdir()
    (tmp_path / configs.RECIPE).write_text(json.dumps({"calibration": {"kind": "arrays", "files": []}}))
    return tmp_path


def chosen(
    monkeypatch: pytest.MonkeyPatch, package: Path, given: Seen, *measurements: Seen, **options: Any
) -> tuple[SearchResult, list[str]]:
    """What is found when the trials measure these, one after the other; and the nodes of each trial's recipe."""
    left: Iterator[Seen] = iter(measurements)
    recipes: list[str] = []

    def measure(_environment: object, copy: Path, *_rest: object, **_named: object) -> Measured:
        recipe = json.loads((copy / configs.RECIPE).read_text())
        recipes.append(recipe["attributes"].get("nodes_to_exclude", recipe["precision"]))
        judged = next(left)
        if judged is None:
            raise ToolError("the quantizer gave up")
        return measured(judged)

    monkeypatch.setattr(search, "measure", measure)
    precision, goal = options.pop("precision", "vint8"), options.pop("goal", None)
    name = options.pop("target", "vek385")
    request = Request(
        model=MODEL, target=name, precision=precision, goal=goal, calibration=Path("data"), adapter_options=options
    )
    model = load_model(MODEL)
    target = resolve(find_device(backend.devices(), name), None)
    situation = Situation(request=request, model=model, facts=collect_facts(model), encodings=None, target=target)
    details = QuarkPrepared(draft=make_draft(situation))
    return find_better(None, package, details, measured(given), lambda line: None), recipes  # type: ignore[arg-type]


def codes(found: tuple[Finding, ...]) -> list[str]:
    return sorted(finding.code for finding in found)


def test_the_first_part_that_is_right_is_taken(monkeypatch: pytest.MonkeyPatch, package: Path) -> None:
    made, recipes = chosen(monkeypatch, package, verdict(0.9), verdict(0.0))
    assert len(recipes) == 1
    assert "/post/Concat_1" in recipes[0]
    assert made.instead is not None
    assert made.instead.request.adapter_options["exclude_node"] == made.trials[0].nodes
    assert "90.0% of the detections lost" in made.instead.how
    assert codes(made.instead.findings) == ["VAI280"]


def test_a_wrong_one_that_is_better_still_wins_and_the_other_is_said(
    monkeypatch: pytest.MonkeyPatch, package: Path
) -> None:
    made, recipes = chosen(monkeypatch, package, verdict(0.9), verdict(0.4), verdict(0.3))
    assert len(recipes) == 2
    assert set(recipes[0]) < set(recipes[1])
    assert [trial.kept for trial in made.trials] == [False, True]
    assert made.instead is not None
    assert codes(made.instead.findings) == ["VAI280", "VAI281"]


def test_what_is_no_better_is_undone(monkeypatch: pytest.MonkeyPatch, package: Path) -> None:
    made, _ = chosen(monkeypatch, package, verdict(0.9), verdict(0.9), verdict(0.895))
    assert made.instead is None
    assert [trial.kept for trial in made.trials] == [False, False]


def test_a_quantizer_that_gives_up_on_a_part_does_not_end_the_search(
    monkeypatch: pytest.MonkeyPatch, package: Path
) -> None:
    made, recipes = chosen(monkeypatch, package, verdict(0.9), None, verdict(0.0))
    assert len(recipes) == 2
    assert made.instead is not None


@pytest.mark.parametrize("given", [None, verdict(0.0)])
def test_what_is_right_or_was_not_judged_is_left_alone(
    given: Verdict | None, monkeypatch: pytest.MonkeyPatch, package: Path
) -> None:
    assert chosen(monkeypatch, package, given) == (SearchResult(), [])


@pytest.mark.parametrize("options", [{"exclude_node": ("/post/Sub",)}, {"exclude_nothing": True}])
def test_what_the_user_named_is_the_users_business(
    options: dict[str, Any], monkeypatch: pytest.MonkeyPatch, package: Path
) -> None:
    assert chosen(monkeypatch, package, verdict(0.9), **options) == (SearchResult(), [])


def test_mixed_goes_on_from_what_it_found(monkeypatch: pytest.MonkeyPatch, package: Path) -> None:
    """The post-processing is in float already, so only the last layers are tried with it."""
    made, recipes = chosen(monkeypatch, package, verdict(0.3), verdict(0.0), precision="mixed")
    assert len(recipes) == 1
    assert "/head/box/Conv" in recipes[0]
    assert made.instead is not None


def auto(
    monkeypatch: pytest.MonkeyPatch, package: Path, given: Seen, *measurements: Seen, **options: Any
) -> tuple[SearchResult, list[str]]:
    return chosen(monkeypatch, package, given, *measurements, precision="auto", **options)


def rungs(made: SearchResult) -> list[tuple[str, bool]]:
    assert made.choice is not None
    return [(rung.outcome.split(",")[0], rung.chosen) for rung in made.choice.rungs]


def test_auto_stays_with_the_cheapest_format_where_it_is_right(monkeypatch: pytest.MonkeyPatch, package: Path) -> None:
    made, recipes = auto(monkeypatch, package, verdict(0.0))
    assert recipes == []
    assert made.instead is None
    assert rungs(made) == [("right", True)]
    assert made.choice is not None
    assert made.choice.reached


def test_auto_takes_a_part_in_float_before_a_wider_format(monkeypatch: pytest.MonkeyPatch, package: Path) -> None:
    made, recipes = auto(monkeypatch, package, verdict(0.9), verdict(0.0))
    assert len(recipes) == 1
    assert rungs(made) == [("wrong", False), ("right", True)]
    assert made.instead is not None
    assert made.instead.request.precision == "vint8"
    assert made.choice is not None
    assert made.choice.rungs[1].words.startswith("vint8 with ")
    assert "/post/Concat_1" in made.instead.request.adapter_options["exclude_node"]
    assert codes(made.instead.findings) == ["VAI280", "VAI283"]


def test_auto_goes_on_to_the_wider_format_and_keeps_what_was_measured_of_it(
    monkeypatch: pytest.MonkeyPatch, package: Path
) -> None:
    made, recipes = auto(monkeypatch, package, verdict(0.9), verdict(0.4), verdict(0.9), verdict(0.01))
    assert recipes[2:] == ["bf16"]
    assert rungs(made) == [("wrong", False), ("wrong", False), ("wrong", False), ("right", True)]
    assert made.instead is not None
    assert made.instead.request.precision == "bf16"
    assert made.instead.right is not None
    assert made.instead.right.state is Right.YES
    assert codes(made.instead.findings) == ["VAI283"]


def test_auto_takes_the_best_where_none_is_right_and_says_so(monkeypatch: pytest.MonkeyPatch, package: Path) -> None:
    made, _ = auto(monkeypatch, package, verdict(0.9), verdict(0.3), verdict(0.4), verdict(0.5))
    assert rungs(made) == [("wrong", False), ("wrong", True), ("wrong", False), ("wrong", False)]
    assert made.instead is not None
    assert made.instead.request.precision == "vint8"
    (said,) = [finding for finding in made.instead.findings if finding.code == "VAI283"]
    assert "none of them are right" in said.message


def test_auto_goes_on_where_the_quantizer_gives_up(monkeypatch: pytest.MonkeyPatch, package: Path) -> None:
    made, _ = auto(monkeypatch, package, verdict(0.9), None, None, verdict(0.0))
    assert rungs(made) == [("wrong", False), ("right", True)]


def test_auto_without_anything_to_judge_tries_nothing(monkeypatch: pytest.MonkeyPatch, package: Path) -> None:
    made, recipes = auto(monkeypatch, package, None)
    assert (recipes, rungs(made)) == ([], [("not judged", True)])
    assert made.choice is not None
    assert made.choice.reached is None


def test_auto_with_a_goal_goes_on_until_it_is_reached(monkeypatch: pytest.MonkeyPatch, package: Path) -> None:
    low, high = verdict(0.0, db=20.0), verdict(0.0, db=31.0)
    made, recipes = auto(monkeypatch, package, low, low, low, high, goal="sqnr>=30")
    assert recipes[-1] == "bf16"
    assert made.instead is not None
    assert made.instead.request.precision == "bf16"


def test_auto_with_a_part_that_was_named_tries_formats_that_can_leave_it_in_float(
    monkeypatch: pytest.MonkeyPatch, package: Path
) -> None:
    made, recipes = auto(monkeypatch, package, verdict(0.9), exclude_node=("/post/Sub",))
    assert recipes == []
    assert made.choice is not None
    assert [rung.outcome for rung in made.choice.rungs][1:] == ["not possible (VAI110)"]


def test_auto_tries_every_format_that_a_device_has_cheapest_first(
    monkeypatch: pytest.MonkeyPatch, package: Path
) -> None:
    wrong = verdict(0.9)
    made, recipes = auto(monkeypatch, package, wrong, wrong, wrong, wrong, verdict(0.0), target="strix")
    assert recipes[2:] == ["a8w8", "a16w8"]
    assert made.instead is not None
    assert made.instead.request.precision == "a16w8"


def test_a_goal_that_asks_about_a_measure_is_refused(monkeypatch: pytest.MonkeyPatch, package: Path) -> None:
    with pytest.raises(UsageError, match="asks about a measure"):
        auto(monkeypatch, package, verdict(0.0), goal="drop<=1%")


def test_auto_goes_on_from_what_is_right_and_loses_detections(monkeypatch: pytest.MonkeyPatch, package: Path) -> None:
    """The judge forgives scores that fall just below the working one; somebody who counts does not."""
    good = verdict(0.0)
    steps = [quality(good, 960), quality(good, 900), quality(good, 970)]
    made, recipes = auto(monkeypatch, package, quality(good, 800), *steps)
    assert recipes[2:] == ["bf16"]
    assert made.choice is not None
    assert made.choice.reached
    assert [rung.chosen for rung in made.choice.rungs] == [False, False, False, True]
    assert "97.0% of 1000 detections kept" in made.choice.rungs[-1].outcome


def test_auto_believes_the_samples_that_the_quantizer_did_not_see(
    monkeypatch: pytest.MonkeyPatch, package: Path
) -> None:
    good = verdict(0.0)
    steps = [quality(good, 980, 93), quality(good, 980, 93), quality(good, 980, 96)]
    made, recipes = auto(monkeypatch, package, quality(good, 980, 94), *steps)
    assert recipes[2:] == ["bf16"]
    assert made.choice is not None
    assert made.choice.rungs[-1].chosen


def test_auto_takes_what_keeps_most_where_nothing_keeps_enough(monkeypatch: pytest.MonkeyPatch, package: Path) -> None:
    good = verdict(0.0)
    made, _ = auto(monkeypatch, package, *(quality(good, kept) for kept in (700, 800, 900, 850)))
    assert made.choice is not None
    assert [rung.chosen for rung in made.choice.rungs] == [False, False, True, False]
    assert made.instead is not None
    (said,) = [finding for finding in made.instead.findings if finding.code == "VAI283"]
    assert "none of them are right: the judge's limits, and 95% of the detections kept" in said.message


def test_what_auto_found_is_made_again_without_the_samples_that_were_held_out(
    monkeypatch: pytest.MonkeyPatch, package: Path
) -> None:
    """What is packaged is what was measured."""
    made, _ = auto(monkeypatch, package, verdict(0.9), verdict(0.0))
    assert made.instead is not None
    assert made.instead.request.adapter_options["hold_out"] is True
    plain, _ = chosen(monkeypatch, package, verdict(0.9), verdict(0.0))
    assert plain.instead is not None
    assert not plain.instead.request.adapter_options["hold_out"]


def test_a_format_that_was_asked_for_is_left_as_right_as_the_judge_wants(
    monkeypatch: pytest.MonkeyPatch, package: Path
) -> None:
    assert chosen(monkeypatch, package, quality(verdict(0.0), 500)) == (SearchResult(), [])
