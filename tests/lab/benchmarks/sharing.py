"""Runs one deploykit command and says, in the last line, how much of its CPU time was spent in processes it started.

``python sharing.py ARGUMENTS…``: for ``ort-qnn`` those processes are the vendor's compiler and emulator.
"""

from __future__ import annotations

import json
import os
import resource
import sys

from deploykit.cli import cli
from deploykit.cli.frame import run

if __name__ == "__main__":
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # as a typed command has it
    # Without the parent of a typed command: it would count the whole command among the processes that were started.
    status = run(cli, sys.argv[1:])
    own, others = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    seconds = {"own": own.ru_utime + own.ru_stime, "others": others.ru_utime + others.ru_stime}
    print(json.dumps(seconds), flush=True)
    sys.exit(status)
