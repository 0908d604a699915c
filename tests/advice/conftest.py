"""The bench on which advice is tried: every rule with its cases, the words of its advice, and deploykit itself."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import redirect_stdout
from dataclasses import dataclass
from functools import cache
from io import StringIO
from pathlib import Path
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
from deploykit.flow.rules import core_registries
from deploykit.model.collect import collect_facts
from deploykit.model.load import wrap_proto
from rule_cases import cases, module_at

TESTS = Path(__file__).parents[1]


@cache
def _rules() -> Mapping[str, Rule[Any]]:
    return {entry.rule.code: entry.rule for entry in all_rules(core_registries())}


@dataclass(frozen=True, slots=True)
class Bench:
    """What a way out is tried with."""

    folder: Path
    aimet: Path = TESTS / "data/aimet"
    zoo: Path = TESTS / "data/zoo"
    quark: Path = TESTS / "data/quark"

    def module(self, path: str) -> Any:
        """A module of the tests, whose builders of cases are used."""
        return module_at(path)

    def trigger(self, code: str) -> Any:
        """The case that a rule speaks about."""
        return cases()[code][0]

    def look(self, code: str, case: Any) -> list[Finding]:
        """What one rule finds in a case of any of the forms in which the test modules have them."""
        if callable(case):
            case = case()
        if isinstance(case, ModelProto):
            case = collect_facts(wrap_proto(case, path=TESTS / "model" / "my model.onnx"))
        elif isinstance(case, Mapping):
            case = module_at("qualcomm/conftest.py").build(case)
        return list(_rules()[code].run(case))

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

    def run(self, *words: str) -> None:
        """A command that must end well."""
        out = StringIO()
        with redirect_stdout(out):
            ended = run(cli, [*words])
        assert ended == 0, out.getvalue()[-2000:]


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)
