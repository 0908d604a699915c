"""JSON Schemas of data files, made from the dataclasses that load them, so that an editor can check a file too.

A schema describes what ``deploykit.tables.reading.structure`` accepts; nothing is read here.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from msgspec.json import decode, encode, schema_components

__all__ = ["schema_of"]

_DIALECT = "https://json-schema.org/draft/2020-12/schema"


def schema_of(kind: type[Any], *, hidden: Collection[str] = (), optional: Collection[str] = ()) -> dict[str, Any]:
    """The JSON Schema of a data file that is loaded as ``kind``, a dataclass.

    ``hidden`` fields are filled by the loader and may not be written; ``optional`` ones may be left out although the
    dataclass requires them.
    """
    _, found = schema_components([kind], ref_template="#/$defs/{name}")
    defs = {name: _strict(found[name], hidden, optional) for name in sorted(found)}
    top = defs.pop(kind.__name__)
    # Defaults are Python's own values, such as tuples; a schema has JSON's.
    return decode(encode({"$schema": _DIALECT, **top, **({"$defs": defs} if defs else {})}), type=dict[str, Any])


def _strict(schema: dict[str, Any], hidden: Collection[str], optional: Collection[str]) -> dict[str, Any]:
    """The schema of an object with the keys that may be written and no others; enumerations stay as they are."""
    if "properties" not in schema:
        return schema
    return {
        **schema,
        "description": schema.get("description", "").partition("\n")[0],
        "properties": {name: value for name, value in schema["properties"].items() if name not in hidden},
        "required": [name for name in schema["required"] if name not in {*hidden, *optional}],
        "additionalProperties": False,
    }
