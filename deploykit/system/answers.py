"""Answers of deploykit's own slow work, kept between runs under everything that they follow from; it knows no meaning.

The question holds models, encodings, samples and settings themselves, the versions of what computes, and the code that
asks. An answer is bound to its question: one that lies under the name of another is none.
"""

from __future__ import annotations

import json
import platform
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import cache
from hashlib import sha256
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TypeVar, cast

from deploykit.system.frozen import UnfrozenError, freeze, thaw
from deploykit.system.remembered import Remembered, is_off

__all__ = ["LARGEST_ASKED", "answered"]

T = TypeVar("T")

LARGEST_ASKED = 64 << 20
"""Bytes of weights of a model beyond which writing answers down would take longer than many a question."""

_COMPUTING = ("deploykit", "numpy", "onnx", "onnxruntime")


def answered(
    kind: str,
    question: object,
    make: Callable[[], T],
    *,
    known: Mapping[str, object] | None = None,
    code: tuple[Path, ...] = (),
) -> T:
    """What ``make`` gives, or gave before for the same question.

    ``known`` are parts of the question that the answer may hold, by name: they are the same objects again. ``code`` are
    folders of code and tables that answer beside the core's. What cannot be written down is made each time.
    """
    if is_off():
        return make()
    try:
        asked = freeze((kind, _makers(code), question))
    except UnfrozenError:
        return make()
    store, key = Remembered(kind), sha256(asked).hexdigest()
    kept = store.get_bytes(key)
    if kept is not None and kept[:64] == key.encode():
        with suppress(UnfrozenError):
            return cast("T", thaw(kept[64:], known))
    answer = make()
    with suppress(UnfrozenError):
        store.put_bytes(key, key.encode() + freeze(answer, known))
    return answer


@cache
def _makers(code: tuple[Path, ...]) -> str:
    """Everything that an answer follows from beside its question: what computes, and every line of the code."""
    found = sha256(json.dumps([sys.version, platform.machine(), *map(_version, _COMPUTING)]).encode())
    for folder in dict.fromkeys((Path(__file__).parents[1], *code)):
        for path in sorted(folder.rglob("*")):
            if path.suffix in (".py", ".toml"):
                found.update(f"{path.relative_to(folder)}\n".encode() + path.read_bytes())
    return found.hexdigest()


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return ""
