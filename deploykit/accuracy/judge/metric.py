"""The user's own measure of outputs: a Python function or a command, run in a child process with a deadline.

What it is given and must give back is in docs/quantize.md. User code is never imported into this process.
"""

from __future__ import annotations

import json
import math
import re
import shlex
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from deploykit.accuracy.judge.measures import Values
from deploykit.accuracy.samples.arrays import read_arrays, write_arrays
from deploykit.errors import InputError, ToolError, UsageError
from deploykit.system.processes import run

__all__ = ["DEADLINE", "UserMetric", "user_metric"]

DEADLINE = 600.0
"""Seconds that one call may take."""

_CHILD = Path(__file__).with_name("metric_child.py")
_FUNCTION = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")


@dataclass(frozen=True, slots=True, kw_only=True)
class UserMetric:
    """A measure; ``argv`` still holds the places of its files. ``references`` are what the user gave, if anything.

    Of a folder its files are handed over as paths, in the order of their names; of a .npz file one sample per place of
    the first axis. Without them the float model's outputs are the references. ``places`` are those of the samples that
    are measured among the ``count`` samples that the references are for; None for all.
    """

    name: str
    argv: tuple[str, ...]
    is_function: bool
    references: Path | None = None
    deadline: float = DEADLINE
    places: tuple[int, ...] | None = None
    count: int = 0

    def of_some(self, places: Sequence[int], count: int) -> UserMetric:
        """The same measure of some of ``count`` samples: of the references those at the same places are taken."""
        return replace(self, places=tuple(places), count=count)

    def measure(self, outputs: Sequence[Values], reference: Sequence[Values]) -> float:
        """The number for outputs, one mapping per sample in the order of the data, beside the float model's.

        Raises ToolError where the child fails, takes too long or gives no finite number, InputError where the user's
        references are not as many as the samples.
        """
        with tempfile.TemporaryDirectory(prefix="deploykit-metric-") as made:
            folder = Path(made)
            _write(folder / "outputs", outputs)
            places = {"{outputs}": folder / "outputs", "{references}": self._hand_over(folder, reference)}
            argv = list(self.argv)
            for place, path in {**places, "{folder}": folder}.items():
                argv = [word.replace(place, str(path)) for word in argv]
            done = run(argv, timeout=self.deadline)
            last = next((line.strip() for line in reversed(done.tail) if line.strip()), "")
            if done.timed_out:
                raise ToolError(f"--metric {self.name}: took longer than {self.deadline:g} s and was ended")
            if not done.ok:
                why = last or "it said nothing"
                raise ToolError(f"--metric {self.name}: failed with status {done.returncode}", why=why)
            try:
                value = float(json.loads((folder / "result.json").read_text("utf-8")) if self.is_function else last)
            except (OSError, ValueError, TypeError, RecursionError):
                value = math.nan
        if not math.isfinite(value) and self.is_function:
            raise ToolError(f"--metric {self.name}: ended well and left no number", why="it may have ended the program")
        if not math.isfinite(value):
            raise ToolError(
                f"--metric-command {self.name}: its last line is no finite number",
                why=f"it is {last!r}",
                next="print the number alone on the last line of the output",
            )
        return value

    def _hand_over(self, folder: Path, reference: Sequence[Values]) -> Path:
        """Write the references of the samples that are measured; where they are found.

        A command reads the user's own folder or file where all samples are measured, and it may hold any number.
        """
        given, place = self.references, folder / "references"
        if given is None:
            _write(place, reference)
            return place
        if not self.is_function and self.places is None:
            return given.resolve()
        is_folder = given.is_dir()
        files = sorted(path.resolve() for path in given.iterdir() if path.is_file()) if is_folder else []
        rows: list[Any] = files if is_folder else _read_samples(given)
        wanted = len(reference) if self.places is None else self.count
        if len(rows) != wanted:
            raise InputError(
                f"{given}: holds {len(rows)} references for {wanted} samples",
                why="they are matched by their order",
                next="give as many as the data has, and no --samples",
            )
        taken = rows if self.places is None else [rows[at] for at in self.places]
        if self.is_function and is_folder:
            (folder / "references.json").write_text(json.dumps([str(path) for path in taken]), "utf-8")
        elif self.is_function:
            _write(place, taken)
        elif is_folder:
            place.mkdir()
            for path in taken:
                (place / path.name).symlink_to(path)
        else:
            place = place.with_suffix(given.suffix)
            stacked = {name: np.stack([row[name] for row in taken]) for name in taken[0]}
            write_arrays(place, stacked) if given.suffix == ".npz" else np.save(place, stacked[""])
        return place


def user_metric(function: str | None, command: str | None, *, references: Path | None = None) -> UserMetric | None:
    """The measure that was asked for, None for none. Raises UsageError for what is neither a function nor a command."""
    if function is not None and command is not None:
        raise UsageError("--metric and --metric-command: one measure decides", next="leave one out")
    if function is None and command is None:
        if references is not None:
            raise UsageError("--references: nothing reads them", next="give --metric or --metric-command")
        return None
    if references is not None and not references.exists():
        raise InputError(f"{references}: no such file or folder")
    if function is not None:
        if _FUNCTION.fullmatch(function) is None:
            raise UsageError(
                f"--metric {function}: package.module:function is expected", next="--metric scores:accuracy"
            )
        child = (sys.executable, str(_CHILD), function, "{folder}")
        return UserMetric(name=function, argv=child, is_function=True, references=references)
    try:
        argv = tuple(shlex.split(command or ""))
    except ValueError as error:
        raise UsageError(f"--metric-command {command}: cannot be split into words", why=str(error)) from None
    if not argv:
        raise UsageError("--metric-command: is empty")
    if not any("{outputs}" in word for word in argv):
        raise UsageError(
            f"--metric-command {command}: does not say where the outputs go",
            next="write {outputs}, and {references}, where their folders shall stand",
        )
    return UserMetric(name=argv[0], argv=argv, is_function=False, references=references)


def _write(folder: Path, samples: Sequence[Values]) -> None:
    """One .npz per sample, arrays by number: a tensor's name may hold what no member of an archive may."""
    folder.mkdir()
    names = list(samples[0]) if samples else []
    (folder / "names.json").write_text(json.dumps(names), "utf-8")
    for number, values in enumerate(samples):
        arrays: dict[str, Any] = {f"v{place}": values[name] for place, name in enumerate(names)}
        np.savez(folder / f"{number:06}.npz", **arrays)


def _read_samples(path: Path) -> list[Values]:
    arrays = read_arrays(path)
    counts = {array.shape[0] if array.ndim else 0 for array in arrays.values()}
    if len(counts) != 1 or 0 in counts:
        raise InputError(f"{path}: its arrays do not hold the same number of samples along their first axis")
    return [{name: array[number] for name, array in arrays.items()} for number in range(counts.pop())]
