"""One row of the zoo's table: a model for one backend, SDK and precision, packaged, and run where that is possible."""

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

import deploykit
from zoo_subjects import Subject, distances

DEVICE = "sm8650"
RUNNER = Path(__file__).parent / "running.py"


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One column: ``sdk`` is empty for the wheel's own."""

    backend: str
    sdk: str
    precision: str

    @property
    def name(self) -> str:
        return " ".join(part for part in (self.backend, self.sdk, self.precision) if part)


SETTINGS = tuple(
    Setting(backend=backend, sdk=sdk, precision=precision)
    for backend, sdk in (("qnn-htp", "2.33"), ("qnn-htp", "2.44"), ("ort-qnn", ""))
    for precision in ("fp16", "w8a16")
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """What came out. ``blocking`` are codes with what they say; ``wholly`` is None where nothing was compiled."""

    model: str
    setting: str
    packaged: bool
    blocking: Sequence[str] = ()
    route: str = ""
    wholly: bool | None = None
    right: str = ""
    decibels: Mapping[str, float] = field(default_factory=dict)
    aimet: Mapping[str, float] = field(default_factory=dict)
    seconds: float = 0.0

    @property
    def shortfall(self) -> float:
        """By how many dB (or percent of rows) the worst output is below AIMET's own simulation."""
        return max((self.aimet[name] - value for name, value in self.decibels.items() if name in self.aimet), default=0)

    @property
    def good(self) -> bool:
        """Packaged; where it was compiled: wholly, and not worse than AIMET's simulation minus 1 dB."""
        return self.packaged and self.wholly is not False and self.shortfall <= 1.0


def run(subject: Subject, setting: Setting, folder: Path) -> Row:
    """Packages with the files as AIMET wrote them and the samples that lie beside them."""
    start = _cpu()
    given: dict[str, Any] = {"encodings": subject.encodings} if setting.precision == "w8a16" else {}
    if setting.backend == "ort-qnn":
        given["kernels"] = "quick"  # what whole models come to is the question here, not each of their kernels
    asked: Any = {"target": DEVICE, "backend": setting.backend, "sdk": setting.sdk or None}
    made = deploykit.package(subject.model, calibration=subject.calibration, out=folder, **given, **asked)
    seconds = _cpu() - start
    runs = made.package is not None and "compile" in made.executed
    return Row(
        model=subject.name,
        setting=setting.name,
        packaged=made.package is not None and made.exit_status == 0,
        blocking=tuple(f"{f.code} {f.subject.name}: {f.message}" for f in made.findings if f.blocks),
        route="" if made.plan.route is None else made.plan.route.id,
        wholly=_wholly(folder) if runs else None,
        right=str(made.status.right.state),
        decibels=_emulated(subject, folder) if runs and _wholly(folder) is not None else {},
        aimet=_aimet(subject) if "encodings" in given and setting.backend == "ort-qnn" else {},
        seconds=round(seconds, 1),
    )


def _aimet(subject: Subject) -> Mapping[str, float]:
    """How far AIMET's own simulation is from float."""
    return distances(subject.expected(), subject.arrays("aimet"))


def _cpu() -> float:
    """Of this process and of those that it waited for."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


def _wholly(package: Path) -> bool | None:
    """Whether all of the compiled graph's nodes are contexts; None where the compiler left no graph."""
    import onnx

    found = sorted((package / "artifacts").glob("*_ctx.onnx"))
    if not found:
        return None
    types = [node.op_type for path in found for node in onnx.load(path, load_external_data=False).graph.node]
    return set(types) == {"EPContext"}


def _emulated(subject: Subject, package: Path) -> Mapping[str, float]:
    """Against the float model, on samples that nobody calibrated on."""
    outputs = package.with_suffix(".npz")
    held_out = subject.folder / "held_out.npz"
    subprocess.run([sys.executable, RUNNER, package, held_out, outputs], check=True, capture_output=True)
    with np.load(outputs) as data:
        return distances(subject.expected(), {name: data[name] for name in data.files})
