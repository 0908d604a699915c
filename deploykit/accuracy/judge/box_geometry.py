"""Boxes as rows of four numbers: their corners, areas and overlaps. What they are boxes of is not known here."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
import numpy.typing as npt

__all__ = ["OVERLAP", "areas", "corners_of", "overlaps"]

OVERLAP = 0.5
"""Intersection over union from which two boxes are usually called the same detection."""

_Doubles: TypeAlias = npt.NDArray[np.float64]


def corners_of(boxes: _Doubles, *, are_corners: bool) -> _Doubles:
    """(n, 4) as left, top, right, bottom; given so, or as centres and sizes."""
    if are_corners:
        return boxes
    centres, halves = boxes[:, :2], boxes[:, 2:] / 2
    return np.concatenate([centres - halves, centres + halves], axis=1)


def overlaps(one: _Doubles, two: _Doubles) -> _Doubles:
    """Intersection over union, 0..1, of every box on the left with every one on the right; both are corners."""
    low = np.maximum(one[:, None, :2], two[None, :, :2])
    high = np.minimum(one[:, None, 2:], two[None, :, 2:])
    common = np.clip(high - low, 0.0, None).prod(axis=2)
    union = areas(one)[:, None] + areas(two)[None] - common
    return np.asarray(np.divide(common, union, out=np.zeros_like(common), where=union > 0))


def areas(boxes: _Doubles) -> _Doubles:
    """Of corners; 0 where the second does not lie behind the first."""
    return np.asarray(np.clip(boxes[:, 2:] - boxes[:, :2], 0.0, None).prod(axis=1))
