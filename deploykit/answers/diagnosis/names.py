"""Maps the names that converters write into logs to the nodes and tensors of the ONNX model. It reads no model."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Literal

from deploykit.findings.records import Published

__all__ = ["MappedName", "Names", "mangle"]

_WORD = re.compile(r"[A-Za-z0-9_/][A-Za-z0-9_/.:\-]{2,}")
_FOREIGN = re.compile(r"[^0-9A-Za-z_]")
_SHORTEST_STEM = 6
_MOST_SUFFIXES = 8


class MappedName(Published):
    """A name in the log and its ONNX names; ``exact`` is False if an added ending was cut off."""

    log: str
    onnx: tuple[str, ...]
    kind: Literal["node", "tensor"]
    exact: bool


def mangle(name: str) -> str:
    """The name as converters write it in C code: other characters become underscores.

    A leading digit gets an underscore in front. Two ONNX names may become the same name.
    """
    plain = _FOREIGN.sub("_", name)
    return f"_{plain}" if plain[:1].isdigit() else plain


class Names:
    """The names of one model, looked up by their spelling in a log."""

    def __init__(self, *, nodes: Iterable[str] = (), tensors: Iterable[str] = ()) -> None:
        self._known: dict[str, tuple[Literal["node", "tensor"], list[str]]] = {}
        for name in nodes:
            self._add(name, "node")
        for name in tensors:
            self._add(name, "tensor")

    def _add(self, name: str, kind: Literal["node", "tensor"]) -> None:
        if not name:
            return
        for spelling in {name, mangle(name)}:
            known = self._known.setdefault(spelling, (kind, []))
            if known[0] == kind and name not in known[1]:
                known[1].append(name)

    def find(self, line: str) -> list[MappedName]:
        """The nodes and tensors that a line names, in the order of the line, each once."""
        found = dict[str, MappedName]()
        for match in _WORD.finditer(line) if self._known else ():
            word = match[0].rstrip(".:-")
            # Plain words (``Add``, ``weight``) only count as names between quotes: sentences are full of them.
            quoted = line[: match.start()].endswith(("'", '"', "`"))
            mapped = self.look_up(word) if quoted or not word.isalpha() else None
            if mapped:
                found.setdefault(mapped.log, mapped)
        return list(found.values())

    def look_up(self, word: str) -> MappedName | None:
        """The nodes or tensors that one word names, if need be without endings
        that converters add (``_fc``, ``.nchw``, ``_0``).
        """
        stem, exact = word, True
        for _ in range(_MOST_SUFFIXES):
            known = self._known.get(stem) or self._known.get(mangle(stem))
            if known:
                return MappedName(log=word, onnx=tuple(known[1]), kind=known[0], exact=exact)
            cut = max(stem.rfind("_"), stem.rfind("."), stem.rfind(":"))
            if cut < _SHORTEST_STEM:
                return None
            stem, exact = stem[:cut], False
        return None
