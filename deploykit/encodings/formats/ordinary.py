"""Reads files of mostly ordinary entries, fast and into columns, with a decoder that is told their types (msgspec).

It refuses nothing and explains nothing: where anything at all is not plainly in order the answer is None, and the
reader of single entries begins anew, with its words. Without msgspec it is asked for every file.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from types import GenericAlias
from typing import Annotated, Any, Literal

from deploykit.encodings.formats import grids, v061, v100, v200
from deploykit.encodings.formats.columns import GridColumns, ZeroPointGrid, offset_columns, zero_point_columns
from deploykit.encodings.values import Encoding, Float
from deploykit.errors import InputError
from deploykit.system.indenting import typed_json
from deploykit.tables.reading import parse_json

__all__ = ["LateEntries", "read_ordinary", "typed_json"]

_AT_ONCE = 4096
"""Entries that are decoded at once: what is in memory of them beside the columns."""


class LateEntries(Mapping[str, Encoding]):
    """Entries by name, in the file's order; ordinary ones are made of columns when somebody asks for them."""

    def __init__(self) -> None:
        self._of: dict[str, int | Encoding] = {}
        self._columns: list[GridColumns] = []
        self._starts: list[int] = []
        self._params: list[bool | None] = []
        self._floats: set[str] = set()
        self.added = 0

    def __getitem__(self, name: str) -> Encoding:
        known = self._of[name]
        if isinstance(known, Encoding):
            return known
        part = bisect_right(self._starts, known) - 1
        grid = self._columns[part].grid(known - self._starts[part])
        made = self._of[name] = Encoding(name=name, value=grid, is_param=self._params[part])
        return made

    def __iter__(self) -> Iterator[str]:
        return iter(self._of)

    def __len__(self) -> int:
        return len(self._of)

    def __contains__(self, name: object) -> bool:
        return name in self._of

    @property
    def floats(self) -> frozenset[str]:
        """The names of entries of a float type."""
        return frozenset(self._floats)

    def rows(self) -> Iterator[tuple[str, ZeroPointGrid | Encoding]]:
        """Every entry; those that nobody has asked for are not made for this."""
        grids: list[ZeroPointGrid | None] = [None] * self.added
        for start, columns in zip(self._starts, self._columns, strict=True):
            grids[start : start + len(columns.bits)] = columns.rows()
        for name, known in self._of.items():
            grid = None if isinstance(known, Encoding) else grids[known]
            yield name, grid if grid is not None else self[name]

    def add(self, names: Sequence[str], columns: GridColumns, is_param: bool | None) -> None:
        """Ordinary entries behind those that are there; ``added`` counts all, two of one name included."""
        self._columns.append(columns)
        self._starts.append(self.added)
        self._params.append(is_param)
        self._of.update(zip(names, range(self.added, self.added + len(names)), strict=True))
        self.added += len(names)

    def add_one(self, entry: Encoding) -> None:
        """An entry that is not ordinary."""
        self._of[entry.name] = entry
        self.added += 1
        if isinstance(entry.value, Float):
            self._floats.add(entry.name)


def read_ordinary(data: bytes) -> tuple[dict[str, Any], LateEntries] | None:
    """The document with empty sections, and the entries; None for what is not plainly in order."""
    tools = _tools()
    if tools is None or b"\\u003a" in data or b"\\u003A" in data:
        return None
    try:
        return _read(tools, data)
    except (tools.msgspec.MsgspecError, InputError, ValueError, RecursionError, OverflowError):
        return None


def _read(tools: _Tools, data: bytes) -> tuple[dict[str, Any], LateEntries] | None:
    parts = tools.parts.decode(data)
    version = _plain_json(parts.get("version", b"null"))
    layout = tools.layouts.get(version) if isinstance(version, str) else None
    if layout is None or not layout.sections.keys() <= parts.keys():
        return None
    document: dict[str, Any] = {}
    entries, colons = LateEntries(), len(parts) + sum(key.count(":") for key in parts)
    for key, raw in parts.items():
        if key in layout.sections:
            document[key] = layout.sections[key]()
            colons += _Section(layout, key == "param_encodings", entries).read(raw, version)
        else:
            document[key] = _plain_json(raw)
            colons += bytes(raw).count(b":")
    whole = colons == data.count(b":") and len(entries) == entries.added and "" not in entries
    return (document, entries) if whole else None


def _plain_json(raw: Any) -> Any:
    """A value; InputError for a key that occurs twice, NaN and infinities."""
    return parse_json(bytes(raw), where="encodings")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Layout:
    """How a version lays out its entries: ``split`` decodes a section into texts, ``many`` a list of ordinary ones.

    ``columns`` are the names and grids of these and how many keys they have; ``one`` reads any other entry.
    """

    sections: Mapping[str, type]
    split: Any
    many: Any
    columns: Callable[[Any], tuple[list[str], GridColumns | None, int]]
    one: Callable[[str, Any, str], tuple[str, Any]]
    named: bool = False


@dataclass(frozen=True, slots=True)
class _Section:
    layout: _Layout
    is_param: bool
    entries: LateEntries

    def read(self, raw: Any, version: str) -> int:
        """Take all entries of a section; how many colons it has, as far as no key of it was lost."""
        layout, split = self.layout, self.layout.split.decode(raw)
        names = list(split) if layout.named else []
        texts = list(split.values()) if layout.named else split
        colons: int = len(names) + sum(name.count(":") for name in names)
        del split
        for first in range(0, len(texts), _AT_ONCE):
            here = slice(first, first + _AT_ONCE)
            colons += self._take(names[here], texts[here], version)
        return colons

    def _take(self, names: list[str], texts: list[Any], version: str) -> int:
        joined: bytes = b"[" + b",".join(texts) + b"]"
        count = joined.count(b":")
        try:
            found, columns, keys = self.layout.columns(self.layout.many.decode(joined))
        except ValueError:  # what msgspec raises is one
            columns = None
        if columns is not None:
            if keys + sum(name.count(":") for name in found) != count:
                raise ValueError("a key occurs twice")
            self.entries.add(names or found, columns, self._said)
            return count
        if len(texts) > 1:
            middle = len(texts) // 2
            parts = ((names[:middle], texts[:middle]), (names[middle:], texts[middle:]))
            return sum(self._take(*part, version) for part in parts)
        name, value = self.layout.one(names[0] if names else "", _plain_json(texts[0]), version)
        self.entries.add_one(Encoding(name=name, value=value, is_param=self._said))
        return count

    @property
    def _said(self) -> bool | None:
        return None if "encodings" in self.layout.sections else self.is_param


@dataclass(frozen=True, slots=True, kw_only=True)
class _Tools:
    msgspec: Any
    parts: Any
    layouts: Mapping[str, _Layout]


@cache
def _tools() -> _Tools | None:
    msgspec = typed_json()
    if msgspec is None:
        return None
    decoder, bits = msgspec.json.Decoder, Annotated[int, msgspec.Meta(ge=2, le=grids.WIDEST)]

    def struct(*fields: Any) -> Any:
        return msgspec.defstruct("Ordinary", fields, forbid_unknown_fields=True, gc=False)

    ends = [(name, float) for name in ("max", "min", "offset", "scale")]
    flag = ("is_symmetric", Literal["True", "False"])
    oldest = struct(("bitwidth", bits), ("dtype", Literal["int"]), flag, *ends)
    pair = [(name, tuple[float]) for name in ("scale", "offset")]
    kinds = (("enc_type", Literal["PER_TENSOR"]), ("dtype", Literal["INT"]))
    older = struct(("name", str), *kinds, ("bw", bits), ("is_sym", bool), *pair)
    zero = ("y_zero_point", float | msgspec.UnsetType, msgspec.UNSET)
    newest = struct(("name", str), ("output_dtype", str), ("y_scale", float), zero)
    lists, named = GenericAlias(list, msgspec.Raw), GenericAlias(dict, (str, msgspec.Raw))
    v06 = _Layout(
        sections=v061.SECTIONS,
        split=decoder(named),
        many=decoder(GenericAlias(list, GenericAlias(tuple, oldest))),
        columns=_of_oldest,
        one=v061.parse_one,
        named=True,
    )
    v10 = _Layout(
        sections=v100.SECTIONS,
        split=decoder(lists),
        many=decoder(GenericAlias(list, older)),
        columns=_of_older,
        one=v100.parse_one,
    )
    v20 = _Layout(
        sections=v200.SECTIONS,
        split=decoder(lists),
        many=decoder(GenericAlias(list, newest)),
        columns=_of_newest,
        one=v200.parse_one,
    )
    layouts = {"0.6.1": v06, "0.6.2": v06, "1.0.0": v10, "2.0.0": v20, "2.1.0": v20}
    return _Tools(msgspec=msgspec, parts=decoder(named), layouts=layouts)


def _of_oldest(items: Sequence[Any]) -> tuple[list[str], GridColumns | None, int]:
    rows = [row for (row,) in items]
    ends = ([row.min for row in rows], [row.max for row in rows])
    signed = [row.is_symmetric == "True" for row in rows]
    columns = offset_columns(
        [row.bitwidth for row in rows], signed, [row.scale for row in rows], [row.offset for row in rows], ends
    )
    return [], columns, 7 * len(rows)


def _of_older(rows: Sequence[Any]) -> tuple[list[str], GridColumns | None, int]:
    scales, offsets = [row.scale[0] for row in rows], [row.offset[0] for row in rows]
    columns = offset_columns([row.bw for row in rows], [row.is_sym for row in rows], scales, offsets)
    return [row.name for row in rows], columns, 7 * len(rows)


def _of_newest(rows: Sequence[Any]) -> tuple[list[str], GridColumns | None, int]:
    types = [_TYPES.get(row.output_dtype) for row in rows]
    known = [kind for kind in types if kind is not None]
    if len(known) < len(rows):
        return [], None, 0
    zeros = [row.y_zero_point if type(row.y_zero_point) is float else None for row in rows]
    columns = zero_point_columns(
        [bits for bits, _ in known],
        [signed for _, signed in known],
        [row.y_scale for row in rows],
        [zero or 0.0 for zero in zeros],
    )
    return [row.name for row in rows], columns, 3 * len(rows) + sum(zero is not None for zero in zeros)


_TYPES = {f"{word}int{bits}": (bits, word == "") for word in ("", "u") for bits in range(2, grids.WIDEST + 1)}
