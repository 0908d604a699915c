"""Encodings by the least and largest value that each tensor reaches on some samples: the simplest quantizer."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy.typing as npt
from onnx import ModelProto

from deploykit.encodings.new_grids import GridKind, affine_for_range
from deploykit.encodings.values import Encoding, EncodingSet
from deploykit.flow.samples import observed_ranges
from deploykit.model.collect import collect_facts
from deploykit.model.graph import GraphCopy
from deploykit.model.load import wrap_proto
from deploykit.model.operators import BIAS
from deploykit.model.parameters import parameter_uses


def min_max_encodings(
    model: ModelProto, feeds: Sequence[Mapping[str, npt.NDArray[Any]]], *, bits: int = 8
) -> EncodingSet:
    """Asymmetric activations of so many bits, symmetric 8-bit weights, all per tensor; biases are left to the tools."""
    facts = collect_facts(wrap_proto(model, path=Path("model.onnx")))
    graph, uses = GraphCopy(model, copy=False), parameter_uses(facts)
    floats = [name for name, fact in facts.tensors.items() if fact.is_float and name]
    computed = [name for name in floats if not facts.tensors[name].is_weight]
    made = {
        name: Encoding(name=name, value=affine_for_range(*ends, GridKind(bits=bits, signed=False)), is_param=False)
        for name, ends in observed_ranges(model, computed, feeds).items()
    }
    for name in set(floats).difference(computed):
        if any(use.role == BIAS for use in uses.get(name, ())):
            continue
        values, is_param = graph.array(name), name in uses
        assert values is not None
        kind = GridKind(bits=8, signed=True, symmetric=True) if is_param else GridKind(bits=bits, signed=False)
        value = affine_for_range(float(values.min()), float(values.max()), kind)
        made[name] = Encoding(name=name, value=value, is_param=is_param)
    return EncodingSet(entries=made, version="2.0.0")
