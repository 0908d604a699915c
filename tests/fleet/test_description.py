"""The file of a fleet, and the values in it."""

import json
import shutil
import sys
import tomllib
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from msgspec.structs import fields, replace

from deploykit import api
from deploykit.backend.requests import CORE_OPTIONS, Request
from deploykit.fleet.cells import Cell, Keys, cells_of, moved, request_from_json, request_to_json
from deploykit.fleet.description import Shared, read_file, schema
from deploykit.fleet.pages import junit_of, render_matrix
from deploykit.fleet.results import CellResult, Results
from sample_models.networks import conv_net, save_with_external_data

MODEL = '<ir_version: 8, opset_import: ["" : 17]> g (float[1,4] x) => (float[1,4] y) { y = Relu (x) }'
BASE = '[models.a]\npath = "a.onnx"\n[models.b]\npath = "b.onnx"\n[targets.phone]\ndevice = "sm8650"\n'


def described(tmp_path: Path, text: str) -> list[str]:
    (tmp_path / "deploykit.toml").write_text(text, "utf-8")
    return [cell.id for cell in cells_of(read_file(tmp_path / "deploykit.toml"), tmp_path)]


def test_every_option_of_the_core_can_be_said_and_no_other() -> None:
    said = {item.name for item in fields(Shared)} - {"own"}
    assert said == {spec.name for spec in CORE_OPTIONS} - {"backend", "sdk"}


def test_the_nearest_word_wins_and_paths_are_relative_to_the_file(tmp_path: Path) -> None:
    file = tmp_path / "deploykit.toml"
    file.write_text(
        """
[defaults]
calibration = "all"
precision = "w8a16"
options = {vtcm_mb = 4, dlbc = true}
inputs = ["size=64", "mask=mask.npy"]
[models.a]
path = "sub/a.onnx"
calibration = "own"
[targets.phone]
device = "sm8650"
precision = "w8a8"
options = {vtcm_mb = 8}
""",
        "utf-8",
    )
    (cell,) = cells_of(read_file(file), tmp_path)
    assert cell.request.model == tmp_path / "sub" / "a.onnx"
    assert cell.request.calibration == tmp_path / "own" and cell.request.precision == "w8a8"
    assert dict(cell.request.options) == {"vtcm_mb": "8", "dlbc": "true"}
    assert cell.request.inputs == ("size=64", f"mask={tmp_path / 'mask.npy'}")
    again = request_from_json(json.loads(json.dumps(request_to_json(cell.request))))
    assert again == cell.request
    asked = replace(cell.request, adapter_options={"also": Path("a/b.onnx"), "dlc": True})
    there = moved(asked, lambda path: Path("/x") / path.name)
    assert there.inputs == ("size=64", "mask=/x/mask.npy") and there.calibration == Path("/x/own")
    assert there.adapter_options == {"also": Path("/x/b.onnx"), "dlc": True}


def test_the_published_schema_takes_what_is_read() -> None:
    check = jsonschema.Draft202012Validator(schema())
    assert list(check.iter_errors(tomllib.loads(BASE))) == []
    assert list(check.iter_errors(tomllib.loads(BASE + "[defaults]\nprecison = 'w8a8'"))) != []


AIMET = Path(__file__).parents[1] / "data" / "aimet"


def test_whatever_a_cell_is_made_of_changes_its_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = ("data/a.npz", "data/inner/b.npz", "more.onnx", "e", "f", "r", "x.npz", "here/weights.bin")
    (tmp_path / "here").mkdir()
    model = save_with_external_data(conv_net(), tmp_path / "here/m.onnx")
    whole = (tmp_path / "here/weights.bin").read_bytes()

    def asked(folder: Path, **changed: Any) -> str:
        paths = dict(zip(("calibration", "encodings", "float_tensors", "references"), "defr", strict=True))
        more: Any = {role: folder / name.replace("d", "data") for role, name in paths.items()}
        more |= {"inputs": (f"x={folder / 'x.npz'}", "y=1"), "adapter_options": {"also": folder / "more.onnx"}}
        request = Request(**{"model": folder / model.relative_to(tmp_path), "target": "sm8650", **more, **changed})
        return Keys().key(Cell(id="cnn/phone", model="cnn", target="phone", request=request))

    for name in names:
        (tmp_path / name).parent.mkdir(exist_ok=True, parents=True)
        (tmp_path / name).write_bytes(whole)
    keys = [
        asked(tmp_path),
        *(asked(tmp_path) for name in names if (tmp_path / name).write_bytes(whole[:-1] + name[:1].encode())),
    ]
    assert asked(shutil.copytree(tmp_path, tmp_path / "copy")) == keys[-1], "where files lie is no part of it"
    inputs = [("y=2",), ("y=1",), (f"x={tmp_path / 'x.npz'}",), (f"y={tmp_path / 'x.npz'}",)]
    keys += [asked(tmp_path, sdk="2.33"), *(asked(tmp_path, inputs=one) for one in inputs)]
    monkeypatch.setattr("deploykit.fleet.cells.tool_versions", dict)
    assert len({*keys, asked(tmp_path)}) == len(names) + 7


def test_names_and_words_of_strangers_stay_text() -> None:
    error = {"what": "<script>alert(1)</script>\x00\x1b[31m", "why": "", "next": ""}
    bad = CellResult(cell="a/b", key="", exit_status=1, error=error)
    results = Results(models=("a",), targets=("b",), cells=(bad,), not_run=())
    page = render_matrix(results, "<b>file</b>")
    assert page.count("<script>") == 1, "its own"
    assert "\x1b" not in page and "<b>file" not in page
    assert "\x00" not in junit_of(results, "file")


def test_names_of_models_in_a_folder_become_keys_and_what_is_no_model_is_told(tmp_path: Path) -> None:
    weird = "-.weird näme.-" if sys.getfilesystemencoding() == "utf-8" else "-.weird n me.-"
    shutil.copyfile(AIMET / "cnn" / "model.onnx", tmp_path / f"{weird}.onnx")
    (tmp_path / "bad.onnx").write_bytes(b"\xff\xff")
    file, scouted = api.init(tmp_path, targets=["sm8650"])
    assert [name for name, _ in scouted.skipped] == ["bad.onnx"] and "# left out: bad.onnx: " in file.read_text("utf-8")
    assert {name: model.path for name, model in read_file(file).models.items()} == {"weird-n-me": f"{weird}.onnx"}
