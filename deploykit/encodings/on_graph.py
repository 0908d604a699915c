"""What the rules about encodings ask: questions to a set of encodings that is placed on its graph.

It answers and judges nothing; the rules (``deploykit.encodings.rules``) say what an answer means. They stay
cheap to import because everything that needs arrays is here.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from deploykit.encodings.coverage import Coverage, collect_coverage
from deploykit.encodings.formats.differences import Change, compare_values
from deploykit.encodings.new_grids import range_of
from deploykit.encodings.post_processing import Harm, find_post_processing
from deploykit.encodings.values import Affine, Encoding, EncodingSet, Lpbq
from deploykit.model.facts import GraphFacts, NodeFact
from deploykit.model.operators import BIAS, WEIGHT, Trait, has
from deploykit.model.parameters import ParameterUse, parameter_uses

__all__ = ["CoarseJoin", "EncodingsOnGraph", "Regrid"]

_FEW_STEPS = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class CoarseJoin:
    """A Concat in the post-processing whose grid leaves a part of it few steps."""

    node: str
    part: str
    steps: float
    step: float
    others: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Regrid:
    """A data-movement op between two tensors with different per-tensor grids."""

    node: NodeFact
    source: Encoding
    copy: Encoding
    changes: tuple[Change, ...]


@dataclass(frozen=True, kw_only=True)
class EncodingsOnGraph:
    """Encodings, placed on the graph they are for."""

    encodings: EncodingSet
    facts: GraphFacts

    @property
    def source(self) -> str:
        """The file, for messages."""
        return self.encodings.source or "the encodings"

    @cached_property
    def uses(self) -> dict[str, tuple[ParameterUse, ...]]:
        """Which stored tensors are read as parameters."""
        return parameter_uses(self.facts)

    @cached_property
    def coverage(self) -> Coverage:
        """Which tensors have an entry, and why others have none."""
        return collect_coverage(self.facts, self.encodings)

    @property
    def names(self) -> tuple[str, ...]:
        """Every tensor that is spoken of: with an entry, or named as float."""
        return tuple(dict.fromkeys((*self.encodings.entries, *sorted(self.encodings.float_tensors))))

    @property
    def strangers(self) -> tuple[str, ...]:
        """Those of ``names`` that the graph does not have."""
        return tuple(name for name in self.names if name not in self.facts.tensors)

    def known(self) -> Iterator[Encoding]:
        """The entries of tensors that the graph has."""
        return (entry for entry in self.encodings if entry.name in self.facts.tensors)

    def coarse_joins(self) -> Iterator[CoarseJoin]:
        """Parts of unlike ranges that a grid common to all of them leaves a handful of steps, behind the network."""
        ranges = {entry.name: ends for entry in self.known() if (ends := range_of(entry)) is not None}
        found = find_post_processing(self.facts, ranges)
        for hurt in found.hurts if found is not None else ():
            node = next(node for node in self.facts.nodes if node.label == hurt.node)
            entry = self.encodings.get(node.outputs[0])
            if hurt.harm is not Harm.UNLIKE or range_of(entry) is None:
                continue
            assert entry is not None
            assert isinstance(entry.value, Affine)
            step = float(entry.value.scale.max())
            for part in hurt.parts:
                steps = (part.high - part.low) / step
                if steps < _FEW_STEPS:
                    others = tuple(str(other) for other in hurt.parts if other is not part)
                    yield CoarseJoin(node=hurt.node, part=str(part), steps=steps, step=step, others=others)

    def steps_beyond(self, limit: float) -> Iterator[tuple[Encoding, float]]:
        """Integer entries with a step greater than ``limit``, and that step."""
        for entry in self.known():
            if isinstance(entry.value, Affine) and float(entry.value.scale.max()) > limit:
                yield entry, float(entry.value.scale.max())

    def unplaced(self) -> Iterator[tuple[Encoding, int]]:
        """Entries that the graph has and could not place, and the number of their scales."""
        for entry in self.known():
            value = entry.value
            if isinstance(value, Affine | Lpbq) and not value.placed:
                yield entry, int(value.block_scale.size if isinstance(value, Lpbq) else value.scale.size)

    def asymmetric_weights(self) -> tuple[str, ...]:
        """Weights of linear ops on a grid that is not centred; those of norms only scale and are left out."""
        names = []
        for entry in self.known():
            value, uses = entry.value, self.uses.get(entry.name, ())
            if isinstance(value, Affine) and any(u.role == WEIGHT and u.channel_axis is not None for u in uses):
                middle = value.lowest + (1 << (value.bits - 1))
                if not np.isin(value.zero_point - middle, (0.0, -0.5)).all():
                    names.append(entry.name)
        return tuple(names)

    def narrow_biases(self, bits: int) -> Iterator[Encoding]:
        """Biases on an integer grid of fewer than ``bits``."""
        for entry in self.known():
            roles = {use.role for use in self.uses.get(entry.name, ())}
            if isinstance(entry.value, Affine) and entry.value.bits < bits and BIAS in roles:
                yield entry

    def regrids(self) -> Iterator[Regrid]:
        """Data-movement ops whose input and output have entries with different real values."""
        for node in self.facts.nodes:
            holds_same = has(node, Trait.REARRANGES, Trait.SELECTS) and has(node, Trait.AIMET_COPIES)
            if not holds_same or not node.inputs:
                continue
            source = self.encodings.get(node.inputs[0])
            for copy in filter(None, map(self.encodings.get, node.outputs)):
                if source is not None and {source.value.granularity, copy.value.granularity} == {"per-tensor"}:
                    changes = compare_values(source.value, copy.value, grid_only=True, tolerance=1e-6)
                    if changes:
                        yield Regrid(node=node, source=source, copy=copy, changes=changes)

    def on_integers(self) -> Iterator[tuple[Encoding, str]]:
        """Entries of tensors that hold no floats in a model without Q/DQ nodes, and what they hold."""
        for entry in self.known():
            fact = self.facts.tensors[entry.name]
            if fact.dtype and not fact.is_float and not self.facts.is_qdq:
                yield entry, fact.dtype

    def symmetric_off_centre(self) -> Iterator[tuple[Encoding, float]]:
        """Entries called symmetric whose zero lies elsewhere than strict, shifted or unsigned symmetry puts it."""
        for entry in self.known():
            value = entry.value
            if isinstance(value, Affine) and value.symmetric and value.signed:
                odd = value.zero_point[~np.isin(value.zero_point, (0.0, -0.5, -1.0, float(value.lowest)))]
                if odd.size:
                    yield entry, float(odd[0])

    def mixed_widths(self) -> tuple[str, ...]:
        """Labels of elementwise and joining ops whose quantized inputs have different integer widths."""
        labels = []
        for node in self.facts.nodes:
            values = (entry.value for entry in map(self.encodings.get, node.inputs) if entry is not None)
            widths = {value.bits for value in values if isinstance(value, Affine)}
            if len(widths) > 1 and has(node, Trait.COMBINES, Trait.JOINS):
                labels.append(node.label)
        return tuple(labels)
