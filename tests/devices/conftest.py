"""Packages to run, and clients of devices that scripts play."""

import os
import shutil
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import deploykit
from qairt_folder import qairt_folder, with_device_parts
from text_models import text_model


def network() -> onnx.ModelProto:
    """A convolution and a classifier, of names that no tool may trip over."""
    rng = np.random.default_rng(0)
    weights = {"w1": rng.normal(0, 0.3, (8, 3, 3, 3)), "w2": rng.normal(0, 0.3, (10, 8))}
    body = """
        c = Conv <pads = [1, 1, 1, 1]> (x, w1)  r = Relu (c)  p = GlobalAveragePool (r)
        f = Flatten (p)  y = Gemm <transB = 1> (f, w2)
    """
    stored: dict[str, Any] = {name: value.astype(np.float32) for name, value in weights.items()}
    model = text_model("float[1,3,16,16] x", body, "float[1,10] y", **stored)
    for node, name in zip(model.graph.node, ("/stem/conv", "/stem/relu", "pool", "flat", "fc"), strict=True):
        node.name = name
    return model


@pytest.fixture(scope="session")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The model, and twelve samples."""
    folder = tmp_path_factory.mktemp("sources")
    onnx.save(network(), folder / "net.onnx")
    (folder / "data").mkdir()
    rng = np.random.default_rng(1)
    for number in range(12):
        sample = rng.normal(size=(1, 3, 16, 16)).astype(np.float32) * (1 + number / 6)
        np.savez(folder / "data" / f"{number:02}.npz", x=sample)
    return folder


@pytest.fixture(scope="session")
def plain_package(sources: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A float package whose backend runs nothing on this machine."""
    out = tmp_path_factory.mktemp("plain") / "p"
    made = deploykit.package(
        sources / "net.onnx", target="sm8650", backend="qnn-htp", calibration=sources / "data", out=out, compile=False
    )
    assert made.exit_status == 0
    return out


@pytest.fixture
def plain(plain_package: Path, tmp_path: Path) -> Path:
    """A copy of one's own, in a folder with a name that shells trip over."""
    return Path(shutil.copytree(plain_package, tmp_path / 'a package\'s "own" $name'))


@pytest.fixture(scope="session")
def compiled_package(sources: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Compiled and emulated here."""
    if find_spec("onnxruntime_qnn") is None:
        pytest.skip("needs onnxruntime-qnn, whose library is the emulator")
    out = tmp_path_factory.mktemp("compiled") / "p"
    model, data = sources / "net.onnx", sources / "data"
    made = deploykit.package(model, target="sm8650", backend="ort-qnn", calibration=data, out=out)
    assert made.exit_status == 0 and "emulate" in made.executed
    return out


@pytest.fixture
def compiled(compiled_package: Path, tmp_path: Path) -> Path:
    """A copy of one's own."""
    return Path(shutil.copytree(compiled_package, tmp_path / "compiled package"))


@pytest.fixture
def context_package(sources: Path, tmp_path: Path) -> Path:
    """A context binary that the wheel's compiler made, for the SDK's program."""
    if find_spec("onnxruntime_qnn") is None:
        pytest.skip("needs onnxruntime-qnn, whose library is the emulator")
    asked: dict[str, Any] = {"target": "sm8650", "backend": "qnn-htp", "sdk": "2.51", "route": "provider-context"}
    model, data, out = sources / "net.onnx", sources / "data", tmp_path / "context package"
    made = deploykit.package(model, calibration=data, out=out, precision="fp16", **asked)
    assert made.exit_status == 0
    return out


@pytest.fixture
def phone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A phone that ``adb`` reaches, both played by scripts: its shell is this machine's, with the programs in ``bin``.

    What ``ssh`` reaches is this machine as it is.

    What is pushed lies in ``deploykit``. There is a folder like that of the SDK as well.
    """
    folder = tmp_path / "phone"
    programs = {
        "phone/bin/getprop": f'case "$1" in{"".join(f" {name}) echo {value} ;;" for name, value in SAID.items())} esac',
        "phone/bin/uname": 'case "$1" in -m) echo aarch64 ;; *) echo Linux ;; esac',
        "phone/bin/sort": "echo 41500",  # whose only use there is to find the hottest
        "client/ssh": 'for last; do :; done; exec sh -c "$last"',
        "client/adb": f'for last; do :; done; PATH={folder}/bin:$PATH exec sh -c "$last"',
    }
    for name, text in programs.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"#!/bin/sh\n{text}\n", "utf-8")
        path.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path / "client"), prepend=os.pathsep)
    monkeypatch.setenv("DEPLOYKIT_DEVICE_FOLDER", str(folder / "deploykit"))
    monkeypatch.setenv("QAIRT_SDK_ROOT", str(with_device_parts(qairt_folder(tmp_path, version="2.51.0"))))
    return folder


SAID = {"ro.soc.model": "SM8650", "ro.product.cpu.abi": "arm64-v8a", "ro.serialno": "S1"}
SAID["ro.build.version.release"] = "15"
