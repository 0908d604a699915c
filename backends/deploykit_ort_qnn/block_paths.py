"""What the provider makes of block-quantized weights, as measured: a small table in words, by operator and form."""

from __future__ import annotations

from packaging.version import Version

__all__ = ["block_weight_path"]

_OPTION = "enable_block_quant_weight_optimization"
_OPTION_SINCE = "2.5.0"


def block_weight_path(*, op_type: str, lpbq: bool, has_bias: bool, wheel: str) -> str:
    """One sentence about a layer under one wheel; what was not measured there is said."""
    measured = "" if wheel == "2.7.0" else f" (measured with 2.7.0, not with {wheel})"
    return (_lpbq(op_type, has_bias) if lpbq else _blocks(op_type, has_bias, wheel)) + measured


def _lpbq(op_type: str, has_bias: bool) -> str:
    if op_type == "MatMul" and not has_bias:
        return "MatMul with LPBQ weights, integer activations"
    if op_type == "Conv":
        return "refused as Conv; deploykit package writes a 1x1 one as MatMul"
    if has_bias:
        return "wrong numbers as fused linear layer (bias dropped); deploykit package writes MatMul and Add"
    return "refused as Gemm without bias; deploykit package writes MatMul"


def _blocks(op_type: str, has_bias: bool, wheel: str) -> str:
    if has_bias and op_type != "Conv":
        return "refused with a bias; deploykit package writes MatMul and Add, whose MatMul runs in FP16"
    optional = ""
    if op_type in ("MatMul", "Conv") and Version(wheel) >= Version(_OPTION_SINCE):
        optional = f"; with {_OPTION}=1 the provider makes LPBQ of it itself, without telling the loss"
    return f"{op_type} in FP16, converted from and to integers around it{optional}"
