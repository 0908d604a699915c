"""External data: judged by path and size before anything is opened, and then read one tensor at a time."""

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from onnx import TensorProto, helper, numpy_helper

from deploykit.accuracy.simulate.sessions import Session
from deploykit.errors import InputError, UsageError
from deploykit.model import weights
from deploykit.model.load import load_model, wrap_proto
from deploykit.model.weights import copy_bytes, load_small_weights, load_weights, stored_values, weight
from deploykit.rewrites.contract import load_transform
from sample_models.networks import attention_net, save_with_external_data
from tables import each_row
from text_models import text_model
from whole_answers import check_whole


def external(**entries: str) -> onnx.ModelProto:
    """Adds to its input a tensor of 16 floats that lies elsewhere."""
    model = text_model("float[16] x", "y = Add (x, w)", "float[16] y")
    stored = model.graph.initializer.add(name="w", data_type=1, dims=[16], data_location=TensorProto.EXTERNAL)
    for key, value in entries.items():
        stored.external_data.add(key=key, value=value)
    return model


def refusal(path: Path, told: str = "", **entries: str) -> str:
    with pytest.raises(InputError) as caught:
        wrap_proto(external(**entries), path=path)
    text = str(caught.value)
    assert told in text and "'w'" in caught.value.what
    if told:
        check_whole(__file__, ", ".join((told, *entries.values())), text, path.parent)
    return text


OUTSIDE = ["../w.bin", "sub/../../w.bin", "sub/../w.bin", "..\\w.bin", "sub\\..\\..\\w.bin", "/etc/passwd", ".."]
OUTSIDE += ["//server/share/w.bin", "C:\\w.bin", "C:w.bin", "\\\\server\\share\\w.bin", "\\w.bin"]
NUMBERS = ["-1", "1e3", " 4", "٣", "0x10", "9" * 10_000, ""]


@each_row(
    ("entries", "told"),
    *(({"location": location}, r"folder|absolute") for location in OUTSIDE),
    *(({"location": location}, "location") for location in ["", "w.bin/", "w\0.bin", "w\n.bin", "n" * 5000]),
    *(({"location": "x", key: number}, f"the {key}") for key in ("offset", "length") for number in NUMBERS),
)
def test_what_can_be_no_place_is_refused_by_its_spelling(entries: dict[str, str], told: str, tmp_path: Path) -> None:
    """The target of the first ones exists and is a pipe: opening it would block for ever."""
    os.mkfifo(tmp_path / "w.bin")
    (tmp_path / "model" / "sub").mkdir(parents=True)
    (tmp_path / "model" / "x").write_bytes(b"\0" * 64)
    text = refusal(tmp_path / "model" / "m.onnx", **entries)
    check_whole(__file__, ", ".join(f"{name} {value[:40]!r}" for name, value in entries.items()), text, tmp_path)
    assert re.search(told, text) and (told != "folder|absolute" or entries["location"] in text.replace("\\\\", "\\"))


@settings(deadline=None, max_examples=25)
@given(location=st.text(alphabet="./\\ab:~\0\n é", max_size=12))
def test_no_location_ever_resolves_outside(location: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("model")
    (folder.parent / "a").write_bytes(b"\0" * 64)
    (folder / "a").write_bytes(b"\0" * 64)
    try:
        model = wrap_proto(external(location=location), path=folder / "m.onnx")
    except InputError as error:
        assert "'w'" in error.what
    else:
        assert [file.path.parent for file in model.external] == [folder.resolve()]


def test_links_that_leave_the_folder_and_links_that_do_not(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    os.mkfifo(tmp_path / "outside")
    (folder / "w.bin").symlink_to(tmp_path / "outside")
    refusal(folder / "m.onnx", "symbolic link", location="w.bin")
    (folder / "real").write_bytes(b"\0" * 64)
    (folder / "inside").symlink_to("real")
    model = wrap_proto(external(location="inside"), path=folder / "m.onnx")
    assert model.external[0].path == (folder / "real").resolve()
    # A folder further in, and another name of a file, are like any other.
    (folder / "a" / "b").mkdir(parents=True)
    (folder / "a" / "b" / "w").hardlink_to(folder / "real")
    for location in ("a/b/w", "./a//b/./w"):
        (file,) = wrap_proto(external(location=location), path=folder / "m.onnx").external
        assert (file.location, file.size) == (location, 64)
    (folder / "circle").symlink_to("circle")
    assert "'circle'" in refusal(folder / "m.onnx", location="circle")
    (folder / "up").symlink_to(tmp_path, target_is_directory=True)
    refusal(folder / "m.onnx", "symbolic link", location="up/outside")


def test_missing_irregular_and_short_files(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    refusal(path, "is missing", location="w.bin")
    (tmp_path / "folder").mkdir()
    refusal(path, "not a regular file", location="folder")
    os.mkfifo(tmp_path / "pipe")
    refusal(path, "not a regular file", location="pipe")
    (tmp_path / "w.bin").write_bytes(b"\0" * 63)
    refusal(path, "has only 63", location="w.bin")
    (tmp_path / "w.bin").write_bytes(b"\0" * 64)
    refusal(path, "needs bytes 1 to 65", location="w.bin", offset="1")
    refusal(path, "claims 60 bytes", location="w.bin", length="60")
    wrap_proto(external(location="w.bin", offset="0", length="64"), path=path)
    path.write_bytes(b"\0" * 64)
    refusal(path, "is the model itself", location="m.onnx")
    refusal(path, "cannot be reached", location="w.bin/sub")
    onnx.save(external(location="w.bin", **{"deploykit.mapped": "/etc/passwd"}), path)
    with pytest.raises(InputError, match="has the entry") as caught:
        load_model(path)
    check_whole(__file__, "has the entry", caught.value, tmp_path)


def test_tensors_of_bodies_and_attributes_are_judged_too_and_all_before_any_file_is_looked_at(tmp_path: Path) -> None:
    """The first tensor's file is missing, another one's location is hostile: that is what is said."""
    hostile = TensorProto(name="t", data_type=1, dims=[1], data_location=TensorProto.EXTERNAL)
    hostile.external_data.add(key="location", value="../t")
    body = helper.make_graph([], "body", [], [], [hostile])
    held = (("value", hostile), ("body", body), ("many", [hostile]))
    models = [external(location="missing.bin") for _ in range(4)]
    for model, (name, value) in zip(models, held, strict=False):
        model.graph.node[0].attribute.append(helper.make_attribute(name, value))
    models[-1].graph.initializer.append(hostile)
    for model in models:
        with pytest.raises(InputError, match="leaves the model's folder"):
            wrap_proto(model, path=tmp_path / "m.onnx")


def test_a_type_that_numpy_lacks_is_read_from_outside(tmp_path: Path) -> None:
    (tmp_path / "w.bin").write_bytes(b"\x80\x3f" * 16)
    model = external(location="w.bin")
    model.graph.initializer[0].data_type = TensorProto.BFLOAT16
    assert weight(wrap_proto(model, path=tmp_path / "m.onnx"), "w").astype(np.float32).tolist() == [1.0] * 16


def test_files_that_change_after_they_were_measured(tmp_path: Path) -> None:
    (tmp_path / "w.bin").write_bytes(b"\0" * 64)
    model = wrap_proto(external(location="w.bin"), path=tmp_path / "m.onnx")
    (tmp_path / "w.bin").write_bytes(b"\0" * 10)
    with pytest.raises(InputError, match="has only 10") as caught:
        weight(model, "w")
    check_whole(__file__, "has only 10", caught.value, tmp_path)
    (tmp_path / "w.bin").unlink()
    with pytest.raises(InputError, match="cannot be read") as caught:
        weight(model, "w")
    check_whole(__file__, "cannot be read", caught.value, tmp_path)
    with pytest.raises(UsageError, match=r"^\S*m\.onnx: stores no tensor 'x'$"):
        weight(model, "x")
    with pytest.raises(UsageError, match=r"tensor 'w' points to 'w\.bin', which was never located"):
        weight(replace(model, external=()), "w")
    with pytest.raises(InputError, match=r"^tensor 'w': its values lie in a file that was never located$"):
        stored_values(model.proto.graph.initializer[0])
    with (tmp_path / "sink").open("wb") as sink, pytest.raises(InputError, match="sink: ends before its data does"):
        copy_bytes(tmp_path / "sink", 0, 1, sink)


WATCHED = """
import sys
from pathlib import Path
opened = []
sys.addaudithook(lambda event, args: opened.append(str(args[0])) if event == "open" else None)
from deploykit.model.collect import collect_facts, constant_value
from deploykit.model.rules import RULES as GRAPH_RULES
from deploykit.model.load import load_model
model = load_model(Path(sys.argv[1]))
facts = collect_facts(model)
GRAPH_RULES.run(facts)
assert any(fact.external for fact in facts.tensors.values())
assert any(path.endswith("m.onnx") for path in opened), "the hook sees files"
assert not any("weights.bin" in path for path in opened), opened
constant_value(model, "scale")
assert any("weights.bin" in path for path in opened), "now it was asked for"
"""


@pytest.mark.heavy
def test_loading_and_collecting_never_open_external_data(tmp_path: Path) -> None:
    path = save_with_external_data(attention_net(), tmp_path / "m.onnx")
    done = subprocess.run(
        [sys.executable, "-c", WATCHED, str(path)], capture_output=True, encoding="utf-8", check=False
    )
    assert done.returncode == 0, done.stderr


def test_tensors_that_all_claim_the_same_bytes(tmp_path: Path) -> None:
    """A file without a byte on disk and a model of some kilobytes were gigabytes of weights."""
    model = external(location="w.bin")
    (stored,) = model.graph.initializer
    stored.dims[:] = [32 << 20]
    for number in range(6):
        model.graph.initializer.add().CopyFrom(stored)
        model.graph.initializer[-1].name = f"w{number}"
    with (tmp_path / "w.bin").open("wb") as file:
        file.truncate(128 << 20)
    with pytest.raises(InputError, match="7 tensors claim 939,524,096 bytes") as caught:
        wrap_proto(model, path=tmp_path / "m.onnx")
    check_whole(__file__, "7 tensors", caught.value, tmp_path)
    del model.graph.initializer[6:]
    wrap_proto(model, path=tmp_path / "m.onnx")  # four times the file, and 256 MiB more, are ordinary


def test_weights_beside_the_model_are_loaded_into_a_copy_or_the_small_ones_alone(tmp_path: Path) -> None:
    body = "product = MatMul (x, weight)  sum = Add (product, anchors)  y = Sigmoid (sum)"
    weights, anchors = np.ones((40, 40), np.float32), np.full((2, 40), 1e30, np.float32)
    model = text_model("float[1,2,40] x", body, weight=weights, anchors=anchors)
    onnx.save(model, tmp_path / "m.onnx", save_as_external_data=True, location="w.bin", size_threshold=0)
    given_ = load_model(tmp_path / "m.onnx")
    whole = Session(load_weights(given_)).run({"x": np.zeros((1, 2, 40), np.float32)})
    assert whole["y"].shape == (1, 2, 40)
    assert all(tensor.data_location == tensor.EXTERNAL for tensor in given_.proto.graph.initializer)
    transform = load_transform("saturating-constant")
    assert not transform.match(given_.proto)
    partly = load_small_weights(given_, limit=100)
    assert transform.match(partly)
    assert {t.name for t in partly.graph.initializer if t.data_location != t.EXTERNAL} == {"anchors"}


def test_where_weights_are_many_they_stay_in_their_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of more than 16 KiB, of types that numpy has; what is written says nothing of this machine."""
    monkeypatch.setattr(weights, "LEAST", 40_000)
    stored: dict[str, Any] = {f"w{count}": np.full(count, 2.0, np.float32) for count in (4096, 4097, 1)}
    model = text_model("float[1] x", "y = Add (x, w1)", "float[1] y", **stored)
    model.graph.initializer.append(numpy_helper.from_array(np.ones(33_000, weights.numpy_type("int4")), "nibbles"))
    onnx.save(model, tmp_path / "m.onnx", save_as_external_data=True, location="w.bin", size_threshold=0)
    given_ = load_model(tmp_path / "m.onnx")
    size, lean = given_.external[0].size, weights.lean_weights(given_)
    made = {"lean": lean, "written": weights.unmapped(lean), "whole": weights.whole_model(lean)}
    made["all"] = load_weights(given_)
    made["small"] = load_small_weights(given_, limit=4096)
    for least, name in ((size, "at the limit"), (size + 1, "beside the limit")):
        monkeypatch.setattr(weights, "LEAST", least)
        made[name] = weights.lean_weights(given_)
        made[f"small {name}"] = load_small_weights(given_, limit=4096)
    lines = []
    for name, one in made.items():
        lines.append(f"{name}: {weights.mapped_bytes(one)} bytes in files")
        for tensor in one.graph.initializer:
            place = "outside" if weights.is_unreadable(tensor) else "mapped" if weights.is_mapped(tensor) else "inside"
            keys = ", ".join(entry.key for entry in tensor.external_data)
            total = "" if place == "outside" else f" {int(stored_values(tensor).astype(np.int64).sum())}"
            lines.append(f"    {tensor.name} {place}{total} {keys}".rstrip())
    check_whole(__file__, "where weights are", "\n".join(lines))
