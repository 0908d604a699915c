"""What the HTP's integer Softmax makes of the step of its input: a whole number of units of an exponent of two.

Observed, not documented: QAIRT 2.51 emulator, 30 steps, rows of 9 to 100 values, 16 and 8 bits; the same for soc_model
30, 36, 43, 57, 69 and 87. It changes no grid; preparations ask it.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from deploykit.encodings.values import Affine

__all__ = ["LEAST_UNITS", "step_units", "whole_step"]

LEAST_UNITS = 16
"""With a smaller step the results are wrong, whatever the values are: 18 dB for rows of 16."""

_UNITS = {16: 2.0**22, 8: 2.0**18}
"""How many units a factor of two has, by the width of the input."""

_ABOVE = 1e-3
"""How far above a whole number a step is put: rounded to float32 it must not fall below."""


def step_units(grid: Affine) -> float | None:
    """The step of a Softmax's input in the kernel's units, of which it takes the whole part; None if not measured."""
    units = _UNITS.get(grid.bits)
    return None if units is None or grid.scale.size != 1 else float(grid.scale.reshape(())) * units / math.log(2)


def whole_step(grid: Affine) -> float | None:
    """The next larger step that the kernel takes as it is; None where that is the grid's own, or nothing is known.

    What it leaves out of a step adds up: over the whole of a 16-bit range to as much as 1 % of a result.
    """
    units = step_units(grid)
    if units is None:
        return None
    wanted = max(math.ceil(units - 2 * _ABOVE), LEAST_UNITS) + _ABOVE
    return None if wanted - 2 * _ABOVE <= units <= wanted + _ABOVE else wanted * math.log(2) / _UNITS[grid.bits]
