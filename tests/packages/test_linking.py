"""Links within reports, and what they say about wrong encodings."""

import errno
import hashlib
import json
import os
import re
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import deploykit
from deploykit.accuracy.judge.verdict import JudgedNumber
from deploykit.backend.backend import CopiedFile
from deploykit.encodings.formats.aimet import write_encodings
from deploykit.errors import PackageError
from deploykit.packages import manifests, writing
from deploykit.packages.manifests import sealed
from deploykit.packages.writing import PackageWriter
from sample_models.cell_detectors import cell_detector, cell_pictures
from sample_models.min_max import min_max_encodings
from tables import each_row

CONTENT = b"weights" * 100


@pytest.fixture(autouse=True)
def _small_is_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writing, "_WORTH_LINKING", len(CONTENT))
    monkeypatch.setattr(manifests, "_LARGE", 16)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "model.data"
    path.write_bytes(CONTENT)
    path.chmod(0o600)
    os.utime(path, ns=(1, 1))
    return path


@pytest.fixture
def told() -> list[str]:
    return []


def written(source: Path, out: Path, told: list[str], *, link: bool = True) -> PackageWriter:
    with PackageWriter(out, link=link, tell=told.append) as writer:
        writer.add([CopiedFile(path="model/model.data", source=source)])
        writer.seal({"schema": 1, "backend": "qnn-htp", "deploykit": "0"})
        writer.publish()
    return writer


def test_the_package_is_the_same_and_takes_no_room(source: Path, tmp_path: Path, told: list[str]) -> None:
    (tmp_path / "name").symlink_to(source)
    linked, copied = (written(tmp_path / "name", tmp_path / name, told, link=name == "a") for name in "ab")
    assert linked.digest == copied.digest
    assert (tmp_path / "a/model/model.data").lstat().st_ino == source.stat().st_ino, "no link to a link"
    assert source.stat().st_mode & 0o777 == 0o600, "the user's file keeps its rights"
    assert len(told) == 1 and "changes the package" in told[0]


def test_another_disk_is_refused(
    source: Path, tmp_path: Path, told: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def apart(_source: Path, _place: Path) -> bool:
        raise OSError(errno.EXDEV, "Invalid cross-device link")

    monkeypatch.setattr(os, "link", apart)
    with pytest.raises(PackageError, match="cannot be linked") as refused:
        written(source, tmp_path / "p", told)
    assert refused.value.why == "they lie on different file systems"
    assert not (tmp_path / "p").exists()


@pytest.mark.skipif(os.name == "nt", reason="there are no such rights")
def test_a_file_that_can_run_is_refused(source: Path, tmp_path: Path, told: list[str]) -> None:
    for mode in (0o641, 0o4644, 0o2644, 0o1644):
        source.chmod(mode)
        with pytest.raises(PackageError, match="may be executed"):
            written(source, tmp_path / "p", told)


def test_links_are_read_once(source: Path, tmp_path: Path, told: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    later = source.stat().st_ctime_ns + 10_000_000_000
    monkeypatch.setattr(time, "time_ns", lambda: later)
    seen = written(source, tmp_path / "p", told).witnessed
    monkeypatch.setattr(manifests, "hash_file", lambda *_a, **_k: (0, "read again"))
    assert seen.hash(source) == (len(CONTENT), hashlib.sha256(CONTENT).hexdigest())
    with source.open("r+b") as file:
        file.write(b"W")
    assert seen.hash(source) == (0, "read again")


Entry = dict[str, Any]


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder, model, feeds = tmp_path_factory.mktemp("given"), cell_detector(), cell_pictures(4)
    onnx.save(model, folder / "model.onnx")
    (folder / "model.encodings").write_text(write_encodings(min_max_encodings(model, feeds, bits=16), "1.0.0"))
    np.savez(folder / "data.npz", images=np.stack([feed["images"] for feed in feeds]))
    asked: Entry = {"encodings": folder / "model.encodings", "calibration": folder / "data.npz", "compile": False}
    made = deploykit.package(folder / "model.onnx", target="sm8650", sdk="2.33", out=folder / "out", **asked)
    assert made.status.right.state == "yes", made.status.right.why
    return folder / "out"


def _smaller(by: float) -> Callable[[str, Entry], Entry]:
    return lambda _, entry: {**entry, **{key: entry[key] / by for key in ("scale", "min", "max")}}


def _half_seen(name: str, entry: Entry) -> Entry:
    """The grid of what there is to see ends where half of it begins."""
    if name != "there":
        return entry
    scale = (0.2 - entry["min"]) / (2 ** entry["bitwidth"] - 1)
    return {**entry, "max": 0.2, "scale": scale, "offset": round(entry["min"] / scale)}


def _seal(package: Path, path: Path) -> None:
    manifest = json.loads((package / "manifest.json").read_text("utf-8"))
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    manifest["files"][path.relative_to(package).as_posix()] |= {"sha256": digest, "bytes": path.stat().st_size}
    (package / "manifest.json").write_text(sealed(manifest)[0], "utf-8")


def test_a_digest_is_known_however_it_is_typed(package: Path) -> None:
    digest = manifests.read_manifest(package)["digest"]
    assert deploykit.verify(package, expect_digest=f" {digest.removeprefix('sha256:').upper()}\n").ok


def test_what_cannot_be_judged_again_is_no_pass(package: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(package, tmp_path / "copy")
    (copy / "encodings" / "model.json").write_text("{}", "utf-8")
    _seal(copy, copy / "encodings" / "model.json")
    report = deploykit.verify(copy, numerics=True)
    (check,) = (check for check in report.checks if check.id == "numerics")
    assert not check.ok and "no 'version'" in check.detail and report.status.right.broken


@pytest.mark.parametrize(
    ("change", "lost"), [(_smaller(20), "0 of 112 detections kept"), (_half_seen, "scores are 0.2")]
)
def test_wrong_encodings_are_a_no(
    change: Callable[[str, Entry], Entry], lost: str, package: Path, tmp_path: Path
) -> None:
    copy = shutil.copytree(package, tmp_path / "copy")
    path = copy / "encodings" / "model.json"
    value = json.loads(path.read_text("utf-8"))
    entries = value["activation_encodings"]
    value["activation_encodings"] = {name: [change(name, entry) for entry in held] for name, held in entries.items()}
    path.write_text(json.dumps(value), "utf-8")
    report = deploykit.verify(copy, numerics=True)
    assert not report.ok and not report.status.intact and report.status.right.state == "not judged"
    _seal(copy, path)
    report = deploykit.verify(copy, numerics=True)
    assert not report.ok
    assert report.status.right.state == "no" and lost in report.status.right.why.partition("(")[0]


@each_row(
    ("name", "operator", "second", "why"),
    ("boxes", "Add", 20.0, "the packaged model computes something else in float: boxes lie 20 pixels off"),
    ("scores", "Mul", 0.5, "the packaged model computes something else in float: 88.2% of the detections kept"),
    (
        "scores",
        "Mul",
        np.float64(0.5),
        "the packaged model computes something else in float: scores",
    ),  # counted are so few that chance may be to blame
    ("scores", "Sub", 0.5, "the packaged model computes something else in float: 46.4% of the detections kept"),
    ("scores", "Pow", np.nan, "the packaged model computes something else in float: scores: 1024 values are NaN"),
    ("scores", "", 0.0, "model/model.onnx: gives scores, boxes, and the given model boxes, scores"),
    ("scores", "Max", 0.02, "the packaged model computes something else in float: scores"),
    ("boxes", "Add", 0.0, "112 of 112 detections kept at score 0.25, 0 new; the encodings by themselves"),
)
def test_another_model_in_the_package_is_a_no(
    name: str, operator: str, second: float, why: str, package: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is held against what the given model found, even where its graph shows nothing of that kind any more."""
    monkeypatch.setattr(JudgedNumber, "is_open", isinstance(second, np.float64))
    copy = shutil.copytree(package, tmp_path / "copy")
    path = copy / "model" / "model.onnx"
    model = onnx.load(path)
    if operator:
        (maker,) = (node for node in model.graph.node if name in node.output)
        maker.output[0] = "inner"
        model.graph.initializer.append(onnx.numpy_helper.from_array(np.array(second, np.float32), "second"))
        model.graph.node.append(onnx.helper.make_node(operator, ["inner", "second"], [name]))
    else:
        model.graph.output.append(model.graph.output.pop(0))
    onnx.save(model, path)
    _seal(copy, path)
    report = deploykit.verify(copy, numerics=True)
    right = operator == "Add" and not second
    assert report.ok is right and report.status.right.why.startswith(why), report.status.right.why


def test_the_report_of_a_wrong_package_looks_like_no_other(package: Path, tmp_path: Path) -> None:
    given = package.parent
    wrong = json.loads((given / "model.encodings").read_text("utf-8"))
    for entry in wrong["activation_encodings"]:
        entry["scale"] = [scale / 20 for scale in entry["scale"]]
    (tmp_path / "wrong.encodings").write_text(json.dumps(wrong), "utf-8")
    asked: Entry = {"encodings": tmp_path / "wrong.encodings", "calibration": given / "data.npz", "compile": False}
    made = deploykit.package(given / "model.onnx", target="sm8650", sdk="2.33", out=tmp_path / "out", **asked)
    assert made.status.right.state == "no"
    pages = [(folder / "report.html").read_text("utf-8") for folder in (package, tmp_path / "out")]
    seen = [re.findall(r'<title>(.) |<section class="verdict (\w+)"|<div class="(\w+)"><dt>right', p) for p in pages]
    told = [["".join(found) for found in one] for one in seen]
    assert told == [["?", "open", "good"], ["✗", "bad", "bad"]], "not compiled, and wrong"
