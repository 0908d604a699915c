"""Bad files through the command line: each is answered, with a published status, in bounded time and memory."""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path

import pytest

from attacks.kinds import KINDS, MODEL, Kind, drawn
from attacks.mutations import broken_bytes, broken_json
from attacks.victims import acceptable, run_cli

pytestmark = pytest.mark.heavy
CASES = int(os.environ.get("DEPLOYKIT_ATTACK_CASES", "2"))
"""Of each kind; ``python tests/attack`` tries as many as its time allows."""


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.id)
def test_bad_files(kind: Kind, seed: int) -> None:
    """A file that gets no answer is kept and named."""

    def answered(data: bytes) -> None:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, kind.name)
            path.write_bytes(data)
            words = [w.replace("FILE", str(path)).replace("OUT", str(Path(folder, "out"))) for w in kind.arguments]
            ending = run_cli(*words)
        if not acceptable(ending):
            kept = Path(tempfile.mkdtemp(prefix="attack-"), kind.name)
            kept.write_bytes(data)
            pytest.fail(f"{' '.join(words)} with {kept}: {ending}", pytrace=False)

    drawn(kind.strategy, CASES, seed, answered)


def test_manifests(cnn: tuple[str, ...], seed: int, tmp_path: Path) -> None:
    """Sealed again after each change, so that what lies behind the digest is reached."""
    from deploykit.packages.manifests import sealed_text

    package = tmp_path / "out"
    assert run_cli(*cnn, package).status == 0

    def answered(data: bytes) -> None:
        value = json.loads(data)
        text = sealed_text(value) if isinstance(value, dict) else data.decode()
        (package / "manifest.json").write_text(text, "utf-8")
        for command in ("verify", "build"):
            ending = run_cli(command, package)
            assert acceptable(ending), (text, ending)

    drawn(broken_json((package / "manifest.json").read_bytes()), CASES * 2, seed, answered)


TABLE = b"""schema = 1
width = 128
height = 128
resize = "stretch"
scale = 0.0039
mean = [0.0, 0.0, 0.0]
"""


def read_table(folder: Path, data: bytes) -> None:
    from deploykit.errors import DeploykitError
    from deploykit.numerics.samples.recipe import read_recipe

    (folder / "calibration.toml").write_bytes(data)
    try:
        read_recipe(folder)
    except DeploykitError as error:
        assert error.exit_status in (2, 3)


def test_tables(seed: int, tmp_path: Path) -> None:
    """The table that comes from strangers: how images become an input."""
    drawn(broken_bytes(TABLE), CASES * 50, seed, lambda data: read_table(tmp_path, data))


DEEP = (
    b"a = " + b"[" * 5000 + b"]" * 5000,
    b"width = " + b"9" * 6000,
    b"a." * 3000 + b"b = 1",
    b"\xff\xfe",
    b"[" * 3000,
)


@pytest.mark.parametrize("data", DEEP, ids=range(len(DEEP)))
def test_deep_tables(data: bytes, tmp_path: Path) -> None:
    read_table(tmp_path, data)


NAMES = ("a" * 300, "caf\udce9.onnx", "a\nb.onnx", "-rf.onnx", "$(touch pwned).onnx", "x\x1b[31m.onnx")


@pytest.mark.parametrize("name", NAMES)
def test_names_of_files(name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    try:
        path.write_bytes(MODEL.read_bytes())
    except OSError:
        assert len(name) > 255
    for command in ("check", "package"):
        more = ("-o", str(tmp_path / "out" / command), "--no-compile") if command == "package" else ()
        ending = run_cli(command, str(path), "--target", "sm8650", "--sdk", "2.33", *more, cwd=tmp_path)
        assert acceptable(ending), ending
    assert not (tmp_path / "pwned").exists()


@pytest.mark.parametrize("out", ["a" * 300, "a/" * 200 + "b", "caf\udce9", "\x1b[31mout"])
def test_names_of_packages(out: str, cnn: tuple[str, ...], tmp_path: Path) -> None:
    ending = run_cli(*cnn, out, cwd=tmp_path)
    assert acceptable(ending), ending
