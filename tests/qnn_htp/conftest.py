"""Shared by the qnn-htp tests: fixtures of real AIMET, requests, and a folder of stand-in tools."""

import os
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import deploykit
from deploykit.flow.pipeline import Packaged
from qairt_folder import STANDINS, qairt_folder, with_device_parts

DATA = Path(__file__).parents[1] / "data" / "aimet"


@pytest.fixture(scope="session")
def aimet() -> Path:
    """The fixtures made by real AIMET."""
    return DATA


@pytest.fixture(scope="session")
def make_sdk_in() -> Callable[..., Path]:
    """Lay out a folder like an SDK's whose tools are stand-ins of one table version."""
    return qairt_folder


@pytest.fixture
def make_sdk(make_sdk_in: Callable[..., Path], tmp_path: Path) -> Callable[..., Path]:
    """The same in the folder of the test."""
    return partial(make_sdk_in, tmp_path)


@pytest.fixture
def run_script(tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Run a package's script in real bash, from another folder, with the given environment only."""

    def run(script: Path, *args: str, **env: str) -> subprocess.CompletedProcess[str]:
        plain = {name: os.environ[name] for name in ("PATH", "HOME", "LANG") if name in os.environ}
        how: Any = {"cwd": tmp_path, "env": plain | env, "capture_output": True, "encoding": "utf-8"}
        return subprocess.run(["bash", str(script), *args], check=False, **how)

    return run


class _CutPackages(dict[str, Packaged]):
    """Each is made when it is first asked for: not every process needs both."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __missing__(self, style: str) -> Packaged:
        encodings = DATA / f"detr/w8a16-fp16mix-{style}.v0.6.1.encodings"
        asked: Any = {"target": "sm8650", "sdk": "2.33", "encodings": encodings, "mixed": "segments"}
        self[style] = deploykit.package(DATA / "detr/model.onnx", out=self.folder / style, **asked)
        return self[style]


@pytest.fixture(scope="session")
def cut_packages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Packaged]:
    """The detector with five tensors in float16, cut into segments for 2.33, by the style of its encodings."""
    return _CutPackages(tmp_path_factory.mktemp("cut"))


@pytest.fixture
def device(make_sdk: Callable[..., Path], tmp_path: Path) -> dict[str, str]:
    """The environment of a run on a stand-in device, whose root is a folder."""
    sdk = with_device_parts(make_sdk())
    # python3 of a script is the one that runs the tests, which has ONNX Runtime.
    folders = [str(STANDINS / "adb"), str(Path(sys.executable).parent), os.environ["PATH"]]
    return {"QAIRT_SDK_ROOT": str(sdk), "DEVICE_FOLDER": str(tmp_path / "device"), "PATH": os.pathsep.join(folders)}


@pytest.fixture(scope="session")
def samples(aimet: Path) -> list[dict[str, npt.NDArray[Any]]]:
    """Two inputs of the detector on which AIMET simulated it."""
    with np.load(aimet / "detr/w8a16.io.npz") as data:
        keys = [[key for key in data.files if key.startswith(f"input.{index}:")] for index in (0, 1)]
        return [{key.split(":", 1)[1]: data[key] for key in names} for names in keys]


@pytest.fixture(scope="session")
def detections(aimet: Path, samples: list[dict[str, npt.NDArray[Any]]]) -> list[npt.NDArray[Any]]:
    """What the detector as it was given computes of these, without graph optimisations."""
    from deploykit.accuracy.simulate.sessions import Session
    from deploykit.model.load import load_model

    session = Session(load_model(aimet / "detr/model.onnx").proto)
    return [session.run(sample)["detections"] for sample in samples]
