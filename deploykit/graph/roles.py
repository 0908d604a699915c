"""Which inputs of which ONNX ops are parameters, by the roles that AIMET gives them; it looks at no graph."""

from __future__ import annotations

from collections.abc import Mapping

__all__ = ["BIAS", "DEFAULT_DOMAINS", "ROLES", "WEIGHT"]

WEIGHT, BIAS = "weight", "bias"

DEFAULT_DOMAINS = ("", "ai.onnx")

_AFFINE = {1: WEIGHT, 2: BIAS}
_RECURRENT = {1: WEIGHT, 2: "recurrence", 3: BIAS}

ROLES: Mapping[str, Mapping[int, str]] = {
    "BatchNormalization": {1: WEIGHT, 2: BIAS, 3: "mean", 4: "variance"},
    "Conv": _AFFINE,
    "ConvTranspose": _AFFINE,
    "GRU": _RECURRENT,
    "Gemm": _AFFINE,
    "GroupNormalization": _AFFINE,
    "InstanceNormalization": _AFFINE,
    "LSTM": _RECURRENT,
    "LayerNormalization": _AFFINE,
    "MatMul": {1: WEIGHT},
    "RMSNormalization": {1: WEIGHT},
    "RNN": _RECURRENT,
}
"""What an op reads at which input position. A constant that an elementwise op reads is no parameter."""
