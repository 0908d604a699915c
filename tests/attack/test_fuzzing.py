"""Bad files through the command line: each is answered, with a published status, in bounded time and memory."""

from __future__ import annotations

import os
import random
import shutil
import tempfile
from pathlib import Path

import pytest

from attacks.kinds import KINDS, MODEL, Ground
from attacks.victims import acceptable, run_cli, run_many
from tables import each_row

pytestmark = pytest.mark.heavy
Command = tuple[str, ...]
CASES = int(os.environ.get("DEPLOYKIT_ATTACK_CASES", "1"))
"""Of each kind, fewer of the costly ones; ``python tests/lab/attack.py`` tries as many as its time allows."""
_AT_ONCE = 12


@pytest.fixture(scope="module")
def ground(tmp_path_factory: pytest.TempPathFactory) -> Ground:
    return Ground(tmp_path_factory.mktemp("ground"))


@pytest.mark.parametrize("first", range(0, len(KINDS), _AT_ONCE))
def test_bad_files(first: int, seed: int, ground: Ground, tmp_path: Path) -> None:
    """What got no answer is kept and named."""
    chance = random.Random(f"{seed} {first}")
    kinds = [kind for kind in KINDS[first : first + _AT_ONCE] if not kind.costly or chance.random() < 0.2]
    chosen = [kind for kind in kinds for _ in range(CASES)]
    cases = [kind.arrange(chance, _folder(tmp_path, number), ground) for number, kind in enumerate(chosen)]
    faults = []
    for number, ending in enumerate(run_many(cases)):
        if not acceptable(ending):
            kept = shutil.copytree(tmp_path / str(number), Path(tempfile.mkdtemp(prefix="attack-"), "case"))
            faults.append(f"{chosen[number].id} with {kept}, {cases[number]}: {ending}")
    assert not faults, "\n".join(faults)


def _folder(parent: Path, number: int) -> Path:
    folder = parent / str(number)
    folder.mkdir()
    return folder


def test_most_bad_files_get_behind_the_first_look(seed: int, ground: Ground, tmp_path: Path) -> None:
    """A harness whose every file is refused at the door tests the door only."""
    chance = random.Random(seed)
    kinds = [kind for kind in KINDS if kind.id.startswith(("check of", "rewrites of", "verify a forged"))]
    endings = run_many([kind.arrange(chance, _folder(tmp_path, n), ground) for n, kind in enumerate(kinds)])
    assert sum(ending.status in (0, 1) for ending in endings) >= len(endings) // 4
    assert not [ending for ending in endings if ending.status == 2]


DEEP = (
    b"a = " + b"[" * 5000 + b"]" * 5000,
    b"width = " + b"9" * 6000,
    b"a." * 3000 + b"b = 1",
    b"\xff\xfe",
    b"[" * 3000,
)


@each_row("data", DEEP)
def test_deep_tables(data: bytes, tmp_path: Path) -> None:
    from deploykit.accuracy.samples.images import read_recipe
    from deploykit.errors import DeploykitError

    (tmp_path / "calibration.toml").write_bytes(data)
    with pytest.raises(DeploykitError) as caught:
        read_recipe(tmp_path)
    assert caught.value.exit_status in (2, 3)


NAMES = ("a" * 300, "caf\udce9.onnx", "a\nb.onnx", "-rf.onnx", "$(touch pwned).onnx", "x\x1b[31m.onnx")


@each_row("name", NAMES)
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
