"""Finds the operator at which two executions of a graph part, looking at few tensors per round and within a budget.

It is the first operator whose output is off although its inputs are not; where quality only wears away, the step down.
Rows behind a choice are matched at every operator. It runs the given executions and judges no device.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from onnx import ModelProto

from deploykit.accuracy.judge.measures import sqnr_db
from deploykit.accuracy.judge.rows import ChosenRows, Matched
from deploykit.accuracy.simulate.quantizers import fake_quantize, quantizers_of
from deploykit.accuracy.simulate.sessions import Session
from deploykit.accuracy.simulate.simulation import read_question
from deploykit.encodings.values import EncodingSet, Value
from deploykit.errors import InputError, ToolError, UsageError
from deploykit.findings.records import Arrays, Feeds, Interval, Json, Names, Numbers, Published, Record, published
from deploykit.model.facts import GraphFacts, NodeFact, static_tensors
from deploykit.model.graph import view_of
from deploykit.model.load import load_model
from deploykit.model.nodes import reached
from deploykit.model.operators import Trait, has
from deploykit.model.weights import lean_weights, stored_values
from deploykit.system.limits import time_left

__all__ = ["SESSIONS", "Culprit", "Divergence", "Located", "ModelProbe", "TensorView"]
__all__ += ["locate", "locate_files"]


# The most sessions that a search opens, both sides together, unless it is told otherwise.
SESSIONS = 20
# Values beyond this are compared apart from the rest of their tensor when the rest is much smaller.
_HUGE = 1e4
# dB. A stored tensor at least this close to its original is not the cause of an operator's failure.
_ORDINARY_DB = 20.0
# dB. An operator that loses less against its inputs is no cause: quality wears away along a graph.
_STEP_DOWN = 6.0


class TensorView(Published):
    """One tensor on both sides. ``lost`` is the share of rows that only one side has (behind a TopK).

    ``typical`` is the median magnitude on the left; ``not_finite`` counts infinities and NaN on either side.
    """

    name: str
    sqnr_db: float
    left_range: Interval = (math.nan, math.nan)
    right_range: Interval = (math.nan, math.nan)
    left_dtype: str = ""
    right_dtype: str = ""
    reordered: bool = False
    lost: float = 0.0
    typical: float = 0.0
    not_finite: tuple[int, int] = (0, 0)

    def as_published(self) -> Json:
        """The published fields: the tensor, then each side."""
        return {
            "tensor": self.name,
            "sqnr_db": self.sqnr_db,
            "left": {"dtype": self.left_dtype, "range": self.left_range, "not_finite": self.not_finite[0]},
            "right": {"dtype": self.right_dtype, "range": self.right_range, "not_finite": self.not_finite[1]},
            "reordered": self.reordered,
            "lost": round(self.lost, 4),
        }


class Culprit(Record):
    """A stored tensor because of which an operator fails, and its value of the largest magnitude."""

    tensor: str
    value: float

    def to_json(self) -> Json:
        """The published shape; a value that is not finite is a word."""
        return {"tensor": self.tensor, "value": self.value if math.isfinite(self.value) else str(self.value)}

    def __str__(self) -> str:
        return f"the constant {self.tensor} ({self.value:.3g})"


class Divergence(Published):
    """An operator, its diverging output and its inputs, on both sides.

    ``culprit`` is the constant behind the divergence.
    """

    node: str
    op_type: str
    output: TensorView
    inputs: tuple[TensorView, ...]
    culprit: Culprit | None


class Located(Published):
    """The result of a search; ``first`` is None when every output agrees.

    ``rounds`` and ``compared`` say how much was looked at. ``hidden`` are computed tensors that one side cannot show: a
    divergence may lie in one of them instead. ``exhausted`` is True when the budget ended before the search did.
    """

    first: Divergence | None
    outputs: tuple[TensorView, ...]
    rounds: int
    compared: int
    hidden: Names
    threshold_db: float
    exhausted: bool

    def as_published(self) -> Json:
        """What ``deploykit accuracy locate --json`` prints."""
        return {"diverges": self.first is not None, **published(self), "hidden": len(self.hidden)}


class ModelProbe:
    """An ONNX model as ONNX Runtime runs it on the CPU, without graph optimisations.

    With ``encodings`` it has their quantizers, and tensors show their quantized values.
    """

    def __init__(self, model: ModelProto, encodings: EncodingSet | None = None) -> None:
        self._model = model
        self._values: Mapping[str, Value] = {} if encodings is None else quantizers_of(model, encodings)[0]
        self.tensors = frozenset(name for node in model.graph.node for name in node.output if name)

    def show_all(self, names: Sequence[str], feeds: Feeds) -> Sequence[Arrays]:
        """The values of some tensors for each sample; of a model too large for memory each weight is read once."""
        session = Session(self._model, capture=names, values=self._values)
        return [{name: values[name] for name in names} for values in session.runs(feeds)]

    def stored(self, name: str) -> Numbers | None:
        """A stored tensor as this execution uses it; None when it is not stored."""
        tensor, value = view_of(self._model).stored.get(name), self._values.get(name)
        values = None if tensor is None else stored_values(tensor)
        return values if values is None or value is None else fake_quantize(values, value)


def locate(
    facts: GraphFacts,
    left: ModelProbe,
    right: ModelProbe,
    feeds: Feeds,
    *,
    threshold_db: float = 20.0,
    per_round: int = 48,
    sessions: int = SESSIONS,
) -> Located:
    """Compare two executions of one graph on samples; ``threshold_db`` is the SQNR below which a tensor is off.

    Each round opens a session per side and shows at most ``per_round`` tensors, spread over what may still hold the
    cause. When ``sessions`` are used up, or the caller's time is over (``limited_time``), the nearest known operator is
    named, and the result says so. Raises ToolError where not even the outputs were seen in that time.
    """
    seen = _SeenTensors(facts, (left, right), feeds, max(sessions // 2, 1))
    outputs = [name for name in facts.outputs if name in seen.order]
    seen.look(outputs)
    if seen.exhausted:
        raise ToolError("the time was over before the outputs were compared", next="give it more, or fewer samples")
    # The first tensor that is off; while its operator lost little, the first tensor that is clearly worse.
    first = found = seen.first_off(outputs, threshold_db, per_round)
    while found is not None and not seen.steps_down(found):
        found = seen.first_off(outputs, seen.views[found].sqnr_db - _STEP_DOWN, per_round)
    bad = found or first
    return Located(
        first=None if bad is None else seen.divergence(bad),
        outputs=tuple(seen.views[name] for name in outputs),
        rounds=seen.rounds,
        compared=len(seen.views),
        hidden=tuple(seen.hidden),
        threshold_db=threshold_db,
        exhausted=seen.exhausted,
    )


class _SeenTensors:
    """The tensors that both sides show (``order``: by place), what was seen of them (``views``), and the rounds."""

    def __init__(self, facts: GraphFacts, sides: tuple[ModelProbe, ModelProbe], feeds: Feeds, rounds: int) -> None:
        self._facts, self._sides, self._feeds, self._most_rounds = facts, sides, feeds, rounds
        self._rows, self._static = ChosenRows(facts), static_tensors(facts)
        known = {n: t for n, t in facts.tensors.items() if not t.is_weight and (t.is_float or not t.dtype)}
        made = [name for node in facts.nodes for name in node.outputs if name in known]
        both = sides[0].tensors & sides[1].tensors
        # A tensor that only a Relu reads may lack, on one side, what the Relu cuts off: the Relu's result counts.
        self._cut = {
            name
            for name in made
            if not known[name].is_output and (readers := facts.consumers_of(name))
            if all(has(node, Trait.CLAMPS) and node.inputs[0] == name for node in readers)
        }
        shown = (name for name in made if name in both and name not in self._cut)
        self.order = {name: place for place, name in enumerate(shown)}
        self.hidden = [name for name in made if name not in both]
        self.views: dict[str, TensorView] = {}
        self.rounds = 0
        self.exhausted = False

    def _layer_of(self, tensor: str) -> NodeFact | None:
        """The operator that makes a tensor; for a Relu or Clip that alone reads an operator's result, that operator."""
        maker = self._facts.producer_of(tensor)
        while maker is not None and maker.inputs and maker.inputs[0] in self._cut:
            maker = self._facts.producer_of(maker.inputs[0])
        return maker

    def look(self, names: Sequence[str]) -> None:
        """Compare tensors on both sides; of several samples the one that agrees least counts."""
        fresh = [name for name in names if name not in self.views]
        if not fresh:
            return
        if self.rounds >= self._most_rounds or time_left() == 0.0:
            self.exhausted = True
            return
        try:
            shown = [side.show_all(fresh, self._feeds) for side in self._sides]
        except InputError:
            if time_left() != 0.0:
                raise
            self.exhausted = True  # the run was ended, and so says nothing about the model
            return
        self.rounds += 1
        for name in fresh:
            pairs = [(one[name], two[name]) for one, two in zip(*shown, strict=True) if name in one and name in two]
            views = [_view_of(name, self._rows.matched(name, one, two), one, two) for one, two in pairs]
            # A tensor that no run showed counts as equal and unknown.
            unseen = TensorView(name=name, sqnr_db=math.inf)
            worst = min(views, key=lambda v: -math.inf if math.isnan(v.sqnr_db) else v.sqnr_db, default=unseen)
            self.views[name] = worst

    def _is_off(self, name: str, threshold: float) -> bool:
        return name in self.views and not self.views[name].sqnr_db >= threshold

    def first_off(self, outputs: Sequence[str], threshold: float, per_round: int) -> str | None:
        """The first tensor in graph order that is off and leads to an output that is off; None where no output is."""
        bad = next((name for name in outputs if self._is_off(name, threshold)), None)
        while bad is not None and not self.exhausted:
            suspects = self._suspects(bad, threshold)
            unseen = [name for name in suspects if name not in self.views]
            spread = np.linspace(0, len(unseen) - 1, min(per_round, len(unseen))).round().astype(int)
            self.look([unseen[place] for place in dict.fromkeys(spread.tolist())])
            off = next((name for name in suspects if self._is_off(name, threshold)), None)
            if off is None and not unseen:
                break
            bad = off or bad
        return bad

    def _suspects(self, bad: str, threshold: float) -> list[str]:
        """Tensors unseen or off that ``bad`` depends on without a sound tensor in between, in graph order."""

        def unsound(made: str) -> Iterator[str]:
            maker = self._facts.producer_of(made)
            names = () if maker is None else filter(None, maker.inputs)
            return (name for name in names if name not in self.views or self._is_off(name, threshold))

        behind = set(reached([bad], unsound)) - {bad}
        return sorted(behind & self.order.keys(), key=self.order.__getitem__)

    def steps_down(self, name: str) -> bool:
        """True where an operator's output is much worse than its worst input, or where that is not known."""
        known = [view.sqnr_db for view in self._read_by(self._layer_of(name))]
        value = self.views[name].sqnr_db
        return not known or not math.isfinite(value) or min(known) - value >= _STEP_DOWN

    def _read_by(self, maker: NodeFact | None) -> tuple[TensorView, ...]:
        """The views of an operator's inputs; those not seen yet are looked at where the budget allows it."""
        names = [name for name in maker.inputs if name in self.order] if maker is not None else []
        self.look(names)
        return tuple(self.views[name] for name in names if name in self.views)

    def divergence(self, bad: str) -> Divergence:
        """The divergence at a tensor: the operator, its inputs, and the constant behind it."""
        maker, layer = self._facts.producer_of(bad), self._layer_of(bad)
        assert maker is not None and layer is not None
        inputs, view = self._read_by(layer), self.views[bad]
        culprit = self._culprit(layer, view)
        return Divergence(node=maker.label, op_type=maker.op_type, output=view, inputs=inputs, culprit=culprit)

    def _culprit(self, maker: NodeFact, view: TensorView) -> Culprit | None:
        """The stored tensor behind a failure: it takes the whole grid, or is not the same on both sides.

        None where no stored tensor does.
        """
        other = list[Culprit]()
        reach = max(map(abs, view.left_range))
        for name in self._constants(maker):
            one, two = (side.stored(name) for side in self._sides)
            if one is None or one.dtype.kind != "f" or not one.size:
                continue
            flat = np.asarray(one, np.float64).ravel()
            value = float(flat[int(np.argmax(np.where(np.isnan(flat), np.inf, np.abs(flat))))])
            found = Culprit(tensor=name, value=value)
            # The value reaches the output and leaves the rest of it no step of a 16-bit grid.
            is_huge = abs(value) > _HUGE * max(view.typical, 1e-9) and reach >= abs(value) / 2
            if is_huge or not math.isfinite(value):
                return found
            if two is not None and not _agreement(one, two) >= _ORDINARY_DB:
                other.append(found)
        return next(iter(other), None)

    def _constants(self, maker: NodeFact) -> Iterator[str]:
        """Stored tensors that an operator reads, directly or through operators on stored values alone."""
        todo = list(dict.fromkeys(maker.inputs))
        for name in todo:  # grows while it is walked
            if name not in self._static:
                continue
            if self._facts.is_stored(name):
                yield name
            elif (node := self._facts.producer_of(name)) is not None:
                todo += [other for other in node.inputs if other and other not in todo]


def _view_of(name: str, found: Matched, left: Numbers, right: Numbers) -> TensorView:
    finite = [np.asarray(side, np.float64)[np.isfinite(side)] for side in (left, right)]
    ends = [(float(v.min()), float(v.max())) if v.size else (math.nan, math.nan) for v in finite]
    return TensorView(
        name=name,
        sqnr_db=_agreement(found.left, found.right),
        left_range=ends[0],
        right_range=ends[1],
        left_dtype=str(left.dtype),
        right_dtype=str(right.dtype),
        reordered=found.reordered,
        lost=found.lost,
        typical=float(np.median(np.abs(finite[0]))) if finite[0].size else 0.0,
        not_finite=(left.size - finite[0].size, right.size - finite[1].size),
    )


def _agreement(left: Numbers, right: Numbers) -> float:
    """SQNR in dB, the lesser of all values and of those that are not huge.

    Infinities and NaN do not count where they are the same on both sides; where they differ nothing agrees.
    """
    if left.shape != right.shape:
        return -math.inf
    one, two = np.asarray(left, np.float64), np.asarray(right, np.float64)
    odd = ~np.isfinite(one)
    if not np.array_equal(one[odd], two[odd], equal_nan=True) or not np.isfinite(two[~odd]).all():
        return -math.inf
    one, two = one[~odd], two[~odd]
    # Values beyond this would hide an error in all others: anchors of 1e30 among numbers near 1.
    ordinary = np.abs(one) <= max(_HUGE, _HUGE / 10 * float(np.median(np.abs(one)))) if one.size else np.ones(0, bool)
    whole = sqnr_db(one, two)
    return whole if ordinary.all() else min(whole, sqnr_db(one[ordinary], two[ordinary]))


def locate_files(
    model: Path,
    candidate: Path | None = None,
    *,
    threshold_db: float = 20.0,
    **asked: Any,
) -> Located:
    """``locate`` for files: a model against another with the same tensor names, or against its own simulation.

    ``asked`` is what ``read_question`` takes. A QDQ model by itself is held against the float model that it quantizes.
    Raises UsageError when both ``candidate`` and encodings are given, or neither for a float model.
    """
    given = read_question(model, takes_pairs=candidate is None, **asked)
    if (candidate is None) is (given.encodings is None):
        raise UsageError("locate compares two executions", next="give a second model, or --encodings")
    other = given.model if candidate is None else lean_weights(load_model(candidate))
    probes = ModelProbe(given.model), ModelProbe(other, given.encodings)
    return locate(given.facts, *probes, given.samples.varied, threshold_db=threshold_db)
