"""Reads the compiler's ``final-vaiml-pass-summary.txt``: the numbers by which a compilation is judged.

The format is that of the logs printed in the examples of repository amd/Vitis-AI, branch 6.3. It judges nothing.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

__all__ = ["SUMMARY", "CompileSummary", "find_summary", "parse_summary"]

SUMMARY = "final-vaiml-pass-summary.txt"
_LINE = re.compile(r"\s*(.+?):\s*([0-9]+(?:\.[0-9]+)?)\s*(?:\(([0-9.]+)%\))?\s*$")


@dataclass(frozen=True, slots=True, kw_only=True)
class CompileSummary:
    """What the compiler says it did; None where its text has no such line."""

    operators: int | None = None
    offloaded: int | None = None
    gops_percent: float | None = None
    subgraphs: int | None = None
    failed_subgraphs: int | None = None
    small_subgraphs: int | None = None


def parse_summary(text: str) -> CompileSummary:
    """The numbers of one summary; unknown lines are left alone."""
    numbers: dict[str, tuple[float, float | None]] = {}
    for line in text.splitlines():
        match = _LINE.match(line)
        if match:
            numbers[match[1]] = (float(match[2]), float(match[3]) if match[3] else None)
    share = next((share for name, (_, share) in numbers.items() if name == "GOPs offloaded by VAIML"), None)
    return CompileSummary(
        operators=_whole(numbers, "Number of operators in the model"),
        offloaded=_whole(numbers, "Number of operators offloaded by VAIML"),
        gops_percent=share,
        subgraphs=_whole(numbers, "Number of subgraphs offloaded by VAIML"),
        failed_subgraphs=_whole(numbers, "with compilation errors"),
        small_subgraphs=_whole(numbers, "GOPs threshold"),
    )


def _whole(numbers: dict[str, tuple[float, float | None]], part: str) -> int | None:
    return next((int(value) for name, (value, _) in numbers.items() if part in name), None)


def find_summary(cache: Path) -> CompileSummary | None:
    """The summary below a cache folder; None when the compiler wrote none."""
    found = sorted(cache.rglob(SUMMARY)) if cache.is_dir() else []
    return parse_summary(found[0].read_text("utf-8", errors="replace")) if found else None
