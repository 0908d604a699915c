"""Encodings for tensors that a rewrite made or changed: from proven bounds, else from the values seen on samples.

It quantizes no weights and touches no entry but those it is asked for.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from deploykit.encodings.values import Affine, Encoding, EncodingSet, Float
from deploykit.numerics.sessions import Feed, Session

if TYPE_CHECKING:
    from onnx import ModelProto

__all__ = ["GridKind", "affine_for_range", "fill_entries", "observed_ranges", "usual_grid"]

_SMALLEST_SCALE = 2.0**-100


@dataclass(frozen=True, slots=True, kw_only=True)
class GridKind:
    """What a new integer entry looks like: width, sign, and whether zero must lie in the middle."""

    bits: int
    signed: bool
    symmetric: bool = False


def affine_for_range(low: float, high: float, kind: GridKind) -> Affine:
    """The per-tensor grid of a kind that holds [low, high] and zero. Both ends must be finite."""
    low, high = min(low, 0.0), max(high, 0.0)
    if low == high:
        high = 1.0  # all zeros: any scale holds them, an ordinary one asks least of a kernel
    lowest = -(1 << (kind.bits - 1)) if kind.signed else 0
    steps = (1 << kind.bits) - 1
    if kind.symmetric:
        scale = max(max(-low, high) / ((1 << (kind.bits - 1)) - 1), _SMALLEST_SCALE)
        middle = 0 if kind.signed else 1 << (kind.bits - 1)
        zero = float(middle)
    else:
        scale = max((high - low) / steps, _SMALLEST_SCALE)
        zero = float(min(max(round(-low / scale), 0), steps) + lowest)
    return Affine(
        bits=kind.bits,
        signed=kind.signed,
        scale=np.asarray(scale, dtype=np.float64),
        zero_point=np.asarray(zero, dtype=np.float64),
        symmetric=kind.symmetric,
    )


def usual_grid(encodings: EncodingSet, *, least_bits: int = 0) -> GridKind:
    """The kind most per-tensor entries have, widened to ``least_bits``; 16 bits unsigned when there is none."""
    kinds = Counter(
        (e.value.bits, e.value.signed)
        for e in encodings
        if isinstance(e.value, Affine) and e.value.granularity == "per-tensor" and e.value.bits <= 16 and not e.is_param
    )
    bits, signed = kinds.most_common(1)[0][0] if kinds else (16, False)
    return GridKind(bits=max(bits, least_bits), signed=signed)


def observed_ranges(model: ModelProto, names: Iterable[str], feeds: Sequence[Feed]) -> dict[str, tuple[float, float]]:
    """The lowest and highest finite value of each tensor over all samples, in the float model."""
    wanted = tuple(names)
    ranges: dict[str, tuple[float, float]] = {}
    session = Session(model, capture=wanted) if wanted else None
    for feed in feeds if session else ():
        values = session.run(feed) if session else {}
        for name in wanted:
            finite = values[name][np.isfinite(values[name])]
            low, high = ranges.get(name, (math.inf, -math.inf))
            if finite.size:
                ranges[name] = (min(low, float(finite.min())), max(high, float(finite.max())))
    return ranges


def fill_entries(
    model: ModelProto,
    encodings: EncodingSet,
    names: Iterable[str],
    feeds: Sequence[Feed],
    *,
    ranges: Mapping[str, tuple[float, float]] | None = None,
) -> EncodingSet:
    """New integer entries for ``names``: of the kind of the entry they replace, 16 bits where that was float.

    ``ranges`` are proven bounds; what has none is observed on the samples. Tensors without any value seen are left out.
    """
    proven = {name: ends for name, ends in (ranges or {}).items() if all(map(math.isfinite, ends))}
    wanted = sorted(names)
    stored = _stored_ranges(model, wanted)
    missing = [name for name in wanted if name not in proven and name not in stored]
    known = {**observed_ranges(model, missing, feeds), **stored, **proven}
    entries = dict(encodings.entries)
    for name in wanted:
        if name in known:
            entries[name] = _entry(name, encodings, *known[name])
    return replace(encodings, entries=entries, float_tensors=encodings.float_tensors - set(wanted))


def _stored_ranges(model: ModelProto, names: Iterable[str]) -> dict[str, tuple[float, float]]:
    from onnx import numpy_helper

    wanted = set(names)
    tensors = [(t.name, t) for t in model.graph.initializer]
    tensors += [(n.output[0], a.t) for n in model.graph.node if n.op_type == "Constant" for a in n.attribute]
    found = {}
    for name, tensor in tensors:
        if name in wanted and tensor.data_type == tensor.FLOAT:
            value = numpy_helper.to_array(tensor)
            found[name] = (float(value.min()), float(value.max()))
    return found


def _entry(name: str, encodings: EncodingSet, low: float, high: float) -> Encoding:
    old = encodings.get(name)
    if old is not None and isinstance(old.value, Affine):
        value = old.value
        kind = GridKind(bits=value.bits, signed=value.signed, symmetric=_keeps_symmetry(value))
    else:
        was_float = name in encodings.float_tensors or (old is not None and isinstance(old.value, Float))
        kind = usual_grid(encodings, least_bits=16 if was_float else 0)
    return Encoding(name=name, value=affine_for_range(low, high, kind), is_param=old.is_param if old else False)


def _keeps_symmetry(value: Affine) -> bool:
    """A signed grid around zero stays one; an unsigned one whose file does not say is taken as asymmetric."""
    return bool(value.symmetric) or (value.signed and value.symmetric is None and not np.any(value.zero_point))
