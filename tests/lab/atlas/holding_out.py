"""How well conditions drawn from half of the measurements tell the other half; it draws no row that is kept."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from atlas.folding import Measured, rows_of
from deploykit_qualcomm.atlas.rows import KernelVerdict, Row

__all__ = ["HeldOut", "held_out"]


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldOut:
    """Of cases that no condition was drawn from: how many there were of a kind, and how many were told.

    ``alarms`` are right cases of which something else was said. ``refused_said`` are all of which a refusal was said.
    """

    wrong: int
    wrong_told: int
    refused: int
    refused_told: int
    refused_said: int
    right: int
    alarms: int

    def __add__(self, other: HeldOut) -> HeldOut:
        return HeldOut(
            wrong=self.wrong + other.wrong,
            wrong_told=self.wrong_told + other.wrong_told,
            refused=self.refused + other.refused,
            refused_told=self.refused_told + other.refused_told,
            refused_said=self.refused_said + other.refused_said,
            right=self.right + other.right,
            alarms=self.alarms + other.alarms,
        )


def held_out(measured: Sequence[Measured], *, by_form: bool) -> HeldOut:
    """Both halves, each told by the other; ``by_form`` keeps all variations of a form in one half, else none."""

    def half(one: Measured) -> int:
        return zlib.crc32((one.case.form.id if by_form else one.case.id).encode()) % 2

    sides = [[one for one in measured if one.traits and half(one) == number] for number in (0, 1)]
    return _told(sides[0], sides[1]) + _told(sides[1], sides[0])


def _told(learned: Sequence[Measured], asked: Sequence[Measured]) -> HeldOut:
    rows: dict[tuple[str, str], list[Row]] = {}
    for row in rows_of(learned, sdk="", soc=0):
        for kind in row.types:
            rows.setdefault((row.op, kind), []).append(row)
    said = [(one.verdict, _said(one, rows.get((one.op, one.type), ()))) for one in asked]

    def count(holds: Callable[[KernelVerdict, str], bool]) -> int:
        return sum(holds(verdict, word) for verdict, word in said)

    wrong, refused, right = (KernelVerdict.WRONG, KernelVerdict.NARROWED), KernelVerdict.REFUSED, KernelVerdict.RIGHT
    return HeldOut(
        wrong=count(lambda verdict, _: verdict in wrong),
        wrong_told=count(lambda verdict, word: verdict in wrong and word in wrong),
        refused=count(lambda verdict, _: verdict is refused),
        refused_told=count(lambda verdict, word: verdict is refused and word == refused),
        refused_said=count(lambda _, word: word == refused),
        right=count(lambda verdict, _: verdict is right),
        alarms=count(lambda verdict, word: verdict is right and bool(word)),
    )


def _said(one: Measured, rows: Iterable[Row]) -> str:
    row = next((row for row in rows if row.holds(one.traits)), None)
    return "" if row is None else row.verdict
