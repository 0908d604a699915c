"""Says of every tensor whether it has an encoding, and if not, why that is right or that it is truly missing.

A missing entry does not by itself mean float: tool chains fuse operators, copy grids over data movement and derive
biases. It judges names and positions; it neither completes encodings nor guesses what was meant.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from typing import Any, TypeAlias

from deploykit.encodings.complete import copy_over_movement
from deploykit.encodings.float_sets import absorbing_fusions
from deploykit.encodings.values import EncodingSet
from deploykit.model.facts import GraphFacts, NodeFact, TensorFact, setting_of
from deploykit.model.operators import WEIGHT, Trait, data_outputs, has
from deploykit.model.parameters import parameter_uses
from deploykit.system.published import Published

__all__ = ["Coverage", "CoverageRow", "CoverageStatus", "collect_coverage"]


class CoverageStatus(StrEnum):
    """Why a tensor has, or has no, encoding."""

    ENCODED = "encoded"
    FUSED = "fused-intermediate"
    MOVEMENT = "data-movement"
    BIAS = "bias"
    SHAPE_OR_INDEX = "shape-or-index"
    FLOAT16 = "intended-float16"
    MISSING = "missing"


@dataclass(frozen=True, slots=True, kw_only=True)
class CoverageRow(Published):
    """One tensor: ``related`` names the tensor or node (its label) that the reason speaks of, or is empty."""

    tensor: str
    status: CoverageStatus
    reason: str
    related: str = ""


@dataclass(frozen=True, kw_only=True)
class Coverage:
    """One row per tensor that somebody reads, in the order of the graph's tensors."""

    rows: tuple[CoverageRow, ...]

    @cached_property
    def by_name(self) -> Mapping[str, CoverageRow]:
        """The rows by tensor."""
        return {row.tensor: row for row in self.rows}

    def of(self, status: CoverageStatus) -> tuple[CoverageRow, ...]:
        """The rows of one status."""
        return tuple(row for row in self.rows if row.status is status)

    @property
    def missing(self) -> tuple[str, ...]:
        """The tensors that should have an entry and have none."""
        return tuple(row.tensor for row in self.of(CoverageStatus.MISSING))

    @property
    def counts(self) -> dict[str, int]:
        """How many tensors have each status that occurs, in the order of ``CoverageStatus``."""
        counted = Counter(row.status for row in self.rows)
        return {str(status): counted[status] for status in CoverageStatus if counted[status]}

    def to_json(self) -> dict[str, Any]:
        """Counts and rows as JSON values."""
        return {"counts": self.counts, "tensors": [row.to_json() for row in self.rows]}


def collect_coverage(facts: GraphFacts, encodings: EncodingSet) -> Coverage:
    """The status of every activation and stored tensor that some node reads or the graph gives out.

    Works on encodings as read, placed or not. Linear in the size of the graph.
    """
    judge = _Judge(facts, encodings)
    rows = []
    for fact in facts.tensors.values():
        if fact.consumers or fact.is_output:
            status, reason, related = judge.verdict(fact)
            rows.append(CoverageRow(tensor=fact.name, status=status, reason=reason, related=related))
    return Coverage(rows=tuple(rows))


_Verdict: TypeAlias = tuple[CoverageStatus, str, str]
"""Status, reason, and the tensor or node that the reason speaks of."""


class _Judge:
    """Everything that is known once per graph, and the verdict on one tensor."""

    def __init__(self, facts: GraphFacts, encodings: EncodingSet) -> None:
        self.facts, self.encodings = facts, encodings
        self.floats = encodings.floats
        self.fused = absorbing_fusions(facts, encodings)
        self.uses = parameter_uses(facts)
        self.moved = {entry.name for entry in copy_over_movement(encodings, facts)}
        # Tensors without a grid that data movement connects with a float one, and the neighbour they follow.
        self.float_copies: dict[str, str] = {}
        todo = [name for name in facts.tensors if name in self.floats]
        while todo:
            name = todo.pop()
            for other in self._moved_beside(name):
                if other not in self.float_copies and not self._has_grid(other) and other not in self.floats:
                    self.float_copies[other] = name
                    todo.append(other)

    def _moved_beside(self, name: str) -> Iterator[str]:
        maker = self.facts.producer_of(name)
        if maker is not None and has(maker, Trait.AIMET_COPIES) and maker.inputs:
            yield maker.inputs[0]
        for node in self.facts.consumers_of(name):
            if has(node, Trait.AIMET_COPIES) and node.inputs[0] == name:
                yield from data_outputs(node, node.outputs)

    def _has_grid(self, name: str) -> bool:
        return name in self.moved or (name in self.encodings and name not in self.floats)

    def verdict(self, fact: TensorFact) -> _Verdict:
        """What the file says comes first, then what needs no grid, then what follows from others."""
        name, status = fact.name, CoverageStatus
        if name in self.floats:
            return status.FLOAT16, "an explicit float entry" if name in self.encodings else "listed as float", ""
        if name in self.encodings:
            return status.ENCODED, f"has an entry of {self.encodings.entries[name].dtype}", ""
        found = self._without_grid(fact)
        if found is not None:
            return found
        if name in self.fused:
            return status.FUSED, self.fused[name].words, self.fused[name].node.label
        if name in self.moved:
            source, op_type = self._neighbour(fact)
            return status.MOVEMENT, f"{op_type} moves the data of an encoded tensor", source
        if name in self.float_copies:
            return status.FLOAT16, "moves the data of a float tensor", self.float_copies[name]
        readers = self.facts.consumers_of(name)
        if self.floats and fact.is_weight and readers and all(map(self._makes_float, readers)):
            return status.FLOAT16, "stored, and read only by ops whose result is float", readers[0].label
        maker = self.facts.producer_of(name)
        if not fact.dtype:
            reason = "no entry, and its type could not be inferred"
        elif maker is None:
            reason = f"no entry; {fact.role}"
        elif has(maker, Trait.AIMET_COPIES) and maker.inputs:
            what = f"{maker.op_type} moves the data of a tensor that has no entry either"
            return status.MISSING, what, maker.inputs[0]
        else:
            reason = f"no entry; computed by {maker.op_type}"
        return status.MISSING, reason, maker.label if maker else ""

    def _without_grid(self, fact: TensorFact) -> _Verdict | None:
        """What is never quantized, or gets its grid from others: integers, settings, biases and statistics."""
        if fact.dtype and not fact.is_float:
            readers = self.facts.consumers_of(fact.name)
            return CoverageStatus.SHAPE_OR_INDEX, f"holds {fact.dtype} data", readers[0].label if readers else ""
        setting = setting_of(self.facts, fact.name)
        if setting is not None:
            return CoverageStatus.SHAPE_OR_INDEX, f"a setting of {setting.op_type}", setting.label
        uses = self.uses.get(fact.name, ())
        if not uses or any(use.role in (WEIGHT, "recurrence") for use in uses):
            return None
        # Every reader must take it as bias or statistics; the Add of a bias counts as its MatMul.
        explained = {use.node.index for use in uses}
        for use in uses:
            if use.node.op_type == "MatMul":
                explained |= {node.index for name in use.node.outputs for node in self.facts.consumers_of(name)}
        if not explained.issuperset(fact.consumers):
            return None
        role, node = uses[0].role, uses[0].node
        return CoverageStatus.BIAS, f"{role} of {node.op_type}: its scale follows from input and weight", node.label

    def _neighbour(self, fact: TensorFact) -> tuple[str, str]:
        """The encoded tensor next to a moved one, and the op type between them; upstream is looked at first."""
        maker = self.facts.producer_of(fact.name)
        if maker is not None and maker.inputs and self._has_grid(maker.inputs[0]):
            return maker.inputs[0], maker.op_type
        for reader in self.facts.consumers_of(fact.name):
            for name in filter(self._has_grid, reader.outputs):
                return name, reader.op_type
        return "", maker.op_type if maker is not None else ""

    def _makes_float(self, node: NodeFact) -> bool:
        """True where all results are meant to be float, looking through fused pairs."""
        while len(node.outputs) == 1 and node.outputs[0] in self.fused:
            node = self.fused[node.outputs[0]].node
        return all(name in self.floats or name in self.float_copies for name in node.outputs if name)
