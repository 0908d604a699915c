"""Calibration data of the user: which files there are, how many samples by their headers, and any sample by its place.

It is a folder of images, sounds, .npy or .npz files, or a reader ``module:Class``, which is named and never imported.
The model's inputs decide what an array means, the recipe what an image means; nothing is guessed from values.
Statements about an input (``--input``) are parsed and checked at once; no path in them leaves this file.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from difflib import get_close_matches
from io import StringIO
from itertools import groupby
from pathlib import Path
from typing import Any, Literal, TypeAlias

from msgspec import Struct

from deploykit.accuracy.samples.arrays import ARRAY_SUFFIXES, ArrayHeader, read_arrays, read_headers
from deploykit.accuracy.samples.images import (
    IMAGE_SUFFIXES,
    RECIPE_FILE,
    SOUND_SUFFIX,
    WANTED,
    ImageRecipe,
    SoundRecipe,
    can_decode,
    cut_sound,
    fed_by_images,
    fit_recipe,
    images_misfit,
    read_image,
    read_recipe,
    read_sound,
    read_sound_recipe,
    sound_length,
    sound_shape,
)
from deploykit.accuracy.samples.inputs import InputSpec, input_specs
from deploykit.errors import InputError, UsageError
from deploykit.findings.records import Names, Record, Shape
from deploykit.model.facts import GraphFacts
from deploykit.model.operators import INTEGER_RANGES
from deploykit.system.files import paths_below, read_regular, regular_size

__all__ = [
    "KINDS",
    "Calibration",
    "Declaration",
    "load_calibration",
    "parse_declarations",
    "places_in",
    "places_of",
    "read_places",
    "read_samples",
]

_READER = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")
_LABELS = "labels.csv"
KINDS = {
    **dict.fromkeys(ARRAY_SUFFIXES, "arrays"),
    **dict.fromkeys(IMAGE_SUFFIXES, "images"),
    SOUND_SUFFIX: "sounds",
}
"""The kind of a file of calibration data, by the suffix of its name in lower case."""
_LARGEST_TABLE = 64 << 20


class Calibration(Record, kw_only=False):
    """Calibration data by kind: ``arrays``, ``images`` (with a recipe) or ``reader`` (``module:Class``).

    Sounds are arrays, with the recipe ``sound``. ``unused`` are the names of files beside them that are of no kind.
    ``labels`` maps a file to its class where the user gave labels (``labels.csv``, or one folder per class).
    """

    kind: str
    origin: str
    files: tuple[Path, ...] = ()
    unused: Names = ()
    recipe: ImageRecipe | None = None
    sound: SoundRecipe | None = None
    reader: str = ""
    reader_file: Path | None = None
    labels: Mapping[Path, str] = {}


def load_calibration(source: Path, inputs: tuple[InputSpec, ...] = ()) -> Calibration:
    """List what ``source`` holds; raises InputError or UsageError with what to do. Reads no sample yet.

    The model's ``inputs`` say what a recipe of images leaves out.
    """
    if source.is_dir():
        paths = (source / name for name in paths_below(source))
        found = sorted(path for path in paths if path.is_file() and not path.name.startswith("."))
        home = source.resolve()
        for path in found:  # a link out of the folder would put some other file of this machine into the package
            if not path.resolve().is_relative_to(home):
                raise InputError(
                    f"{path}: leaves the calibration folder through a symbolic link",
                    why="what lies elsewhere on this machine is not taken into a package",
                    next="replace the link by the file, or name the folder that it leads to",
                )
        files = [path for path in found if path.suffix.lower() in KINDS]
        kinds = sorted({KINDS[path.suffix.lower()] for path in files})
        if len(kinds) > 1:
            raise UsageError(f"{source}: holds {' and '.join(kinds)}", next="give a folder with one kind")
        if not files:
            raise InputError(
                f"{source}: holds no image, no sound and no .npy or .npz file", next="name the folder that holds them"
            )
        unused = {*found} - {*files, source / RECIPE_FILE, source / _LABELS}
        return Calibration(
            "images" if kinds == ["images"] else "arrays",
            source.name,
            files=tuple(files),
            unused=tuple(sorted(path.name for path in unused)),
            recipe=fit_recipe(read_recipe(source, inputs), inputs) if kinds == ["images"] else None,
            sound=read_sound_recipe(source) if kinds == ["sounds"] else None,
            labels=_labels(source, files),
        )
    if not source.exists() and _READER.fullmatch(str(source)):
        module = Path(*str(source).partition(":")[0].split(".")).with_suffix(".py")
        return Calibration(
            "reader",
            str(source),
            reader=str(source),
            reader_file=module if module.is_file() else None,
        )
    regular_size(source)  # which names a file that is not there, and what may be meant
    if source.suffix.lower() not in ARRAY_SUFFIXES:
        raise InputError(f"{source}: neither .npy nor .npz", next="give a folder, a .npy or a .npz")
    return Calibration("arrays", source.name, files=(source,))


def _labels(folder: Path, files: Iterable[Path]) -> dict[Path, str]:
    """Labels out of ``labels.csv`` (file name, class), else one class per sub-folder where there are several."""
    table = folder / _LABELS
    if not table.is_file():
        folders = {path: path.parent.relative_to(folder).as_posix() for path in files}
        return folders if len(set(folders.values())) > 1 and "." not in folders.values() else {}
    try:
        text = read_regular(table, limit=_LARGEST_TABLE).decode("utf-8-sig")
        given = {row[0].strip(): row[1].strip() for row in csv.reader(StringIO(text, newline="")) if len(row) >= 2}
    except (UnicodeDecodeError, csv.Error) as error:
        raise InputError(f"{table}: not a table of labels", why=str(error)) from None
    names = {path: path.relative_to(folder).as_posix() for path in files}
    return {path: given[name] for path, name in names.items() if name in given}


class SamplePlace(Struct, frozen=True):
    """The place of one sample: the file, its array per input, and its index in those arrays.

    ``recipe`` says how an image or a sound feeds its one input; None for arrays.
    """

    file: Path
    arrays: tuple[tuple[InputSpec, str], ...]
    index: int
    recipe: ImageRecipe | SoundRecipe | None = None


def read_samples(source: Path, facts: GraphFacts) -> Iterator[dict[str, Any]]:
    """Every sample as an array per input, of the model's types; raises InputError for the first that does not fit.

    Raises UsageError for a reader, which is code of the user's, and for images where nothing decodes them.
    """
    inputs = input_specs(facts)
    calibration = load_calibration(source, inputs)
    if calibration.kind == "images" and not can_decode():
        raise UsageError(
            f"{source}: images cannot be read here",
            why="Pillow, which decodes them, is not installed",
            next=f"{WANTED}, or save the preprocessed samples as .npy or .npz",
        )
    yield from read_places(places_of(calibration, inputs))


def places_of(
    calibration: Calibration, inputs: tuple[InputSpec, ...], *, optional: Collection[str] = frozenset()
) -> tuple[SamplePlace, ...]:
    """The samples of arrays or images. Inputs that are ``optional`` may come from elsewhere.

    Raises InputError for what does not fit, UsageError for a reader.
    """
    if calibration.kind == "reader":
        raise UsageError(
            f"{calibration.origin}: a reader is not run here",
            why="deploykit imports no code of the user's",
            next="save the preprocessed samples as .npy or .npz, or give a folder of images with calibration.toml",
        )
    recipe = calibration.recipe
    if recipe is None:
        sound = calibration.sound
        found = (places_in(file, inputs, optional=optional, sound=sound) for file in calibration.files)
        return tuple(place for places in found for place in places)
    misfit = images_misfit(recipe, inputs, optional=optional)
    fed = fed_by_images(recipe, inputs, optional=optional)
    if misfit or fed is None:
        raise InputError(
            f"{calibration.origin}: {misfit}",
            next="set width, height, layout and input in calibration.toml, or give .npz with an array for each input",
        )
    return tuple(SamplePlace(file, ((fed, ""),), 0, recipe) for file in calibration.files)


def places_in(
    file: Path,
    inputs: tuple[InputSpec, ...],
    *,
    optional: Collection[str] = frozenset(),
    sound: SoundRecipe | None = None,
) -> tuple[SamplePlace, ...]:
    """The samples of one file, from its headers. Inputs that are ``optional`` may have no array in it.

    Arrays are named after the inputs; a lone one is the only input's. ``<number>:<name>`` keys hold several samples,
    and so do arrays with an extra leading axis or a first axis that is a whole number of times as long as the input's.
    A sound is cut into as many parts as fill the input, the last one with silence behind it.
    """
    if sound is not None:
        ((spec, key),) = _named(file, {"": ""}, inputs, optional)
        length = sound_length(file)
        shape = sound_shape(spec, length)
        if shape is None:
            raise InputError(f"{file}: a sound has one axis, the input is {spec}", next="save what it reads as .npz")
        parts = max(1, -(-length // max(shape)))
        return tuple(SamplePlace(file, ((spec, key),), index, sound) for index in range(parts))
    headers = read_headers(file)
    found = list[SamplePlace]()
    for names in _numbered(headers):
        named = _named(file, names, inputs, optional)
        count = _together(file, {spec: headers[key].shape for spec, key in named})
        found += (SamplePlace(file, named, index) for index in range(count))
    return tuple(found)


def _numbered(headers: Mapping[str, ArrayHeader]) -> list[dict[str, str]]:
    """The arrays of each sample, by their name in the sample; ordered by number where the keys have numbers."""
    if not headers or not all(key.partition(":")[0].isdecimal() and ":" in key for key in headers):
        return [{key: key for key in headers}]
    samples = dict[int, dict[str, str]]()
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
        more = f" and {len(names) - 5} more" if len(names) > 5 else ""
        raise InputError(
            f"{file}: no array for the input {missing[0]!r}",
            why=f"it has {', '.join(sorted(names)[:5]) or 'no array'}{more}",
            next="name the arrays after the model's inputs, or say what this one is with --input",
        )
    return tuple((spec, names[spec.name]) for spec in inputs if spec.name in names)


def _together(file: Path, shapes: Mapping[InputSpec, Shape]) -> int:
    """The number of samples in the arrays of a file: the longest array's. An array of one sample is fed to all."""
    counts = dict[str, int]()
    for spec, shape in shapes.items():
        count = _count(shape, spec)
        if count is None:
            why = f"shape {list(shape)} does not fit the input {spec}"
            raise InputError(
                f"{file}: {why}", next="pad or cut all samples to one shape; --input gives the model another"
            )
        counts[spec.name] = count
    several = set(counts.values()) - {1}
    if len(several) > 1:
        told = ", ".join(f"{count} of {name}" for name, count in counts.items())
        raise InputError(f"{file}: the inputs have different numbers of samples: {told}")
    return several.pop() if several else min(1, len(counts))


def _count(shape: Shape, spec: InputSpec) -> int | None:
    """How many samples an array of this shape holds, in the layout that the input has or had.

    None where it does not fit.
    """
    if spec.given and (found := _count(shape, spec.as_given)) is not None:
        return found
    if spec.fits(shape):
        return 1
    if len(shape) == len(spec.shape) + 1 and spec.fits(shape[1:]):
        return shape[0]
    batch = spec.shape[0] if spec.shape else None
    if batch and len(shape) == len(spec.shape) and shape[0] % batch == 0 and spec.fits((batch, *shape[1:])):
        return shape[0] // batch
    return None


def read_places(places: Iterable[SamplePlace]) -> Iterator[dict[str, Any]]:
    """The samples at these places; the arrays of a file are read once for places that follow each other."""
    for (file, named, recipe), group in groupby(places, key=lambda place: (place.file, place.arrays, place.recipe)):
        if isinstance(recipe, ImageRecipe):
            yield from ({spec.name: read_image(file, recipe, spec) for spec, _ in named} for _ in group)
            continue
        if recipe is not None:
            values, ((spec, _),) = read_sound(file, recipe), named
            shape = sound_shape(spec, values.size) or values.shape
            yield from ({spec.name: cut_sound(values, shape, p.index).astype(spec.numpy_type)} for p in group)
            continue
        arrays = read_arrays(file, {key for _, key in named})
        for place in group:
            yield {spec.name: _typed(file, _part(arrays[key], spec, place.index), spec) for spec, key in named}


def _part(array: Any, spec: InputSpec, index: int) -> Any:
    if spec.given and _count(array.shape, spec.as_given) is not None:
        return _part(array, spec.as_given, index).transpose(0, 2, 3, 1)
    if spec.fits(array.shape):
        return array
    if array.ndim == len(spec.shape) + 1:
        return array[index]
    batch = spec.shape[0] or 1
    return array[index * batch : (index + 1) * batch]


def _typed(file: Path, array: Any, spec: InputSpec) -> Any:
    """The array in the input's type: floats in any width, integers where they fit; InputError for anything else."""
    import numpy as np

    wanted = spec.numpy_type
    if array.dtype.kind == "f" and np.isnan(array).any():
        count = int(np.isnan(array).sum())
        raise InputError(
            f"{file}: {count} of {array.size} values for the input {spec.name} are NaN",
            why="NaN makes every range and every comparison meaningless",
            next="leave the sample out, and see how it was made",
        )
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


_Number: TypeAlias = int | float
_NUMBER = r"[-+]?(?:\d+(?:\.\d+)?|\.\d+)(?:[eE][-+]?\d+)?"
_RANGE = re.compile(rf"\s*({_NUMBER})\s*\.\.\s*({_NUMBER})\s*")
_ONE = re.compile(rf"\s*({_NUMBER}|true|false)\s*")
_FORMS = "NAME=VALUE (a number, or numbers with commas), NAME=LOW..HIGH or NAME=FILE.npy"


class Declaration(Record, kw_only=False):
    """What the user stated for one input: values that broadcast to its shape, a range with both ends, or a file.

    A file holds one or several samples of the input.
    """

    name: str
    kind: Literal["value", "range", "file"]
    values: tuple[_Number, ...] = ()
    low: _Number = 0
    high: _Number = 0
    file: Path | None = None

    def __repr__(self) -> str:
        return f"Declaration({self.described})"

    @property
    def described(self) -> str:
        """The declaration in words, without a path."""
        match self.kind:
            case "value":
                return f"declared as {', '.join(map(str, self.values))}"
            case "range":
                return f"declared as {self.low} to {self.high}"
            case "file":
                return f"declared by the file {'' if self.file is None else self.file.name}"


def parse_declarations(texts: Iterable[str], inputs: tuple[InputSpec, ...]) -> dict[str, Declaration]:
    """One declaration per text, by input. Raises UsageError for an unknown input or a value that its type or shape
    does not hold, InputError for a file that does not fit.
    """
    found = dict[str, Declaration]()
    for text in texts:
        spec, said = _split(text, inputs)
        if spec.name in found:
            raise UsageError(f"--input {text}: {spec.name!r} is declared twice", next="give it once")
        found[spec.name] = _declaration(text, spec, said)
    return found


def _split(text: str, inputs: tuple[InputSpec, ...]) -> tuple[InputSpec, str]:
    """The input and the text behind its name. Names may hold '=' themselves: the longest that matches is meant."""
    matching = [spec for spec in inputs if text.startswith(f"{spec.name}=")]
    if matching:
        spec = max(matching, key=lambda item: len(item.name))
        return spec, text[len(spec.name) + 1 :]
    name, equals, _ = text.partition("=")
    if not equals:
        raise UsageError(f"--input {text}: says nothing of an input", next=f"write {_FORMS}")
    names = [spec.name for spec in inputs]
    near = get_close_matches(name, names, n=1)
    hint = f"did you mean {near[0]!r}?" if near else f"the inputs are {', '.join(map(repr, names)) or 'none'}"
    raise UsageError(f"--input {text}: the model has no input {name!r}", next=hint)


def _declaration(text: str, spec: InputSpec, said: str) -> Declaration:
    spec.numpy_type  # noqa: B018 (refuses inputs that hold text)
    ends = _RANGE.fullmatch(said)
    if ends is not None:
        low, high = (_number(text, spec, end) for end in ends.groups())
        if low > high:
            raise UsageError(f"--input {text}: the range is empty", why=f"{low} is above {high}")
        return Declaration(spec.name, "range", low=low, high=high)
    parts = [_ONE.fullmatch(part) for part in said.split(",")]
    if all(parts):
        values = tuple(_number(text, spec, part[1]) for part in parts if part is not None)
        last = spec.shape[-1] if spec.shape else 1
        if len(values) != 1 and last is not None and len(values) != last:
            why = f"the last dimension of {spec} is {last}" if spec.shape else f"{spec} is a single number"
            advice = "give one value for all, one for each, or sizes that the fixed dimensions of the model allow"
            raise UsageError(f"--input {text}: {len(values)} values", why=why, next=advice)
        return Declaration(spec.name, "value", values=values)
    path = Path(said)
    if path.suffix.lower() in ARRAY_SUFFIXES:
        if not places_in(path, (spec,)):
            raise InputError(f"{path}: holds no sample for the input {spec}")
        return Declaration(spec.name, "file", file=path)
    raise UsageError(f"--input {text}: neither numbers nor a range nor a .npy file", next=f"write {_FORMS}")


def _number(text: str, spec: InputSpec, word: str) -> _Number:
    """The number in a word; UsageError where the input's type does not hold it."""
    import numpy as np

    dtype = spec.numpy_type
    if word in ("true", "false"):
        if dtype.kind != "b":
            raise UsageError(f"--input {text}: {word} for the input {spec}", next="give a number")
        return int(word == "true")
    value = float(word)
    if spec.is_float:
        with np.errstate(over="ignore"):
            if not np.isfinite(np.asarray(value).astype(dtype).astype(np.float64)):
                raise UsageError(f"--input {text}: {word} is more than {spec.dtype} holds")
        return value
    if not value.is_integer():
        raise UsageError(f"--input {text}: {word} is no whole number", why=f"the input is {spec}")
    whole = int(word) if re.fullmatch(r"[-+]?\d+", word) else int(value)
    low, high = INTEGER_RANGES.get(spec.dtype, (0, 1))
    if not low <= whole <= high:
        raise UsageError(f"--input {text}: {word} is not within {low}..{high}", why=f"the input is {spec}")
    return whole
