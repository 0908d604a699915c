"""The bench on which advice is tried: every rule with its cases, the words of its advice, and deploykit itself."""

from __future__ import annotations

import importlib.util
import json
import re
from collections.abc import Callable, Mapping
from contextlib import redirect_stdout
from dataclasses import dataclass, field
from functools import cache
from io import StringIO
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from onnx import ModelProto

from deploykit.answers.rule_pages import all_rules
from deploykit.backend.backend import Request
from deploykit.cli import cli
from deploykit.cli.frame import run
from deploykit.findings import Finding
from deploykit.findings.rules import Rule
from deploykit.flow.pipeline import check
from deploykit.flow.rules import CORE_REGISTRIES
from deploykit.model import wrap_proto
from deploykit.model.collect import collect_facts

TESTS = Path(__file__).parents[1]
_CODE = re.compile(r"[A-Z]{2,3}\d{3}")


@cache
def module_at(path: str) -> ModuleType:
    """A module of the tests, by its path in their folder."""
    name = "advice_" + "_".join(Path(path).with_suffix("").parts)
    spec = importlib.util.spec_from_file_location(name, TESTS / path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@cache
def _cases() -> Mapping[str, tuple[Any, Any]]:
    found: dict[str, tuple[Any, Any]] = {}
    for path in sorted(TESTS.rglob("test_*.py")):
        if re.search(r"^CASES\b", path.read_text("utf-8"), re.MULTILINE):
            mapping = module_at(str(path.relative_to(TESTS))).CASES
            if isinstance(mapping, Mapping):
                found |= {str(code): pair for code, pair in mapping.items() if _CODE.fullmatch(str(code))}
    return found


@dataclass(frozen=True, slots=True)
class Advice:
    """A key of WAYS: ``CODE way``, with ``-> CODE`` where that finding says why the way does not help here."""

    key: str

    @property
    def code(self) -> str:
        """The rule whose advice it is."""
        return self.key.partition(" ")[0]

    @property
    def refusal(self) -> str:
        """The code of the finding that says why the way does not help here; "" where it must help."""
        return self.key.partition(" -> ")[2]


@cache
def _rules() -> Mapping[str, Rule[Any]]:
    return {entry.rule.code: entry.rule for entry in all_rules(CORE_REGISTRIES)}


@cache
def _found(code: str) -> tuple[Finding, ...]:
    return tuple(_look(code, _cases()[code][0]))


def _look(code: str, case: Any) -> list[Finding]:
    if callable(case):
        case = case()
    if isinstance(case, ModelProto):
        case = collect_facts(wrap_proto(case, path=TESTS / "model" / "my model.onnx"))
    elif isinstance(case, Mapping):
        case = module_at("qualcomm/conftest.py").build(case)
    return list(_rules()[code].run(case))


@dataclass(frozen=True, slots=True)
class Bench:
    """What a way out is tried with."""

    folder: Path
    rules: Mapping[str, Rule[Any]] = field(
        default_factory=lambda: {e.rule.code: e.rule for e in all_rules(CORE_REGISTRIES)}
    )
    aimet: Path = TESTS / "data/aimet"
    zoo: Path = TESTS / "data/zoo"
    quark: Path = TESTS / "data/quark"

    def module(self, path: str) -> Any:
        """A module of the tests, whose builders of cases are used."""
        return module_at(path)

    def trigger(self, code: str) -> Any:
        """The case that a rule speaks about."""
        return _cases()[code][0]

    def clean(self, code: str) -> Any:
        """The case about which it keeps silent."""
        return _cases()[code][1]

    def look(self, code: str, case: Any) -> list[Finding]:
        """What one rule finds in a case of any of the forms in which the test modules have them."""
        return _look(code, case)

    def found(self, code: str) -> tuple[Finding, ...]:
        """What a rule finds in its triggering case."""
        return _found(code)

    def follow(self, advice: Advice, ways: Mapping[str, Callable[[Bench], Any]]) -> None:
        """Do what is advised; afterwards the rule finds nothing open, or what it says why not is found.

        A way answers with a case for the rule, with the findings of a whole run, or with None when it has asserted
        itself what the advice brings.
        """
        answer = ways[advice.key](self)
        if answer is None:
            return
        whole = isinstance(answer, (list, tuple)) and all(isinstance(finding, Finding) for finding in answer)
        found = list(answer) if whole else self.look(advice.code, answer)
        left = [finding for finding in found if finding.code == advice.code and finding.handled is None]
        if advice.refusal:
            assert any(finding.code == advice.refusal for finding in found)
        else:
            refused = [finding for finding in found if finding.code == "DK208"]
            assert not [*left, *refused], [finding.message for finding in (*left, *refused)]

    def ask(self, model: Path | ModelProto, target: str = "sm8650", **request: Any) -> tuple[Finding, ...]:
        """The findings of ``deploykit check``; nothing is compiled."""
        return check(self.request(model, target, **request))

    def request(self, model: Path | ModelProto, target: str = "sm8650", **request: Any) -> Request:
        """A request for a model that is a file, or becomes one."""
        path = self.saved(model) if isinstance(model, ModelProto) else model
        return Request(model=path, target=target, **{"backend": "qnn-htp", "compile": False, **request})

    def saved(self, model: ModelProto) -> Path:
        """The model as a file."""
        path = self.folder / f"model{len(list(self.folder.iterdir()))}.onnx"
        path.write_bytes(model.SerializeToString())
        return path

    def run(self, *words: str, status: int = 0) -> Any:
        """What a command answers in JSON; ``status`` is the exit status that it must end with."""
        return json.loads(self.text(*words, "--json", status=status))

    def text(self, *words: str, status: int = 0) -> str:
        """What a command says."""
        out = StringIO()
        with redirect_stdout(out):
            ended = run(cli, [*words])
        assert ended == status, out.getvalue()[-2000:]
        return out.getvalue()


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Each test module tries the ways that it has."""
    if "advice" in metafunc.fixturenames:
        ways = metafunc.module.WAYS
        slow = getattr(metafunc.module, "SLOW", ())
        marks = {key: [pytest.mark.heavy] if key in slow else [] for key in ways}
        metafunc.parametrize("advice", [pytest.param(Advice(key), id=key, marks=marks[key]) for key in ways])
