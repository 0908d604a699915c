"""Finds the operator at which two executions of a graph part, looking at few tensors per round and within a budget.

That is the first whose output is off although what it reads is not; where quality only wears away, the step down. Rows
behind a choice are matched at every operator. It runs what it is given and judges no device.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, runtime_checkable

import numpy as np
import numpy.typing as npt

from deploykit.accuracy.judge.measures import sqnr_db
from deploykit.accuracy.judge.rows import ChosenRows, Matched
from deploykit.accuracy.samples.gathering import MOST, gather
from deploykit.accuracy.simulate.quantizers import fake_quantize, quantize_graph
from deploykit.accuracy.simulate.sessions import Feed, Session
from deploykit.encodings.qdq import extract_qdq
from deploykit.encodings.read import read_placed
from deploykit.encodings.values import EncodingSet
from deploykit.errors import InputError, ToolError, UsageError
from deploykit.model import load_model
from deploykit.model.collect import collect_facts
from deploykit.model.facts import GraphFacts, NodeFact, static_tensors
from deploykit.model.load import wrap_proto
from deploykit.model.values import constant_tensor
from deploykit.model.weights import lean_weights, mapped_bytes, stored_values
from deploykit.system.limits import time_left
from deploykit.system.published import Published

if TYPE_CHECKING:
    from onnx import ModelProto

    from deploykit.encodings.values import Value


__all__ = [
    "SESSIONS",
    "Culprit",
    "Divergence",
    "Located",
    "ModelProbe",
    "Probe",
    "ShowsAll",
    "SimulationProbe",
    "TensorView",
    "locate",
    "locate_files",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorView:
    """One tensor on both sides. ``lost`` is the share of rows that only one side has (behind a TopK).

    ``typical`` is the median magnitude on the left; ``not_finite`` counts infinities and NaN on either side.
    """

    name: str
    sqnr_db: float
    left_range: tuple[float, float]
    right_range: tuple[float, float]
    left_dtype: str
    right_dtype: str
    reordered: bool = False
    lost: float = 0.0
    typical: float = 0.0
    not_finite: tuple[int, int] = (0, 0)

    def to_json(self) -> dict[str, Any]:
        """The published shape; what is not finite is None."""
        return {
            "tensor": self.name,
            "sqnr_db": _finite(self.sqnr_db),
            "left": _side(self.left_dtype, self.left_range, self.not_finite[0]),
            "right": _side(self.right_dtype, self.right_range, self.not_finite[1]),
            "reordered": self.reordered,
            "lost": round(self.lost, 4),
        }


def _side(dtype: str, ends: tuple[float, float], odd: int) -> dict[str, Any]:
    return {"dtype": dtype, "range": [_finite(end) for end in ends], "not_finite": odd}


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Culprit:
    """A stored tensor that an operator fails by, and its value of the largest magnitude."""

    tensor: str
    value: float

    def to_json(self) -> dict[str, Any]:
        """The published shape; a value that is not finite is a word."""
        return {"tensor": self.tensor, "value": self.value if math.isfinite(self.value) else str(self.value)}

    def __str__(self) -> str:
        return f"the constant {self.tensor} ({self.value:.3g})"


@dataclass(frozen=True, slots=True, kw_only=True)
class Divergence(Published):
    """The operator, its diverging output, and what it reads, on both sides; ``culprit`` is the constant behind it."""

    node: str
    op_type: str
    output: TensorView
    inputs: tuple[TensorView, ...]
    culprit: Culprit | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Located:
    """``first`` is None when every output agrees. ``rounds`` and ``compared`` say how much was looked at.

    ``hidden`` are computed tensors that one side cannot show: a divergence may lie in one of them instead.
    ``exhausted`` is True when the budget ended before the search did.
    """

    first: Divergence | None
    outputs: tuple[TensorView, ...]
    rounds: int
    compared: int
    hidden: tuple[str, ...]
    threshold_db: float
    exhausted: bool = False

    def to_json(self) -> dict[str, Any]:
        """The published shape of ``deploykit accuracy locate --json``."""
        return {
            "diverges": self.first is not None,
            "first": None if self.first is None else self.first.to_json(),
            "outputs": [view.to_json() for view in self.outputs],
            "rounds": self.rounds,
            "compared": self.compared,
            "hidden": len(self.hidden),
            "threshold_db": self.threshold_db,
            "exhausted": self.exhausted,
        }


Numbers: TypeAlias = npt.NDArray[Any]

SESSIONS = 20
"""So many sessions a search may open, both sides together, unless it is told otherwise."""

_HUGE = 1e4
"""Values beyond this are compared apart from the rest of their tensor when the rest is much smaller."""

_ORDINARY_DB = 20.0
"""A stored tensor that is closer to its original than that is not what an operator fails by."""

_STEP_DOWN = 6.0
"""An operator that loses less than this (dB) against what it reads is no cause: quality wears away along a graph."""


class Probe(Protocol):
    """One of the two executions: knows which tensors it can show, and shows them for a sample."""

    def tensors(self) -> Iterable[str]:
        """The names it can show."""

    def show(self, names: Sequence[str], feed: Feed) -> Mapping[str, Numbers]:
        """The values of some tensors for one sample; a name it cannot show after all is left out."""

    def stored(self, name: str) -> Numbers | None:
        """The values of a stored tensor as this execution uses them; None when it is not stored."""


@runtime_checkable
class ShowsAll(Protocol):
    """A probe that can show several samples together; where it ``reads_files`` in each run, that costs far less."""

    @property
    def reads_files(self) -> bool:
        """True where its weights lie in files."""

    def show_all(self, names: Sequence[str], feeds: Sequence[Feed]) -> Sequence[Mapping[str, Numbers]]:
        """What ``show`` gives for each sample."""


def locate(
    facts: GraphFacts,
    left: Probe,
    right: Probe,
    feeds: Sequence[Feed],
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
    search = _Search(facts, left, right, feeds, max(sessions // 2, 1))
    outputs = [name for name in facts.outputs if name in search.shown]
    search.look(outputs)
    if search.exhausted:
        raise ToolError("the time was over before the outputs were compared", next="give it more, or fewer samples")
    bad = search.cause(outputs, threshold_db, per_round)
    return Located(
        first=None if bad is None else search.divergence(bad),
        outputs=tuple(search.views[name] for name in outputs),
        rounds=search.rounds,
        compared=len(search.views),
        hidden=tuple(search.hidden),
        threshold_db=threshold_db,
        exhausted=search.exhausted,
    )


def _shown(side: Probe, names: Sequence[str], feeds: Sequence[Feed]) -> Sequence[Mapping[str, Numbers]]:
    if isinstance(side, ShowsAll) and side.reads_files:
        return side.show_all(names, feeds)
    return [side.show(names, feed) for feed in feeds]


def _spread(names: Sequence[str], most: int) -> list[str]:
    if len(names) <= most:
        return list(names)
    places = np.unique(np.linspace(0, len(names) - 1, most).round().astype(int))
    return [names[place] for place in places]


class _Search:
    """What both sides can show, what was seen, and what may still be the cause."""

    def __init__(self, facts: GraphFacts, left: Probe, right: Probe, feeds: Sequence[Feed], rounds: int) -> None:
        self.facts = facts
        self._sides = (left, right)
        self._feeds = feeds
        self._left_rounds = rounds
        self._rows = ChosenRows(facts)
        both = set(left.tensors()) & set(right.tensors())
        made = [name for node in facts.nodes for name in node.outputs if name and self._is_float(name)]
        self.shown = [name for name in made if name in both]
        self.hidden = [name for name in made if name not in both]
        self._open = both
        self._static = static_tensors(facts)
        self._order = {name: place for place, name in enumerate(self.shown)}
        self.views: dict[str, TensorView] = {}
        self.rounds = 0
        self.exhausted = False

    def _is_float(self, name: str) -> bool:
        fact = self.facts.tensors[name]
        return not fact.is_weight and (fact.is_float or not fact.dtype)

    def is_off(self, name: str, threshold: float) -> bool:
        view = self.views.get(name)
        return view is not None and not view.sqnr_db >= threshold

    def cause(self, outputs: Sequence[str], threshold: float, per_round: int) -> str | None:
        """The first tensor that is off; while it lost little at once, the first that is off by clearly more."""
        first = found = self._first(outputs, threshold, per_round)
        while found is not None and not self._is_step(found):
            threshold = self.views[found].sqnr_db - _STEP_DOWN
            found = self._first(outputs, threshold, per_round)
        return found or first

    def _is_step(self, name: str) -> bool:
        """True where an operator's output is much worse than the worst that it reads, or where that is not known."""
        maker = self.facts.producer_of(name)
        read = [other for other in maker.inputs if other in self._order] if maker is not None else []
        self.look(read)
        known = [self.views[other].sqnr_db for other in read if other in self.views]
        value = self.views[name].sqnr_db
        return not known or not math.isfinite(value) or min(known) - value >= _STEP_DOWN

    def _first(self, outputs: Sequence[str], threshold: float, per_round: int) -> str | None:
        bad = next((name for name in outputs if self.is_off(name, threshold)), None)
        while bad is not None and not self.exhausted:
            suspects = self.suspects(bad, threshold)
            unseen = [name for name in suspects if name not in self.views]
            self.look(_spread(unseen, per_round))
            off = next((name for name in suspects if self.is_off(name, threshold)), None)
            if off is None and not unseen:
                break
            bad = off or bad
        return bad

    def suspects(self, bad: str, threshold: float) -> list[str]:
        """Tensors unseen or off that ``bad`` depends on without a sound tensor in between, in graph order."""
        found, todo, seen = [], [bad], {bad}
        while todo:
            maker = self.facts.producer_of(todo.pop())
            for name in maker.inputs if maker is not None else ():
                if not name or name in seen:
                    continue
                seen.add(name)
                if name in self.views and not self.is_off(name, threshold):
                    continue
                if name in self._order:
                    found.append(name)
                todo.append(name)
        return sorted(found, key=self._order.__getitem__)

    def look(self, names: Sequence[str]) -> None:
        """Show tensors on both sides and compare."""
        fresh = [name for name in names if name not in self.views]
        if not fresh:
            return
        if self.rounds >= self._left_rounds or time_left() == 0.0:
            self.exhausted = True
            return
        try:
            shown = [_shown(side, fresh, self._feeds) for side in self._sides]
        except InputError:
            if time_left() != 0.0:
                raise
            self.exhausted = True  # the run was ended, and so says nothing about the model
            return
        self.rounds += 1
        for name in fresh:
            views = [
                _compare(name, self._rows.matched(name, one[name], two[name]), one[name], two[name])
                for one, two in zip(*shown, strict=True)
                if name in one and name in two
            ]
            self.views[name] = _worst(views, name)

    def divergence(self, bad: str) -> Divergence:
        maker = self.facts.producer_of(bad)
        assert maker is not None
        inputs = [name for name in maker.inputs if name in self._order]
        self.look(inputs)
        return Divergence(
            node=maker.label,
            op_type=maker.op_type,
            output=self.views[bad],
            inputs=tuple(self.views[name] for name in inputs if name in self.views),
            culprit=self._culprit(maker, self.views[bad]),
        )

    def _culprit(self, maker: NodeFact, view: TensorView) -> Culprit | None:
        """The stored value behind an operator: so large that it takes the whole grid, or not the same on both sides."""
        huge, other = [], []
        for name in self._constants(maker):
            one, two = (side.stored(name) for side in self._sides)
            if one is None or one.dtype.kind != "f" or not one.size:
                continue
            value = _largest(one)
            if _takes_the_grid(value, view):
                huge.append(Culprit(tensor=name, value=value))
            elif two is not None and not _agreement(one, two) >= _ORDINARY_DB:
                other.append(Culprit(tensor=name, value=value))
        return next(iter([*huge, *other]), None)

    def _constants(self, maker: NodeFact) -> Iterator[str]:
        """Stored tensors that an operator reads, directly or through operators on stored values alone."""
        todo, seen = list(maker.inputs), set(maker.inputs)
        while todo:
            name = todo.pop(0)
            fact = self.facts.tensors.get(name)
            if fact is None or name not in self._static:
                continue
            if fact.is_weight:
                yield name
                continue
            node = self.facts.producer_of(name)
            fresh = [other for other in (node.inputs if node is not None else ()) if other and other not in seen]
            seen.update(fresh)
            todo += fresh


def _largest(values: Numbers) -> float:
    """The value of the largest magnitude, with its sign; NaN where there is one."""
    flat = np.asarray(values, np.float64).ravel()
    return float(flat[int(np.argmax(np.where(np.isnan(flat), np.inf, np.abs(flat))))])


def _takes_the_grid(value: float, view: TensorView) -> bool:
    """True for a value that reaches the output and leaves no step of a 16-bit grid to the rest of it."""
    if not math.isfinite(value):
        return True
    reach = max(abs(end) for end in view.left_range)
    return abs(value) > _HUGE * max(view.typical, 1e-9) and reach >= abs(value) / 2


def _worst(views: list[TensorView], name: str) -> TensorView:
    """The sample that agrees least; a tensor that nobody showed counts as equal and unknown."""
    nothing = (math.nan, math.nan)
    unseen = TensorView(
        name=name, sqnr_db=math.inf, left_range=nothing, right_range=nothing, left_dtype="", right_dtype=""
    )
    return min(views, key=lambda view: view.sqnr_db if not math.isnan(view.sqnr_db) else -math.inf, default=unseen)


def _compare(name: str, found: Matched, left: Numbers, right: Numbers) -> TensorView:
    return TensorView(
        name=name,
        sqnr_db=_agreement(found.left, found.right),
        left_range=_range(left),
        right_range=_range(right),
        left_dtype=str(left.dtype),
        right_dtype=str(right.dtype),
        reordered=found.reordered,
        lost=found.lost,
        typical=_typical(left),
        not_finite=(int((~np.isfinite(left)).sum()), int((~np.isfinite(right)).sum())),
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
    whole = sqnr_db(one[~odd], two[~odd])
    ordinary = ~odd & (np.abs(np.where(odd, 0.0, one)) <= _drowning(one[~odd]))
    return whole if ordinary.sum() == (~odd).sum() else min(whole, sqnr_db(one[ordinary], two[ordinary]))


def _drowning(values: Numbers) -> float:
    """The magnitude from which values would hide an error in all others: anchors of 1e30 among numbers near 1."""
    if not values.size:
        return math.inf
    return max(_HUGE, _HUGE / 10 * float(np.median(np.abs(values))))


def _typical(values: Numbers) -> float:
    finite = np.abs(np.asarray(values, np.float64))
    finite = finite[np.isfinite(finite)]
    return float(np.median(finite)) if finite.size else 0.0


def _range(values: Numbers) -> tuple[float, float]:
    finite = np.asarray(values, np.float64)
    finite = finite[np.isfinite(finite)]
    return (float(finite.min()), float(finite.max())) if finite.size else (math.nan, math.nan)


class ModelProbe:
    """An ONNX model as ONNX Runtime runs it on the CPU, without graph optimisations."""

    def __init__(
        self,
        model: ModelProto,
        *,
        feeds: Mapping[str, str] | None = None,
        values: Mapping[str, Value] | None = None,
    ) -> None:
        self._model = model
        self._values = dict(values or {})
        self._feeds = dict(feeds or {})
        self._session: Session | None = None
        self._names: tuple[str, ...] = ()

    def tensors(self) -> Iterable[str]:
        """Everything a node of the main graph makes."""
        return {name for node in self._model.graph.node for name in node.output if name}

    def show(self, names: Sequence[str], feed: Feed) -> Mapping[str, npt.NDArray[Any]]:
        """The values of some tensors for one sample."""
        return self.show_all(names, [feed])[0]

    @property
    def reads_files(self) -> bool:
        """True where its weights lie in files, to be read in each run."""
        return mapped_bytes(self._model) > 0

    def show_all(self, names: Sequence[str], feeds: Sequence[Feed]) -> Sequence[Mapping[str, npt.NDArray[Any]]]:
        """``show`` for each of several samples: of a model too large for memory every weight is read once for all."""
        if self._session is None or self._names != tuple(names):
            self._names = tuple(names)
            self._session = Session(self._model, capture=names, values=self._values)
        fed = [{self._feeds.get(name, name): value for name, value in feed.items()} for feed in feeds]
        return [{name: values[name] for name in names} for values in self._session.runs(fed)]

    def stored(self, name: str) -> npt.NDArray[Any] | None:
        """The values of an initializer or Constant of this model."""
        for tensor in self._model.graph.initializer:
            if tensor.name == name:
                values, value = stored_values(tensor), self._values.get(name)
                return values if value is None else fake_quantize(values, value)
        node = next((n for n in self._model.graph.node if name in n.output and n.op_type == "Constant"), None)
        held = None if node is None else constant_tensor(node)
        return None if held is None else stored_values(held)


class SimulationProbe(ModelProbe):
    """A model with the quantizers of its encodings; tensors show their quantized values."""

    def __init__(self, model: ModelProto, encodings: EncodingSet) -> None:
        graph = quantize_graph(model, encodings)
        super().__init__(graph.model, feeds=graph.feeds, values=graph.later)


def locate_files(
    model: Path,
    candidate: Path | None = None,
    *,
    encodings: Path | None = None,
    data: Path | None = None,
    samples: int | None = None,
    seed: int = 0,
    threshold_db: float = 20.0,
    sessions: int = SESSIONS,
) -> Located:
    """``locate`` for files: a model against another with the same tensor names, or against its own simulation.

    A QDQ model by itself is held against the float model that it quantizes. Raises UsageError when both ``candidate``
    and ``encodings`` are given, or neither for a float model.
    """
    several = UsageError("locate compares two executions", next="give a second model, or --encodings")
    if candidate is not None and encodings is not None:
        raise several
    read = load_model(model)
    facts, proto = collect_facts(read), lean_weights(read)
    if candidate is None and encodings is None and not facts.is_qdq:
        raise several
    placed: EncodingSet | None = None
    if candidate is not None:
        right = ModelProbe(lean_weights(load_model(candidate)))
    else:
        proto, facts, placed = _quantized(proto, facts, encodings)
        right = SimulationProbe(proto, placed)
    made = gather(proto, facts, calibration=data, encodings=placed, most=samples or MOST, seed=seed)
    return locate(facts, ModelProbe(proto), right, made.varied, threshold_db=threshold_db, sessions=sessions)


def _quantized(
    proto: ModelProto, facts: GraphFacts, encodings: Path | None
) -> tuple[ModelProto, GraphFacts, EncodingSet]:
    """The float model with its facts and placed encodings: those of the file, else those in the model itself."""
    if encodings is not None:
        return proto, facts, read_placed(encodings, facts)
    taken = extract_qdq(proto)
    return taken.model, collect_facts(wrap_proto(taken.model, path=Path(facts.model_name))), taken.encodings
