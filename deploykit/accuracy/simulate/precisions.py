"""The encodings that a precision gives a float run, from the ranges of its tensors, and what they cost.

They measure what a precision loses, and replace no quantizer: no rounding is learned, no range is tuned. Costs are
counted from shapes and widths, without a clock or a device.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from deploykit.accuracy.simulate.partial_runs import PartialRuns
from deploykit.encodings.complete import copy_over_movement
from deploykit.encodings.new_grids import GridKind, affine_for_range, affine_per_channel
from deploykit.encodings.values import Encoding, EncodingSet, Float, Value
from deploykit.errors import UsageError
from deploykit.findings.records import Json, Numbers, Published, Record, Shape, published
from deploykit.model.facts import GraphFacts, NodeFact, setting_of
from deploykit.model.operators import BIAS, WEIGHT, Trait, has
from deploykit.model.parameters import ParameterUse, parameter_uses
from deploykit.model.patterns import fusions
from deploykit.model.weights import stored_values

__all__ = ["CostModel", "ModelCost", "TensorStatistics", "min_max_encodings", "precision_of", "statistics_of"]

_WIDTHS = re.compile(r"w(4|8|16)a(8|16)")
_FLOATS = {"fp16": "float16", "bf16": "bfloat16"}


class SimulatedPrecision(Record):
    """The meaning of a name like w8a16 or fp16: widths in bits, or a float type for everything."""

    name: str
    weights: int = 0
    activations: int = 0
    float_type: str = ""


def precision_of(name: str) -> SimulatedPrecision:
    """The precision of that name; raises UsageError for a name that says no widths and no 16-bit float type."""
    if name in _FLOATS:
        return SimulatedPrecision(name=name, float_type=_FLOATS[name])
    widths = _WIDTHS.fullmatch(name)
    if widths is None:
        raise UsageError(
            f"--precision {name}: cannot be simulated",
            why=f"known are w4, w8 or w16 with a8 or a16, like w8a16, and {', '.join(_FLOATS)}",
        )
    return SimulatedPrecision(name=name, weights=int(widths[1]), activations=int(widths[2]))


def min_max_encodings(runs: PartialRuns, facts: GraphFacts, precision: SimulatedPrecision) -> EncodingSet:
    """Encodings for the model and samples of a float run.

    Weights of linear operators are symmetric and per channel, everything else asymmetric and per tensor. Biases have no
    entry (their grid follows), nor have tensors inside a fused operator; data movement keeps the grid of what it moves.
    A tensor that is not finite somewhere stays float.
    """
    stored = dict(_stored_entries(runs, facts, parameter_uses(facts), precision))
    moved = {name for node in facts.nodes if has(node, Trait.AIMET_COPIES) for name in node.outputs}
    skipped = {name for found in fusions(facts) if found.certain for name in (*found.inside, *found.settings)}
    computed = {
        name: Encoding(name, _activation(low, high, precision), is_param=False)
        for name, low, high in _ranges(runs, facts)
        if name not in skipped
    }
    entries = {**{name: entry for name, entry in stored.items() if name not in skipped}, **computed}
    # Moved tensors get the entries of the tensors they copy; where there is none, their own range stands.
    rest = {name: entry for name, entry in entries.items() if name not in moved}
    given = copy_over_movement(EncodingSet("", rest), facts)
    entries |= {entry.name: entry for entry in given if entry.name in entries}
    return EncodingSet("1.0.0", entries, producer={"package": "deploykit", "scheme": "min-max"})


def _activation(low: float, high: float, precision: SimulatedPrecision) -> Value:
    if precision.float_type:
        return Float(precision.float_type)
    return affine_for_range(low, high, GridKind(precision.activations, signed=False))


def _ranges(runs: PartialRuns, facts: GraphFacts) -> Iterator[tuple[str, float, float]]:
    """(name, low, high) of every computed or fed float tensor that is read or an output, where both ends are finite."""

    def arrays_of() -> Iterator[tuple[str, list[Numbers]]]:
        for name in runs.graph.inputs:
            if facts.tensors[name].is_float:
                yield name, runs.before_quantizer(name)
        for number, piece in enumerate(runs.graph.pieces):
            inner = runs.inner_values(number)
            for name in runs.graph.made(piece):
                if _is_data(facts, name) and inner[0][name].dtype == np.float32:
                    yield name, [values[name] for values in inner]

    for name, arrays in arrays_of():
        filled = [array for array in arrays if array.size]
        if filled and all(np.isfinite(array).all() for array in filled):
            yield name, min(float(a.min()) for a in filled), max(float(a.max()) for a in filled)


def _is_data(facts: GraphFacts, name: str) -> bool:
    """False for a tensor that nothing reads, and for a setting: a factor of Resize, a bound of Clip."""
    fact = facts.tensor(name)
    return (fact.is_output or bool(fact.consumers)) and setting_of(facts, name) is None


def _stored_entries(
    runs: PartialRuns, facts: GraphFacts, uses: Mapping[str, tuple[ParameterUse, ...]], precision: SimulatedPrecision
) -> Iterator[tuple[str, Encoding]]:
    for name, tensor in runs.graph.stored.items():
        roles = {use.role for use in uses.get(name, ())}
        if not _is_data(facts, name) or facts.tensors[name].dtype != "float" or roles == {BIAS}:
            continue
        values = stored_values(tensor)
        if not values.size or not np.isfinite(values).all():
            continue
        axis = next((use.channel_axis for use in uses.get(name, ()) if use.role == WEIGHT), None)
        if axis is None or precision.float_type:
            value = _activation(float(values.min()), float(values.max()), precision)
        else:
            value = affine_per_channel(values, axis, precision.weights)
        yield name, Encoding(name, value, is_param=bool(roles))


_FLOAT_BITS = 32


class ModelCost(Published):
    """The cost of one sample. ``bit_operations`` are multiplications times the widths of both factors."""

    weight_bytes: int
    activation_bytes: int
    bit_operations: int


class CostModel:
    """Element counts of one float run, taken once; the costs of any set of encodings are sums of them.

    A tensor without an entry counts 32 bits, biases and tensors inside a fused operator included. It is a measure to
    compare candidates of one model with.
    """

    def __init__(self, runs: PartialRuns, facts: GraphFacts) -> None:
        shapes = {name: tuple(array.shape) for name in runs.graph.inputs for array in runs.before_quantizer(name)[:1]}
        for number, piece in enumerate(runs.graph.pieces):
            inner = runs.inner_values(number)[0]
            shapes |= {name: tuple(inner[name].shape) for name in runs.graph.made(piece)}
        stored = {name: tuple(tensor.dims) for name, tensor in runs.graph.stored.items()}
        floats = {name for name, fact in facts.tensors.items() if fact.is_float or not fact.dtype}
        self._weights = {name: math.prod(dims) for name, dims in stored.items() if name in floats}
        self._activations = {name: math.prod(dims) for name, dims in shapes.items() if name in floats}
        self._products = tuple(_products(facts, {**stored, **shapes}))

    def cost(self, values: Mapping[str, Value]) -> ModelCost:
        """The cost of the model with these entries."""
        return ModelCost(
            weight_bytes=sum(count * _bits(values, name) for name, count in self._weights.items()) // 8,
            activation_bytes=sum(count * _bits(values, name) for name, count in self._activations.items()) // 8,
            bit_operations=sum(count * _bits(values, one) * _bits(values, two) for count, one, two in self._products),
        )


def _bits(values: Mapping[str, Value], name: str) -> int:
    value = values.get(name)
    if value is None:
        return _FLOAT_BITS
    bits = getattr(value, "bits", None)
    return int(bits) if bits is not None else 8 if value.dtype.startswith("float8") else 16


def _products(facts: GraphFacts, shapes: Mapping[str, Shape]) -> Iterator[tuple[int, str, str]]:
    """Multiplications of every linear operator, with the names of both factors."""
    for node in facts.nodes:
        if has(node, Trait.LINEAR) and len(node.inputs) > 1 and {*node.inputs[:2], node.outputs[0]} <= shapes.keys():
            yield _multiplications(node, shapes), node.inputs[0], node.inputs[1]


def _multiplications(node: NodeFact, shapes: Mapping[str, Shape]) -> int:
    made, factor, data = math.prod(shapes[node.outputs[0]]), shapes[node.inputs[1]], shapes[node.inputs[0]]
    match node.op_type:
        case "Conv":
            return made * math.prod(factor[1:])
        case "ConvTranspose":
            return math.prod(data) * math.prod(factor[1:])
        case "Gemm":
            return made * factor[1 if node.attributes.get("transB") else 0]
        case _:
            return made * data[-1]


BINS = 32
"""The number of bins of a histogram, of equal width from the least value to the greatest."""
FAR = 6.0
"""A value farther than so many standard deviations from the mean is an outlier."""


class TensorStatistics(Published):
    """Statistics of all finite values of all samples. ``outliers`` is a share; ``not_finite`` counts what was left out.

    ``peak_db`` is the largest magnitude over the root mean square: about 6 dB more cost one bit of the grid.
    """

    low: float
    high: float
    mean: float
    deviation: float
    outliers: float
    peak_db: float
    histogram: tuple[int, ...]
    not_finite: int

    def as_published(self) -> Json:
        """The published fields, with both ends as one range."""
        told = published(self, without=("low", "high", "outliers"))
        return {"range": [self.low, self.high], "outlier_share": self.outliers, **told}


def statistics_of(arrays: Sequence[Numbers]) -> TensorStatistics | None:
    """The statistics of all values of some arrays; None where there is no finite value."""
    values = np.concatenate([np.asarray(array, np.float64).ravel() for array in arrays])
    count, values = values.size, values[np.isfinite(values)]
    if not values.size:
        return None
    low, high = float(values.min()), float(values.max())
    unit = max(abs(low), abs(high)) or 1.0  # a double may hold a value and not its square
    values /= unit
    mean, deviation, square = (float(number) for number in (values.mean(), values.std(), np.square(values).mean()))
    bins = [values.size] if low == high else np.histogram(values, bins=BINS)[0].tolist()
    return TensorStatistics(
        low=low,
        high=high,
        mean=mean * unit,
        deviation=deviation * unit,
        outliers=float((np.abs(values - mean) > FAR * deviation).mean()) if low < high else 0.0,
        peak_db=10 * math.log10(1 / square) if square else 0.0,
        histogram=tuple(bins),
        not_finite=count - values.size,
    )
