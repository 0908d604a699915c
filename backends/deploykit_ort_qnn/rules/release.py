"""Rules about what one release's provider does not do, before it compiles. Codes ORT019, ORT150, ORT160 to ORT162."""

from __future__ import annotations

from collections.abc import Iterator

from deploykit.encodings.values import Affine, Lpbq
from deploykit.findings import SubjectKind
from deploykit.findings.rules import Found, Registry
from deploykit.model.nodes import label, opset_of
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
    why="QAIRT 2.36.1 and 2.47.0 compute a block-quantized MatMul wrong (6 dB), and 2.36.1 refuses layers with LPBQ.",
    fix="Quantize these weights per channel, or take a later release.",
    sources=[_OLD, "onnxruntime-qnn 2.3.0 (QAIRT 2.47.0) on Linux x86-64: 5.6 dB where 2.4.0 has 31.6"],
)
def check_blocks_in_release(draft: Draft) -> Iterator[Found]:
    """Per-block and LPBQ weights where the wheel's row says that they are not taken."""
    refuses = forms_of(draft.wheel).refuses
    lpbq = "block-weights" in refuses
    if draft.prepared is None or not (lpbq or "per-block" in refuses):
        return
    for entry in draft.prepared.encodings:
        in_blocks = isinstance(entry.value, Affine) and entry.value.granularity == "per-block"
        if in_blocks or (lpbq and isinstance(entry.value, Lpbq)):
            message = f"{entry.name}: its blocks are not taken by onnxruntime-qnn {draft.wheel.version}"
            yield Found(kind=SubjectKind.TENSOR, name=entry.name, message=message)


@RULES.rule(
    "ORT160",
    "newer-than-the-wheel-reads",
    "error",
    what="The model is of a newer operator set or IR version than the ONNX Runtime of this wheel reads.",
    why="It refuses the file as a whole, before the provider sees a node.",
    fix="Export the model with an operator set that this wheel reads, or take a later release.",
    sources=["models of each operator set and IR version, opened with ONNX Runtime 1.18 to 1.31 and 1.22.2 under Wine"],
)
def check_reads(draft: Draft) -> Iterator[Found]:
    """The file that is compiled, against the limits in the wheel's row."""
    limits = draft.wheel.newest_read
    if limits is None:
        return
    model = draft.situation.model.proto if draft.prepared is None else draft.prepared.model
    opset = draft.situation.facts.opset if draft.prepared is None else opset_of(model)
    for words, has, most in (("operator set", opset, limits[0]), ("IR version", model.ir_version, limits[1])):
        if has > most:
            message = f"{words} {has}; onnxruntime-qnn {draft.wheel.version} reads up to {most}"
            yield Found(kind=SubjectKind.MODEL, name=draft.situation.model.path.name, message=message)


_FLOAT32 = (
    f"{_OLD}: the binary of a 512 by 512 layer holds weights of four bytes, its outputs are 140 dB from the CPU's; "
    "with tensors that are float16 in the file it holds two, and 70 dB"
)


@RULES.rule(
    "ORT161",
    "float-stays-float32",
    "error",
    what="The model is float, and the provider of this release compiles a float graph in float32, not in float16.",
    why="No option changes it (QAIRT 2.36.1). The chip computes in float16; what it does with such a graph, and how "
    "fast, is not known. Some operators are not finalized at all in float32.",
    fix="Quantize the model, or take a later release.",
    sources=[_FLOAT32],
)
def check_float_model(draft: Draft) -> Iterator[Found]:
    """A float source, for a wheel whose own row says so: it was seen with that release alone."""
    if draft.source == "float" and "float16-of-float" in draft.wheel.refuses:
        message = f"onnxruntime-qnn {draft.wheel.version} would compile it in float32"
        yield Found(kind=SubjectKind.MODEL, name=draft.situation.model.path.name, message=message)


@RULES.rule(
    "ORT162",
    "float-parts-stay-float32",
    "warning",
    what="Tensors are meant to be float16, and the provider of this release leaves them float32.",
    why="No option changes it (QAIRT 2.36.1): the parts are more exact than was asked for, and larger. How fast the "
    "chip is with them is not known.",
    fix="Give these tensors 16-bit integers, or take a later release.",
    sources=[_FLOAT32],
)
def check_float_parts(draft: Draft) -> Iterator[Found]:
    """Tensors of a quantized model whose intended type is float16."""
    if draft.prepared is None or "float16-of-float" not in draft.wheel.refuses:
        return
    tensors = sorted(name for name, kind in draft.prepared.intended.items() if kind == "float16")
    if tensors:
        message = f"{len(tensors)} tensors, of which the first is {tensors[0]}"
        yield Found(
            kind=SubjectKind.MODEL,
            name=draft.situation.model.path.name,
            message=message,
            evidence={"tensors": tensors},
        )


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
