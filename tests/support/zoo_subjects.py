"""The recorded models with what lies beside them, and how far one set of outputs is from another; packages nothing."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

Values: TypeAlias = dict[str, np.ndarray[Any, Any]]
SAME = 200.0
"""Decibels of equal arrays: more than float32 can tell apart."""


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
    """SQNR (dB) per output, at most ``SAME``; of rows that a TopK chose, the share with a partner in percent."""
    if {"labels", "boxes", "scores"} <= {*wanted}:
        return {"rows with a partner, %": _partners(wanted, got)}
    return {name: _distance(wanted[name], got[name]) for name in wanted}


def _distance(wanted: np.ndarray[Any, Any], got: np.ndarray[Any, Any]) -> float:
    signal = np.square(wanted.astype(np.float64)).sum()
    noise = np.square(wanted.astype(np.float64) - got).sum()
    if not np.isfinite(noise):
        return -SAME
    return round(float(min(SAME, 10 * np.log10(signal / noise))), 1) if noise else SAME


def _partners(wanted: Values, got: Values) -> float:
    """A partner has the same label, every edge within two pixels and the score within a twentieth."""
    near = (np.abs(wanted["boxes"][:, :, :, None] - got["boxes"][:, :, None]) <= 2).all(-1)
    alike = np.abs(wanted["scores"][..., None] - got["scores"][..., None, :]) <= 0.05
    same = wanted["labels"][..., None] == got["labels"][..., None, :]
    return round(100 * float((near & alike & same).any(-1).mean()), 1)
