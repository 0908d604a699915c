"""Runs a command in a child process, so that a library that ends its process is answered with an error and a status.

onnx and ONNX Runtime abort at some damaged models. The parent only waits: it hands on signals that somebody sent (the
terminal tells both by itself), and ends as the child did. Linux only, where the child ends with the parent.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading
from collections.abc import Callable
from contextlib import suppress

__all__ = ["CRASHES", "guarded"]

CRASHES = frozenset(
    getattr(signal, name) for name in ("SIGABRT", "SIGBUS", "SIGFPE", "SIGILL", "SIGSEGV") if hasattr(signal, name)
)
"""Signals by which code ends the process that it runs in."""
_PR_SET_PDEATHSIG = 1  # of prctl(2)


def guarded(work: Callable[[], int], crashed: Callable[[signal.Signals], int]) -> int:
    """The exit status of ``work``, or of ``crashed`` where a library ended the process. To be called before any thread.

    Where there is no such process to be had, ``work`` is done in this one.
    """
    if not sys.platform.startswith("linux") or threading.active_count() > 1:
        return work()
    watched = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGCHLD}
    # Whoever started this may have it ignored; then nothing could be waited for.
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    before = signal.pthread_sigmask(signal.SIG_BLOCK, watched)
    parent = os.getpid()
    try:
        child = os.fork()
    except OSError:  # the user may have no more processes
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        return work()
    if child == 0:
        # The system ends this process when its parent dies, however that happens; it ends now where that is so.
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        return work()
    done = 0
    while not done:
        found = signal.sigwaitinfo(watched)
        if found.si_signo == signal.SIGCHLD:
            done, status = os.waitpid(child, os.WNOHANG)
        elif found.si_code <= 0:  # sent by a process; what the terminal sends reaches the child as well
            os.kill(child, found.si_signo)
    signal.pthread_sigmask(signal.SIG_SETMASK, before)
    code = os.waitstatus_to_exitcode(status)
    if code >= 0:
        return code
    # The child was ended by a signal: a crash is answered, any other ends this process likewise.
    by = signal.Signals(-code)
    if by in CRASHES:
        return crashed(by)
    with suppress(OSError):  # nobody may say what SIGKILL does
        signal.signal(by, signal.SIG_DFL)
    os.kill(os.getpid(), by)
    return 128 + by
