"""A package that was changed after it was judged: what was said of it is void, and judged anew it is a no."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import deploykit
from deploykit.encodings.formats.aimet import write_encodings
from deploykit.packages.manifests import sealed_text
from sample_models.cell_detectors import cell_detector, cell_pictures
from sample_models.min_max import min_max_encodings

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


@pytest.mark.parametrize(
    ("change", "lost"), [(_smaller(20), "0 of 112 detections kept"), (_half_seen, "scores are 0.2")]
)
@pytest.mark.parametrize("is_sealed", [True, False])
def test_wrong_encodings_are_a_no(
    change: Callable[[str, Entry], Entry], lost: str, is_sealed: bool, package: Path, tmp_path: Path
) -> None:
    copy = shutil.copytree(package, tmp_path / "copy")
    path = copy / "encodings" / "model.json"
    value = json.loads(path.read_text("utf-8"))
    entries = value["activation_encodings"]
    value["activation_encodings"] = {name: [change(name, entry) for entry in held] for name, held in entries.items()}
    path.write_text(json.dumps(value), "utf-8")
    if is_sealed:
        manifest = json.loads((copy / "manifest.json").read_text("utf-8"))
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
        manifest["files"]["encodings/model.json"] |= {"sha256": digest, "bytes": path.stat().st_size}
        (copy / "manifest.json").write_text(sealed_text(manifest), "utf-8")
    report = deploykit.verify(copy, numerics=True)
    assert not report.ok
    if is_sealed:
        assert report.status.right.state == "no" and lost in report.status.right.why.partition("(")[0]
    else:
        assert not report.status.intact and report.status.right.state == "not judged"


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
    seen = [
        re.findall(r'<title>(.) |<section class="verdict (\w+)"|<div class="(\w+)"><dt>right', page) for page in pages
    ]
    told = [["".join(found) for found in one] for one in seen]
    assert told == [["?", "open", "good"], ["✗", "bad", "bad"]], "not compiled, and wrong"
