"""The known errors of Qualcomm's tools, from data files, and the meanings of internal type names in their logs."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from msgspec.structs import replace

from deploykit.tables.known_errors import Catalog, load_catalog
from deploykit_qualcomm.devices import qualcomm_devices
from deploykit_qualcomm.tables import tables

__all__ = ["known_errors"]

_FOLDER = Path(__file__).parent / "data" / "known_errors"
# The letters after TCM belong to the C++ symbol that the log prints, not to the type.
_TYPE_NAME = re.compile(
    r"(?:(?P<how>Plain|Quant|Q)(?P<kind>U?[Ii]nt|BFloat|Float)|F(?=16Crouton))(?P<bits>\d+)?(?P<tiled>Crouton)?(?:_(?P<rank>\d)D)?"
    r"(?P<place>_TCM)?(?![a-z0-9])"
)
_DATA_TYPE = re.compile(r"\b0x(?P<kind>0|1|2|3|4)(?P<bits>08|16|32|64)\b")
# A chip by its name or its QNN number, an architecture by its number, a blob by its version.
_CHIP = re.compile(
    r"\b(?:(?P<chip>(?:SM|SA|SC|SXR|QCS|QCM|QRB)\d{4})\w{0,3}|arch with value (?P<arch>\d\d)"
    r"|soc_?(?: |id )?model\W{1,4}(?P<model>\d{2,3})|blob v\D{0,20}(?P<blob>\d+\.\d+\.\d+))\b",
    re.IGNORECASE,
)
# Every line about a chip contains one of these; most lines contain none and are skipped quickly.
_OF_CHIPS = (
    "sm4",
    "sm6",
    "sm7",
    "sm8",
    "sa6",
    "sa7",
    "sa8",
    "sc7",
    "sc8",
    "sxr",
    "qcs",
    "qcm",
    "qrb",
    "model",
    "arch with",
    "blob v",
)
_KINDS = ("signed integer", "unsigned integer", "float", "signed fixed point", "unsigned fixed point")
_WORDS = {"uint": "unsigned", "int": "signed", "float": "float", "bfloat": "bfloat"}


@cache
def known_errors() -> Catalog:
    """Every known error of Qualcomm's tools, the meaning of their codes, and the marks of their logs."""
    return replace(load_catalog(sorted(_FOLDER.glob("*.toml"))), explain=(_explain_types, _explain_chips))


def _explain_types(line: str) -> Iterator[tuple[str, str]]:
    """Internal type names and type numbers of one line, each with its meaning in words.

    >>> dict(_explain_types("QuantUint16_5D_TCM"))
    {'QuantUint16_5D_TCM': '16-bit unsigned quantized, rank-5 layout, in TCM'}
    """
    for match in _TYPE_NAME.finditer(line):
        word = _WORDS[(match["kind"] or "float").lower()]
        quantized = word if match["how"] in ("Plain", None) else f"{word} quantized"
        bits = match["bits"] or ("32" if word == "float" else "")
        more = {"rank": f"rank-{match['rank']} layout", "tiled": "tiled layout", "place": "in TCM"}
        said = (text for part, text in more.items() if match[part])
        yield match[0], ", ".join([f"{bits}-bit {quantized}" if bits else quantized, *said])
    if "datatype" in line.lower().replace(" ", ""):
        for match in _DATA_TYPE.finditer(line):
            yield match[0], f"{int(match['bits'])}-bit {_KINDS[int(match['kind'])]}"


def _explain_chips(line: str) -> Iterator[tuple[str, str]]:
    """The chips, architectures and blobs that one line names, each with its entry in the tables of devices and wheels.

    >>> dict(_explain_chips("SoC model: 57"))
    {'SoC model: 57': 'SM8650, Hexagon v75'}
    """
    small = line.lower()
    for match in _CHIP.finditer(line) if any(word in small for word in _OF_CHIPS) else ():
        kind = match.lastgroup or ""
        found = [
            f"{device.name}, Hexagon {device.fact('arch')}"
            for device in qualcomm_devices()
            if match[kind].lower()
            == {"chip": device.id, "arch": str(device.fact("arch"))[1:]}.get(kind, str(device.fact("soc_model")))
        ] or [f"of QAIRT {wheel.sdk}" for wheel in tables().wheels if wheel.blob == match[kind]]
        if found:
            yield match[0], "; ".join(found[-4:])
