"""Answers to many constructed cases, whole, in one text file beside the tests; a person has read it."""

import os
import re
from collections.abc import Callable, Iterable, Mapping
from difflib import unified_diff
from pathlib import Path

from deploykit.accuracy.judge.verdict import Verdict

_SMALLEST = re.compile(r"-?\d(?:\.\d+)?e-1\d\b")  # where sums are rounded otherwise, so are these


def check_told(file: Path, cases: Mapping[str, Iterable[str]]) -> None:
    """The file has each case with all its lines. After a change that is wanted: ``DEPLOYKIT_WRITE_GOLDEN=1``."""
    text = _SMALLEST.sub(
        "0", "\n".join("".join(f"{line}\n" for line in (f"# {name}", *lines)) for name, lines in cases.items())
    )
    if os.environ.get("DEPLOYKIT_WRITE_GOLDEN"):
        file.write_text(text, "utf-8")
    different = "\n".join(unified_diff(file.read_text("utf-8").splitlines(), text.splitlines(), lineterm="", n=1))
    assert not different, different


def check_file(file: Path, answer: Callable[[str], Iterable[str]]) -> None:
    """As `check_told`, of a file that is the table itself: each ``# question`` in it is answered again."""
    questions = [line.removeprefix("# ") for line in file.read_text("utf-8").splitlines() if line.startswith("# ")]
    check_told(file, {question: list(answer(question)) for question in questions})


def verdict_lines(verdict: Verdict) -> list[str]:
    """What people are told, then the numbers that do not count, with the reason, and what is known of the whole."""
    silent = (n for n in verdict.numbers if n.passes is None and n.note != "judged as detections")
    notes = [f"  ({number.subject}: {number}; {number.note or number.label})" for number in silent]
    count = [] if verdict.detections is None else [f"  strictly: {verdict.detections}"]
    return [*verdict.lines(), *notes, *count, f"  {verdict.described}, rows lost {verdict.lost:.4g}"]
