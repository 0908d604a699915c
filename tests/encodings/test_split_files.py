"""Parts as files: over one data file per number, with their own encodings, the folder whole or not there at all."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest

import deploykit
from deploykit.encodings.formats.aimet import read_encodings
from deploykit.errors import PackageError, UsageError
from deploykit.model import load_model
from sample_models.decoder_feeds import decoder_feeds
from sample_models.decoders import TINY, write_decoder


@pytest.fixture(scope="module")
def decoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("decoder")
    write_decoder(TINY, folder, "float")
    return folder


def test_the_files_run_one_after_the_other(decoder: Path, tmp_path: Path) -> None:
    both = [decoder / "prefill.onnx", decoder / "decode.onnx"]
    reports = deploykit.split(both, tmp_path / "parts", parts=2, encodings=decoder / "decoder.encodings")
    made = {path.name for path in (tmp_path / "parts").iterdir() if path.suffix != ".encodings"}
    graphs = {f"{name}_{number}.onnx" for name in ("prefill", "decode") for number in (1, 2)}
    assert made == {"part_1.data", "part_2.data", *graphs}
    data = sum(path.stat().st_size for path in (tmp_path / "parts").glob("*.data"))
    assert data == (decoder / "weights.data").stat().st_size
    for source in both:
        feeds = decoder_feeds(onnx.load(source, load_external_data=False), TINY)
        whole = onnxruntime.InferenceSession(source)
        names = [item.name for item in whole.get_outputs()]
        known = dict(feeds)
        for report in (row for row in reports if row.model.stem.startswith(source.stem)):
            part = onnxruntime.InferenceSession(report.model)
            given = {name: known[name] for name in report.inputs}
            known |= dict(zip(report.outputs, part.run(list(report.outputs), given), strict=True))
        for name, values in zip(names, whole.run(names, feeds), strict=True):
            np.testing.assert_allclose(known[name], values, rtol=1e-4, atol=1e-4)


def test_small_weights_are_there_when_entries_are_chosen(tmp_path: Path) -> None:
    """Python keeps a few kilobytes (from 3.14 on, 128) of a file to itself until more are written."""
    helper, weights, nodes = onnx.helper, [], []
    for i in range(2):
        for name, value in ((f"w{i}", np.eye(64, dtype=np.float32)), (f"b{i}", np.ones(64, np.float32))):
            weights.append(onnx.numpy_helper.from_array(value, name))
        nodes.append(helper.make_node("MatMul", [f"x{i}", f"w{i}"], [f"m{i}"], name=f"product{i}"))
        nodes.append(helper.make_node("Add", [f"m{i}", f"b{i}"], [f"x{i + 1}"], name=f"sum{i}"))
    ends = [helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [1, 64]) for name in ("x0", "x2")]
    graph = helper.make_graph(nodes, "small", ends[:1], ends[1:], weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    onnx.save(model, tmp_path / "m.onnx", save_as_external_data=True, location="m.data", size_threshold=0)
    entry = {
        "bitwidth": 8,
        "dtype": "int",
        "is_symmetric": "True",
        "scale": 0.1,
        "offset": -128,
        "min": -12.8,
        "max": 12.7,
    }
    entries = {"version": "0.6.1", "activation_encodings": {}, "param_encodings": {"w1": [entry]}}
    (tmp_path / "m.encodings").write_text(json.dumps(entries))
    reports = deploykit.split([tmp_path / "m.onnx"], tmp_path / "parts", parts=2, encodings=tmp_path / "m.encodings")
    assert reports[1].encodings is not None and set(read_encodings(reports[1].encodings).entries) == {"w1"}


def test_a_part_has_the_entries_of_its_tensors(decoder: Path, tmp_path: Path) -> None:
    given = read_encodings(decoder / "decoder.encodings").entries
    reports = deploykit.split(
        [decoder / "decode.onnx"], tmp_path / "parts", parts=2, encodings=decoder / "decoder.encodings"
    )
    kept = [read_encodings(report.encodings).entries for report in reports if report.encodings is not None]
    assert len(kept) == 2 and kept[0].keys() | kept[1].keys() == given.keys()
    (crossing,) = set(reports[0].outputs) & set(reports[1].inputs)
    assert crossing in kept[0] and crossing in kept[1]


def test_the_call(decoder: Path, tmp_path: Path) -> None:
    reports = deploykit.split([decoder / "decode.onnx"], tmp_path / "parts", parts=2)
    assert [Path(report.model).name for report in reports] == ["decode_1.onnx", "decode_2.onnx"]
    assert all(load_model(Path(report.model)).external for report in reports)
    with pytest.raises(UsageError):  # the folder is there now
        deploykit.split([decoder / "decode.onnx"], tmp_path / "parts", parts=2)


def test_what_cannot_be_written_leaves_nothing(decoder: Path, tmp_path: Path) -> None:
    with pytest.raises(PackageError, match="no such folder"):
        deploykit.split([decoder / "decode.onnx"], tmp_path / "missing" / "parts", parts=2)
    with pytest.raises(UsageError, match="cannot be cut into 90 parts"):
        deploykit.split([decoder / "decode.onnx"], tmp_path / "parts", parts=90)
    with pytest.raises(UsageError, match="two models are called decode"):
        deploykit.split([decoder / "decode.onnx"] * 2, tmp_path / "parts", parts=2)
    assert list(tmp_path.iterdir()) == []


def test_what_only_a_body_reads_crosses_without_a_pair(tmp_path: Path) -> None:
    text = """<ir_version: 8, opset_import: ["" : 17]>
    g (float[1,64] x, bool c) => (float[1,64] y) <float s = {0.1}, uint8 z = {128}> {
        h = MatMul (x, first)  q = QuantizeLinear (h, s, z)  d = DequantizeLinear (q, s, z)
        r = Relu (h)  k = MatMul (r, second)
        b = If (c) <then_branch = yes () => (float[1,64] t) { t = Neg (d) },
                    else_branch = no () => (float[1,64] e) { e = Abs (d) }>
        y = Add (k, b)
    }"""
    body, drawn = (
        text.replace("<float s", "<float[64,64] first, float[64,64] second, float s"),
        np.random.default_rng(0),
    )
    model = onnx.parser.parse_model(body)
    for name in ("first", "second"):
        array = drawn.normal(size=(64, 64)).astype(np.float32) / 8
        kept = [tensor for tensor in model.graph.initializer if tensor.name != name]
        del model.graph.initializer[:]
        model.graph.initializer.extend([*kept, onnx.numpy_helper.from_array(array, name)])
    onnx.save(model, tmp_path / "m.onnx")
    deploykit.split([tmp_path / "m.onnx"], tmp_path / "parts", parts=2)
    feed = {"x": drawn.normal(size=(1, 64)).astype(np.float32), "c": np.array(True)}
    whole = onnxruntime.InferenceSession(tmp_path / "m.onnx").run(["y"], feed)[0]
    known = dict(feed)
    for number in (1, 2):
        session = onnxruntime.InferenceSession(tmp_path / f"parts/m_{number}.onnx")
        names = [value.name for value in session.get_outputs()]
        known |= dict(
            zip(names, session.run(names, {i.name: known[i.name] for i in session.get_inputs()}), strict=True)
        )
    np.testing.assert_allclose(known["y"], whole, rtol=1e-5)
