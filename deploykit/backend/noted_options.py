"""Options that note which of them were looked at, so that an answer is known to follow from those and no others."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

__all__ = ["NotedOptions"]


class NotedOptions(Mapping[str, Any]):
    """The same values by the same names; ``looked_at`` grows with every name that somebody asks for.

    Whoever goes through all of them, counts or compares them, has looked at all.
    """

    def __init__(self, options: Mapping[str, Any], looked_at: set[str]) -> None:
        self._options, self.looked_at = options, looked_at

    def __getitem__(self, name: str) -> Any:
        self.looked_at.add(name)
        return self._options[name]

    def __iter__(self) -> Iterator[str]:
        self.looked_at.update(self._options)
        return iter(self._options)

    def __len__(self) -> int:
        self.looked_at.update(self._options)
        return len(self._options)

    def values_of(self, names: frozenset[str]) -> dict[str, Any]:
        """What the options of these names are, None where there is none; nothing is noted."""
        return {name: self._options.get(name) for name in sorted(names)}
