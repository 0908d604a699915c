"""Rules of ort-qnn, each with its case, and rows of the atlas."""

from collections.abc import Callable, Iterator
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.parser
import pytest
from msgspec.structs import replace
from onnx.shape_inference import infer_shapes

import deploykit
from atlas.cases import case_of, case_unit
from deploykit.accuracy.judge.verdict import Against, Context, Measure, Verdict
from deploykit.accuracy.latency import Estimate
from deploykit.backend.backend import Request, SharedWork
from deploykit.encodings.lpbq import LpbqLoss
from deploykit.encodings.values import Affine, Encoding, EncodingSet
from deploykit.findings.rules import Rule
from deploykit.flow.read import read_situation
from deploykit.model.collect import collect_facts
from deploykit.model.load import wrap_proto
from deploykit.model.nodes import copy_of
from deploykit.tables.capabilities import Status
from deploykit_ort_qnn import backend
from deploykit_ort_qnn.compiler.emulation import correctness, narrowest, numbers_json, numbers_scope
from deploykit_ort_qnn.compiler.graphs import QnnGraph, QnnNode, QnnTensor, Schematic, SchematicOp
from deploykit_ort_qnn.compiler.jobs import CompileOutcome
from deploykit_ort_qnn.compiler.precision import PrecisionScope
from deploykit_ort_qnn.prepare import ProviderDraft, prepare, wheel_for
from deploykit_ort_qnn.provider_keys import Chosen
from deploykit_ort_qnn.provider_model import PreparationStep
from deploykit_ort_qnn.rules.compiled import EnvironmentScope, PackageScope, TimeBudget
from deploykit_ort_qnn.rules.numerics import NumericScope
from deploykit_ort_qnn.rules.prepared import RULES as BEFORE_COMPILING
from deploykit_qualcomm.atlas import rows
from deploykit_qualcomm.atlas.rows import MeasuredPlace, atlas_rows, verdict_at, verdict_in, where_it_holds
from deploykit_qualcomm.hosted import RefusedNode
from deploykit_qualcomm.tables import WheelPair
from rule_cases import check_pairs
from tables import each_row
from text_models import text_model
from told import check_file

AIMET = Path(__file__).parents[1] / "data" / "aimet"
Case = Callable[[], Any]


@cache
def base(model: str = "mlp/w8a8.qdq.onnx", target: str = "sm8550") -> ProviderDraft:
    _, situation = read_situation(Request(model=AIMET / model, target=target, backend="ort-qnn"))
    return prepare(situation, SharedWork())


def draft(model: str = "mlp/w8a8.qdq.onnx", target: str = "sm8550", **changes: Any) -> ProviderDraft:
    return replace(base(model, target), **changes)


def prepared(**changes: Any) -> ProviderDraft:
    known = base().prepared
    assert known is not None
    return draft(prepared=replace(known, **changes))


def with_operator(op_type: str) -> ProviderDraft:
    from onnx import ModelProto

    known = base().prepared
    assert known is not None
    model = ModelProto()
    model.CopyFrom(known.model)
    next(node for node in model.graph.node if node.op_type == "Sigmoid").op_type = op_type
    return prepared(model=model)


def float_draft(body: str, given: str = "float[1,4] x", opset: int = 17, **stored: Any) -> ProviderDraft:
    """A float model from ``x`` to ``y``."""
    return of_float(infer_shapes(text_model(given, body, opset=opset, **stored)))


# An RMS normalization with a scale, x divided by a root or times its reciprocal.
ROOT = "q = Pow (x, two)  m = ReduceMean <axes = [-1]> (q)  p = Add (m, e)  r = Sqrt (p)"
RECIPROCAL = f"{ROOT}  i = Reciprocal (r)  n = Mul (x, i)"
rms_draft = partial(float_draft, two=2.0, e=1e-5)
SLOPED = "gate = HardSigmoid <alpha = 0.16666667> (x)"


def of_float(model: onnx.ModelProto) -> ProviderDraft:
    read, known = wrap_proto(model, path=Path("m.onnx")), base()
    situation = replace(known.situation, model=read, facts=collect_facts(read))
    return replace(known, source="float", prepared=None, situation=situation)


def blocks() -> EncodingSet:
    value = Affine(
        bits=4, signed=True, scale=np.ones((2, 3)), zero_point=np.zeros((2, 3)), axis=1, block_axis=0, block_size=16
    )
    return EncodingSet(version="2.0.0", entries={"w": Encoding(name="w", value=value)})


def block_draft(fp16: bool) -> ProviderDraft:
    return replace(prepared(encodings=blocks()), fp16=fp16)


def graph(types: tuple[str, str, str], *, encoding: str = "") -> QnnGraph:
    """Quantize -> MatMul(x, w) -> Quantize, with the types of x, the product and w."""
    tensors = {
        "x": QnnTensor(dtype=types[0], role="native", dims=(1, 4), fixed=types[0][0] in "ui"),
        "w": QnnTensor(dtype=types[2], role="static", dims=(4, 4), encoding=encoding, fixed=True),
        "y": QnnTensor(dtype=types[1], role="native", dims=(1, 4), fixed=types[1][0] in "ui"),
        "y_q": QnnTensor(dtype="uint16", role="native", dims=(1, 4), fixed=True),
    }
    nodes = (
        QnnNode(name="m", type="MatMul", inputs=("x", "w"), outputs=("y",)),
        QnnNode(name="q", type="Quantize", inputs=("y",), outputs=("y_q",)),
    )
    return QnnGraph(name="g", nodes=nodes, tensors=tensors)


def made(dtype: str, kind: str = "q::MatMul") -> Schematic:
    border = SchematicOp(id=7, kind="q::*InputSlicePad", dtypes=("Float32",))  # the graph's own input, cut into tiles
    return Schematic(graph="g", after=(border, SchematicOp(id=7, kind=kind, dtypes=(dtype,))), names={7: "m"})


def types(asked: QnnGraph, schematic: Schematic | None = None, *, intended: str = "uint16") -> PrecisionScope:
    return PrecisionScope(
        graphs=(asked,),
        schematics=() if schematic is None else (schematic,),
        intended={"y": intended, "x": "uint16"},
        stored={"y": "y_q"},
        quantized=frozenset({"y_q"}),
    )


def converted(made_type: str, *, asked_for: bool) -> PrecisionScope:
    """x (16 bits) is converted on its way into the MatMul."""
    plain = graph(("uint16", "uint16", "int8"))
    extra = QnnTensor(dtype=made_type, role="native", dims=(1, 4), fixed=True)
    nodes = (
        QnnNode(name="c", type="Convert", inputs=("x",), outputs=("x8",)),
        QnnNode(name="m", type="MatMul", inputs=("w", "x8"), outputs=("y",)),
    )
    changed = QnnGraph(name="g", nodes=nodes, tensors={**plain.tensors, "x8": extra})
    return replace(types(changed), quantized=frozenset({"x8"}) if asked_for else frozenset())


FINE = CompileOutcome(status="compiled")
SLOW = Estimate(time_us=8.0, lower_us=7.0, upper_us=9.0, cycles=12120, soc_model="77", chip="qcs9075")


def verdict(value: float, against: Against) -> Verdict:
    """One number of one output and what follows from it."""
    context = Context(label="given", count=1, against=against, bits=16, thresholds=None, same_graph=True)
    number = context.number("y", "dense", Measure.SQNR, value)
    return Verdict(right=number.passes, numbers=(number,))


FINE_ON_DEVICE, WRONG_ON_DEVICE = (verdict(value, Against.QUANTIZED) for value in (50.0, 9.0))
GOOD = NumericScope(device=FINE_ON_DEVICE, quantization=verdict(40.0, Against.FLOAT))
BAD = NumericScope(device=WRONG_ON_DEVICE, quantization=verdict(8.0, Against.FLOAT), first="m", first_type="Log")
PACKAGE = PackageScope(provider_options={"soc_model": "43"}, soc_model=43, context={"soc_model": 43})
WHEEL = wheel_for("2.7.0")
INSTALLED = {"wheel": "2.7.0", "qairt": "2.51.0", "onnxruntime": "1.31.1"}
OLD_WHEEL = wheel_for("2.36")
old_draft = partial(replace, wheel=OLD_WHEEL)
UNDER_WINE = {"wheel": "1.22.2", "qairt": "2.36.1", "onnxruntime": "1.22.2"}
GOOD_TYPES = types(graph(("uint16", "uint16", "int8")), made("QUInt16"))


def step(identifier: str, **more: Any) -> ProviderDraft:
    return prepared(steps=(PreparationStep(id=identifier, why="because", names=("y", "z"), **more),))


LOSS = {name: LpbqLoss(scale_error=0.03, sqnr_db=db, refined_sqnr_db=db + 5) for name, db in (("w", 30.0), ("v", 9.0))}
HALVES = {"t": "float16", "i": "uint8", "s": "float16"}
NODES = (RefusedNode(name="n", type="Erf"), RefusedNode(name="k", type="Relu", why="no kernel"))
CASES: dict[str, Any] = {
    "ORT001": (lambda: draft(soc_model=None), draft),
    "ORT002": (lambda: draft("mlp/model.onnx", precision="w8a8"), lambda: draft("mlp/model.onnx")),
    "ORT003": (lambda: draft("mlp/wfp8a8.qdq.onnx"), draft),
    "ORT004": (lambda: draft("mlp/model.onnx", "sm8350"), lambda: draft("mlp/model.onnx")),
    "ORT005": (lambda: block_draft(fp16=False), lambda: block_draft(fp16=True)),
    "ORT006": (lambda: block_draft(fp16=True), draft),
    "ORT007": (lambda: prepared(skipped={name: f"no {name}" for name in "tu"}), draft),
    "ORT008": (lambda: prepared(narrowed=("y", "z")), draft),
    "ORT009": (lambda: step("widen-log"), lambda: step("fold-batchnorm")),
    "ORT010": (lambda: prepared(refusals=("n: no", "m k: neither")), draft),
    "ORT012": (lambda: draft(chosen=Chosen(compile={}, run={}, entries={}, unchecked=("vtcm_mb", "htp_arch"))), draft),
    "ORT013": (lambda: step("lpbq", losses=LOSS), lambda: step("lpbq")),
    "ORT014": (lambda: float_draft("y = Erf (x)"), lambda: float_draft("y = Tanh (x)")),
    "ORT015": (
        lambda: float_draft(f"{SLOPED}  y = Mul (x, gate)"),
        lambda: float_draft(f"{SLOPED}  y = Mul (gate, x)"),
    ),
    "ORT016": (
        lambda: rms_draft(f"{RECIPROCAL}  y = Mul (n, s)", s=[1.0] * 4),
        lambda: rms_draft(f"{ROOT}  n = Div (x, r)  y = Mul (n, s)", s=[1.0] * 4),
    ),
    "ORT017": tuple(
        partial(float_draft, "y = RMSNormalization (x, s)", f"float[{samples},16,8] x", 23, s=[1.0] * 8)
        for samples in (2, 1)
    ),
    "ORT018": (lambda: float_draft("y = Tanh (x)", opset=6), lambda: float_draft("y = Tanh (x)", opset=7)),
    "ORT019": (lambda: replace(block_draft(fp16=True), wheel=OLD_WHEEL), lambda: block_draft(fp16=True)),
    "ORT020": tuple(
        partial(float_draft, "y = Gather (x, i)", "float[48] x", i=np.arange(48).reshape(shape))
        for shape in ((6, 8), 48)
    ),
    "ORT032": tuple(
        partial(float_draft, "y = GatherND (x, i)", f"{kind}[4,8] x", i=np.ones((1,) * rank, np.int64))
        for kind, rank in (("float", 5), ("int32", 4))
    ),
    "ORT033": tuple(
        partial(float_draft, "y = Gather (labels, x)", "int64[2] x", labels=labels)
        for labels in (np.array([7, 9]), np.array([7, 9], np.int32))
    ),
    "ORT150": (lambda: replace(with_operator("GRU"), wheel=OLD_WHEEL), lambda: with_operator("GRU")),
    "ORT160": (
        lambda: old_draft(float_draft("y = Tanh (x)", opset=23)),
        lambda: old_draft(float_draft("y = Tanh (x)", opset=22)),
    ),
    "ORT161": (lambda: old_draft(draft("mlp/model.onnx")), lambda: draft("mlp/model.onnx")),
    "ORT162": (lambda: old_draft(prepared(intended=HALVES)), lambda: prepared(intended=HALVES)),
    "ORT101": (lambda: types(graph(("uint16", "float32", "int8"))), lambda: GOOD_TYPES),
    "ORT102": (lambda: converted("uint8", asked_for=False), lambda: converted("uint8", asked_for=True)),
    "ORT103": (lambda: types(graph(("float16", "float16", "int8"), encoding="per-block")), lambda: GOOD_TYPES),
    "ORT104": (lambda: types(graph(("uint16", "uint16", "int8")), made("Float16")), lambda: GOOD_TYPES),
    "ORT105": (
        lambda: types(graph(("float32", "float32", "float32")), made("Float32"), intended="float16"),
        lambda: types(graph(("float32", "float32", "float32")), made("Float16"), intended="float16"),
    ),
    "ORT110": (lambda: CompileOutcome(status="refused", refused=NODES), lambda: replace(FINE, refused=NODES)),
    "ORT111": (lambda: CompileOutcome(status="failed", message="m"), lambda: FINE),
    "ORT112": (lambda: CompileOutcome(status="crashed", message="m", culprit=NODES), lambda: FINE),
    "ORT113": (lambda: CompileOutcome(status="timed-out", message="m", culprit=NODES), lambda: FINE),
    "ORT114": (lambda: replace(FINE, cpu_nodes=NODES), lambda: FINE),
    "ORT115": (lambda: TimeBudget(most_us=5.0, estimate=SLOW), lambda: TimeBudget(most_us=9.0, estimate=SLOW)),
    "ORT116": (
        lambda: TimeBudget(most_us=9.0, estimate=replace(SLOW, instead_of="sm8650")),
        lambda: TimeBudget(most_us=9.0, estimate=SLOW),
    ),
    "ORT120": (lambda: BAD, lambda: GOOD),
    "ORT121": (lambda: NumericScope(not_run="no time"), lambda: GOOD),
    "ORT122": tuple(
        partial(NumericScope, device=Verdict(right=None), agreement=dict.fromkeys("yu", decibels))
        for decibels in (5.9, 6.0)
    ),
    "ORT130": (lambda: replace(PACKAGE, provider_options={}), lambda: PACKAGE),
    "ORT131": (lambda: replace(PACKAGE, unknown_options=("vtcm", "arch")), lambda: PACKAGE),
    "ORT132": (lambda: replace(PACKAGE, context={"soc_model": 0}), lambda: PACKAGE),
    "ORT140": (
        lambda: EnvironmentScope(installed=None, planned=WHEEL),
        lambda: EnvironmentScope(installed=INSTALLED, planned=WHEEL),
    ),
    "ORT141": (
        lambda: EnvironmentScope(installed={**INSTALLED, "wheel": "2.5.0"}, planned=WHEEL),
        lambda: EnvironmentScope(installed=INSTALLED, planned=WHEEL),
    ),
    "ORT142": (
        lambda: EnvironmentScope(installed={**INSTALLED, "onnxruntime": "9.9"}, planned=WHEEL),
        lambda: EnvironmentScope(installed=INSTALLED, planned=WHEEL),
    ),
    "ORT143": (
        lambda: EnvironmentScope(installed=UNDER_WINE, planned=OLD_WHEEL, emulator=INSTALLED),
        lambda: EnvironmentScope(installed=INSTALLED, planned=WHEEL, emulator=INSTALLED),
    ),
}


def rules() -> dict[str, Rule[Any]]:
    return {rule.code: rule for registry in backend.registries() for rule in registry if rule.code.startswith("ORT")}


def test_each_rule_fires_and_stays_silent() -> None:
    check_pairs(CASES, rules().values())


@each_row(
    ("scope", "told"),
    (BAD, "no, on 1 given sample against quantized: no difference; first at Log m"),
    (GOOD, "yes, on 1 given sample against quantized: no difference"),
    (NumericScope(not_run="no time"), "not judged: the emulation failed: no time"),
    (NumericScope(not_run="no time", is_spared=True), "not judged: no time"),
)
def test_what_is_said_of_numbers(scope: NumericScope, told: str) -> None:
    assert str(correctness(scope)) == told and numbers_scope(numbers_json(scope)).first == scope.first
    beside = correctness(replace(GOOD, agreement={"y": 40.0})).numbers
    assert [(one["value"], one["note"]) for one in beside[1:]] == [(40.0, "the device beside the same file on the CPU")]
    assert [narrowest(some.split()) for some in ("uint16 int8", "float16 uint16 int32", "int4")] == [8, 16, 0]


def test_a_compiler_that_knows_one_chip_only_is_told_of() -> None:
    (found,) = rules()["ORT132"].run(replace(PACKAGE, context={"soc_model": 60}, own_chip=60))
    assert found.message.endswith("the compiler of this release knows no other (QNN295)") and not found.blocks


def said_of(question: str) -> Iterator[str]:
    """What the rules say of a float model, given as its operator set and its graph in ONNX's text."""
    opset, text = question.split(" ", 1)
    model = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": {opset}]> g {text}')
    for found in BEFORE_COMPILING.run(of_float(infer_shapes(model))):
        yield f"{found.severity} {found.code} {found.message}"


def test_float_models_before_they_are_compiled() -> None:
    check_file(Path(__file__).with_name("float_rules.told"), said_of)


PLUGIN = replace(WHEEL, reads=None)
newer = partial(float_draft, "y = Tanh (x)", opset=23)


def test_what_is_compiled_must_be_read_by_a_runtime_that_works() -> None:
    """Of the versions that a plugin was tried with those count that work; a preparation may take another set."""
    for tried, said in (
        (((22, "supported"), (24, "unsupported")), ["operator set 23; onnxruntime-qnn 2.7.0 reads up to 22"]),
        (((22, "supported"), (23, "supported")), []),
    ):
        pairs = tuple(WheelPair(version="1", opset=opset, ir=13, status=Status(status)) for opset, status in tried)
        given = replace(newer(), wheel=replace(PLUGIN, onnxruntime=pairs))
        assert [one.message for one in rules()["ORT160"].run(given)] == said
    model = copy_of(base().prepared.model)  # type: ignore[union-attr]
    model.opset_import[0].version = 23
    (found,) = rules()["ORT160"].run(old_draft(prepared(model=model)))
    assert found.message.startswith("operator set 23")


@each_row(
    ("code", "case"),
    ("ORT004", lambda: draft(fp16=False)),  # a quantized model needs no float16
    ("ORT004", lambda: replace(draft("mlp/model.onnx"), fp16=None)),  # nobody knows
    ("ORT160", lambda: replace(newer(), wheel=replace(PLUGIN, onnxruntime=()))),  # nobody tried
    ("ORT016", lambda: rms_draft(RECIPROCAL.replace("n =", "y ="))),
    ("ORT105", lambda: types(graph(("float32", "float32", "float32")), intended="float16")),  # nobody knows
    ("ORT115", lambda: TimeBudget(most_us=5.0, estimate=replace(SLOW, instead_of="sm8650"))),  # ORT116 says so
)
def test_what_else_is_left_in_silence(code: str, case: Case) -> None:
    assert not list(rules()[code].run(case()))


ROW = next(row for row in atlas_rows() if (row.op, row.types, row.verdict) == ("AveragePool", ("float",), "wrong"))


@pytest.fixture
def known(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[MeasuredPlace, ...]]:
    """The row's case is right on one chip, the same on another, refused by an older release."""
    held = (
        MeasuredPlace(sdk=ROW.sdk, soc=69, asked=1, otherwise={ROW.id: "right"}),
        MeasuredPlace(sdk=ROW.sdk, soc=30, asked=1),
        MeasuredPlace(sdk="2.47.0", soc=ROW.soc, asked=1, otherwise={ROW.id: "refused"}),
    )
    monkeypatch.setattr(rows, "places", lambda: held)
    yield held


@pytest.mark.usefixtures("known")
def test_what_became_of_a_row_is_told_by_place() -> None:
    assert [verdict_at(ROW, soc) for soc in (ROW.soc, 69, 30, 87)] == [ROW.verdict, "right", ROW.verdict, ""]
    assert [verdict_in(ROW, release) for release in ("2.51", "2.51.3.1", "2.47", "2.5", "2.33.0", "")] == [
        *(ROW.verdict, ROW.verdict, "refused"),
        *("", "", ""),
    ]
    assert where_it_holds(ROW) == "the same for soc_model 30, right for soc_model 69; refused for QAIRT 2.47.0"
    assert where_it_holds(replace(ROW, sdk="2.33.0", soc=1)) == ""


@pytest.mark.usefixtures("known")
def test_on_a_chip_where_its_case_is_right_nothing_is_predicted(tmp_path: Path) -> None:
    model = tmp_path / "m.onnx"
    onnx.save(case_unit(case_of(ROW.example), 0).model, model)
    said = {}
    for target in ("sm8650", "sm8750", "sm8350"):
        plan = deploykit.plan(model, target=target, backend="ort-qnn", sdk="2.51")
        said[target] = [finding for finding in plan.findings if finding.code == "QNN320"]
    assert said["sm8650"] and not said["sm8750"] and said["sm8350"]
