"""The real AIMET, in an environment made as a user makes it, and models of the zoo for it."""

import zipfile
from pathlib import Path
from typing import Any

import numpy as np

from deploykit.cli import cli
from deploykit.cli.frame import run

DATA = Path(__file__).parents[1] / "data"


def install_aimet() -> None:
    """Found again where it is there already."""
    assert run(cli, ["toolchain", "install", "aimet"]) == 0


def unpacked(name: str, folder: Path) -> tuple[Path, Path]:
    """A model of the zoo, and all ten of its samples in one file."""
    with zipfile.ZipFile(DATA / "zoo" / f"{name}.zip") as archive:
        archive.extractall(folder)
    with np.load(folder / "calibration.npz") as seen, np.load(folder / "held_out.npz") as held:
        together: dict[str, Any] = {key: np.concatenate([seen[key], held[key]]) for key in seen.files}
    np.savez(folder / "ten.npz", **together)
    return folder / "model.onnx", folder / "ten.npz"
