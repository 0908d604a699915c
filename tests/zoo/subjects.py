"""The recorded models with what lies beside them, and how far one set of outputs is from another; packages nothing."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

Values: TypeAlias = dict[str, np.ndarray[Any, Any]]


@dataclass(frozen=True)
class Subject:
    """One folder of the zoo. Arrays hold one sample per place of their first axis."""

    folder: Path

    @property
    def name(self) -> str:
        return self.folder.name

    @property
    def model(self) -> Path:
        return self.folder / "model.onnx"

    @property
    def encodings(self) -> Path:
        return self.folder / "w8a16.v1.0.0.encodings"

    @property
    def calibration(self) -> Path:
        return self.folder / "calibration.npz"

    @property
    def info(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.folder / "info.json").read_text("utf-8"))
        return found

    def arrays(self, what: str) -> Values:
        """``calibration``, ``held_out`` (never seen by AIMET), or ``aimet`` (its simulated outputs of the latter)."""
        with np.load(self.folder / f"{what}.npz") as data:
            return {name: data[name] for name in data.files}

    def expected(self) -> Values:
        """The float model's outputs of the held-out samples, by plain ONNX Runtime on the CPU."""
        import onnxruntime

        session = onnxruntime.InferenceSession(self.model, providers=["CPUExecutionProvider"])
        names = [value.name for value in session.get_outputs()]
        feeds = samples_of(self.arrays("held_out"))
        return stacked([dict(zip(names, session.run(names, feed), strict=True)) for feed in feeds])


def samples_of(arrays: Mapping[str, Any]) -> list[Values]:
    """One feed per place of the first axis."""
    count = len(next(iter(arrays.values())))
    return [{name: array[place] for name, array in arrays.items()} for place in range(count)]


def stacked(samples: list[Values]) -> Values:
    """The opposite of ``samples_of``."""
    return {name: np.stack([sample[name] for sample in samples]) for name in samples[0]}


def distances(wanted: Values, got: Values) -> dict[str, float]:
    """Signal to noise in dB per output over all samples; of labels the share that agrees, in percent."""
    return {name: _distance(wanted[name], got[name]) for name in wanted}


def _distance(wanted: np.ndarray[Any, Any], got: np.ndarray[Any, Any]) -> float:
    if wanted.dtype.kind != "f":
        return round(100 * float(np.mean(wanted == got)), 1)
    signal = np.square(wanted.astype(np.float64)).sum()
    noise = np.square(wanted.astype(np.float64) - got).sum()
    if not np.isfinite(noise):
        return -999.0
    return 999.0 if noise == 0 else round(float(10 * np.log10(signal / noise)), 1)
