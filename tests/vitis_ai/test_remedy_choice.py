"""Which part is left in float, and which format is taken, from given measurements: the first right one, or the best."""

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeAlias

import pytest

from deploykit.accuracy.judge.verdict import Against, Context, KeptCount, Measure, Verdict
from deploykit.backend.backend import Aids, Execution, Instead, Request, Situation
from deploykit.backend.status import Right
from deploykit.backend.targets import find_device
from deploykit.errors import ToolError, UsageError
from deploykit.model.collect import collect_facts
from deploykit.model.load import load_model
from deploykit_vitis_ai import backend, configs, execution, search
from deploykit_vitis_ai.draft import make_draft
from deploykit_vitis_ai.prepare import QuarkPrepared
from deploykit_vitis_ai.runner import EndlessError, QuarkRun
from deploykit_vitis_ai.search import Measured, QuantizedQuality, SearchResult, find_better
from deploykit_vitis_ai.targets import resolve
from tables import each_row

MODEL = Path(__file__).parents[1] / "data" / "quark" / "fp32.onnx"
Seen: TypeAlias = QuantizedQuality | None
CONTEXT = Context(label="given", count=8, against=Against.FLOAT, bits=0, thresholds=None)


def lost(share: float, *kept: int, db: float = 40.0) -> QuantizedQuality:
    """A share of the detections lost, and of 1000 detections so many kept on all samples, of 100 on those held out."""
    number = CONTEXT.number("output0", "detections", Measure.KEPT, 1 - share)
    judged = Verdict(right=share <= 0.1, numbers=(number,), overall_db=db)
    sides = [
        replace(judged, detections=KeptCount(wanted=(of,), made=(of,), kept=(count,)))
        for count, of in zip(kept, (1000, 100), strict=False)
    ] or [judged]
    few = QuantizedQuality(verdict=sides[1], samples=2) if sides[1:] else None
    return QuantizedQuality(verdict=sides[0], samples=8, unseen=few)


WRONG, RIGHT = lost(0.9), lost(0.0)
Choose: TypeAlias = Callable[..., tuple[SearchResult, list[Any]]]


def prepared(target: str = "vek385", **asked: Any) -> QuarkPrepared:
    model, resolved = load_model(MODEL), resolve(find_device(backend.devices(), target), None)
    request = Request(model=MODEL, target=target, calibration=Path("data"), **asked)
    given = Situation(request=request, model=model, facts=collect_facts(model), encodings=None, target=resolved)
    return QuarkPrepared(draft=make_draft(given))


@pytest.fixture
def choose(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Choose:
    """What is found when the trials measure these, one after the other; and the nodes of each trial's recipe."""
    (tmp_path / "config").mkdir()
    (tmp_path / configs.RECIPE).write_text(json.dumps({"calibration": {"kind": "arrays", "files": []}}))
    run = QuarkRun(output="artifacts/m.onnx", result={}, log=Path("log"), seconds=1.0)

    def chosen(
        seen: tuple[Seen, ...], precision: str = "auto", goal: str | None = None, target: str = "vek385", **options: Any
    ) -> tuple[SearchResult, list[Any]]:
        left: Iterator[Seen] = iter(seen[1:])
        recipes: list[Any] = []

        def measure(_environment: object, copy: Path, *_rest: object, **_named: object) -> Measured:
            recipe = json.loads((copy / configs.RECIPE).read_text())
            recipes.append(recipe["attributes"].get("nodes_to_exclude", recipe["precision"]))
            judged = next(left)
            if judged is None:
                raise ToolError("the quantizer gave up")
            return Measured(run=run, quality=judged)

        monkeypatch.setattr(search, "measure", measure)
        details = prepared(target, precision=precision, goal=goal, adapter_options=options)
        given = Measured(run=run, quality=seen[0])
        return find_better(None, tmp_path, details, given, lambda line: None), recipes  # type: ignore[arg-type]

    return chosen


def instead_of(made: SearchResult) -> Instead:
    assert made.instead is not None
    return made.instead


@each_row(
    ("seen", "options", "outcomes", "precision"),
    # A format that was asked for: the first part that is right, else the best; what is no better is undone.
    ([WRONG, RIGHT], {"precision": "vint8"}, ["wrong", "RIGHT"], "vint8"),
    ([WRONG, lost(0.4), lost(0.3)], {"precision": "vint8"}, ["wrong", "wrong", "WRONG"], "vint8"),
    ([WRONG, WRONG, lost(0.895)], {"precision": "vint8"}, ["WRONG", "wrong", "wrong"], None),
    ([WRONG, None, RIGHT], {"precision": "vint8"}, ["wrong", "RIGHT"], "vint8"),
    ([lost(0.3), RIGHT], {"precision": "mixed"}, ["wrong", "RIGHT"], "mixed"),
    # What is right, was not judged, or is the user's own business, is left alone.
    ([RIGHT], {"precision": "vint8"}, ["RIGHT"], None),
    ([lost(0.0, 500)], {"precision": "vint8"}, ["RIGHT"], None),
    ([None], {"precision": "vint8"}, ["NOT JUDGED"], None),
    ([WRONG], {"precision": "vint8", "exclude_node": ("/post/Sub",)}, ["WRONG"], None),
    ([WRONG], {"precision": "vint8", "exclude_nothing": True}, ["WRONG"], None),
    # ``auto``: a part before a wider format, every format that the device has, cheapest first.
    ([RIGHT], {}, ["RIGHT"], None),
    ([WRONG, RIGHT], {}, ["wrong", "RIGHT"], "vint8"),
    ([WRONG, lost(0.4), WRONG, lost(0.01)], {}, ["wrong", "wrong", "wrong", "RIGHT"], "bf16"),
    ([WRONG, lost(0.3), lost(0.4), lost(0.5)], {}, ["wrong", "WRONG", "wrong", "wrong"], "vint8"),
    ([WRONG, None, None, RIGHT], {}, ["wrong", "RIGHT"], "bf16"),
    ([None], {}, ["NOT JUDGED"], None),
    ([WRONG], {"exclude_node": ("/post/Sub",)}, ["WRONG", "not possible (VAI110)"], None),
    ([WRONG] * 4 + [RIGHT], {"target": "strix"}, [*["wrong"] * 4, "RIGHT"], "a16w8"),
    # A goal is more than right: decibels, all detections, those on samples that the quantizer did not see.
    ([*[lost(0, db=2.0)] * 3, lost(0.0, db=31.0)], {"goal": "sqnr>=30"}, ["right", "right", "right", "RIGHT"], "bf16"),
    ([lost(0.0, kept) for kept in (800, 960, 900, 970)], {}, ["right", "right", "right", "RIGHT"], "bf16"),
    ([lost(0.0, 980, kept) for kept in (94, 93, 93, 96)], {}, ["right", "right", "right", "RIGHT"], "bf16"),
    ([lost(0.0, kept) for kept in (700, 800, 900, 850)], {}, ["right", "right", "RIGHT", "right"], "vint8"),
)
def test_what_is_tried_and_what_is_taken(
    choose: Choose, seen: list[Seen], options: dict[str, Any], outcomes: list[str], precision: str | None
) -> None:
    """Outcomes in order, the chosen one in capitals."""
    made, recipes = choose(tuple(seen), **options)
    told = [(trial.outcome.split(",")[0], trial.chosen) for trial in made.outcome.trials]
    assert [outcome.upper() if chosen else outcome for outcome, chosen in told] == outcomes
    assert len(recipes) == len(seen) - 1, "every measurement that was given is asked for"
    assert (None if made.instead is None else made.instead.request.precision) == precision
    assert bool(made.outcome.asked) is (options.get("precision", "auto") == "auto")


@each_row(
    ("seen", "precision", "codes", "reached"),
    ((WRONG, RIGHT), "vint8", ["VAI280"], None),
    ((WRONG, lost(0.4), lost(0.3)), "vint8", ["VAI280", "VAI281"], None),
    ((WRONG, RIGHT), "auto", ["VAI280", "VAI283"], True),
    ((WRONG, lost(0.4), WRONG, lost(0.01)), "auto", ["VAI283"], True),
    ((WRONG, lost(0.3), lost(0.4), lost(0.5)), "auto", ["VAI280", "VAI281", "VAI283"], False),
)
def test_what_is_said_of_it(
    choose: Choose, seen: tuple[Seen, ...], precision: str, codes: list[str], reached: bool | None
) -> None:
    made, _ = choose(seen, precision)
    assert sorted(finding.code for finding in instead_of(made).findings) == codes
    assert made.outcome.reached is reached
    said = [finding.message for finding in instead_of(made).findings if finding.code == "VAI283"]
    missed = "none of them are right: the judge's limits, and 95% of the detections kept"
    assert [missed in message for message in said] == [reached is False] * (precision == "auto")


def test_a_part_is_asked_for_by_its_nodes_and_the_next_part_holds_it(choose: Choose) -> None:
    made, recipes = choose((WRONG, lost(0.4), RIGHT), "vint8")
    asked = instead_of(made)
    assert "/post/Concat_1" in recipes[0] and set(recipes[0]) < set(recipes[1])
    assert asked.request.adapter_options["exclude_node"] == made.outcome.trials[2].nodes
    assert "90.0% of the detections lost" in asked.how and not asked.request.adapter_options["hold_out"]
    assert choose((lost(0.3), RIGHT), "mixed")[1] == [recipes[1]], "the first part was in float already"


def test_what_auto_found_is_made_again_as_it_was_measured(choose: Choose) -> None:
    """Without the samples that were held out; of a wider format what was measured is all there is."""
    made, recipes = choose((WRONG, RIGHT))
    assert instead_of(made).request.adapter_options["hold_out"] is True
    assert made.outcome.trials[1].words.startswith("vint8 with ") and instead_of(made).right is None
    wider, recipes = choose((WRONG, lost(0.4), WRONG, lost(0.01)))
    right = instead_of(wider).right
    assert right is not None and right.state is Right.YES and recipes[2:] == ["bf16"]
    assert choose((*[WRONG] * 4, RIGHT), target="strix")[1][2:] == ["a8w8", "a16w8"]
    kept, _ = choose(tuple(lost(0.0, kept) for kept in (800, 960, 900, 970)))
    assert "97.0% of 1000 detections kept" in kept.outcome.trials[-1].outcome


def test_whether_it_is_reached_may_be_unknown_and_a_goal_about_a_measure_is_refused(choose: Choose) -> None:
    assert [choose((seen,))[0].outcome.reached for seen in (RIGHT, None)] == [True, None]
    with pytest.raises(UsageError, match="asks about a measure"):
        choose((RIGHT,), goal="drop<=1%")


@pytest.fixture
def executed(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Execution]:
    """A run in vint8 whose quantizer is there and measures what a function gives."""

    def execute(measure: Callable[..., Measured], **asked: Any) -> Execution:
        ready = SimpleNamespace(state=lambda **_: SimpleNamespace(state="ready"))
        monkeypatch.setattr(execution, "quark_environment", lambda _name: ready)
        monkeypatch.setattr(execution, "measure", measure)
        aids = Aids(progress=print, samples=lambda: None)  # type: ignore[arg-type, return-value]
        return execution.execute(MODEL.parent, prepared(precision="vint8", **asked), None, aids)  # type: ignore[arg-type]

    return execute


def test_endless_equalization_is_left_out_if_not_asked_for(executed: Callable[..., Execution]) -> None:
    def fail(*_given: object) -> Measured:
        raise EndlessError("quark made no model", why="array is too big")

    instead = executed(fail, options=(("include_sq", "false"),)).instead
    assert instead is not None
    assert instead.request.options == (("include_sq", "false"), ("include_cle", "false"))
    assert [finding.code for finding in instead.findings] == ["VAI303"]
    with pytest.raises(EndlessError):
        executed(fail, options=(("include_cle", "true"),))


@each_row(("share", "words"), (0.05, "; --precision bf16 is wider, and is judged in the same way"), (0.01, ""))
def test_a_yes_that_keeps_less_than_it_might_names_the_wider_precision(
    executed: Callable[..., Execution], share: float, words: str
) -> None:
    run = QuarkRun(output="vint8.onnx", result={}, log=Path("log"), seconds=1.0)
    right = executed(lambda *_given: Measured(run=run, quality=lost(share))).right
    assert right is not None and right.state is Right.YES and right.why.endswith(f"40.0 dB{words}")
