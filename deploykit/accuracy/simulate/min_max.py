"""Encodings of deploykit's own: the range of every tensor on given samples, at a precision that a name says.

A measure of what a precision costs, and no replacement for a quantizer: no rounding is learned, no range is tuned.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from deploykit.accuracy.simulate.partial_runs import PartialRuns
from deploykit.encodings.complete import copy_over_movement
from deploykit.encodings.new_grids import GridKind, affine_for_range
from deploykit.encodings.values import Affine, Encoding, EncodingSet, Float, Value
from deploykit.errors import UsageError
from deploykit.model.facts import GraphFacts, setting_of
from deploykit.model.fusion import fusions
from deploykit.model.operators import BIAS, WEIGHT, Trait, has
from deploykit.model.parameters import ParameterUse, parameter_uses
from deploykit.model.weights import stored_values

__all__ = ["Precision", "min_max_encodings", "precision_of"]

_WIDTHS = re.compile(r"w(4|8|16)a(8|16)")
_FLOATS = {"fp16": "float16", "bf16": "bfloat16"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Precision:
    """What a name like w8a16 or fp16 says: widths in bits, or a float type for everything."""

    name: str
    weights: int = 0
    activations: int = 0
    float_type: str = ""


def precision_of(name: str) -> Precision:
    """Raises UsageError for a name that says no widths and no 16-bit float type."""
    if name in _FLOATS:
        return Precision(name=name, float_type=_FLOATS[name])
    widths = _WIDTHS.fullmatch(name)
    if widths is None:
        raise UsageError(
            f"--precision {name}: cannot be simulated",
            why=f"known are w4, w8 or w16 with a8 or a16, like w8a16, and {', '.join(_FLOATS)}",
        )
    return Precision(name=name, weights=int(widths[1]), activations=int(widths[2]))


def min_max_encodings(runs: PartialRuns, facts: GraphFacts, precision: Precision) -> EncodingSet:
    """Encodings for the model and samples of a float run.

    Weights of linear operators are symmetric and per channel, everything else asymmetric and per tensor. Biases have no
    entry (their grid follows), nor has what is inside a fused operator; data movement keeps the grid of what it moves.
    A tensor that is not finite somewhere stays float.
    """
    uses = parameter_uses(facts)
    stored = dict(_stored_entries(runs, facts, uses, precision))
    moved = {name for node in facts.nodes if has(node, Trait.AIMET_COPIES) for name in node.outputs}
    skipped = {name for found in fusions(facts) if found.certain for name in (*found.inside, *found.settings)}
    computed = {
        name: Encoding(name=name, value=_activation(low, high, precision), is_param=False)
        for name, low, high in _ranges(runs, facts)
        if name not in skipped
    }
    entries = {**{name: entry for name, entry in stored.items() if name not in skipped}, **computed}
    # What movement gives is asked of the rest; where it gives nothing, the tensor's own range stands.
    rest = {name: entry for name, entry in entries.items() if name not in moved}
    given = copy_over_movement(EncodingSet(version="", entries=rest), facts)
    entries |= {entry.name: entry for entry in given if entry.name in entries}
    return EncodingSet(version="1.0.0", entries=entries, producer={"package": "deploykit", "scheme": "min-max"})


def _activation(low: float, high: float, precision: Precision) -> Value:
    if precision.float_type:
        return Float(dtype=precision.float_type)
    return affine_for_range(low, high, GridKind(bits=precision.activations, signed=False))


def _ranges(runs: PartialRuns, facts: GraphFacts) -> Iterator[tuple[str, float, float]]:
    """Every computed or fed float tensor that is read or given out, with its finite range."""
    found = [(name, runs.before_quantizer(name)) for name in runs.graph.inputs if facts.tensors[name].is_float]
    for name, arrays in found:
        yield from _range(name, arrays)
    for number, piece in enumerate(runs.graph.pieces):
        inner = runs.inner_values(number)
        for name in runs.graph.made(piece):
            if _is_data(facts, name) and inner[0][name].dtype == np.float32:
                yield from _range(name, [values[name] for values in inner])


def _is_data(facts: GraphFacts, name: str) -> bool:
    """False for what nobody reads, and for what is read as a setting only: a factor of Resize, a bound of Clip."""
    fact = facts.tensors.get(name)
    return fact is not None and (fact.is_output or bool(fact.consumers)) and setting_of(facts, name) is None


def _range(name: str, arrays: Iterable[npt.NDArray[np.float32]]) -> Iterator[tuple[str, float, float]]:
    filled = [array for array in arrays if array.size]
    if filled and all(np.isfinite(array).all() for array in filled):
        yield name, min(float(a.min()) for a in filled), max(float(a.max()) for a in filled)


def _stored_entries(
    runs: PartialRuns, facts: GraphFacts, uses: Mapping[str, tuple[ParameterUse, ...]], precision: Precision
) -> Iterator[tuple[str, Encoding]]:
    for name, tensor in runs.graph.stored.items():
        roles = {use.role for use in uses.get(name, ())}
        if not _is_data(facts, name) or facts.tensors[name].dtype != "float" or roles == {BIAS}:
            continue
        values = stored_values(tensor)
        if not values.size or not np.isfinite(values).all():
            continue
        axis = next((use.channel_axis for use in uses.get(name, ()) if use.role == WEIGHT), None)
        yield name, Encoding(name=name, value=_of_stored(values, axis, precision), is_param=bool(roles))


def _of_stored(values: npt.NDArray[np.float32], axis: int | None, precision: Precision) -> Value:
    if axis is None or precision.float_type:
        return _activation(float(values.min()), float(values.max()), precision)
    others = tuple(place for place in range(values.ndim) if place != axis)
    peak = np.abs(values.astype(np.float64)).max(axis=others)
    highest = (1 << (precision.weights - 1)) - 1
    return Affine(
        bits=precision.weights,
        signed=True,
        scale=np.where(peak > 0, peak, 1.0) / highest,
        zero_point=np.zeros(peak.shape),
        symmetric=True,
        axis=axis,
    )
