"""Values that several packages of one run share; explicit, handed on, gone with the run. It knows nothing it keeps."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import TypeVar, cast

__all__ = ["Kept", "Same"]

T = TypeVar("T")


class Same:
    """A key that equals only the very same object, which it keeps alive: a model is not compared by its bytes."""

    __slots__ = ("_of",)

    def __init__(self, of: object) -> None:
        self._of = of

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Same) and self._of is other._of

    def __hash__(self) -> int:
        return id(self._of)


class Kept:
    """Remembers what was made under a key, so that three targets of one model prepare it once."""

    def __init__(self) -> None:
        self._made: dict[Hashable, object] = {}

    def once(self, key: Hashable, make: Callable[[], T]) -> T:
        """What was made under ``key``, made now where it was not; one key must always stand for one type."""
        if key not in self._made:
            self._made[key] = make()
        return cast("T", self._made[key])
