"""Lint rules about limits and silent failures of ONNX Runtime's QNN provider alone.

Codes QNN232 to QNN235, QNN241, QNN242, QNN247, QNN249 and QNN251 to QNN253.
"""

from __future__ import annotations

from collections.abc import Iterator

from deploykit.backend.backend import Situation
from deploykit.findings import Answerer, Claim, Confidence
from deploykit.findings.rules import Finds, Found, Registry
from deploykit.model.facts import NodeFact
from deploykit.model.operators import Trait, ops
from deploykit.model.parameters import stored_behind_pairs
from deploykit_qualcomm.devices import arch_number, capability, lacks
from deploykit_qualcomm.rules.constraints import constraint, limit
from deploykit_qualcomm.rules.options import about_option
from deploykit_qualcomm.rules.views import (
    TensorGrid,
    arch,
    at_node,
    dynamic_matmuls,
    linear_weights,
    listed,
    nodes,
    option,
    quantized,
)

__all__ = ["RULES"]


_LAB = "onnxruntime-qnn 2.7.0 (QAIRT 2.51) run on Linux x86-64"
_SEEN = Claim(Answerer.TOOLS, Confidence.OBSERVED, seen_with="2.51")
_MOST_NODES = 20  # more names do not help; the count is reported as well
# Types of scale and input that an int32 bias allows, besides a uint8 scale.
_NORM_TYPES = (("int16", "uint16"), ("int16", "int16"), ("int8", "int8"))
_NO_LAYERS = ("DequantizeLinear", "Constant", "ConstantOfShape", "Identity", "Cast", "Range")

RULES = Registry[Situation]("situation")


def _linear(situation: Situation, *granularities: str) -> Iterator[tuple[NodeFact, TensorGrid]]:
    """Yields linear layers whose stored weight is quantized with one of these granularities, with its grid."""
    for node, name in linear_weights(situation):
        found = quantized(situation, name)
        if found is not None and found.granularity in granularities:
            yield node, found


def _is_lpbq_pair(situation: Situation, node: NodeFact) -> bool:
    """True for the form that the provider fuses: the scale of a blocked pair comes from another, integer pair."""
    pair = situation.facts.producer_of(node.inputs[1])
    return pair is not None and situation.facts.producer_of(pair.operand(1), "DequantizeLinear") is not None


def _lpbq(situation: Situation, *op_types: str) -> Iterator[NodeFact]:
    for node, found in _linear(situation, "lpbq", "per-block"):
        if node.op_type in op_types and (found.granularity == "lpbq" or _is_lpbq_pair(situation, node)):
            yield node


@RULES.rule(
    "QNN232",
    "weights-16-bit-per-channel",
    "error",
    **limit("w16-per-tensor", answered_by=Answerer.TOOLS),
)
def check_16_bit_per_channel(situation: Situation) -> Finds:
    """16-bit weights that are not quantized per tensor.

    The provider takes 16-bit weights of convolutions and fully connected layers per tensor only.

    Fix: quantize these weights per tensor, or with 8 bits
    """
    for node, found in _linear(situation, "per-channel", "per-block"):
        if found.bits == 16:
            yield at_node(node, f"its 16-bit weight is {found.granularity}")


@RULES.rule(
    "QNN233",
    "lpbq-on-v68",
    "warning",
    (*constraint("lpbq-needs-v69").source, f"{_LAB}: soc_model 30 and 36 give 60.9 dB"),
)
def check_lpbq_on_v68(situation: Situation) -> Finds:
    """LPBQ weights for v68.

    The vendor's quantizer refuses LPBQ before v69, while the provider compiles it for v68 and the emulator runs it with
    more error (60.9 dB instead of 81.7): nobody has shown it on a device.

    Fix: use per-channel int4 or int8 weights, or a device with v69
    """
    # Any LPBQ weight if the architecture's table says no.
    fact = capability("lpbq", device=situation.target.device)
    names = [node.label for node in _lpbq(situation, *ops(Trait.LINEAR))]
    if names and fact is not None and fact.value is False:
        yield Found(
            "target",
            situation.target.device.id,
            f"{len(names)} layers have LPBQ weights, which {arch(situation)} is not known to take",
            sources=fact.source,
            evidence={"nodes": names, "contradicts": fact.contradicts},
        )


@RULES.rule(
    "QNN234",
    "block-size",
    "error",
    **limit("bq-block-size", answered_by=Answerer.TOOLS),
)
def check_block_size(situation: Situation) -> Finds:
    """A block size that the provider's block quantization does not take.

    2-bit blocks have to be a multiple of 16 long, 4-bit blocks of 8, 8-bit blocks of 4; 2- and 4-bit MatMulNBits take
    32 and 64 only.

    Fix: quantize with blocks of 32 or 64
    """
    # Weights with a float scale per block, by width, and MatMulNBits by its attributes.
    for node, found in _linear(situation, "per-block"):
        step = {2: 16, 4: 8, 8: 4}.get(found.bits)
        if step is not None and found.block % step and not _is_lpbq_pair(situation, node):
            yield at_node(node, f"blocks of {found.block} with {found.bits} bits, a multiple of {step} is taken")
    for node in nodes(situation, "MatMulNBits"):
        bits, block = int(node.attributes.get("bits", 4)), int(node.attributes.get("block_size", 0))
        if bits not in (2, 4) or block not in (32, 64):
            yield at_node(node, f"{bits} bits in blocks of {block}; 2 or 4 bits in blocks of 32 or 64 are taken")


@RULES.rule(
    "QNN235",
    "lpbq-block-size",
    "warning",
    (*constraint("lpbq-pattern-block").source, f"{_LAB}: 48 MatMuls with blocks of 16 against CPU"),
)
def check_lpbq_block(situation: Situation) -> Finds:
    """LPBQ blocks that are no power of two, shorter than 16, or an odd number of 16 for over 32 columns.

    The provider's selection of LPBQ groups passes over the first two; the layer then runs in float or on the CPU. The
    last, three or more, is compiled and computes wrong numbers (10 dB at most; 80 dB with up to 32 columns).

    Fix: use blocks of 32 or 64, with inputs that are a multiple of that
    """
    # By the weight's block size, its rows and its columns.
    for node in _lpbq(situation, *ops(Trait.LINEAR)):
        found = quantized(situation, node.inputs[1])
        block = 0 if found is None else found.block
        shape = situation.facts.static_shape(node.inputs[1]) or (0,)
        if block and (block < 16 or block & (block - 1)):
            yield at_node(node, f"blocks of {block}; powers of two from 16 on are taken")
        elif node.op_type == "MatMul" and shape[0] % 32 and min(shape) > 32:
            yield at_node(node, f"{shape[0] // 16} blocks of 16 for {shape[1]} columns; an even number computes right")


@RULES.rule("QNN242", "per-channel-activation", "error", constraint("perchannel-standalone-qdq").source)
def check_per_channel_activation(situation: Situation) -> Finds:
    """Per-channel quantization of something that is computed.

    The provider takes per-channel parameters on stored weights only: not on a Q or DQ alone, not on computed inputs of
    Conv and Gemm, not on inputs and outputs of MatMul.

    Fix: quantize activations per tensor
    """
    # Every computed tensor that is not quantized per tensor.
    facts = situation.facts
    for fact in facts.tensors.values():
        if fact.is_weight or stored_behind_pairs(facts, fact.name) is not None:
            continue
        found = quantized(situation, fact.name)
        if found is not None and found.granularity == "per-channel":
            yield Found(
                "tensor", fact.name, f"{fact.name} is computed and quantized per channel; only stored weights may be"
            )


@RULES.rule(
    "QNN247",
    "layer-norm-types",
    "error",
    (
        f"{_LAB}: 24 combinations of scale, bias and activation types",
        "onnxruntime-qnn 2.3.0 to 2.6.0, int8 only",
    ),
    claim=_SEEN,
)
def check_norm_types(situation: Situation) -> Finds:
    """A LayerNormalization with an int32 bias and a scale that is not uint8.

    The provider refuses the node: with an int32 bias it takes a uint8 scale, or int16 with 16-bit activations.
    Symmetric schemes make the scale int8. (All three int8 or int32 stand in the operator's own table; not tried.)

    Fix: quantize scales of normalizations as uint8, or leave the bias in float or uint8
    """
    for node in nodes(situation, "LayerNormalization"):
        grids = [quantized(situation, name) for name in map(node.operand, range(3))]
        source, scale, bias = ("" if grid is None else grid.dtype for grid in grids)
        fits = scale in ("", "uint8") or (scale, source) in _NORM_TYPES
        if bias == "int32" and not fits:
            yield at_node(node, f"its scale is {scale} and its bias int32; the provider refuses that")


@RULES.rule(
    "QNN249",
    "int32-constant-of-add",
    "error",
    "onnxruntime-qnn 2.3.0 to 2.7.0 run on Linux x86-64: '…_b_DequantizeLinear' refused",
    claim=_SEEN,
)
def check_int32_constant(situation: Situation) -> Finds:
    """An Add whose constant is stored as int32.

    The provider takes int32 for biases of Conv and Gemm only; it refuses the pair, and the graph is split.

    Fix: store the constant as uint8 or uint16, or use Gemm with a bias
    """
    # Elementwise operators with a stored 32-bit operand.
    for node in nodes(situation, "Add", "Sub", "Mul", "Div"):
        for name in node.inputs:
            found = quantized(situation, name)
            if stored_behind_pairs(situation.facts, name) is not None and found is not None and found.dtype == "int32":
                yield at_node(node, f"its constant {name} is int32, which only a bias may be")


@RULES.rule("QNN251", "lpbq-gemm", "error", f"{_LAB}: LPBQ Gemm against CPU, soc_model 43")
def check_lpbq_gemm(situation: Situation) -> Finds:
    """A Gemm with LPBQ weights.

    It compiles without a message and computes wrong numbers: the bias is dropped, and without transB the block scales
    are read untransposed (10.6 and 21.8 dB).

    Fix: write the layer as MatMul and Add
    """
    for node in _lpbq(situation, "Gemm"):
        yield at_node(node, "with LPBQ weights it computes wrong numbers, silently")


@RULES.rule("QNN252", "lpbq-conv", "error", f"{_LAB}: LPBQ Conv refused", claim=_SEEN)
def check_lpbq_conv(situation: Situation) -> Finds:
    """A Conv with LPBQ weights.

    The provider refuses the node after its own change of layout.

    Fix: write a 1x1 Conv as MatMul, or use block quantization with enable_block_quant_weight_optimization
    """
    for node in _lpbq(situation, "Conv", "ConvTranspose"):
        yield at_node(node, "with LPBQ weights the provider refuses it")


@RULES.rule(
    "QNN253",
    "float-island-in-model",
    "warning",
    f"{_LAB}: one pair removed behind Softmax, two FLOAT_32 nodes in the JSON graph",
)
def check_float_island(situation: Situation) -> Finds:
    """A node of a Q/DQ model that is not surrounded by pairs.

    It runs in float on the NPU, with conversions around it; a missing pair behind a Softmax takes the following MatMul
    along. Forbidding the CPU fallback does not show it.

    Fix: put the missing pair in, or accept the island knowingly
    """
    # Float nodes with a computed float input or output that no pair covers.
    facts = situation.facts
    if not facts.is_qdq:
        return

    def is_paired(name: str) -> bool:
        """True if every reader quantizes the tensor, or is fused with it into a quantized one (Conv, Relu, Q)."""
        readers = facts.consumers_of(name)
        passed = all(reader.op_type in ("QuantizeLinear", "Relu", "Clip", "Shape") for reader in readers)
        return passed and not (facts.tensors[name].is_output and not readers)

    found = []
    for node in facts.nodes:
        made = [name for name in node.outputs if name in facts.tensors and facts.tensors[name].is_float]
        if node.op_type not in _NO_LAYERS and not all(map(is_paired, made)):
            found.append(node.label)
    if found:
        yield Found(
            "node",
            found[0],
            f"{len(found)} nodes run in float: {listed(found)}",
            evidence={"nodes": found[:_MOST_NODES], "count": len(found)},
        )


@RULES.rule(
    "QNN241",
    "second-operand-silently-8-bit",
    "warning",
    "onnxruntime-qnn 2.7.0 run on Linux x86-64: JSON graph shows UFIXED_POINT_8, isolated MatMul 40.8 to 40.9 dB",
    cure="simplify",
)
def check_uint16_product(situation: Situation) -> Finds:
    """A MatMul of two uint16 activations.

    The provider converts the second operand to 8 bits, without a message; the ONNX model still says uint16, so ONNX
    Runtime on the CPU shows a better result than the device (41 dB between the two).

    Fix: make both operands of such products symmetric int16 on v73 and newer (78.7 dB), and judge on the emulator
    """
    # Both operands by their types; on older architectures symmetric int16 is refused.
    refused = lacks("matmul_16bit", situation.target.device)
    way = f"nothing better is taken on {arch(situation)}" if refused else "symmetric int16 keeps 16 bits"
    for node in dynamic_matmuls(situation):
        types = [found.dtype if (found := quantized(situation, name)) else "" for name in node.inputs[:2]]
        if types == ["uint16", "uint16"]:
            yield at_node(node, f"{node.inputs[1]} is computed with 8 bits on the HTP; {way}")


@RULES.rule(
    "QNN266",
    "unknown-htp-arch",
    "error",
    "onnxruntime-qnn 2.7.0 run on Linux x86-64: 66, 74 and 85 are accepted and compiled like unset",
)
def check_htp_arch(situation: Situation) -> Finds:
    """An htp_arch that does not exist.

    The provider logs a warning and compiles as if nothing were set: for v68.

    Fix: leave htp_arch out: the soc_model of the target implies it
    """
    # Compared with the architectures that have an HTP.
    text = option(situation, "htp_arch")
    fact = None if text is None else capability("htp", arch=f"v{text.removeprefix('v')}")
    if text is not None and (fact is None or fact.value is not True):
        yield about_option("htp_arch", f"htp_arch {text} does not exist; the provider would compile for v68")


@RULES.rule(
    "QNN267",
    "arch-against-soc",
    "warning",
    "onnxruntime-qnn 2.7.0 run on Linux x86-64: arch 79 with soc 30 gives v68 code, and the reverse",
)
def check_arch_against_soc(situation: Situation) -> Finds:
    """An htp_arch that is not that of the target.

    soc_model wins without a word: the binary is for the SoC, whatever htp_arch says.

    Fix: leave htp_arch out, or choose the target that is meant
    """
    text = option(situation, "htp_arch")
    wanted = None if text is None else arch_number(f"v{text.removeprefix('v')}")
    known = arch_number(arch(situation))
    if wanted is not None and known is not None and wanted != known:
        yield about_option("htp_arch", f"htp_arch {wanted} is ignored: {situation.target.device.name} is v{known}")


@RULES.rule(
    "QNN269",
    "fp16-option-without-effect",
    "warning",
    "onnxruntime-qnn 2.7.0 run on Linux x86-64: soc_model 43, same size and same SQNR with 0 and 1",
)
def check_fp16_option(situation: Situation) -> Finds:
    """enable_htp_fp16_precision=0 to keep a float model in FP32.

    It changes nothing: with a soc_model that has float16 the float graph is compiled in float16, whatever the option
    says; the binary is the same.

    Fix: quantize what needs more range than float16 has; there is no FP32 on the HTP
    """
    if option(situation, "enable_htp_fp16_precision") == "0":
        yield about_option("enable_htp_fp16_precision", "0 has no effect: float graphs are compiled in float16")


@RULES.rule(
    "QNN272",
    "bf16-option-on-quantized",
    "error",
    "onnxruntime-qnn 2.7.0 run on Linux x86-64: soc_model 88, w8a16 Q/DQ model, nodes refused",
)
def check_bf16_option(situation: Situation) -> Finds:
    """htp_bf16_enable=1 with a quantized model.

    The provider then refuses the Q and DQ nodes at the model's inputs and outputs.

    Fix: leave the option out: a quantized model needs no bfloat16
    """
    # The option together with Q/DQ pairs or encodings.
    is_quantized = situation.facts.is_qdq or situation.encodings is not None
    if option(situation, "htp_bf16_enable") == "1" and is_quantized:
        yield about_option("htp_bf16_enable", "with bf16 the provider refuses the pairs of a quantized model")
