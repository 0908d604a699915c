"""``deploykit cache``: what is kept between runs, and clearing it."""

from __future__ import annotations

import click

from deploykit.cli.frame import Group
from deploykit.cli.output import emit, table
from deploykit.system.remembered import Room, cache_folder, clear, limit, rooms

__all__ = ["command"]


@click.group(cls=Group)
def command() -> None:
    """What is kept between runs, by a hash of everything it depends on: deleting it costs time and no more.

    It lies in the user's cache folder (XDG_CACHE_HOME is honoured), or where DEPLOYKIT_CACHE says, and takes at most
    DEPLOYKIT_CACHE_LIMIT bytes (2 GiB); what was not used for the longest time goes first.
    """


@command.command("info")
def info() -> None:
    """What is kept, by kind, and how large it is."""
    found = rooms()
    kept = {"folder": str(cache_folder()), "limit": limit(), "kinds": [room.to_json() for room in found]}
    emit(kept, lambda: f"{cache_folder()}\n{_text(found)}")


@command.command("clear")
@click.argument("kind", required=False)
def clear_(kind: str | None) -> None:
    """Delete what is kept of one KIND, or everything."""
    gone = clear(kind)
    text = f"{sum(room.entries for room in gone)} entries, {_size(gone)} are gone"
    emit({"folder": str(cache_folder()), "cleared": [room.to_json() for room in gone]}, text)


def _text(found: tuple[Room, ...]) -> str:
    if not found:
        return "nothing is kept"
    rows = [(room.kind, str(room.entries), _size((room,))) for room in found]
    total = f"{_size(found)} of at most {limit() / 1e6:,.0f} MB"
    return f"{table(rows, header=('KIND', 'ENTRIES', 'SIZE'))}\n{total}"


def _size(found: tuple[Room, ...]) -> str:
    return f"{sum(room.bytes for room in found) / 1e6:,.1f} MB"
