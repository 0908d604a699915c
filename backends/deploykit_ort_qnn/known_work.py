"""Work of the vendor's compiler and emulator that was done before, found by everything it depends on; it runs nothing.

The worker's answer, its log and the files it left are kept together and put back as they were. Only work that succeeded
is kept: a crash or a refusal may have had a reason that lies outside of what was asked.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from hashlib import sha256
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from deploykit.packages.manifests import hash_file
from deploykit.system.processes import Completed
from deploykit.system.store import Store, is_off
from deploykit_ort_qnn.hosts import Host
from deploykit_ort_qnn.workers import Work, installed_wheel

__all__ = ["known_work"]

_ANSWER = "answer.json"


def known_work(
    kind: str,
    asked: Mapping[str, Any],
    inputs: Iterable[Path],
    scratch: Path,
    run: Callable[[], Work],
    *,
    host: Host | None = None,
    tell: Callable[[str], None] | None = None,
) -> Work:
    """What ``run`` gives, or gave before for the same question; the files lie in ``scratch`` either way.

    ``asked`` is the question without any path of this machine, ``inputs`` are the files and folders it is about. A
    folder stands for all files directly in it.
    """
    if is_off():
        return run()
    store, key = Store(kind), _key(kind, asked, inputs, host)
    if store.take(key, scratch):
        kept = json.loads((scratch / _ANSWER).read_text("utf-8"))
        if tell is not None:
            tell("done before with the same files, options and tools: taken from what is kept")
        return Completed(argv=(), returncode=0, tail=(), seconds=0.0), kept["answer"], tuple(kept["log"])
    before = set(_files(scratch))
    done, answer, log = run()
    if answer is not None and answer.get("ok"):
        (scratch / _ANSWER).write_text(json.dumps({"answer": answer, "log": log}), "utf-8")
        store.keep(key, scratch, sorted(set(_files(scratch)) - before - {"request.json", "result.json"}))
    return done, answer, log


def _files(folder: Path) -> list[str]:
    return [path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()]


def _key(kind: str, asked: Mapping[str, Any], inputs: Iterable[Path], host: Host | None) -> str:
    """The digest of the question, of every file it is about, and of everything that answers it."""
    who = installed_wheel() if host is None else dict(host.identity)
    rest = {"python": sys.version, "code": _code(), "deploykit": _version()}
    digest = sha256(json.dumps([kind, asked, who, rest], sort_keys=True).encode())
    for given in inputs:
        for path in sorted(given.iterdir()) if given.is_dir() else [given]:
            if path.is_file():
                size, content = hash_file(path)
                digest.update(f"{path.name} {size} {content}\n".encode())
        digest.update(b"\n")
    return digest.hexdigest()


def _version() -> str:
    try:
        return version("deploykit")
    except PackageNotFoundError:
        return ""


@cache
def _code() -> str:
    """The digest of this package's own code: whoever changes the worker asks anew."""
    digest = sha256()
    for path in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(path.name.encode() + path.read_bytes())
    return digest.hexdigest()
