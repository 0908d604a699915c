"""Links that come at the worst moment: for a file between look and open, for a place before a package is put there."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from deploykit.backend.backend import TextFile
from deploykit.errors import InputError, PackageError
from deploykit.packages import placing, verifying
from deploykit.packages.manifests import MANIFEST, read_manifest
from deploykit.packages.writing import PackageWriter
from deploykit.system.files import open_regular, read_regular
from victims import run_here

SCRIPT = "scripts/build.sh"


def linked(path: Path, aside: Path) -> None:
    """What stands at ``path`` is now somewhere else, with a link to it in its place."""
    path.rename(aside)
    path.symlink_to(aside)


@pytest.fixture
def after_looking(monkeypatch: pytest.MonkeyPatch) -> Callable[[Any, Callable[[], None]], None]:
    """Let something happen the moment after a module has listed the files of a folder."""

    def arrange(module: Any, act: Callable[[], None]) -> None:
        look = module.list_files
        done: list[bool] = []

        def listed(*words: Any, **named: Any) -> Any:
            found = look(*words, **named)
            if not done:
                done.append(True)
                act()
            return found

        monkeypatch.setattr(module, "list_files", listed)

    return arrange


def test_a_link_is_no_file(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    (tmp_path / "link").symlink_to("file")
    assert read_regular(tmp_path / "link") == b"x"
    assert read_regular(tmp_path / "file", follow=False) == b"x"
    with pytest.raises(InputError, match="link"):
        read_regular(tmp_path / "link", follow=False)


def test_a_link_that_comes_between_look_and_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("x")
    look = Path.stat

    def swapped(path: Path, **named: Any) -> Any:
        found = look(path, **named)
        linked(path, tmp_path / "aside")
        return found

    monkeypatch.setattr(Path, "stat", swapped)
    with pytest.raises(InputError, match="cannot be read"):
        open_regular(tmp_path / "file", follow=False)


@pytest.mark.parametrize("path", [SCRIPT, "model/model.onnx", "config"])
def test_a_recorded_file_that_becomes_a_link_while_a_package_is_verified(
    path: str, package: Path, tmp_path: Path, after_looking: Callable[[Any, Callable[[], None]], None]
) -> None:
    """Its content is the same; who changes that later changes nothing in the package."""
    after_looking(verifying, lambda: linked(package / path, tmp_path / "aside"))
    report = verifying.verify_package(package, expect_digest=read_manifest(package)["digest"])
    assert not report.ok and any(path in check.detail for check in report.checks if not check.ok)


def test_a_manifest_that_is_a_link_is_none(package: Path, tmp_path: Path) -> None:
    linked(package / MANIFEST, tmp_path / "aside")
    with pytest.raises(PackageError, match=MANIFEST):
        verifying.verify_package(package)
    assert run_here("build", package).status == 6


def test_a_link_among_what_force_would_replace_is_kept(
    package: Path, tmp_path: Path, after_looking: Callable[[Any, Callable[[], None]], None]
) -> None:
    after_looking(placing, lambda: linked(package / SCRIPT, tmp_path / "aside"))
    assert placing.PACKAGES.strangers(package) == (f"{SCRIPT} (changed)",)


@pytest.mark.parametrize("over", [False, True])
def test_a_place_that_becomes_a_link_is_kept(over: bool, package: Path, tmp_path: Path) -> None:
    """It leads to a folder of the user's, which a package would be moved over, or be written into."""
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    (theirs / "mine.txt").write_text("mine")
    if not over:
        shutil.rmtree(package)
    with pytest.raises(PackageError), PackageWriter(package, force=over) as writer:
        writer.add([TextFile(path="a", text="a")])
        writer.seal({"schema": 1, "deploykit": "0.1.0"})
        if over:
            shutil.rmtree(package)
        package.symlink_to(theirs)
        writer.publish()
    assert package.is_symlink()
    assert [path.read_text() for path in theirs.iterdir()] == ["mine"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "theirs"]
