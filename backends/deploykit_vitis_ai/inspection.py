"""Looks at a quantized model: its grids, the types of its activations, and whether ONNX Runtime loads it.

Only scales and zero points are read, never the weights. The rules in ``quantized`` judge them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from deploykit.findings.records import Record
from deploykit.model.facts import GraphFacts
from deploykit.model.load import Model, load_model
from deploykit.model.operators import QUANTIZERS
from deploykit.model.parameters import integer_type
from deploykit.system.files import regular_size

__all__ = ["InspectedModel", "actual_types", "grids_of", "inspect_quantized", "is_power_of_two"]

_FUSED = frozenset({"Relu", "Clip", "LeakyRelu", "PRelu", "HardSigmoid", "HardSwish"})


class Grid(Record):
    """The grid of one QuantizeLinear or DequantizeLinear: node, tensor, scales, zero points and integer type."""

    node: str
    tensor: str
    scales: tuple[float, ...]
    zero_points: tuple[int, ...]
    dtype: str


class InspectedModel(Record):
    """A quantized model, and what it should be. ``excluded`` are the names of nodes intended as float.

    ``refusal`` is ONNX Runtime's error if it does not load the model, else
    "". ``source`` holds the float model's facts.
    """

    name: str
    precision: str
    facts: GraphFacts
    grids: tuple[Grid, ...]
    excluded: frozenset[str]
    source: GraphFacts | None
    last_opset: int | None
    refusal: str
    float16_source: bool


def inspect_quantized(
    path: Path,
    *,
    precision: str,
    excluded: frozenset[str] = frozenset(),
    source: GraphFacts | None = None,
    last_opset: int | None = None,
    float16_source: bool = False,
) -> InspectedModel:
    """Reads one model file. Raises InputError for a file that is not an ONNX model."""
    from deploykit.model.collect import collect_facts
    from deploykit.model.running import CpuSession, quiet_options

    model = load_model(path)
    facts, refusal = collect_facts(model), ""
    try:
        CpuSession(str(path), quiet_options(optimize=True), size=regular_size(path))
    except Exception as error:
        refusal = str(error).splitlines()[0] if str(error) else type(error).__name__
    return InspectedModel(
        name=path.name,
        precision=precision,
        facts=facts,
        grids=tuple(grids_of(model, facts)),
        excluded=excluded,
        source=source,
        last_opset=last_opset,
        refusal=refusal,
        float16_source=float16_source,
    )


def grids_of(model: Model, facts: GraphFacts) -> Iterator[Grid]:
    """The grids of all QuantizeLinear and DequantizeLinear nodes, in graph order."""
    from deploykit.model.collect import constant_value

    seen = dict[str, tuple[Any, ...]]()

    def values(name: str) -> tuple[Any, ...]:
        if name not in seen:
            array = constant_value(model, name, limit=1 << 20)
            seen[name] = () if array is None else tuple(array.ravel().tolist())
        return seen[name]

    for node in facts.nodes:
        if node.op_type in QUANTIZERS and len(node.inputs) > 1:
            zero = node.operand(2)
            yield Grid(
                node=node.label,
                tensor=node.inputs[0],
                scales=values(node.inputs[1]),
                zero_points=values(zero) if zero else (0,),
                dtype=integer_type(facts, node),
            )


def is_power_of_two(scale: float) -> bool:
    """True for a power of two."""
    return math.frexp(scale)[0] == 0.5


def actual_types(facts: GraphFacts, grids: tuple[Grid, ...]) -> Mapping[str, str]:
    """The type of every activation by its original name: the integer it is quantized to, else its own float type.

    A tensor between an operator and an activation fused with it is left out: its type is not determined there.
    """
    by_node = {grid.node: grid.dtype for grid in grids}
    types = dict[str, str]()
    for node in facts.nodes:
        if node.op_type == "QuantizeLinear":
            continue
        for name in node.outputs:
            fact = facts.tensor(name)
            if not fact.is_float or fact.is_weight:
                continue
            readers, kind = facts.consumers_of(name), "float32" if fact.dtype == "float" else fact.dtype
            integer = [by_node.get(reader.label, "") for reader in readers if reader.op_type == "QuantizeLinear"]
            if node.op_type == "DequantizeLinear":
                kind = by_node.get(node.label, "") if name in facts.outputs else ""
            elif integer and len(integer) == len(readers):
                kind = integer[0]
            elif len(readers) == 1 and readers[0].op_type in _FUSED:
                kind = ""
            if kind:
                types[name] = kind
    return types
