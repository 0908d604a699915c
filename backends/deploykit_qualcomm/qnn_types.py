"""QNN's data type codes by the names deploykit uses, and the converter's way to mangle tensor names."""

from __future__ import annotations

import re
from typing import Any

__all__ = ["TYPE_CODES", "mangled", "same_grid", "type_name"]

TYPE_CODES = {
    0x0008: "int8",
    0x0016: "int16",
    0x0032: "int32",
    0x0064: "int64",
    0x0108: "uint8",
    0x0116: "uint16",
    0x0132: "uint32",
    0x0164: "uint64",
    0x0216: "float16",
    0x0232: "float32",
    0x0508: "bool",
    0x0304: "int4",
    0x0308: "int8",
    0x0316: "int16",
    0x0332: "int32",
    0x0404: "uint4",
    0x0408: "uint8",
    0x0416: "uint16",
    0x0432: "uint32",
}
"""Qnn_DataType_t values as seen in graphs dumped by onnxruntime-qnn 2.7.0; fixed-point codes by their grid."""

_STATIC = {("int4", "int8"), ("uint4", "uint8"), ("float16", "float32")}


def type_name(code: Any) -> str:
    """The name of one code; an unknown code keeps its hexadecimal form."""
    return TYPE_CODES.get(code, hex(code) if isinstance(code, int) else str(code))


def mangled(name: str) -> str:
    """The converter's form of an ONNX name: everything but letters, digits and underscores becomes an underscore."""
    text = re.sub(r"[^A-Za-z0-9_]", "_", name)
    return f"_{text}" if text[:1].isdigit() else text


def same_grid(intended: str, actual: str, *, static: bool) -> bool:
    """True when both types hold the same values: signedness may differ, width and kind may not.

    Stored weights may keep 4 bits in 8-bit storage and floats in 32 bits.
    """
    if intended == actual or (static and (intended, actual) in _STATIC):
        return True
    integers = not any(kind.startswith(("float", "bfloat")) for kind in (intended, actual))
    return integers and _width(intended) == _width(actual)


def _width(kind: str) -> int:
    digits = re.search(r"\d+", kind)
    return int(digits.group()) if digits else 0
