"""Tells which tensors have an encoding, need none or miss one, which stay float, and where the two kinds meet.

A missing entry does not by itself mean float: tool chains fuse operators, copy grids over data movement and derive
biases. The model of a converter that falls back to float (inferred from documented wording: encodings pass through
data-movement ops, the rest stays float): a tensor with an integer entry is quantized; an entry travels over data
movement in both directions; a tensor between two ops that the tool chain fuses has no type of its own; everything else
is float. It changes no encodings.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from enum import StrEnum

from deploykit.encodings.complete import copy_over_movement
from deploykit.encodings.values import EncodingSet, Float
from deploykit.findings.records import Json, Names, Pairs, Record, grouped
from deploykit.model.facts import GraphFacts, NodeFact, TensorFact, is_setting, setting_of, with_static
from deploykit.model.nodes import reached
from deploykit.model.operators import BIAS, ROLES, WEIGHT, Trait, data_outputs, has, ops
from deploykit.model.parameters import ParameterUse, parameter_uses
from deploykit.model.patterns import Fusion, fusions

__all__ = [
    "FloatPrediction",
    "absorbing_fusions",
    "collect_coverage",
    "find_borders",
    "float_nodes",
    "missing_entries",
    "predict_float_set",
    "suggest_extensions",
    "unscaled_rows",
]

_SCALES = frozenset({"Add", "Div", "Mul", "Sub"})


def unscaled_rows(facts: GraphFacts) -> Names:
    """Rows of features, what is computed from them until each is scaled by its own number, and these numbers.

    No grid holds 0.001 beside 4,000, which is why the model scales them.
    """
    tensors = facts.tensors
    behind = {name: {name} for name in facts.inputs if tensors[name].is_float and tensors[name].rank == 2}
    found = set[str]()
    for node in facts.nodes:
        computed = [name for name in node.inputs if name not in tensors or not tensors[name].is_weight]
        if node.op_type not in _SCALES or len(computed) != 1 or computed[0] not in behind:
            continue
        reached, made = behind[computed[0]], node.outputs[0]
        (number,) = {*node.inputs} - {*computed}
        if tensors[number].shape not in ((), (1,)):
            found |= {*reached, number}
        behind[made] = {*reached, made, number}
    return tuple(sorted(found))


def absorbing_fusions(facts: GraphFacts, encodings: EncodingSet) -> Mapping[str, Fusion]:
    """Tensors without an entry that vanish into one operator, each with the fusion that it vanishes into.

    Stored tensors that only serve such operators (an epsilon, an exponent, the bias of a norm) are among them. A tensor
    that is stated to be float is not: the file speaks about it. The order is the same in every run.
    """
    stated = encodings.floats
    found = dict[str, Fusion]()
    settings = dict[str, set[int]]()
    for fusion in fusions(facts):
        # Asked of the few names inside: a set that is asked about the entries goes through all of them.
        explained = fusion.result in encodings and encodings.entries.keys().isdisjoint(fusion.inside)
        if not (fusion.certain or explained):
            continue
        found.update((name, fusion) for name in sorted(fusion.inside) if name not in encodings and name not in stated)
        for name in sorted(fusion.settings - stated):
            readers = settings.setdefault(name, set())
            # Readers that make a tensor inside the fusion, or its result.
            readers.update(
                i
                for i in facts.tensors[name].consumers
                if any(name == fusion.result or name in fusion.inside for name in facts.nodes[i].outputs)
            )
            if name not in encodings and readers.issuperset(facts.tensors[name].consumers):
                found[name] = fusion
    return found


def float_nodes(facts: GraphFacts, floats: Collection[str]) -> frozenset[int]:
    """Indices of the nodes that run in float: those that read or make a float activation."""
    facts = with_static(facts)
    idle = {name for name in floats if name in facts.tensors and not facts.is_stored(name)}.isdisjoint
    return frozenset(node.index for node in facts.nodes if not (idle(node.inputs) and idle(node.outputs)))


def find_borders(
    facts: GraphFacts, floats: Collection[str], *, ignored: Collection[str] = frozenset()
) -> tuple[Json, ...]:
    """Every conversion, in graph order: ``tensor`` is quantized and ``node`` (a label) runs in float.

    ``direction`` is ``to-float`` where the node reads the tensor and ``to-quantized`` where it makes it. ``ignored``
    are tensors without a type of their own (inside fused pairs).
    """
    facts = with_static(facts)
    return tuple(
        {"tensor": name, "node": node.label, "direction": direction}
        for node in map(facts.nodes.__getitem__, sorted(float_nodes(facts, floats)))
        for names, direction in ((node.inputs, "to-float"), (node.outputs, "to-quantized"))
        for name in dict.fromkeys(names)
        if facts.is_data(name) and not facts.is_stored(name) and name not in floats and name not in ignored
    )


def suggest_extensions(
    facts: GraphFacts, floats: Collection[str], *, ignored: Collection[str] = frozenset(), most_nodes: int = 32
) -> list[Json]:
    """Small quantized islands among float ops that would remove borders as float, best gain per op first.

    An island starts at a border and grows over the ops it turns float while these are at most ``most_nodes``; borders
    that it would put around itself are subtracted. Gains are measured one by one, not added up.
    """
    facts, base = with_static(facts), frozenset(floats)
    running = float_nodes(facts, base)
    borders = find_borders(facts, base, ignored=ignored)
    # Islands of quantized tensors around every border, one per step of their growth.
    islands = dict[frozenset[str], None]()
    for start in dict.fromkeys(border["tensor"] for border in borders):
        island, frontier, turned = {start}, {start}, set(running)
        while frontier:
            islands[frozenset(island)] = None
            touched = [facts.tensors[name] for name in frontier]
            nodes = {index for fact in touched for index in fact.consumers} - turned
            nodes |= {fact.producer for fact in touched if fact.producer is not None} - turned
            turned |= nodes
            if len(turned) - len(running) > most_nodes:
                break
            names = {name for i in nodes for name in (*facts.nodes[i].inputs, *facts.nodes[i].outputs) if name}
            frontier = {name for name in names - island - base if facts.is_data(name) and not facts.is_stored(name)}
            island |= frontier
    found = []
    for tensors in islands:
        removed = len(borders) - len(find_borders(facts, base | tensors, ignored=ignored))
        if removed > 0:
            labels = [facts.nodes[index].label for index in sorted(float_nodes(facts, base | tensors) - running)]
            found.append({"tensors": sorted(tensors), "nodes": labels, "removed": removed})
    return sorted(found, key=lambda each: (-each["removed"] / (len(each["nodes"]) + 1), each["tensors"]))


_ACTIVATIONS = ops(Trait.CLAMPS, Trait.RECTIFIES) | {"HardSwish"}


class FloatPrediction(Record):
    """Which tensors are meant to be float, and which will be, by name.

    ``unexpected`` will be float though an encoding was meant to exist; ``missing`` are meant to be float and will be
    quantized. ``absorbed`` are tensors inside a fused pair, with the op that takes them in: they are in neither set.
    ``explicit`` is False when the file says nothing about float tensors, so that ``intended`` was inferred from missing
    entries. ``by_habit`` are intended tensors whose missing entry means nothing, since the exporter never gives them
    one: casts of integers, stored values beside data, what only selects among quantized values, and what follows from
    these. ``borders`` are the places where data changes its kind at run time.
    """

    intended: frozenset[str]
    predicted: frozenset[str]
    explicit: bool
    absorbed: Mapping[str, str]
    by_habit: frozenset[str]
    borders: tuple[Json, ...]

    @property
    def meant(self) -> frozenset[str]:
        """The intended float tensors that the exporter would not have left out by habit."""
        return self.intended - self.by_habit

    @property
    def unexpected(self) -> frozenset[str]:
        """The tensors predicted float that were not intended."""
        return self.predicted - self.intended

    @property
    def missing(self) -> frozenset[str]:
        """The tensors intended float that are predicted quantized."""
        return self.intended - self.predicted - self.absorbed.keys()


def predict_float_set(facts: GraphFacts, encodings: EncodingSet) -> FloatPrediction:
    """Compare the float tensors that the encodings intend with those that a float fallback will make.

    Works on encodings as read and on completed ones; the difference between the two is what completing is for.
    """
    key = ("float set", encodings)
    known: FloatPrediction | None = facts.known(key)
    if known is not None:
        return known
    given, facts = facts, with_static(facts)
    # Between an operator and the clamp behind it a tensor is absorbed only where the clamp's result has an entry:
    # without one the whole pair was left out.
    absorbed = {
        name: fusion.node.label
        for name, fusion in absorbing_fusions(facts, encodings).items()
        if fusion.node.op_type not in _ACTIVATIONS or fusion.result in encodings
    }
    stated = encodings.floats & facts.tensors.keys()
    integers = {e.name for e in encodings if not isinstance(e.value, Float) and e.name in facts.tensors}
    quantized = _spread(facts, integers - encodings.floats, blocked=stated)
    speaking = {t.name for t in facts.tensors.values() if _has_type(facts, t) and t.name not in absorbed}
    predicted = frozenset(speaking - quantized)
    habitual = set[str]()
    if stated:
        # The stated tensors, their copies over data movement, and static inputs without an entry that serve only them.
        spread = _spread(facts, set(stated), blocked=facts.tensors.keys() - predicted - stated)
        intended = spread | _read_as_float(facts, predicted, spread, absorbed)
    else:
        intended = _left_out(facts, encodings, absorbed, speaking)
        roots = {name for name in intended if _is_habitual(facts, encodings, name)}
        habitual = intended - _left_out(facts, encodings, absorbed, speaking - roots) if roots else roots
    made = FloatPrediction(
        intended=frozenset(intended & speaking),
        by_habit=frozenset(habitual & speaking),
        predicted=predicted,
        explicit=bool(stated),
        absorbed=absorbed,
        borders=find_borders(facts, predicted, ignored=absorbed.keys()),
    )
    return given.keep(key, made)


def _movement(facts: GraphFacts, trait: Trait = Trait.CARRIES_GRID) -> Pairs:
    """Every (source, copy) pair of activations that a data-movement op ties together, in graph order."""
    pairs = (
        (node.inputs[0], out)
        for node in facts.nodes
        if has(node, trait) and node.inputs and facts.is_data(node.inputs[0])
        for out in data_outputs(node, node.outputs)
        if facts.is_data(out)
    )
    return facts.once(("movement", trait), lambda: tuple(pairs))


def _spread(
    facts: GraphFacts, seeds: Collection[str], *, blocked: Iterable[str], trait: Trait = Trait.CARRIES_GRID
) -> set[str]:
    """Every tensor that data movement connects with the seeds without entering a blocked one; linear in the graph."""
    moved = _movement(facts, trait)
    neighbours = grouped((*moved, *((copy, source) for source, copy in moved)))
    walls = set(blocked)
    return set(reached(seeds, lambda name: {*neighbours.get(name, ())} - walls))


def _has_type(facts: GraphFacts, tensor: TensorFact) -> bool:
    """True for float tensors that some op really computes with: not shapes, indices, statistics or dead values."""
    if not facts.is_data(tensor.name) or not (tensor.consumers or tensor.is_output):
        return False
    if not tensor.is_weight:
        return True
    maker = facts.producer_of(tensor.name)
    if maker is not None and maker.op_type != "Constant":
        return False  # computed from stored values while the graph is built
    # Parameters of a BatchNormalization count as settings too: they are folded while the graph is built.
    return not all(
        is_setting(node, tensor.name) or node.op_type == "BatchNormalization"
        for node in facts.consumers_of(tensor.name)
    )


def _left_out(
    facts: GraphFacts, encodings: EncodingSet, absorbed: Mapping[str, str], speaking: Iterable[str]
) -> set[str]:
    """The tensors whose missing entry means float: computed ones that normally have an entry.

    Stored values that only serve them are included.
    """
    movers = {copy for _, copy in _movement(facts)}
    silent = {name for name in speaking if name not in encodings}
    roots = {name for name in silent - movers if not _is_bias(facts, name)}
    for source, copy in _movement(facts):
        if source in roots and copy not in encodings:
            roots.add(copy)
    return roots | _read_as_float(facts, silent, roots, absorbed)


def _is_habitual(facts: GraphFacts, encodings: EncodingSet, name: str) -> bool:
    """True for a tensor that the exporter never gives an entry, whatever was meant."""
    if name in encodings:
        return False
    if facts.is_stored(name):  # stored values tell their range; a linear operator's weights were left out
        return not any(has(node, Trait.LINEAR) for node, _ in _readers(facts, name))
    maker = facts.producer_of(name)
    if maker is None or not maker.inputs:
        return False
    if maker.op_type == "Cast":
        source = facts.tensor(maker.inputs[0])
        return bool(source.dtype) and not source.is_float
    entry = None
    while entry is None and maker is not None and maker.inputs and has(maker, Trait.AIMET_COPIES):
        entry, maker = encodings.get(maker.inputs[0]), facts.producer_of(maker.inputs[0])
    return entry is not None


def _is_bias(facts: GraphFacts, name: str) -> bool:
    """True for a stored value that only linear and norm ops read as their bias, an Add after MatMul included."""
    readers = _readers(facts, name) if facts.is_stored(name) else []
    for node, used in readers:
        roles = ROLES.get(node.op_type, {})
        if roles:
            if any(roles.get(index) != BIAS for index, read in enumerate(node.inputs) if read == used):
                return False
            continue
        products = (facts.producer_of(other, "MatMul") for other in node.inputs if other != used)
        if node.op_type != "Add" or not any(products):
            return False
    return bool(readers)


def _readers(facts: GraphFacts, name: str) -> list[tuple[NodeFact, str]]:
    """The nodes that read a tensor, and under which name, looking through Identity."""
    copies = reached([name], lambda n: (one.outputs[0] for one in facts.consumers_of(n) if one.op_type == "Identity"))
    uses = ((node, used) for used in copies for node in facts.consumers_of(used))
    return [(node, used) for node, used in uses if node.op_type != "Identity"]


def _read_as_float(facts: GraphFacts, names: Iterable[str], floats: set[str], absorbed: Mapping[str, str]) -> set[str]:
    """Stored values among ``names`` whose readers make only float tensors: they become float with them."""
    made = set(floats)
    for node in reversed(facts.nodes):
        if any(out in made for out in node.outputs):
            made.update(name for name in node.inputs if name in absorbed)
    found = set()
    for name in filter(facts.is_stored, names):
        readers = _readers(facts, name)
        results = (out for node, _ in readers for out in node.outputs if out and facts.is_data(out))
        if readers and all(out in made for out in results):
            found.add(name)
    return found


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
    # Tensors without a grid that data movement connects with a float one.
    with_grid = {*moved, *(encodings.entries.keys() - floats)}
    float_copies = _spread(facts, floats, blocked=with_grid, trait=Trait.AIMET_COPIES)

    def makes_float(node: NodeFact) -> bool:
        while len(node.outputs) == 1 and node.outputs[0] in fused:
            node = fused[node.outputs[0]].node
        return all(name in float_copies for name in node.outputs if name)

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
        served = fact.is_weight and readers and all(map(makes_float, readers))
        return status.FLOAT16 if name in float_copies or served else status.MISSING

    return {fact.name: status_of(fact) for fact in facts.tensors.values() if fact.consumers or fact.is_output}


def missing_entries(facts: GraphFacts, encodings: EncodingSet) -> Names:
    """The tensors that should have an entry and have none."""
    found = collect_coverage(facts, encodings)
    return tuple(name for name, status in found.items() if status is CoverageStatus.MISSING)


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
