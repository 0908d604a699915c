"""Lines of progress that begin a step of known number: ``[2/4] rendering``. It counts; it shows nothing to anybody."""

from __future__ import annotations

from collections.abc import Callable, Sequence

__all__ = ["Begun", "Steps", "prefixed"]


class Begun(str):
    """A line of progress that begins a step; lines that are none tell of the one begun last."""

    __slots__ = ()

    @classmethod
    def of(cls, number: int, total: int, words: str) -> Begun:
        """The ``number``-th of ``total`` steps, counted from 1."""
        return cls(f"[{number}/{total}] {words}")


class Steps:
    """A list of steps that are begun in its order; one may be begun again, and one that was not needed is passed."""

    def __init__(self, names: Sequence[str], tell: Callable[[str], None]) -> None:
        self._names = tuple(names)
        self._tell = tell

    def begin(self, name: str) -> None:
        """Tell that the step of that name begins; nothing where it is none of these."""
        if name in self._names:
            self._tell(Begun.of(self._names.index(name) + 1, len(self._names), name))


def prefixed(name: str, tell: Callable[[str], None]) -> Callable[[str], None]:
    """What tells the news of one piece of work among several; steps stay steps."""
    return lambda line: tell(Begun(f"{name}: {line}") if isinstance(line, Begun) else f"{name}: {line}")
