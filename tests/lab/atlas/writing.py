"""Writes rows and costs as the data files of the atlas, in an order that does not change; it draws no conclusion."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from msgspec.structs import fields

from deploykit_ort_qnn.compat import DATA, KernelCell, recorded
from deploykit_qualcomm.atlas.rows import (
    COSTS,
    FILES,
    FOLDER,
    PLACES,
    KernelCost,
    MeasuredPlace,
    Row,
    atlas_rows,
    costs,
    places,
)

__all__ = ["keep", "write_costs", "write_place", "write_rows", "write_stated"]

_HEAD = """# Written by `python -m atlas fold` (tests/lab): conditions drawn from measurements, each with the case that
# shows it.
"""
_STATED_HEAD = (
    "# Conditions are stated by what the kernel does; `python -m atlas fold` (tests/lab) counts the cases of each.\n"
)
_EMPTY: tuple[Any, ...] = ("", 0, 0.0, {}, ())


def write_rows(rows: Iterable[Row], *, sdk: str, folder: Path = FOLDER) -> None:
    """One file per verdict, by operator; rows of other releases stay, and stated ones."""
    kept = [row for row in atlas_rows(folder) if row.sdk != sdk and not row.mechanism]
    folder.mkdir(parents=True, exist_ok=True)
    ordered = sorted((*kept, *rows), key=lambda row: (row.op, row.sdk, row.types, -row.hit))
    for verdict in FILES[:-1]:
        text = "".join(_table_of_row(row) for row in ordered if row.verdict == verdict)
        (folder / f"{verdict}.toml").write_text(_HEAD + text, "utf-8")
    atlas_rows.cache_clear()


def write_stated(rows: Iterable[Row], folder: Path = FOLDER) -> None:
    """The whole file, in the order of the rows."""
    (folder / f"{FILES[-1]}.toml").write_text(_STATED_HEAD + "".join(map(_table_of_row, rows)), "utf-8")
    atlas_rows.cache_clear()


def write_costs(found: Iterable[KernelCost], path: Path = COSTS) -> None:
    """The whole file."""
    head = (
        "# Written by `python -m atlas fold` (tests/lab): steps that the middle form of an operator is off, by type.\n"
    )
    lines = "".join(
        f"    {{ {', '.join(f'{name} = {_text(value)}' for name, value in _values(one))} }},\n" for one in found
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"{head}cost = [\n{lines}]\n", "utf-8")
    costs.cache_clear()


def write_place(place: MeasuredPlace, path: Path = PLACES) -> None:
    """The whole file, with this place instead of what it held of it."""
    held = places(path) if path.exists() else ()
    others = [one for one in held if (one.sdk, one.soc) != (place.sdk, place.soc)]
    head = (
        "# Written by `python -m atlas rows RELEASE --soc N` (tests/lab): the case of every row, run there;\n"
        "# with `cases RELEASE FILE` those of the sweep that the conditions were drawn from, and as many right ones.\n"
    )
    ordered = sorted((*others, place), key=lambda one: (one.sdk, one.soc), reverse=True)
    path.write_text(head + "".join(map(_table_of_place, ordered)), "utf-8")
    places.cache_clear()


def _table_of_place(place: MeasuredPlace) -> str:
    numbers = {"sdk": place.sdk, "soc": place.soc, "asked": place.asked}
    numbers |= {"drawn": place.drawn} if place.drawn else {}
    told = f"\n[[place]]\n{''.join(_assigned(numbers.items()))}\n[place.otherwise]\n{_by_case(place.otherwise)}"
    return f"{told}\n[place.turned]\n{_by_case(place.turned)}" if place.turned else told


def _by_case(verdicts: Mapping[str, str]) -> str:
    return "".join(f"{_text(case)} = {_text(verdict)}\n" for case, verdict in sorted(verdicts.items()))


def _table_of_row(row: Row) -> str:
    return f"\n[[row]]\n{''.join(_assigned(_values(row)))}"


def _values(one: Row | KernelCost) -> Iterator[tuple[str, Any]]:
    for field in fields(one):
        value = getattr(one, field.name)
        if value not in _EMPTY or isinstance(one, KernelCost):
            yield field.name, value


def _assigned(values: Iterable[tuple[str, Any]]) -> Iterator[str]:
    for name, value in values:
        yield f"{name} = {_text(value)}\n"


def _text(value: Any) -> str:
    if isinstance(value, tuple):
        return f"[{', '.join(map(_text, value))}]"
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{json.dumps(name)} = {_text(inner)}" for name, inner in value.items()) + " }"
    return json.dumps(value, ensure_ascii=False) if isinstance(value, str) else str(value)


def keep(cells: Iterable[KernelCell], path: Path = DATA) -> None:
    """Put cells in the place of those with the same form, type and release."""
    merged = {_key(cell): cell for cell in (*(recorded(path) if path.exists() else ()), *cells)}
    lines: dict[tuple[str, str, str], dict[str, Any]] = {}
    for key in sorted(merged):
        cell = merged[key]
        line = lines.setdefault(key[:3], {"op": cell.op, "form": cell.form, "type": cell.type, "releases": {}})
        line["releases"][cell.release] = _short(cell)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{json.dumps(line, ensure_ascii=False)}\n" for line in lines.values()), "utf-8")
    recorded.cache_clear()


def _key(cell: KernelCell) -> tuple[str, str, str, tuple[int, ...]]:
    return cell.op, cell.form, cell.type, tuple(map(int, cell.release.split(".")))


def _short(cell: KernelCell) -> float | str:
    """A number for what was taken and ran, else the answer and the compiler's words."""
    if cell.answer == "taken" and cell.decibels is not None:
        return cell.decibels
    return f"{cell.answer}: {cell.why}" if cell.why else cell.answer
