"""The user's own measure of outputs: a Python function, run in a child process with a deadline.

What it is given and must give back is in docs/quantize.md. User code is never imported into this process.
"""

from __future__ import annotations

import json
import math
import re
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from deploykit.accuracy.samples.arrays import read_arrays
from deploykit.errors import InputError, ToolError, UsageError
from deploykit.findings.records import Arrays, Record, replace
from deploykit.system.processes import run

__all__ = ["UserMetric", "user_metric"]

_DEADLINE = 600.0
"""Seconds that one call may take."""

_CHILD = Path(__file__).with_name("metric_child.py")
_FUNCTION = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")


class UserMetric(Record):
    """A measure, by the name of its ``function``. ``references`` is a file or folder of the user's, if there is one.

    The files of a folder are handed over as paths, in the order of their names; a .npz file has one sample per place of
    the first axis. Without it the float model's outputs are the references. ``places`` are the positions of the
    measured samples among the ``count`` samples that the references are for; None for all.
    """

    function: str
    references: Path | None
    places: tuple[int, ...] | None = None
    count: int = 0

    def of_some(self, places: Sequence[int], count: int) -> UserMetric:
        """The same measure for some of ``count`` samples; the references at the same places are taken."""
        return replace(self, places=tuple(places), count=count)

    def measure(self, outputs: Sequence[Arrays], reference: Sequence[Arrays]) -> float:
        """The number for outputs, one mapping per sample in the order of the data, beside the float model's.

        Raises ToolError where the child fails, takes too long or gives no finite number, InputError where the user's
        references are not as many as the samples.
        """
        asked = f"--metric {self.function}"
        with tempfile.TemporaryDirectory(prefix="deploykit-metric-") as made:
            folder = Path(made)
            _write(folder / "outputs", outputs)
            self._hand_over(folder, reference)
            done = run([sys.executable, str(_CHILD), self.function, made], timeout=_DEADLINE)
            if done.timed_out:
                raise ToolError(f"{asked}: took longer than {_DEADLINE:g} s and was ended")
            if not done.ok:
                why = next((line.strip() for line in reversed(done.tail) if line.strip()), "it said nothing")
                raise ToolError(f"{asked}: failed with status {done.returncode}", why=why)
            try:
                value = float(json.loads((folder / "result.json").read_text("utf-8")))
            except (OSError, ValueError, TypeError, RecursionError):
                value = math.nan
        if not math.isfinite(value):
            raise ToolError(f"{asked}: ended well and left no number", why="it may have ended the program")
        return value

    def _hand_over(self, folder: Path, reference: Sequence[Arrays]) -> None:
        """Write the references of the samples that are measured."""
        given, rows = self.references, list[Any](reference)
        is_folder = given is not None and given.is_dir()
        if given is not None:
            files = sorted(path.resolve() for path in given.iterdir() if path.is_file()) if is_folder else ()
            rows = [*files] if is_folder else _read_samples(given)
            wanted = len(reference) if self.places is None else self.count
            if len(rows) != wanted:
                raise InputError(
                    f"{given}: holds {len(rows)} references for {wanted} samples",
                    why="they are matched by their order",
                    next="give as many as the data has, and no --samples",
                )
            rows = rows if self.places is None else [rows[at] for at in self.places]
        if is_folder:
            (folder / "references.json").write_text(json.dumps([str(path) for path in rows]), "utf-8")
        else:
            _write(folder / "references", rows)


def user_metric(function: str | None, *, references: Path | None = None) -> UserMetric | None:
    """The measure that was asked for, None where none was. Raises UsageError for a text that names no function."""
    if function is None:
        if references is not None:
            raise UsageError("--references: nothing reads them", next="give --metric")
        return None
    if references is not None and not references.exists():
        raise InputError(f"{references}: no such file or folder")
    if _FUNCTION.fullmatch(function) is None:
        raise UsageError(f"--metric {function}: package.module:function is expected", next="--metric scores:accuracy")
    return UserMetric(function=function, references=references)


def _write(folder: Path, samples: Sequence[Arrays]) -> None:
    """Write one .npz per sample, arrays by number: a tensor's name may hold what no member of an archive may."""
    folder.mkdir()
    names = list(samples[0]) if samples else []
    (folder / "names.json").write_text(json.dumps(names), "utf-8")
    for number, values in enumerate(samples):
        arrays: dict[str, Any] = {f"v{place}": values[name] for place, name in enumerate(names)}
        np.savez(folder / f"{number:06}.npz", **arrays)


def _read_samples(path: Path) -> list[Arrays]:
    arrays = read_arrays(path)
    counts = {array.shape[0] if array.ndim else 0 for array in arrays.values()}
    if len(counts) != 1 or 0 in counts:
        raise InputError(f"{path}: its arrays do not hold the same number of samples along their first axis")
    return [{name: array[number] for name, array in arrays.items()} for number in range(counts.pop())]
