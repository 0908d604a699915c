"""Which rules a compiler can answer: written down here, so that another one is thought about before it is let in."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from deploykit.answers.rule_pages import all_rules
from deploykit.backend import conformance
from deploykit.backend.opinions import Compiler
from deploykit.findings import Answerer, Claim, Confidence, SubjectKind
from deploykit.findings.rules import Found, Registry
from deploykit.flow.rules import CORE_REGISTRIES
from stub_backend import StubBackend

COMPILER = {
    "QNN200": "ranks",
    "QNN204": "memory for one row",
    "QNN206": "the axis of a norm",
    "QNN207": "ranks of operators",
    "QNN208": "operators and attributes that are refused",
    "QNN211": "forms of RoiAlign",
}
TOOLS = {
    "DK002": "sizes that the tools may settle; never those that values decide",
    "DK003": "branches that the tools may resolve",
    "DK016": "operators on quantized integers",
    "ORT003": "float8 weights",
    "ORT011": "operators that ONNX Runtime may make one of",
    "ORT016": "a norm that is not finalized",
    "QNN232": "16-bit weights per channel",
    "QNN234": "sizes of blocks",
    "QNN247": "types of LayerNormalization",
    "QNN249": "an int32 constant of Add",
    "QNN252": "LPBQ weights of Conv",
}


def test_every_claim_is_one_about_what_is_taken() -> None:
    claims = {entry.rule.code: entry.rule.claim for entry in all_rules(CORE_REGISTRIES) if entry.rule.claim is not None}
    assert {code for code, claim in claims.items() if claim.answered_by is Answerer.COMPILER} == COMPILER.keys()
    assert {code for code, claim in claims.items() if claim.answered_by is Answerer.TOOLS} == TOOLS.keys()


CLAIM = Claim(answered_by=Answerer.COMPILER, confidence=Confidence.REPORTED)
SURER = Claim(answered_by=Answerer.COMPILER, confidence=Confidence.OBSERVED, seen_with="2.51")


@pytest.mark.parametrize(
    ("of_rule", "found", "wanted"),
    [
        (None, {}, None),
        (CLAIM, {}, CLAIM),
        (CLAIM, {"claim": SURER}, SURER),
        (None, {"claim": SURER}, None),
        (CLAIM, {"claim": SURER, "by_trial": False}, None),
    ],
)
def test_a_row_may_make_a_claim_surer_but_only_a_rule_makes_one(
    of_rule: Claim | None, found: dict[str, Any], wanted: Claim | None
) -> None:
    registry: Registry[None] = Registry("x")

    @registry.rule("XX001", "x", "error", what="", why="", fix="f", sources=["s"], claim=of_rule)
    def check(context: None) -> list[Found]:
        return [Found(kind=SubjectKind.MODEL, name="m", message="m", **found)]

    assert [finding.claim for finding in registry.run(None)] == [wanted]


@pytest.mark.parametrize(
    ("compiler", "problems"),
    [
        (Compiler(name="a compiler", release="1.0"), 0),
        (Compiler(missing="not installed"), 0),
        (Compiler(), 1),
        (Compiler(name="a compiler"), 1),
        (Compiler(name="a compiler", release="1.0", missing="not installed"), 1),
    ],
)
def test_a_third_partys_compiler_has_a_name_or_there_is_a_reason(compiler: Compiler, problems: int) -> None:
    device = SimpleNamespace(id="d", backends=(StubBackend.id,), facts={})

    class Asked(StubBackend):
        def devices(self) -> Any:
            return (device,)

        def compilers(self, device: Any, sdk: str) -> Sequence[Compiler]:
            return (compiler,)

    found = [problem for problem in conformance._devices(Asked()) if problem.startswith("compiler")]
    assert len(found) == problems
