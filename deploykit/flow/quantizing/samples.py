"""Divides calibration data into what a quantizer sees and what it is judged on, and lays both out for its child.

Arrays become one file per sample; images are only named, as they are decoded where a decoder is.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from deploykit.accuracy.samples.arrays import write_arrays
from deploykit.accuracy.samples.calibration import load_calibration, places_in, read_places, spread
from deploykit.accuracy.samples.images import images_misfit, inspect_image
from deploykit.accuracy.samples.inputs import input_specs
from deploykit.errors import UsageError
from deploykit.packages.writing import hash_file

if TYPE_CHECKING:
    from deploykit.accuracy.samples.calibration import Calibration
    from deploykit.accuracy.samples.inputs import InputSpec
    from deploykit.accuracy.simulate.sessions import Feed
    from deploykit.model.facts import GraphFacts

__all__ = ["MOST_HELD_OUT", "Division", "divide", "read_decoded", "read_held_out"]

MOST_HELD_OUT = 8
"""Samples that are judged on; one in five at most is held out, none of fewer than five."""

_ONE_IN = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Division:
    """The samples of some calibration data, divided. ``held_out`` may be empty: then the seen ones are judged on.

    ``places`` are whatever lies there: places in arrays, or image files.
    """

    calibration: Calibration
    inputs: tuple[InputSpec, ...]
    seen: tuple[Any, ...]
    held_out: tuple[Any, ...]

    @property
    def judged(self) -> tuple[Any, ...]:
        """What is judged on: held out, or else a few of the seen ones."""
        return self.held_out or tuple(self.seen[i] for i in spread(len(self.seen), MOST_HELD_OUT))

    @property
    def judged_at(self) -> tuple[tuple[int, ...], int]:
        """Where those that are judged on stood in the data, and how many there were: for labels in the same order."""
        count = len(self.seen) + len(self.held_out)
        return tuple(sorted(_held_out(count)) if self.held_out else spread(count, MOST_HELD_OUT)), count

    def to_json(self) -> dict[str, Any]:
        """How many there are of what, and the hash of each file; no path of this machine."""
        return {
            "kind": self.calibration.kind,
            "seen": len(self.seen),
            "held_out": len(self.held_out),
            "files": {path.name: hash_file(path)[1] for path in self.calibration.files},
            "recipe": None if self.calibration.recipe is None else self.calibration.recipe.to_json(),
        }

    def images(self) -> dict[str, Any] | None:
        """What the child needs to decode images; None where the samples are arrays."""
        recipe = self.calibration.recipe
        if recipe is None:
            return None
        return {
            "samples": [str(path.resolve()) for path in self.seen],
            "held_out": [str(path.resolve()) for path in self.judged],
            "recipe": recipe.to_json(),
            "input": recipe.input or self.inputs[0].name,
        }

    def write(self, folder: Path) -> None:
        """Arrays as ``samples/NNNNN.npz`` and ``held_out/NNNNN.npz``; nothing for images."""
        if self.calibration.recipe is None:
            _write(folder / "samples", self.seen)
            _write(folder / "held_out", self.judged)


def divide(source: Path, facts: GraphFacts) -> Division:
    """List the samples and choose those to hold out, spread over the data.

    Raises InputError for data that does not fit the model, UsageError for what cannot be read outside a package.
    """
    calibration = load_calibration(source)
    inputs = input_specs(facts)
    if calibration.kind == "reader":
        raise UsageError(
            f"{source}: a reader is not run here",
            why="deploykit imports no code of the user's",
            next="save the preprocessed samples as .npz, or give a folder of images with calibration.toml",
        )
    places: list[Any] = []
    if calibration.kind == "images":
        _check_images(calibration, inputs, source)
        places = list(calibration.files)
    else:
        places = [place for file in calibration.files for place in places_in(file, inputs)]
    if not places:
        raise UsageError(f"{source}: holds no sample")
    held = _held_out(len(places))
    return Division(
        calibration=calibration,
        inputs=inputs,
        seen=tuple(place for at, place in enumerate(places) if at not in held),
        held_out=tuple(places[at] for at in sorted(held)),
    )


def _held_out(count: int) -> set[int]:
    """Positions spread over the data, away from its ends, so that a sorted set is still seen whole."""
    wanted = min(MOST_HELD_OUT, count // _ONE_IN)
    return {round((at + 0.5) * count / wanted) for at in range(wanted)} if wanted else set()


def _check_images(calibration: Calibration, inputs: tuple[InputSpec, ...], source: Path) -> None:
    recipe = calibration.recipe
    assert recipe is not None
    misfit = images_misfit(recipe, inputs)
    if misfit:
        raise UsageError(
            f"{source}: {misfit}",
            next="set width, height and layout in calibration.toml, or give .npz with an array for each input",
        )
    for path in calibration.files:
        inspect_image(path)


def _write(folder: Path, places: Iterable[Any]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for index, feed in enumerate(read_places(places)):
        write_arrays(folder / f"{index:05}.npz", feed)


def read_held_out(folder: Path) -> list[Feed]:
    """The samples that were judged on, decoded."""
    return [_read(path) for path in sorted((folder / "held_out").glob("*.npz"))]


def read_decoded(folder: Path, most: int) -> list[Feed]:
    """At most ``most`` of all samples of a job, spread over those that were seen and those held out."""
    files = [*sorted((folder / "samples").glob("*.npz")), *sorted((folder / "held_out").glob("*.npz"))]
    return [_read(files[at]) for at in spread(len(files), most)]


def _read(path: Path) -> Feed:
    with np.load(path, allow_pickle=False) as arrays:
        return {name: arrays[name] for name in arrays.files}
