"""Fuses what exporters write for GELU, exact with Erf or approximated with Tanh, into one operator, times a factor.

It knows the function's values and its operator; finding and replacing is ``function_fusion``'s.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from deploykit.rewrites.contract import MatchResult, Rewritten, Transform
from deploykit.rewrites.function_fusion import POINTS, Form, WrittenOut, apply_fusion, match_fusion

if TYPE_CHECKING:
    from onnx import ModelProto

    from deploykit.encodings.values import EncodingSet

__all__ = ["transform"]

_ONNX_HAS_IT = 20


def _exact(x: float) -> float:
    return 0.5 * x * (1.0 + math.erf(x * 0.5**0.5))


def _by_tanh(x: float) -> float:
    return 0.5 * x * (1.0 + math.tanh((2.0 / math.pi) ** 0.5 * (x + 0.044715 * x**3)))


_GELU = WrittenOut(
    op_type="Gelu",
    forms={
        "Erf": Form(
            values=np.asarray([_exact(x) for x in POINTS]),
            since=_ONNX_HAS_IT,
            elsewhere="com.microsoft",
            telling=True,
        ),
        # Compilers do not take the operator that com.microsoft has for this kind.
        "Tanh": Form(
            values=np.asarray([_by_tanh(x) for x in POINTS]),
            since=_ONNX_HAS_IT,
            attributes={"approximate": "tanh"},
        ),
    },
)


def match(model: ModelProto) -> MatchResult:
    """Every Erf and Tanh that belongs to a GELU."""
    return match_fusion(model, _GELU)


def apply(model: ModelProto, encodings: EncodingSet | None, matched: MatchResult) -> Rewritten:
    """One Gelu for each."""
    return apply_fusion(model, encodings, matched, _GELU)


transform = Transform(
    name="fuse-gelu",
    summary="Fuse a GELU written out with Erf or Tanh into one Gelu operator, times a factor where it has one.",
    match=match,
    apply=apply,
    ulps=16.0,
)
