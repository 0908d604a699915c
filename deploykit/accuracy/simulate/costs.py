"""What a quantized model costs to hold and to compute: bytes of weights and activations, bit operations.

Counted from shapes and widths; no clock, no device: a count says nothing about what a device does in one step.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from deploykit.accuracy.simulate.partial_runs import PartialRuns
from deploykit.encodings.values import Value
from deploykit.model.facts import GraphFacts, NodeFact
from deploykit.model.operators import Trait, has
from deploykit.system.published import Published

__all__ = ["Cost", "CostModel"]

_FLOAT_BITS = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost(Published):
    """``bit_operations`` are multiplications times the widths of both factors, of one sample."""

    weight_bytes: int
    activation_bytes: int
    bit_operations: int


class CostModel:
    """Element counts of one float run, asked once; then costs of any set of encodings are sums.

    A tensor without an entry counts 32 bits, except what follows from others: biases, and what is inside a fused
    operator, count as the float they are. It is a measure to compare candidates of one model with.
    """

    def __init__(self, runs: PartialRuns, facts: GraphFacts) -> None:
        shapes = _shapes(runs)
        stored = {name: tuple(tensor.dims) for name, tensor in runs.graph.stored.items()}
        floats = {name for name, fact in facts.tensors.items() if fact.is_float or not fact.dtype}
        self._weights = {name: math.prod(dims) for name, dims in stored.items() if name in floats}
        self._activations = {name: math.prod(dims) for name, dims in shapes.items() if name in floats}
        self._products = tuple(_products(facts, {**stored, **shapes}))

    def cost(self, values: Mapping[str, Value]) -> Cost:
        """The cost with some entries in force."""
        return Cost(
            weight_bytes=sum(count * _bits(values, name) for name, count in self._weights.items()) // 8,
            activation_bytes=sum(count * _bits(values, name) for name, count in self._activations.items()) // 8,
            bit_operations=sum(count * _bits(values, one) * _bits(values, two) for count, one, two in self._products),
        )


def _shapes(runs: PartialRuns) -> dict[str, tuple[int, ...]]:
    found = {name: tuple(array.shape) for name in runs.graph.inputs for array in runs.before_quantizer(name)[:1]}
    for number, piece in enumerate(runs.graph.pieces):
        inner = runs.inner_values(number)[0]
        found |= {name: tuple(inner[name].shape) for name in runs.graph.made(piece)}
    return found


def _bits(values: Mapping[str, Value], name: str) -> int:
    value = values.get(name)
    if value is None:
        return _FLOAT_BITS
    bits = getattr(value, "bits", None)
    return int(bits) if bits is not None else 8 if value.dtype.startswith("float8") else 16


def _products(facts: GraphFacts, shapes: Mapping[str, tuple[int, ...]]) -> Iterator[tuple[int, str, str]]:
    """Multiplications of every linear operator, with the names of both factors."""
    for node in facts.nodes:
        if has(node, Trait.LINEAR) and len(node.inputs) > 1 and {*node.inputs[:2], node.outputs[0]} <= shapes.keys():
            yield _multiplications(node, shapes), node.inputs[0], node.inputs[1]


def _multiplications(node: NodeFact, shapes: Mapping[str, tuple[int, ...]]) -> int:
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
