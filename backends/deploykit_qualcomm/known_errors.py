"""The known errors of Qualcomm's tools, from data files, and what internal type names in their logs mean."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path

from deploykit.tables.known_errors import Catalog, load_catalog

__all__ = ["explain_types", "known_errors"]

_FOLDER = Path(__file__).parent / "data" / "known_errors"
# The letters after TCM belong to the C++ symbol that the log prints, not to the type.
_TYPE_NAME = re.compile(
    r"(?P<how>Plain|Quant|Q)(?P<kind>U?[Ii]nt|BFloat|Float)(?P<bits>\d+)?(?P<tiled>Crouton)?(?:_(?P<rank>\d)D)?"
    r"(?P<place>_TCM)?(?![a-z0-9])"
)
_DATA_TYPE = re.compile(r"\b0x(?P<kind>0|1|2|3|4)(?P<bits>08|16|32|64)\b")
_OVER_LIMIT = re.compile(r"estimated allocation of (?P<size>\d{1,15}) KB, limit is (?P<limit>\d{1,15}) KB")
_KINDS = {
    "0": "signed integer",
    "1": "unsigned integer",
    "2": "float",
    "3": "signed fixed point",
    "4": "unsigned fixed point",
}
_WORDS = {"uint": "unsigned", "int": "signed", "float": "float", "bfloat": "bfloat"}


@cache
def known_errors() -> Catalog:
    """Every known error of Qualcomm's tools, the meaning of their codes, and the marks of their logs."""
    return replace(load_catalog(sorted(_FOLDER.glob("*.toml"))), explain=(explain_types, explain_sizes))


def explain_types(line: str) -> Iterator[tuple[str, str]]:
    """Internal type names and type numbers of one line, each with its meaning in words.

    >>> dict(explain_types("QuantUint16_5D_TCM"))
    {'QuantUint16_5D_TCM': '16-bit unsigned quantized, rank-5 layout, in TCM'}
    """
    for match in _TYPE_NAME.finditer(line):
        yield match[0], _type_name(match)
    if "data type" in line.lower() or "datatype" in line.lower():
        for match in _DATA_TYPE.finditer(line):
            yield match[0], f"{int(match['bits'])}-bit {_KINDS[match['kind']]}"


def explain_sizes(line: str) -> Iterator[tuple[str, str]]:
    """How many graphs an allocation above the limit has to become, in numbers.

    >>> dict(explain_sizes("estimated allocation of 5000000 KB, limit is 2097152 KB"))
    {'5000000 KB of 2097152 KB': '2.4 times the limit: at least 3 graphs, of 1.59 GiB each; 4 of 1.19 GiB leave room'}
    """
    for match in _OVER_LIMIT.finditer(line):
        size, limit = int(match["size"]), int(match["limit"])
        if size > limit > 0:
            least = -(-size // limit)
            each, roomy = (size / parts / (1 << 20) for parts in (least, least + 1))
            yield (
                f"{size} KB of {limit} KB",
                f"{size / limit:.1f} times the limit: at least {least} graphs, of {each:.2f} GiB each; "
                f"{least + 1} of {roomy:.2f} GiB leave room",
            )


def _type_name(match: re.Match[str]) -> str:
    word = _WORDS[match["kind"].lower()]
    quantized = word if match["how"] == "Plain" else f"{word} quantized"
    bits = match["bits"] or ("32" if word == "float" else "")
    parts = [f"{bits}-bit {quantized}" if bits else quantized]
    if match["rank"]:
        parts.append(f"rank-{match['rank']} layout")
    if match["tiled"]:
        parts.append("tiled layout")
    if match["place"]:
        parts.append("in TCM")
    return ", ".join(parts)
