"""Fuses what exporters write for HardSwish, with HardSigmoid or Clip, into one operator, times a factor.

It knows the function's values and its operator; finding and replacing is ``function_fusion``'s.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from deploykit.rewrites.contract import MatchResult, Rewritten, Transform
from deploykit.rewrites.function_fusion import POINTS, Form, WrittenOut, apply_fusion, match_fusion

if TYPE_CHECKING:
    from onnx import ModelProto

    from deploykit.encodings.values import EncodingSet

__all__ = ["transform"]

_FORM = Form(values=POINTS * np.clip(POINTS / 6.0 + 0.5, 0.0, 1.0), since=14)
_HARDSWISH = WrittenOut(op_type="HardSwish", forms={"HardSigmoid": _FORM, "Clip": _FORM})


def match(model: ModelProto) -> MatchResult:
    """Every HardSigmoid and Clip that belongs to a HardSwish."""
    return match_fusion(model, _HARDSWISH)


def apply(model: ModelProto, encodings: EncodingSet | None, matched: MatchResult) -> Rewritten:
    """One HardSwish for each."""
    return apply_fusion(model, encodings, matched, _HARDSWISH)


transform = Transform(
    name="fuse-hardswish",
    summary="Fuse a HardSwish written out with HardSigmoid or Clip into one operator, times a factor where it has one.",
    match=match,
    apply=apply,
    ulps=16.0,
)
