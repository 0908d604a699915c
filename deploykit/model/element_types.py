"""The element types of ONNX by their lower-case names: how wide they are, which are floats, how far float16 reaches.

It knows no tensor and imports nothing, so that rules and tables may ask it.
"""

from __future__ import annotations

from collections.abc import Mapping

__all__ = ["BITS", "FLOATS", "INTEGER_BITS", "LARGEST_FLOAT16"]

INTEGER_BITS: Mapping[str, int] = {f"{sign}int{bits}": bits for bits in (2, 4, 8, 16, 32, 64) for sign in ("", "u")}

BITS: Mapping[str, int] = {
    **INTEGER_BITS,
    "bool": 8,
    **dict.fromkeys(("float8e4m3fn", "float8e4m3fnuz", "float8e5m2", "float8e5m2fnuz", "float8e8m0"), 8),
    "float4e2m1": 4,
    **dict.fromkeys(("float6e2m3", "float6e3m2"), 6),
    **dict.fromkeys(("float16", "bfloat16"), 16),
    "float": 32,
    "double": 64,
    "complex64": 64,
    "complex128": 128,
}
"""Bits of one stored element; strings have no size. (ONNX, onnx.proto, TensorProto.DataType)"""

FLOATS = frozenset({"float", "float16", "bfloat16", "double"})
"""The types in which graphs compute with real numbers; float8 and smaller only store them."""

LARGEST_FLOAT16 = 65504.0
"""The largest finite float16 (IEEE 754 binary16): whatever rounds beyond it becomes infinity."""
