"""Every way to compute a wrong operator differently, in the order in which they are preferred: the cheapest first.

Each builds at a place what stands there instead, or says why it is none for it; which is right is measured.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from deploykit_ort_qnn.repairs.layers import as_ordinary, without_groups
from deploykit_ort_qnn.repairs.moving import by_places, by_places_in_a_row
from deploykit_ort_qnn.repairs.other_grids import (
    all_on_result_grid,
    even_result,
    in_16_bits,
    in_float16,
    on_input_grid,
    wider_result,
)
from deploykit_ort_qnn.repairs.pools import max_without_pads, mean_without_pads
from deploykit_ort_qnn.repairs.sums import by_sums, by_wide_sums

if TYPE_CHECKING:
    from deploykit_ort_qnn.repairs.place import Place

__all__ = ["WAYS", "Way"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """``build`` raises NoMatchError where it is none for an operator; ``told`` says of the operator what was done."""

    name: str
    told: str
    build: Callable[[Place], None]


_ALL = (
    Way(name="one-grid", told="what it reads is converted to its result's grid first", build=all_on_result_grid),
    Way(name="input-grid", told="its result has its input's grid, and is converted behind it", build=on_input_grid),
    Way(name="no-groups", told="its groups are one, with zeros between them", build=without_groups),
    Way(name="as-conv", told="it is a Conv over its input with zeros between the values", build=as_ordinary),
    Way(name="max-inside", told="its windows lie inside: values at a border come again", build=max_without_pads),
    Way(
        name="mean-inside",
        told="zeros are put around its map, and what of a window counts is a factor",
        build=mean_without_pads,
    ),
    Way(name="by-places", told="Gathers with stored places move what it moved", build=by_places),
    Way(name="wider-result", told="its result has a grid twice as wide, converted behind it", build=wider_result),
    Way(name="even-result", told="its result has a grid around zero, converted behind it", build=even_result),
    Way(name="by-wide-sums", told="MatMuls with its factors in 16 bits add up what it added up", build=by_wide_sums),
    Way(name="by-sums", told="MatMuls with its factors add up what it added up", build=by_sums),
    Way(name="in-16-bits", told="it computes in 16 bits", build=in_16_bits),
    Way(name="by-places-in-a-row", told="one Gather moves all values in a row", build=by_places_in_a_row),
    Way(name="in-float16", told="it computes in float16", build=in_float16),
)

WAYS: Mapping[str, Way] = {way.name: way for way in _ALL}
