"""What a backend is asked, what it claims, and who gives a second opinion."""

import inspect
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import fields, replace

import deploykit
from deploykit.backend.backend import Request
from deploykit.backend.opinions import Compiler, Opinion, Opinions, OpinionState
from deploykit.backend.plugins import all_options
from deploykit.backend.requests import CORE_OPTIONS, RESERVED_NAMES, RequestOptions, make_request
from deploykit.errors import UsageError
from deploykit.findings import Answerer, Claim, Confidence, Finding, Severity
from deploykit.flow.choose import ChosenWay
from deploykit.flow.read import read_situation
from deploykit.flow.rules import RULES
from made_findings import a_finding
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


def test_no_backend_takes_a_name_of_the_core() -> None:
    assert not RESERVED_NAMES & {spec.name for spec in all_options()}


CLAIM_OF_OPINIONS = Claim(answered_by=Answerer.COMPILER, confidence=Confidence.REPORTED, seen_with="1.0")
FINDING = a_finding(message="n is not taken", hint="replace it", claim=CLAIM_OF_OPINIONS)
OPINION = {"code": "DK901", "subject": "n", "why": "a reason", "scope": "1 operator"}
CNN = Path(__file__).parents[1] / "data/aimet/cnn/model.onnx"


def opinions(state: OpinionState, *, unasked: str = "", missing: str = "") -> Opinions:
    compiler = Compiler(name="the compiler of 2.0", release="2.0", missing=missing)
    opinion = Opinion.on(FINDING, state, "a reason", "1 operator")
    return Opinions(compiler=compiler, opinions=(opinion,), unasked=unasked)


def test_an_opinion_changes_what_blocks_and_claims_something() -> None:
    note, told = replace(FINDING, severity=Severity.INFO, hint=""), "n is not taken: refuted by the compiler of 2.0"
    (found,) = opinions(OpinionState.REFUTED).applied([FINDING])
    evidence = {"second_opinion": {**OPINION, "state": "refuted"}}
    assert found == replace(note, message=told, evidence=evidence)
    (found,) = opinions(OpinionState.REFUTED, unasked="qairt 1.0").applied([FINDING])
    message = f"{told}; qairt 1.0 itself was not asked"
    assert found == replace(FINDING, severity=Severity.WARNING, message=message, evidence=evidence)
    (found,) = opinions(OpinionState.OPEN).applied([FINDING])
    assert found == replace(FINDING, evidence={"second_opinion": {**OPINION, "state": "open"}})
    seen = replace(CLAIM_OF_OPINIONS, confidence=Confidence.OBSERVED, seen_with="2.0")
    evidence = {"second_opinion": {**OPINION, "state": "confirmed"}}
    message = "n is not taken (confirmed by the compiler of 2.0)"
    confirmed = replace(FINDING, message=message, claim=seen, evidence=evidence)
    made, other = opinions(OpinionState.CONFIRMED), Compiler(name="another", release="3.0")
    assert made.applied([FINDING]) == (confirmed,) == made.applied([confirmed]), "twice does no harm"
    (found,) = replace(made, opinions=(replace(made.opinions[0], by=other),)).applied([FINDING])
    assert found.message.endswith("(confirmed by another)") and found.claim and found.claim.seen_with == "3.0"
    assert found.evidence["second_opinion"]["by"] == "another"


@each_row(
    ("missing", "finding"),
    ("", replace(FINDING, severity=Severity.WARNING)),
    ("", FINDING.with_handled("rewritten")),
    ("", replace(FINDING, claim=None)),
    ("", replace(FINDING, code="DK902")),
    ("", a_finding(name="m", claim=CLAIM_OF_OPINIONS)),
    ("not installed", FINDING),
)
def test_what_nobody_was_asked_about_stays(missing: str, finding: Finding) -> None:
    for state in OpinionState:
        assert opinions(state, missing=missing).applied([finding]) == (finding,)


COMPILER, OTHER = Compiler(name="QAIRT 2.36", release="2.36"), Compiler(name="QAIRT 2.51", release="2.51")


def asked(state: OpinionState, subject: str, by: Compiler | None = None) -> Opinion:
    return Opinion(code="QNN208", subject=subject, state=state, why="", by=by)


@each_row(
    ("compiler", "opinions", "message", "hint"),
    (COMPILER, [asked(OpinionState.REFUTED, "a")], "QAIRT 2.36 was asked about 1 finding: refuted QNN208 a", ""),
    (
        COMPILER,
        [asked(state, name) for name, state in zip("abcdef", [*OpinionState, *[OpinionState.OPEN] * 3], strict=True)],
        "QAIRT 2.36 was asked about 6 findings: refuted QNN208 a; confirmed QNN208 b; "
        "open QNN208 c, QNN208 d, QNN208 e and 1 more",
        "",
    ),
    (
        COMPILER,
        [asked(OpinionState.CONFIRMED, "a", COMPILER), *(asked(s, s, OTHER) for s in OpinionState)],
        "QAIRT 2.36 was asked about 4 findings: confirmed QNN208 a by QAIRT 2.36; refuted QNN208 refuted by "
        "QAIRT 2.51, confirmed QNN208 confirmed by QAIRT 2.51, open QNN208 open by QAIRT 2.51",
        "",
    ),
    (
        Compiler(missing="none is installed", instead="install one"),
        [asked(OpinionState.OPEN, "a"), asked(OpinionState.OPEN, "b")],
        "no compiler was asked about QNN208 a, QNN208 b: none is installed",
        "install one",
    ),
)
def test_what_was_asked_is_told(compiler: Compiler, opinions: list[Opinion], message: str, hint: str) -> None:
    _, situation = read_situation(Request(model=CNN, target="sm8650", backend="qnn-htp", sdk="2.33"))
    told = Opinions(compiler=compiler, opinions=tuple(opinions))
    (found,) = RULES["DK211"].run(ChosenWay(situation=replace(situation, opinions=told)))
    assert found.message == message
    assert found.hint == (hint or "leave the guesses in force with --no-second-opinion")
