"""What was found in a model is taken from an earlier run where nothing that it follows from is another."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import deploykit
from deploykit.backend.backend import Request, Situation
from deploykit.backend.kept import Kept
from deploykit.backend.noted_options import NotedOptions
from deploykit.backend.plugins import load_backend
from deploykit.findings import Finding, Severity, Subject, SubjectKind
from deploykit.flow.reading import read_situation
from deploykit.flow.starting import Judged, Start, noting, start_from
from deploykit.system import answers, remembered

DETR = Path(__file__).parents[1] / "data" / "zoo" / "detr"


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DEPLOYKIT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(answers, "is_off", remembered.is_off)


class Judge:
    """A judge that looks at one option, and at the number of nodes where it ``minds``; it counts what it is asked."""

    def __init__(self, option: str | None = None, *, minds: bool = False) -> None:
        self.option, self.minds, self.asked = option, minds, 0

    def __call__(self, situation: Situation) -> Judged:
        self.asked += 1
        value = None if self.option is None else situation.request.adapter_options.get(self.option)
        nodes = len(situation.facts.nodes)
        found = Finding(
            code="DK000",
            slug="large",
            severity=Severity.WARNING if self.minds and nodes >= 735 else Severity.INFO,
            subject=Subject(kind=SubjectKind.MODEL, name="model"),
            message=f"{nodes} nodes, {value}",
        )
        return Judged(core=(), planned=(found,))


def given(**fields: Any) -> Situation:
    options: Mapping[str, Any] = fields.pop("adapter_options", {})
    encodings = DETR / "w8a16.v1.0.0.encodings"
    request = Request(
        model=DETR / "model.onnx", target="sm8650", backend="qnn-htp", sdk="2.44", encodings=encodings, **fields
    )
    _, situation = read_situation(request)
    return replace(situation, request=replace(situation.request, adapter_options=options))


def started(judge: Callable[[Situation], Judged], situation: Situation) -> Start:
    kept = Kept()
    return start_from(load_backend("qnn-htp"), noting(situation, kept), kept, judge)


def test_the_same_model_is_judged_once() -> None:
    judge = Judge(minds=True)
    first = started(judge, given())
    asked = judge.asked
    again = started(judge, given())
    assert judge.asked == asked > 0
    assert first.steps == again.steps != ()
    assert first.situation.model.proto == again.situation.model.proto
    assert (first.given, first.core) == (again.given, again.core)
    assert again.situation.rewritten and len(again.situation.facts.nodes) == len(first.situation.facts.nodes)


def test_an_option_that_nobody_looked_at_asks_nothing_anew() -> None:
    judge = Judge("route")
    started(judge, given(adapter_options={"route": None, "other": 1}))
    asked = judge.asked
    started(judge, given(adapter_options={"route": None, "other": 2}))
    assert judge.asked == asked


def test_an_option_that_was_looked_at_does() -> None:
    judge = Judge("route")
    started(judge, given(adapter_options={"route": "a"}))
    asked = judge.asked
    found = started(judge, given(adapter_options={"route": "b"}))
    assert judge.asked > asked
    assert found.given.planned[0].message.endswith("b")


@pytest.mark.parametrize("fields", [{"precision": "w8a16"}, {"no_rewrite": ("simplify",)}, {"mixed": "refuse"}])
def test_another_wish_is_another_question(fields: dict[str, Any]) -> None:
    judge = Judge()
    started(judge, given())
    asked = judge.asked
    started(judge, given(**fields))
    assert judge.asked > asked


def test_what_lies_under_a_path_is_read_each_time(tmp_path: Path) -> None:
    judge = Judge("also")
    for _ in range(2):
        before = judge.asked
        started(judge, given(adapter_options={"also": tmp_path / "second.onnx"}))
        assert judge.asked > before


def test_no_rule_sees_what_is_asked_about_running_and_writing() -> None:
    seen: list[Request] = []

    def judge(situation: Situation) -> Judged:
        seen.append(situation.request)
        return Judge()(situation)

    asked = given(compile=False, keep_samples=False, second_opinion=False)
    start = started(judge, asked)
    assert {(one.compile, one.keep_samples, one.second_opinion) for one in seen} == {(None, True, True)}
    went_on = start.situation.request
    assert (went_on.compile, went_on.keep_samples, went_on.second_opinion) == (False, False, False)


def test_a_backend_that_promises_nothing_is_asked_each_time() -> None:
    class Other:
        id = "qnn-htp"

    judge: Any = Judge()
    for _ in range(2):
        before, kept = judge.asked, Kept()
        other: Any = Other()
        start_from(other, noting(given(), kept), kept, judge)
        assert judge.asked > before


def test_other_tables_are_another_question(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, judge = tmp_path / "tables", Judge()
    folder.mkdir()
    monkeypatch.setattr(type(load_backend("qnn-htp")), "decided_from", lambda _self: (folder,))
    for text in ("a = 1", "a = 2"):
        (folder / "t.toml").write_text(text)
        answers._makers.cache_clear()
        answers._content.cache_clear()
        before = judge.asked
        started(judge, given())
        assert judge.asked > before


@pytest.mark.parametrize("look", [list, len, dict, lambda options: options == {}], ids=["list", "len", "dict", "equal"])
def test_whoever_goes_through_all_options_looked_at_all(look: Callable[[NotedOptions], object]) -> None:
    looked_at: set[str] = set()
    look(NotedOptions({"a": 1, "b": 2}, looked_at))
    assert looked_at == {"a", "b"}


def test_an_option_is_looked_at_where_it_is_missing_too() -> None:
    options = NotedOptions({"a": 1}, set())
    assert options.get("b") is None and "c" not in options
    assert options.looked_at == {"b", "c"}
    assert options.values_of(frozenset("ab")) == {"a": 1, "b": None} and options.looked_at == {"b", "c"}


def test_strictness_reaches_the_rules_that_look_at_it() -> None:
    """An operand of 16 bits that is narrowed is a warning, and an error for who is strict (HTP v69)."""

    def severities(*, strict: bool) -> set[str]:
        encodings = DETR / "w8a16.v1.0.0.encodings"
        options: dict[str, Any] = {"backend": "ort-qnn", "encodings": encodings, "strict_precision": strict}
        found = deploykit.check(DETR / "model.onnx", target="sm8450", **options)
        return {finding.severity.value for finding in found if finding.code == "ORT008"}

    assert [severities(strict=strict) for strict in (False, True, False, True)] == [{"warning"}, {"error"}] * 2
