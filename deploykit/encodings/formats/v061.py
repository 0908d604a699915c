"""AIMET's layout 0.6.1, and 0.6.2 of aimet_torch: objects from tensor name to a list with one item per scale.

It states neither axes nor block sizes; nothing here guesses them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from operator import attrgetter
from typing import Annotated, Any, Literal

import numpy as np
from msgspec import Meta, Raw, Struct

from deploykit.encodings.formats import grids
from deploykit.encodings.values import Affine, Encoding, EncodingSet, Float, Value
from deploykit.errors import InputError
from deploykit.findings.records import Json

__all__ = ["Items"]


class FloatItem(Struct, frozen=True, tag_field="dtype", tag="float", forbid_unknown_fields=True):
    """A cast to float16, which is the only float that the layout knows."""

    bitwidth: Literal[16]


class ScaleItem(Struct, frozen=True, tag_field="dtype", tag="int", forbid_unknown_fields=True, omit_defaults=True):
    """One scale of a tensor. ``min`` and ``max`` only repeat scale and offset, and may be missing: NaN is no JSON."""

    bitwidth: grids.Width
    is_symmetric: Literal["True", "False"]
    offset: float
    scale: float
    min: float = math.nan
    max: float = math.nan


Items = Annotated[list[ScaleItem | FloatItem], Meta(min_length=1)]


def parse_sections(document: Json, where: str) -> Iterator[Encoding]:
    """The entries of both sections in the file's order, unplaced where a list has several items."""
    for section in grids.SECTIONS:
        named = document[section].items()
        rows = grids.typed_rows(Items, [row for _, row in named], [f"{where}: {name!r}" for name, _ in named])
        for (name, _), (row, place) in zip(named, rows, strict=True):
            yield Encoding(name, _parse_value(row, place), is_param=section == "param_encodings")


def _parse_value(items: list[Any], where: str) -> Value:
    first, single = items[0], len(items) == 1
    if FloatItem in map(type, items):
        if not single:
            raise InputError(f"{where}: a float entry has one item, not {len(items)}")
        return Float("float16")
    bits, signed = first.bitwidth, first.is_symmetric == "True"
    if not single and len({(item.bitwidth, item.is_symmetric) for item in items}) > 1:
        raise InputError(f"{where}: 'bitwidth' or 'is_symmetric' differs between the items of one tensor")

    def column(key: str) -> Any:
        """One number, or an array for a weight with an item for each of its channels."""
        return getattr(first, key) if single else np.array(list(map(attrgetter(key), items)))

    scale, zero = column("scale"), grids.zero_point_of(column("offset"), bits, signed=signed)
    if single:
        value = grids.one_scale(where, bits, scale, zero, signed=signed, symmetric=signed)
    else:
        affine = Affine(bits=bits, signed=signed, scale=scale, zero_point=zero, symmetric=signed, placed=False)
        value = grids.checked(where, affine)
    # The slack is one and a half steps, and what a producer that worked in float32 may lose.
    slack = scale * (1.5 + 1e-6 * (1 << bits))
    for key, end in (("min", value.lowest), ("max", value.highest)):
        stated, given = column(key), (end - zero) * scale
        far = abs(stated - given) > slack
        if far is False or not np.any(far):
            continue
        place = int(np.argmax(far))
        raise InputError(
            f"{where}: {key!r} is {np.ravel(stated)[place]:g}, but scale and offset give {np.ravel(given)[place]:g}",
            why="min and max repeat scale and offset; which of the two a converter obeys differs",
            next="export the encodings again instead of editing them",
        )
    return value


def format_sections(encodings: EncodingSet) -> dict[str, dict[str, Raw]]:
    """Both sections, each list in its tensor's own order; entries that the layout cannot hold are left out."""
    sections: dict[str, dict[str, Raw]] = {name: {} for name in grids.SECTIONS}
    for entry in encodings:
        value = entry.value
        section = sections["param_encodings" if entry.is_param else "activation_encodings"]
        if isinstance(value, Float) and value.dtype == "float16":
            section[entry.name] = Raw('[{"bitwidth":16,"dtype":"float"}]')
        elif isinstance(value, Affine) and (value.block_size is None or value.placed):
            # The keys in order, as text: a weight has an item for each of its channels.
            columns = (value.maximum, value.minimum, grids.offset_of(value), value.scale)
            texts = grids.json_texts(np.stack(columns, axis=-1).reshape(-1))
            head = f'"bitwidth":{value.bits},"dtype":"int","is_symmetric":"{grids.is_symmetric(value)}"'
            item = f'{{{head},"max":%s,"min":%s,"offset":%s,"scale":%s}}'
            section[entry.name] = Raw(f"[{','.join([item] * value.scale.size)}]" % tuple(texts))
    return sections
