"""The place of a package: what is replaced, what is kept, two runs at once, runs that die, disks that are full."""

import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from deploykit.errors import PackageError
from deploykit.packages.writing import PackageWriter
from victims import MODEL, run_cli, run_here

Command = tuple[str, ...]


def content(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_force_keeps_a_folder_that_only_looks_like_a_package(cnn: Command, tmp_path: Path) -> None:
    out = tmp_path / "w"
    (out / "src").mkdir(parents=True)
    (out / "src" / "thesis.tex").write_text("mine")
    for manifest in (
        "{}",
        '{"schema": 1, "files": {}}',
        '{"schema": 1, "deploykit": "0.1", "files": {}, "digest": "x"}',
    ):
        (out / "manifest.json").write_text(manifest)
        ending = run_here(*cnn, out, "--force")
        assert ending.status == 6, ending.output
        assert (out / "src" / "thesis.tex").read_text() == "mine"


@pytest.mark.parametrize("change", ["a new file", "a changed file", "a signature", "a link"])
def test_force_names_and_keeps_what_users_put_there(change: str, cnn: Command, package: Path, tmp_path: Path) -> None:
    out = package
    name = {"a new file": "notes.txt", "a changed file": "scripts/build.sh", "a signature": "manifest.json.sig"}.get(
        change, "artifacts"
    )
    if change == "a link":
        (out / name).symlink_to(tmp_path)
    else:
        (out / name).write_text("mine")
    ending = run_here(*cnn, out, "--force")
    assert ending.status == 6, ending.output
    assert name in ending.output
    assert (out / name).is_symlink() or (out / name).read_text() == "mine"


def test_force_replaces_a_package_as_it_was_made(cnn: Command, package: Path, tmp_path: Path) -> None:
    """By the same bytes, none of which tell of this machine."""
    before = content(package)
    assert run_here(*cnn, package, "--force").status == 0
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    assert content(package) == before
    here = (str(MODEL.parent).encode(), str(tmp_path).encode())
    assert [name for name, data in before.items() if any(place in data for place in here)] == []


@pytest.mark.heavy
@pytest.mark.parametrize("more", [(), ("--force",)])
def test_of_two_runs_at_one_place_one_is_told_no(more: Command, cnn: Command, tmp_path: Path) -> None:
    """They are one and the same package here, so with --force both may say yes; another model makes the difference."""
    out = tmp_path / "out"
    other = tuple(word.replace("/cnn/", "/cnn_bnfold/") for word in cnn)
    if more:
        assert run_cli(*cnn, out).status == 0
    with ThreadPoolExecutor(2) as pool:
        first, second = pool.map(lambda command: run_cli(*command, out, *more), (cnn, other))
    statuses = sorted((first.status or 0, second.status or 0))
    assert statuses in ([0, 6], [0, 0]) if more else statuses == [0, 6], first.output + second.output
    assert run_cli("verify", out).status == 0
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_a_file_that_comes_while_the_package_is_made_is_kept(cnn: Command, tmp_path: Path) -> None:
    from deploykit.backend.backend import TextFile
    from deploykit.errors import PackageError
    from deploykit.packages.writing import PackageWriter

    for force in (False, True):
        out = tmp_path / f"out-{force}"
        with pytest.raises(PackageError, match="something else came"), PackageWriter(out, force=force) as writer:
            writer.add([TextFile(path="a", text="a")])
            writer.seal({"schema": 1, "deploykit": "0.1.0"})
            out.mkdir()
            (out / "mine").write_text("mine")
            writer.publish()
        assert content(out) == {"mine": b"mine"}
    assert len([*tmp_path.iterdir()]) == 2


@pytest.mark.heavy
@pytest.mark.parametrize("largest", [4 << 10, 20 << 10])
@pytest.mark.parametrize("over", [False, True])
def test_a_disk_that_is_full_within_a_file(over: bool, largest: int, cnn: Command, made: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    if over:
        shutil.copytree(made, out)
    ending = run_cli(*cnn, out, *(["--force"] if over else []), largest=largest)
    assert ending.status == 6, ending.output
    assert "cannot be written" in ending.output
    assert [path.name for path in tmp_path.iterdir()] == (["out"] if over else [])
    assert not over or content(out) == content(made)


def test_an_output_that_is_full() -> None:
    full = Path("/dev/full")
    if not full.exists():
        pytest.skip("no /dev/full here")
    with full.open("w") as output:
        argv = [sys.executable, "-m", "deploykit", "targets", "--json"]
        done = subprocess.run(argv, stdout=output, stderr=subprocess.PIPE, encoding="utf-8", check=False)
    assert done.returncode == 6 and "No space left" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_package_that_was_set_aside_is_put_back(cnn: Command, made: Path, tmp_path: Path) -> None:
    """What a run leaves that dies between two renames, where the system cannot exchange two names in one step."""
    shutil.copytree(made, tmp_path / ".out.deploykit-dead" / "old")
    shutil.copytree(made, tmp_path / ".out.deploykit-dead" / "new")
    ending = run_here(*cnn, tmp_path / "out")
    assert ending.status == 6, ending.output
    assert "put back" in ending.output
    assert content(tmp_path / "out") == content(made)
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


@pytest.mark.parametrize(
    ("words", "status"),
    [
        (("check", "m.onnx", "--target", "NAME"), 4),
        (("targets", "NAME"), 4),
        *(((word, "NAME"), 3) for word in ("verify", "build", "explain")),
        (("compat", "binary", "NAME"), 3),
        (("package", "m.onnx", "--target", "sm8650", "-o", "NAME"), 6),
    ],
    ids=lambda value: value[0] if isinstance(value, tuple) else "",
)
def test_a_name_that_no_file_can_have_is_a_wrong_name(words: tuple[str, ...], status: int, tmp_path: Path) -> None:
    shutil.copy(MODEL, tmp_path / "m.onnx")
    ending = run_here(*(word.replace("NAME", "s" * 300) for word in words), cwd=tmp_path)
    assert ending.status == status, ending.output


def test_a_folder_that_vanishes_is_said(tmp_path: Path) -> None:
    """That of the package while it grows, and the one that the command runs in."""
    with pytest.raises(PackageError, match="cannot be written"), PackageWriter(tmp_path / "a" / "out") as writer:
        shutil.rmtree(tmp_path / "a")
        (writer.folder / "x").read_text()
    (tmp_path / "b").mkdir()
    code = "import os, sys; os.rmdir(os.getcwd()); from deploykit.cli import main; sys.argv[1:] = ['doctor']; main()"
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path / "b", capture_output=True, check=False)
    assert done.returncode == 6, done.stderr
