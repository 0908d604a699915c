"""Helpers for every quantizer's script in its child process: the job, its samples, progress, and the result.

It is copied beside the script and runs in the quantizer's environment, with the standard library and NumPy only.
"""

from __future__ import annotations

import hashlib
import json
import logging
import time
import traceback
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

__all__ = ["ChildJob", "SampleFiles", "main", "with_room"]

Feed = dict[str, Any]


def tell(stage: str, done: int | None = None, of: int | None = None) -> None:
    """Prints one line of progress for the parent process."""
    print(json.dumps({"progress": stage, "done": done, "of": of}), flush=True)


class SampleFiles(Sequence[Feed]):
    """Samples in files, one each, read on access; ``stage`` is the name of their progress."""

    def __init__(self, folder: Path, stage: str = "") -> None:
        self._files = sorted(folder.glob("*.npz"))
        self._stage = stage

    def __len__(self) -> int:
        return len(self._files)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            other = self.named("")
            other._files = self._files[index]
            return other
        with np.load(self._files[index], allow_pickle=False) as arrays:
            return {name: arrays[name] for name in arrays.files}

    def __iter__(self) -> Iterator[Feed]:
        for index in range(len(self)):
            if self._stage:
                tell(self._stage, index, len(self))
            yield self[index]
        if self._stage:
            tell(self._stage, len(self), len(self))

    def named(self, stage: str) -> SampleFiles:
        """The same samples for another stage."""
        other = SampleFiles(Path(), stage)
        other._files = self._files
        return other


class ChildJob:
    """The job in the current folder: its settings, the model's path, samples to calibrate on and to judge on."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.told: Mapping[str, Any] = json.loads((folder / "job.json").read_text("utf-8"))
        self.settings: Mapping[str, Any] = self.told["settings"]
        self.model = folder / "model.onnx"
        self.out = folder / "out"
        self.result: dict[str, Any] = {"versions": {}, "seconds": {}, "notes": []}
        self._since = time.monotonic()

    @property
    def calibration(self) -> SampleFiles:
        """The samples to calibrate on."""
        return SampleFiles(self.folder / "samples", "calibrating")

    @property
    def held_out(self) -> SampleFiles:
        """The samples that calibration never saw."""
        return SampleFiles(self.folder / "held_out", "simulating")

    def stage_done(self, name: str) -> None:
        """Note the seconds since the last stage."""
        now = time.monotonic()
        self.result["seconds"][name] = round(now - self._since, 3)
        self._since = now

    def save_simulated(self, names: Sequence[str], run: Callable[[Feed], Sequence[Any]]) -> None:
        """Saves the outputs of the quantizer's own simulation on the held-out samples, with the model's names."""
        folder = self.out / "simulated"
        folder.mkdir(parents=True, exist_ok=True)
        for index, feed in enumerate(self.held_out):
            np.savez(folder / f"{index:05}.npz", **{f"v{at}": value for at, value in enumerate(run(feed))})
        (folder / "names.json").write_text(json.dumps(list(names)), "utf-8")


def with_room(one: tuple[float, float], other: tuple[float, float]) -> tuple[float, float]:
    """A range for 16 bits from the ranges of both halves of the samples:
    each end is moved out by their difference there.

    Ends that differ are not settled, and 16 bits can spare steps for other data. Bounds and masks are equal and stay.
    """
    lows = sorted(min(0.0, low) for low, _ in (one, other))
    highs = sorted(max(0.0, high) for _, high in (one, other))
    low, high = (end if end == inner else 2 * end - inner for end, inner in (lows, reversed(highs)))
    return low, high


def _watched() -> list[str]:
    """A list that collects all messages logged as errors: a tool that only logs its failure has failed as well.

    Records are seen at their creation, since a logger need not pass them on to the root logger.
    """
    lines = list[str]()
    make = logging.getLogRecordFactory()

    def seen(*given: Any, **named: Any) -> logging.LogRecord:
        record = make(*given, **named)
        if record.levelno >= logging.ERROR:
            lines.append(f"{record.name}: {record.getMessage()}")
        return record

    logging.setLogRecordFactory(seen)
    return lines


def main(work: Callable[[ChildJob], None]) -> int:
    """Decodes images, does the work, and writes ``result.json``. Returns 0 if that says ok, else 1."""
    job = ChildJob(Path.cwd())
    errors = _watched()
    job.out.mkdir(exist_ok=True)
    job.result["ok"] = False
    try:
        _decode(job)
        work(job)
        outputs = sorted(path for path in job.out.rglob("*") if path.is_file())
        job.result["outputs"] = {path.relative_to(job.folder).as_posix(): _digest(path) for path in outputs}
        job.result["ok"] = True
    except Exception as error:
        traceback.print_exc()
        job.result["error"] = f"{type(error).__name__}: {error}"
    job.result["errors_logged"] = errors
    made = job.folder / "result.json.part"
    made.write_text(json.dumps(job.result, indent=1, default=str) + "\n", "utf-8")
    made.replace(job.folder / "result.json")
    return 0 if job.result["ok"] else 1


def _digest(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _decode(job: ChildJob) -> None:
    """Decodes images to samples by their recipe, once."""
    images = job.told.get("images")
    if images is None:
        return
    # It is a copy of deploykit/accuracy/samples/decoding.py; only a job with images needs its imports.
    from decoding import decoded

    for kind in ("samples", "held_out"):
        folder = job.folder / kind
        folder.mkdir(exist_ok=True)
        for index, path in enumerate(images[kind]):
            tell("decoding images", index, len(images[kind]))
            try:
                pixels = decoded(Path(path), images["recipe"])
            except ImportError:
                raise RuntimeError("images need Pillow here (pip install pillow); or give .npz samples") from None
            # numpy.savez takes some names, such as ``file``, for its own arguments.
            stored = zipfile.ZipFile(folder / f"{index:05}.npz", "w")
            with stored as archive, archive.open(f"{images['input']}.npy", "w") as member:
                np.lib.format.write_array(member, pixels)
    job.stage_done("decode")
