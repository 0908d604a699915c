"""The provider's compiler as a second opinion for another route: it compiles a model and reports, nothing is kept.

Its QAIRT is the one inside the wheel and not the user's SDK, which every answer says.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from onnx import ModelProto

from deploykit.backend.backend import Progress
from deploykit.system.folders import scratch
from deploykit.tables.devices import Device
from deploykit_ort_qnn.compiler import CompileJob, compile_model, installed_wheel
from deploykit_ort_qnn.evidence import precision_scope
from deploykit_ort_qnn.provider_model import provider_model
from deploykit_ort_qnn.rules.compiled import RULES as COMPILE_RULES
from deploykit_ort_qnn.rules.precision import RULES as PRECISION_RULES
from deploykit_qualcomm.archs import has

__all__ = ["preflight"]


def preflight(model: bytes, device: Device, progress: Progress) -> Mapping[str, Any]:
    """``available``, and if so the verdict (``status``), findings as published, and which compiler it was."""
    wheel, soc = installed_wheel(), device.fact("soc_model")
    if wheel is None or not isinstance(soc, int):
        why = "onnxruntime-qnn is not installed" if wheel is None else f"{device.id}: soc_model is not known"
        return {"available": False, "why": why}
    given = ModelProto.FromString(model)
    quantized = any(node.op_type == "DequantizeLinear" for node in given.graph.node)
    prepared = provider_model(given, None, int16_matmul=has("matmul_16bit", device)) if quantized else None
    with scratch() as folder:
        root = folder
        compiled = given if prepared is None else prepared.model
        (root / "model.onnx").write_bytes(compiled.SerializeToString())
        job = CompileJob(root=root, model="model.onnx", context="context.onnx", options={"soc_model": str(soc)})
        outcome = compile_model(job, progress)
    findings = list(COMPILE_RULES.run(outcome))
    if outcome.ok:
        types, stored = ({}, {}) if prepared is None else (prepared.intended, prepared.stored)
        scope = precision_scope(compiled, outcome.graphs, outcome.schematics, types, stored, strict=False)
        findings += PRECISION_RULES.run(scope)
    return {
        "available": True,
        "status": outcome.status,
        "ok": outcome.ok,
        "compiler": f"onnxruntime-qnn {wheel['wheel']}",
        "qairt": wheel["qairt"],
        "note": f"this is QAIRT {wheel['qairt']} inside the wheel, not the SDK of the package",
        "rewrites": [] if prepared is None else [step.to_json() for step in prepared.steps],
        "findings": [finding.to_json() for finding in findings],
    }
