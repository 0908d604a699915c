"""Looks through calibration data once and notes what the guidelines ask about; it judges nothing."""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

from deploykit.accuracy.samples.image_samples import images_misfit
from deploykit.accuracy.samples.images import inspect_image
from deploykit.accuracy.samples.inputs import InputSpec
from deploykit.accuracy.samples.sources import Calibration
from deploykit.accuracy.samples.stored import samples_of
from deploykit.errors import InputError
from deploykit.system.files import read_regular

__all__ = ["Survey", "survey", "survey_of_random_data"]

_SKETCH = 4096
_FRAME_WORDS = re.compile(r"frame|video|clip|vid|seq|cam", re.IGNORECASE)
_NUMBERED = re.compile(r"(.*?)(\d+)$")


@dataclass(frozen=True, slots=True, kw_only=True)
class Survey:
    """What was seen. ``unusable`` are (file, why); ``identical`` are groups of equal samples by name.

    ``neighbours`` is the median correlation of samples that follow each other, None where it was not measured;
    ``numbered_frames`` tells that the file names count frames without gaps, and that nothing better was measured.
    ``misfit`` is an image recipe whose result does not fit the model.
    """

    kind: str
    origin: str
    samples: int
    unusable: tuple[tuple[str, str], ...] = ()
    identical: tuple[tuple[str, ...], ...] = ()
    constant: tuple[str, ...] = ()
    not_finite: tuple[str, ...] = ()
    neighbours: float | None = None
    numbered_frames: bool = False
    labels: Mapping[str, int] = field(default_factory=dict)
    misfit: str = ""

    def to_json(self) -> dict[str, Any]:
        """Plain values, for a package's record."""
        return {
            "kind": self.kind,
            "origin": self.origin,
            "samples": self.samples,
            "unusable": [list(pair) for pair in self.unusable],
            "labels": dict(self.labels),
        }


def survey_of_random_data() -> Survey:
    """The survey of data that does not exist: random values made by the quantizer."""
    return Survey(kind="random", origin="random data", samples=0)


def survey(calibration: Calibration, inputs: tuple[InputSpec, ...]) -> Survey:
    """Look at every file of ``calibration`` once; a user's reader cannot be looked at without running it."""
    if calibration.kind == "images":
        return _images(calibration, inputs)
    if calibration.kind == "arrays":
        return _arrays(calibration, inputs)
    return Survey(kind=calibration.kind, origin=calibration.origin, samples=0)


def _images(calibration: Calibration, inputs: tuple[InputSpec, ...]) -> Survey:
    unusable, usable, digests = [], [], {}
    for path in calibration.files:
        try:
            inspect_image(path)
        except InputError as error:
            unusable.append((path.name, error.why or error.what))
            continue
        usable.append(path)
        digests[path.name] = hashlib.sha256(read_regular(path)).hexdigest()
    return Survey(
        kind="images",
        origin=calibration.origin,
        samples=len(usable),
        unusable=tuple(unusable),
        identical=_groups(digests),
        numbered_frames=_counts_frames(usable),
        labels=Counter(calibration.labels.values()),
        misfit="" if calibration.recipe is None else images_misfit(calibration.recipe, inputs),
    )


@dataclass(slots=True)
class _Notes:
    """What is gathered sample by sample."""

    digests: dict[str, str] = field(default_factory=dict)
    constant: list[str] = field(default_factory=list)
    not_finite: list[str] = field(default_factory=list)
    correlations: list[float] = field(default_factory=list)
    last: Any = None


def _arrays(calibration: Calibration, inputs: tuple[InputSpec, ...]) -> Survey:
    notes, unusable = _Notes(), []
    for path in calibration.files:
        try:
            for index, sample in enumerate(samples_of(path, inputs)):
                _note(notes, f"{path.name}[{index}]", sample)
        except InputError as error:
            unusable.append((path.name, f"{error.what.removeprefix(f'{path}: ')} {error.why}".strip()))
    return Survey(
        kind="arrays",
        origin=calibration.origin,
        samples=len(notes.digests),
        unusable=tuple(unusable),
        identical=_groups(notes.digests),
        constant=tuple(notes.constant),
        not_finite=tuple(notes.not_finite),
        neighbours=median(notes.correlations) if notes.correlations else None,
        numbered_frames=not notes.correlations and _counts_frames(calibration.files),
        labels=Counter(calibration.labels.values()),
    )


def _note(notes: _Notes, name: str, sample: Mapping[str, Any]) -> None:
    import numpy as np

    digest = hashlib.sha256()
    for value in sample.values():
        digest.update(value.tobytes())
    notes.digests[name] = digest.hexdigest()
    first = next(iter(sample.values())).astype(np.float64).ravel()
    if not np.isfinite(first).all():
        notes.not_finite.append(name)
        return
    if first.size > 1 and float(first.min()) == float(first.max()):
        notes.constant.append(name)
    sketch = first[:: max(1, first.size // _SKETCH)]
    sketch = sketch - sketch.mean()
    if notes.last is not None and notes.last.shape == sketch.shape:
        length = float(np.linalg.norm(sketch) * np.linalg.norm(notes.last))
        notes.correlations.append(float(sketch @ notes.last) / length if length else 0.0)
    notes.last = sketch


def _groups(digests: Mapping[str, str]) -> tuple[tuple[str, ...], ...]:
    by_digest: dict[str, list[str]] = {}
    for name, digest in digests.items():
        by_digest.setdefault(digest, []).append(name)
    return tuple(tuple(names) for names in by_digest.values() if len(names) > 1)


def _counts_frames(files: Sequence[Path]) -> bool:
    """True when the names speak of frames and count on without gaps."""
    numbers = list(_frame_numbers(files))
    steps = [b - a for a, b in pairwise(numbers)]
    return len(numbers) == len(files) >= 8 and steps.count(1) >= 0.9 * len(steps)


def _frame_numbers(files: Sequence[Path]) -> Iterator[int]:
    for path in files:
        match = _NUMBERED.match(path.stem)
        if match is not None and (_FRAME_WORDS.search(match[1]) or _FRAME_WORDS.search(path.parent.name)):
            yield int(match[2])
