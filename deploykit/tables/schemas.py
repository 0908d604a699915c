"""JSON Schemas made from the dataclasses that load data files, so that a file can be checked by an editor too.

It describes what ``deploykit.tables.reading.structure`` accepts; it reads no file and knows no vendor.
"""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Collection
from enum import Enum
from typing import Any

__all__ = ["schema_of"]

_DIALECT = "https://json-schema.org/draft/2020-12/schema"
_SCALARS = {str: "string", int: "integer", bool: "boolean", float: "number"}


def schema_of(kind: type[Any], *, hidden: Collection[str] = (), optional: Collection[str] = ()) -> dict[str, Any]:
    """The JSON Schema of a data file that is loaded as ``kind``, a dataclass.

    ``hidden`` fields are filled by the loader and may not be written; ``optional`` ones may be left out although the
    dataclass requires them.
    """
    made = _Schemas(hidden=frozenset(hidden), optional=frozenset(optional))
    top = made.object_of(kind)
    defs = {name: made.defs[name] for name in sorted(made.defs)}
    return {"$schema": _DIALECT, "title": kind.__name__, **top, **({"$defs": defs} if defs else {})}


class _Schemas:
    """Collects the definitions of nested dataclasses while a schema is made."""

    def __init__(self, *, hidden: frozenset[str], optional: frozenset[str]) -> None:
        self.hidden = hidden
        self.optional = optional
        self.defs: dict[str, Any] = {}

    def object_of(self, kind: type[Any]) -> dict[str, Any]:
        hints = typing.get_type_hints(kind)
        fields = [field for field in dataclasses.fields(kind) if field.name not in self.hidden]
        return {
            "description": (kind.__doc__ or "").strip().split("\n", 1)[0],
            "type": "object",
            "properties": {field.name: self.of(hints[field.name]) for field in fields},
            "required": [field.name for field in fields if self._is_required(field)],
            "additionalProperties": False,
        }

    def of(self, kind: Any) -> dict[str, Any]:
        if kind is Any:
            return {}
        if kind in _SCALARS:
            return {"type": _SCALARS[kind]}
        if isinstance(kind, type) and issubclass(kind, Enum):
            return {"enum": [member.value for member in kind]}
        if dataclasses.is_dataclass(kind):
            return self._reference(typing.cast("type[Any]", kind))
        return self._generic(typing.get_origin(kind), typing.get_args(kind))

    def _generic(self, origin: Any, args: tuple[Any, ...]) -> dict[str, Any]:
        if origin is typing.Literal:
            return {"enum": list(args)}
        if origin is tuple:
            return {"type": "array", "items": self.of(args[0])}
        if origin in (typing.Union, types.UnionType):
            # TOML has no null: a field that may be None is simply left out.
            kinds = [self.of(arg) for arg in args if arg is not type(None)]
            return kinds[0] if len(kinds) == 1 else {"anyOf": kinds}
        return {"type": "object", "additionalProperties": self.of(args[1])}

    def _reference(self, kind: type[Any]) -> dict[str, Any]:
        if kind.__name__ not in self.defs:
            self.defs[kind.__name__] = {}
            self.defs[kind.__name__] = self.object_of(kind)
        return {"$ref": f"#/$defs/{kind.__name__}"}

    def _is_required(self, field: dataclasses.Field[Any]) -> bool:
        given = field.default is not dataclasses.MISSING or field.default_factory is not dataclasses.MISSING
        return not given and field.name not in self.optional
