"""Rules about the model: float16 storage, shapes, operator set, operators that fall to the CPU. They judge a draft."""

from __future__ import annotations

from typing import TYPE_CHECKING

from deploykit.encodings.post_processing import exclusion_around
from deploykit.findings import Severity, listed
from deploykit.findings.rules import Finds, Found, Registry
from deploykit.model.operators import RANGES, Trait, is_standard, ops
from deploykit_vitis_ai.inspection import grids_of, is_power_of_two
from deploykit_vitis_ai.tables import operators_in

if TYPE_CHECKING:
    from deploykit_vitis_ai.draft import QuarkDraft

__all__ = ["RULES"]


RULES: Registry[QuarkDraft] = Registry("draft")

_PAGE = 'AMD documentation page "Model Quantization", Vitis AI 6.2 (June 2026)'
_LAB = "observed with amd-quark 0.13, 0.12.post1 and 0.11.2 on Linux x86-64"


@RULES.rule("VAI113", "float16-source", "error", [_LAB, _PAGE], cure="half-to-float")
def check_float16(draft: QuarkDraft) -> Finds:
    """The model is stored in float16.

    Quark's modes for float16 models mostly write a file that ONNX Runtime rejects, or no file; the compiler is
    documented for float32 models. Such a model is written in float32, unless --keep-float16 is asked for.

    Fix: Export the model in float32.
    """
    # A float16 source, handled if a valid way was observed for this Quark.
    if draft.source != "float16":
        return
    way = draft.float16_way
    handled = None
    if draft.needs_quark and way is not None:
        what = "what is quantized" if draft.keep_float16 else "it"
        handled = f"quantize.py turns {what} into float32 first ({way.way} of {draft.toolchain})"
    message = f"float16 source for {draft.precision or 'no precision'}"
    cure = () if draft.keep_float16 else None
    yield Found("model", draft.facts.model_name, message, handled=handled, cure=cure)


@RULES.rule("VAI284", "bundled-quark-and-float16", "warning", [_PAGE, _LAB])
def check_bundled_float16(draft: QuarkDraft) -> Finds:
    """The model is stored in float16, and the vendor warns of that with the Quark that this release bundles.

    Quantizing float16 models to int8 is a feature of Quark 0.12; an older one was seen to make nothing, or models that
    ONNX Runtime rejects, in most ways.

    Fix: Export the model in float32, or quantize with --option quark=0.12.post1.
    """
    # A float16 source with the very Quark that the vendor's page warns about.
    release = draft.release
    if draft.source != "float16" or not draft.needs_quark or release is None or not release.float16_warning:
        return
    if draft.toolchain == release.toolchain:
        yield Found(
            "sdk", f"{release.name} {release.version}", f"{release.float16_warning}; {draft.toolchain} is used here"
        )


@RULES.rule(
    "VAI285",
    "float16-not-kept",
    "error",
    [_LAB, "AMD Quark documentation, Shapeshifter: onnx_convert_fp16_to_fp32, subgraphs_to_include"],
)
def check_kept_float16(draft: QuarkDraft) -> Finds:
    """What stays in float is to stay float16, and that is not possible here.

    The model is none in float16, or nothing is left out of quantizing, or this Quark turns whole models only.

    Fix: Leave --keep-float16 out, or use --option quark=0.12.post1 with --precision mixed.
    """
    # The option without a float16 model, an excluded part, or a Quark that can do it.
    if not draft.keep_float16:
        return
    wrong = (
        (draft.source != "float16", f"the model is {draft.source}"),
        (not draft.needs_quark or not draft.exclusions, "nothing of it stays in float beside integers"),
        (draft.float16_way is None, f"{draft.toolchain} turns whole models only"),
    )
    why = next((text for is_wrong, text in wrong if is_wrong), "")
    if why:
        yield Found("model", draft.facts.model_name, f"--keep-float16: {why}")


_DOC2 = "vitisai.docs.amd.com, projects/gen2, Vitis AI 6.2/6.3: operators, ops_support"
_ROSS = "repository Xilinx/ross-ai-assistant (AMD assistant skills, for Vitis AI 6.3+)"
_RAI = "repository amd/ryzen-ai-documentation, main = 1.8"


@RULES.rule("VAI121", "shape-not-static", "error", [_DOC2, _ROSS, _RAI], cure=("batch-of-one", "write-out-functions"))
def check_shapes(draft: QuarkDraft) -> Finds:
    """An input or output has a dimension that is not a number.

    On gen 2 the whole model then runs on the CPU, or the compiler crashes in lowering; Ryzen AI compiles dynamic
    batches for BF16 only, since 1.6. A batch that is open is 1 here.

    Fix: Fix the input shapes when you export the model (batch 1).
    """
    # What an open input leaves open is no fault of its own. VAI208 would refuse an output behind the quantizer, unless
    # shape inference does not know its operator.
    cut, outputs = "end the model before what makes it", draft.facts.outputs if draft.needs_quark else ()
    for kind, names, hint in (("input", draft.facts.inputs, ""), ("output", outputs, cut)):
        facts = [draft.facts.tensors[name] for name in names]
        if found := [fact for fact in facts if fact.static_shape is None and (fact.shape or not hint)]:
            for fact in found:
                yield Found(
                    "tensor",
                    fact.name,
                    f"{kind} {fact.name!r} has shape {list(fact.shape or ())}, and the compiler needs numbers",
                    hint=hint,
                )
            return


_PAIRS_SINCE = 10  # ONNX's QuantizeLinear and DequantizeLinear
_BFLOAT16_SINCE = 13  # ONNX's Cast


@RULES.rule("VAI122", "opset-out-of-range", "error", [_DOC2, _RAI], cure="raise-opset")
def check_opset(draft: QuarkDraft) -> Finds:
    """The operator set is newer than the compiler takes, or older than the quantizer needs.

    Gen 2 has all operators up to 20 and some of 21 and 22; operators of newer sets take the whole model to the CPU.
    Ryzen AI recommends 17. Quark quantizes a model of opset 9 into one that no runtime opens, and so it does with BF16,
    which only looks at the accuracy, before 13.

    Fix: Export the model with opset 17.
    """
    # The default domain's version compared with the product's range.
    opset, bounds = draft.facts.opset, draft.product.opset
    if bounds.last and opset > bounds.last:
        message, severity = f"opset {opset} is beyond {bounds.last}", Severity.ERROR
    elif bounds.full and opset > bounds.full:
        message, severity = f"opset {opset}: only some operators of it are supported", Severity.WARNING
    elif opset < _PAIRS_SINCE and draft.needs_quark:
        message, severity = f"opset {opset} has no DequantizeLinear, and Quark keeps the operator set", Severity.ERROR
    elif opset < _BFLOAT16_SINCE and "bf16" in (draft.precision, *draft.ladder):
        message, severity = f"opset {opset} has no Cast to bfloat16: nothing shows what it does", Severity.WARNING
    else:
        return
    yield Found("model", draft.facts.model_name, message, severity=severity)


@RULES.rule(
    "VAI123",
    "cpu-only-operator",
    "error",
    [_DOC2, "Ultralytics documentation, AMD integration page (format xilinx)", "repository amd/Vitis-AI 6.3"],
)
def check_cpu_only(draft: QuarkDraft) -> Finds:
    """An operator takes the whole model to the CPU.

    These operators have outputs of unknown shape; ONNX Runtime then runs everything on the CPU. Only with the
    CPU-partition passes, and with VART-ML as runtime, such a part runs beside the NPU.

    Fix: Cut the model before it and run that part on the host, or give --option cpu_partition=true and use VART-ML.
    """
    found = [node for node in draft.facts.nodes if node.op_type in draft.product.cpu_only]
    if not found:
        return
    handled = "the CPU-partition passes are set; run it with VART-ML" if draft.options.cpu_partition else None
    yield Found(
        "node",
        found[0].label,
        f"{listed([node.label for node in found])}: the whole model would run on the CPU",
        handled=handled,
    )


@RULES.rule("VAI124", "falls-to-cpu", "warning", [_DOC2, _RAI])
def check_operators(draft: QuarkDraft) -> Finds:
    """Operators have no mark for this number format in the vendor's tables.

    They run on the CPU and split the model; every split costs time.

    Fix: Replace them, or choose another format for that part.
    """
    for op in operators_in(draft.product.gap, draft.precision):
        found = [n for n in draft.facts.nodes if n.op_type == op and n.index not in draft.exclusions.indices]
        if found:
            yield Found(
                "node",
                found[0].label,
                f"{op} has no {draft.precision} on this NPU: {listed([node.label for node in found])}",
                evidence={"operator": op},
            )


@RULES.rule("VAI125", "batch-over-one", "warning", "amd/RyzenAI-SW#401")
def check_batch(draft: QuarkDraft) -> Finds:
    """The model has a static batch over 1 on Phoenix.

    Users found the results of every sample but the first unwritten (XINT8).

    Fix: Export with batch 1.
    """
    # A batch over 1 with XINT8 on an XDNA device.
    if draft.precision != "xint8" or draft.device_facts.get("provider_target") != "X1":
        return
    for name in draft.facts.inputs:
        shape = draft.facts.tensors[name].shape
        if shape and len(shape) > 2 and isinstance(shape[0], int) and shape[0] > 1:
            yield Found(
                "tensor", name, f"input {name!r} has batch {shape[0]}; users got no results but the first sample's"
            )


@RULES.rule("VAI126", "known-miscompilation", "warning", "amd/RyzenAI-SW#390")
def check_miscompilation(draft: QuarkDraft) -> Finds:
    """A model like this one was reported to give wrong results without a warning.

    A super-resolution net with PRelu exploded in BF16 on Ryzen AI 1.7.1, depending on the weights.

    Fix: Always compare the NPU's outputs with the CPU's ('deploykit accuracy compare').
    """
    # Operators in the product's table for this format.
    for op in operators_in(draft.product.miscompiled, draft.precision):
        found = [node for node in draft.facts.nodes if node.op_type == op]
        if found:
            yield Found(
                "node",
                found[0].label,
                f"{op} in {draft.precision.upper()} gave a user wrong results: {listed([one.label for one in found])}",
            )


@RULES.rule("VAI128", "ranges-mixed-at-output", "warning", _LAB)
def check_mixing(draft: QuarkDraft) -> Finds:
    """A Concat at an output joins a bounded operand (Sigmoid, Softmax …) with an unbounded one.

    One scale serves both: where the other operand is large, scores between 0 and 1 all become 0, while metrics over the
    whole tensor still look good.

    Fix: Leave the part around the Concat in float.
    """
    # Concats in front of an output, if the model is to be quantized.
    if not draft.needs_quark:
        return
    for output in draft.facts.outputs:
        concat = draft.facts.producer_of(output, "Concat")
        if concat is None or concat.index in draft.exclusions.indices:
            continue
        makers = ((name, draft.facts.maker_behind(name, ops(Trait.REARRANGES))) for name in concat.inputs)
        bounded = [name for name, node in makers if node and is_standard(node) and node.op_type in RANGES]
        if bounded and len(bounded) < len(concat.inputs):
            starts, ends = exclusion_around(draft.facts, concat)
            hint = "leave the part around the Concat in float (--exclude-node)"
            if starts:
                part = f"--exclude-subgraph '{','.join(starts)}:{','.join(ends)}'"
                hint = f"--precision {draft.precision_with_exclusions} {part}"
            yield Found(
                "node",
                concat.label,
                f"{concat.label} joins {', '.join(bounded)} (bounded) with operands of other ranges",
                hint=hint,
                evidence={"bounded": bounded},
            )


@RULES.rule("VAI120", "foreign-grid", "error", _ROSS)
def check_grids(draft: QuarkDraft) -> Finds:
    """A model that is quantized already has scales or zero points that the gen 2 compiler does not match.

    At the borders of its integer part it takes power-of-two scales with zero point 0 only; other Q and DQ nodes break
    the partition or fall to the CPU.

    Fix: Quantize the float model here (--precision vint8 or mixed).
    """
    # Scales and zero points of a QDQ model for gen 2.
    if draft.source != "qdq" or not draft.product.power_of_two_only:
        return
    grids = tuple(grids_of(draft.situation.model, draft.facts))
    bad = [grid.tensor for grid in grids if not all(map(is_power_of_two, grid.scales)) or any(grid.zero_points)]
    if bad:
        yield Found(
            "model",
            draft.facts.model_name,
            f"{len(bad)} of {len(grids)} grids are not power-of-two with zero point 0, for instance that of {bad[0]}",
            evidence={"tensors": bad[:50]},
        )
