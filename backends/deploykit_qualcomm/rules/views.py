"""Look-ups in a situation that several lint rules need: types behind Q/DQ pairs, roles, options. They judge nothing."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator
from functools import partial
from typing import Any, TypeAlias

from deploykit import findings
from deploykit.backend.backend import Situation
from deploykit.encodings.values import Affine, EncodingSet, Value
from deploykit.findings import Claim, SubjectKind
from deploykit.findings.records import Record
from deploykit.findings.rules import Found
from deploykit.model.facts import GraphFacts, NodeFact
from deploykit.model.load import Model
from deploykit.model.operators import INTEGER_BITS, Trait, ops
from deploykit.model.parameters import integer_type, quantizer_of, stored_behind_pairs
from deploykit.tables.capabilities import SdkTable
from deploykit_qualcomm.devices import arch_of

__all__ = [
    "EncodedGraph",
    "SmallGraph",
    "TensorGrid",
    "about_encodings",
    "about_several",
    "arch",
    "at_node",
    "bits_of",
    "byte_count",
    "dynamic_matmuls",
    "grid_of",
    "is_computed",
    "linear_weights",
    "listed",
    "nodes",
    "option",
    "quantized",
    "rewrite_advice",
    "sdk_of",
]

_MOST_SCALES = 65_536  # more scales are blocks, not a grid per channel


class TensorGrid(Record):
    """The quantization of one tensor: by its encoding, or by the Q/DQ pair around it.

    ``value`` is the encoding, None for a Q/DQ pair, whose scales are stored in the model (``grid_of`` reads them).
    ``block`` is the block size, 0 without blocks.
    """

    dtype: str
    granularity: str
    value: Value | None = None
    block: int

    @property
    def bits(self) -> int:
        """The width of a stored integer, 0 for a float type."""
        return INTEGER_BITS.get(self.dtype, 0)


class SmallGraph(Record):
    """A graph made by deploykit, with the fields that ``grid_of`` needs."""

    model: Model
    facts: GraphFacts
    encodings: EncodingSet | None = None


EncodedGraph: TypeAlias = Situation | SmallGraph
"""A graph in which the grids of tensors are looked up."""


def nodes(situation: Situation, *op_types: str) -> Iterator[NodeFact]:
    """The nodes of these types in the main graph, in its order."""
    return (node for node in situation.facts.nodes if node.op_type in op_types)


def quantized(situation: EncodedGraph, name: str) -> TensorGrid | None:
    """How a tensor is quantized, None if it is not."""
    entry = None if situation.encodings is None else situation.encodings.get(name)
    if entry is not None:
        block = getattr(entry.value, "block_size", None) or 0
        return TensorGrid(dtype=entry.dtype, granularity=entry.value.granularity, value=entry.value, block=block)
    node = quantizer_of(situation.facts, name)
    dtype = "" if node is None else integer_type(situation.facts, node)
    if node is None or not dtype:
        return None
    scale = situation.facts.tensor(node.inputs[1]).shape or ()
    block = int(node.attributes.get("block_size") or 0)
    single = math.prod(dim for dim in scale if isinstance(dim, int)) <= 1
    granularity = "per-block" if block else "per-tensor" if single else "per-channel"
    return TensorGrid(dtype=dtype, granularity=granularity, block=block)


def grid_of(situation: EncodedGraph, name: str) -> Affine | None:
    """The integer grid of a tensor, from its encoding or from the stored scale of its Q/DQ pair; None without one.

    Scales per block, computed scales, and those with more than 65,536 elements give None.
    """
    found = quantized(situation, name)
    if found is None or found.value is not None:
        return found.value if found is not None and isinstance(found.value, Affine) else None
    pair = quantizer_of(situation.facts, name)
    if pair is None or not found.bits or found.block:
        return None
    import numpy as np

    from deploykit.model.collect import constant_value

    names = [*pair.inputs[1:3], ""][:2]
    scale, zero = (constant_value(situation.model, name, limit=_MOST_SCALES) if name else None for name in names)
    if scale is None or (names[1] and zero is None):
        return None
    grid = np.asarray(scale, np.float64)
    # A single value may be written with an axis or without, and scale and zero point may differ in this.
    point = np.zeros_like(grid) if zero is None else np.asarray(zero, np.float64)
    if point.size not in (1, grid.size):
        return None
    return Affine(
        bits=found.bits,
        signed=not found.dtype.startswith("u"),
        scale=grid,
        zero_point=np.broadcast_to(point.reshape(()) if point.size == 1 else point.reshape(grid.shape), grid.shape),
        axis=int(pair.attributes.get("axis", 1)) if grid.size > 1 else None,
    )


def is_computed(facts: GraphFacts, name: str) -> bool:
    """True for a tensor that is computed at run time."""
    return bool(name) and name in facts.tensors and stored_behind_pairs(facts, name) is None


def bits_of(situation: Situation, name: str) -> int:
    """The width of a tensor on the HTP: that of its quantization, else 16 for a float, else that of its type."""
    found = quantized(situation, name)
    if found is not None and found.bits:
        return found.bits
    fact = situation.facts.tensor(name)
    if fact.is_float or not fact.dtype:
        return 16
    return min(INTEGER_BITS.get(fact.dtype, 32), 32)  # 64-bit integers are narrowed


def byte_count(situation: Situation, name: str) -> int | None:
    """The bytes of a tensor at its width on the HTP, None if a dimension is unknown."""
    shape = situation.facts.static_shape(name)
    return None if shape is None else math.prod(shape) * bits_of(situation, name) // 8


def sdk_of(situation: Situation) -> SdkTable:
    """The SDK table of the target."""
    assert situation.target.sdk is not None  # every target of these backends has one
    return situation.target.sdk


def arch(situation: Situation) -> str:
    """The HTP architecture of the target, "" if unknown."""
    return arch_of(situation.target.device)


def linear_weights(situation: Situation) -> Iterator[tuple[NodeFact, str]]:
    """Yields every linear layer that has a stored weight, with the weight's name at the layer."""
    for node in nodes(situation, *ops(Trait.LINEAR)):
        if stored_behind_pairs(situation.facts, node.operand(1)) is not None:
            yield node, node.inputs[1]


def dynamic_matmuls(situation: Situation) -> Iterator[NodeFact]:
    """Yields every MatMul of two computed tensors, as in attention."""
    for node in nodes(situation, "MatMul"):
        if all(is_computed(situation.facts, name) for name in node.inputs[:2]):
            yield node


def option(situation: Situation, key: str) -> str | None:
    """The last value given for an option, by the last part of its dotted path, or None."""
    values = [value for name, value in situation.request.options if name.rsplit(".", 1)[-1] == key]
    return values[-1] if values else None


def rewrite_advice(situation: Situation, name: str) -> str:
    """The advice to ask for a rewrite by name; rewrites do not work between Q/DQ pairs, so the float model is
    needed.
    """
    asked = f"--rewrite {name}"
    return f"give the float model with --encodings and {asked}" if situation.facts.is_qdq else f"try {asked}"


# The first few names, and the number of the others; the evidence has all.
listed = partial(findings.listed, most=4)


def about_several(
    names: Collection[str], message: str, *, kind: SubjectKind = SubjectKind.NODE, name: str = "", **more: Any
) -> Found:
    """One finding about several nodes or tensors, which follow the message; its subject is the first one or
    ``name``.
    """
    shown = list(names)
    key = "nodes" if kind is SubjectKind.NODE else "tensors"
    evidence = {key: shown, **more.pop("evidence", {})}
    return Found(kind, name or shown[0], f"{message}: {listed(shown)}", evidence=evidence, **more)


def about_encodings(situation: Situation, names: Collection[str], message: str, **more: Any) -> Found:
    """One finding about several tensors with encodings; its subject is the encodings file, or the model without one."""
    path = situation.request.encodings
    kind = SubjectKind.ENCODINGS if path is not None else SubjectKind.MODEL
    return about_several(names, message, kind=kind, name=(path or situation.request.model).name, **more)


def at_node(
    node: NodeFact, message: str, *, sources: tuple[str, ...] = (), claim: Claim | None = None, **evidence: object
) -> Found:
    """A finding about one node."""
    who = f"{node.op_type} {node.name}" if node.name else node.label
    return Found("node", node.label, f"{who}: {message}", sources=sources, claim=claim, evidence=evidence)
