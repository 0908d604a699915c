"""Judges outputs against the float model's, with rows in the same order behind a TopK.

A detector whose second best box became the best is not wrong; compared row by row it would look as bad as noise. Rows
that only one side chose are left out, and their share is told.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import numpy.typing as npt

from deploykit.graph.facts import GraphFacts
from deploykit.numerics.alignment import best_aligned, choices_before
from deploykit.numerics.quality import sqnr_db
from deploykit.numerics.sessions import Feed, Session

if TYPE_CHECKING:
    from onnx import ModelProto

__all__ = ["Judge", "Verdict", "made_by"]

Numbers: TypeAlias = npt.NDArray[Any]
_Pair: TypeAlias = tuple[Numbers, Numbers, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """SQNR over all outputs and per output; ``lost`` is the largest share of rows without a partner in any output."""

    overall_db: float
    sqnr_db: Mapping[str, float]
    lost: float = 0.0

    def to_json(self) -> dict[str, Any]:
        """The published shape; what is not finite is None."""
        numbers = {name: value if math.isfinite(value) else None for name, value in self.sqnr_db.items()}
        overall = self.overall_db if math.isfinite(self.overall_db) else None
        return {"sqnr_db": overall, "outputs": numbers, "lost_rows": round(self.lost, 4)}


def made_by(model: ModelProto, names: Iterable[str]) -> tuple[str, ...]:
    """Those of some tensors that a model's nodes make."""
    made = {name for node in model.graph.node for name in node.output}
    return tuple(name for name in names if name in made)


class Judge:
    """The float model's outputs on samples; ``choices`` are tensors that a run should show beside its outputs."""

    def __init__(self, model: ModelProto, facts: GraphFacts, feeds: Sequence[Feed]) -> None:
        self.feeds = feeds
        self.names = tuple(item.name for item in model.graph.output)
        self._tops = {name: choices_before(facts, name) for name in self.names}
        self.choices = tuple(dict.fromkeys(choice for choices in self._tops.values() for choice in choices))
        session = Session(model, capture=self.choices)
        self.reference = [session.run(feed) for feed in feeds]

    def judge(self, run: Callable[[Feed], Mapping[str, Numbers]]) -> Verdict:
        """Run every sample and compare; what ``run`` returns must hold the outputs and may hold the choices."""
        return self.compare([run(feed) for feed in self.feeds])

    def compare(self, outputs: Sequence[Mapping[str, Numbers]]) -> Verdict:
        """``judge`` for what was run already, one mapping per sample."""
        per_output: dict[str, list[_Pair]] = {
            name: [_best(name, a, b, self._tops[name]) for a, b in zip(self.reference, outputs, strict=True)]
            for name in self.names
        }
        everything = [pair for pairs in per_output.values() for pair in pairs]
        return Verdict(
            overall_db=_sqnr(everything),
            sqnr_db={name: _sqnr(pairs) for name, pairs in per_output.items()},
            lost=max((lost for _, _, lost in everything), default=0.0),
        )


def _sqnr(pairs: Sequence[_Pair]) -> float:
    wanted = np.concatenate([np.asarray(one, np.float64).ravel() for one, _, _ in pairs])
    return sqnr_db(wanted, np.concatenate([np.asarray(two, np.float64).ravel() for _, two, _ in pairs]))


def _best(name: str, left: Mapping[str, Numbers], right: Mapping[str, Numbers], choices: Sequence[str]) -> _Pair:
    """The pair as it is, or with rows in the order of some choice, whichever agrees best."""
    best, _ = best_aligned(name, left, right, choices, sqnr_db)
    return best.left, best.right, best.lost
