"""Rules about what the provider of one release does not know, before anything is compiled. Codes ORT019 and ORT150."""

from __future__ import annotations

from collections.abc import Iterator

from deploykit.encodings.values import Lpbq
from deploykit.findings import SubjectKind
from deploykit.findings.rules import Found, Registry
from deploykit.graph.nodes import label
from deploykit_ort_qnn.prepare import Draft
from deploykit_qualcomm.carriers import forms_of

__all__ = ["RULES"]

_OLD = "onnxruntime-qnn 1.22.2 (QAIRT 2.36.1) for Windows, run under Wine 8.0 on Linux x86-64 without hardware"

RULES: Registry[Draft] = Registry("ort-qnn release")


@RULES.rule(
    "ORT019",
    "blocks-not-in-this-release",
    "error",
    what="A weight is quantized per block, or in LPBQ, and the provider of this release does not know these forms.",
    why="QAIRT 2.36.1 computes a block-quantized MatMul wrong (6.6 dB) and refuses the layers with LPBQ weights.",
    fix="Quantize these weights per channel, or take a later release.",
    sources=[_OLD],
)
def check_blocks_in_release(draft: Draft) -> Iterator[Found]:
    """Per-block and LPBQ weights where the wheel's row says that they are not taken."""
    if draft.prepared is None or "block-weights" not in forms_of(draft.wheel).refuses:
        return
    for entry in draft.prepared.encodings:
        if entry.value.granularity == "per-block" or isinstance(entry.value, Lpbq):
            message = f"{entry.name}: its blocks are not taken by onnxruntime-qnn {draft.wheel.version}"
            yield Found(kind=SubjectKind.TENSOR, name=entry.name, message=message)


@RULES.rule(
    "ORT150",
    "operator-not-in-release",
    "error",
    what="The provider of this release does not have an operator, and nothing that it has is equal here.",
    why='It leaves such a node to the CPU, so that the model is not compiled wholly ("not supported by QNN EP").',
    fix="Export it in other operators, take a later release, or allow the CPU.",
    sources=[_OLD],
)
def check_operators_in_release(draft: Draft) -> Iterator[Found]:
    """Nodes of the prepared model whose type the wheel's row names as absent."""
    if draft.prepared is None or draft.chosen.allows_cpu:
        return
    for node in draft.prepared.model.graph.node:
        if node.op_type in draft.wheel.absent:
            message = f"{node.op_type} {label(node)}: onnxruntime-qnn {draft.wheel.version} does not have it"
            yield Found(kind=SubjectKind.NODE, name=label(node), message=message)
