"""Sets of outputs to compare: folders of .npy and .npz files, single files, or a model that is run on data.

Each sample is read when it is asked for and not kept. Nothing is judged here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import numpy.typing as npt

from deploykit.accuracy.samples.arrays import read_arrays
from deploykit.accuracy.samples.inputs import input_specs
from deploykit.accuracy.simulate.sessions import Session
from deploykit.errors import InputError, UsageError
from deploykit.model import load_model
from deploykit.model.collect import collect_facts
from deploykit.model.weights import lean_weights

__all__ = ["OutputSet", "Outputs", "read_outputs", "read_pair"]

Outputs: TypeAlias = Mapping[str, npt.NDArray[Any]]
"""The outputs of one sample by name; the only output of a .npy file is called ``""``."""

_SUFFIXES = (".npy", ".npz")


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputSet:
    """Samples by name, each read on demand. ``ignored`` are files of a folder that hold no arrays."""

    label: str
    samples: Mapping[str, Callable[[], Outputs]]
    ignored: tuple[str, ...] = ()


def read_outputs(path: Path) -> OutputSet:
    """A folder (one sample per file, named by its stem) or one file as a set of samples."""
    if path.is_dir():
        files = sorted(item for item in path.iterdir() if item.is_file() and not item.name.startswith("."))
        usable = {file.stem: file for file in files if file.suffix in _SUFFIXES}
        twin = next((f for f in files if f.suffix in _SUFFIXES and usable[f.stem] is not f), None)
        if twin is not None:
            names = f"{twin.name} and {usable[twin.stem].name}"
            raise InputError(f"{path}: {names} have the same stem", next="keep one of them")
        ignored = tuple(file.name for file in files if file.suffix not in _SUFFIXES)
        if not usable:
            raise InputError(f"{path}: holds no .npy and no .npz file", next="give the folder with the saved outputs")
        samples = {stem: partial(read_arrays, file) for stem, file in usable.items()}
        return OutputSet(label=str(path), samples=samples, ignored=ignored)
    if not path.exists():
        raise InputError(f"{path}: no such file or folder")
    if path.suffix not in _SUFFIXES:
        raise InputError(f"{path}: neither a folder nor a .npy, .npz or .onnx file")
    return OutputSet(label=str(path), samples={"": partial(read_arrays, path)})


def _run_on(path: Path, inputs: OutputSet) -> OutputSet:
    """The outputs of a model with ONNX Runtime on the CPU, sample by sample.

    An array by itself is the only input's. Floats get the width that the input has; other types are the user's care.
    """
    loaded = load_model(path)
    specs = {spec.name: spec for spec in input_specs(collect_facts(loaded))}
    session = Session(lean_weights(loaded), optimize=True)

    def run(read: Callable[[], Outputs]) -> Outputs:
        given = read()
        feed = {next(iter(specs)): given[""]} if set(given) == {""} and len(specs) == 1 else dict(given)
        missing = sorted(specs.keys() - feed.keys())
        if missing:
            raise InputError(
                f"{path}: the data has no array for the input {missing[0]!r}",
                why=f"it has {', '.join(sorted(map(repr, given)))}",
                next="save one .npz per sample with an array for each input",
            )
        floats = {name for name, spec in specs.items() if spec.is_float and feed[name].dtype.kind == "f"}
        return session.run({n: v.astype(specs[n].numpy_type) if n in floats else v for n, v in feed.items()})

    return OutputSet(label=str(path), samples={name: partial(run, read) for name, read in inputs.samples.items()})


def read_pair(baseline: Path, candidate: Path, data: Path | None) -> tuple[OutputSet, OutputSet]:
    """Both sides of a comparison: two folders or files, or two models with ``data``."""
    models = [path.suffix == ".onnx" for path in (baseline, candidate)]
    if all(models):
        if data is None:
            raise UsageError("two models need data to run on", next="give --data FOLDER or FILE.npz")
        inputs = read_outputs(data)
        return _run_on(baseline, inputs), _run_on(candidate, inputs)
    if any(models) or data is not None:
        raise UsageError(
            "a model is compared with a model, a folder with a folder",
            next="save the model's outputs first, or give two models and --data",
        )
    return read_outputs(baseline), read_outputs(candidate)
