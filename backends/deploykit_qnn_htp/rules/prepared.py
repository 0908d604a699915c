"""Rules about the draft as a whole, for any route: architecture, ranges, widths. They choose nothing."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from deploykit.encodings.values import Affine, Lpbq
from deploykit.findings import listed
from deploykit.findings.rules import Finds, Found, Registry
from deploykit.tables.capabilities import Status
from deploykit_qnn_htp.draft import ConversionDraft, Intent
from deploykit_qualcomm.devices import lacks
from deploykit_qualcomm.rules.views import dynamic_matmuls

__all__ = ["RULES", "about_encodings"]

RULES = Registry[ConversionDraft]("draft")


_CONVERTERS = ("qnn-onnx-converter", "qairt-converter")


def about_encodings(draft: ConversionDraft, message: str, names: Collection[str] | None = None, **more: Any) -> Found:
    """A finding about the encodings as a whole; ``names`` are the tensors concerned."""
    path = draft.situation.request.encodings
    if names is not None:
        message = f"{message}: {listed(list(names))}"
        more["evidence"] = {"tensors": list(names), **more.get("evidence", {})}
    return Found("encodings", "" if path is None else path.name, message, **more)


@RULES.rule(
    "QNN122",
    "float16-unsupported",
    "error",
    (
        "user guide verified on QAIRT 2.37 and QCS6490, public repository",
        "onnxruntime-qnn 2.7.0 run on Linux x86-64: one Relu in float and in 8 bits for every soc_model",
    ),
)
def check_float16(draft: ConversionDraft) -> Finds:
    """Tensors that stay float on a chip without float16.

    On v68 the context binary generator aborts with exit status 134 when float operations are left. Mid-range chips of
    later architectures have no float units either: the compiler of 2.51 refuses a float operator for them.

    Fix: quantize everything (w8a16 keeps most of the accuracy), or choose a device with float16 ('deploykit targets')
    """
    floats = sorted(draft.after.predicted if draft.after is not None else ())
    whole = draft.intent in (Intent.FLOAT16, Intent.FLOAT32)
    device, row = draft.situation.target.device, draft.sdk.feature("fp16", arch=draft.arch)
    own = device.facts.get("fp16")
    unsupported = row is not None and row.status is Status.UNSUPPORTED
    if not (lacks("fp16", device) or unsupported) or not (whole or floats):
        return
    if draft.intent is Intent.INTEGER and draft.situation.request.calibration is not None:
        return  # the gaps are calibrated, none stays float
    subject = "the whole model" if whole else f"{len(floats)} tensors ({listed(floats)})"
    yield Found(
        "target",
        draft.situation.target.device.id,
        f"{subject} would be float, which {draft.arch if own is None else device.name} cannot run",
        sources=own.source if own is not None else row.source if row is not None else (),
        evidence={"tensors": floats},
    )


@RULES.rule(
    "QNN123",
    "matmul-16-bit",
    "error",
    (
        "pytorch/executorch backends/qualcomm quantizer/annotators/htp_rules.py",
        "QNN SDK documentation 80-63442-2 Rev BL (2025-06-11, about QAIRT 2.35): qairt-quantizer",
    ),
)
def check_matmul_16(draft: ConversionDraft) -> Finds:
    """A MatMul of two activations whose second operand is 16-bit, on v68 or v69.

    The second operand is treated as a weight there, and 16-bit weights need v73 (has incorrect Value 68, expected >=
    73).

    Fix: encode the second operand with 8 bits, or choose a device with v73 or newer
    """
    row = draft.sdk.feature("matmul-16bit", arch=draft.arch)
    if row is None or row.status not in (Status.UNSUPPORTED, Status.BROKEN) or draft.completed is None:
        return
    for node in dynamic_matmuls(draft.situation):
        entry = draft.completed.get(node.inputs[1])
        if entry is not None and entry.dtype in ("int16", "uint16"):
            yield Found(
                "node",
                node.label,
                f"{node.label}: the second operand {node.inputs[1]} is {entry.dtype}, which needs v73",
                sources=row.source,
            )


@RULES.rule(
    "QNN124",
    "block-quantization-unsupported",
    "error",
    (
        "pytorch/executorch backends/qualcomm quantizer/annotators/htp_rules.py validate_lpbq_support",
        "onnxruntime/onnxruntime-qnn#476",
        "qualcomm/aimet#4069",
    ),
)
def check_block_quantization(draft: ConversionDraft) -> Finds:
    """Weights quantized per block in a form that this architecture or SDK does not take.

    LPBQ needs v69; true block quantization (a float scale per block) is known to work from QAIRT 2.47 on and only
    through ONNX Runtime's provider.

    Fix: use per-channel int4 or int8 weights, or LPBQ on v69 and newer
    """
    # LPBQ and block entries against the feature rows.
    for kind in ("lpbq", "per-block"):
        # A list that fits no axis of its tensor can only be one item per block (0.6.1 does not say the block size).
        names = [
            entry.name
            for entry in draft.completed or ()
            if (entry.value.granularity if getattr(entry.value, "placed", True) else "per-block") == kind
        ]
        # For blocks with a float scale the converters' row counts: the provider's abilities do not help here.
        blocks = (row for row in draft.sdk.features if row.feature == "bq" and row.tool in _CONVERTERS)
        row = draft.sdk.feature("lpbq", arch=draft.arch) if kind == "lpbq" else next(blocks, None)
        status = Status.UNKNOWN if row is None else row.status
        # A float scale per block has no known way through the converters, so unknown is not good enough for it.
        if not names or status is Status.SUPPORTED or (status is Status.UNKNOWN and kind == "lpbq"):
            continue
        where = f"{draft.arch} with {draft.sdk.sdk} {draft.sdk.version}"
        yield about_encodings(
            draft,
            f"{len(names)} weights are {kind} quantized, which is {status} on {where}",
            names,
            sources=() if row is None else row.source,
        )


@RULES.rule("QNN125", "float8-unsupported", "error", "aimet-onnx 2.42.0 (refuses to export float8 below 2.0.0)")
def check_float8(draft: ConversionDraft) -> Finds:
    """Weights or activations encoded as float8.

    No public source knows a float8 path through QAIRT to the HTP, and encodings below 2.0.0 cannot hold it.

    Fix: use int8 for these tensors
    """
    names = [entry.name for entry in draft.completed or () if entry.dtype.startswith("float8")]
    if names:
        yield about_encodings(draft, f"{len(names)} tensors are float8, which no known route takes", names)


@RULES.rule(
    "QNN126",
    "weight-width-unsupported",
    "error",
    (
        "argument lists recorded in generated model.cpp files (QAIRT 2.25 to 2.50), public repositories",
        "QAIRT revision history 80-63442-10 (2.49)",
    ),
)
def check_weight_width(draft: ConversionDraft) -> Finds:
    """Weights of a width that the converters do not take.

    --weights_bitwidth takes 4, 8 and 16; 2-bit weights are listed for one operation from QAIRT 2.49 on only.

    Fix: use 4 or 8 bits
    """
    # Integer entries of other widths: 1, 2, 3 … bits.
    odd = {
        entry.name: entry.dtype
        for entry in draft.completed or ()
        if isinstance(entry.value, Affine | Lpbq) and entry.value.bits not in (4, 8, 16, 32)
    }
    if odd:
        yield about_encodings(
            draft,
            f"{len(odd)} tensors are {', '.join(sorted(set(odd.values())))}, which the converter does not take",
            odd,
        )


@RULES.rule(
    "QNN128",
    "float-set-by-omission",
    "warning",
    ("qualcomm/aimet#4102", "aimet-onnx 2.31.0 and 2.42.0 (read and run)"),
    cure="simplify",
)
def check_omission(draft: ConversionDraft) -> Finds:
    """Encodings that leave tensors out without saying that they are meant to be float.

    AIMET 2.31 and before disable the quantizers of float16 layers, and 2.0.0 files have no float16 entry at all, so
    that the file cannot tell 'meant to be float16' from 'never quantized'.

    Fix: compare the list with your float16 set; name the set with --float-tensors FILE to make it explicit
    """
    # A float set that was derived from omissions.
    if draft.intent is not Intent.MIXED or draft.before is None or draft.before.explicit:
        return
    names = sorted(draft.float_set)
    yield about_encodings(draft, f"{len(names)} tensors have no entry and are taken as float16", names)


@RULES.rule(
    "QNN129",
    "encodings-empty",
    "error",
    "aimet-onnx 2.42.0 (exports an empty list for an all-float16 model)",
)
def check_not_empty(draft: ConversionDraft) -> Finds:
    """Encodings without a single entry.

    A 2.0.0 file of an all-float16 model is empty. Entries of which none names a tensor of the model are DK102.

    Fix: say what is wanted: --precision fp16 without --encodings, or the right file
    """
    source = draft.source
    if source is None or draft.situation.request.precision is not None:
        return
    if not len(source) and not source.float_tensors:
        yield about_encodings(draft, "they hold no entry")


@RULES.rule(
    "QNN130",
    "integers-cross-segments",
    "info",
    ("QNN SDK manual, options of qnn-net-run (public copies)", "IEEE 754 binary32"),
)
def check_crossing_integers(draft: ConversionDraft) -> Finds:
    """Integer tensors, such as indices, that one segment makes and another one reads.

    qnn-net-run writes outputs and reads inputs as files of 32-bit floats unless it is told otherwise, and these hold
    whole numbers exactly up to 16,777,216 only. An application that chains the segments itself sees int32.

    Fix: nothing for smaller values; else keep the operators that make and read them in one segment
    """
    # Tensors handed in that are not float.
    tensors = draft.situation.facts.tensors
    for name in draft.handed_in:
        if name in tensors and tensors[name].dtype and not tensors[name].is_float:
            yield Found(
                "tensor", name, f"{name} ({tensors[name].dtype}) crosses between segments, in files of 32-bit floats"
            )
