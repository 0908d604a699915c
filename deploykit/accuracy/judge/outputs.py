"""Sets of outputs to compare: folders of .npy and .npz files, single files, or a model that is run on data.

Each sample is read when it is asked for and not kept. Nothing is judged here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import onnxruntime as ort

from deploykit.accuracy.samples.arrays import read_arrays
from deploykit.errors import InputError, UsageError
from deploykit.model import load_model
from deploykit.model.running import CpuSession
from deploykit.system.files import regular_size

__all__ = ["OutputSet", "Outputs", "read_outputs", "read_pair", "run_models"]

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
        usable = [file for file in files if file.suffix in _SUFFIXES]
        _refuse_twins(path, usable)
        ignored = tuple(file.name for file in files if file.suffix not in _SUFFIXES)
        if not usable:
            raise InputError(f"{path}: holds no .npy and no .npz file", next="give the folder with the saved outputs")
        return OutputSet(label=str(path), samples={file.stem: _Reader(file) for file in usable}, ignored=ignored)
    if not path.exists():
        raise InputError(f"{path}: no such file or folder")
    if path.suffix not in _SUFFIXES:
        raise InputError(f"{path}: neither a folder nor a .npy, .npz or .onnx file")
    return OutputSet(label=str(path), samples={"": _Reader(path)})


@dataclass(frozen=True, slots=True)
class _Reader:
    path: Path

    def __call__(self) -> Outputs:
        return read_arrays(self.path)


def _refuse_twins(folder: Path, files: list[Path]) -> None:
    seen: dict[str, Path] = {}
    for file in files:
        other = seen.setdefault(file.stem, file)
        if other is not file:
            raise InputError(f"{folder}: {other.name} and {file.name} have the same stem", next="keep one of them")


def run_models(baseline: Path, candidate: Path, data: Path) -> tuple[OutputSet, OutputSet]:
    """The outputs of two models on the same inputs, with ONNX Runtime on the CPU.

    ``data`` is a folder of .npz files (one array per input) or .npy files (models with one input), or one such file.
    """
    inputs = read_outputs(data)
    return _run_on(baseline, inputs), _run_on(candidate, inputs)


def _run_on(path: Path, inputs: OutputSet) -> OutputSet:
    session = _open(path)

    def make(read: Callable[[], Outputs]) -> Callable[[], Outputs]:
        return lambda: _run(path, session, read())

    return OutputSet(label=str(path), samples={name: make(read) for name, read in inputs.samples.items()})


def _open(path: Path) -> CpuSession:
    model = load_model(path)
    size = regular_size(path) + sum(file.size for file in model.external)
    options = ort.SessionOptions()
    options.log_severity_level = 4
    try:
        return CpuSession(str(path), options, size=size)
    except Exception as error:
        raise InputError(f"{path}: does not load in ONNX Runtime", why=_first_line(error)) from None


def _run(path: Path, session: CpuSession, given: Outputs) -> Outputs:
    inputs = {item.name: item.type for item in session.inputs()}
    feed = {next(iter(inputs)): given[""]} if set(given) == {""} and len(inputs) == 1 else dict(given)
    missing = sorted(inputs.keys() - feed.keys())
    if missing:
        raise InputError(
            f"{path}: the data has no array for the input {missing[0]!r}",
            why=f"it has {', '.join(sorted(map(repr, given)))}",
            next="save one .npz per sample with an array for each input",
        )
    try:
        values = session.run(None, {name: _typed(feed[name], kind) for name, kind in inputs.items()})
    except Exception as error:
        raise InputError(f"{path}: does not run on this data", why=_first_line(error)) from None
    return dict(zip((item.name for item in session.outputs()), values, strict=True))


def _typed(value: npt.NDArray[Any], kind: str) -> npt.NDArray[Any]:
    """Floating values in the width the input wants; other types are left to ONNX Runtime to refuse."""
    widths = {"tensor(float)": np.float32, "tensor(float16)": np.float16, "tensor(double)": np.float64}
    return value.astype(widths[kind]) if kind in widths and value.dtype.kind == "f" else value


def _first_line(error: Exception) -> str:
    return str(error).splitlines()[0] if str(error) else type(error).__name__


def read_pair(baseline: Path, candidate: Path, data: Path | None) -> tuple[OutputSet, OutputSet]:
    """Both sides of a comparison: two folders or files, or two models with ``data``."""
    models = [path.suffix == ".onnx" for path in (baseline, candidate)]
    if all(models):
        if data is None:
            raise UsageError("two models need data to run on", next="give --data FOLDER or FILE.npz")
        return run_models(baseline, candidate, data)
    if any(models) or data is not None:
        raise UsageError(
            "a model is compared with a model, a folder with a folder",
            next="save the model's outputs first, or give two models and --data",
        )
    return read_outputs(baseline), read_outputs(candidate)
