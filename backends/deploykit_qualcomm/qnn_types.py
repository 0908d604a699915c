"""QNN's data types by deploykit's names, the converter's tensor names, and the integer Softmax's rounding of
its step.
"""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from deploykit.encodings.values import Affine

__all__ = ["TYPE_CODES", "mangled", "same_grid", "type_name", "whole_step"]


# Qnn_DataType_t values as seen in graphs dumped by onnxruntime-qnn 2.7.0; fixed-point codes by their grid.
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

_STATIC = {("int4", "int8"), ("uint4", "uint8"), ("float16", "float32")}


def type_name(code: Any) -> str:
    """The name of one code; an unknown code keeps its hexadecimal form."""
    return TYPE_CODES.get(code, hex(code) if isinstance(code, int) else str(code))


def mangled(name: str) -> str:
    """The converter's form of an ONNX name: every character but letters, digits and underscores becomes an
    underscore.
    """
    text = re.sub(r"[^A-Za-z0-9_]", "_", name)
    return f"_{text}" if text[:1].isdigit() else text


def same_grid(intended: str, actual: str, *, static: bool) -> bool:
    """True if both types hold the same values: signedness may differ, width and kind may not.

    Stored weights may keep 4 bits in 8-bit storage and floats in 32 bits.
    """
    if intended == actual or (static and (intended, actual) in _STATIC):
        return True
    integers = not any(kind.startswith(("float", "bfloat")) for kind in (intended, actual))
    return integers and _width(intended) == _width(actual)


def _width(kind: str) -> int:
    digits = re.search(r"\d+", kind)
    return int(digits.group()) if digits else 0


# With a smaller step the results are wrong for any values: 18 dB for rows of 16.
LEAST_UNITS = 16

# The number of units in a factor of two, by the width of the input.
_UNITS = {16: 2.0**22, 8: 2.0**18}

# How far above an integer a step is put, so that rounding to float32 cannot bring it below.
_ABOVE = 1e-3


def step_units(grid: Affine) -> float | None:
    """The step of a Softmax's input in the kernel's units; the kernel
    truncates it. None for a width or grid not measured.
    """
    units = _UNITS.get(grid.bits)
    return None if units is None or grid.scale.size != 1 else float(grid.scale.reshape(())) * units / math.log(2)


def whole_step(grid: Affine) -> float | None:
    """The next larger step that the kernel does not change; None if the grid's own is one, or if it was not measured.

    The truncated part adds up: over the whole range of 16 bits to as much as 1 % of a result.
    """
    units = step_units(grid)
    if units is None:
        return None
    wanted = max(math.ceil(units - 2 * _ABOVE), LEAST_UNITS) + _ABOVE
    return None if wanted - 2 * _ABOVE <= units <= wanted + _ABOVE else wanted * math.log(2) / _UNITS[grid.bits]
