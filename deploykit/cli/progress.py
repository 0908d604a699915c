"""News of long work on stderr: which step of how many, what is being waited for, and for how long already.

On a terminal one line that is overwritten, elsewhere a plain line now and then. It knows no command.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from deploykit.cli.frame import settings
from deploykit.cli.terminal import columns, defused, plain
from deploykit.system.steps import Begun

__all__ = ["News", "elapsed", "progress"]

_TICK, _FIRST = 1.0, 0.3
"""Seconds between two looks at the clock, and before the first: an answer that is there at once needs no news."""
_PATIENCE, _AGAIN = 5.0, 30.0
"""Seconds after which a log hears of work that goes on, and how often where nothing new begins."""
_CLEAR = "\r\x1b[2K"


class News(Protocol):
    """Called with a line of news, a ``Begun`` where one begins."""

    def __call__(self, line: str) -> None:
        """Tell what is being done now."""

    def say(self, line: str) -> None:
        """Tell what is to stay, such as why nothing moves; a log that is read later needs that with --json too."""


@contextmanager
def progress() -> Iterator[News]:
    """What commands tell their news to; silent with --json and -q."""
    if settings().json or settings().verbosity < 0:
        yield _Silent(is_quiet=settings().verbosity < 0)
        return
    is_live = sys.stderr.isatty() and os.environ.get("TERM") != "dumb"
    shown = _Live() if is_live else _Log()
    try:
        yield shown
    finally:
        shown.stop()


def elapsed(seconds: float) -> str:
    """Seconds as somebody who waits reads them: ``9 s``, ``1:05``, ``2:03:00``."""
    whole = int(seconds)
    minutes, rest = divmod(whole, 60)
    if not minutes:
        return f"{whole} s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


class _Silent:
    def __init__(self, *, is_quiet: bool) -> None:
        self._is_quiet = is_quiet

    def __call__(self, line: str) -> None:
        del line

    def say(self, line: str) -> None:
        if not self._is_quiet:
            _write(f"{defused(line)}\n")


class _Waiting:
    """What is being done, since when; a thread looks at the clock while the work says nothing."""

    def __init__(self) -> None:
        self.began = self.step_began = time.monotonic()
        self.step = self.detail = ""
        self._lock = threading.RLock()
        self._over = threading.Event()
        self._clock = threading.Thread(target=self._watch, daemon=True)
        self._clock.start()

    def __call__(self, line: str) -> None:
        with self._lock:
            if isinstance(line, Begun):
                self.step, self.detail, self.step_began = plain(line), "", time.monotonic()
            else:
                self.detail = plain(line)
            self.changed(isinstance(line, Begun))

    def stop(self) -> None:
        """Nothing is shown from here on."""
        self._over.set()
        self._clock.join()

    def words(self) -> str:
        """The step, and what within it is being waited for."""
        return ": ".join(part for part in (self.step, self.detail) if part)

    def times(self) -> str:
        """For how long: the step, and all where that is more."""
        now = time.monotonic()
        step, whole = elapsed(now - self.step_began), elapsed(now - self.began)
        return step if step == whole else f"{step}, {whole} in all"

    def changed(self, is_step: bool) -> None:
        raise NotImplementedError

    def tick(self) -> None:
        raise NotImplementedError

    def _watch(self) -> None:
        wait = _FIRST
        while not self._over.wait(wait):
            wait = _TICK
            with self._lock:
                self.tick()


class _Live(_Waiting):
    """One line of a terminal, as wide as that is at the time."""

    def __init__(self) -> None:
        self._is_drawn = False
        super().__init__()

    def changed(self, is_step: bool) -> None:
        del is_step
        if self._is_drawn:
            self.tick()

    def tick(self) -> None:
        if self.words():
            self._is_drawn = True
            _write(_CLEAR + _fitted(self.words(), f" · {self.times()}", columns(100) - 1))

    def say(self, line: str) -> None:
        with self._lock:
            _write(f"{_CLEAR if self._is_drawn else ''}{defused(line)}\n")
            if self._is_drawn:
                self.tick()

    def stop(self) -> None:
        super().stop()
        if self._is_drawn:
            _write(_CLEAR)


class _Log(_Waiting):
    """Plain lines for a file or a pipe: once work takes long, each step, and every half minute that it still runs."""

    def __init__(self) -> None:
        self._told, self._when = "", 0.0
        super().__init__()

    def changed(self, is_step: bool) -> None:
        if is_step and time.monotonic() - self.began >= _PATIENCE:
            self._line()

    def tick(self) -> None:
        now = time.monotonic()
        is_late = now - self.began >= _PATIENCE
        if is_late and self.words() and (not self._told or now - self._when >= _AGAIN):
            self._line()

    def say(self, line: str) -> None:
        with self._lock:
            _write(f"{defused(line)}\n")

    def _line(self) -> None:
        self._told, self._when = self.words(), time.monotonic()
        _write(f"{self._told} ({elapsed(self._when - self.began)})\n")


def _fitted(words: str, times: str, width: int) -> str:
    """Both within ``width`` columns; it is the words that are cut."""
    room = width - len(times)
    if room < 2:
        return f"{words}{times}"[: max(width, 0)]
    return (words if len(words) <= room else f"{words[: room - 1]}…") + times


def _write(text: str) -> None:
    sys.stderr.write(text)
    sys.stderr.flush()
