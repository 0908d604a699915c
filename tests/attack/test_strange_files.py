"""Pipes, devices and endless files under the names of files: nothing waits for them or reads them without end."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from attacks.victims import acceptable, run_cli
from tables import each_row

pytestmark = pytest.mark.heavy
Command = tuple[str, ...]


def pipe(path: Path) -> None:
    os.mkfifo(path)


def device(path: Path) -> None:
    path.symlink_to("/dev/zero")


def endless(path: Path) -> None:
    """A regular file of a size that no memory holds, without taking any disk."""
    with path.open("wb") as file:
        file.truncate(1 << 42)


def plug(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as made:
        here = Path.cwd()
        os.chdir(path.parent)  # the name of a socket may have a hundred bytes
        try:
            made.bind(path.name)
        finally:
            os.chdir(here)


KINDS: dict[str, Callable[[Path], None]] = {"pipe": pipe, "device": device, "endless": endless, "socket": plug}


@pytest.mark.parametrize("kind", KINDS)
@each_row("name", ["manifest.json", "model/model.onnx", "encodings/model.json", "scripts/build.sh"])
def test_in_a_package(kind: str, name: str, made: Path, tmp_path: Path) -> None:
    copy = tmp_path / "out"
    for path in sorted(made.rglob("*")):
        if path.is_file() and path.relative_to(made).as_posix() != name:
            target = copy / path.relative_to(made)
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(path.read_bytes())
            target.chmod(path.stat().st_mode)
    assert (made / name).is_file()
    (copy / name).parent.mkdir(parents=True, exist_ok=True)
    KINDS[kind](copy / name)
    for command in ("verify", "build"):
        ending = run_cli(command, copy)
        assert ending.status == 6, ending.output
        assert name in ending.output
        assert acceptable(ending), ending


ARGUMENTS: dict[str, tuple[str, Callable[[Command, Path, Path], Command]]] = {
    "model": ("bad.onnx", lambda cnn, bad, out: ("package", str(bad), *cnn[2:], str(out))),
    "encodings": ("bad.json", lambda cnn, bad, out: (*cnn[:3], str(bad), *cnn[4:], str(out))),
    "float tensors": ("bad.json", lambda cnn, bad, out: (*cnn, str(out), "--float-tensors", str(bad))),
    "calibration": ("bad.npz", lambda cnn, bad, out: (*cnn, str(out), "--calibration", str(bad))),
    "an input": ("bad.npy", lambda cnn, bad, out: (*cnn, str(out), "--input", f"input={bad}")),
    "a log": ("bad.log", lambda cnn, bad, out: ("diagnose", str(bad))),
    "encodings shown": ("bad.json", lambda cnn, bad, out: ("encodings", "show", str(bad))),
    "outputs compared": ("bad.npz", lambda cnn, bad, out: ("accuracy", "compare", str(bad), str(bad))),
    "a context binary": ("bad.bin", lambda cnn, bad, out: ("explain", str(bad))),
}


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "endless"])
@each_row("what", ARGUMENTS)
def test_as_an_argument(what: str, kind: str, cnn: Command, tmp_path: Path) -> None:
    name, arguments = ARGUMENTS[what]
    KINDS[kind](tmp_path / name)
    ending = run_cli(*arguments(cnn, tmp_path / name, tmp_path / "out"))
    assert ending.status in (2, 3), ending.output
    assert name in ending.output
    assert acceptable(ending), ending


def test_external_data_that_is_a_pipe(tmp_path: Path, cnn: Command) -> None:
    import numpy as np
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    weight = numpy_helper.from_array(np.zeros(4, np.float32), "w")
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 4]) for name in "xy"]
    graph = helper.make_graph([helper.make_node("Add", ["x", "w"], ["y"])], "g", values[:1], values[1:], [weight])
    onnx.save(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]),
        tmp_path / "m.onnx",
        save_as_external_data=True,
        location="w.bin",
        size_threshold=0,
    )
    (tmp_path / "w.bin").unlink()
    os.mkfifo(tmp_path / "w.bin")
    ending = run_cli("check", tmp_path / "m.onnx", "--target", "sm8650")
    assert ending.status == 3, ending.output
    assert "w.bin" in ending.output
