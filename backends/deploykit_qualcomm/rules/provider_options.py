"""Lint rules about options of ONNX Runtime's QNN provider alone. Codes QNN266, QNN267, QNN269 and QNN272."""

from __future__ import annotations

from collections.abc import Iterator

from deploykit.backend.backend import Situation
from deploykit.findings.rules import Found, Registry
from deploykit_qualcomm.archs import arch_number, capability
from deploykit_qualcomm.rules.options import about_option
from deploykit_qualcomm.rules.views import arch, option

__all__ = ["RULES"]

RULES: Registry[Situation] = Registry("situation")


@RULES.rule(
    "QNN266",
    "unknown-htp-arch",
    "error",
    what="An htp_arch that does not exist.",
    why="The provider logs a warning and compiles as if nothing were set: for v68.",
    fix="leave htp_arch out: the soc_model of the target implies it",
    sources=("onnxruntime-qnn 2.7.0 run on Linux x86-64: 66, 74 and 85 are accepted and compiled like unset",),
)
def check_htp_arch(situation: Situation) -> Iterator[Found]:
    """Against the architectures that have an HTP."""
    text = option(situation, "htp_arch")
    fact = None if text is None else capability("htp", arch=f"v{text.removeprefix('v')}")
    if text is not None and (fact is None or fact.value is not True):
        yield about_option("htp_arch", f"htp_arch {text} does not exist; the provider would compile for v68")


@RULES.rule(
    "QNN267",
    "arch-against-soc",
    "warning",
    what="An htp_arch that is not that of the target.",
    why="soc_model wins without a word: the binary is for the SoC, whatever htp_arch says.",
    fix="leave htp_arch out, or choose the target that is meant",
    sources=("onnxruntime-qnn 2.7.0 run on Linux x86-64: arch 79 with soc 30 gives v68 code, and the reverse",),
)
def check_arch_against_soc(situation: Situation) -> Iterator[Found]:
    """The option against the device's architecture."""
    text = option(situation, "htp_arch")
    wanted = None if text is None else arch_number(f"v{text.removeprefix('v')}")
    known = arch_number(arch(situation))
    if wanted is not None and known is not None and wanted != known:
        yield about_option("htp_arch", f"htp_arch {wanted} is ignored: {situation.target.device.name} is v{known}")


@RULES.rule(
    "QNN269",
    "fp16-option-without-effect",
    "warning",
    what="enable_htp_fp16_precision=0 to keep a float model in FP32.",
    why="It changes nothing: with a soc_model that has float16 the float graph is compiled in float16, whatever the "
    "option says; the binary is the same.",
    fix="quantize what needs more range than float16 has; there is no FP32 on the HTP",
    sources=("onnxruntime-qnn 2.7.0 run on Linux x86-64: soc_model 43, same size and same SQNR with 0 and 1",),
)
def check_fp16_option(situation: Situation) -> Iterator[Found]:
    """By the option alone."""
    if option(situation, "enable_htp_fp16_precision") == "0":
        yield about_option("enable_htp_fp16_precision", "0 has no effect: float graphs are compiled in float16")


@RULES.rule(
    "QNN272",
    "bf16-option-on-quantized",
    "error",
    what="htp_bf16_enable=1 with a quantized model.",
    why="The provider then refuses the Q and DQ nodes at the model's inputs and outputs.",
    fix="leave the option out: a quantized model needs no bfloat16",
    sources=("onnxruntime-qnn 2.7.0 run on Linux x86-64: soc_model 88, w8a16 Q/DQ model, nodes refused",),
)
def check_bf16_option(situation: Situation) -> Iterator[Found]:
    """The option together with Q/DQ pairs or encodings."""
    is_quantized = situation.facts.is_qdq or situation.encodings is not None
    if option(situation, "htp_bf16_enable") == "1" and is_quantized:
        yield about_option("htp_bf16_enable", "with bf16 the provider refuses the pairs of a quantized model")
