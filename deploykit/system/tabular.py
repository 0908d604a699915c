"""What results have in common for notebooks: a plain dict, and their lists as pandas tables where pandas is installed.

It knows no result; it never imports pandas before a table is asked for.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from deploykit.errors import UsageError

if TYPE_CHECKING:
    from pandas import DataFrame

__all__ = ["Tabular"]


class Tabular:
    """A result with a published JSON shape. ``main_table`` is the list in it that most ask for, by its dotted path."""

    __slots__ = ()
    main_table: ClassVar[str] = ""

    def to_json(self) -> dict[str, Any]:
        """The published shape."""
        raise NotImplementedError

    def to_dict(self) -> dict[str, Any]:
        """The same as ``to_json``, by the name that notebooks look for."""
        return self.to_json()

    def to_frame(self, table: str = "") -> DataFrame:
        """One list of the result as a pandas table, a row each: ``table`` by its dotted path, else the main one.

        What is nested in a row becomes columns with dotted names. Raises UsageError for a path that is no list of rows,
        naming those that are, and where pandas is not installed.
        """
        wanted, tables = table or self.main_table, dict(_tables(self.to_json()))
        if wanted not in tables:
            known = ", ".join(sorted(tables)) or "none"
            raise UsageError(f"to_frame({wanted!r}): no such table in this result", next=f"its tables: {known}")
        try:
            from pandas import json_normalize
        except ImportError:
            raise UsageError(
                "to_frame: pandas is not installed", next="pip install pandas; to_dict() needs nothing"
            ) from None
        return json_normalize(tables[wanted])


def _tables(value: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """Every list of objects by its dotted path; an empty list is a table without rows."""
    for key, inner in value.items():
        if isinstance(inner, Mapping):
            yield from _tables(inner, f"{prefix}{key}.")
        elif isinstance(inner, list | tuple) and all(isinstance(row, Mapping) for row in inner):
            yield f"{prefix}{key}", [dict(row) for row in inner]
