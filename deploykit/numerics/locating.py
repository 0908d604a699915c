"""Finds the first operator at which two executions of a graph diverge, looking at few tensors per round.

First means: its output is off and everything it reads is not. Tensors are compared by SQNR, behind a TopK after putting
rows in the same order. It runs what it is given and judges no device.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from deploykit.graph.facts import GraphFacts
from deploykit.numerics.alignment import best_aligned, choices_before
from deploykit.numerics.quality import sqnr_db
from deploykit.numerics.sessions import Feed

__all__ = ["Divergence", "Located", "Probe", "TensorView", "locate"]

Numbers: TypeAlias = npt.NDArray[Any]

_HUGE = 1e4
"""Values beyond this are compared apart from the rest of their tensor when the rest is much smaller."""


class Probe(Protocol):
    """One of the two executions: knows which tensors it can show, and shows them for a sample."""

    def tensors(self) -> Iterable[str]:
        """The names it can show."""

    def show(self, names: Sequence[str], feed: Feed) -> Mapping[str, Numbers]:
        """The values of some tensors for one sample; a name it cannot show after all is left out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorView:
    """One tensor on both sides. ``lost`` is the share of rows that only one side has (behind a TopK)."""

    name: str
    sqnr_db: float
    left_range: tuple[float, float]
    right_range: tuple[float, float]
    left_dtype: str
    right_dtype: str
    reordered: bool = False
    lost: float = 0.0

    def to_json(self) -> dict[str, Any]:
        """The published shape; what is not finite is None."""
        return {
            "tensor": self.name,
            "sqnr_db": _finite(self.sqnr_db),
            "left": {"dtype": self.left_dtype, "range": [_finite(end) for end in self.left_range]},
            "right": {"dtype": self.right_dtype, "range": [_finite(end) for end in self.right_range]},
            "reordered": self.reordered,
            "lost": round(self.lost, 4),
        }


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Divergence:
    """The operator, its diverging output, and what it reads, on both sides."""

    node: str
    op_type: str
    output: TensorView
    inputs: tuple[TensorView, ...]

    def to_json(self) -> dict[str, Any]:
        """The published shape."""
        return {
            "node": self.node,
            "op_type": self.op_type,
            "output": self.output.to_json(),
            "inputs": [view.to_json() for view in self.inputs],
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Located:
    """``first`` is None when every output agrees. ``rounds`` and ``compared`` say how much was looked at.

    ``hidden`` are computed tensors that one side cannot show: a divergence may lie in one of them instead.
    """

    first: Divergence | None
    outputs: tuple[TensorView, ...]
    rounds: int
    compared: int
    hidden: tuple[str, ...]
    threshold_db: float

    def to_json(self) -> dict[str, Any]:
        """The published shape of ``deploykit locate --json``."""
        return {
            "diverges": self.first is not None,
            "first": None if self.first is None else self.first.to_json(),
            "outputs": [view.to_json() for view in self.outputs],
            "rounds": self.rounds,
            "compared": self.compared,
            "hidden": len(self.hidden),
            "threshold_db": self.threshold_db,
        }


def locate(
    facts: GraphFacts,
    left: Probe,
    right: Probe,
    feeds: Sequence[Feed],
    *,
    threshold_db: float = 20.0,
    per_round: int = 48,
) -> Located:
    """Compare two executions of one graph on samples; ``threshold_db`` is the SQNR below which a tensor is off.

    Each round shows at most ``per_round`` tensors on both sides, spread over what may still hold the first divergence.
    """
    search = _Search(facts, left, right, feeds, threshold_db)
    outputs = [name for name in facts.outputs if name in search.shown]
    search.look(outputs)
    bad = next((name for name in outputs if search.is_off(name)), None)
    while bad is not None:
        suspects = search.suspects(bad)
        if not suspects:
            break
        search.look(_spread(suspects, per_round))
        bad = next((name for name in suspects if search.is_off(name)), bad)
    return Located(
        first=None if bad is None else search.divergence(bad),
        outputs=tuple(search.views[name] for name in outputs),
        rounds=search.rounds,
        compared=len(search.views),
        hidden=tuple(search.hidden),
        threshold_db=threshold_db,
    )


def _spread(names: Sequence[str], most: int) -> list[str]:
    if len(names) <= most:
        return list(names)
    places = np.unique(np.linspace(0, len(names) - 1, most).round().astype(int))
    return [names[place] for place in places]


class _Search:
    """What both sides can show, what was seen, and what may still be the first divergence."""

    def __init__(
        self, facts: GraphFacts, left: Probe, right: Probe, feeds: Sequence[Feed], threshold_db: float
    ) -> None:
        self.facts = facts
        self._sides = (left, right)
        self._feeds = feeds
        self._threshold = threshold_db
        both = set(left.tensors()) & set(right.tensors())
        made = [name for node in facts.nodes for name in node.outputs if name and self._is_float(name)]
        self.shown = [name for name in made if name in both]
        self.hidden = [name for name in made if name not in both]
        self._open = both
        self._order = {name: place for place, name in enumerate(self.shown)}
        self.views: dict[str, TensorView] = {}
        self.rounds = 0

    def _is_float(self, name: str) -> bool:
        fact = self.facts.tensors[name]
        return not fact.is_weight and (fact.is_float or not fact.dtype)

    def is_off(self, name: str) -> bool:
        view = self.views.get(name)
        return view is not None and not view.sqnr_db >= self._threshold

    def suspects(self, bad: str) -> list[str]:
        """Unseen tensors that ``bad`` depends on without a sound tensor in between, in graph order."""
        found, todo, seen = [], [bad], {bad}
        while todo:
            maker = self.facts.producer_of(todo.pop())
            for name in maker.inputs if maker is not None else ():
                if not name or name in seen:
                    continue
                seen.add(name)
                if name in self.views and not self.is_off(name):
                    continue
                if name in self._order and name not in self.views:
                    found.append(name)
                todo.append(name)
        return sorted(found, key=self._order.__getitem__)

    def look(self, names: Sequence[str]) -> None:
        """Show tensors on both sides, with the choices of every TopK before them, and compare."""
        fresh = [name for name in names if name not in self.views]
        if not fresh:
            return
        self.rounds += 1
        choices = {name: choices_before(self.facts, name) for name in fresh}
        extra = {choice for found in choices.values() for choice in found}
        wanted = list(dict.fromkeys([*fresh, *(name for name in sorted(extra) if name in self._open)]))
        shown = [[side.show(wanted, feed) for feed in self._feeds] for side in self._sides]
        for name in fresh:
            self.views[name] = _worst(
                [
                    _compare(name, one, two, choices[name])
                    for one, two in zip(*shown, strict=True)
                    if name in one and name in two
                ],
                name,
            )

    def divergence(self, bad: str) -> Divergence:
        maker = self.facts.producer_of(bad)
        assert maker is not None
        inputs = [name for name in maker.inputs if name in self._order]
        self.look(inputs)
        return Divergence(
            node=maker.label,
            op_type=maker.op_type,
            output=self.views[bad],
            inputs=tuple(self.views[name] for name in inputs),
        )


def _worst(views: list[TensorView], name: str) -> TensorView:
    """The sample that agrees least; a tensor that nobody showed counts as equal and unknown."""
    nothing = (math.nan, math.nan)
    unseen = TensorView(
        name=name, sqnr_db=math.inf, left_range=nothing, right_range=nothing, left_dtype="", right_dtype=""
    )
    return min(views, key=lambda view: view.sqnr_db if not math.isnan(view.sqnr_db) else -math.inf, default=unseen)


def _compare(
    name: str, left: Mapping[str, Numbers], right: Mapping[str, Numbers], choices: Sequence[str]
) -> TensorView:
    best, agreement = best_aligned(name, left, right, choices, _agreement)
    return TensorView(
        name=name,
        sqnr_db=agreement,
        left_range=_range(left[name]),
        right_range=_range(right[name]),
        left_dtype=str(left[name].dtype),
        right_dtype=str(right[name].dtype),
        reordered=best.reordered,
        lost=best.lost,
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


def _range(values: Numbers) -> tuple[float, float]:
    finite = np.asarray(values, np.float64)
    finite = finite[np.isfinite(finite)]
    return (float(finite.min()), float(finite.max())) if finite.size else (math.nan, math.nan)
