"""Writes rows and costs as the data files of the atlas, in an order that does not change; it draws no conclusion."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from deploykit_qualcomm.atlas.elsewhere import PLACES, Place, places
from deploykit_qualcomm.atlas.rows import FOLDER, STATED, Row, atlas_rows
from deploykit_qualcomm.atlas.verdicts import COSTS, Cost, costs

__all__ = ["write_costs", "write_place", "write_rows", "write_stated"]

_HEAD = "# Written by `deploykit atlas fold`: conditions drawn from measurements, each with the case that shows it.\n"
_STATED_HEAD = "# Conditions are stated by what the kernel does; `deploykit atlas fold` counts the cases of each.\n"
_EMPTY: tuple[Any, ...] = ("", 0, 0.0, {}, ())


def write_rows(rows: Iterable[Row], *, sdk: str, folder: Path = FOLDER) -> None:
    """One file per operator; rows of other releases stay, and stated ones, which are not drawn from cases."""
    kept = [row for row in atlas_rows(folder) if row.sdk != sdk and not row.mechanism] if folder.exists() else []
    by_operator: dict[str, list[Row]] = {}
    for row in (*kept, *rows):
        by_operator.setdefault(row.op, []).append(row)
    folder.mkdir(parents=True, exist_ok=True)
    for path in folder.glob("*.toml"):
        path.unlink()
    for op, found in sorted(by_operator.items()):
        ordered = sorted(found, key=lambda row: (row.sdk, row.verdict != "wrong", row.verdict, row.types, -row.hit))
        (folder / f"{op}.toml").write_text(_HEAD + "".join(map(_table_of_row, ordered)), "utf-8")
    atlas_rows.cache_clear()


def write_stated(rows: Iterable[Row], folder: Path = STATED) -> None:
    """One file per operator, in the order of the rows."""
    by_operator: dict[str, list[Row]] = {}
    for row in rows:
        by_operator.setdefault(row.op, []).append(row)
    for op, found in by_operator.items():
        (folder / f"{op}.toml").write_text(_STATED_HEAD + "".join(map(_table_of_row, found)), "utf-8")
    atlas_rows.cache_clear()


def write_costs(found: Iterable[Cost], path: Path = COSTS) -> None:
    """The whole file."""
    head = "# Written by `deploykit atlas fold`: steps that the middle form of an operator is off, by type.\n"
    lines = [f"\n[[cost]]\n{''.join(_assigned(_values(one)))}" for one in found]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(head + "".join(lines), "utf-8")
    costs.cache_clear()


def write_place(place: Place, path: Path = PLACES) -> None:
    """The whole file, with this place instead of what it held of it."""
    held = places(path) if path.exists() else ()
    others = [one for one in held if (one.sdk, one.soc) != (place.sdk, place.soc)]
    head = (
        "# Written by `python -m deploykit_ort_qnn.atlas RELEASE --rows --soc N`: the case of every row, run there;\n"
        "# with `--cases FILE` those of the sweep that the conditions were drawn from, and as many that are right.\n"
    )
    ordered = sorted((*others, place), key=lambda one: (one.sdk, one.soc), reverse=True)
    path.write_text(head + "".join(map(_table_of_place, ordered)), "utf-8")
    places.cache_clear()


def _table_of_place(place: Place) -> str:
    numbers = {"sdk": place.sdk, "soc": place.soc, "asked": place.asked}
    numbers |= {"drawn": place.drawn} if place.drawn else {}
    told = f"\n[[place]]\n{''.join(_assigned(numbers.items()))}\n[place.otherwise]\n{_by_case(place.otherwise)}"
    return f"{told}\n[place.turned]\n{_by_case(place.turned)}" if place.turned else told


def _by_case(verdicts: Mapping[str, str]) -> str:
    return "".join(f"{_text(case)} = {_text(verdict)}\n" for case, verdict in sorted(verdicts.items()))


def _table_of_row(row: Row) -> str:
    return f"\n[[row]]\n{''.join(_assigned(_values(row)))}"


def _values(one: Row | Cost) -> Iterator[tuple[str, Any]]:
    for field in fields(one):
        value = getattr(one, field.name)
        if value not in _EMPTY or isinstance(one, Cost):
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
