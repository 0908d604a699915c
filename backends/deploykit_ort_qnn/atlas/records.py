"""The recorded answers of every release to every form, and the file they stand in; it measures nothing.

It is read when a question is answered, so it imports neither onnx nor numpy.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from deploykit.errors import InputError

__all__ = ["DATA", "LIMITS", "Cell", "keep", "recorded"]

DATA = Path(__file__).parents[1] / "data" / "atlas" / "kernels.jsonl"

LIMITS = {"fp16": 35.0, "w8a16": 35.0, "w8a8": 20.0}
"""dB below which a kernel is wrong, as in the core's table of limits ("sqnr/device", "sqnr/device/8")."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """What one release makes of one form in one type.

    ``answer`` is taken, refused, failed (to be finalized), crashed or timed-out; ``decibels`` are of the worst output
    on the emulator against the CPU, None where nothing ran; ``why`` are the compiler's words.
    """

    op: str
    form: str
    type: str
    release: str
    answer: str
    decibels: float | None = None
    why: str = ""

    @property
    def state(self) -> str:
        """``right``, ``wrong``, ``taken`` where nothing ran, else the compiler's answer."""
        if self.answer != "taken" or self.decibels is None:
            return self.answer
        return "right" if self.decibels >= LIMITS[self.type] else "wrong"


def keep(cells: Iterable[Cell], path: Path = DATA) -> None:
    """Put cells in the place of those with the same form, type and release."""
    merged = {_key(cell): cell for cell in (*(recorded(path) if path.exists() else ()), *cells)}
    lines: dict[tuple[str, str, str], dict[str, Any]] = {}
    for key in sorted(merged):
        cell = merged[key]
        line = lines.setdefault(key[:3], {"op": cell.op, "form": cell.form, "type": cell.type, "releases": {}})
        line["releases"][cell.release] = _short(cell)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{json.dumps(line, ensure_ascii=False)}\n" for line in lines.values()), "utf-8")
    recorded.cache_clear()


@cache
def recorded(path: Path = DATA) -> tuple[Cell, ...]:
    """Every cell of the file. Raises InputError for a line that is none."""
    cells: list[Cell] = []
    for number, text in enumerate(path.read_text("utf-8").splitlines(), 1):
        try:
            line = json.loads(text)
            cells += [_long(line, release, short) for release, short in line["releases"].items()]
        except (KeyError, TypeError, ValueError) as error:
            raise InputError(f"{path.name}: line {number} is no row", why=f"{type(error).__name__}: {error}") from None
    return tuple(cells)


def _key(cell: Cell) -> tuple[str, str, str, tuple[int, ...]]:
    return cell.op, cell.form, cell.type, tuple(map(int, cell.release.split(".")))


def _short(cell: Cell) -> float | str:
    """A number for what was taken and ran, else the answer and the compiler's words."""
    if cell.answer == "taken" and cell.decibels is not None:
        return cell.decibels
    return f"{cell.answer}: {cell.why}" if cell.why else cell.answer


def _long(line: dict[str, Any], release: str, short: float | str) -> Cell:
    about: dict[str, Any] = {name: line[name] for name in ("op", "form", "type")} | {"release": release}
    if isinstance(short, (int, float)):
        return Cell(**about, answer="taken", decibels=float(short))
    answer, _, why = short.partition(": ")
    return Cell(**about, answer=answer, why=why)
