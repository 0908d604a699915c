"""How a command ends from outside: SIGTERM and SIGHUP clean up as Ctrl-C does; the second one is left to the system."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

__all__ = ["Ended", "ended_by_signals"]

_SIGNALS = tuple(getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name))


class Ended(BaseException):
    """The system asked the program to end; what was begun is taken back on the way out."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.exit_status = 128 + number


@contextmanager
def ended_by_signals() -> Iterator[None]:
    """Within it, a signal that ends programs raises ``Ended``; a signal that is ignored already stays so (nohup)."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in _SIGNALS}
    taken = [number for number, handler in before.items() if handler is signal.SIG_DFL]
    came: list[int] = []

    def end(number: int, _frame: FrameType | None) -> None:
        came.append(number)
        for other in taken:
            signal.signal(other, signal.SIG_DFL)
        raise Ended(number)

    for number in taken:
        signal.signal(number, end)
    try:
        yield
    except Exception as error:
        # A library whose import it met says ImportError, or whatever it makes of an exception that it did not expect.
        if came:
            raise Ended(came[0]) from error
        raise
    finally:
        for number in taken:
            signal.signal(number, before[number])
