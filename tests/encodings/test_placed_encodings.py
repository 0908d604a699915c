"""One way from files to encodings on a graph: every command reads the same things and refuses the same things."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from deploykit import api
from deploykit.accuracy.simulate.simulation import simulate_files
from deploykit.encodings.files import check_encodings, convert_encodings
from deploykit.encodings.formats.differences import diff
from deploykit.encodings.read import read_given, read_placed
from deploykit.errors import InputError
from deploykit.model import load_model
from deploykit.model.collect import collect_facts

CNN = Path(__file__).parents[1] / "data" / "aimet" / "cnn"
MODEL, ENCODINGS = CNN / "model.onnx", CNN / "w8a8.v2.0.0.encodings"
FACTS = collect_facts(load_model(MODEL))

READERS: dict[str, Callable[[Path, Path], Any]] = {
    "plan": lambda path, floats: api.plan(MODEL, target="sm8650", encodings=path, float_tensors=floats),
    "simulate": lambda path, floats: simulate_files(MODEL, path, float_tensors=floats),
    "check": lambda path, floats: check_encodings(path, model=MODEL, float_tensors=floats),
    "convert": lambda path, floats: convert_encodings(path, "1.0.0", float_tensors=floats),
    "convert on a model": lambda path, floats: convert_encodings(path, "1.0.0", model=MODEL, float_tensors=floats),
}


@pytest.mark.parametrize("reader", READERS.values(), ids=READERS)
def test_a_float_list_that_contradicts_an_integer_entry_is_refused(
    tmp_path: Path, reader: Callable[[Path, Path], Any]
) -> None:
    floats = tmp_path / "floats"
    floats.write_text("logits\n")
    with pytest.raises(InputError, match=r"'logits' has an uint8 entry, but is listed as float") as refused:
        reader(ENCODINGS, floats)
    assert str(ENCODINGS) in refused.value.what


@pytest.mark.parametrize("reader", READERS.values(), ids=READERS)
def test_a_float_list_beside_the_entries_is_taken(tmp_path: Path, reader: Callable[[Path, Path], Any]) -> None:
    floats = tmp_path / "floats"
    floats.write_text("/conv1/Conv_output_0\n")
    reader(ENCODINGS, floats)


def test_names_add_to_those_that_the_file_says() -> None:
    detr = CNN.parent / "detr" / "w8a8-fp16mix-explicit.v1.0.0.encodings"
    said = read_given(detr).floats
    assert said and read_given(detr, float_tensors=None).floats == said


def test_a_qdq_model_stands_for_the_encodings_it_was_made_from() -> None:
    from_model = read_placed(CNN / "w8a8.qdq.onnx", FACTS)
    from_file = read_placed(ENCODINGS, FACTS)
    assert from_model.entries.keys() == {e.name for e in from_file if e.dtype != "int32"}
    common = {name: from_file.entries[name] for name in from_model.entries}
    changed = diff(from_model, type(from_file)(version="2.0.0", entries=common), tolerance=1.2e-7, grid_only=True)
    assert not changed


def test_a_float_model_is_no_set_of_encodings(tmp_path: Path) -> None:
    twin = tmp_path / "float.onnx"
    shutil.copy(MODEL, twin)
    with pytest.raises(InputError, match=r"float\.onnx: a model without QuantizeLinear"):
        read_placed(twin, FACTS)
    assert not read_given(twin).entries


def test_blocks_are_inferred_where_that_is_asked_for() -> None:
    mlp = CNN.parent / "mlp"
    facts = collect_facts(load_model(mlp / "model.onnx"))
    path = mlp / "bq-w4a16.v0.6.1.encodings"
    plain, inferred = (read_placed(path, facts, infer_blocks=asked).entries["fc1.weight"] for asked in (False, True))
    assert (plain.value.granularity, inferred.value.granularity) == ("per-channel", "per-block")
