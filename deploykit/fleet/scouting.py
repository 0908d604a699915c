"""``deploykit matrix init``: looks at a folder of models and writes the ``deploykit.toml`` that fits.

It packages nothing.

What belongs to a model is found by its name: ``NAME.encodings``, ``NAME.npz``, a folder ``NAME/`` or ``calibration/``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from deploykit.errors import DeploykitError, InputError
from deploykit.model import load_model
from deploykit.model.collect import collect_facts

__all__ = ["FoundModel", "Scouted", "scout", "toml_text"]

_DATA = ("calibration", "calib", "frames", "images", "samples", "data")
"""Folders that hold samples for every model beside them."""
_ENCODINGS = (".encodings", "_encodings.json", ".encodings.json")
_SUFFIXES = (".npz", ".npy", ".raw", ".png", ".jpg", ".jpeg", ".bmp")
_MOST = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundModel:
    """One model; paths are relative to the folder. ``about`` says what it takes."""

    name: str
    path: str
    encodings: str = ""
    calibration: str = ""
    about: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scouted:
    """What a folder holds; ``skipped`` are files that are no models, with why."""

    models: tuple[FoundModel, ...]
    skipped: tuple[tuple[str, str], ...] = ()

    def to_json(self) -> dict[str, Any]:
        """The published shape."""
        models = [{name: value for name, value in asdict(model).items() if value} for model in self.models]
        return {"models": models, "skipped": [{"path": name, "why": why} for name, why in self.skipped]}


def scout(folder: Path) -> Scouted:
    """The ONNX models below a folder. InputError where it is none or holds none."""
    if not folder.is_dir():
        raise InputError(f"{folder}: no such folder")
    paths = sorted(path for path in folder.rglob("*.onnx") if not _is_hidden(path, folder))[: _MOST + 1]
    if len(paths) > _MOST:
        raise InputError(f"{folder}: holds more than {_MOST:,} models", next="name a folder with fewer")
    models: list[FoundModel] = []
    skipped: list[tuple[str, str]] = []
    for path, name in zip(paths, _names(paths, folder), strict=True):
        try:
            about = _about(path)
        except DeploykitError as error:
            skipped.append((path.relative_to(folder).as_posix(), error.what))
            continue
        models.append(
            FoundModel(
                name=name,
                path=path.relative_to(folder).as_posix(),
                encodings=_relative(_first(path.with_name(path.stem + suffix) for suffix in _ENCODINGS), folder),
                calibration=_relative(_data_of(path, folder), folder),
                about=about,
            )
        )
    if not models:
        told = "; ".join(f"{name}: {why}" for name, why in skipped[:3])
        raise InputError(f"{folder}: holds no ONNX model", why=told, next="name the folder that holds the .onnx files")
    return Scouted(models=tuple(models), skipped=tuple(skipped))


def toml_text(scouted: Scouted, targets: Sequence[str]) -> str:
    """The file, in a form that is meant to be edited."""
    lines = ["# Models times targets for 'deploykit matrix'. Paths are relative to this file.", ""]
    for model in scouted.models:
        lines += [f"[models.{_key(model.name)}]  # {model.about}" if model.about else f"[models.{_key(model.name)}]"]
        lines += [f"path = {json.dumps(model.path, ensure_ascii=False)}"]
        for key in ("encodings", "calibration"):
            if getattr(model, key):
                lines += [f"{key} = {json.dumps(getattr(model, key), ensure_ascii=False)}"]
        lines += [""]
    for target in targets:
        lines += [f"[targets.{_key(target)}]", f"device = {json.dumps(target)}", ""]
    lines += [f"# left out: {name}: {why}" for name, why in scouted.skipped]
    return "\n".join(lines).rstrip("\n") + "\n"


def _is_hidden(path: Path, folder: Path) -> bool:
    return any(part.startswith(".") for part in path.relative_to(folder).parts)


def _names(paths: Sequence[Path], folder: Path) -> Iterator[str]:
    """A name for each file: its stem, its path where stems repeat or all are called ``model``."""
    stems = [path.stem for path in paths]
    taken: set[str] = set()
    for path in paths:
        relative = path.relative_to(folder).with_suffix("")
        plain = path.stem if stems.count(path.stem) == 1 else "-".join(relative.parts)
        name = re.sub(r"[^A-Za-z0-9._-]+", "-", plain).strip("-.")[:80] or "model"
        while name.casefold() in taken:
            name += "-2"
        taken.add(name.casefold())
        yield name


def _about(path: Path) -> str:
    """What the model takes, on one line."""
    facts = collect_facts(load_model(path))
    shown = [f"{name} {_shape(facts.tensors[name].shape)}" for name in list(facts.inputs)[:4]]
    return "".join(letter if letter.isprintable() else "?" for letter in ", ".join(shown))


def _shape(shape: tuple[int | str | None, ...] | None) -> str:
    return (
        "of any shape" if shape is None else " x ".join("?" if dim is None else str(dim) for dim in shape) or "scalar"
    )


def _data_of(path: Path, folder: Path) -> Path | None:
    own = _first(path.with_name(path.stem + suffix) for suffix in (".npz", ".npy"))
    beside = [path.with_name(path.stem), *(path.with_name(word) for word in _DATA), *(folder / word for word in _DATA)]
    return own or next((place for place in beside if place.is_dir() and _holds_samples(place)), None)


def _holds_samples(folder: Path) -> bool:
    return any(path.suffix.lower() in _SUFFIXES for path in folder.iterdir())


def _first(paths: Iterable[Path]) -> Path | None:
    return next((path for path in paths if path.is_file()), None)


def _relative(path: Path | None, folder: Path) -> str:
    return "" if path is None else path.relative_to(folder).as_posix()


def _key(name: str) -> str:
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else json.dumps(name, ensure_ascii=False)
