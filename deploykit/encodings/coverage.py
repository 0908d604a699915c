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
from typing import Any

from deploykit.encodings.complete import copy_over_movement
from deploykit.encodings.float_sets import absorbing_fusions
from deploykit.encodings.values import EncodingSet
from deploykit.model.facts import GraphFacts, NodeFact, TensorFact, setting_of
from deploykit.model.operators import WEIGHT, Trait, data_outputs, has
from deploykit.model.parameters import ParameterUse, parameter_uses
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
    used = (fact for fact in facts.tensors.values() if fact.consumers or fact.is_output)
    return Coverage(rows=tuple(judge.row(fact) for fact in used))


class _Judge:
    """Everything that is known once per graph, and the verdict on one tensor."""

    def __init__(self, facts: GraphFacts, encodings: EncodingSet) -> None:
        self.facts = facts
        self.encodings = encodings
        self.floats = encodings.floats
        self.fused = absorbing_fusions(facts, encodings)
        self.uses = parameter_uses(facts)
        self.moved = {entry.name for entry in copy_over_movement(encodings, facts)}
        # Tensors without a grid that data movement connects with a float one, and the neighbour they follow.
        following: dict[str, str] = {}
        todo = [name for name in self.facts.tensors if name in self.floats]
        while todo:
            name = todo.pop()
            for other in self._moved_neighbours(name):
                if other not in following and not self._has_grid(other) and other not in self.floats:
                    following[other] = name
                    todo.append(other)
        self.float_copies = following

    def row(self, fact: TensorFact) -> CoverageRow:
        for verdict in (self._stated, self._without_grid, self._fused, self._moved, self._float):
            found = verdict(fact)
            if found is not None:
                return CoverageRow(tensor=fact.name, status=found[0], reason=found[1], related=found[2])
        maker = self.facts.producer_of(fact.name)
        if not fact.dtype:
            reason = "no entry, and its type could not be inferred"
        elif maker is not None and has(maker, Trait.AIMET_COPIES) and maker.inputs:
            return CoverageRow(
                tensor=fact.name,
                status=CoverageStatus.MISSING,
                reason=f"{maker.op_type} moves the data of a tensor that has no entry either",
                related=maker.inputs[0],
            )
        else:
            reason = f"no entry; {fact.role}" if maker is None else f"no entry; computed by {maker.op_type}"
        return CoverageRow(
            tensor=fact.name, status=CoverageStatus.MISSING, reason=reason, related=maker.label if maker else ""
        )

    def _stated(self, fact: TensorFact) -> tuple[CoverageStatus, str, str] | None:
        if fact.name in self.floats:
            entry = "an explicit float entry" if fact.name in self.encodings else "listed as float"
            return CoverageStatus.FLOAT16, entry, ""
        if fact.name in self.encodings:
            return CoverageStatus.ENCODED, f"has an entry of {self.encodings.entries[fact.name].dtype}", ""
        return None

    def _without_grid(self, fact: TensorFact) -> tuple[CoverageStatus, str, str] | None:
        """What is never quantized, or gets its grid from others: integers, settings, biases and statistics."""
        if fact.dtype and not fact.is_float:
            readers = self.facts.consumers_of(fact.name)
            return CoverageStatus.SHAPE_OR_INDEX, f"holds {fact.dtype} data", readers[0].label if readers else ""
        setting = setting_of(self.facts, fact.name)
        if setting is not None:
            return CoverageStatus.SHAPE_OR_INDEX, f"a setting of {setting.op_type}", setting.label
        uses = self.uses.get(fact.name, ())
        if uses and self._reads_as_bias(fact, uses):
            role, node = uses[0].role, uses[0].node
            return CoverageStatus.BIAS, f"{role} of {node.op_type}: its scale follows from input and weight", node.label
        return None

    def _reads_as_bias(self, fact: TensorFact, uses: tuple[ParameterUse, ...]) -> bool:
        """True where every reader takes it as bias or statistics; the Add of a bias counts as its MatMul."""
        if any(use.role in (WEIGHT, "recurrence") for use in uses):
            return False
        explained = {use.node.index for use in uses}
        explained |= {index for use in uses if use.node.op_type == "MatMul" for index in self._readers(use.node)}
        return set(fact.consumers) <= explained

    def _readers(self, node: NodeFact) -> Iterator[int]:
        return (
            reader
            for name in node.outputs
            if name in self.facts.tensors
            for reader in self.facts.tensors[name].consumers
        )

    def _fused(self, fact: TensorFact) -> tuple[CoverageStatus, str, str] | None:
        fusion = self.fused.get(fact.name)
        return None if fusion is None else (CoverageStatus.FUSED, fusion.words, fusion.node.label)

    def _moved(self, fact: TensorFact) -> tuple[CoverageStatus, str, str] | None:
        if fact.name not in self.moved:
            return None
        source, node = self._neighbour(fact)
        return CoverageStatus.MOVEMENT, f"{node} moves the data of an encoded tensor", source

    def _neighbour(self, fact: TensorFact) -> tuple[str, str]:
        """The encoded tensor next to a moved one, and the op type between them; upstream is looked at first."""
        maker = self.facts.producer_of(fact.name)
        if maker is not None and maker.inputs and self._has_grid(maker.inputs[0]):
            return maker.inputs[0], maker.op_type
        for reader in self.facts.consumers_of(fact.name):
            for name in reader.outputs:
                if self._has_grid(name):
                    return name, reader.op_type
        return "", maker.op_type if maker is not None else ""

    def _has_grid(self, name: str) -> bool:
        return name in self.moved or (name in self.encodings and name not in self.floats)

    def _float(self, fact: TensorFact) -> tuple[CoverageStatus, str, str] | None:
        source = self.float_copies.get(fact.name)
        if source is not None:
            return CoverageStatus.FLOAT16, "moves the data of a float tensor", source
        if (
            self.floats
            and fact.is_weight
            and fact.consumers
            and all(self._makes_float(node) for node in self.facts.consumers_of(fact.name))
        ):
            label = self.facts.nodes[fact.consumers[0]].label
            return CoverageStatus.FLOAT16, "stored, and read only by ops whose result is float", label
        return None

    def _makes_float(self, node: NodeFact) -> bool:
        """True where all results are meant to be float, looking through fused pairs."""
        while len(node.outputs) == 1 and node.outputs[0] in self.fused:
            node = self.fused[node.outputs[0]].node
        return all(name in self.floats or name in self.float_copies for name in node.outputs if name)

    def _moved_neighbours(self, name: str) -> Iterator[str]:
        maker = self.facts.producer_of(name)
        if maker is not None and has(maker, Trait.AIMET_COPIES) and maker.inputs:
            yield maker.inputs[0]
        for node in self.facts.consumers_of(name):
            if has(node, Trait.AIMET_COPIES) and node.inputs[0] == name:
                yield from data_outputs(node, node.outputs)
