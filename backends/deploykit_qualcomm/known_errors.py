"""The known errors of Qualcomm's tools, from data files, and what internal type names in their logs mean."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from msgspec.structs import replace

from deploykit.tables.known_errors import Catalog, load_catalog

__all__ = ["known_errors"]

_FOLDER = Path(__file__).parent / "data" / "known_errors"
# The letters after TCM belong to the C++ symbol that the log prints, not to the type.
_TYPE_NAME = re.compile(
    r"(?P<how>Plain|Quant|Q)(?P<kind>U?[Ii]nt|BFloat|Float)(?P<bits>\d+)?(?P<tiled>Crouton)?(?:_(?P<rank>\d)D)?"
    r"(?P<place>_TCM)?(?![a-z0-9])"
)
_DATA_TYPE = re.compile(r"\b0x(?P<kind>0|1|2|3|4)(?P<bits>08|16|32|64)\b")
_KINDS = ("signed integer", "unsigned integer", "float", "signed fixed point", "unsigned fixed point")
_WORDS = {"uint": "unsigned", "int": "signed", "float": "float", "bfloat": "bfloat"}


@cache
def known_errors() -> Catalog:
    """Every known error of Qualcomm's tools, the meaning of their codes, and the marks of their logs."""
    return replace(load_catalog(sorted(_FOLDER.glob("*.toml"))), explain=(_explain_types,))


def _explain_types(line: str) -> Iterator[tuple[str, str]]:
    """Internal type names and type numbers of one line, each with its meaning in words.

    >>> dict(_explain_types("QuantUint16_5D_TCM"))
    {'QuantUint16_5D_TCM': '16-bit unsigned quantized, rank-5 layout, in TCM'}
    """
    for match in _TYPE_NAME.finditer(line):
        word = _WORDS[match["kind"].lower()]
        quantized = word if match["how"] == "Plain" else f"{word} quantized"
        bits = match["bits"] or ("32" if word == "float" else "")
        more = {"rank": f"rank-{match['rank']} layout", "tiled": "tiled layout", "place": "in TCM"}
        said = (text for part, text in more.items() if match[part])
        yield match[0], ", ".join([f"{bits}-bit {quantized}" if bits else quantized, *said])
    if "datatype" in line.lower().replace(" ", ""):
        for match in _DATA_TYPE.finditer(line):
            yield match[0], f"{int(match['bits'])}-bit {_KINDS[int(match['kind'])]}"
