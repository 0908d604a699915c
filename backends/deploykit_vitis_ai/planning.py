"""The decision: findings of the request and of its data, the route, the steps, and what becomes of each tensor."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from deploykit.contract.plans import Plan, Precision, Rejected, Route, Step
from deploykit.findings import Confidence
from deploykit_vitis_ai import configs
from deploykit_vitis_ai.draft import Draft
from deploykit_vitis_ai.prepare import Prepared
from deploykit_vitis_ai.types import activation_types

__all__ = ["make_plan"]


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


def make_plan(prepared: Prepared) -> Plan[None]:
    """Decide for one prepared request."""
    draft, findings = prepared.draft, prepared.findings
    situation = draft.situation
    blocking = tuple(dict.fromkeys(finding.code for finding in findings if finding.blocks))
    possible = draft.precision in _ROUTES and not blocking
    return Plan(
        backend="vitis-ai",
        target=situation.target.device.to_json(),
        sdk=situation.target.sdk_json(),
        route=_route(draft) if possible else None,
        rejected=() if possible else (Rejected(id=_route_id(draft), because=blocking),),
        steps=_steps(draft) if possible else (),
        configs=_configs(prepared) if possible else {},
        precision=_precision(draft),
        findings=findings,
        candidates=tuple({"precision": name, "chosen": name == draft.precision} for name in draft.offered),
    )


def _route_id(draft: Draft) -> str:
    maker = "quark" if draft.needs_quark else "compiler"
    return f"{maker}-{draft.precision or 'unknown'}"


def _route(draft: Draft) -> Route:
    why, confidence, sources = _ROUTES["as-is" if draft.source == "qdq" else draft.precision]
    return Route(id=_route_id(draft), why=why, confidence=confidence, sources=sources)


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


def _configs(details: Prepared) -> dict[str, Any]:
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
