"""Reads accuracies that were measured elsewhere: a table from precision to value, in TOML or JSON, and its goal."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from deploykit.accuracy.search.goals import Reached, parse_goal
from deploykit.answers.precision_advice import Advice, advise
from deploykit.errors import UsageError
from deploykit.tables.reading import read_json, read_toml, structure

__all__ = ["AccuracyTable", "advise_on", "read_accuracies"]


@dataclass(frozen=True, slots=True, kw_only=True)
class AccuracyTable:
    """The file as it is read."""

    accuracy: Mapping[str, float] = field(default_factory=dict)
    goal: str | None = None
    lower_is_better: bool = False


def read_accuracies(path: Path) -> AccuracyTable:
    """Raises InputError for a file that is no such table; unknown keys are refused."""
    content = read_json(path) if path.suffix.lower() == ".json" else read_toml(path)
    return structure(AccuracyTable, content, where=str(path))


def advise_on(
    path: Path | None, accuracies: Mapping[str, float], *, goal: str | None = None, lower_is_better: bool = False
) -> Advice:
    """Conclusions from a file, from values given one by one, or from both; what is given one by one wins.

    The goal is a drop of at most 1 % unless somebody says otherwise.
    """
    table = AccuracyTable() if path is None else read_accuracies(path)
    known = {**{name.lower(): float(value) for name, value in table.accuracy.items()}, **accuracies}
    if not known:
        raise UsageError("no accuracies were given", next="for instance --accuracy fp32=76.1 --accuracy w8a8=40")
    wanted = parse_goal(goal or table.goal or "drop<=1%", lower_is_better=lower_is_better or table.lower_is_better)
    if wanted.asks_outputs:
        raise UsageError(
            f"--goal {wanted}: asks about outputs, and a table has none", next="deploykit accuracy ladder MODEL"
        )
    if not wanted.needs_metric:
        return advise({name: Reached(sqnr_db=value) for name, value in known.items()}, wanted)
    return advise({name: Reached(metric=value) for name, value in known.items()}, wanted)
