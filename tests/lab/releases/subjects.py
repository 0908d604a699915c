"""The models that every release is asked about: AIMET's fixtures and the zoo, with encodings and samples of each."""

from __future__ import annotations

import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from recorded import unpack
from zoo_subjects import samples_of

__all__ = ["SUBJECTS", "Asked", "asked"]

unpack()
DATA = Path(__file__).parents[2] / "data"

FIXTURES = (
    "cnn/w8a16",
    "cnn/w8a8",
    "cnn_bnfold/w8a16",
    "cnn_bnfold/w8a8",
    "detr/fp16",
    "detr/w8a16",
    "detr/w8a16-fp16mix-explicit",
    "detr/w8a8",
    "detr/w8a8-int16mix",
    "mlp/bq-w4a16",
    "mlp/lpbq-w4a16",
    "mlp/w4a8",
    "mlp/w8a16",
    "mlp/w8a8",
    "vit/w8a16",
    "vit/w8a8",
)
ZOO = tuple(sorted(f"zoo/{path.stem}" for path in (DATA / "zoo").glob("*.zip")))
SUBJECTS = (*FIXTURES, *ZOO)


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What a user would give, and the samples that the result is tried on: one mapping per sample."""

    model: Path
    given: Mapping[str, Any]
    samples: tuple[Mapping[str, np.ndarray[Any, Any]], ...]


def asked(name: str, folder: Path) -> Asked:
    """A subject by name; what the zoo has packed is unpacked into the folder."""
    group, rest = name.split("/")
    if group != "zoo":
        at = DATA / "aimet" / group
        given = {"encodings": at / f"{rest}.v2.0.0.encodings"}
        return Asked(model=at / "model.onnx", given=given, samples=_recorded(at / f"{rest}.io.npz"))
    with zipfile.ZipFile(DATA / "zoo" / f"{rest}.zip") as packed:
        packed.extractall(folder)
    with np.load(folder / "held_out.npz") as data:
        samples = samples_of({key: data[key] for key in data.files})
    given = {"encodings": folder / "w8a16.v1.0.0.encodings", "calibration": folder / "calibration.npz"}
    return Asked(model=folder / "model.onnx", given=given, samples=tuple(samples))


def _recorded(path: Path) -> tuple[Mapping[str, np.ndarray[Any, Any]], ...]:
    """Samples from keys ``input.<number>:<name>``."""
    found: dict[str, dict[str, np.ndarray[Any, Any]]] = {}
    with np.load(path) as data:
        for key in data.files:
            number, _, name = key.removeprefix("input.").partition(":")
            if key.startswith("input."):
                found.setdefault(number, {})[name] = data[key]
    return tuple(found.values())
