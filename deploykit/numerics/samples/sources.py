"""What the user gave as calibration data: a folder of images, .npy or .npz files, or a reader ``module:Class``.

Files are listed and read one at a time; a user's reader is never imported here, only named.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from deploykit.errors import InputError, UsageError
from deploykit.graph.facts import GraphFacts
from deploykit.numerics.samples.arrays import ARRAY_SUFFIXES, read_arrays
from deploykit.numerics.samples.images import IMAGE_SUFFIXES
from deploykit.numerics.samples.recipe import RECIPE_FILE, ImageRecipe, read_recipe

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

__all__ = ["Calibration", "InputSpec", "Sample", "input_specs", "load_calibration", "read_samples", "samples_of"]

Sample = Mapping[str, "npt.NDArray[np.generic]"]
"""One sample: an array per input."""

_READER = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")
_NUMPY_NAMES = {"float": "float32", "double": "float64"}
LABELS_FILE = "labels.csv"


@dataclass(frozen=True, slots=True, kw_only=True)
class InputSpec:
    """One input of the model: its NumPy type, and its shape with None where a dimension is not a number."""

    name: str
    dtype: str
    shape: tuple[int | None, ...]

    def fits(self, shape: tuple[int, ...]) -> bool:
        """True when an array of this shape can be fed."""
        return len(shape) == len(self.shape) and all(w in (None, s) for w, s in zip(self.shape, shape, strict=True))

    def __str__(self) -> str:
        return f"{self.name} {self.dtype}[{','.join('?' if d is None else str(d) for d in self.shape)}]"


def input_specs(facts: GraphFacts) -> tuple[InputSpec, ...]:
    """The inputs of a graph; raises InputError for one whose rank is not known."""
    return tuple(_input_spec(facts, name) for name in facts.inputs)


def _input_spec(facts: GraphFacts, name: str) -> InputSpec:
    fact = facts.tensors[name]
    if fact.shape is None:
        raise InputError(f"input {name!r} has no known rank", next="fix the model's input shapes")
    shape = tuple(dim if isinstance(dim, int) else None for dim in fact.shape)
    return InputSpec(name=name, dtype=_NUMPY_NAMES.get(fact.dtype, fact.dtype), shape=shape)


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """Calibration data by kind: ``arrays``, ``images`` (with a recipe) or ``reader`` (``module:Class``).

    ``labels`` maps a file to its class where the user gave labels (``labels.csv``, or one folder per class).
    """

    kind: str
    origin: str
    files: tuple[Path, ...] = ()
    recipe: ImageRecipe | None = None
    reader: str = ""
    reader_file: Path | None = None
    labels: Mapping[Path, str] = field(default_factory=dict)
    ignored: tuple[str, ...] = ()


def load_calibration(source: Path) -> Calibration:
    """List what ``source`` holds; raises InputError or UsageError with what to do. Reads no sample yet."""
    if source.is_dir():
        return _folder(source)
    if source.is_file():
        if source.suffix not in ARRAY_SUFFIXES:
            raise InputError(f"{source}: neither .npy nor .npz", next="give a folder, a .npy, a .npz or module:Class")
        return Calibration(kind="arrays", origin=source.name, files=(source,))
    if _READER.fullmatch(str(source)):
        module = Path(*str(source).partition(":")[0].split(".")).with_suffix(".py")
        return Calibration(
            kind="reader",
            origin=str(source),
            reader=str(source),
            reader_file=module if module.is_file() else None,
        )
    raise InputError(f"{source}: no such file or folder", next="give a folder, a .npy, a .npz or module:Class")


def _folder(folder: Path) -> Calibration:
    found = sorted(path for path in folder.rglob("*") if path.is_file() and not path.name.startswith("."))
    images = [path for path in found if path.suffix.lower() in IMAGE_SUFFIXES]
    arrays = [path for path in found if path.suffix in ARRAY_SUFFIXES]
    if images and arrays:
        raise UsageError(f"{folder}: holds images and arrays", next="give a folder with one kind")
    files = images or arrays
    if not files:
        raise InputError(f"{folder}: holds no image and no .npy or .npz file")
    used = {*files, folder / RECIPE_FILE, folder / LABELS_FILE}
    return Calibration(
        kind="images" if images else "arrays",
        origin=folder.name,
        files=tuple(files),
        recipe=read_recipe(folder) if images else None,
        labels=_labels(folder, files),
        ignored=tuple(path.relative_to(folder).as_posix() for path in found if path not in used),
    )


def _labels(folder: Path, files: Iterable[Path]) -> dict[Path, str]:
    """Labels out of ``labels.csv`` (file name, class), else one class per sub-folder where there are several."""
    table = folder / LABELS_FILE
    if table.is_file():
        import csv

        with table.open(encoding="utf-8", newline="") as stream:
            given = {row[0].strip(): row[1].strip() for row in csv.reader(stream) if len(row) >= 2}
        known = {path: given.get(path.relative_to(folder).as_posix()) for path in files}
        return {path: label for path, label in known.items() if label is not None}
    folders = {path: path.parent.relative_to(folder).as_posix() for path in files}
    return folders if len(set(folders.values())) > 1 and "." not in folders.values() else {}


def read_samples(source: Path, facts: GraphFacts) -> Iterator[dict[str, Any]]:
    """Every sample of .npy or .npz data as an array per input, of the model's types; raises InputError for the first
    file that does not fit. Images are refused: they are decoded where a decoder is.
    """
    calibration = load_calibration(source)
    if calibration.kind != "arrays":
        raise UsageError(
            f"{source}: {calibration.kind} cannot be read here",
            why="deploykit itself decodes no images and imports no code of the user's",
            next="save the preprocessed samples as .npy or .npz",
        )
    inputs = input_specs(facts)
    for file in calibration.files:
        yield from samples_of(file, inputs)


def samples_of(file: Path, inputs: tuple[InputSpec, ...]) -> Iterator[dict[str, Any]]:
    """The samples of one file. An extra leading axis, or a batch of a model made for batch 1, is taken apart."""
    arrays = _named(file, inputs)
    counts = {name: _count(arrays[name].shape, spec) for spec in inputs for name in [spec.name]}
    for spec in inputs:
        if counts[spec.name] is None:
            got = list(arrays[spec.name].shape)
            raise InputError(f"{file}: shape {got} does not fit the input {spec}", next="save arrays of that shape")
    number = {count for count in counts.values() if count is not None}
    if len(number) != 1:
        raise InputError(f"{file}: the inputs have different numbers of samples: {counts}")
    for index in range(number.pop()):
        yield {spec.name: _typed(file, _part(arrays[spec.name], spec, index), spec) for spec in inputs}


def _named(file: Path, inputs: tuple[InputSpec, ...]) -> dict[str, Any]:
    arrays: dict[str, Any] = dict(read_arrays(file))
    if set(arrays) == {""} or (len(arrays) == 1 and len(inputs) == 1 and set(arrays) == {"arr_0"}):
        if len(inputs) != 1:
            raise InputError(
                f"{file}: one array, but the model has the inputs {', '.join(spec.name for spec in inputs)}",
                next="save one .npz per sample with an array for each input",
            )
        return {inputs[0].name: next(iter(arrays.values()))}
    wanted = {spec.name for spec in inputs}
    if missing := sorted(wanted - set(arrays)):
        raise InputError(
            f"{file}: no array for the input {missing[0]!r}",
            why=f"it has {', '.join(sorted(arrays))}",
            next="name the arrays after the model's inputs",
        )
    return {name: arrays[name] for name in wanted}


def _count(shape: tuple[int, ...], spec: InputSpec) -> int | None:
    if spec.fits(shape):
        return 1
    if len(shape) == len(spec.shape) + 1 and spec.fits(shape[1:]):
        return shape[0]
    if spec.shape and spec.shape[0] == 1 and spec.fits((1, *shape[1:])) and len(shape) == len(spec.shape):
        return shape[0]
    return None


def _part(array: Any, spec: InputSpec, index: int) -> Any:
    if spec.fits(array.shape):
        return array
    return array[index] if array.ndim == len(spec.shape) + 1 else array[index : index + 1]


def _typed(file: Path, array: Any, spec: InputSpec) -> Any:
    """Floats in the width the model wants, integers where they fit; anything else is refused."""
    import numpy as np

    wanted = np.dtype(spec.dtype)
    if array.dtype != wanted and not (array.dtype.kind in "fiu" and wanted.kind in "fiu"):
        raise InputError(f"{file}: type {array.dtype} does not fit the input {spec}")
    if array.dtype.kind == "f" and wanted.kind in "iu":
        raise InputError(f"{file}: {array.dtype} for the input {spec} would be cut to integers")
    return np.ascontiguousarray(array, dtype=wanted)
