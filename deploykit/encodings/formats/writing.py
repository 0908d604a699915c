"""Writes encodings as the text of an AIMET file: deterministic, keys sorted, one space of indentation.

What a version cannot hold is left out here; ``deploykit.encodings.formats.conversion`` says beforehand what that is.
"""

from __future__ import annotations

import json
from typing import Any

from deploykit.encodings.formats import v061, v100, v200
from deploykit.encodings.formats.reading import without_collecting
from deploykit.encodings.values import EncodingSet
from deploykit.errors import DefectError
from deploykit.system.indenting import indented

__all__ = ["WRITTEN_VERSIONS", "encodings_document", "write_encodings"]

_FORMATS = {
    "0.6.1": v061.format_sections,
    "0.6.2": v061.format_sections,
    "1.0.0": v100.format_sections,
    "2.0.0": v200.format_sections,
}
WRITTEN_VERSIONS = ("0.6.1", "1.0.0", "2.0.0")
"""The versions to convert to; 0.6.2 is written as well, where it is what was read."""


def write_encodings(encodings: EncodingSet, version: str) -> str:
    """The text of a file of ``version``, ending in a newline; entries keep the order of the set."""
    with without_collecting():
        return indented(json.dumps(encodings_document(encodings, version), sort_keys=True, allow_nan=False)) + "\n"


def encodings_document(encodings: EncodingSet, version: str) -> dict[str, Any]:
    """The content of a file of ``version`` as plain values."""
    if version not in _FORMATS:
        raise DefectError(f"encodings cannot be written as version {version!r}")
    document: dict[str, Any] = {**encodings.extra, **_FORMATS[version](encodings), "version": version}
    if encodings.producer is not None:
        document["producer"] = dict(encodings.producer)
    if encodings.quantizer_args is not None and version != "2.0.0":
        document["quantizer_args"] = dict(encodings.quantizer_args)
    return document
