"""Gives grids to tensors for which the provider wants one and the file has none: inside fused operators, at constants.

The provider fuses less than the device: if it meets no pair, it makes the operators around it float, or refuses them. A
tensor whose range cannot be derived stays float.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeAlias

import numpy as np
from msgspec.structs import replace
from onnx import ModelProto, NodeProto, TensorProto

from deploykit.encodings.backward import Evidence
from deploykit.encodings.float_sets import absorbing_fusions
from deploykit.encodings.infer import infer_entries
from deploykit.encodings.values import Affine, Encoding, EncodingSet
from deploykit.findings.records import Names
from deploykit.model.collect import facts_of
from deploykit.model.facts import GraphFacts
from deploykit.model.graph import view_of
from deploykit.model.nodes import operand
from deploykit.model.operators import Trait, has
from deploykit.model.parameters import bias_after_matmul
from deploykit.model.weights import element_type, stored_values
from deploykit_ort_qnn.forms.blocks import value_grid
from deploykit_ort_qnn.forms.kernel_grids import symmetric_int16

__all__ = ["Observer", "constant_grids", "fused_grids", "norm_scales", "recurrent_biases"]

Observer: TypeAlias = "Callable[[ModelProto], Evidence]"
"""Gives the evidence of the user's data about a model; called only if grids are missing."""

# 8 bits cannot hold the squares and exponentials inside a norm or a Softmax beside the values they come from.
_NARROW = 8
_STATISTICS = frozenset({"Exp", "InstanceNormalization", "ReduceMean", "ReduceSum"})


def fused_grids(model: ModelProto, encodings: EncodingSet, observer: Observer | None) -> tuple[EncodingSet, Names]:
    """The encodings with entries for tensors inside fused operators, and the names of the new entries.

    An operator gets all of its entries or none: with some of them the border to float would only move.
    """
    facts = facts_of(model)
    missing = dict[str, list[str]]()
    fusions = absorbing_fusions(facts, encodings)
    for name in (name for name in facts.tensors if name in fusions):  # sets have no fixed order
        fusion = fusions[name]
        if name in fusion.inside and facts.tensors[name].is_float and not _before_bias(facts, encodings, name):
            missing.setdefault(fusion.result, []).append(name)
    missing = {result: names for result, names in missing.items() if _can_be_integer(facts, encodings, result, names)}
    if not missing:
        return encodings, ()
    wanted = [name for names in missing.values() for name in names]
    evidence = Evidence() if observer is None else observer(model)
    inferred = infer_entries(model, facts, encodings, wanted, evidence=evidence)
    unknown = {one.tensor for one in inferred.open}
    made = [name for names in missing.values() if unknown.isdisjoint(names) for name in names]
    if not made:
        return encodings, ()
    entries = {name: inferred.encodings.entries[name] for name in made}
    return replace(encodings, entries={**encodings.entries, **entries}), tuple(made)


def _before_bias(facts: GraphFacts, encodings: EncodingSet, name: str) -> bool:
    """True between a MatMul and its bias, if that is int32, or has no
    entry, as in AIMET's encodings up to version 1.0.0.

    ONNX Runtime makes one layer of the two, with an exact sum: a grid between them costs up to 15 dB.
    """
    maker = facts.producer_of(name)
    bias = None if maker is None else bias_after_matmul(facts, maker)
    if bias is None or bias in encodings.floats:
        return False
    entry = encodings.get(bias)
    return entry is None or entry.integer_bits == 32


def _can_be_integer(facts: GraphFacts, encodings: EncodingSet, result: str, names: list[str]) -> bool:
    """True if the result is an integer, wide enough for the values computed on the way to it."""
    entry = encodings.get(result)
    if entry is None or not isinstance(entry.value, Affine):
        return False
    makers = [facts.producer_of(name) for name in names]
    return entry.value.bits > _NARROW or all(node is None or node.op_type not in _STATISTICS for node in makers)


def constant_grids(model: ModelProto, encodings: EncodingSet) -> tuple[EncodingSet, Names]:
    """Gives constants of elementwise operators whose other tensors are integers the grid of their values.

    An int32 grid is that of a bias: the provider refuses it here. If a product without a grid is added to a
    bias, ONNX Runtime makes one layer of the two and stores the bias itself, so the constant stays float. A
    constant of a Where that holds an infinity gets the result's grid, so that the infinity becomes its end:
    without a grid the provider makes an infinite scale.
    """
    stored, entries, changed = view_of(model).stored, dict(encodings.entries), list[str]()
    for node in model.graph.node:
        if not has(node, Trait.COMBINES) and node.op_type != "PRelu":
            continue
        width, made = _common_width(node, encodings, stored), encodings.get(node.output[0])
        for name in node.input:
            entry = encodings.get(name)
            if name not in stored or (entry is not None and entry.integer_bits < 32) or name in encodings.floats:
                continue
            entries.pop(name, None)
            if stored[name].data_type != element_type("float"):
                continue
            values = stored_values(stored[name])
            if node.op_type == "Where" and made is not None and not np.isfinite(values).all():
                entries[name] = replace(made, name=name)
            elif width:
                entries[name] = Encoding(name, value_grid(values, width), is_param=False)
            changed += [name] if name in entries else []
    return replace(encodings, entries=entries), tuple(changed)


def norm_scales(model: ModelProto, encodings: EncodingSet) -> tuple[EncodingSet, Names]:
    """Makes the scale of a normalization uint8 or int16, as the provider
    needs: on the given grid, or on that of its values.
    """
    stored, entries, changed = view_of(model).stored, dict(encodings.entries), list[str]()
    for node in model.graph.node:
        name = operand(node, 1) if has(node, Trait.NORMALIZES) else ""
        if name not in stored or name in encodings.floats:
            continue
        value = _norm_scale(entries.get(name), stored[name], wanted=bool(_common_width(node, encodings, stored)))
        if value is not None and (value.bits == 8 or node.op_type == "LayerNormalization"):
            entries[name] = Encoding(name, value, is_param=False)
            changed.append(name)
    return replace(encodings, entries=entries), tuple(changed)


def recurrent_biases(model: ModelProto, encodings: EncodingSet) -> tuple[EncodingSet, Names]:
    """Removes the 32-bit grid of a recurrent layer's bias: the provider takes int32 only as the bias of a product.

    It computes these layers in float, and leaves a node that would read the integers to the CPU.
    """
    wide = {name for name, entry in encodings.entries.items() if entry.integer_bits == 32}
    read = {name for node in model.graph.node if has(node, Trait.RECURRENT) for name in node.input}
    entries = {name: entry for name, entry in encodings.entries.items() if name not in wide & read}
    return replace(encodings, entries=entries), tuple(name for name in encodings.entries if name not in entries)


def _norm_scale(entry: Encoding | None, tensor: TensorProto, *, wanted: bool) -> Affine | None:
    """The grid to use instead of the given one, None to keep it."""
    if entry is None:
        return value_grid(stored_values(tensor), 8) if wanted else None
    value = entry.value
    if not isinstance(value, Affine) or value.scale.size != 1 or value.signed != (value.bits == 8):
        return None
    if value.bits == 16:
        return symmetric_int16(value)
    return replace(value, signed=False, zero_point=value.zero_point - value.lowest)


def _common_width(node: NodeProto, encodings: EncodingSet, stored: Mapping[str, object]) -> int:
    """The output's width if all tensors computed at run time have integer grids of 8 or 16 bits, else 0."""
    names = [*(name for name in node.input if name not in stored), *node.output]
    values = [entry.value for name in names if (entry := encodings.get(name)) is not None]
    if len(values) < len(names) or not all(isinstance(value, Affine) and value.bits in (8, 16) for value in values):
        return 0
    last = values[-1]
    return last.bits if isinstance(last, Affine) else 0
