"""Decides how one model is packaged for one chip through the provider, as a plan: route, steps, configurations.

It runs nothing. A requested SDK version means the QAIRT inside a wheel, whose tables are used.
"""

from __future__ import annotations

from typing import Any

from deploykit.backend.backend import MixedSupport
from deploykit.backend.plans import Plan, PlannedPrecision, Rejected, Route, Step
from deploykit.backend.targets import Target
from deploykit.findings import Confidence, exit_status
from deploykit.findings.records import Json, Names, replace
from deploykit.tables.devices import Device
from deploykit_ort_qnn.compiler.dlc import DLC
from deploykit_ort_qnn.prepare import ProviderDraft, wheel_for
from deploykit_ort_qnn.rules.prepared import RULES as DRAFT_RULES
from deploykit_qualcomm.carriers import forms_of, machines
from deploykit_qualcomm.devices import capability
from deploykit_qualcomm.resolving import resolve_target

__all__ = [
    "BINARY",
    "COMPILE",
    "CONTEXT",
    "GRAPHS",
    "MODEL",
    "RUN",
    "TAIL",
    "TYPES",
    "make_plan",
    "mixed_support",
    "resolve",
]

MODEL, CONTEXT, BINARY = "model/model.onnx", "artifacts/model_ctx.onnx", "artifacts/model_ctx_qnn.bin"
TAIL = "model/tail.onnx"
GRAPHS = "artifacts/qnn_graph_*.json"
"""The graphs that compile.py leaves, if the provider can write down the graphs it gives to the compiler."""


def steps(*, embed: bool, machines: str, beside: Names = ()) -> tuple[Step, ...]:
    """The steps of a package: compile on the host, run on the device. ``machines`` names the hosts that can compile.

    ``beside`` are further files that the compilation leaves beside the context.
    """
    made = (CONTEXT,) if embed else (CONTEXT, BINARY)
    return (
        Step(
            "compile",
            tool="onnxruntime-qnn",
            argv=("python3", "scripts/compile.py"),
            inputs=(MODEL,),
            outputs=(*made, *beside),
            note=f"runs on {machines}; needs no SDK",
        ),
        Step(
            "emulate",
            tool="onnxruntime-qnn",
            argv=("python3", "scripts/run.py", "--compare", MODEL),
            inputs=(CONTEXT, MODEL),
            note="emulator against CPU; its time says nothing about the device",
        ),
        Step(
            "run",
            tool="onnxruntime-qnn",
            argv=("python3", "scripts/run.py"),
            inputs=made,
            where="device",
            note="needs the wheel of the device's platform, QAIRT inside not older than the one that compiled",
        ),
    )


COMPILE, RUN = "config/compile_options.json", "config/run_options.json"
TYPES = "config/intended_types.json"
_OURS = ("ep.context_embed_mode", "session.disable_cpu_ep_fallback")


def build_configs(draft: ProviderDraft) -> Json:
    """The configuration files, by path. ``soc_model`` is always set for
    compiling; on the device the binary has its own.
    """
    mode = draft.options.get("finalization_mode")
    extra = {} if mode is None else {"htp_graph_finalization_optimization_mode": str(mode)}
    compile_options = {**draft.chosen.compile, **extra, "soc_model": str(draft.soc_model)}
    fallback = draft.chosen.allows_cpu
    return {
        COMPILE: {
            "provider_options": dict(sorted(compile_options.items())),
            "session_entries": {
                "ep.context_embed_mode": draft.chosen.entries.get("ep.context_embed_mode", "0"),
                "ep.context_enable": "1",
                **({} if fallback else {"session.disable_cpu_ep_fallback": "1"}),
                **{name: value for name, value in sorted(draft.chosen.entries.items()) if name not in _OURS},
            },
        },
        RUN: {
            "provider_options": dict(sorted({"htp_performance_mode": "burst", **draft.chosen.run}.items())),
            "session_entries": {} if fallback else {"session.disable_cpu_ep_fallback": "1"},
        },
    }


def resolve(device: Device, sdk: str | None) -> Target:
    """The target for a device and a version. Raises UnknownTargetError for a version that no wheel has or carries."""
    wheel = wheel_for(sdk)
    return replace(resolve_target(device, wheel.sdk, "ort-qnn"), requested=wheel.version if sdk else "")


def mixed_support(target: Target) -> MixedSupport:
    """The ways to mix float16 and integers on the target: mixes compile into one graph, and are compared."""
    fp16 = capability("fp16", device=target.device)
    segments = "the provider compiles one graph, in which float16 tensors may stand among integers"
    if fp16 is not None and not fp16.value:
        none = f"{target.device.name} has no float16"
        return MixedSupport(kinds=frozenset({"integer"}), without={"fallback": none, "segments": segments})
    return MixedSupport(
        kinds=frozenset({"integer", "fallback"}),
        safe=True,
        without={"segments": segments},
        confidence={"fallback": Confidence.OBSERVED},
    )


_ROUTES = {
    "encodings": ("qdq-from-encodings", "the encodings become Q/DQ of the model, in the form the provider takes"),
    "qdq": ("qdq", "the model's own Q/DQ are kept, in the form the provider takes"),
    "float": ("float16", "the model is float: the compiler makes FP16 of it"),
}

_ANSWERED = {
    "QNN236": "block scales up to 16 are stored as uint8, which the provider takes and computes rightly",
    "QNN241": "both operands are converted to symmetric int16",
    "QNN247": "the scale is written on the same grid, unsigned",
    "QNN248": "the scale is written on the same grid, unsigned",
    "QNN249": "the constant gets a grid of its own, or the sum becomes a layer with an int32 bias",
    "QNN253": "the pairs are completed; what is left is judged from the compiled types (ORT101)",
}
"""What the preparation does about a finding of a shared rule on the given model."""
_BY_STEP = {"QNN241": "int16-matmul"}
"""The step of the preparation that answers such a finding, if it can be left out."""


def make_plan(draft: ProviderDraft) -> Plan[None]:
    """Decides how one prepared model is packaged."""
    situation, target, prepared = draft.situation, draft.situation.target, draft.prepared
    # What the preparation already changed is judged by the compiler.
    steps_done = {} if prepared is None else {step.id: frozenset(step.names) for step in prepared.steps}
    rewritten, answered = frozenset[str]().union(*steps_done.values()), []
    for finding in draft.lint:
        name, answer, handled = finding.subject.name, _ANSWERED.get(finding.code, ""), ""
        if finding.code == "QNN320" and name in draft.cleared:
            handled = "the preparation writes it in a form that the row is not about"
        elif answer and prepared is not None and _BY_STEP.get(finding.code) in (None, *steps_done):
            handled = answer
        elif finding.blocks and name in rewritten and finding.subject.kind == "node":  # tensors get other grids alone
            handled = "deploykit rewrites it (see the steps in config/intended_types.json)"
        answered.append(finding.with_handled(handled) if handled else finding)
    findings = (*DRAFT_RULES.run(draft), *answered)
    if situation.opinions is not None:
        findings = situation.opinions.applied(findings)
    name, why = _ROUTES[draft.source]
    blocked = exit_status(findings) or exit_status(target.findings)
    precision = PlannedPrecision()
    if prepared is not None:
        intended = dict(prepared.intended)
        expected = {name: prepared.placed.get(name, kind) for name, kind in intended.items()}
        precision = PlannedPrecision(intended, expected)
    common: dict[str, Any] = {
        "backend": "ort-qnn",
        "target": target.device.to_json(),
        "sdk": {
            "name": "onnxruntime-qnn",
            "version": draft.wheel.version,
            "requested": target.requested,
            "qairt": draft.wheel.sdk,
            "table": "" if target.sdk is None else target.sdk.version,
            "exact": target.requested in ("", draft.wheel.version),
        },
        "precision": precision,
        "findings": findings,
    }
    if blocked:
        codes = tuple(dict.fromkeys(finding.code for finding in findings if finding.blocks))
        return Plan(route=None, rejected=(Rejected(name, codes, why=why),), **common)
    beside = (DLC,) if draft.options.get("dlc") else ()
    seen = Confidence.OBSERVED if forms_of(draft.wheel) is draft.wheel else Confidence.INFERRED
    return Plan(
        route=Route(name, why, confidence=seen, sources=draft.wheel.source),
        steps=steps(
            embed=draft.chosen.entries.get("ep.context_embed_mode") == "1",
            machines=machines(draft.wheel),
            beside=beside,
        ),
        configs=build_configs(draft),
        **common,
    )
