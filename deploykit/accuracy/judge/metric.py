"""The user's own measure of outputs: a Python function or a command, run in a child process with a deadline.

What it is given and must give back is in docs/metrics.md. User code is never imported into this process.
"""

from __future__ import annotations

import json
import math
import re
import shlex
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from deploykit.accuracy.samples.arrays import read_arrays, write_arrays
from deploykit.errors import InputError, ToolError, UsageError
from deploykit.system.processes import ProgramEnd, run

if TYPE_CHECKING:
    import numpy.typing as npt

__all__ = ["DEADLINE", "UserMetric", "user_metric"]

DEADLINE = 600.0
"""Seconds that one call may take."""

_CHILD = Path(__file__).with_name("metric_child.py")
_FUNCTION = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")
_PLACES = ("{outputs}", "{references}")
_T = TypeVar("_T")


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

    def measure(
        self, outputs: Sequence[Mapping[str, npt.NDArray[Any]]], reference: Sequence[Mapping[str, npt.NDArray[Any]]]
    ) -> float:
        """The number for outputs, one mapping per sample in the order of the data, beside the float model's.

        Raises ToolError where the child fails, takes too long or gives no finite number, InputError where the user's
        references are not as many as the samples.
        """
        with tempfile.TemporaryDirectory(prefix="deploykit-metric-") as made:
            folder = Path(made)
            _write(folder / "outputs", outputs)
            self._write_references(folder, reference)
            places = {"{outputs}": str(folder / "outputs"), "{references}": self._place(folder), "{folder}": made}
            argv = [_filled(word, places) for word in self.argv]
            done = run(argv, timeout=self.deadline)
            self._check(done)
            return self._number(folder, done)

    def _place(self, folder: Path) -> str:
        """Where a command finds the references: the user's own folder or file, else what was written for it."""
        if self.references is None or self.places is not None:
            return str(next(folder.glob("references*")))
        return str(self.references.resolve())

    def _write_references(self, folder: Path, reference: Sequence[Mapping[str, npt.NDArray[Any]]]) -> None:
        if self.references is None:
            _write(folder / "references", reference)
        elif self.references.is_dir():
            files = sorted(path.resolve() for path in self.references.iterdir() if path.is_file())
            self._hand_files(folder, self._taken(files, len(reference)))
        elif self.is_function:
            _write(folder / "references", self._taken(_read_samples(self.references), len(reference)))
        elif self.places is not None:
            rows = self._taken(_read_samples(self.references), len(reference))
            _write_stacked(folder / f"references{self.references.suffix}", rows)

    def _hand_files(self, folder: Path, files: Sequence[Path]) -> None:
        """A function is given paths; a command the user's folder, or one with the files that are measured."""
        if self.is_function:
            (folder / "references.json").write_text(json.dumps([str(path) for path in files]), "utf-8")
        elif self.places is not None:
            (folder / "references").mkdir()
            for path in files:
                (folder / "references" / path.name).symlink_to(path)

    def _taken(self, given: Sequence[_T], measured: int) -> Sequence[_T]:
        """Those of the samples that are measured; a command that reads all of them itself may have any number."""
        wanted = measured if self.places is None else self.count
        if len(given) != wanted and (self.is_function or self.places is not None):
            raise InputError(
                f"{self.references}: holds {len(given)} references for {wanted} samples",
                why="they are matched by their order",
                next="give as many as the data has, and no --samples",
            )
        return given if self.places is None else [given[place] for place in self.places]

    def _check(self, done: ProgramEnd) -> None:
        if done.timed_out:
            raise ToolError(f"--metric {self.name}: took longer than {self.deadline:g} s and was ended")
        if not done.ok:
            said = next((line for line in reversed(done.tail) if line.strip()), "it said nothing")
            raise ToolError(f"--metric {self.name}: failed with status {done.returncode}", why=said)

    def _number(self, folder: Path, done: ProgramEnd) -> float:
        if self.is_function:
            return self._left_by_child(folder)
        last = next((line.strip() for line in reversed(done.tail) if line.strip()), "")
        try:
            value = float(last)
        except ValueError:
            value = math.nan
        if not math.isfinite(value):
            raise ToolError(
                f"--metric-command {self.name}: its last line is no finite number",
                why=f"it is {last!r}",
                next="print the number alone on the last line of the output",
            )
        return value

    def _left_by_child(self, folder: Path) -> float:
        try:
            value = float(json.loads((folder / "result.json").read_text("utf-8")))
        except (OSError, ValueError, TypeError, RecursionError):
            value = math.nan
        if not math.isfinite(value):
            raise ToolError(f"--metric {self.name}: ended well and left no number", why="it may have ended the program")
        return value


def user_metric(
    function: str | None, command: str | None, *, references: Path | None = None, deadline: float = DEADLINE
) -> UserMetric | None:
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
        argv = (sys.executable, str(_CHILD), function, "{folder}")
        return UserMetric(name=function, argv=argv, is_function=True, references=references, deadline=deadline)
    return _command(command or "", references, deadline)


def _command(text: str, references: Path | None, deadline: float) -> UserMetric:
    try:
        argv = tuple(shlex.split(text))
    except ValueError as error:
        raise UsageError(f"--metric-command {text}: cannot be split into words", why=str(error)) from None
    if not argv:
        raise UsageError("--metric-command: is empty")
    if not any(_PLACES[0] in word for word in argv):
        raise UsageError(
            f"--metric-command {text}: does not say where the outputs go",
            next="write {outputs}, and {references}, where their folders shall stand",
        )
    return UserMetric(name=argv[0], argv=argv, is_function=False, references=references, deadline=deadline)


def _filled(word: str, places: Mapping[str, str]) -> str:
    for place, value in places.items():
        word = word.replace(place, value)
    return word


def _write(folder: Path, samples: Sequence[Mapping[str, npt.NDArray[Any]]]) -> None:
    """One .npz per sample, arrays by number: a tensor's name may hold what no member of an archive may."""
    import numpy as np

    folder.mkdir()
    names = list(samples[0]) if samples else []
    (folder / "names.json").write_text(json.dumps(names), "utf-8")
    for number, values in enumerate(samples):
        arrays: dict[str, Any] = {f"v{place}": values[name] for place, name in enumerate(names)}
        np.savez(folder / f"{number:06}.npz", **arrays)


def _write_stacked(path: Path, rows: Sequence[Mapping[str, npt.NDArray[Any]]]) -> None:
    """As ``_read_samples`` reads it."""
    import numpy as np

    stacked = {name: np.stack([row[name] for row in rows]) for name in rows[0]}
    if path.suffix == ".npz":
        write_arrays(path, stacked)
    else:
        np.save(path, stacked[""])


def _read_samples(path: Path) -> list[dict[str, npt.NDArray[Any]]]:
    arrays = read_arrays(path)
    counts = {array.shape[0] if array.ndim else 0 for array in arrays.values()}
    if len(counts) != 1 or 0 in counts:
        raise InputError(f"{path}: its arrays do not hold the same number of samples along their first axis")
    return [{name: array[number] for name, array in arrays.items()} for number in range(counts.pop())]
