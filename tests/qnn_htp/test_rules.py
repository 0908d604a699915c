"""Rules of qnn-htp, each with its case, and settings of its configurations."""

import json
from collections.abc import Callable
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

import deploykit
from deploykit.backend.backend import Request
from deploykit.encodings.values import Affine
from deploykit.errors import DefectError
from deploykit.findings.records import silent
from deploykit.flow.pipeline import read_jobs
from deploykit.flow.read import read_situation
from deploykit.model.collect import facts_of
from deploykit.model.load import wrap_proto
from deploykit.tables.capabilities import Status
from deploykit.tables.reading import read_json
from deploykit_qnn_htp import backend
from deploykit_qnn_htp.commands import listed_step
from deploykit_qnn_htp.draft import (
    ConversionDraft,
    Intent,
    RouteCandidate,
    draft_of,
    float16_plan,
    load_routes,
    route_row,
)
from deploykit_qnn_htp.rules.prepared import RULES as DRAFT_RULES
from deploykit_qnn_htp.rules.routes import RULES as ROUTE_RULES
from deploykit_qnn_htp.selection import mixed_support, select_route
from deploykit_qnn_htp.verification import verify
from deploykit_qualcomm.rules.converters import FLOAT16_RULES, Float16Plan
from deploykit_qualcomm.tables import tables
from rule_cases import check_pairs
from tables import each_row
from text_models import text_model
from told import check_told

DATA = Path(__file__).parents[1] / "data" / "aimet"


@cache
def draft(
    model: str, encodings: str | None = None, *, device: str = "sm8650", sdk: str = "2.33", **more: Any
) -> ConversionDraft:
    """The draft for one model of the fixtures."""
    asked: Any = {"model": DATA / model / "model.onnx", "target": device, "sdk": sdk, "backend": "qnn-htp"}
    request = Request(encodings=None if encodings is None else DATA / model / f"{encodings}.encodings", **more, **asked)
    return draft_of(read_situation(request)[1])


def route(name: str, made: ConversionDraft) -> RouteCandidate:
    return RouteCandidate(draft=made, route=route_row(name))


def mixed(style: str = "omit", **more: Any) -> ConversionDraft:
    return draft("detr", f"w8a16-fp16mix-{style}.v0.6.1", **more)


def integer(**more: Any) -> ConversionDraft:
    return draft("detr", "w8a16.v0.6.1", **more)


def with_float_operand(*, signed: bool = False) -> ConversionDraft:
    """The first attention product of the ViT reads one operand as float16, the other stays uint8, or is int8."""
    made = draft("vit", "w8a8.v0.6.1")
    assert made.source is not None and made.completed is not None
    product = next(n for n in made.situation.facts.nodes if n.op_type == "MatMul" and "attn/MatMul_1" in n.name)
    first, second = product.inputs
    entries = {n: e for n, e in made.completed.entries.items() if n != first}
    grid = entries[second].value
    assert isinstance(grid, Affine)
    entries[second] = replace(entries[second], value=replace(grid, signed=signed))
    from deploykit.encodings.float_sets import predict_float_set

    completed = replace(made.completed, entries=entries)
    after = predict_float_set(made.situation.facts, completed)
    return replace(made, intent=Intent.MIXED, completed=completed, after=after)


def losing(made: ConversionDraft, name: str) -> ConversionDraft:
    """A float tensor that will be quantized after all, because its entry is still there."""
    assert made.source is not None and made.after is not None
    return replace(made, after=replace(made.after, predicted=made.after.predicted - {name}))


def handed_in(dtype: str) -> ConversionDraft:
    """A segment whose input of that type comes from an earlier segment."""
    made, name = integer(), "images"
    facts = made.situation.facts
    tensors = {**facts.tensors, name: replace(facts.tensors[name], dtype=dtype)}
    return replace(made, handed_in=(name,), situation=replace(made.situation, facts=replace(facts, tensors=tensors)))


ROUTE_CASES: dict[str, tuple[Callable[[], RouteCandidate], Callable[[], RouteCandidate]]] = {
    "QNN101": (lambda: route("legacy-calibrated", mixed()), lambda: route("legacy-float-fallback", mixed())),
    "QNN102": (
        lambda: route("legacy-float-fallback", mixed("explicit")),
        lambda: route("qairt-overrides", mixed("explicit")),
    ),
    "QNN103": (
        lambda: route("legacy-complete", draft("cnn", "w8a8.v2.0.0")),
        lambda: route("legacy-complete", draft("cnn", "w8a8.v0.6.1")),
    ),
    "QNN104": (
        lambda: route("legacy-complete", draft("mlp", "wfp8a8.v2.0.0")),
        lambda: route("legacy-complete", draft("mlp", "w8a8.v2.0.0")),
    ),
    "QNN105": (
        lambda: route("legacy-complete", draft("mlp", "bq-w4a16.v0.6.1")),
        lambda: route("legacy-complete", draft("mlp", "w8a16.v0.6.1")),
    ),
    "QNN106": (lambda: route("legacy-quantizer-v2", mixed()), lambda: route("legacy-quantizer-v2", mixed(sdk="2.37"))),
    "QNN107": (
        lambda: route("legacy-quantizer-v2", mixed(sdk="2.37")),
        lambda: route("qairt-overrides", mixed(sdk="2.37")),
    ),
    "QNN108": (
        lambda: route("legacy-float-fallback", losing(mixed(), "/decoder/Div_output_0")),
        lambda: route("legacy-float-fallback", mixed()),
    ),
    "QNN109": (
        lambda: route("legacy-float-fallback", with_float_operand()),
        lambda: route("legacy-float-fallback", mixed()),
    ),
    "QNN111": (
        lambda: route("legacy-complete", draft("mlp", "lpbq-w4a16.v1.0.0")),
        lambda: route("legacy-complete", integer()),
    ),
    "QNN112": (
        lambda: route("legacy-calibrated", draft("cnn", precision="w8a8")),
        lambda: route("legacy-complete", integer()),
    ),
}

DRAFT_CASES: dict[str, tuple[Callable[[], ConversionDraft], Callable[[], ConversionDraft]]] = {
    "QNN122": (lambda: mixed(device="sm8350"), lambda: mixed(device="sm8450")),
    "QNN123": (
        lambda: draft("vit", "w8a16.v0.6.1", device="sm8450"),
        lambda: draft("vit", "w8a16.v0.6.1", device="sm8550"),
    ),
    "QNN124": (
        lambda: draft("mlp", "lpbq-w4a16.v1.0.0", device="sm8350"),
        lambda: draft("mlp", "lpbq-w4a16.v1.0.0", device="sm8650"),
    ),
    "QNN125": (lambda: draft("mlp", "wfp8a8.v2.0.0"), lambda: draft("mlp", "w8a8.v2.0.0")),
    "QNN126": (lambda: draft("mlp", "bq-w2a16-zpshift.v1.0.0"), lambda: draft("mlp", "w4a8.v1.0.0")),
    "QNN128": (mixed, lambda: mixed("explicit")),
    "QNN129": (lambda: draft("detr", "fp16.v2.0.0"), lambda: draft("detr", "fp16.v1.0.0")),
    "QNN130": (lambda: handed_in("int64"), lambda: handed_in("float")),
}


def averaged(maker: str, factor: float = 1 / 512, tensors: str = "csy") -> Float16Plan:
    """512 values added up, and the sum multiplied."""
    body = f"c = {maker} (x)  s = ReduceSum <axes = [1], keepdims = 0> (c)  y = Mul (s, f)"
    proto = text_model("float[1,512] x", body, "float[1] y", opset=12, f=factor)
    given = draft("detr").situation
    changed = replace(given, model=wrap_proto(proto, path=Path("model.onnx")), facts=facts_of(proto))
    return Float16Plan(situation=changed, tensors=frozenset(tensors))


FLOAT16_CASES = {
    "QNN127": (lambda: float16_plan(mixed()), lambda: float16_plan(integer())),
    "QNN132": (lambda: averaged("Exp"), lambda: averaged("Sigmoid")),  # of the latter the sum is known to fit
}


@pytest.mark.parametrize("intent", [intent for intent in Intent if intent is not Intent.MIXED])
@each_row("code", "QNN108", "QNN109")
def test_float_sets_are_judged_where_a_mix_was_meant(code: str, intent: Intent) -> None:
    made = losing(mixed(), "/decoder/Div_output_0") if code == "QNN108" else with_float_operand()
    assert made.intent is Intent.MIXED
    assert made.after is not None
    taken_in = {"after": replace(made.after, absorbed={"/decoder/Div_output_0": "Div"})} if code == "QNN108" else {}
    for changes, found in (({}, True), ({"intent": intent}, False), ({"after": None}, False), (taken_in, not taken_in)):
        told = ROUTE_RULES[code].run(route("legacy-float-fallback", replace(made, **changes)))
        assert bool(list(told)) is found


CASES: dict[str, Any] = {**ROUTE_CASES, **DRAFT_CASES, **FLOAT16_CASES}


def test_each_rule_fires_and_stays_silent() -> None:  # signed integers have a kernel beside float16
    check_pairs(CASES, ROUTE_RULES, DRAFT_RULES, FLOAT16_RULES)
    assert not list(ROUTE_RULES["QNN109"].run(route("legacy-float-fallback", with_float_operand(signed=True))))


def test_what_is_told_of_every_route() -> None:
    """Of gaps, mixes, blocks and what has no entries, by each route of the table, with how it is handled there."""
    drafts = {
        "gaps": draft("mlp", "bq-w4a16.v0.6.1"),
        "a mix": mixed(),
        "an explicit mix": mixed("explicit"),
        "a mix on 2.51": mixed(sdk="2.51"),
        "integers": integer(),
        "integers in 2.0.0": draft("cnn", "w8a16.v2.0.0"),
        "2-bit blocks": draft("mlp", "bq-w2a16-zpshift.v1.0.0"),
        "float weights": draft("mlp", "wfp8a8.v2.0.0"),
        "to be calibrated": draft("cnn", precision="w8a16"),
    }
    found = dict[str, list[str]]()
    for (name, made), row in product(drafts.items(), load_routes().route):
        told = ROUTE_RULES.run(RouteCandidate(draft=made, route=row))
        found[f"{name}, {row.id}"] = [
            f"{one.severity} {one.code} {one.subject.name}: {one.message}" + f"; {one.handled}" * bool(one.handled)
            for one in told
        ]
    check_told(Path(__file__).with_name("routes.told"), found)


def known_as(made: ConversionDraft, feature: str, status: Status | None) -> ConversionDraft:
    """The draft for a release whose rows of a feature have that status; None takes the rows away."""
    sdk, target = made.sdk, made.situation.target
    others = tuple(row for row in sdk.features if row.feature != feature)
    rows = (replace(row, status=status) for row in sdk.features if status and row.feature == feature)
    changed = replace(target, sdk=replace(sdk, features=(*others, *rows)))
    return replace(made, situation=replace(made.situation, target=changed))


def test_what_each_status_of_a_feature_says() -> None:
    """Refused where a row says that it does not work; silence where nobody knows is the rule's to decide, and told."""
    found = dict[str, list[str]]()
    cases: dict[str, tuple[str, Callable[[], ConversionDraft]]] = {
        "QNN123: matmul-16bit": ("", DRAFT_CASES["QNN123"][0]),
        "QNN124: lpbq": ("", DRAFT_CASES["QNN124"][0]),
        # Lists that fit no axis, since the file knows no blocks.
        "QNN124: bq": ("", lambda: draft("mlp", "bq-w4a16.v0.6.1", sdk="2.51")),
        "QNN102: explicit-float-entries": ("legacy-float-fallback", lambda: mixed("explicit")),
        "QNN103: encodings-2.0.0": ("legacy-complete", lambda: draft("cnn", "w8a8.v2.0.0")),
        "QNN106: quantizer-v2": ("legacy-quantizer-v2", mixed),
    }
    for (name, (by, case)), status in product(cases.items(), (*Status, None)):
        code, feature = name.split(": ")
        made = known_as(case(), feature, status)
        told = ROUTE_RULES.run(route(by, made)) if by else DRAFT_RULES.run(made)
        lines = [f"{one.severity} {one.message}" for one in told if one.code == code]
        found[f"{name} {status or 'in no row'}"] = lines
    check_told(Path(__file__).with_name("features.told"), found)


def test_a_plan_that_is_rejected_says_why() -> None:
    asked: Any = {"target": "sm8350", "sdk": "2.33", "route": "provider-context"}
    refused = deploykit.plan(DATA / "cnn/model.onnx", encodings=DATA / "cnn/w8a8.v1.0.0.encodings", **asked)
    chosen = select_route(draft("detr", "w8a16-fp16mix-omit.v0.6.1", calibration=DATA / "detr/w8a16.io.npz"))
    rejected = chosen.without(refused).rejected
    assert [row.id for row in rejected] == ["legacy-calibrated", "legacy-float-fallback"]
    assert "QNN295" in rejected[-1].because


@each_row(("budget", "version"), (3_000_000_000, "0.6.1"), (150_000, "1.0.0"), (50_000, ""))
def test_what_is_written_is_read(budget: int, version: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: Any = {"target": "sm8650", "sdk": "2.37", "encodings": DATA / "cnn/w8a8-int32bias.v0.6.1.encodings"}
    (job,) = read_jobs([Request(model=DATA / "cnn/model.onnx", **asked)], [tmp_path / "out"], progress=[silent])
    with monkeypatch.context() as bound:
        bound.setattr("deploykit.encodings.formats.aimet._BUDGET", budget)
        packaged = job.make()  # it decides as ``check`` does
    assert [f.code for f in packaged.findings if f.blocks] == ([] if version else ["QNN104"])
    assert [read_json(path)["version"] for path in tmp_path.glob("out/encodings/*")] == ([version] if version else [])


@each_row(
    ("device", "sdk", "options", "kinds", "safe", "confidence"),
    ("sm7635", "2.33", {}, "integer", False, {}),
    ("sm8350", "2.44", {}, "integer", False, {}),
    ("sm8650", "2.33", {}, "fallback integer segments", False, {"fallback": "inferred", "segments": "reported"}),
    ("sm8650", "2.44", {}, "fallback integer segments", True, {"fallback": "reported", "segments": "reported"}),
    ("sm8650", "2.51", {}, "direct fallback integer segments", True, {"direct": "inferred"}),
    ("sc8380xp", "2.33", {}, "direct fallback integer segments", False, {"direct": "inferred"}),
    ("sm8650", "2.33", {"route": "provider-context"}, "fallback integer", True, {"fallback": "inferred"}),
)
def test_what_a_target_mixes(
    device: str, sdk: str, options: dict[str, Any], kinds: str, safe: bool, confidence: dict[str, str]
) -> None:
    found = mixed_support(mixed(device=device, sdk=sdk).situation.target, options)
    assert (found.kinds, found.safe) == (frozenset(kinds.split()), safe)
    assert {name: str(found.confidence[name]) for name in confidence} == confidence
    missing = {"direct", "fallback", "segments"} - found.kinds
    assert missing - {"direct"} <= found.without.keys() <= missing
    assert found.needs == ({"direct": {"route": "provider-context"}} if "segments" in found.kinds else {})


@each_row(
    ("tool", "version", "flag", "values"),
    ("qnn-onnx-converter", "2.33.0", "--use_quantize_v2", ()),  # absent below 2.35
    ("qnn-onnx-converter", "2.35.0", "--use_quantize_v2", ()),  # contradicted, so unknown
    ("qnn-onnx-converter", "2.33.0", "--no_such_flag", ()),
    ("qairt-converter", "2.44.0", "--input_list", ("x",)),  # listed as not accepted
    ("qnn-onnx-converter", "2.33.0", "--float_fallback", ("16",)),  # a switch takes no value
    ("qnn-onnx-converter", "2.33.0", "--float_bitwidth", ()),  # a value is needed
    ("qnn-onnx-converter", "2.33.0", "--float_bitwidth", ("17",)),  # not one of 16, 32
    ("no-such-tool", "2.33.0", "--help", ()),
)
def test_what_the_table_does_not_list_is_a_defect(tool: str, version: str, flag: str, values: tuple[str, ...]) -> None:
    with pytest.raises(DefectError):
        listed_step("step", tables().table(version), tool, [(flag, *values)], ())


def test_flags_and_keys_that_no_table_lists_are_told(tmp_path: Path) -> None:
    (tmp_path / "config").mkdir()
    keys = {"graphs": [{"vtcm_mb": 8, "mine": 1}], "devices": [{"cores": [{"perf_profile": "burst"}]}], "own": {"a": 1}}
    (tmp_path / "config/htp_prepare.json").write_text(json.dumps(keys))
    (tmp_path / "config/intended_types.json").write_text("{}")
    steps = [
        {"tool": "qnn-onnx-converter", "argv": ["x", "--float_fallback", "--mine", "-1.5", "a"]},
        {"tool": "own", "argv": ["own", "--any"]},
    ]
    checks = verify(tmp_path, {"sdk": {"table": "2.33.0"}, "steps": steps}).checks
    assert [(check.id, check.ok, check.detail) for check in checks] == [
        ("flags-listed", False, "not in the table of 2.33.0: qnn-onnx-converter --mine"),
        ("config-keys", False, "config/htp_prepare.json: unknown keys: graphs[].mine, own, own.a"),
        ("converter-types", True, "not built yet: the converter's types are not known"),
    ]


@each_row(
    ("options", "itself"),
    *(({}, False), ({"input_list": False}, False), ({"input_list": True}, True), ({"route": "legacy-complete"}, True)),
)
def test_who_names_a_route_or_a_list_has_the_converter_calibrate(options: dict[str, Any], itself: bool) -> None:
    situation = integer().situation
    asked = replace(situation, request=replace(situation.request, adapter_options=options))
    assert backend.calibrates_itself(asked) is itself
