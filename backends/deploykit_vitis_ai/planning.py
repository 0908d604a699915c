"""The decision: findings of the request and of its data, the route, the steps, and what becomes of each tensor."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from deploykit.contract.backend import Situation
from deploykit.contract.plans import Plan, Precision, Rejected, Route, Step
from deploykit.errors import InputError
from deploykit.findings import Confidence, Finding
from deploykit.numerics.samples import Calibration, InputSpec, input_specs, load_calibration
from deploykit.numerics.samples.guidelines import RULES as CALIBRATION_RULES
from deploykit.numerics.samples.survey import Survey, survey, survey_of_random_data
from deploykit_vitis_ai import configs
from deploykit_vitis_ai.prepare import Draft, make_draft
from deploykit_vitis_ai.rules import model, release, request
from deploykit_vitis_ai.types import activation_types

__all__ = ["Details", "make_plan"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Details:
    """What rendering and execution need beside the plan. ``files`` maps package paths to the user's data files."""

    draft: Draft
    inputs: tuple[InputSpec, ...]
    calibration: Calibration | None = None
    survey: Survey | None = None
    files: tuple[tuple[str, Path], ...] = ()


_ROUTES: dict[str, tuple[str, Confidence, tuple[str, ...]]] = {
    "vint8": (
        "Quark makes a VINT8 model with the four options that the compiler needs",
        Confidence.DOCUMENTED,
        ('AMD documentation page "Model Quantization", Vitis AI 6.2 (June 2026)',),
    ),
    "mixed": (
        "Quark makes a VINT8 model and leaves the named part in float, which the compiler converts",
        Confidence.DOCUMENTED,
        ("repository amd/Vitis-AI, branch 6.3", "vitisai.docs.amd.com: mixed_precision_compilation"),
    ),
    "xint8": (
        "Quark makes an XINT8 model for the INT8 compiler",
        Confidence.DOCUMENTED,
        ("repository amd/ryzen-ai-documentation",),
    ),
    "a8w8": ("Quark makes an A8W8 model", Confidence.DOCUMENTED, ("repository amd/ryzen-ai-documentation",)),
    "a16w8": ("Quark makes an A16W8 model", Confidence.DOCUMENTED, ("repository amd/ryzen-ai-documentation",)),
    "bf16": (
        "the compiler gets the float32 model and converts it to bfloat16 itself",
        Confidence.DOCUMENTED,
        ("vitisai.docs.amd.com, projects/gen2", "repository amd/ryzen-ai-documentation"),
    ),
    "fp16": (
        "the compiler gets the float32 model and converts it to float16 itself",
        Confidence.DOCUMENTED,
        ("vitisai.docs.amd.com, projects/gen2", "repository Xilinx/ross-ai-assistant"),
    ),
    "as-is": (
        "the model is quantized already and goes to the compiler unchanged",
        Confidence.DOCUMENTED,
        ("repository amd/ryzen-ai-documentation",),
    ),
}


def make_plan(situation: Situation) -> Plan:
    """Decide for one situation. Reads the calibration data, writes nothing."""
    assert request.DRAFT_RULES is model.DRAFT_RULES is release.DRAFT_RULES
    draft = make_draft(situation)
    findings = list(request.DRAFT_RULES.run(draft))
    details, more = _details(draft)
    findings += more
    blocking = tuple(dict.fromkeys(finding.code for finding in findings if finding.blocks))
    possible = draft.precision in _ROUTES and not blocking
    return Plan(
        backend="vitis-ai",
        target=situation.target.device.to_json(),
        sdk=situation.target.sdk_json(),
        route=_route(draft) if possible else None,
        rejected=() if possible else (Rejected(id=_route_id(draft), because=blocking),),
        steps=_steps(draft) if possible else (),
        configs=_configs(details) if possible else {},
        precision=_precision(draft),
        findings=tuple(findings),
        candidates=tuple({"precision": name, "chosen": name == draft.precision} for name in draft.offered),
        details=details,
    )


def _route_id(draft: Draft) -> str:
    maker = "quark" if draft.needs_quark else "compiler"
    return f"{maker}-{draft.precision or 'unknown'}"


def _route(draft: Draft) -> Route:
    why, confidence, sources = _ROUTES["as-is" if draft.source == "qdq" else draft.precision]
    return Route(id=_route_id(draft), why=why, confidence=confidence, sources=sources)


def _details(draft: Draft) -> tuple[Details, tuple[Finding, ...]]:
    """The calibration data, looked at, and what the guidelines say of it."""
    try:
        inputs = input_specs(draft.facts)
    except InputError:  # the rank is unknown: VAI121 says so
        return Details(draft=draft, inputs=()), ()
    source = draft.situation.request.calibration
    if draft.random_data and draft.needs_quark:
        seen = survey_of_random_data()
        return Details(draft=draft, inputs=inputs, survey=seen), CALIBRATION_RULES.run(seen)
    if source is None or not (draft.needs_quark or draft.precision == "bf16"):
        return Details(draft=draft, inputs=inputs), ()
    calibration = load_calibration(source)
    seen = survey(calibration, inputs)
    bad = {name for name, _ in seen.unusable}
    usable = [path for path in calibration.files if path.name not in bad]
    files = tuple((f"calibration/{i:05}_{path.name}", path) for i, path in enumerate(usable))
    details = Details(draft=draft, inputs=inputs, calibration=calibration, survey=seen, files=files)
    return details, CALIBRATION_RULES.run(seen)


def _steps(draft: Draft) -> tuple[Step, ...]:
    compiled = configs.compiled_model(draft)
    steps = []
    if draft.needs_quark:
        steps.append(
            Step(
                id="quantize",
                tool="quark",
                argv=("python", "scripts/quantize.py"),
                inputs=(configs.float_model(draft), configs.RECIPE),
                outputs=(compiled,),
                note=f"in an environment with {draft.toolchain}",
            )
        )
    where = "inside the Vitis AI container" if draft.is_gen2 else "in Ryzen AI's environment"
    steps.append(
        Step(
            id="compile",
            tool="VitisAIExecutionProvider",
            argv=("python", "scripts/compile.py"),
            inputs=(compiled, configs.SESSION),
            outputs=(f"{configs.CACHE}/{Path(compiled).stem}",),
            note=where,
        )
    )
    steps.append(
        Step(
            id="run",
            tool="VitisAIExecutionProvider",
            argv=("python", "scripts/run.py", "--data", "DATA", "--out", "artifacts/outputs"),
            inputs=(compiled, configs.SESSION),
            where="device",
        )
    )
    return tuple(steps)


def _configs(details: Details) -> dict[str, Any]:
    draft = details.draft
    entry = configs.calibration_entry(
        details.calibration, {path: name for name, path in details.files}, random=draft.random_data
    )
    made: dict[str, Any] = {configs.SESSION: configs.session_config(draft)}
    compiler = configs.vitisai_config(draft)
    if compiler is not None:
        made[configs.CONFIG] = compiler
    if draft.needs_quark:
        made[configs.RECIPE] = configs.quantize_recipe(draft, entry, details.inputs)
    elif draft.precision == "bf16":
        made[configs.VALIDATION] = configs.validation_recipe(draft, details.inputs, entry)
    return dict(sorted(made.items()))


_TYPES = {"vint8": "int8", "mixed": "int8", "xint8": "uint8", "a8w8": "int8", "a16w8": "int16"}
_FLOATS = {"bf16": "bfloat16", "fp16": "float16"}


def _precision(draft: Draft) -> Precision:
    """Per activation: the format that was asked for, float where the user left a node out."""
    if draft.needs_quark and draft.precision in _TYPES:
        types = activation_types(draft.facts, draft.exclusions.indices, _TYPES[draft.precision])
    elif draft.precision in _FLOATS:
        types = activation_types(draft.facts, (), _FLOATS[draft.precision])
    else:
        return Precision()
    return Precision(intended=types, expected=dict(types))
