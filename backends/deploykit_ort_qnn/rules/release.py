"""Rules about what the provider of one release does not know, before anything is compiled. Code ORT019."""

from __future__ import annotations

from collections.abc import Iterator

from deploykit.encodings.values import Lpbq
from deploykit.findings import SubjectKind
from deploykit.findings.rules import Found, Registry
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
