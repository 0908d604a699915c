"""Which part is left in float, from given measurements: the first that is right, else the best, else none."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from deploykit.contract.backend import Request, Situation
from deploykit.contract.targets import find_device
from deploykit.errors import ToolError
from deploykit.findings import Finding
from deploykit.graph import load_model
from deploykit.graph.collect import collect_facts
from deploykit.numerics.thresholds import Against, Measure
from deploykit.numerics.verdicts import Context, Verdict
from deploykit_vitis_ai import backend, configs, remedy
from deploykit_vitis_ai.draft import make_draft
from deploykit_vitis_ai.measuring import Measured
from deploykit_vitis_ai.prepare import Prepared
from deploykit_vitis_ai.remedy import Remedy, find_remedy
from deploykit_vitis_ai.runner import QuarkRun
from deploykit_vitis_ai.targets import resolve

MODEL = Path(__file__).parents[1] / "data" / "quark" / "fp32.onnx"
CONTEXT = Context(label="given", count=8, against=Against.FLOAT, bits=0, thresholds=None)


def verdict(lost: float, *, db: float = 40.0) -> Verdict:
    number = CONTEXT.number("output0", "detections", Measure.LOST, lost, where="at 0.25")
    return Verdict(right=lost <= 0.1, numbers=(number,), overall_db=db)


def measured(judged: Verdict | None) -> Measured:
    run = QuarkRun(output="artifacts/m.onnx", result={}, log=Path("log"), seconds=1.0)
    return Measured(run=run, verdict=judged, samples=8)


@pytest.fixture
def package(tmp_path: Path) -> Path:
    (tmp_path / "config").mkdir()
    (tmp_path / configs.RECIPE).write_text(json.dumps({"calibration": {"kind": "arrays", "files": []}}))
    return tmp_path


def chosen(
    monkeypatch: pytest.MonkeyPatch, package: Path, given: Verdict | None, *trials: Verdict | None, **options: Any
) -> tuple[Remedy, list[str]]:
    """What is found when the trials measure these, one after the other; and the nodes of each trial's recipe."""
    left: Iterator[Verdict | None] = iter(trials)
    recipes: list[str] = []

    def measure(_environment: object, copy: Path, *_rest: object, **_named: object) -> Measured:
        recipes.append(json.loads((copy / configs.RECIPE).read_text())["attributes"]["nodes_to_exclude"])
        judged = next(left)
        if judged is None:
            raise ToolError("the quantizer gave up")
        return measured(judged)

    monkeypatch.setattr(remedy, "measure", measure)
    precision = options.pop("precision", "vint8")
    request = Request(
        model=MODEL, target="vek385", precision=precision, calibration=Path("data"), adapter_options=options
    )
    model = load_model(MODEL)
    target = resolve(find_device(backend.devices(), "vek385"), None)
    situation = Situation(request=request, model=model, facts=collect_facts(model), encodings=None, target=target)
    details = Prepared(draft=make_draft(situation))
    return find_remedy(None, package, details, measured(given), lambda line: None), recipes  # type: ignore[arg-type]


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
    assert chosen(monkeypatch, package, given) == (Remedy(), [])


@pytest.mark.parametrize("options", [{"exclude_node": ("/post/Sub",)}, {"exclude_nothing": True}])
def test_what_the_user_named_is_the_users_business(
    options: dict[str, Any], monkeypatch: pytest.MonkeyPatch, package: Path
) -> None:
    assert chosen(monkeypatch, package, verdict(0.9), **options) == (Remedy(), [])


def test_mixed_goes_on_from_what_it_found(monkeypatch: pytest.MonkeyPatch, package: Path) -> None:
    """The post-processing is in float already, so only the last layers are tried with it."""
    made, recipes = chosen(monkeypatch, package, verdict(0.3), verdict(0.0), precision="mixed")
    assert len(recipes) == 1
    assert "/head/box/Conv" in recipes[0]
    assert made.instead is not None
