"""Judges the blocks of public issues without what their own tracker taught: ``python tests/lab/trackers.py``."""

from __future__ import annotations

import io
import sys
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

from msgspec.structs import replace

sys.path.insert(0, str(Path(__file__).parents[1] / "answers"))
from test_known_errors import (  # type: ignore[import-not-found]  # no package
    EVERY,
    ISSUES,
    STRENGTHS,
    answer,
    is_foreign,
    judged,
)

from deploykit.answers.diagnosis.collecting import collect
from deploykit.tables.known_errors import KnownError

Wording = tuple[str, str, str]
TRACKERS = {block.url: "/".join(block.url.split("/")[3:5]).lower() for block in ISSUES}
"""Owner and repository of each block."""


def seen_by() -> dict[Wording, set[str]]:
    """The trackers in whose blocks each wording stands, by cause, strength and wording."""
    parts = {
        f"{row.id}|{strength}|{text}": replace(row, symptom=" ", **{s: (text,) * (s == strength) for s in STRENGTHS})
        for row in EVERY.errors
        for strength in STRENGTHS
        for text in getattr(row, strength)
    }
    catalog = replace(EVERY, errors=tuple(replace(row, id=name) for name, row in parts.items()))
    found: dict[Wording, set[str]] = defaultdict(set)
    for block in ISSUES:
        for name in collect(io.BytesIO(block.text.encode()), catalog).errors:
            row, strength, text = name.split("|", 2)
            found[row, strength, text].add(TRACKERS[block.url])
    return found


def reached_by() -> dict[Wording, set[str]]:
    """The trackers whose blocks get a cause by each event, where no row has any wording."""
    bare: dict[str, Any] = dict.fromkeys(STRENGTHS, ())
    parts = [
        replace(row, id=f"{row.id}|events|{text}", symptom=" ", events=(text,), **bare)
        for row in EVERY.errors
        for text in row.events
    ]
    found: dict[Wording, set[str]] = defaultdict(set)
    for block in ISSUES:
        for cause in answer(block.text, replace(EVERY, errors=tuple(parts))).causes:
            if cause.error.id.count("|events|"):
                row, strength, text = cause.error.id.split("|", 2)
                found[row, strength, text].add(TRACKERS[block.url])
    return found


def main() -> None:
    """Without the causes that only the tracker speaks of; then also without the wordings that only its blocks have;
    then also without the events that only its blocks reach, for whoever wrote them had seen these logs.
    """
    seen, reached = seen_by(), reached_by()

    def rest(row: KnownError, tracker: str, left_out: dict[Wording, set[str]]) -> KnownError:
        kept: dict[str, Any] = {
            s: tuple(t for t in getattr(row, s) if left_out.get((row.id, s, t)) != {tracker})
            for s in (*STRENGTHS, "events")
        }
        return replace(row, symptom=" ", **kept)

    for words in ({}, seen, seen | reached):
        verdicts: Counter[str] = Counter()
        for tracker in sorted({TRACKERS[block.url] for block in ISSUES if not is_foreign(block)}):
            rows = [row for row in EVERY.errors if not all(s.lower().startswith(f"{tracker}#") for s in row.source)]
            rows = [rest(row, tracker, words) for row in rows] if words else rows
            catalog = replace(EVERY, errors=tuple(row for row in rows if row.patterns or row.events or not words))
            blocks = (block for block in ISSUES if TRACKERS[block.url] == tracker and not is_foreign(block))
            verdicts.update(judged(block, catalog) for block in blocks)
        print(dict(verdicts), f"{verdicts['right'] / verdicts.total():.1%}")


if __name__ == "__main__":
    main()
