"""Implements ``deploykit matrix init``: looks at a folder of models and writes a suitable ``deploykit.toml``.

It packages nothing. Files that belong to a model are found by its name: ``NAME.encodings``, ``NAME.npz``, a folder
``NAME/`` or ``calibration/``.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from msgspec.structs import asdict

from deploykit.accuracy.samples.calibration import KINDS
from deploykit.errors import DeploykitError, InputError
from deploykit.findings.records import Json, Pairs, Record
from deploykit.model.collect import collect_facts
from deploykit.model.load import load_model
from deploykit.system.files import paths_below

__all__ = ["Scouted", "scout", "toml_text"]

# Folders with samples for all models beside them.
_DATA = ("calibration", "calib", "frames", "images", "samples", "data")
_ENCODINGS = (".encodings", "_encodings.json", ".encodings.json")
_ARRAYS = (".npz", ".npy")
_MOST = 1000


class FoundModel(Record):
    """One model; paths are relative to the folder, "" if there is none. ``about`` describes its inputs."""

    name: str
    path: str
    encodings: str
    calibration: str
    about: str


class Scouted(Record):
    """What a folder holds; ``skipped`` lists files that are not models, each with the reason."""

    models: tuple[FoundModel, ...]
    skipped: Pairs

    def to_json(self) -> Json:
        """The published JSON."""
        models = [{name: value for name, value in asdict(model).items() if value} for model in self.models]
        return {"models": models, "skipped": [{"path": name, "why": why} for name, why in self.skipped]}


def scout(folder: Path) -> Scouted:
    """Find the ONNX models below a folder. Raises InputError if it is not a folder or holds none, or too many."""
    if not folder.is_dir():
        raise InputError(f"{folder}: no such folder")
    found = sorted(Path(name) for name in paths_below(folder) if name.endswith(".onnx"))
    paths = [path for path in found if not any(part.startswith(".") for part in path.parts)]
    if len(paths) > _MOST:
        raise InputError(f"{folder}: holds more than {_MOST:,} models", next="name a folder with fewer")
    models = list[FoundModel]()
    skipped = list[tuple[str, str]]()
    for path, name in zip(paths, _names(paths), strict=True):
        try:
            facts = collect_facts(load_model(folder / path))
        except DeploykitError as error:
            skipped.append((path.as_posix(), error.what))
            continue
        shown = []
        for tensor in (facts.tensors[name] for name in list(facts.inputs)[:4]):
            dims = [] if tensor.shape is None else ["?" if dim is None else str(dim) for dim in tensor.shape]
            sizes = "of any shape" if tensor.shape is None else " x ".join(dims) or "scalar"
            shown.append(f"{tensor.name} {sizes}")
        beside = {suffix: path.with_name(path.stem + suffix) for suffix in (*_ENCODINGS, *_ARRAYS)}
        there = {suffix: place.as_posix() for suffix, place in beside.items() if (folder / place).is_file()}
        # Samples for this model, else a folder of samples: of its name, beside it, or for all models.
        folders = (path.with_name(path.stem), *(path.with_name(word) for word in _DATA), *map(Path, _DATA))
        data = (
            place.as_posix()
            for place in folders
            if any(entry.suffix.lower() in KINDS for entry in (folder / place).glob("*"))
        )
        models.append(
            FoundModel(
                name=name,
                path=path.as_posix(),
                encodings=next((there[suffix] for suffix in _ENCODINGS if suffix in there), ""),
                calibration=next((there[suffix] for suffix in _ARRAYS if suffix in there), "") or next(data, ""),
                about="".join(letter if letter.isprintable() else "?" for letter in ", ".join(shown)),
            )
        )
    if not models:
        told = "; ".join(f"{name}: {why}" for name, why in skipped[:3])
        raise InputError(f"{folder}: holds no ONNX model", why=told, next="name the folder that holds the .onnx files")
    return Scouted(models=tuple(models), skipped=tuple(skipped))


def _names(paths: Sequence[Path]) -> Iterator[str]:
    """Yield a name for each file: its stem, or its path if stems repeat."""
    stems = Counter(path.stem for path in paths)
    taken = set[str]()
    for path in paths:
        plain = path.stem if stems[path.stem] == 1 else "-".join(path.with_suffix("").parts)
        name = re.sub(r"[^A-Za-z0-9._-]+", "-", plain).strip("-.")[:80] or "model"
        while name.casefold() in taken:
            name += "-2"
        taken.add(name.casefold())
        yield name


def toml_text(scouted: Scouted, targets: Sequence[str]) -> str:
    """Return the text of the file, formatted for editing."""

    def quoted(text: str) -> str:
        return json.dumps(text, ensure_ascii=False)

    def key(name: str) -> str:
        return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else quoted(name)

    lines = ["# Models times targets for 'deploykit matrix'. Paths are relative to this file.", ""]
    for model in scouted.models:
        lines += [f"[models.{key(model.name)}]" + (f"  # {model.about}" if model.about else "")]
        values = {"path": model.path, "encodings": model.encodings, "calibration": model.calibration}
        lines += [*(f"{name} = {quoted(value)}" for name, value in values.items() if value), ""]
    for target in targets:
        lines += [f"[targets.{key(target)}]", f"device = {quoted(target)}", ""]
    lines += [f"# left out: {name}: {why}" for name, why in scouted.skipped]
    return "\n".join(lines).rstrip("\n") + "\n"
