"""Which part is left in float, and which format is taken, from given measurements: the first right one, or the best."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeAlias

import numpy as np
import onnx
import pytest
from msgspec.structs import replace

from deploykit.accuracy.judge.verdict import Against, Context, KeptCount, Measure, Verdict
from deploykit.accuracy.search.goals import parse_goal
from deploykit.accuracy.simulate.partial_runs import PartialRuns
from deploykit.accuracy.simulate.precisions import min_max_encodings, precision_of
from deploykit.backend.backend import Aids, Execution, Instead, Request, Situation
from deploykit.backend.status import Right
from deploykit.backend.targets import find_device
from deploykit.encodings.insert_qdq import insert_qdq
from deploykit.errors import ToolError, UsageError
from deploykit.findings import Finding
from deploykit.model.collect import collect_facts
from deploykit.model.load import load_model
from deploykit_vitis_ai import backend, configs, execution, search
from deploykit_vitis_ai.draft import make_draft
from deploykit_vitis_ai.prepare import QuarkPrepared
from deploykit_vitis_ai.runner import EndlessError, QuarkRun
from deploykit_vitis_ai.search import Measured, QuantizedQuality, SearchResult, find_better
from deploykit_vitis_ai.targets import resolve
from tables import each_row
from text_models import text_model
from told import check_file

MODEL = Path(__file__).parents[1] / "data" / "quark" / "fp32.onnx"
Seen: TypeAlias = QuantizedQuality | None
CONTEXT = Context(label="given", count=8, against=Against.FLOAT, bits=0, thresholds=None)


def lost(share: float, *kept: int, db: float = 40.0) -> QuantizedQuality:
    """A share of the detections lost, and of 1000 detections so many kept on all samples, of 100 on those held out."""
    plainly = kept[0] / 1000 if kept else 1 - share
    number = CONTEXT.number("output0", "detections", Measure.KEPT, 1 - share, plainly=plainly)
    judged = Verdict(right=share <= 0.1, numbers=(number,), overall_db=db)
    sides = [
        replace(judged, detections=KeptCount(wanted=(of,), made=(of,), kept=(count,)))
        for count, of in zip(kept, (1000, 100), strict=False)
    ] or [judged]
    few = QuantizedQuality(verdict=sides[1], samples=2) if sides[1:] else None
    return QuantizedQuality(verdict=sides[0], samples=8, unseen=few)


WRONG, RIGHT = lost(0.9), lost(0.0)
OPEN = replace(WRONG, verdict=replace(WRONG.verdict, right=None, overall_db=2.0))
FEW = (CONTEXT.number("output0", "detections", Measure.KEPT, 14 / 16, items=16),)
NAMED = {"none": None, "open": OPEN, "chance": replace(OPEN, verdict=replace(OPEN.verdict, numbers=FEW))}
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

        def measure(_environment: object, copy: Path, *_rest: object, trial: bool) -> Measured:
            recipe = json.loads((copy / configs.RECIPE).read_text())
            assert trial is (recipe["precision"] != "bf16"), "an imitation is never asked for again"
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


def measured(word: str) -> Seen:
    """``SHARE/KEPT/KEPT@DB`` of what is `lost`, or one of those with a name; ``none``: the quantizer gave up."""
    if word in NAMED:
        return NAMED[word]
    counts, _, decibels = word.partition("@")
    share, *kept = counts.split("/")
    return lost(float(share), *map(int, kept), db=float(decibels or 40))


def test_what_is_tried_and_what_is_taken_and_said_of_it(choose: Choose) -> None:
    """A part before a wider format; the first that is right, else the best; what is no better is undone."""

    def tried(question: str) -> Iterator[str]:
        """``PRECISION OPTION=VALUE: MEASURED MEASURED``; every measurement that is given is asked for."""
        asked, seen = question.split(": ")
        precision, *words = asked.split()
        options: dict[str, Any] = dict(word.split("=", 1) for word in words)
        options |= {name: {"yes": True}.get(value, (value,)) for name, value in options.items() if "exclude" in name}
        made, recipes = choose(tuple(map(measured, seen.split())), precision, **options)
        assert len(recipes) == len(seen.split()) - 1
        yield from (f"{'* ' * trial.chosen}{trial.outcome}" for trial in made.outcome.trials)
        findings: tuple[Finding, ...] = ()
        taken = "nothing instead"
        if made.instead is not None:
            given, findings = made.instead.request, made.instead.findings
            taken = f"{given.precision} instead, with {', '.join(sorted(dict(given.options))) or 'nothing'}"
        yield f"{taken}; asked: {bool(made.outcome.asked)}, reached: {made.outcome.reached}"
        yield from (f"{one.code}: {one.message}" for one in findings)

    check_file(Path(__file__).with_name("remedies.told"), tried)


def test_a_part_is_asked_for_by_its_nodes_and_the_next_part_holds_it(choose: Choose) -> None:
    made, recipes = choose((WRONG, lost(0.4), RIGHT), "vint8")
    asked = instead_of(made)
    assert "/post/Concat_1" in recipes[0] and set(recipes[0]) < set(recipes[1])
    assert asked.request.adapter_options["exclude_node"] == made.outcome.trials[2].nodes
    assert "90.0% of the detections lost" in asked.how and not asked.request.adapter_options["hold_out"]
    assert choose((lost(0.3), RIGHT), "mixed")[1] == [recipes[1]], "the first part was in float already"


def test_what_auto_found_is_made_again_as_it_was_measured(choose: Choose) -> None:
    """Without the samples that were held out; of a wider format what was measured is all there is."""
    made = instead_of(choose((WRONG, RIGHT))[0])
    assert made.request.adapter_options["hold_out"] is True and made.how.startswith("vint8 with ")
    wider, recipes = choose((WRONG, lost(0.4), WRONG, lost(0.01)))
    assert (right := instead_of(wider).right) and right.state is Right.YES and recipes[2:] == ["bf16"]
    assert instead_of(wider).request.adapter_options == {"exclude_nothing": True, "hold_out": True}
    named = instead_of(choose((WRONG, RIGHT), target="strix", exclude_node=("/post/Sub",))[0]).request
    assert named.adapter_options == {"exclude_node": ("/post/Sub",), "hold_out": True} and named.precision == "a8w8"
    assert choose((*[WRONG] * 4, RIGHT), target="strix")[1][2:] == ["a8w8", "a16w8"]
    kept, _ = choose(tuple(lost(0.0, kept) for kept in (800, 960, 900, 970)))
    assert "97.0% of 1000 detections kept" in kept.outcome.trials[-1].outcome


def test_whether_it_is_reached_may_be_unknown_and_a_goal_about_a_measure_is_refused(choose: Choose) -> None:
    assert [choose((seen,))[0].outcome.reached for seen in (RIGHT, None)] == [True, None]
    with pytest.raises(UsageError, match="asks about a measure"):
        choose((RIGHT,), goal="drop<=1%")


@pytest.fixture
def executed(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Execution]:
    """A run in vint8 whose quantizer is there, unless told otherwise, and measures what a function gives."""

    def execute(measure: Callable[..., Measured] | None = None, *, state: str = "ready", **asked: Any) -> Execution:
        size = SimpleNamespace(disk_mb=2460, minutes=5)
        ready = SimpleNamespace(
            state=lambda with_size: SimpleNamespace(state=state if not with_size else ""), spec=size, require=refuse
        )
        monkeypatch.setattr(execution, "quark_environment", lambda _name: ready)
        monkeypatch.setattr(execution, "measure", measure)
        aids = Aids(progress=print, samples=lambda: None)  # type: ignore[arg-type, return-value]
        details = prepared(**{"precision": "vint8", **asked})
        return execution.execute(MODEL.parent, details, None, aids)  # type: ignore[arg-type]

    return execute


def refuse() -> None:
    raise ToolError("it is not installed")


def test_endless_equalization_is_left_out_if_not_asked_for(executed: Callable[..., Execution]) -> None:
    def fail(*_given: object) -> Measured:
        raise EndlessError("quark made no model", why="array is too big")

    instead = executed(fail, options=(("include_sq", "false"),)).instead
    assert instead is not None
    assert instead.request.options == (("include_sq", "false"), ("include_cle", "false"))
    assert [finding.code for finding in instead.findings] == ["VAI303"]
    with pytest.raises(EndlessError):
        executed(fail, options=(("include_cle", "true"),))


@each_row(
    ("precision", "unsure"),
    ("vint8", ""),
    ("auto", "; vint8 is only the first that --precision auto tries"),
    ("bf16", None),
)
def test_without_the_quantizer_nothing_runs(
    executed: Callable[..., Execution], precision: str, unsure: str | None
) -> None:
    made = executed(state="absent", precision=precision, compile=None)
    told = (
        f"is absent: scripts/quantize.py was generated and not run{unsure}; installing it takes 2.5 GB, about 5 minutes"
    )
    assert [finding.message.partition(" ")[2] for finding in made.findings] == ([] if unsure is None else [told])
    assert (made.executed, made.outputs, made.record, made.right, made.instead) == ((), (), {}, None, None)
    if precision != "bf16":
        with pytest.raises(ToolError, match="not installed"):
            executed(state="absent", precision=precision, compile=True)


def test_what_a_run_made_is_on_record(executed: Callable[..., Execution]) -> None:
    output = SimpleNamespace(summary=lambda: {"sqnr_db": float("inf"), "cosine": 0.12345678949})
    result = {"quark": "0.13", "samples": 4, "skipped": [{"file": "a.jpg", "why": "cannot be decoded"}]}
    run = QuarkRun(output="vint8.onnx", result=result, log=Path("log"), seconds=1.0)
    compared: Any = SimpleNamespace(outputs={"output0": output})
    made = executed(lambda *_given: Measured(run=run, comparison=compared))
    assert (made.executed, made.outputs) == (("quantize",), ("vint8.onnx", "logs/quantize.json"))
    assert made.record == {
        "quark": "0.13",
        "samples": 4,
        "random_data": False,
        "quantized_model": "vint8.onnx",
        "quality": {"output0": {"sqnr_db": None, "cosine": 0.123456789}},
    }
    assert [finding.message for finding in made.findings] == ["cannot be decoded; 4 samples were used"]
    assert made.right is None and made.instead is None


def test_both_models_are_compared_sample_by_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    """One of the three samples was not calibrated with, and is a tenth too large."""

    def quark(*_given: object, compare: Path, trial: bool, **_named: object) -> QuarkRun:
        for side in ("baseline", "candidate"):
            (compare / side).mkdir()
            for name in ("a", "held_out_000", "seen_001"):
                values = np.linspace(0.1, 1, 512, dtype=np.float32).reshape(1, 8, 64)
                off = 1.1 if (side, name) == ("candidate", "held_out_000") else 1
                np.savez(compare / side / f"{name}.npz", output0=values * np.float32(off))
        return QuarkRun(output="m.onnx", result={"trial": trial}, log=Path("log"), seconds=1.0)

    monkeypatch.setattr(search, "run_quark", quark)
    made = search.measure(None, Path(), prepared(precision="vint8").draft, print, trial=True)  # type: ignore[arg-type]
    assert made.run.result == {"trial": True} and made.quality is not None and made.comparison is not None
    assert made.quality.samples == 3 and made.quality.unseen is not None and made.quality.unseen.samples == 1
    found = (made.comparison.outputs["output0"].summary()["min_sqnr_db"], made.quality.unseen.verdict.overall_db)
    assert (*found, made.quality.verdict.overall_db) == pytest.approx((20, 20, 20 + 10 * np.log10(3)), abs=1e-3)


@each_row(
    ("quality", "goal", "met"),
    (lost(0.0, 970, 95), "right", True),
    (lost(0.0, 970, 94), "right", False),
    (lost(0.0, 940, 100), "right", False),
    (lost(0.0, 970), "right", True),
    (lost(0.0, db=30.0), "sqnr>=30", True),
    (lost(0.0, db=29.9), "sqnr>=30", False),
    (replace(lost(0.0, db=31.0), unseen=lost(0.0, db=29.0)), "sqnr>=30", False),
    (replace(lost(0.0, db=31.0), unseen=lost(0.0, db=30.0)), "sqnr>=30", True),
    (replace(lost(0.0), unseen=lost(0.2)), "right", False),
    (replace(lost(0.0), unseen=lost(0.1)), "right", True),
)
def test_samples_that_the_quantizer_did_not_see_may_speak_against_it(
    quality: QuantizedQuality, goal: str, met: bool
) -> None:
    assert quality.is_met(parse_goal(goal)) is met


def test_the_counts_stand_beside_the_verdict_and_the_share_beside_the_part(choose: Choose) -> None:
    told = "right, 0.0% of the detections lost, 40.0 dB, 98.0% of 1000 detections kept (20 lost, 20 new; at least 97.1%"
    assert lost(0.0, 980).described == f"{told} on other data)"
    assert lost(0.0, 980, 94).described == f"{told} on other data), 94.0% on 2 samples held out"
    part = choose((WRONG, RIGHT))[0].outcome.trials[1]
    assert (len(part.nodes), f"{part.of_nodes:.4f}", f"{part.of_values:.4f}") == (13, "0.5417", "0.0602")


@each_row(
    ("share", "target", "precision", "wider"),
    (0.01, "vek385", "vint8", ""),
    *((0.05, *row) for row in (("vek385", "vint8", "bf16"), ("strix", "a8w8", "a16w8"), ("strix", "xint8", "a8w8"))),
)
def test_a_yes_that_keeps_less_than_it_might_names_the_wider_precision(
    executed: Callable[..., Execution], share: float, target: str, precision: str, wider: str
) -> None:
    run = QuarkRun(output="vint8.onnx", result={}, log=Path("log"), seconds=1.0)
    right = executed(lambda *_given: Measured(run=run, quality=lost(share)), target=target, precision=precision).right
    words = f"; --precision {wider} is wider, and is judged in the same way" if wider else ""
    assert right is not None and right.state is Right.YES and right.why.endswith(f"40.0 dB{words}")


def test_the_layer_that_loses_most_is_found_in_what_the_quantizer_made(tmp_path: Path) -> None:
    rng, body = np.random.default_rng(0), "[square] s = Mul (x, x) [log] l = Log (s) [layer] y = MatMul (l, w)"
    weight, x = rng.normal(size=(8, 5)), np.exp(rng.normal(size=(16, 1, 8)))
    model = text_model("float[1,8] x", f"{body} [end] p = Softmax (y)", "float[1,5] p", w=weight.astype("f4"))
    onnx.save(model, tmp_path / "m.onnx")
    np.savez(tmp_path / "x.npz", x=x.astype("f4"))
    read = load_model(tmp_path / "m.onnx")
    facts = collect_facts(read)
    runs = PartialRuns(model, [{"x": one} for one in x.astype("f4")], wanted=["p"])
    quantized = insert_qdq(model, min_max_encodings(runs, facts, precision_of("w8a8"))).model
    onnx.save(quantized, tmp_path / "q.onnx")
    given = SimpleNamespace(model=read, request=SimpleNamespace(calibration=tmp_path / "x.npz"))
    draft: Any = SimpleNamespace(facts=facts, situation=given)
    part = search._costly_part(draft, tmp_path / "q.onnx", lambda line: None)
    assert part is not None and part.names == ("square", "log")
    assert search._costly_part(draft, tmp_path / "none.onnx", lambda line: None) is None
