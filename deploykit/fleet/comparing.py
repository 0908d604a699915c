"""What changed between two runs of a fleet: verdicts, compilation, quality, size. It judges nothing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from deploykit.fleet.results import CellResult, Results, Verdict
from deploykit.system.published import Published

__all__ = ["Change", "Difference", "compare"]

_ORDER = (Verdict.YES, Verdict.NOT_JUDGED, Verdict.NO, Verdict.FAILED)
_DB = 0.1
"""Decibels by which a number may differ between two runs without being told."""
_SIZE = 0.01


@dataclass(frozen=True, slots=True, kw_only=True)
class Change(Published):
    """One cell that is not as it was; ``worse`` where its verdict or its compilation went down."""

    cell: str
    what: tuple[str, ...]
    worse: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """Two runs beside each other."""

    changes: tuple[Change, ...]
    gone: tuple[str, ...]
    new: tuple[str, ...]
    same: int

    @property
    def exit_status(self) -> int:
        """1 where a cell became worse."""
        return int(any(change.worse for change in self.changes))

    def to_json(self) -> dict[str, Any]:
        """The published shape of ``matrix --diff``."""
        changes = [change.to_json() for change in self.changes]
        return {"changes": changes, "gone": list(self.gone), "new": list(self.new), "same": self.same}


def compare(old: Results, new: Results) -> Difference:
    """Every cell that both runs have an answer for, and those that only one has."""
    before = {cell.cell: cell for cell in old.cells}
    after = {cell.cell: cell for cell in new.cells}
    both = [(before[name], after[name]) for name in after if name in before]
    changes = tuple(change for one, other in both if (change := _change(one, other)) is not None)
    return Difference(
        changes=changes,
        gone=tuple(name for name in before if name not in after),
        new=tuple(name for name in after if name not in before),
        same=len(both) - len(changes),
    )


def _change(old: CellResult, new: CellResult) -> Change | None:
    what = []
    if old.verdict is not new.verdict:
        what.append(f"{old.verdict} -> {new.verdict}{f': {new.why}' if new.why else ''}")
    if old.compiled != new.compiled:
        what.append(f"compiled: {old.compiled or 'no answer'} -> {new.compiled or 'no answer'}")
    if _route(old) != _route(new):
        what.append(f"route: {_route(old) or 'none'} -> {_route(new) or 'none'}")
    if old.worst_db is not None and new.worst_db is not None and abs(old.worst_db - new.worst_db) > _DB:
        what.append(f"{old.worst_db:.1f} dB -> {new.worst_db:.1f} dB")
    if old.bytes and new.bytes and abs(new.bytes - old.bytes) > _SIZE * old.bytes:
        what.append(f"{old.bytes:,} bytes -> {new.bytes:,} bytes")
    worse = _ORDER.index(new.verdict) > _ORDER.index(old.verdict) or (
        old.compiled == "yes" and new.compiled == "refused"
    )
    return Change(cell=new.cell, what=tuple(what), worse=worse) if what else None


def _route(cell: CellResult) -> str:
    return str((cell.outcome.get("route") or {}).get("id", ""))
