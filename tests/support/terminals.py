"""A program on a terminal: everything that it writes there, byte by byte."""

import os
import subprocess
from collections.abc import Sequence

import pytest


def on_a_terminal(argv: Sequence[str], **settings: str) -> tuple[int, bytes]:
    """Its exit status and what it wrote, on standard output and error alike; skips where there are no such terminals.

    ``settings`` are environment variables of its own.
    """
    pty = pytest.importorskip("pty", reason="terminals of this kind are POSIX's")
    mine, its = pty.openpty()
    environment = {**os.environ, "TERM": "xterm", **settings}
    process = subprocess.Popen(argv, stdout=its, stderr=its, env=environment)
    os.close(its)
    written = b""
    try:
        while part := os.read(mine, 4096):
            written += part
    except OSError:
        pass  # Linux's way to say that the other end is closed
    finally:
        os.close(mine)
    return process.wait(60), written
