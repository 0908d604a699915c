"""Placement on real graphs; the order trap of 1.0.0 is proven against AIMET's 2.0.0 export of the same simulation."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from deploykit.encodings.formats.aimet import parse_encodings, read_encodings
from deploykit.encodings.formats.differences import diff
from deploykit.encodings.place import Layout, layouts, place
from deploykit.encodings.values import Affine, EncodingSet, Lpbq
from deploykit.errors import InputError
from deploykit.model.facts import GraphFacts
from deploykit.model.parameters import parameter_uses
from tables import each_row

AIMET = Path(__file__).parents[1] / "data" / "aimet"

GraphOf = Callable[[str], GraphFacts]
Collect = Callable[[onnx.ModelProto], GraphFacts]


def affine(encodings: EncodingSet, name: str) -> Affine:
    value = encodings.entries[name].value
    assert isinstance(value, Affine)
    return value


def test_the_order_trap_of_100(graph_of: GraphOf) -> None:
    """The flat list of a rank-2 weight with the channels last is transposed in 1.0.0; others are not."""
    old = read_encodings(AIMET / "mlp/bq-w4a16.v1.0.0.encodings")
    truth = read_encodings(AIMET / "mlp/bq-w4a16.v2.0.0.encodings")
    flat, right = affine(old, "onnx::MatMul_57").scale, affine(truth, "onnx::MatMul_57").scale
    assert right.shape == (4, 128)
    assert not np.array_equal(flat.reshape(4, 128), right)  # what a naive reader would take
    placed = affine(place(old, graph_of("mlp")), "onnx::MatMul_57")
    assert np.array_equal(placed.scale, right)
    assert (placed.axis, placed.block_axis) == (1, 0)
    for name in ("fc1.weight", "lm_head.weight"):
        assert np.array_equal(affine(old, name).scale, affine(truth, name).scale.reshape(-1))


@each_row("variant", ["bq-w4a16", "bq-asym-w4a16", "bq-w2a16-zpshift", "lpbq-w4a16", "w8a8", "w4a8"])
def test_placed_100_equals_200(variant: str, graph_of: GraphOf) -> None:
    facts = graph_of("mlp")
    old = place(read_encodings(AIMET / f"mlp/{variant}.v1.0.0.encodings"), facts)
    new = place(read_encodings(AIMET / f"mlp/{variant}.v2.0.0.encodings"), facts)
    differences = diff(old, new, grid_only=True)
    assert {d.kind for d in differences} == {"only-second"}
    for name, entry in old.entries.items():
        if entry.is_param:
            assert getattr(entry.value, "placed", True)
            assert new.entries[name].is_param


@pytest.mark.parametrize("name", ["cnn", "cnn_bnfold", "vit", "detr", "mlp"])
def test_parameters_are_those_that_aimet_calls_so(name: str, graph_of: GraphOf) -> None:
    facts = graph_of(name)
    document = json.loads((AIMET / f"{name}/w8a8-int32bias.v1.0.0.encodings").read_text())
    stated = read_encodings(AIMET / f"{name}/w8a8-int32bias.v1.0.0.encodings")
    unknown = place(read_encodings(AIMET / f"{name}/w8a8.v2.0.0.encodings"), facts)
    assert {e.name for e in unknown if e.is_param} == {e["name"] for e in document["param_encodings"]}
    assert all(unknown.entries[e.name].is_param == e.is_param for e in stated)


def test_lengths_must_fit_the_channels(graph_of: GraphOf) -> None:
    document = json.loads((AIMET / "mlp/w8a8.v1.0.0.encodings").read_text())
    for entry in document["param_encodings"]:
        entry["scale"], entry["offset"] = entry["scale"][:-1], entry["offset"][:-1]
    encodings = parse_encodings(document, where="w.encodings")
    with pytest.raises(InputError) as caught:
        place(encodings, graph_of("mlp"))
    message = str(caught.value)
    assert "w.encodings: 'onnx::MatMul_57': 127 scales, but MatMul '/up_proj/MatMul' has 128 channels" in message
    assert "axis 1 of 64 x 128" in message


def test_blocks_must_fit_the_weight(graph_of: GraphOf) -> None:
    for name in ("bq-w4a16", "lpbq-w4a16"):
        document = json.loads((AIMET / f"mlp/{name}.v1.0.0.encodings").read_text())
        for entry in document["param_encodings"]:
            entry["block_size"] = 32
        with pytest.raises(InputError, match="in blocks of 32, but MatMul '/up_proj/MatMul' has 64 x 128"):
            place(parse_encodings(document, where="w"), graph_of("mlp"))


def test_lpbq_channels_must_fit_the_weight(graph_of: GraphOf) -> None:
    document = json.loads((AIMET / "mlp/lpbq-w4a16.v1.0.0.encodings").read_text())
    entry = document["param_encodings"][0]
    entry["scale"], entry["offset"] = entry["scale"][:64], entry["offset"][:64]
    with pytest.raises(InputError, match="64 scales, but MatMul"):
        place(parse_encodings(document, where="w"), graph_of("mlp"))


def test_lists_of_061_that_fit_neither_channels_nor_blocks_are_refused(graph_of: GraphOf) -> None:
    document = json.loads((AIMET / "mlp/bq-w4a16.v0.6.1.encodings").read_text())
    items = document["param_encodings"]["onnx::MatMul_57"]
    document["param_encodings"]["onnx::MatMul_57"] = items[:-1]
    with pytest.raises(InputError, match="511 scales"):
        place(parse_encodings(document, where="w"), graph_of("mlp"))


def test_axes_out_of_range_are_refused_once_the_rank_is_known(graph_of: GraphOf) -> None:
    document = json.loads((AIMET / "mlp/w8a8.v2.0.0.encodings").read_text())
    for entry in document["encodings"]:
        if "axis" in entry:
            entry["axis"] = 2
    with pytest.raises(InputError, match="'onnx::MatMul_57': axis 2 is out of range for 2 dimensions"):
        place(parse_encodings(document, where="w"), graph_of("mlp"))


def test_names_that_the_model_lacks_are_left_alone(graph_of: GraphOf) -> None:
    encodings = read_encodings(AIMET / "mlp/w8a8.v1.0.0.encodings")
    placed = place(encodings, graph_of("cnn"))
    assert placed.entries == encodings.entries


def stored(name: str, *shape: int) -> TensorProto:
    return numpy_helper.from_array(np.ones(shape, dtype=np.float32), name)


def odd_model() -> onnx.ModelProto:
    """Weights that reach their op in unusual ways."""
    node = helper.make_node
    nodes = [
        node("ConvTranspose", ["x", "deconv.weight", "deconv.bias"], ["a"], name="deconv"),
        node("Transpose", ["turned"], ["turned_t"], perm=[1, 0]),
        node("MatMul", ["m", "turned_t"], ["b"], name="turned_matmul"),
        node("Identity", ["hidden"], ["hidden_i"]),
        node("Gemm", ["m", "hidden_i"], ["c"], name="behind_identity"),
        node("MatMul", ["s", "stacked"], ["d"], name="batched"),
        node("MatMul", ["m", "shared"], ["e"]),
        node("Gemm", ["m", "shared"], ["f"], transB=1),
        node("Add", ["m", "table"], ["g"]),
        node("MatMul", ["m", "plain"], ["h0"]),
        node("Add", ["wide", "h0"], ["h"]),
        node("MatMul", ["dynamic_a", "dynamic_b"], ["i"]),
        node("LayerNormalization", ["m", "ln.weight", "ln.bias"], ["j"]),
    ]
    inputs = {"x": (1, 4, 5, 5), "m": (3, 6), "s": (2, 3, 6), "dynamic_a": (3, 3), "dynamic_b": (3, 3)}
    weights = [
        stored("deconv.weight", 4, 8, 3, 3),
        stored("deconv.bias", 8),
        stored("turned", 10, 6),
        stored("hidden", 6, 12),
        stored("stacked", 2, 6, 7),
        stored("shared", 6, 6),
        stored("table", 3, 6),
        stored("plain", 6, 6),
        stored("wide", 1, 6),
        stored("ln.weight", 6),
        stored("ln.bias", 6),
    ]
    infos = [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in inputs.items()]
    outs = [helper.make_tensor_value_info(n, TensorProto.FLOAT, None) for n in "abcdefghij"]
    return helper.make_model(
        helper.make_graph(nodes, "g", infos, outs, weights), opset_imports=[helper.make_opsetid("", 17)]
    )


def test_axes_of_weights_read_in_unusual_ways(collect: Collect) -> None:
    known = layouts(collect(odd_model()))
    axes = {name: (known[name].channel_axis, known[name].block_axis) for name in known if known[name].is_param}
    assert axes == {
        "deconv.weight": (1, 0),
        "deconv.bias": (None, None),
        "turned": (0, 1),
        "hidden": (1, 0),
        "stacked": (2, 1),
        "shared": (None, None),  # two ops disagree
        "plain": (1, 0),
        "ln.weight": (None, None),
        "ln.bias": (None, None),
    }


def test_a_wide_constant_added_to_a_matmul_is_no_bias(collect: Collect) -> None:
    uses = parameter_uses(collect(odd_model()))
    assert "wide" not in uses and "table" not in uses


def test_blockwise_deconvolution_and_batched_matmul_keep_their_order(collect: Collect) -> None:
    """Only rank-2 weights are transposed."""
    channel = {"bw": 4, "dtype": "INT", "enc_type": "PER_BLOCK", "is_sym": True, "block_size": 2}
    sizes = {"deconv.weight": 16, "stacked": 21, "turned": 30}
    params = [
        {**channel, "name": name, "offset": [-8] * size, "scale": [float(i + 1) for i in range(size)]}
        for name, size in sizes.items()
    ]
    document = {"version": "1.0.0", "activation_encodings": [], "param_encodings": params}
    placed = place(parse_encodings(document, where="w"), collect(odd_model()))
    for name, shape in {"deconv.weight": (2, 8, 1, 1), "stacked": (1, 3, 7), "turned": (10, 3)}.items():
        value = affine(placed, name)
        assert value.placed and value.scale.shape == shape
        assert value.scale.reshape(-1)[1] == 2.0


def test_lists_that_several_axes_would_fit_stay_unplaced(collect: Collect) -> None:
    item = {"bw": 8, "dtype": "INT", "enc_type": "PER_CHANNEL", "is_sym": True, "offset": [-128] * 6, "scale": [1] * 6}
    document = {
        "version": "1.0.0",
        "activation_encodings": [{**item, "name": "table"}],
        "param_encodings": [{**item, "name": "shared"}, {**item, "name": "ln.weight"}],
    }
    placed = place(parse_encodings(document, where="w"), collect(odd_model()))
    assert not affine(placed, "shared").placed
    assert (affine(placed, "table").axis, affine(placed, "ln.weight").axis) == (1, 0)


def test_lpbq_of_a_batched_weight(collect: Collect) -> None:
    """2.0.0 states the block axis only; with more than two long dimensions the graph gives the channel axis."""
    entry = {
        "name": "stacked",
        "output_dtype": "int4",
        "axis": 1,
        "block_size": 2,
        "per_block_int_scale": np.ones((2, 3, 7), dtype=int).tolist(),
        "per_channel_float_scale": np.ones((2, 1, 7)).tolist(),
    }
    encodings = parse_encodings({"version": "2.0.0", "encodings": [entry]}, where="w")
    value = encodings.entries["stacked"].value
    assert isinstance(value, Lpbq) and value.axis is None
    settled = place(encodings, collect(odd_model())).entries["stacked"].value
    assert isinstance(settled, Lpbq) and (settled.axis, settled.block_axis) == (2, 1)


@each_row(
    ("changes", "size", "expected"),
    [
        ({}, 16, (2, 1, 3)),
        ({}, 32, (1, 1, 3)),
        ({}, 20, None),
        ({"channel_axis": None}, 16, None),
        ({"block_axis": None}, 16, None),
        ({"shape": None}, 16, None),
    ],
)
def test_the_shape_of_blockwise_scales(changes: dict[str, Any], size: int, expected: tuple[int, ...] | None) -> None:
    layout = replace(Layout(shape=(32, 5, 3), channel_axis=2, block_axis=0), **changes)
    assert layout.blocks_shape(size) == expected
