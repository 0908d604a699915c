"""Says of every tensor whether it has an encoding, and if not, why that is right or that it is truly missing.

A missing entry does not by itself mean float: tool chains fuse operators, copy grids over data movement and derive
biases. It judges names and positions; it neither completes encodings nor guesses what was meant.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from enum import StrEnum

from deploykit.encodings.complete import copy_over_movement
from deploykit.encodings.float_sets import absorbing_fusions
from deploykit.encodings.values import EncodingSet
from deploykit.model.facts import GraphFacts, NodeFact, TensorFact, setting_of
from deploykit.model.operators import WEIGHT, Trait, data_outputs, has
from deploykit.model.parameters import ParameterUse, parameter_uses

__all__ = ["CoverageStatus", "collect_coverage", "missing_entries"]


class CoverageStatus(StrEnum):
    """Why a tensor has, or has no, encoding."""

    ENCODED = "encoded"
    FUSED = "fused-intermediate"
    MOVEMENT = "data-movement"
    BIAS = "bias"
    SHAPE_OR_INDEX = "shape-or-index"
    FLOAT16 = "intended-float16"
    MISSING = "missing"


def collect_coverage(facts: GraphFacts, encodings: EncodingSet) -> dict[str, CoverageStatus]:
    """The status of every tensor that some node reads or the graph gives out, in the graph's order.

    Works on encodings as read, placed or not. Linear in the size of the graph.
    """
    floats, status = encodings.floats, CoverageStatus
    fused = absorbing_fusions(facts, encodings)
    uses = parameter_uses(facts)
    moved = {entry.name for entry in copy_over_movement(encodings, facts)}
    float_copies = _float_copies(facts, floats, {*moved, *(encodings.entries.keys() - floats)})

    def makes_float(node: NodeFact) -> bool:
        while len(node.outputs) == 1 and node.outputs[0] in fused:
            node = fused[node.outputs[0]].node
        return all(name in floats or name in float_copies for name in node.outputs if name)

    def status_of(fact: TensorFact) -> CoverageStatus:
        # What the file says comes first, then what needs no grid, then what follows from others.
        name, readers = fact.name, facts.consumers_of(fact.name)
        if name in floats:
            return status.FLOAT16
        if name in encodings:
            return status.ENCODED
        if (fact.dtype and not fact.is_float) or setting_of(facts, name) is not None:
            return status.SHAPE_OR_INDEX
        if _gets_its_scale_from_others(facts, fact, uses.get(name, ())):
            return status.BIAS
        if name in fused:
            return status.FUSED
        if name in moved:
            return status.MOVEMENT
        served = floats and fact.is_weight and readers and all(map(makes_float, readers))
        return status.FLOAT16 if name in float_copies or served else status.MISSING

    return {fact.name: status_of(fact) for fact in facts.tensors.values() if fact.consumers or fact.is_output}


def missing_entries(facts: GraphFacts, encodings: EncodingSet) -> tuple[str, ...]:
    """The tensors that should have an entry and have none."""
    found = collect_coverage(facts, encodings)
    return tuple(name for name, status in found.items() if status is CoverageStatus.MISSING)


def _float_copies(facts: GraphFacts, floats: frozenset[str], with_grid: Collection[str]) -> set[str]:
    """Tensors without a grid that data movement connects with a float one."""
    found: set[str] = set()
    todo = [name for name in facts.tensors if name in floats]
    while todo:
        name = todo.pop()
        maker = facts.producer_of(name)
        beside = list(maker.inputs[:1]) if maker is not None and has(maker, Trait.AIMET_COPIES) else []
        for node in facts.consumers_of(name):
            if has(node, Trait.AIMET_COPIES) and node.inputs[0] == name:
                beside += data_outputs(node, node.outputs)
        fresh = [other for other in beside if other not in found and other not in with_grid and other not in floats]
        found.update(fresh)
        todo += fresh
    return found


def _gets_its_scale_from_others(facts: GraphFacts, fact: TensorFact, uses: Sequence[ParameterUse]) -> bool:
    """True for biases and statistics: their scale follows from input and weight."""
    if not uses or any(use.role in (WEIGHT, "recurrence") for use in uses):
        return False
    # Every reader must take it as bias or statistics; the Add of a bias counts as its MatMul.
    explained = {use.node.index for use in uses}
    for use in uses:
        if use.node.op_type == "MatMul":
            explained |= {node.index for name in use.node.outputs for node in facts.consumers_of(name)}
    return explained.issuperset(fact.consumers)
