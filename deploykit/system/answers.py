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

__all__ = ["LARGEST_ASKED", "Question", "answered"]

T = TypeVar("T")

LARGEST_ASKED = 64 << 20
"""Bytes of weights of a model beyond which writing answers down would take longer than many a question."""

_COMPUTING = ("deploykit", "numpy", "onnx", "onnxruntime")


class Question:
    """Something asked of earlier runs: everything that its answer follows from, written down.

    ``known`` are parts of the question that the answer may hold, by name: they are the same objects again. ``code`` are
    folders of code and tables that answer beside the core's. Of what cannot be written down nothing is known or kept.
    """

    def __init__(
        self,
        kind: str,
        question: object,
        *,
        known: Mapping[str, object] | None = None,
        code: tuple[Path, ...] = (),
    ) -> None:
        self._store, self._known, self._key = Remembered(kind), known, ""
        if not is_off():
            with suppress(UnfrozenError):
                self._key = sha256(freeze((kind, _makers(code), question))).hexdigest()

    def answer(self) -> object:
        """What was kept; None where nothing was."""
        kept = self._store.get_bytes(self._key) if self._key else None
        if kept is not None and kept[:64] == self._key.encode():
            with suppress(UnfrozenError):
                return thaw(kept[64:], self._known)[0]
        return None

    def keep(self, answer: object) -> None:
        """Keep an answer that is not None, instead of an earlier one."""
        if self._key:
            with suppress(UnfrozenError):
                self._store.put_bytes(self._key, self._key.encode() + freeze((answer,), self._known))


def answered(
    kind: str,
    question: object,
    make: Callable[[], T],
    *,
    known: Mapping[str, object] | None = None,
    code: tuple[Path, ...] = (),
) -> T:
    """What ``make`` gives, or gave before for the same question."""
    asked = Question(kind, question, known=known, code=code)
    kept = asked.answer()
    if kept is not None:
        return cast("T", kept)
    answer = make()
    asked.keep(answer)
    return answer


@cache
def _makers(code: tuple[Path, ...]) -> str:
    """Everything that an answer follows from beside its question: what computes, and every line of the code."""
    found = sha256(json.dumps([sys.version, platform.machine(), *map(_version, _COMPUTING)]).encode())
    for folder in dict.fromkeys((Path(__file__).parents[1], *code)):
        found.update(_content(folder))
    return found.hexdigest()


@cache
def _content(folder: Path) -> bytes:
    """The digest of all code and tables of a folder; several questions have the same makers."""
    found = sha256()
    for path in sorted(folder.rglob("*")):
        if path.suffix in (".py", ".toml"):
            found.update(f"{path.relative_to(folder)}\n".encode() + path.read_bytes())
    return found.digest()


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return ""
