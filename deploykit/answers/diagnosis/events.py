"""Reads one line of trouble as an event: its tool, its level, its subject. It judges nothing."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from itertools import takewhile
from typing import Literal

from deploykit.answers.diagnosis.collecting import ErrorLine
from deploykit.answers.diagnosis.trouble import SOURCE
from deploykit.findings.records import Record, field
from deploykit.tables.known_errors import Catalog, LineForm, Tool

__all__ = ["Event", "codes_of", "compiled", "event_of", "level_of", "speaker"]

Level = Literal["error", "warning", "note", "detail", ""]
"""``detail`` is the level of lines that only a verbose log holds."""

_CODE = re.compile(
    r"(?:\berr(?:or)?(?:[ _]?codes?)?|\bfailed(?: with(?: error)?)?|\bstatus|\breturn(?:s|ed)?|\brc|\bcode|\bexit"
    r"|(?<![\w.])(?=(?:0x8000[0-9a-f]{4}|0xc0[0-9a-f]{6}|-[12]\d{9})(?![\w.])))"
    r"[\s:=(\[]{0,4}(?:code )?(0x[0-9a-fA-F]{2,8}|-?\d{2,10})\b",
    re.IGNORECASE,
)
_PARTS = {
    "node": re.compile(r"\b(?:node|op|operator|layer)(?: name)?[ :=(]{1,3}['\"]?([\w./:\-]{3,120})", re.IGNORECASE),
    "tensor": re.compile(
        r"\b(?:tensor|input|output|initializer)(?: name)?[ :=(]{1,3}['\"]([^'\"]{1,120})", re.IGNORECASE
    ),
    "path": re.compile(r"(?<![\w/])((?:/|[A-Za-z]:\\)[\w.+\-/\\ ]*[\w+\-]\.\w{1,8}|lib[\w+\-]{2,60}\.so[\d.]*)"),
    "version": re.compile(r"(?:\bv|\bversion[ :=]{1,3}v?|==)(\d+\.\d[\w.]*)", re.IGNORECASE),
    "size": re.compile(r"\b(\d[\d,]*(?:\.\d+)? ?(?:[KMG]i?B|bytes?))\b", re.IGNORECASE),
    "limit": re.compile(
        r"\b(?:limit|max(?:imum)?|at most)\D{0,20}(\d[\d,]*(?:\.\d+)? ?(?:[KMG]i?B|bytes?)?)", re.IGNORECASE
    ),
}
_LEVELS: dict[str, Level] = {"W": "warning", "I": "note", "N": "note", "V": "detail", "D": "detail"}
_FRAME = re.compile(r"""(?:\[rank\d+\]:)?\s*(?:File "|at |#\d+ |frame #|\[[^]]*\] *at )""")
_QUOTED_NAME = re.compile(r"""'[^'/\s]+'|"[^"/\s]+"|'[^'\s]*::[^'\s]*'|"[^"\s]*::[^"\s]*\"""")  # no path, no sentence
_OWN_FOLDER = re.compile(r"""/(?:home|Users|root)/(?:(?![\w-]*-packages/)[^\s:'"(])*/(?!\S+[:(]\d)""")
_PACKAGE = re.compile(r"-packages[/\\](\w+)")
_KERNEL = re.compile(r"(?:[A-Z]\w\w +\d+ [\d:]+ \S+ kernel: |\[ *\d+\.\d{6}\])")
_LISTED = re.compile(r'\[(?:pip3|conda)\]|"[\w.\-]+": |\w+=["\[{].*,$')  # lists of installed packages or of settings
_STACK = "Traceback (most recent call last)"


class Event(Record):
    """One line of trouble, with its number: ``tool`` wrote it, ``where`` is the place in the tool's source.

    ``parts`` may hold node, tensor, path, version, size and limit, each as the line spells it.
    """

    line: int
    text: str
    level: Level = ""
    tool: str = ""
    stage: str = ""
    where: str = ""
    codes: tuple[int, ...] = ()
    parts: dict[str, str] = field(default_factory=dict)

    def to_json(self) -> dict[str, object]:
        """The published shape, without empty fields."""
        names = ("level", "tool", "stage", "where", "codes")
        told = {name: list(value) if name == "codes" else value for name in names if (value := getattr(self, name))}
        return {"line": self.line, **told, **self.parts}


def event_of(line: ErrorLine, catalog: Catalog) -> Event:
    """Reads a line by its tools' line formats, and by parts that any line may name."""
    text = line.text
    level, where = level_of(text, catalog.forms)
    above = next((text for text in reversed(line.before) if text.strip(" ^~")), "")
    if text.endswith("AssertionError"):  # the failed condition is in the line above
        text += above.partition("assert")[2]
    if text[1:14] == "ield required":  # whose name is in the line above
        text = f"{above} {text}"
    if text[:1].islower() and above.endswith(":") and level_of(above, catalog.forms)[0] == "warning":
        level = "warning"  # it continues a warning's sentence
    tool = speaker((text, *reversed(line.before)), catalog.tools) or Tool("")
    parts = {name: found[1] for name, pattern in _PARTS.items() if (found := pattern.search(text))}
    return Event(
        line=line.line,
        text=text,
        level=level,
        tool=tool.id,
        stage=tool.stage,
        where=where,
        codes=tuple(dict(codes_of(text))),
        parts=parts,
    )


def codes_of(text: str) -> Iterator[tuple[int, str]]:
    """Yields the numbers that a line names as codes, each with its spelling; single digits are not codes.

    A 32-bit code is given unsigned, and needs no word before it.
    """
    for spelling in _CODE.findall(text):
        number = int(spelling, 16 if "x" in spelling.lower() else 10)
        yield number % 2**32 if number < -0xFFFF else number, spelling


def level_of(text: str, forms: Iterable[LineForm]) -> tuple[Level, str]:
    """The level and the place that a line's format states, each "" if it states none.

    A program passes on a library's log lines at its own level: the format
    that begins last in the line is the library's.
    """
    found = [match for form in forms if (match := compiled(form.pattern).search(text))]
    if not found:
        return "", ""
    inner = max(found, key=lambda match: match.start("level"))
    return _LEVELS.get(inner["level"][0].upper(), "error"), inner.groupdict().get("where") or ""


def speaker(lines: Sequence[str], tools: Sequence[Tool]) -> Tool | None:
    """The tool that wrote the first line, else the nearest line above that names one; the longest mark counts.

    ``lines`` begin with the failing one and go up. Lines above a stack say nothing about the failure at its end. A
    foreign tool counts from above only in a stack frame: its name alone may be a command or a file. Foreign code called
    by the chain's own code is attributed to the chain.
    """
    for tool in sorted(tools, key=lambda tool: tool.foreign):
        if any(compiled(pattern).search(lines[0]) for pattern in tool.lines):
            return tool
    marks = [(mark, tool) for tool in tools for mark in tool.speaks]
    inner: Tool | None = None
    stranger = False  # an unknown package failed: its caller is not to blame, unless that is part of the chain
    for index, line in enumerate(takewhile(lambda above: _STACK not in above, lines)):
        plain = line.replace("\\", "/")
        here = index == 0 or _FRAME.match(line)
        if index and (SOURCE.match(line) or _LISTED.match(line)):
            continue
        # A quoted name is the line's subject, not its author: any reader of a graph may lack an 'aten::relu'.
        about = _OWN_FOLDER.sub("", _QUOTED_NAME.sub("", plain))
        found = [
            (len(mark), tool)
            for mark, tool in marks  # there are hundreds, and hardly one is in a line
            if mark in plain and (not tool.foreign or (here and ("'" in mark or "/" in mark or mark in about)))
        ]
        if not found:
            if index and _KERNEL.match(line):
                break  # a driver's line says nothing about the lines after it
            frame = index and _FRAME.match(line) and _PACKAGE.search(line)
            stranger = stranger or bool(frame and frame[1] not in sys.stdlib_module_names)
            continue
        tool = max(found, key=lambda pair: (pair[0], not pair[1].foreign))[1]
        if not tool.foreign and (inner is None or (here and not tool.drives_others)):
            return tool
        inner = inner or (None if stranger else tool)
    return inner


@cache
def compiled(pattern: str) -> re.Pattern[str]:
    """A regular expression of the tables, compiled once: ``re`` caches too few of them."""
    return re.compile(pattern)
