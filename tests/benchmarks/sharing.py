"""Runs one deploykit command and says, in the last line, how much of its CPU time was spent in processes it started.

``python sharing.py ARGUMENTS…``: for ``ort-qnn`` those processes are the vendor's compiler and emulator.
"""

from __future__ import annotations

import json
import resource
import sys

from deploykit.cli import main

if __name__ == "__main__":
    sys.argv[0] = "deploykit"
    status: int | str | None = 0
    try:
        main()
    except SystemExit as done:
        status = done.code
    own, others = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    seconds = {"own": own.ru_utime + own.ru_stime, "others": others.ru_utime + others.ru_stime}
    print(json.dumps(seconds), flush=True)
    sys.exit(status)
