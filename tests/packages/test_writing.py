import json
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import deploykit
from deploykit.backend.backend import BytesFile, CopiedFile, JsonFile, PackageFile, TextFile
from deploykit.errors import DefectError, InputError, PackageError
from deploykit.packages.building import build_package
from deploykit.packages.manifests import (
    MANIFEST,
    REPORT_PAGE,
    content_of,
    hash_file,
    list_files,
    parse_manifest,
    read_manifest,
    sealed,
)
from deploykit.packages.placing import PACKAGES, RESULTS, SealedKind, check_place, publish_results, tidy
from deploykit.packages.verifying import verify_integrity, verify_package
from deploykit.packages.writing import PackageWriter, clear_left, record_run
from sample_models.networks import conv_net, save_with_external_data
from stub_backend import StubBackend
from tables import each_row
from text_models import text_model


def write(out: Path, *files: PackageFile, force: bool = False) -> Path:
    with PackageWriter(out, force=force) as writer:
        writer.add(files)
        writer.seal({"schema": 1, "deploykit": "0.1.0"})
        return writer.publish()


FILES = (
    TextFile(path="scripts/build.sh", text="#!/bin/sh\n", executable=True),
    JsonFile(path="config/a.json", value={"b": 1}),
    BytesFile(path="model/m.onnx", data=b"\0\1"),
)


def test_a_package_has_every_file_with_its_hash(tmp_path: Path) -> None:
    manifest = json.loads(write(tmp_path / "out", *FILES).read_text())
    assert json.loads(sealed({})[0]) == {"digest": sealed({})[1]}
    assert list(manifest["files"]) == ["config/a.json", "model/m.onnx", "scripts/build.sh"]
    assert list_files(tmp_path / "out") == tuple(manifest["files"])
    assert os.access(tmp_path / "out/scripts/build.sh", os.X_OK)
    rights = {path: (tmp_path / "out" / path).stat().st_mode & 0o777 for path in ("", "config/a.json")}
    assert rights == {"": 0o755, "config/a.json": 0o644}
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_a_failure_leaves_nothing_behind(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such file"):
        write(tmp_path / "out", FILES[0], CopiedFile(path="model/m.onnx", source=tmp_path / "absent"))
    assert list(tmp_path.iterdir()) == []


def test_results_that_take_hours_are_not_begun_in_an_empty_folder_without_being_forced(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    with pytest.raises(PackageError, match="was kept"):
        check_place(tmp_path / "out", force=False, kind=RESULTS)
    write(tmp_path / "out", FILES[0])
    write(tmp_path / "out", FILES[1], force=True)
    assert list_files(tmp_path / "out") == ("config/a.json",) and [path.name for path in tmp_path.iterdir()] == ["out"]


def test_only_what_deploykit_wrote_and_nobody_changed_is_replaced(tmp_path: Path) -> None:
    def refused(name: str, why: str, kind: SealedKind = PACKAGES) -> None:
        with pytest.raises(PackageError) as kept:
            check_place(tmp_path / name, force=True, kind=kind)
        assert f"{kept.value.what} {kept.value.why}".endswith(why)

    with PackageWriter(tmp_path / "own") as writer:
        (writer.folder / "made").touch()
        writer.record_outputs()
        writer.seal({"schema": 1})
        assert json.loads(writer.publish().read_text())["files"]["made"]["origin"] == "executed"
    with PackageWriter(tmp_path / "late") as writer, pytest.raises(PackageError) as taken:
        writer.seal({"schema": 1})
        (tmp_path / "late/folder").mkdir(parents=True)
        writer.publish()
    assert taken.value.what == f"{tmp_path}/late: something else came to stand there while the package was made"
    refused("own", "manifest.json (it does not say that deploykit wrote it)")
    publish_results(tmp_path / "made", lambda folder: {"a": (folder / "file").write_text("1")}, force=False)
    assert json.loads((tmp_path / "made/report.json").read_text())["a"] == 1
    assert check_place(tmp_path / "made", force=True, kind=RESULTS).startswith("sha256:")
    (tmp_path / "made/report.json").write_text((tmp_path / "made/report.json").read_text().replace("1", "2", 1))
    refused("made", "report.json (it is not there, or was changed)", RESULTS)
    (tmp_path / "link").symlink_to(tmp_path / "own")
    refused("link", "exists and is not a folder ")


BROKEN = "KeyError: 'param_encodings'"


@each_row(
    ("script", "status", "done", "causes", "said"),
    ("cd artifacts; mkdir .stamps; touch -t 202001010000 .stamps/b; touch .stamps/a", 0, ("b", "a"), None, ()),
    ("for n in 1 2 3 4 5 6 ' '; do echo $n; done; exit 3", 5, (), None, ("4", "5", "6")),
    (f'echo "{BROKEN}"; exit 1', 1, (), ["keyerror-param-encodings"], ()),
    (f'echo "{BROKEN}"; echo fine > logs/tool.log; exit 2', 5, (), [], ()),
    (f'[ -e logs/tool.log ] && echo old && exit 2; echo "{BROKEN}" > logs/tool.log; exit 1', 5, (), None, ("old",)),
)
def test_what_a_build_says(
    script: str, status: int, done: tuple[str, ...], causes: object, said: tuple[str, ...], tmp_path: Path
) -> None:
    """Of the last of two builds, beside what one that died has left."""
    write(tmp_path / "out", TextFile(path="scripts/build.sh", text=f"mkdir -p artifacts\n{script}", executable=True))
    (tmp_path / "out/logs/.build.deploykit-1").mkdir(parents=True)
    build_package(tmp_path / "out")
    report = build_package(tmp_path / "out")
    found = None if report.diagnosis is None else [cause.error.id for cause in report.diagnosis.causes]
    assert (report.exit_status, report.done, found, report.said) == (status, done, causes, said)


@pytest.mark.parametrize("path", ["/etc/passwd", "../out", "a/../../b", MANIFEST, ""])
def test_no_file_gets_out_of_the_package(tmp_path: Path, path: str) -> None:
    with pytest.raises(DefectError):
        write(tmp_path / "out", TextFile(path=path, text="x"))
    assert list(tmp_path.iterdir()) == []


ROW = {"bytes": 1, "sha256": "0"}
STEP: dict[str, Any] = {"id": "a", "tool": "t", "argv": [], "inputs": [], "outputs": []}


@each_row(
    ("changes", "problem"),
    ({"files": {"a/b": ROW}, "steps": [STEP], "executed": ["a"]}, ""),
    ({"steps": [STEP]}, "steps[0] has no command"),
    *(
        ({"files": {path: ROW}}, f"files.{path} is no file of a package")
        for path in ("/a", "../a", "a//b", MANIFEST, "")
    ),
    (
        {"files": {"a": {**ROW, "bytes": -1}}},
        "is not what deploykit writes (Expected `int` >= 0 - at `$.files[...].bytes`)",
    ),
)
def test_a_manifest_that_deploykit_would_not_write_is_refused(changes: dict[str, Any], problem: str) -> None:
    data = sealed({"schema": 1, "files": {}, **changes})[0].encode()
    if not problem:
        assert parse_manifest(data, where="m")["files"] == changes["files"]
        return
    with pytest.raises(PackageError) as refused:
        parse_manifest(data, where="m")
    assert (refused.value.what, refused.value.why) == (f"m: {problem}", "deploykit writes no such manifest")


def test_what_a_device_is_given_is_all_but_logs_records_and_the_page() -> None:
    files = {path: {"sha256": path} for path in ("b", "logs/x", "artifacts/runs/1.json", REPORT_PAGE, "artifacts/a")}
    assert content_of({"files": files}) == content_of({"files": {path: files[path] for path in ("artifacts/a", "b")}})
    assert content_of({"files": files}) != content_of({"files": {**files, "b": {"sha256": "c"}}})


@each_row(
    ("change", "bad"),
    (lambda out: (out / "config/a.json").chmod(0o755), ("files-modes", "may run, or no longer, unlike recorded")),
    (lambda out: (out / "config/a.json").chmod(0o645), ("files-modes", "may run, or no longer, unlike recorded")),
    (lambda out: (out / "config/a.json").chmod(0o2644), ("files-modes", "may run, or no longer, unlike recorded")),
    (lambda out: (out / "empty").mkdir(), ("files-no-extra", "not in the manifest")),
    (lambda out: (out / "logs").mkdir(), ()),
    (lambda out: (out / "config/link").symlink_to(out), ("files-regular", "symbolic links")),
)
def test_each_way_a_package_can_be_changed_is_told(
    change: Callable[[Path], None], bad: tuple[str, ...], tmp_path: Path
) -> None:
    write(tmp_path / "out", *FILES)
    change(tmp_path / "out")
    seen = [(check.id, check.detail) for check in verify_integrity(tmp_path / "out") if not check.ok]
    name = {"files-modes": "config/a.json", "files-no-extra": "empty/", "files-regular": "config/link"}
    wanted = [(bad[0], f"{bad[1]}: {name[bad[0]]}")] if bad else []
    assert seen == wanted + [("files-no-extra", "not in the manifest: config/link")] * ("files-regular" in bad)


CHANGES = {"os.rename", "os.link", "os.remove", "os.rmdir", "os.mkdir"}


def died_at(change: int, work: Callable[[], object]) -> bool:
    """Whether a process that does this work is killed at the change of the disk with this number, if it has so many."""
    if not (child := os.fork()):
        left = iter(range(change))
        sys.addaudithook(lambda event, _: event in CHANGES and next(left, None) is None and os._exit(9))
        work()
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9


def test_a_package_that_is_killed_at_any_change_while_it_replaces_another_leaves_one_of_them(tmp_path: Path) -> None:
    out, change = tmp_path / "out", 0
    while write(out, *FILES, force=True) and died_at(change, lambda: write(out, FILES[0], force=True)):
        # A disk lists a folder in its own order: of a package half removed, the manifest may be what went first.
        for gone in tmp_path.glob("*/gone/manifest.json"):
            gone.unlink()
        assert not out.exists() or all(check.ok for check in verify_integrity(out)), change
        write(out, FILES[0], force=True)
        assert list(tmp_path.iterdir()) == [out], change
        change += 1
    assert change > 10


def test_what_a_run_that_died_left_is_put_back_removed_or_told(tmp_path: Path) -> None:
    out, left, told = tmp_path / "out", tmp_path / ".out.deploykit-1", list[str]()
    write(left / "old", *FILES)
    assert tidy(out, told.append) and (out / MANIFEST).is_file() and not left.exists()
    write(left / "old", FILES[0])
    (left / "new").mkdir()
    assert not tidy(out, told.append) and not left.exists() and len(list_files(out)) == len(FILES)
    write(left / "old", FILES[0])
    out.rename(tmp_path / "aside")
    out.symlink_to(tmp_path / "nowhere")  # what stands in its place is the user's, wherever it leads
    assert not tidy(out, print) and out.is_symlink() and not left.exists()
    out.unlink()
    (tmp_path / "aside").rename(out)
    write(left / "new", FILES[0])
    (left / "new/notes").touch()
    (left / "mine").touch()
    (left / "gone").symlink_to(tmp_path)
    assert not tidy(out, told.append) and left.exists()
    kept = f"{left}: looks as if a run that died had left it, and is kept: it holds gone, mine, new/notes"
    assert told == [*[f"{left.name}: left by a run that died, removed"] * 2, kept]


def a_run(package: Path) -> None:
    clear_left(package)
    record_run(package, read_manifest(package), {}, {"artifacts/runs/1.json": "{}"}, "a page")


def without_second_names(package: Path) -> None:
    def refused(*_: object) -> None:
        raise OSError

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Path, "hardlink_to", refused)
        build_package(package)


ALL = [pytest.param(work, 1, marks=pytest.mark.heavy) for work in (build_package, without_second_names)]


@pytest.mark.parametrize(("work", "step"), [(build_package, 3), (a_run, 2), *ALL])
def test_what_is_killed_at_any_change_leaves_a_whole_package(
    work: Callable[[Path], object], step: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second build makes a file new, changes two, leaves one as it was and loses one."""
    monkeypatch.setattr("deploykit.packages.verifying.load_backend", lambda _: StubBackend())
    script = (
        "mkdir -p artifacts; cd artifacts; echo a | tee -a c >> a; echo same > same; [ -e b ] && mv b new || echo b > b"
    )
    whole, package, change, mixed = tmp_path / "whole", tmp_path / "out", 0, list[str]()
    files = TextFile(path="scripts/build.sh", text=script, executable=True), TextFile(path=REPORT_PAGE, text="")
    write(whole, *files)
    assert build_package(whole).status == 0
    while shutil.copytree(whole, package) and died_at(change, lambda: work(package)):
        mixed += (check.detail for check in verify_package(package).checks if not check.ok)
        clear_left(package)
        rows = [(path, row) for path, row in read_manifest(package)["files"].items() if path != REPORT_PAGE]
        assert all(hash_file(package / path)[1] == row["sha256"] for path, row in rows), change
        work(package)
        assert verify_package(package, expect_digest=read_manifest(package)["digest"]).ok, change
        shutil.rmtree(package)
        change += step
    done = [path in list_files(package) for path in ("artifacts/b", "artifacts/new", "artifacts/runs/1.json")]
    assert [told.partition("it): ")[2] for told in mixed] == ([] if work is a_run else ["artifacts/c"])
    assert change > 10 and done == ([True, False, True] if work is a_run else [False, True, False])


def test_a_package_with_a_thousand_folders_in_each_other_is_kept(tmp_path: Path) -> None:
    write(tmp_path / "out", FILES[0])
    places = [tmp_path / "out" / ("d/" * depth) for depth in range(1, 1100)]
    try:
        for place in places:
            place.mkdir()
        with pytest.raises(PackageError, match="not everything in it was written by deploykit"):
            write(tmp_path / "out", FILES[1], force=True)
        assert ("d/" * 501)[:-1] in list_files(tmp_path / "out")
    finally:  # pytest itself cannot remove such a folder
        for place in filter(Path.exists, reversed(places)):
            place.rmdir()


@pytest.mark.skipif(not Path("/proc/self/io").exists(), reason="elsewhere the system does not count what is read")
def test_weights_are_read_to_look_and_to_copy_and_not_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their hashes come from the copying: what was written is not read back."""

    def count() -> int:
        return int(Path("/proc/self/io").read_text().split()[1])

    for name in ("_SETTLED", "_SETTLED_FINE"):  # a file that was written just now is read twice, to be sure
        monkeypatch.setattr(f"deploykit.packages.manifests.{name}", 0)
    stored: dict[str, Any] = {f"w{i}": np.eye(1024, dtype=np.float32) for i in range(8)}  # 4 MiB: read, not mapped
    lines = " ".join(f"t{i + 1} = MatMul (t{i}, w{i})" for i in range(8))
    model = text_model("float[1,1024] t0", lines, "float[1,1024] t8", **stored)
    path, out = save_with_external_data(model, tmp_path / "m.onnx"), tmp_path / "out"
    before, whole = count(), (tmp_path / "weights.bin").stat().st_size
    deploykit.package(path, target="sm8650", sdk="2.33", out=out, compile=False)
    assert (out / "model" / "weights.bin").stat().st_size == whole
    assert 1.5 < (count() - before) / whole < 2.5


@pytest.mark.parametrize("target", ["sm8650", "vek385"])
def test_data_with_the_name_of_the_model_itself_is_refused(tmp_path: Path, target: str) -> None:
    """A model that names itself as the file of its weights; found by an attack."""
    model = conv_net()
    stored = model.graph.initializer[0]
    stored.ClearField("raw_data")
    stored.ClearField("float_data")
    stored.data_location = 1
    stored.external_data.add(key="location", value="m.onnx")
    model.metadata_props.add(key="padding", value="x" * 100_000)  # the file is long enough for what it claims
    (tmp_path / "m.onnx").write_bytes(model.SerializeToString())
    with pytest.raises(InputError, match="is the model itself"):
        deploykit.package(tmp_path / "m.onnx", target=target, out=tmp_path / "out", compile=False)
    assert not (tmp_path / "out").exists()
