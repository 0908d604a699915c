"""The table of tests/lab/evidence/compilers.md from what is recorded; runs nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from releases.cells import RELEASES, Cell

__all__ = ["table"]

_WORDS = {"failed": "fails", "crashed": "dies", "timed-out": "does not end", "declined": "declined"}


def table(cells: Sequence[Cell]) -> str:
    """One line per model; a release without a recorded cell has an empty one."""
    found = {(cell.subject, cell.release): cell for cell in cells}
    lines = [
        f"| model | {' | '.join(RELEASES)} |",
        f"|---|{'---|' * len(RELEASES)}",
    ]
    for subject in dict.fromkeys(cell.subject for cell in cells):
        row = [found.get((subject, release)) for release in RELEASES]
        lines.append(f"| `{subject}` | {' | '.join(map(_words, row))} |")
    return "\n".join(["", *lines, "", *_refusals(cells), ""])


def _words(cell: Cell | None) -> str:
    if cell is None:
        return ""
    if cell.answer == "refused":
        kinds = Counter(kind for _, kind, _ in cell.refused)
        return f"refused: {', '.join(f'{count} {kind}' for kind, count in sorted(kinds.items()))}"
    if cell.answer != "compiled":
        return f"{_WORDS[cell.answer]} {f'({cell.why})' if cell.answer == 'declined' else ''}".strip()
    if cell.worst is None:
        return "wholly, not run"
    unit = "%" if any("%" in name for name in cell.decibels) else " dB"
    return f"{cell.worst:.1f}{unit}"


def _refusals(cells: Iterable[Cell]) -> Iterable[str]:
    """The nodes behind the cells, with the compiler's words; the same of several releases in one line."""
    told: dict[tuple[str, str], list[str]] = {}
    for cell in cells:
        names = ", ".join(f"`{name}` ({kind}{_why(why)})" for name, kind, why in cell.refused[:4])
        more = f" and {len(cell.refused) - 4} more" if len(cell.refused) > 4 else ""
        words = f"{names}{more}" or cell.not_run or (cell.why if cell.answer != "declined" else "")
        if words:
            told.setdefault((cell.subject, words), []).append(cell.release)
    for (subject, words), releases in told.items():
        yield f"* `{subject}`, {', '.join(releases)}: {words}"


def _why(why: str) -> str:
    return f": {why}" if why else ""
