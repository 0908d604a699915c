"""Pipes, devices and endless files under the names of files, and texts that are no UTF-8: each gets an answer."""

import os
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from tables import each_row
from victims import MODEL, acceptable, run_cli

Command = tuple[str, ...]


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


KINDS: dict[str, Callable[[Path], None]] = {
    "pipe": os.mkfifo,
    "device": lambda path: path.symlink_to("/dev/zero"),
    "endless": endless,
    "socket": plug,
}


@pytest.mark.heavy
@pytest.mark.parametrize("kind", KINDS)
@each_row("name", "manifest.json", "model/model.onnx", "encodings/model.json", "scripts/build.sh")
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


@pytest.mark.heavy
@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "endless"])
@each_row("what", *ARGUMENTS)
def test_as_an_argument(what: str, kind: str, cnn: Command, tmp_path: Path) -> None:
    name, arguments = ARGUMENTS[what]
    KINDS[kind](tmp_path / name)
    ending = run_cli(*arguments(cnn, tmp_path / name, tmp_path / "out"))
    assert ending.status in (2, 3), ending.output
    assert name in ending.output
    assert acceptable(ending), ending


DEEP = (b"a = " + b"[" * 5000 + b"]" * 5000, b"width = " + b"9" * 6000, b"a." * 3000 + b"b=1", b"\xff\xfe", b"[" * 3000)


@each_row("data", *DEEP)
def test_deep_tables(data: bytes, tmp_path: Path) -> None:
    from deploykit.accuracy.samples.images import read_recipe
    from deploykit.errors import DeploykitError

    (tmp_path / "calibration.toml").write_bytes(data)
    with pytest.raises(DeploykitError) as caught:
        read_recipe(tmp_path)
    assert caught.value.exit_status in (2, 3)


NAMES = ("a" * 300, "caf\udce9.onnx", "a\nb.onnx", "-rf.onnx", "$(touch pwned).onnx", "x\x1b[31m.onnx")


@pytest.mark.heavy
@each_row("name", *NAMES)
def test_names_of_files_and_packages(name: str, cnn: Command, tmp_path: Path) -> None:
    path = tmp_path / name
    try:
        path.write_bytes(MODEL.read_bytes())
    except OSError:
        assert len(name) > 255
    for command in ("check", "package"):
        more = ("-o", str(tmp_path / "out" / command), "--no-compile") if command == "package" else ()
        ending = run_cli(command, str(path), "--target", "sm8650", "--sdk", "2.33", *more, cwd=tmp_path)
        assert acceptable(ending), ending
    (tmp_path / "place").mkdir()
    ending = run_cli(*cnn, name, cwd=tmp_path / "place")
    assert acceptable(ending), ending
    assert not (tmp_path / "pwned").exists()
