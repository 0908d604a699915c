"""Checks the numbers of many per-tensor grids as columns, thousands at once; it refuses none and explains nothing.

A grid that is not plainly in order is given back as None: the reader of single entries says what is wrong with it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import repeat
from typing import NamedTuple, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from deploykit.encodings.formats.grids import WIDEST
from deploykit.encodings.values import Affine, Encoding

__all__ = [
    "GridColumns",
    "KnowsRows",
    "OffsetGrid",
    "ZeroPointGrid",
    "is_plain",
    "offset_columns",
    "offset_grids",
    "zero_point_columns",
    "zero_point_grids",
]

_Numbers = npt.NDArray[np.float64]

_LARGEST = 1 << 53
"""Whole numbers below it are the same as doubles."""


class OffsetGrid(NamedTuple):
    """One grid in the words of 0.6.1 and 1.0.0: a symmetric one is signed, the offset speaks of the unsigned grid.

    ``lowest`` and ``highest`` are the values that the file says are at the ends, None where it does not.
    """

    bits: int
    symmetric: bool
    scale: float
    offset: float
    lowest: float | None = None
    highest: float | None = None


class ZeroPointGrid(NamedTuple):
    """One grid in the words of 2.0.0: the zero point is one of the grid itself."""

    bits: int
    signed: bool
    scale: float
    zero_point: float


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class GridColumns:
    """Many per-tensor grids that are in order, 18 bytes each; ``says_symmetry`` where the file has a word for that."""

    bits: npt.NDArray[np.uint8]
    signed: npt.NDArray[np.bool_]
    scale: _Numbers
    zero_point: _Numbers
    says_symmetry: bool

    def grid(self, index: int) -> Affine:
        """One of them."""
        signed = bool(self.signed[index])
        return Affine(
            bits=int(self.bits[index]),
            signed=signed,
            scale=np.array(self.scale[index]),
            zero_point=np.array(self.zero_point[index]),
            symmetric=signed if self.says_symmetry else None,
        )

    def rows(self) -> Iterator[ZeroPointGrid]:
        """All of them in the words of 2.0.0, as Python's own numbers."""
        columns = (self.bits, self.signed, self.scale, self.zero_point)
        return map(ZeroPointGrid, *(column.tolist() for column in columns))


@runtime_checkable
class KnowsRows(Protocol):
    """Entries of which many are rows of numbers, for who writes them down and needs no objects."""

    def rows(self) -> Iterator[tuple[str, ZeroPointGrid | Encoding]]:
        """Every entry by its name, in the file's order; one that is an object already as that."""


def offset_columns(
    bits: Sequence[int],
    signed: Sequence[bool],
    scales: Sequence[float],
    offsets: Sequence[float],
    ends: tuple[Sequence[float], Sequence[float]] | None = None,
) -> GridColumns | None:
    """Grids in the words of 0.6.1 and 1.0.0, as ``offset_grids`` has them; None where one of them is not in order."""
    widths, signs, scale, offset = _column(bits), np.array(signed, dtype=bool), _column(scales), _column(offsets)
    zero_point = -offset - np.where(signs, np.exp2(widths - 1), 0.0) + 0.0
    right = _in_order(widths, signs, scale, zero_point) & (offset % 1 == 0)
    if ends is not None:
        low, high = _ends(widths, signs)
        right &= _near(ends[0], low - zero_point, scale) & _near(ends[1], high - zero_point, scale)
    return _columns(widths, signs, scale, zero_point, right, says_symmetry=True)


def zero_point_columns(
    bits: Sequence[int], signed: Sequence[bool], scales: Sequence[float], zero_points: Sequence[float]
) -> GridColumns | None:
    """The same in the words of 2.0.0."""
    widths, signs, scale = _column(bits), np.array(signed, dtype=bool), _column(scales)
    zero_point = _column(zero_points) + 0.0
    return _columns(widths, signs, scale, zero_point, _in_order(widths, signs, scale, zero_point), says_symmetry=False)


def _columns(
    bits: _Numbers,
    signed: npt.NDArray[np.bool_],
    scale: _Numbers,
    zero_point: _Numbers,
    right: npt.NDArray[np.bool_],
    *,
    says_symmetry: bool,
) -> GridColumns | None:
    if not right.all():
        return None
    narrow = bits.astype(np.uint8)
    return GridColumns(bits=narrow, signed=signed, scale=scale, zero_point=zero_point, says_symmetry=says_symmetry)


def is_plain(number: object) -> bool:
    """True for a JSON number that is a double without any loss; a boolean is none."""
    return type(number) is float or (type(number) is int and -_LARGEST < number < _LARGEST)


def offset_grids(rows: Sequence[OffsetGrid | None]) -> list[Affine | None]:
    """A grid for each row, None where the row is or where one of its numbers is not in order."""
    known = [row for row in rows if row is not None]
    if not known:
        return [None] * len(rows)
    widths, signs, scales, offsets, lowest, highest = zip(*known, strict=True)
    bits, signed = _column(widths), np.array(signs, dtype=bool)
    scale, offset = _column(scales), _column(offsets)
    # As grids.zero_point_of has it for one entry.
    zero_point = -offset - np.where(signed, np.exp2(bits - 1), 0.0) + 0.0
    right = _in_order(bits, signed, scale, zero_point) & (offset % 1 == 0)
    low, high = _ends(bits, signed)
    right &= _near(lowest, low - zero_point, scale) & _near(highest, high - zero_point, scale)
    return _spread(rows, [*map(_grid, widths, signs, _scalars(scale), _scalars(zero_point), signs, right.tolist())])


def zero_point_grids(rows: Sequence[ZeroPointGrid | None]) -> list[Affine | None]:
    """The same for the other words; whether a grid was meant symmetric is not said in them."""
    known = [row for row in rows if row is not None]
    if not known:
        return [None] * len(rows)
    widths, signs, scales, zeros = zip(*known, strict=True)
    bits, signed = _column(widths), np.array(signs, dtype=bool)
    scale, zero_point = _column(scales), _column(zeros) + 0.0
    right = _in_order(bits, signed, scale, zero_point).tolist()
    unsaid = repeat(None)
    return _spread(rows, [*map(_grid, widths, signs, _scalars(scale), _scalars(zero_point), unsaid, right)])


def _grid(
    bits: int, signed: bool, scale: _Numbers, zero_point: _Numbers, symmetric: bool | None, right: bool
) -> Affine | None:
    if not right:
        return None
    return Affine(bits=bits, signed=signed, scale=scale, zero_point=zero_point, symmetric=symmetric)


def _spread(rows: Sequence[object | None], made: list[Affine | None]) -> list[Affine | None]:
    """What was made of the known rows, in the places of all."""
    if len(made) == len(rows):
        return made
    grids = iter(made)
    return [None if row is None else next(grids) for row in rows]


def _column(values: Sequence[float]) -> _Numbers:
    return np.array(values, dtype=np.float64)


def _scalars(column: _Numbers) -> list[_Numbers]:
    """Each number as an array of its own, without dimensions."""
    return [*map(np.array, column.tolist())]


def _ends(bits: _Numbers, signed: npt.NDArray[np.bool_]) -> tuple[_Numbers, _Numbers]:
    """The lowest and the highest integer of each grid."""
    lowest = np.where(signed, -np.exp2(bits - 1), 0.0)
    return lowest, lowest + np.exp2(bits) - 1


def _in_order(bits: _Numbers, signed: npt.NDArray[np.bool_], scale: _Numbers, zero: _Numbers) -> npt.NDArray[np.bool_]:
    """What ``grids.affine`` refuses of one entry, as a column."""
    lowest, highest = _ends(bits, signed)
    with np.errstate(all="ignore"):
        reaches = np.isfinite(scale * np.exp2(bits))
        on_grid = (zero >= lowest) & (zero <= highest)
        return np.asarray((bits >= 2) & (bits <= WIDEST) & (scale > 0) & reaches & on_grid)


def _near(stated: Sequence[float | None], steps: _Numbers, scale: _Numbers) -> npt.NDArray[np.bool_]:
    """Within one step of what scale and offset give: the reader of single entries lets pass a little more."""
    said = np.array(stated, dtype=np.float64)
    with np.errstate(all="ignore"):
        return np.asarray((np.abs(said - steps * scale) <= scale) | np.isnan(said))
