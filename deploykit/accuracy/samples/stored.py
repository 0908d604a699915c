"""Samples in files: how many there are by the headers alone, and any of them by its place.

What an array means is decided by the model's inputs, what an image means by its recipe; nothing is guessed from values,
and nothing is made up.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

from deploykit.accuracy.samples.arrays import ArrayHeader, read_arrays, read_headers
from deploykit.accuracy.samples.image_samples import WANTED, can_decode, fed_by_images, images_misfit, read_image
from deploykit.accuracy.samples.inputs import InputSpec, input_specs
from deploykit.accuracy.samples.recipe import ImageRecipe
from deploykit.accuracy.samples.sources import Calibration, load_calibration
from deploykit.errors import InputError, UsageError

if TYPE_CHECKING:
    from deploykit.model.facts import GraphFacts

__all__ = ["Place", "places_in", "places_of", "read_places", "read_samples", "samples_of", "spread"]


@dataclass(frozen=True, slots=True)
class Place:
    """Where one sample lies: the file, its array per input, and which of the samples in those arrays it is.

    Of an image ``recipe`` says how it feeds the one input.
    """

    file: Path
    arrays: tuple[tuple[InputSpec, str], ...]
    index: int
    recipe: ImageRecipe | None = None


def read_samples(source: Path, facts: GraphFacts) -> Iterator[dict[str, Any]]:
    """Every sample as an array per input, of the model's types; raises InputError for the first that does not fit.

    Raises UsageError for a reader, which is code of the user's, and for images where nothing decodes them.
    """
    calibration = load_calibration(source)
    if calibration.kind == "reader":
        raise UsageError(
            f"{source}: a reader is not run here",
            why="deploykit imports no code of the user's",
            next="save the preprocessed samples as .npy or .npz",
        )
    if calibration.kind == "images" and not can_decode():
        raise UsageError(
            f"{source}: images cannot be read here",
            why="Pillow, which decodes them, is not installed",
            next=f"{WANTED}, or save the preprocessed samples as .npy or .npz",
        )
    yield from read_places(places_of(calibration, input_specs(facts)))


def places_of(
    calibration: Calibration, inputs: tuple[InputSpec, ...], *, optional: Collection[str] = frozenset()
) -> tuple[Place, ...]:
    """The samples of arrays or images. Inputs that are ``optional`` may come from elsewhere. Raises InputError."""
    recipe = calibration.recipe
    if recipe is None:
        return tuple(place for file in calibration.files for place in places_in(file, inputs, optional=optional))
    misfit = images_misfit(recipe, inputs, optional=optional)
    fed = fed_by_images(recipe, inputs, optional=optional)
    if misfit or fed is None:
        raise InputError(
            f"{calibration.origin}: {misfit}",
            next="set width, height, layout and input in calibration.toml, or give .npz with an array for each input",
        )
    return tuple(Place(file, ((fed, ""),), 0, recipe) for file in calibration.files)


def samples_of(file: Path, inputs: tuple[InputSpec, ...]) -> Iterator[dict[str, Any]]:
    """All samples of one file, in order."""
    return read_places(places_in(file, inputs))


def places_in(
    file: Path, inputs: tuple[InputSpec, ...], *, optional: Collection[str] = frozenset()
) -> tuple[Place, ...]:
    """The samples of one file, from its headers. Inputs that are ``optional`` may have no array in it.

    Arrays are named after the inputs; a lone one is the only input's. ``<number>:<name>`` keys hold several samples,
    and so do arrays with an extra leading axis or a first axis that is a whole number of times as long as the input's.
    """
    headers = read_headers(file)
    found: list[Place] = []
    for names in _numbered(headers):
        named = _named(file, names, inputs, optional)
        count = _together(file, {spec: headers[key].shape for spec, key in named})
        found += (Place(file, named, index) for index in range(count))
    return tuple(found)


def _numbered(headers: Mapping[str, ArrayHeader]) -> list[dict[str, str]]:
    """The arrays of each sample, by the name they have in it; in the order of their numbers where they have some."""
    if not headers or not all(key.partition(":")[0].isdecimal() and ":" in key for key in headers):
        return [{key: key for key in headers}]
    samples: dict[int, dict[str, str]] = {}
    for key in headers:
        number, _, name = key.partition(":")
        samples.setdefault(int(number), {})[name] = key
    return [samples[number] for number in sorted(samples)]


def _named(
    file: Path, names: Mapping[str, str], inputs: tuple[InputSpec, ...], optional: Collection[str]
) -> tuple[tuple[InputSpec, str], ...]:
    if set(names) == {""} or (len(inputs) == 1 and set(names) == {"arr_0"}):
        wanted = [spec for spec in inputs if len(inputs) == 1 or spec.name not in optional]
        if len(wanted) != 1:
            raise InputError(
                f"{file}: one array, but the model has the inputs {', '.join(spec.name for spec in inputs)}",
                next="save one .npz per sample with an array for each input",
            )
        return ((wanted[0], next(iter(names.values()))),)
    missing = sorted(spec.name for spec in inputs if spec.name not in names and spec.name not in optional)
    if missing:
        raise InputError(
            f"{file}: no array for the input {missing[0]!r}",
            why=f"it has {', '.join(sorted(names))}",
            next="name the arrays after the model's inputs, or say what this one is with --input",
        )
    return tuple((spec, names[spec.name]) for spec in inputs if spec.name in names)


def _together(file: Path, shapes: Mapping[InputSpec, tuple[int, ...]]) -> int:
    """How many samples the arrays hold: as many as the longest; one that holds a single value is fed to all."""
    counts: dict[str, int] = {}
    for spec, shape in shapes.items():
        count = _count(shape, spec)
        if count is None:
            why = f"shape {list(shape)} does not fit the input {spec}"
            raise InputError(f"{file}: {why}", next="save arrays of that shape")
        counts[spec.name] = count
    several = set(counts.values()) - {1}
    if len(several) > 1:
        raise InputError(f"{file}: the inputs have different numbers of samples: {counts}")
    return several.pop() if several else min(1, len(counts))


def _count(shape: tuple[int, ...], spec: InputSpec) -> int | None:
    if spec.fits(shape):
        return 1
    if len(shape) == len(spec.shape) + 1 and spec.fits(shape[1:]):
        return shape[0]
    batch = spec.shape[0] if spec.shape else None
    if batch and len(shape) == len(spec.shape) and shape[0] % batch == 0 and spec.fits((batch, *shape[1:])):
        return shape[0] // batch
    return None


def spread(count: int, most: int) -> tuple[int, ...]:
    """``most`` of ``count`` positions, evenly spaced, the first and the last among them; all where there are fewer."""
    if count <= most:
        return tuple(range(count))
    return tuple(round(step * (count - 1) / (most - 1)) for step in range(most)) if most > 1 else (0,)


def read_places(places: Iterable[Place]) -> Iterator[dict[str, Any]]:
    """The samples at these places; the arrays of a file are read once for places that follow each other."""
    for (file, named, recipe), group in groupby(places, key=lambda place: (place.file, place.arrays, place.recipe)):
        if recipe is not None:
            yield from ({spec.name: read_image(file, recipe, spec) for spec, _ in named} for _ in group)
            continue
        arrays = read_arrays(file, {key for _, key in named})
        for place in group:
            yield {spec.name: _typed(file, _part(arrays[key], spec, place.index), spec) for spec, key in named}


def _part(array: Any, spec: InputSpec, index: int) -> Any:
    if spec.fits(array.shape):
        return array
    if array.ndim == len(spec.shape) + 1:
        return array[index]
    batch = spec.shape[0] or 1
    return array[index * batch : (index + 1) * batch]


def _typed(file: Path, array: Any, spec: InputSpec) -> Any:
    """Floats in the width the model wants, integers where they fit; anything else is refused."""
    import numpy as np

    wanted = spec.numpy_type
    if array.dtype == wanted:
        return np.array(array, order="C")
    if wanted.kind == "V" == array.dtype.kind and array.dtype.itemsize == wanted.itemsize:
        return np.ascontiguousarray(array).view(wanted)  # .npy has no name for the types that ONNX adds
    if array.dtype.kind not in "fiub":
        raise InputError(f"{file}: type {array.dtype} does not fit the input {spec}")
    if array.dtype.kind == "f" and not spec.is_float:
        raise InputError(f"{file}: {array.dtype} for the input {spec} would be cut to integers")
    typed = np.ascontiguousarray(array).astype(wanted)
    if not spec.is_float and not np.array_equal(typed.astype(array.dtype), array):
        raise InputError(f"{file}: values that the type of the input {spec} does not hold")
    return typed
