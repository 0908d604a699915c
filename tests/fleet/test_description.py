from __future__ import annotations

import json
import tomllib
from dataclasses import fields
from pathlib import Path

import jsonschema
import onnx.parser
import pytest

from deploykit.backend.requests import CORE_OPTIONS
from deploykit.errors import DeploykitError, InputError, UsageError
from deploykit.fleet.cells import cells_of, chosen_cells, moved, request_from_json, request_to_json
from deploykit.fleet.description import Shared, read_file, schema
from deploykit.flow.pipeline import check
from tables import each_row

MODEL = '<ir_version: 8, opset_import: ["" : 17]> g (float[1,4] x) => (float[1,4] y) { y = Relu (x) }'
DOCS = Path(__file__).parents[2] / "docs"
BASE = '[models.a]\npath = "a.onnx"\n[models.b]\npath = "b.onnx"\n[targets.phone]\ndevice = "sm8650"\n'


def described(tmp_path: Path, text: str) -> list[str]:
    (tmp_path / "deploykit.toml").write_text(text, "utf-8")
    return [cell.id for cell in cells_of(read_file(tmp_path / "deploykit.toml"), tmp_path)]


def test_every_option_of_the_core_can_be_said_and_no_other() -> None:
    said = {item.name for item in fields(Shared)} - {"own"}
    assert said == {spec.name for spec in CORE_OPTIONS} - {"backend", "sdk"}


@each_row(
    ("text", "words"),
    [
        ("[models]\n[targets.a]\ndevice = 'sm8650'", "models: names none"),
        (BASE.replace("models.a", 'models."../a"'), "cannot be the name of a folder"),
        (BASE.replace("models.a", 'models."a/b"'), "cannot be the name of a folder"),
        (BASE + "[matrix]\nmodels = ['c']", "no model is called 'c'"),
        (BASE + "[[matrix.include]]\nmodel = 'a'\ntarget = 'x'\nname = 'n'", "no target is called 'x'"),
        (BASE + "[defaults]\nprecison = 'w8a8'", "defaults.precison: unknown key"),
        (BASE.replace('path = "a.onnx"', 'path = "a.onnx"\nmixed = "maybe"'), "models.a.mixed"),
        ("[targets.a]\ndevice = 'sm8650'", "models: missing"),
        ("models = [", "not TOML"),
        (BASE + f"sdks = {['2.33'] * 5001}", "10,002 cells"),
    ],
)
def test_a_bad_file_is_refused_with_the_place(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(InputError) as caught:
        described(tmp_path, text)
    assert words in str(caught.value)


def test_cells_are_models_times_targets_times_backends_and_sdks(tmp_path: Path) -> None:
    text = BASE + 'backends = ["qnn-htp", "ort-qnn"]\nsdks = ["2.33", "2.37"]\n'
    ids = described(tmp_path, text)
    assert len(ids) == 8
    assert ids[0] == "a/phone-qnn-htp-2.33"
    assert ids[-1] == "b/phone-ort-qnn-2.37"


def test_excluded_cells_are_gone_and_included_ones_come_beside_their_model(tmp_path: Path) -> None:
    text = (
        BASE
        + """backends = ["qnn-htp", "ort-qnn"]
[[matrix.exclude]]
model = "a"
backend = "ort-*"
[[matrix.include]]
model = "a"
target = "phone"
name = "small"
precision = "w8a8"
"""
    )
    assert described(tmp_path, text) == ["a/phone-qnn-htp", "a/phone-small", "b/phone-qnn-htp", "b/phone-ort-qnn"]


def test_nothing_left_and_two_of_one_name_are_said(tmp_path: Path) -> None:
    with pytest.raises(UsageError):
        described(tmp_path, BASE + "[[matrix.exclude]]\nmodel = '*'")
    twice = "[[matrix.include]]\nmodel = 'a'\ntarget = 'phone'\nname = 'x'\n"
    with pytest.raises(InputError) as caught:
        described(tmp_path, BASE + twice + twice.replace("'x'", "'X'"))
    assert "a/phone-X" in caught.value.what


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
    assert cell.request.calibration == tmp_path / "own"
    assert cell.request.precision == "w8a8"
    assert dict(cell.request.options) == {"vtcm_mb": "8", "dlbc": "true"}
    assert cell.request.inputs == ("size=64", f"mask={tmp_path / 'mask.npy'}")
    again = request_from_json(json.loads(json.dumps(request_to_json(cell.request))))
    assert again == cell.request
    assert moved(cell.request, lambda path: Path("/x") / path.name).inputs == ("size=64", "mask=/x/mask.npy")


def test_each_cell_of_a_row_takes_the_options_that_its_backend_has(tmp_path: Path) -> None:
    both = BASE + 'backends = ["qnn-htp", "ort-qnn"]\nown = {kernels = "quick"}\n'
    described(tmp_path, both)
    cells = cells_of(read_file(tmp_path / "deploykit.toml"), tmp_path)
    assert [(cell.id, cell.request.adapter_options.get("kernels")) for cell in cells[:2]] == [
        ("a/phone-qnn-htp", None),
        ("a/phone-ort-qnn", "quick"),
    ]


@pytest.mark.parametrize(
    ("said", "option"),
    [('backends = ["qnn-htp"]\nown = {kernels = "quick"}', "kernels"), ('own = {kernles = "quick"}', "kernles")],
)
def test_an_option_that_no_cell_of_its_row_takes_is_refused(tmp_path: Path, said: str, option: str) -> None:
    described(tmp_path, BASE + said)
    cell = cells_of(read_file(tmp_path / "deploykit.toml"), tmp_path)[0]
    onnx.save(onnx.parser.parse_model(MODEL), cell.request.model)
    with pytest.raises(UsageError) as caught:
        check(cell.request)
    assert option in str(caught.value)


def test_only_takes_cells_models_and_targets(tmp_path: Path) -> None:
    described(tmp_path, BASE + '[targets.board]\ndevice = "vek385"\n')
    cells = cells_of(read_file(tmp_path / "deploykit.toml"), tmp_path)
    assert [cell.id for cell in chosen_cells(cells, ["a"])] == ["a/phone", "a/board"]
    assert [cell.id for cell in chosen_cells(cells, ["boar?", "b/phone"])] == ["a/board", "b/phone", "b/board"]
    with pytest.raises(UsageError) as caught:
        chosen_cells(cells, ["nothing"])
    assert "a/phone" in str(caught.value)


def test_the_published_schema_takes_what_is_read() -> None:
    check = jsonschema.Draft202012Validator(schema())
    assert list(check.iter_errors(tomllib.loads(BASE))) == []
    assert list(check.iter_errors(tomllib.loads(BASE + "[defaults]\nprecison = 'w8a8'"))) != []


def test_what_is_no_option_of_the_backend_is_said_with_the_cell(tmp_path: Path) -> None:
    (tmp_path / "deploykit.toml").write_text(BASE + "options = {vtcm_mb = [1, 2]}", "utf-8")
    with pytest.raises(DeploykitError) as caught:
        cells_of(read_file(tmp_path / "deploykit.toml"), tmp_path)
    assert "options.vtcm_mb" in str(caught.value)
