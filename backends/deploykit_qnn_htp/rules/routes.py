"""Rules about one route for one draft: an unhandled error rejects the route.

They only read the draft and the tables.
"""

from __future__ import annotations

from typing import Any

from deploykit.encodings.values import Float
from deploykit.findings import Severity
from deploykit.findings.rules import Finds, Found, Registry
from deploykit.tables.capabilities import Status
from deploykit_qnn_htp.draft import Intent, RouteCandidate
from deploykit_qnn_htp.rules.prepared import about_encodings
from deploykit_qualcomm.rules.views import dynamic_matmuls

__all__ = ["RULES"]

RULES = Registry[RouteCandidate]("route")


def _about_sdk(candidate: RouteCandidate, message: str, **more: Any) -> Found:
    return Found("sdk", candidate.draft.sdk.version, message, **more)


@RULES.rule(
    "QNN101",
    "silent-8-bit-downgrade",
    "error",
    (
        "qualcomm/aimet#4102 (strategy 1, and the comment of 2026-06-08)",
        "QNN SDK documentation 80-63442-2 Rev BL (2025-06-11, about QAIRT 2.35): wording of the options",
    ),
)
def check_silent_downgrade(candidate: RouteCandidate) -> Finds:
    """Encodings that leave float tensors out, together with a calibration list.

    With --input_list quantizer V1 calibrates every tensor without an encoding and makes it UFIXED_POINT_8: the layers
    that were meant to stay float16 are downgraded to 8 bit without a word.

    Fix: convert with --float_fallback and without an input list, as deploykit's float-fallback route does: on 2.33 a
    user's run of that got through, with the post-processing cut off
    """
    # Strategy 1 of qualcomm/aimet#4102.
    draft = candidate.draft
    if not (candidate.route.input_list and draft.intent is Intent.MIXED):
        return
    bits = draft.widths[1]
    names = sorted(draft.float_set)
    yield about_encodings(
        draft,
        f"{len(names)} tensors meant to be float16 would become UFIXED_POINT_{bits} with --input_list "
        "(UFIXED_POINT_8 at the converter's default)",
        names,
        evidence={"would_become": "UFIXED_POINT_8"},
    )


@RULES.rule(
    "QNN102",
    "explicit-float-entries",
    "error",
    "qualcomm/aimet#4102 (strategy 2, and the comment of 2026-06-08)",
)
def check_explicit_floats(candidate: RouteCandidate) -> Finds:
    """Encodings with explicit float16 entries for a converter whose quantizer V1 cannot take them.

    With --input_list qnn-onnx-converter 2.33 stops in mixed_precision_processing with setQInfo, quantizable flag 0,
    when a constant stands next to a tensor that was forced to float. With --float_fallback and no list it does not,
    says a comment of 2026-06-08, whose author had cut the post-processing off.

    Fix: convert with --float_fallback and without an input list, in the omit form of the same intent, or use
    qairt-converter
    """
    # Strategy 2 of qualcomm/aimet#4102.
    draft, route = candidate.draft, candidate.route
    names = sorted(entry.name for entry in draft.source or () if isinstance(entry.value, Float))
    if not names or route.explicit_float or route.quantizer_v2 or not route.legacy or not route.encodings:
        return
    row = draft.sdk.feature("explicit-float-entries", tool=route.tool)
    status = Status.UNKNOWN if row is None else row.status
    if status is Status.SUPPORTED:
        return
    yield about_encodings(
        draft,
        f"{len(names)} explicit float16 entries are {status} with {route.tool} of {draft.sdk.sdk} {draft.sdk.version}",
        names,
        severity=Severity.WARNING if status is Status.UNKNOWN else Severity.ERROR,
        handled="the encodings are written without these entries (omit form), and there is no input list, so they "
        "stay float16"
        if route.float_fallback
        else None,
        sources=() if row is None else row.source,
        evidence={"status": str(status)},
    )


@RULES.rule("QNN103", "encodings-version-unread", "error", "qualcomm/aimet#4102")
def check_encodings_version(candidate: RouteCandidate) -> Finds:
    """Encodings in a version that the converter of this SDK does not read.

    A 2.0.0 file stops qnn-onnx-converter 2.33 with KeyError 'param_encodings'.

    Fix: export 0.6.1 or 1.0.0, or let deploykit convert
    """
    # Strategy 3 of qualcomm/aimet#4102.
    draft, route = candidate.draft, candidate.route
    if draft.source is None or not route.encodings or draft.source.version in ("", "qdq"):
        return
    given = "2.0.0" if draft.source.version.startswith("2.") else draft.source.version
    row = draft.sdk.feature(f"encodings-{given}", tool=route.tool)
    if row is None or row.status is not Status.UNSUPPORTED:
        return
    written = candidate.version
    yield about_encodings(
        draft,
        f"{route.tool} of {draft.sdk.sdk} {draft.sdk.version} does not read encodings {given}"
        + (f" ({row.note})" if row.note else ""),
        handled=None if written is None else f"the encodings are converted to {written}",
        sources=row.source,
        evidence={"version": given, "written": written},
    )


@RULES.rule("QNN104", "no-encodings-version", "error", "aimet-onnx 2.42.0 (its own export refuses them)")
def check_writable(candidate: RouteCandidate) -> Finds:
    """Encodings that no version this route can be given is able to express.

    0.6.1 cannot hold LPBQ, block or float8 entries, 1.0.0 no float8 ones, and none more than can be read back: some
    1.4 million scales in 0.6.1, ten times as many in 1.0.0.

    Fix: choose another precision for these tensors, or cut the model with --parts where it is their number
    """
    draft, route = candidate.draft, candidate.route
    if draft.completed is None or not route.encodings or candidate.version is not None:
        return
    kinds = sorted({entry.value.granularity for entry in draft.completed} - {"per-tensor", "per-channel"})
    versions = ", ".join(route.encodings)
    yield about_encodings(
        draft,
        f"no encodings version that {route.tool} of {draft.sdk.version} may be given ({versions}) can hold "
        f"these {len(draft.completed):,} entries{': ' + ', '.join(kinds) if kinds else ''}",
        evidence={"granularities": kinds},
    )


@RULES.rule("QNN105", "gaps", "error", ("qualcomm/aimet#4090", "AIMET repository discussion 3902"))
def check_gaps(candidate: RouteCandidate) -> Finds:
    """Tensors without an encoding in a plan that is meant to be wholly integer.

    Without an input list a gap falls back to float, which changes the precision and is fatal where the architecture has
    no float16; with one it is calibrated at the given width.

    Fix: export the encodings with all tensors (export_int32_bias=True), or give --calibration data
    """
    draft, route = candidate.draft, candidate.route
    if draft.intent is not Intent.INTEGER or not draft.gaps:
        return
    filled = f"calibrated from the input list at {draft.widths[1]} bit" if route.input_list else None
    yield about_encodings(
        draft, f"{len(draft.gaps)} tensors have no encoding and none can be derived", draft.gaps, handled=filled
    )


@RULES.rule(
    "QNN106",
    "quantizer-v2-absent",
    "error",
    (
        "qualcomm/aimet#4102",
        "argument lists recorded in generated model.cpp files (QAIRT 2.25 to 2.50), public repositories",
    ),
)
def check_quantizer_v2(candidate: RouteCandidate) -> Finds:
    """A route through quantizer V2 under an SDK that is not known to have it.

    --use_quantize_v2 is refused by converters that do not have it; 2.35 and 2.36 may hold a partial form.

    Fix: use another route, or QAIRT 2.37 and later
    """
    sdk, tool = candidate.draft.sdk, candidate.route.tool
    row, status = sdk.feature("quantizer-v2", tool=tool), sdk.status("quantizer-v2", tool=tool)
    if candidate.route.quantizer_v2 and status is not Status.SUPPORTED:
        note, sources = ("", ()) if row is None else (row.note, row.source)
        message = f"quantizer V2 is {status} in {sdk.version}{f': {note}' if note else ''}"
        yield _about_sdk(candidate, message, sources=sources, evidence={"status": str(status)})


@RULES.rule("QNN107", "quantizer-v2-accuracy", "warning", "qualcomm/aimet#4090")
def check_quantizer_v2_accuracy(candidate: RouteCandidate) -> Finds:
    """A route through quantizer V2.

    Results that compile and are wrong were reported: mAP 0 on 2.44 with the default signedness of activations. Biases
    without an int32 entry count as missing and turn into float.

    Fix: compare with a reference on the device; keep symmetric activations signed (force_activation_as=None)
    """
    if candidate.route.quantizer_v2:
        yield _about_sdk(
            candidate, "quantizer V2 is a beta feature by AIMET's own word, and zero accuracy was reported with it"
        )


@RULES.rule("QNN108", "float-set-differs", "warning", ("AIMET repository discussion 3902", "qualcomm/aimet#4090"))
def check_float_set(candidate: RouteCandidate) -> Finds:
    """Tensors that will stay float although they have, or should have, an integer encoding; or the reverse.

    A converter with float fallback propagates encodings over data-movement ops only; every other tensor without an
    entry becomes float, which adds conversions at its borders.

    Fix: add encodings for these tensors, or accept them as float16
    """
    draft = candidate.draft
    if draft.intent is not Intent.MIXED or draft.after is None:
        return
    lost = sorted(draft.float_set - draft.after.predicted - draft.after.absorbed.keys())
    if draft.gaps:
        yield about_encodings(draft, f"{len(draft.gaps)} tensors will be float16 though not meant to be", draft.gaps)
    if lost:
        yield about_encodings(draft, f"{len(lost)} tensors are meant to be float16 but will be quantized", lost)


@RULES.rule("QNN109", "mixed-operands-matmul", "error", "qualcomm/aimet#4090")
def check_mixed_matmul(candidate: RouteCandidate) -> Finds:
    """A MatMul of two activations, one float16 and the other unsigned 8-bit.

    Quantizer V1 leaves such a pair as it is, and the context binary generator has no kernel for FLOAT_16 by
    UFIXED_POINT_8 (the mixed kernel of 2.44 takes SFIXED_POINT_8 only).

    Fix: give both operands the same kind: float16 or an integer width
    """
    # Both operands are computed and differ in kind.
    draft = candidate.draft
    if draft.after is None or draft.completed is None or draft.intent is not Intent.MIXED:
        return
    # The provider converts an operand of another type.
    for node in () if candidate.route.by_provider else dynamic_matmuls(draft.situation):
        floats, others = list[str](), list[str]()
        for name in node.inputs[:2]:
            (floats if name in draft.after.predicted else others).append(name)
        entry = draft.completed.get(others[0]) if len(others) == 1 else None
        if entry is not None and entry.dtype == "uint8":
            message = f"{node.label} would multiply float16 {floats[0]} by uint8 {entry.name}"
            yield Found("node", node.label, message, evidence={"operands": list(node.inputs[:2])})


@RULES.rule("QNN111", "encodings-version-unproven", "info", "qualcomm/aimet#4069")
def check_version_proven(candidate: RouteCandidate) -> Finds:
    """Encodings are written in a version of which nobody reported that this converter reads it.

    The first release that reads each version is not published.

    Fix: watch for 'Processed 0 quantization encodings' in the converter's log
    """
    version = candidate.version
    if version is None or candidate.draft.completed is None:
        return
    tool, sdk = candidate.route.tool, candidate.draft.sdk
    row = sdk.feature(f"encodings-{version}", tool=tool)
    if row is None or row.status is Status.UNKNOWN:
        message = f"whether {tool} of {sdk.version} reads encodings {version} is not established"
        sources = () if row is None else row.source
        yield _about_sdk(candidate, message, sources=sources, evidence={"status": str(Status.UNKNOWN)})


@RULES.rule(
    "QNN112",
    "calibration-missing",
    "error",
    (
        "converter quantizer module of a 2023 SDK, seen in a public repository",
        "argument lists recorded in generated model.cpp files (QAIRT 2.25 to 2.50), public repositories",
    ),
)
def check_calibration(candidate: RouteCandidate) -> Finds:
    """A precision that only calibration can give, without calibration data.

    Encodings come from data; without an input list quantizer V1 quantizes nothing at all.

    Fix: give --calibration DIR|FILE.npz, or --encodings
    """
    # The route needs an input list, and there is no data for it.
    if candidate.route.input_list and candidate.draft.situation.request.calibration is None:
        yield Found("data", "calibration", f"route {candidate.route.id} needs calibration data and none was given")
