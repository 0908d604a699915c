"""The same kernel in another type or with another range of its result, to be run as it was: what is right is a way out.

It runs nothing, and changes no model.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from deploykit.encodings.values import Affine, Encoding, EncodingSet
from deploykit.errors import DeploykitError
from deploykit.quantization.extract_qdq import extract_qdq
from deploykit.quantization.insert_qdq import insert_qdq
from deploykit.quantization.new_grids import GridKind, affine_for_range
from deploykit_ort_qnn.audit_units import Kernel, prefixed
from deploykit_ort_qnn.rules.audit import FORWARD

if TYPE_CHECKING:
    from onnx import ModelProto

    from deploykit_ort_qnn.atlas.sketch import Numbers

__all__ = ["FORMS", "other_forms"]

FORMS = 4
"""How many other forms of a kernel there are at most: each has a prefix of its own."""

_SIXTEEN = GridKind(bits=16, signed=False)
_WIDER = 2.0


def other_forms(kernel: Kernel, number: int) -> Iterator[tuple[str, Kernel]]:
    """In words what is otherwise, and the kernel so; a float one has no other type. ``number`` begins four prefixes."""
    if any(_counts_back(value) for sample in kernel.samples for value in sample.values()):
        forward = tuple({name: _forward(value) for name, value in sample.items()} for sample in kernel.samples)
        counted = replace(kernel, samples=forward)
        yield FORWARD, _form(counted, kernel.type, kernel.model, kernel.steps, number + 3)
    if kernel.type == "float":
        return
    try:
        taken = extract_qdq(kernel.model)
        if taken.kept:
            return
        yield "in float16", _form(kernel, "float", taken.model, {}, number)
        if kernel.type == "u8":
            grids = {name: _in_16_bits(entry) for name, entry in taken.encodings.entries.items()}
            yield "in 16 bits", _quantized(kernel, "u16", taken.model, grids, number + 1)
        ends = {value.name for value in kernel.model.graph.output}
        grids = {name: _wider(entry) if name in ends else entry for name, entry in taken.encodings.entries.items()}
        yield "with a result range twice as wide", _quantized(kernel, kernel.type, taken.model, grids, number + 2)
    except DeploykitError:
        return


def _quantized(kernel: Kernel, kind: str, model: ModelProto, entries: Mapping[str, Encoding], number: int) -> Kernel:
    encodings = EncodingSet(version="2.0.0", entries=dict(entries))
    quantized = insert_qdq(model, encodings, bias="encoded").model
    found = ((name, entries[name].value) for name in kernel.steps if name in entries)
    steps = {name: float(grid.scale) for name, grid in found if isinstance(grid, Affine) and grid.scale.size == 1}
    return _form(kernel, kind, quantized, steps, number)


def _form(kernel: Kernel, kind: str, model: ModelProto, steps: Mapping[str, float], number: int) -> Kernel:
    prefix = f"u{number}/"
    return replace(
        kernel,
        key=f"{kernel.key} {number % FORMS} {kind} {sorted(steps.values())}",
        type=kind,
        prefix=prefix,
        model=prefixed(model, prefix),
        samples=tuple({prefix + name: value for name, value in sample.items()} for sample in kernel.samples),
        steps={prefix + name: step for name, step in steps.items()},
    )


def _counts_back(values: Numbers) -> bool:
    return bool(np.issubdtype(values.dtype, np.integer) and np.any(values < 0))


def _forward(values: Numbers) -> Numbers:
    """As many places from the beginning of an axis as indices count from its end; anything else stays."""
    return np.where(values < 0, -1 - values, values) if _counts_back(values) else values


def _in_16_bits(entry: Encoding) -> Encoding:
    grid = entry.value
    is_narrow = isinstance(grid, Affine) and grid.bits == 8 and grid.scale.size == 1 and not entry.is_param
    return _of_range(entry, grid, 1.0, _SIXTEEN) if is_narrow and isinstance(grid, Affine) else entry


def _wider(entry: Encoding) -> Encoding:
    grid = entry.value
    if not isinstance(grid, Affine) or grid.scale.size != 1:
        return entry
    return _of_range(entry, grid, _WIDER, GridKind(bits=grid.bits, signed=grid.signed))


def _of_range(entry: Encoding, grid: Affine, times: float, kind: GridKind) -> Encoding:
    return replace(entry, value=affine_for_range(float(grid.minimum) * times, float(grid.maximum) * times, kind))
