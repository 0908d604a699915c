"""The stage ``plan``: the findings on the request and its data, the route, the steps, and the type of each tensor."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from deploykit.accuracy.search.goals import GOAL
from deploykit.backend.plans import Plan, PlannedPrecision, Rejected, Route, Step
from deploykit_vitis_ai import configs
from deploykit_vitis_ai.draft import AS_IS, QuarkDraft, route_row
from deploykit_vitis_ai.exclusions import activation_types, in_float16
from deploykit_vitis_ai.prepare import QuarkPrepared

__all__ = ["make_plan"]


def make_plan(prepared: QuarkPrepared) -> Plan[None]:
    """Decides how one prepared request is packaged."""
    draft, findings = prepared.draft, prepared.findings
    situation = draft.situation
    blocking = tuple(dict.fromkeys(finding.code for finding in findings if finding.blocks))
    possible = draft.route is not None and not blocking
    row = route_row(AS_IS if draft.source == "qdq" else draft.precision)
    route = None
    if possible:
        assert row is not None
        why = row.why
        if draft.ladder:
            enough = f"reach {draft.goal}" if draft.goal is not None and draft.goal.name != GOAL else "are right"
            order = ", then ".join((draft.precision, "the same with its post-processing in float", *draft.ladder[1:]))
            why += f"; packaging measures and takes the first whose outputs {enough}: {order}"
        route = Route(_route_id(draft), why, confidence=row.confidence, sources=row.source)
    data = {path: name for name, path in prepared.files}
    entry = configs.calibration_entry(prepared.calibration, data, random=draft.random_data)
    files = dict[str, Any]()
    if possible:
        files[configs.SESSION] = configs.session_config(draft)
        compiler = configs.vitisai_config(draft)
        if compiler is not None:
            files[configs.CONFIG] = compiler
        if draft.needs_quark:
            files[configs.RECIPE] = configs.quantize_recipe(draft, entry, prepared.inputs)
        elif draft.precision == "bf16":
            files[configs.VALIDATION] = configs.validation_recipe(draft, prepared.inputs, entry)
    # The requested format for each activation, float for nodes that the user excluded.
    precision, made = PlannedPrecision(), draft.route
    if made is not None and made.activation and (made.maker != "quark" or draft.needs_quark):
        excluded = draft.exclusions.indices if draft.needs_quark else ()
        types = activation_types(draft.facts, excluded, made.activation)
        if draft.keep_float16:
            types = in_float16(draft.facts, excluded, types)
        precision = PlannedPrecision(types, dict(types))
    return Plan(
        backend="vitis-ai",
        target=situation.target.device.to_json(),
        sdk=situation.target.sdk_json(),
        route=route,
        rejected=() if possible else (Rejected(_route_id(draft), blocking),),
        steps=_steps(draft) if possible else (),
        configs=dict(sorted(files.items())),
        precision=precision,
        findings=findings,
        candidates=tuple({"precision": name, "chosen": name == draft.precision} for name in draft.offered),
    )


def _route_id(draft: QuarkDraft) -> str:
    maker = "quark" if draft.needs_quark else "compiler"
    return f"{maker}-{draft.precision or 'unknown'}"


def _steps(draft: QuarkDraft) -> tuple[Step, ...]:
    compiled = configs.compiled_model(draft)
    steps = []
    if draft.needs_quark:
        steps.append(
            Step(
                "quantize",
                tool="quark",
                argv=("python", "scripts/quantize.py"),
                inputs=(configs.float_model(draft), configs.RECIPE),
                outputs=(compiled,),
                note=f"in an environment with {draft.toolchain}",
            )
        )
    steps.append(
        Step(
            "compile",
            tool="VitisAIExecutionProvider",
            argv=("python", "scripts/compile.py"),
            inputs=(compiled, configs.SESSION),
            outputs=(f"{configs.CACHE}/{Path(compiled).stem}",),
            note=draft.product.compiled,
        )
    )
    steps.append(
        Step(
            "run",
            tool="VitisAIExecutionProvider",
            argv=("python", "scripts/run.py", "--data", "DATA", "--out", "artifacts/outputs"),
            inputs=(compiled, configs.SESSION),
            where="device",
        )
    )
    return tuple(steps)
