"""A model run group by group gives what the whole gives, bit for bit, wherever it is cut."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import ModelProto, TensorProto, parser

from deploykit.accuracy.simulate import sessions
from deploykit.accuracy.simulate.quantizers import quantizers_of
from deploykit.accuracy.simulate.sessions import Feed, Session
from deploykit.accuracy.simulate.simulation import Simulator
from deploykit.encodings.values import Affine, Encoding, EncodingSet
from deploykit.errors import InputError
from deploykit.model import weights
from deploykit.model.load import load_model, wrap_proto
from deploykit.model.weights import is_mapped, lean_weights, unmapped, whole_model


def _stored_outside(model: ModelProto, folder: Path) -> Path:
    """A copy of the model whose initializers all lie in another file."""
    path, copy = folder / "outside.onnx", ModelProto()
    copy.CopyFrom(model)
    for tensor in copy.graph.initializer:
        tensor.CopyFrom(onnx.numpy_helper.from_array(onnx.numpy_helper.to_array(tensor), tensor.name))
    onnx.save(copy, path, save_as_external_data=True, location="outside.bin", size_threshold=0)
    return path


def _lean(model: ModelProto, folder: Path, *, small: int = 0) -> ModelProto:
    with patch.multiple(weights, LEAST=0, _SMALL=small):
        return lean_weights(load_model(_stored_outside(model, folder)))


def _same(one: Sequence[Any], two: Sequence[Any]) -> bool:
    return all(
        a.keys() == b.keys() and all(np.array_equal(a[n], b[n], equal_nan=a[n].dtype.kind == "f") for n in a)
        for a, b in zip(one, two, strict=True)
    )


def _tower(layers: Sequence[int], seed: int) -> ModelProto:
    """MatMuls, of which each reads what an earlier one made, now and then from far away."""
    rng = np.random.default_rng(seed)
    nodes, tensors, made = [], [], ["x"]
    for number, back in enumerate(layers):
        weight, product, name = f"w{number}", f"m{number}", f"r{number}"
        values = rng.standard_normal((8, 8)).astype(np.float32)
        tensors.append(onnx.numpy_helper.from_array(values, weight))
        nodes.append(onnx.helper.make_node("MatMul", [made[-1], weight], [product]))
        nodes.append(onnx.helper.make_node("Add", [product, made[-min(back, len(made))]], [name]))
        made.append(name)
    ends = [onnx.helper.make_tensor_value_info(name, 1, [2, 8]) for name in ("x", made[-1])]
    graph = onnx.helper.make_graph(nodes, "tower", ends[:1], ends[1:], tensors)
    return onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=10)


def _encodings(model: ModelProto) -> EncodingSet:
    """Every weight in 4 bits per channel, every second moving tensor in 8."""
    entries = {}
    for tensor in model.graph.initializer:
        scale = np.full(8, 0.3)
        value = Affine(bits=4, signed=True, scale=scale, zero_point=np.zeros(8), axis=1, symmetric=True)
        entries[tensor.name] = Encoding(name=tensor.name, value=value, is_param=True)
    for node in model.graph.node[::2]:
        value = Affine(bits=8, signed=False, scale=np.array(0.5), zero_point=np.array(128.0))
        entries[node.output[0]] = Encoding(name=node.output[0], value=value)
    return EncodingSet(version="1.0.0", entries=entries)


@settings(max_examples=8, deadline=None)
@given(layers=st.lists(st.integers(1, 12), min_size=2, max_size=14), room=st.integers(1, 3000), seed=st.integers(0, 9))
def test_cuts_change_no_bit(tmp_path_factory: pytest.TempPathFactory, layers: list[int], room: int, seed: int) -> None:
    model = _tower(layers, seed)
    lean, encodings = _lean(model, tmp_path_factory.mktemp("tower")), _encodings(model)
    feeds = [{"x": np.random.default_rng(n).standard_normal((2, 8)).astype(np.float32)} for n in range(3)]
    inner = [model.graph.node[0].output[0], model.graph.node[len(layers)].output[0]]
    whole, groups = Session(model, capture=inner), Session(lean, capture=inner, room=room)
    assert groups.streams == (len(layers) * 256 > room)
    assert _same(whole.runs(feeds), groups.runs(feeds))
    quantized, values = Simulator(model, encodings, capture=inner).runs(feeds), quantizers_of(lean, encodings).values
    assert _same(quantized, Session(lean, capture=inner, room=room, values=values).runs(feeds))
    assert _same(quantized, Simulator(model, encodings, capture=inner, known={}).runs(feeds))


BODIES = """
<ir_version: 8, opset_import: ["" : 17]>
loops (float[2, 4] x, bool c) => (float[2, 4] y, float[2, 4] z)
<float[4, 4] w = {1,2,3,4, 5,6,7,8, 9,1,2,3, 4,5,6,7}, float[4, 4] v = {2,0,0,1, 0,1,0,0, 0,0,3,0, 0,0,0,1},
 int64 count = {3}, bool go = {1}>
{
    a = MatMul (x, v)
    b = Loop (count, go, a) <body = body (int64 i, bool on, float[2, 4] state) => (bool more, float[2, 4] next) {
        more = Identity (on)
        s = MatMul (state, w)
        half = Constant <value_float = 0.01> ()
        next = Mul (s, half)
    }>
    y = If (c) <then_branch = yes () => (float[2, 4] t) { t = MatMul (b, v) },
                else_branch = no () => (float[2, 4] e) { e = MatMul (x, w) }>
    z = Add (y, a)
}
"""


@pytest.mark.parametrize("room", [1, 70, 130])
def test_bodies_read_weights_of_the_graph_around_them(tmp_path: Path, room: int) -> None:
    model = parser.parse_model(BODIES)
    lean = _lean(model, tmp_path)
    assert {t.name for t in lean.graph.initializer if is_mapped(t)} >= {"w", "v"}
    feeds: list[Feed] = [{"x": np.full((2, 4), n + 0.5, "f4"), "c": np.array(bool(n), np.bool_)} for n in range(2)]
    groups = Session(lean, room=room)
    assert groups.streams and _same(Session(model).runs(feeds), groups.runs(feeds))


def test_what_a_file_stores_is_an_output_too(tmp_path: Path) -> None:
    model = _tower([1, 1, 1], 0)
    model.graph.output.add().CopyFrom(onnx.helper.make_tensor_value_info("w1", 1, [8, 8]))
    feeds: list[Feed] = [{"x": np.ones((2, 8), np.float32)}]
    assert _same(Session(model).runs(feeds), Session(_lean(model, tmp_path), room=300).runs(feeds))


def test_a_wrong_sample_is_refused_as_by_the_whole(tmp_path: Path) -> None:
    groups = Session(_lean(_tower([1, 1, 1], 0), tmp_path), room=300)
    with pytest.raises(InputError, match="does not run on this sample"):
        groups.run({"x": np.ones((3, 8), np.float32)})
    with pytest.raises(InputError, match="no value for input 'x'"):
        groups.run({"y": np.ones((2, 8), np.float32)})


def test_a_layer_beyond_the_budget_is_refused_and_said_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lean = _lean(_tower([1, 1, 1], 0), tmp_path)
    monkeypatch.setenv("DEPLOYKIT_MEMORY", "1024")
    Session(lean, room=300)
    monkeypatch.setenv("DEPLOYKIT_MEMORY", "1023")
    with pytest.raises(InputError, match="largest layer") as caught:
        Session(lean, room=300)
    assert "--memory" in caught.value.next


def test_a_model_that_cannot_be_cut_is_run_whole_where_it_fits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lean = _lean(_tower([1, 1, 1], 0), tmp_path)
    lean.opset_import.add(domain="ai.onnx.ml", version=3)
    assert not Session(lean, room=300).streams
    monkeypatch.setenv("DEPLOYKIT_MEMORY", "1K")
    with pytest.raises(InputError, match="cannot be cut"):
        Session(lean, room=300)


def test_a_quantizer_counts_as_the_nodes_that_it_is_computed_with(monkeypatch: pytest.MonkeyPatch) -> None:
    model = _tower([1, 1, 1], 0)
    monkeypatch.setattr(sessions, "_MANY_NODES", 2 * len(model.graph.node))
    values = {entry.name: entry.value for entry in _encodings(model)}
    assert not Session(model).streams and Session(model, values=values).streams
    body = onnx.parser.parse_graph("b () => (float[2,8] z) { z = Identity (x) }")
    choice = onnx.helper.make_node("If", ["c"], ["z"], then_branch=body, else_branch=body)
    model.graph.node.append(choice)
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.array(True), "c"))
    assert not Session(model, values=values).streams, "what a body gives may be no array"


def test_lean_models_are_written_without_paths_of_this_machine(tmp_path: Path) -> None:
    model = _tower([1, 1, 1], 0)
    lean = _lean(model, tmp_path)
    assert str(tmp_path).encode() in lean.SerializeToString()
    written = unmapped(lean).SerializeToString()
    assert str(tmp_path).encode() not in written and b"outside.bin" in written
    whole = whole_model(lean)
    assert [bytes(t.raw_data) for t in whole.graph.initializer] == [t.raw_data for t in model.graph.initializer]
    again = wrap_proto(lean, path=tmp_path / "elsewhere" / "rewritten.onnx")
    assert [file.path for file in again.external] == [tmp_path / "outside.bin"]


def test_no_file_may_claim_to_be_lean(tmp_path: Path) -> None:
    lean = _lean(_tower([1, 1, 1], 0), tmp_path)
    (tmp_path / "claims.onnx").write_bytes(lean.SerializeToString())
    with pytest.raises(InputError, match=r"has the entry 'deploykit\.mapped'"):
        load_model(tmp_path / "claims.onnx")


def test_a_model_beyond_one_message_stays_what_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    model = _tower([1, 2, 3], 0)
    half = model.graph.initializer[1]
    half.CopyFrom(onnx.numpy_helper.from_array(onnx.numpy_helper.to_array(half), half.name))
    before, feeds = model.SerializeToString(), [{"x": np.ones((2, 8), np.float32)}]
    wanted = Session(model).runs(feeds)
    monkeypatch.setattr(sessions, "_PROTOBUF_LIMIT", 100)
    monkeypatch.setattr(sessions, "_LARGE", 16)
    assert _same(Session(model).runs(feeds), wanted) and model.SerializeToString() == before
    assert all(tensor.data_location == TensorProto.DEFAULT for tensor in model.graph.initializer)
