"""Lite mixed precision: raises the fewest of the most sensitive layers to a wider type, so that a goal is reached.

Tensors that need one type are raised together: data that is only moved, all factors of a product, all terms of a sum.
It measures on the simulation and proposes encodings; verifiers say what a target makes of them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Literal, TypeAlias

from msgspec import Struct
from onnx import ModelProto

from deploykit.accuracy.samples.inputs import evenly_chosen
from deploykit.accuracy.search.goals import WHOLE, Goal, Reached
from deploykit.accuracy.search.layer_losses import Layer, LayerLoss, worst_first
from deploykit.accuracy.search.output_losses import GoalMeter
from deploykit.accuracy.simulate.partial_runs import PartialRuns
from deploykit.accuracy.simulate.precisions import CostModel, ModelCost
from deploykit.accuracy.simulate.sessions import Session
from deploykit.accuracy.simulate.simulation import Simulator
from deploykit.encodings.float_sets import find_borders, float_nodes
from deploykit.encodings.new_grids import widened
from deploykit.encodings.values import Affine, EncodingSet, Float
from deploykit.findings.records import Feeds, Json, Names, Published, Tell, published, replace, silent
from deploykit.model.facts import GraphFacts, NodeFact
from deploykit.model.operators import Trait, has
from deploykit.model.parameters import parameter_uses

__all__ = ["MOST_SHOWN", "Raised", "Raiser", "WideType", "wider_layers"]

MOST_SHOWN = 20
"""How many of the layers that cost most are published with a search."""

WideType: TypeAlias = Literal["float16", "int16"]


class RaiseTrial(Published):
    """One set that was measured: the first ``count`` layers of the order, raised to ``wide``.

    ``layers`` are their names, ``tensors`` all that was raised with them; ``borders`` count conversions to and from
    float at run time.
    """

    wide: str
    count: int
    layers: Names
    tensors: Names
    reached: Reached
    met: bool
    cost: ModelCost
    borders: int

    def as_published(self) -> Json:
        """The published fields; a value that was not measured is None."""
        told = published(self, without=("wide", "count", "reached", "met"))
        return {"to": self.wide, **told, **self.reached.to_json(), "meets_goal": self.met}


class Raised(Published):
    """What a search found: the smallest set that reaches the goal, else the best; and everything that was tried.

    ``worst`` are the first layers of the order with what quantizing each alone costs.
    """

    goal: str
    best: RaiseTrial
    encodings: EncodingSet
    trials: tuple[RaiseTrial, ...]
    worst: tuple[LayerLoss, ...] = ()

    @property
    def met(self) -> bool:
        """True where the best trial reaches the goal."""
        return self.best.met

    @property
    def words(self) -> str:
        """The set in a sentence, in which ``{}`` stands for the type; "" where nothing short of another precision keeps
        what is lost.
        """
        most, least = self.trials[-1].count, self.trials[0].reached
        if not self.met or len(self.best.layers) > _SHARE * most:
            return ""
        kept = f"with 8 bits {least.words}, with these {self.best.reached.words}, as simulated"
        return f"{len(self.best.layers)} of {most} layers have {{}}: {kept}"

    def as_published(self) -> Json:
        """The search, without the encodings that it made."""
        return published(self, without=("encodings", "worst")) | {"sensitivity": list(map(_costs, self.worst))}


def _costs(row: LayerLoss) -> Json:
    """What quantizing a layer alone costs, in dB: None where nothing differs, in words where nothing is left."""
    losses = {"weights": row.weights, "activations": row.activations, "together": row.alone}
    known = {name: loss.db for name, loss in losses.items() if loss is not None}
    words = {math.inf: None, -math.inf: "nothing left"}
    return {
        "layer": row.layer.name,
        "op_type": row.layer.op_type,
        "loss_db": {name: words.get(db, db) for name, db in known.items()},
    }


class Raiser(Struct, dict=True):
    """One quantized model, its layers in the order of their sensitivity, and the reference of its runs."""

    model: ModelProto
    facts: GraphFacts
    made: EncodingSet
    order: Sequence[Layer]
    feeds: Feeds
    reaching: GoalMeter
    costs: CostModel
    tell: Tell = silent
    _known: dict[tuple[str, int], RaiseTrial] = {}

    def __post_init__(self) -> None:
        self._params = parameter_uses(self.facts)

    def smallest(self, wide: WideType, goal: Goal, *, more: int = 0) -> Raised:
        """The search for the fewest layers that reach the goal, by bisection, as if more layers were never worse.

        The cheapest of all trials that reach it counts; where none does, the best. ``more`` numbers of layers, spread
        over the order, are tried too.
        """
        for step in range(more):
            self.trial(wide, round(len(self.order) * (step / (more - 1)) ** 2), goal)
        none = self.trial(wide, 0, goal)
        if self.trial(wide, len(self.order), goal).met and not none.met:
            low, high = 0, len(self.order)
            while high - low > 1:
                middle = (low + high) // 2
                low, high = (low, middle) if self.trial(wide, middle, goal).met else (middle, high)
        known = tuple(sorted((t for t in self._known.values() if t.wide == wide), key=lambda trial: trial.count))
        met = [trial for trial in known if trial.met]
        if met:
            best = min(met, key=lambda trial: (trial.cost.bit_operations, trial.cost.activation_bytes, trial.count))
        else:  # a quality that is no number is the least
            best = max(known, key=lambda trial: max(-math.inf, goal.quality(trial.reached)))
        return Raised(goal=str(goal), best=best, encodings=self._with(set(best.tensors), wide), trials=known)

    def trial(self, wide: WideType, count: int, goal: Goal) -> RaiseTrial:
        """Measure the first ``count`` layers raised to ``wide``; each set is measured once."""
        key = (wide, count)
        if key not in self._known:
            self.tell(f"{count} of {len(self.order)} layers in {wide}")
            layers = self.order[:count]
            names = self.together({name for layer in layers for name in layer.tensors}, wide)
            made = self._with(names, wide)
            simulator = Simulator(self.model, made, capture=self.reaching.shown)
            reached = self.reaching.reached([simulator.run(feed) for feed in self.feeds])
            values = {entry.name: entry.value for entry in made}
            self._known[key] = RaiseTrial(
                wide=wide,
                count=count,
                layers=tuple(layer.name for layer in layers),
                tensors=tuple(sorted(names)),
                reached=reached,
                met=goal.is_met(reached) is True,
                cost=self.costs.cost(values),
                borders=len(find_borders(self.facts, made.floats)),
            )
        return self._known[key]

    def _with(self, names: set[str], wide: str) -> EncodingSet:
        entries = dict(self.made.entries)
        for name in names & entries.keys():
            value = entries[name].value
            value = widened(value, 16) if wide == "int16" and isinstance(value, Affine) else Float("float16")
            entries[name] = replace(entries[name], value=value)
        return replace(self.made, entries=entries)

    def together(self, names: set[str], wide: WideType) -> set[str]:
        """The entries to raise so that no operator is left with types that do not go together.

        Tensors that are only moved keep one type. A product of two computed tensors has both in one type: kernels for
        float16 by integers are missing (qualcomm/aimet#4090). In float an operator's weights are float as well; in
        16-bit integers weights stay as they are, and so do the terms of sums and joins that have 16 bits already.
        """
        found = {name for name in names if self._can_be(name, wide)}
        while True:
            floats = found if wide == "float16" else set()
            running = float_nodes(self.facts, floats)
            more = {
                name
                for node in self.facts.nodes
                for name in self._same_type(node, found, in_float=node.index in running)
                if name not in found and self._can_be(name, wide)
            }
            if not more:
                return found
            found |= more

    def _can_be(self, name: str, wide: str) -> bool:
        entry = self.made.get(name)
        if entry is None or isinstance(entry.value, Float):
            return False
        return wide == "float16" or (name not in self._params and getattr(entry.value, "bits", 32) < 16)

    def _same_type(self, node: NodeFact, found: set[str], *, in_float: bool) -> Iterable[str]:
        computed = [name for name in node.inputs if name and name not in self._params]
        if has(node, Trait.CARRIES_GRID, Trait.AIMET_COPIES) and node.inputs:
            ends = [node.inputs[0], *node.outputs]
            return ends if any(name in found for name in ends) else ()
        if has(node, Trait.LINEAR):
            weights = [name for name in node.inputs if name in self._params] if in_float else []
            factors = computed if len(computed) > 1 and any(name in found for name in computed) else []
            return [*weights, *factors]
        if has(node, Trait.COMBINES, Trait.JOINS) and any(name in found for name in computed):
            return computed
        return ()


_SHARE = 2 / 3
"""The largest share of the layers: more of them in a wider type are another precision."""
_WORK, _PER_NODE = 10**12, 10**5
"""The most multiplications for ordering the layers, and how many the call of a node is worth: about a minute."""


def wider_layers(
    model: ModelProto,
    facts: GraphFacts,
    encodings: EncodingSet,
    feeds: Feeds,
    wide: WideType,
    *,
    more: int = 0,
    tell: Tell,
) -> Raised | None:
    """The search for the fewest layers in a wider type with which nothing notable is lost; None where nothing is lost.

    The order is bounded by work, not by time: the same model and samples give the same layers on every machine.
    ``more`` numbers of layers are tried too.
    """
    tell("judging what was quantized on all samples")
    goal, reaching = Goal(name=WHOLE), GoalMeter(facts)
    reaching.hold(feeds, Session(model, capture=reaching.shown).runs(feeds))
    before = reaching.reached(Simulator(model, encodings, capture=reaching.shown).runs(feeds))
    if goal.is_met(before):
        return None
    tell(f"looking for the layers that need {wide}")
    exact = PartialRuns(model, [feeds[at] for at in evenly_chosen(len(feeds), 4)], wanted=reaching.shown)
    params, known = parameter_uses(facts), {entry.name: entry.value for entry in encodings}
    narrow = {name: value for name, value in known.items() if name not in params and getattr(value, "bits", 16) < 16}
    costs = CostModel(exact, facts)
    whole = costs.cost({})
    work = whole.bit_operations // 32**2 + whole.activation_bytes + _PER_NODE * len(facts.nodes)
    # The k-th layer from the end is measured by running about k of the nodes.
    most = math.isqrt(2 * len(facts.nodes) * _WORK // (work * len(exact.feeds)))
    layers = worst_first(exact, facts, narrow, most)
    return Raiser(model, facts, encodings, layers, feeds, reaching, costs).smallest(wide, goal, more=more)
