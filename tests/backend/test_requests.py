"""What a backend is asked, what it claims, and who gives a second opinion."""

import inspect
from collections.abc import Sequence
from dataclasses import fields, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import deploykit
from deploykit.answers.rule_pages import all_rules
from deploykit.backend import conformance
from deploykit.backend.backend import Request
from deploykit.backend.opinions import Compiler, Opinion, Opinions, OpinionState
from deploykit.backend.plugins import all_options, checked_request, load_backend, load_backends, own_options
from deploykit.backend.requests import CORE_OPTIONS, RESERVED_NAMES, RequestOptions, make_request
from deploykit.errors import UnknownTargetError, UsageError
from deploykit.findings import Answerer, Claim, Confidence, Severity, SubjectKind
from deploykit.findings.rules import Found, Registry
from deploykit.flow.rules import core_registries
from made_findings import a_finding
from stub_backend import StubBackend
from tables import each_row

OWN_KEYWORDS = {
    "package": {"model", "target", "out", "force", "templates", "sbom", "link", "progress"},
    "plan": {"model", "target", "progress"},
    "check": {"model", "target"},
}


def refusal(**given: Any) -> UsageError:
    """What ``plan`` says about arguments, for a model that does not exist."""
    with pytest.raises(UsageError) as caught:
        deploykit.plan("absent.onnx", **{"target": "sm8650", **given})
    return caught.value


def test_every_core_option_is_a_keyword_of_the_api() -> None:
    assert set(RequestOptions.__annotations__) == {spec.name for spec in CORE_OPTIONS}


@pytest.mark.parametrize("name", OWN_KEYWORDS)
def test_a_function_of_the_api_has_its_own_keywords_and_those_of_a_request(name: str) -> None:
    parameters = inspect.signature(getattr(deploykit, name)).parameters
    explicit = {key for key, value in parameters.items() if value.kind is not inspect.Parameter.VAR_KEYWORD}
    assert explicit == OWN_KEYWORDS[name]
    assert parameters["request"].annotation == "Unpack[RequestOptions]"


def test_every_core_option_is_a_field_of_the_request() -> None:
    names = {spec.name for spec in CORE_OPTIONS} - {"samples"} | {"keep_samples"}
    assert {field.name for field in fields(Request)} == names | {"model", "target", "adapter_options"}


def test_a_request_of_everything() -> None:
    given: Any = {"options": {"vtcm": 4, "dlbc": "1"}, "sdk": "2.33", "encodings": "e.json", "inputs": "x=0..1"}
    given |= {"rewrite": ["a", "b"], "samples": False, "lpbq": True}  # the last is a backend's own
    known: Any = {"sdk": "2.33", "encodings": Path("e.json"), "inputs": ("x=0..1",), "rewrite": ("a", "b")}
    known |= {"keep_samples": False, "options": (("vtcm", "4"), ("dlbc", "1")), "adapter_options": {"lpbq": True}}
    assert make_request("m.onnx", "sm8650", **given) == Request(model=Path("m.onnx"), target="sm8650", **known)
    assert make_request("m.onnx", "t") == Request(model=Path("m.onnx"), target="t")


@each_row(
    ("given", "says"),
    ({"sdk": 2.33}, "--sdk 2.33: text is expected"),
    ({"mixed": "autoo"}, "--mixed autoo: one of auto, fallback, segments, refuse is expected"),
    ({"rewrite": 3}, "--rewrite 3"),
    ({"compile": "yes"}, "--compile yes: true or false is expected"),
    ({"calibration": ["a"]}, r"--calibration \['a'\]: a path is expected"),
)
def test_a_core_option_of_the_wrong_type_is_refused(given: dict[str, Any], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        make_request("m.onnx", "sm8650", **given)


def test_a_misspelt_name_is_refused_before_anything_is_read() -> None:
    error = refusal(enodings="e.json")
    assert error.what == "enodings: neither an option of qnn-htp nor of deploykit"
    assert "encodings" in error.next
    assert "did you mean route" in refusal(rute="x").next
    assert "lpbq of ort-qnn" in refusal(lpqb=True).next
    assert "deploykit package --help-backend" in refusal(zzzzzzzz=1).next


def test_the_option_of_another_backend_is_refused_by_its_owners_name() -> None:
    error = refusal(lpbq=True)
    assert error.what == "--lpbq: not an option of qnn-htp" and "ort-qnn" in error.why
    assert "DEPLOYKIT_LPBQ" in error.next
    assert "vitis-ai" in refusal(exclude_node=("a",)).why
    assert "qnn-htp" in refusal(target="vek385", parts=2).why


def test_the_target_is_judged_first() -> None:
    with pytest.raises(UnknownTargetError, match="sm9999"):
        deploykit.plan("absent.onnx", target="sm9999", enodings="e.json")  # type: ignore[call-arg]


@pytest.mark.parametrize("backend", load_backends(), ids=lambda backend: backend.id)
def test_a_checked_request_has_every_option_of_its_backend_and_no_other(backend: Any) -> None:
    checked = checked_request(Request(model=Path("m"), target="t"), backend)
    assert set(checked.adapter_options) == {spec.name for spec in backend.options()}
    assert checked_request(checked, backend) == checked
    for spec in all_options():
        if spec.name not in checked.adapter_options:
            with pytest.raises(UsageError, match=spec.flag):
                own_options(backend, {spec.name: spec.unset})


def test_defaults_are_those_of_the_specs() -> None:
    assert own_options(load_backend("ort-qnn"), {})["time_limit"] == 1800.0
    assert own_options(load_backend("vitis-ai"), {}) == {
        "exclude_node": (), "exclude_nothing": False, "exclude_subgraph": (), "hold_out": False, "keep_float16": False,
        "random_data": False,
    }  # fmt: skip


@pytest.mark.parametrize("asked", [{"mixed": "segments"}, {"mixed": "fallback"}])
def test_a_backend_that_mixes_nothing_says_so(asked: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="not for vitis-ai"):
        checked_request(Request(model=Path("m"), target="t", **asked), load_backend("vitis-ai"))
    kept = checked_request(Request(model=Path("m"), target="t", mixed="refuse"), load_backend("vitis-ai"))
    assert kept.mixed == "refuse"
    assert checked_request(Request(model=Path("m"), target="t", **asked), load_backend("qnn-htp"))


def test_no_backend_takes_a_name_of_the_core() -> None:
    assert not RESERVED_NAMES & {spec.name for spec in all_options()}


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
    "ORT016": "a norm that is not finalized",
    "QNN232": "16-bit weights per channel",
    "QNN234": "sizes of blocks",
    "QNN247": "types of LayerNormalization",
    "QNN249": "an int32 constant of Add",
    "QNN252": "LPBQ weights of Conv",
}


def test_every_claim_is_one_about_what_is_taken() -> None:
    claims = {one.rule.code: one.rule.claim for one in all_rules(core_registries()) if one.rule.claim is not None}
    assert {code for code, claim in claims.items() if claim.answered_by is Answerer.COMPILER} == COMPILER.keys()
    assert {code for code, claim in claims.items() if claim.answered_by is Answerer.TOOLS} == TOOLS.keys()


CLAIM = Claim(answered_by=Answerer.COMPILER, confidence=Confidence.REPORTED)
SURER = Claim(answered_by=Answerer.COMPILER, confidence=Confidence.OBSERVED, seen_with="2.51")


@each_row(
    ("of_rule", "found", "wanted"),
    (None, {}, None),
    (CLAIM, {}, CLAIM),
    (CLAIM, {"claim": SURER}, SURER),
    (None, {"claim": SURER}, None),
    (CLAIM, {"claim": SURER, "by_trial": False}, None),
)
def test_a_row_may_make_a_claim_surer_but_only_a_rule_makes_one(
    of_rule: Claim | None, found: dict[str, Any], wanted: Claim | None
) -> None:
    registry: Registry[None] = Registry("x")

    @registry.rule("XX001", "x", "error", sources=["s"], claim=of_rule)
    def check(context: None) -> list[Found]:
        return [Found(kind=SubjectKind.MODEL, name="m", message="m", **found)]

    assert [finding.claim for finding in registry.run(None)] == [wanted]


@each_row(
    ("compiler", "problems"),
    (Compiler(name="a compiler", release="1.0"), 0),
    (Compiler(missing="not installed"), 0),
    (Compiler(), 1),
    (Compiler(name="a compiler"), 1),
    (Compiler(name="a compiler", release="1.0", missing="not installed"), 1),
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


CLAIM_OF_OPINIONS = Claim(answered_by=Answerer.COMPILER, confidence=Confidence.REPORTED, seen_with="1.0")
FINDING = a_finding(message="n is not taken", hint="replace it", claim=CLAIM_OF_OPINIONS)


def opinions(state: OpinionState, *, unasked: str = "", missing: str = "") -> Opinions:
    compiler = Compiler(name="the compiler of 2.0", release="2.0", missing=missing)
    opinion = Opinion.on(FINDING, state, "a reason", "1 operator")
    return Opinions(compiler=compiler, opinions=(opinion,), unasked=unasked)


def test_refuted_for_the_very_release_it_is_a_note() -> None:
    (found,) = opinions(OpinionState.REFUTED).applied([FINDING])
    assert (found.severity, found.blocks, found.hint) == ("info", False, "")
    assert found.message == "n is not taken: refuted by the compiler of 2.0"
    assert found.evidence["second_opinion"]["scope"] == "1 operator"


def test_refuted_by_another_release_it_is_a_warning_that_says_so() -> None:
    (found,) = opinions(OpinionState.REFUTED, unasked="SDK 1.5").applied([FINDING])
    assert (found.severity, found.hint) == ("warning", "replace it")
    assert found.message.endswith("refuted by the compiler of 2.0; SDK 1.5 itself was not asked")


def test_confirmed_it_is_observed() -> None:
    (found,) = opinions(OpinionState.CONFIRMED).applied([FINDING])
    assert found.blocks and found.to_json()["confidence"] == "observed"
    assert found.claim is not None and found.claim.seen_with == "2.0"
    assert FINDING.to_json()["confidence"] == "reported"
    made, other = opinions(OpinionState.CONFIRMED), Compiler(name="another", release="3.0")
    (found,) = replace(made, opinions=(replace(made.opinions[0], by=other),)).applied([FINDING])
    assert found.message.endswith("(confirmed by another)") and found.claim and found.claim.seen_with == "3.0"


def test_open_it_stays_with_the_reason() -> None:
    (found,) = opinions(OpinionState.OPEN).applied([FINDING])
    assert found.blocks and found.message == FINDING.message and found.claim == FINDING.claim
    assert found.evidence["second_opinion"]["why"] == "a reason"


@pytest.mark.parametrize("state", OpinionState)
def test_twice_is_as_good_as_once_and_nothing_else_changes(state: OpinionState) -> None:
    made = opinions(state)
    once = made.applied([FINDING])
    assert made.applied(once) == once
    for change in (
        {"claim": None},
        {"handled": "rewritten"},
        {"code": "XX002"},
        {"subject": replace(FINDING.subject, name="m")},
        {"severity": Severity.WARNING},
    ):
        other = replace(FINDING, **change)
        assert made.applied([other]) == (other,)
    assert opinions(state, missing="not installed").applied([FINDING]) == (FINDING,)
