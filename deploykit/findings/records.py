"""What a value is here: it cannot be changed, and is made with keywords."""

from __future__ import annotations

from typing import Any, dataclass_transform

from msgspec import Struct, StructMeta, field

__all__ = ["Record"]


class _RecordMeta(StructMeta):
    """Says of every subclass what msgspec would have said by each of them."""

    def __new__(cls, name: str, bases: tuple[type, ...], namespace: dict[str, Any], **options: Any) -> _RecordMeta:
        return super().__new__(cls, name, bases, namespace, **{"frozen": True, "kw_only": True, **options})


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(field,))
class Record(Struct, frozen=True, metaclass=_RecordMeta):
    """A value of fields; ``kw_only=False`` where they are also given by place."""
