"""Rules about a model, a chip and a release before anything is compiled. Codes ORT001 to ORT099, ORT150 to ORT169.

Nothing is started here.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from deploykit.findings import Answerer, Claim, Confidence, Severity
from deploykit.findings.rules import Finds, Found, Registry
from deploykit.model.facts import NodeFact
from deploykit.model.nodes import label, opset_of
from deploykit.model.operators import is_standard
from deploykit.model.patterns import find_blocks
from deploykit.tables.capabilities import Status
from deploykit_qualcomm.carriers import forms_of
from deploykit_qualcomm.rules.views import at_node

if TYPE_CHECKING:
    from deploykit_ort_qnn.prepare import ProviderDraft

__all__ = ["RULES"]

_LAB = "onnxruntime-qnn 2.7.0 (QAIRT 2.51) with ONNX Runtime 1.31.1, run on Linux x86-64 without hardware"
_HANDLED = {
    "widen-log": "the output's grid is widened",
    "symmetric-blocks": "the weights are stored as symmetric 8-bit blocks",
    "one-width": "the 8-bit sides are converted to 16 bits",
    "int16-matmul": "both operands are converted to symmetric int16",
    "clip-ends": "the grid ends where the Clip does",
    "softmax-step": "the input has a step that the kernel takes as it is",
    "gate-apart": "the Sigmoid reads x in other steps",
}

_SEEN = Claim(Answerer.TOOLS, Confidence.OBSERVED, seen_with="2.51")
_LIKELY = Claim(Answerer.TOOLS, Confidence.INFERRED, seen_with="2.51")
"""Refused where it was tried; that it is refused together with its neighbours in this model is inferred."""

_NEAR = 1e-3
_LEAST_OPSET = 7
_COMPARES_SINCE, _CLIPS_SINCE = 16, 11


RULES: Registry[ProviderDraft] = Registry("ort-qnn plan")
_rule = partial(RULES.rule, sources=[_LAB])


def _floats(draft: ProviderDraft, *kinds: str) -> list[NodeFact]:
    """The nodes of some operators, in a model without encodings; those of any other run in what their encodings say."""
    return [node for node in draft.situation.facts.nodes if draft.source == "float" and node.op_type in kinds]


@_rule("ORT001", "no-soc-model", "error")
def check_soc_model(draft: ProviderDraft) -> Finds:
    """The chip's number (soc_model) is not known.

    Without it the provider compiles for another chip, or in FP32, without a message.

    Fix: Choose a device whose soc_model is known; 'deploykit targets' shows it.
    """
    if draft.soc_model is None:
        device = draft.situation.target.device
        yield Found("target", device.id, f"{device.name}: its soc_model is not known")


@RULES.rule("ORT002", "needs-encodings", "error", "docs/ort-qnn.md")
def check_needs_encodings(draft: ProviderDraft) -> Finds:
    """An integer precision was asked for, but the model is float and no encodings were given.

    Ranges come from a calibration; deploykit invents none.

    Fix: Give --encodings, or a QDQ model.
    """
    # A float model with an integer precision.
    if draft.source == "float" and draft.precision not in ("", "fp16"):
        name = draft.situation.request.model.name
        yield Found("model", name, f"{name}: {draft.precision} needs encodings")


@_rule("ORT003", "float8-weights", "error", claim=_SEEN)
def check_float8(draft: ProviderDraft) -> Finds:
    """A weight is quantized to float8.

    The provider takes no float8; every layer with such a weight is refused.

    Fix: Quantize these weights to int8 or int4.
    """
    for name in () if draft.prepared is None else draft.prepared.float8:
        yield Found("tensor", name, f"{name}: float8 is not taken by the provider")


@_rule("ORT004", "float-without-fp16", "error")
def check_fp16(draft: ProviderDraft) -> Finds:
    """A float model is to be compiled for a chip without FP16.

    The compiler makes an FP32 binary of it, without an error; the HTP has no FP32 unit.

    Fix: Quantize the model, or take a chip with FP16 (HTP v69 and later).
    """
    if draft.source == "float" and draft.fp16 is False:
        device = draft.situation.target.device
        yield Found("target", device.id, f"{device.name} has no FP16")


@_rule("ORT005", "blocks-need-fp16", "error")
def check_blocks_fp16(draft: ProviderDraft) -> Finds:
    """Block-quantized weights are to be compiled for a chip without FP16.

    The provider computes them in FP16 and refuses them on HTP v68.

    Fix: Use per-channel int4 or int8 weights, or take a chip with v69 or later; --lpbq makes integer layers of them
    there.
    """
    if draft.fp16 is False:
        for name in _block_weights(draft):
            yield Found("tensor", name, f"{name}: block-quantized, and the chip has no FP16")


@RULES.rule("ORT006", "blocks-run-in-fp16", "warning", [_LAB, "onnxruntime/onnxruntime-qnn#476"])
def check_blocks(draft: ProviderDraft) -> Finds:
    """Block-quantized weights make their layer run in FP16.

    The provider dequantizes the layer's input and quantizes its result; an integer plan is a float one there.

    Fix: --lpbq makes integer layers of them, with a loss that is reported per weight.
    """
    if draft.fp16 is not False:
        for name in _block_weights(draft):
            strict = Severity.ERROR if draft.is_strict else None
            yield Found("tensor", name, f"{name}: block-quantized, so its layer runs in FP16", severity=strict)


@RULES.rule("ORT007", "encoding-not-written", "warning", "ONNX operators QuantizeLinear and DequantizeLinear")
def check_skipped(draft: ProviderDraft) -> Finds:
    """An encoding cannot be written as Q/DQ.

    The tensor stays float; the nodes around it follow.

    Fix: The message says what does not fit; correct the encoding.
    """
    for name, why in draft.prepared.skipped.items() if draft.prepared is not None else ():
        yield Found("tensor", name, f"{name}: {why}")


@_rule("ORT008", "operand-will-be-narrowed", "warning", cure="simplify")
def check_narrowing(draft: ProviderDraft) -> Finds:
    """The second operand of a 16-bit MatMul of two activations will be read with 8 bits.

    HTP v68 and v69 have no MatMul with two 16-bit operands; the provider converts one without a message.

    Fix: Accept it, or take HTP v73 and later, where deploykit keeps 16 bits.
    """
    # MatMuls of two 16-bit activations that cannot be converted to int16.
    # Where the provider refuses the form that keeps 16 bits, another chip does not help.
    refuses = "symmetric-int16" in forms_of(draft.wheel).refuses
    hint = f"Accept it, or take another release: onnxruntime-qnn {draft.wheel.version} refuses symmetric int16 there"
    for name in () if draft.prepared is None else draft.prepared.narrowed:
        yield Found(
            "tensor",
            name,
            f"the MatMul that makes {name}: its operand 1 will be read with 8 bits",
            severity=Severity.ERROR if draft.is_strict else None,
            hint=hint * refuses,
        )


@_rule("ORT009", "wrong-kernel-avoided", "error")
def check_wrong_kernels(draft: ProviderDraft) -> Finds:
    """The model holds something that the compiler turns into wrong numbers, or float, without a message.

    Nothing but running the compiled model shows it.

    Fix: The plan avoids it.
    """
    for step in () if draft.prepared is None else draft.prepared.steps:
        if step.id in _HANDLED:
            for name in step.names:
                yield Found("tensor", name, f"{name}: {step.why}", handled=_HANDLED[step.id])


@RULES.rule("ORT010", "not-rewritten", "info", "docs/ort-qnn.md")
def check_refusals(draft: ProviderDraft) -> Finds:
    """A place that looks like one a rewrite would help does not qualify.

    The rewrite would change the result there.

    Fix: Change what the message names, where that is in your hands.
    """
    for text in () if draft.prepared is None else draft.prepared.refusals:
        yield Found("node", text.partition(":")[0], text)


@_rule("ORT012", "option-not-checked", "warning")
def check_unchecked(draft: ProviderDraft) -> Finds:
    """A provider option was not looked up in this wheel.

    It is known in the newest wheel; an older one may ignore it without a word.

    Fix: Use the newest wheel, or leave the option out.
    """
    # Options whose first wheel is unknown.
    for name in draft.chosen.unchecked:
        yield Found("config-key", name, f"{name}: whether onnxruntime-qnn {draft.wheel.version} reads it is not known")


@RULES.rule("ORT013", "lpbq-loss", "info", "docs/howto/language-models.md")
def check_lpbq_loss(draft: ProviderDraft) -> Finds:
    """A weight's block scales are stored as LPBQ, as asked for, which changes them.

    A float scale per block does not always lie on a channel's scale times 1 to 16.

    Fix: 'deploykit quantize FLOAT_MODEL --option lpbq=true --precision w4a16' makes scales that lose nothing here.
    """
    for step in () if draft.prepared is None else draft.prepared.steps:
        for name, loss in step.losses.items():
            yield Found(
                "tensor",
                name,
                f"{name}: a scale moves by {100 * loss.scale_error:.2g} % at most; against its block grid the weight "
                f"has {loss.refined_sqnr_db:.1f} dB re-rounded, as stored ({loss.sqnr_db:.1f} dB with integers kept)",
            )


@_rule("ORT014", "erf-in-float", "warning", cure="fuse-gelu")
def check_erf(draft: ProviderDraft) -> Finds:
    """A float model holds an Erf.

    The provider has no Erf operator. ONNX Runtime fuses an Erf that is part of a GELU in the usual order; a model with
    any other Erf is refused.

    Fix: Write it with another operator.
    """
    for node in _floats(draft, "Erf"):
        yield at_node(node, "it is not part of a GELU, and the provider has no Erf")


@RULES.rule(
    "ORT015",
    "hard-sigmoid-gate-in-float",
    "error",
    f"{_LAB}: six forms of it, float and soc_model 57",
    cure="fuse-hardswish",
)
def check_hard_sigmoid_gate(draft: ProviderDraft) -> Finds:
    """In a float model, x is multiplied by its HardSigmoid with slope 1/6.

    The provider makes one operator of the two, which computes something else (-6.3 to -8.4 dB). With the operands in
    the other order, with another slope, or as HardSwish it is right (65 dB and more).

    Fix: Swap the two operands.
    """
    for node in _floats(draft, "Mul"):
        gate = draft.situation.facts.producer_of(node.inputs[1], "HardSigmoid")
        if gate is None or gate.inputs[0] != node.inputs[0]:
            continue
        if abs(float(gate.attributes.get("alpha", 0.2)) - 1 / 6) < _NEAR:
            yield at_node(node, f"the product of {node.inputs[0]} and its HardSigmoid is computed wrong")


@RULES.rule(
    "ORT016",
    "rms-norm-by-reciprocal",
    "error",
    f"{_LAB}: with one sample and two, lengths of 10 and 16; quotients and norms without a scale are taken",
    claim=_LIKELY,
    cure="divide-by-root",
)
def check_reciprocal(draft: ProviderDraft) -> Finds:
    """A float model writes an RMS normalization with a scale by the Reciprocal of a root.

    ONNX Runtime makes one operator of it, for which the graph fails to be finalized, and no node is named. As a
    quotient it is taken.

    Fix: Divide by the root.
    """
    # RMS norms with a scale whose inner nodes include a Reciprocal.
    facts = draft.situation.facts
    for block in find_blocks(facts) if draft.source == "float" else ():
        if block.kind != "RMSNormalization" or not block.scale:
            continue
        for node in (facts.nodes[index] for index in block.nodes):
            if node.op_type == "Reciprocal":
                yield at_node(node, f"the RMS normalization that ends in {block.result} is not finalized")


@RULES.rule(
    "ORT017",
    "rms-norm-of-several-samples",
    "error",
    f"{_LAB}: two samples, lengths of 10 and 16, with and without another operator in front",
    cure="norm-rows",
)
def check_rms_samples(draft: ProviderDraft) -> Finds:
    """An RMSNormalization of a float model normalizes several samples.

    In float16 all samples but the first are wrong (3 dB in all) for lengths of 16, as far as tried; over the rows of a
    matrix they are right (68 dB).

    Fix: Reshape it to one sample with more rows.
    """
    for node in _floats(draft, "RMSNormalization"):
        shape = draft.situation.facts.tensor(node.inputs[0]).shape or ()
        if len(shape) > 2 and shape[0] != 1:
            yield at_node(node, f"of its {shape[0]} samples all but the first were wrong where it was tried")


@RULES.rule(
    "ORT018",
    "opset-not-taken",
    "error",
    f"{_LAB}: 112 models of set 6 of onnx's backend tests, 99 of them taken once raised",
    cure="raise-opset",
)
def check_opset(draft: ProviderDraft) -> Finds:
    """A standard operator set below 7, a Clip of a float model below 11, or a comparison of a set below 16.

    The provider takes no node of a model below 7, however ordinary: a Sigmoid of set 6 is left to the CPU. Below 16 it
    learns no shape of what GreaterOrEqual and LessOrEqual make, and leaves them and their readers to the CPU. A Clip
    below 11 has its bounds in attributes: in float16 it hands its input on as it is.

    Fix: Export it again with a newer operator set.
    """
    facts = draft.situation.facts
    if 0 < facts.opset < _LEAST_OPSET and draft.source == "float":
        name = draft.situation.request.model.name
        yield Found("model", name, f"{name}: operator set {facts.opset} is not taken")
    elif 0 < facts.opset < _COMPARES_SINCE:
        for node in facts.nodes:
            if node.op_type in ("GreaterOrEqual", "LessOrEqual"):
                yield at_node(node, f"it is not taken from operator set {facts.opset}")
            elif node.op_type == "Clip" and facts.opset < _CLIPS_SINCE and draft.source == "float":
                yield at_node(node, f"bounds in attributes, as operator set {facts.opset} has them, are not read")


@RULES.rule(
    "ORT020",
    "index-of-several-dimensions",
    "warning",
    f"{_LAB}: 24 exports of ConvNeXt with layer scale, float and W8A16; of 17 small forms the 6 like that",
    cure="flat-index",
)
def check_index(draft: ProviderDraft) -> Finds:
    """A computed list is gathered from by a stored index of several dimensions.

    Between two transpositions, written or made for the layout, the provider dies of it (SIGABRT, a vector read beyond
    its end) before it compiles. torch's dynamo exports write an average over all of an image so.

    Fix: Gather by a flat index and reshape the result.
    """
    # By the ranks of data and index.
    facts = draft.situation.facts
    for node in facts.nodes:
        if node.op_type != "Gather":
            continue
        data, index = map(facts.tensor, node.inputs[:2])
        if not data.is_weight and index.is_weight and data.rank == 1 and (index.rank or 0) > 1:
            yield at_node(node, f"an index of {index.rank} dimensions into a list may kill the provider")


def _block_weights(draft: ProviderDraft, kinds: Sequence[str] = ("per-block",)) -> list[str]:
    if draft.prepared is None:
        return []
    return [entry.name for entry in draft.prepared.encodings if entry.value.granularity in kinds]


_OLD = "onnxruntime-qnn 1.22.2 (QAIRT 2.36.1) for Windows, run under Wine 8.0 on Linux x86-64 without hardware"


@RULES.rule(
    "ORT019",
    "blocks-not-in-this-release",
    "error",
    [_OLD, "onnxruntime-qnn 2.3.0 (QAIRT 2.47.0) on Linux x86-64: 5.6 dB where 2.4.0 has 31.6"],
)
def check_blocks_in_release(draft: ProviderDraft) -> Finds:
    """A weight is quantized per block, or in LPBQ, and the provider of this release does not know these forms.

    QAIRT 2.36.1 and 2.47.0 compute a block-quantized MatMul wrong (6 dB), and 2.36.1 refuses layers with LPBQ.

    Fix: Quantize these weights per channel, or take a later release.
    """
    # Per-block and LPBQ weights where the wheel's row says that they are not taken.
    refuses = forms_of(draft.wheel).refuses
    for name in _block_weights(draft, ["per-block", "lpbq"] if "block-weights" in refuses else refuses):
        yield Found("tensor", name, f"{name}: its blocks are not taken by onnxruntime-qnn {draft.wheel.version}")


@RULES.rule(
    "ORT160",
    "newer-than-the-wheel-reads",
    "error",
    "models of each operator set and IR version, opened with ONNX Runtime 1.18 to 1.31 and 1.22.2 under Wine",
)
def check_reads(draft: ProviderDraft) -> Finds:
    """The model is of a newer operator set or IR version than the ONNX Runtime of this wheel reads.

    It refuses the file as a whole, before the provider sees a node.

    Fix: Export the model with an operator set that this wheel reads, or take a later release.
    """
    # The file that is compiled, against the limits in the wheel's row.
    wheel = draft.wheel
    pairs = [wheel.reads] if wheel.reads else [one for one in wheel.onnxruntime if one.status is Status.SUPPORTED]
    limits = max(((pair.opset, pair.ir) for pair in pairs), default=None)
    if limits is None:
        return
    model = draft.situation.model.proto if draft.prepared is None else draft.prepared.model
    for words, has, most in (("operator set", opset_of(model), limits[0]), ("IR version", model.ir_version, limits[1])):
        if has > most:
            yield Found(
                "model",
                draft.situation.model.path.name,
                f"{words} {has}; onnxruntime-qnn {wheel.version} reads up to {most}",
            )


_FLOAT32 = (
    f"{_OLD}: the binary of a 512 by 512 layer holds weights of four bytes, its outputs are 140 dB from the CPU's; "
    "with tensors that are float16 in the file it holds two, and 70 dB"
)


@RULES.rule("ORT161", "float-stays-float32", "error", _FLOAT32, cure="write-out-functions")
def check_float_model(draft: ProviderDraft) -> Finds:
    """The model is float, and the provider of this release compiles a float graph in float32, not in float16.

    No option changes it (QAIRT 2.36.1). The chip computes in float16; what it does with such a graph, and how fast, is
    not known. Some operators are not finalized at all in float32.

    Fix: Quantize the model, or take a later release.
    """
    # A float source. The wheel's own row must say so: it was seen with that release only.
    if draft.source == "float" and "float16-of-float" in draft.wheel.refuses:
        yield Found(
            "model",
            draft.situation.model.path.name,
            f"onnxruntime-qnn {draft.wheel.version} would compile it in float32",
        )


@RULES.rule("ORT162", "float-parts-stay-float32", "warning", _FLOAT32)
def check_float_parts(draft: ProviderDraft) -> Finds:
    """Tensors are meant to be float16, and the provider of this release leaves them float32.

    No option changes it (QAIRT 2.36.1): the parts are more exact than was asked for, and larger. How fast the chip is
    with them is not known.

    Fix: Give these tensors 16-bit integers, or take a later release.
    """
    # Tensors of a quantized model whose intended type is float16.
    if draft.prepared is None or "float16-of-float" not in draft.wheel.refuses:
        return
    tensors = sorted(name for name, kind in draft.prepared.intended.items() if kind == "float16")
    if tensors:
        yield Found(
            "model",
            draft.situation.model.path.name,
            f"{len(tensors)} tensors are meant to be float16 and stay float32, {tensors[0]} first",
            evidence={"tensors": tensors},
        )


@RULES.rule("ORT150", "operator-not-in-release", "error", _OLD)
def check_operators_in_release(draft: ProviderDraft) -> Finds:
    """The provider of this release does not have an operator, and nothing that it has is equal here.

    It leaves such a node to the CPU, so that the model is not compiled wholly ("not supported by QNN EP").

    Fix: Export it in other operators, take a later release, or allow the CPU.
    """
    # Nodes of the prepared model whose type the wheel's row names as absent.
    if draft.prepared is None or draft.chosen.allows_cpu:
        return
    for node in draft.prepared.model.graph.node:
        if node.op_type in draft.wheel.absent:
            yield Found(
                "node",
                label(node),
                f"{node.op_type} {label(node)}: onnxruntime-qnn {draft.wheel.version} does not have it",
            )


_MOST_INDEX_DIMENSIONS = 4


@RULES.rule(
    "ORT032",
    "gathernd-form",
    "warning",
    f"{_LAB}: float and bool, indices of 2 to 6 dimensions",
    cure="gathernd-to-gather",
)
def check_gather(draft: ProviderDraft) -> Finds:
    """A GatherND of truth values, with an index of more than four dimensions, or by stored places in a float model.

    The provider leaves the first two to the CPU; a Gather, a Reshape, and other types are taken. The third is compiled
    in FP32, and the interpolation that torch writes with two of them came out wrong (1.9 dB; 67 dB by Gathers).

    Fix: Gather rows by their numbers instead.
    """
    # Judged by the data type and the rank of the index. For a QDQ model the
    # preparation rewrites these without the pairs.
    facts = draft.situation.facts
    for node in facts.nodes if draft.source != "qdq" else ():
        if node.op_type != "GatherND" or not is_standard(node):
            continue
        data, index = map(facts.tensor, node.inputs[:2])
        if data.dtype == "bool":
            yield at_node(node, f"{node.inputs[0]} holds truth values")
        elif (index.rank or 0) > _MOST_INDEX_DIMENSIONS:
            yield at_node(node, f"an index of {index.rank} dimensions")
        elif draft.source == "float" and data.is_float and index.is_weight:
            yield at_node(node, "its places are stored, and FP32 computes it")


@RULES.rule("ORT033", "labels-given-out", "warning", f"{_LAB}: int32, int64, uint8 and bool", cure="cast-labels")
def check_labels(draft: ProviderDraft) -> Finds:
    """An output of the model is a Gather's int64, or a map of int64 or uint8 that an ArgMax or a Cast gives.

    The provider leaves such a Gather to the CPU. Behind layers on images it turns the axes of the map: uint8 is not
    taken, and int64 fails as it runs ("data size does not match"). As a list that a Cast makes of int32, all are right.

    Fix: Give int32 out, or the number of the class.
    """
    # Only as the last node: a result that another node reads is taken.
    for node in _floats(draft, "ArgMax", "Cast", "Gather"):
        made = draft.situation.facts.tensors[node.outputs[0]]
        if made.is_output and made.dtype in ("int64", "uint8") and (node.op_type == "Gather" or (made.rank or 0) > 2):
            yield at_node(node, f"its {made.dtype} result is an output of the model, and may not be taken")
