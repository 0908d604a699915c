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

from deploykit.cli.frame import settings
from deploykit.cli.terminal import columns, defused, plain
from deploykit.system.jobs import Begun

__all__ = ["News", "elapsed", "progress"]

_TICK, _FIRST = 1.0, 0.3
"""Seconds between two looks at the clock, and before the first: an answer that is there at once needs no news."""
_PATIENCE, _AGAIN = 5.0, 30.0
"""Seconds after which a log hears of work that goes on, and how often where nothing new begins."""
_CLEAR = "\r\x1b[2K"


@contextmanager
def progress() -> Iterator[News]:
    """What commands tell their news to; silent with --json and -q."""
    news = News(is_shown=not settings().json and settings().verbosity >= 0, is_quiet=settings().verbosity < 0)
    try:
        yield news
    finally:
        news.stop()


def elapsed(seconds: float) -> str:
    """Seconds as somebody who waits reads them: ``9 s``, ``1:05``, ``2:03:00``."""
    whole = int(seconds)
    minutes, rest = divmod(whole, 60)
    if not minutes:
        return f"{whole} s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


class News:
    """Called with a line of news, a ``Begun`` where a step begins; a thread looks at the clock meanwhile.

    A terminal has one line, as wide as it is at the time. A file or a pipe gets plain lines: once work takes long, each
    step, and every half minute that it still runs.
    """

    def __init__(self, *, is_shown: bool, is_quiet: bool) -> None:
        self._is_quiet = is_quiet
        self._is_live = sys.stderr.isatty() and os.environ.get("TERM") != "dumb"
        self._is_drawn = False
        self._began = self._step_began = time.monotonic()
        self._step = self._detail = self._told = ""
        self._when = 0.0
        self._lock = threading.RLock()
        self._over = threading.Event()
        self._clock = threading.Thread(target=self._watch, daemon=True) if is_shown else None
        if self._clock is not None:
            self._clock.start()

    def __call__(self, line: str) -> None:
        """Tell what is being done now."""
        if self._clock is None:
            return
        with self._lock:
            begins = isinstance(line, Begun)
            if begins:
                self._step, self._detail, self._step_began = plain(line), "", time.monotonic()
            else:
                self._detail = plain(line)
            if self._is_drawn:
                self._draw()
            elif begins and not self._is_live and time.monotonic() - self._began >= _PATIENCE:
                self._line()

    def say(self, line: str) -> None:
        """Tell what is to stay, such as why nothing moves; a log that is read later needs that with --json too."""
        with self._lock:
            if not self._is_quiet:
                _write(f"{_CLEAR if self._is_drawn else ''}{defused(line)}\n")
            if self._is_drawn:
                self._draw()

    def stop(self) -> None:
        """Nothing is shown from here on."""
        self._over.set()
        if self._clock is not None:
            self._clock.join()
        if self._is_drawn:
            _write(_CLEAR)

    def _watch(self) -> None:
        wait = _FIRST
        while not self._over.wait(wait):
            wait = _TICK
            with self._lock:
                now = time.monotonic()
                is_late = now - self._began >= _PATIENCE and (not self._told or now - self._when >= _AGAIN)
                if not self._words:
                    continue
                if self._is_live:
                    self._draw()
                elif is_late:
                    self._line()

    @property
    def _words(self) -> str:
        return ": ".join(part for part in (self._step, self._detail) if part)

    def _draw(self) -> None:
        """The line of a terminal: the step for how long, and all where that is more. It is the words that are cut."""
        now, width = time.monotonic(), columns(100) - 1
        step, whole = elapsed(now - self._step_began), elapsed(now - self._began)
        times = f" · {step}" if step == whole else f" · {step}, {whole} in all"
        words, room = self._words, width - len(times)
        if len(words) > room >= 2:
            words = f"{words[: room - 1]}…"
        self._is_drawn = True
        _write(_CLEAR + f"{words}{times}"[: max(width, 0)])

    def _line(self) -> None:
        self._told, self._when = self._words, time.monotonic()
        _write(f"{self._told} ({elapsed(self._when - self._began)})\n")


def _write(text: str) -> None:
    sys.stderr.write(text)
    sys.stderr.flush()
