"""The tables of tests/lab/evidence/witnesses.md, from the data file beside the atlas. It compares nothing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

__all__ = ["differences", "figures", "write_page"]


def write_page(page: Path, found: Mapping[str, Any]) -> None:
    """Both tables of the page again; what stands around them stays."""
    text = page.read_text("utf-8")
    for name, lines in (("figures", figures(found)), ("differences", differences(found))):
        head, mark, tail = text.partition(f"<!-- {name} -->\n")
        text = head + mark + "\n".join(lines) + tail[tail.index("\n<!-- end -->") :]
    page.write_text(text, "utf-8")


def figures(found: Mapping[str, Any]) -> Iterator[str]:
    """A line per witness."""
    yield "| witness | licence | what | compared | agree | of these, both refuse | open | differ | not measured |"
    yield "|---|---|---|---|---|---|---|---|---|"
    for one in found["witness"]:
        counts = (str(one[name]) for name in ("compared", "agree", "both_refuse", "open", "differ", "not_measured"))
        yield f"| {one['name']} | {one['licence']} | {one['what']} | {' | '.join(counts)} |"


def differences(found: Mapping[str, Any]) -> Iterator[str]:
    """A line per difference."""
    sweep = found["sweep"]
    yield f"| witness | operator | type | of | it says | measured (QAIRT {sweep['sdk']}, soc_model {sweep['soc']}) |"
    yield "|---|---|---|---|---|---|"
    for one in found["differ"]:
        told = f"{one['says']} taken" if " of " in one["says"] else one["says"]
        measured = one["measured"] if one["measured"].endswith("off") else f"{one['measured']} taken"
        yield f"| {one['witness']} | {one['op']} | {one['kind']} | {one['about']} | {told} | {measured} |"
