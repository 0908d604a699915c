"""Derived entries, bit for bit those that AIMET writes into its 2.0.0 files."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from deploykit.encodings.complete import FINEST_SCALE, complete, copy_over_movement, derive_biases, effective_entry
from deploykit.encodings.formats.aimet import read_encodings
from deploykit.encodings.formats.differences import diff
from deploykit.encodings.place import place
from deploykit.encodings.values import Affine, Array, Encoding, EncodingSet, Float
from deploykit.model import Model, load_model, wrap_proto
from deploykit.model.collect import collect_facts, constant_value
from deploykit.model.facts import GraphFacts
from sample_models.tiny_graphs import TinyGraph
from tables import each_row

DATA = Path(__file__).parents[1] / "data"

EXPORTS = [
    *(
        (f"aimet/{path.parts[-2] if 'aimet-2' not in path.parts[-2] else path.parts[-3]}/model.onnx", path)
        for path in sorted((DATA / "aimet").rglob("*.v1.0.0.encodings"))
        if "int32bias" not in path.name
    ),
    *(
        (f"aimet_derived/{path.name.split('.')[0].split('-')[0]}.onnx", path)
        for path in sorted((DATA / "aimet_derived").glob("*.v1.0.0.encodings"))
    ),
    *(
        (f"zoo/{path.parts[-2]}/model.onnx", path)
        for path in sorted((DATA / "zoo").rglob("*.v1.0.0.encodings"))
        if path.with_name(path.name.replace("1.0.0", "2.0.0")).exists()
    ),
]


def values_of(model: Model) -> Callable[[str], Array | None]:
    return lambda name: constant_value(model, name, limit=1 << 20)


def without_floats(encodings: EncodingSet) -> EncodingSet:
    entries = {name: e for name, e in encodings.entries.items() if not isinstance(e.value, Float)}
    return replace(encodings, entries=entries)


@each_row(("model_path", "path"), EXPORTS, ids=lambda v: v if isinstance(v, str) else v.name)
def test_completed_100_is_aimets_200(model_path: str, path: Path) -> None:
    model = load_model(DATA / model_path)
    facts = collect_facts(model)
    theirs = place(read_encodings(path.with_name(path.name.replace("1.0.0", "2.0.0"))), facts)
    ours = complete(place(read_encodings(path), facts), facts, read_values=values_of(model))
    # The older release multiplies the scales of LPBQ in float32 throughout.
    tolerance = 2e-7 if "lpbq" in path.name and "2.31" in str(path) else 0.0
    assert not diff(without_floats(ours.encodings), theirs, grid_only=True, tolerance=tolerance)
    added = set(ours.biases) | set(ours.copies)
    assert added == theirs.entries.keys() - read_encodings(path).entries.keys()
    assert all(ours.encodings.entries[name].is_param == theirs.entries[name].is_param for name in added)


@pytest.mark.parametrize("name", ["cnn", "cnn_bnfold", "vit", "detr", "mlp"])
@each_row("version", ["0.6.1", "1.0.0"])
def test_int32_biases_are_aimets_own(name: str, version: str) -> None:
    folder = DATA / "aimet" / name
    model = load_model(folder / "model.onnx")
    facts = collect_facts(model)
    plain = place(read_encodings(folder / f"w8a8.v{version}.encodings"), facts)
    theirs = place(read_encodings(folder / f"w8a8-int32bias.v{version}.encodings"), facts)
    added = derive_biases(plain, facts, read_values=values_of(model)).entries
    assert added and not diff(plain.with_entries(added), theirs)


def test_the_number_of_derived_entries_of_a_transformer() -> None:
    folder = DATA / "aimet/vit"
    model = load_model(folder / "model.onnx")
    facts = collect_facts(model)
    done = complete(place(read_encodings(folder / "w8a8.v1.0.0.encodings"), facts), facts, read_values=values_of(model))
    assert (len(done.encodings), len(done.copies), len(done.biases)) == (56, 10, 9)


def test_a_masked_minimum_is_only_known_by_its_values() -> None:
    path = DATA / "aimet_derived/masked.v1.0.0.encodings"
    model = load_model(DATA / "aimet_derived/masked.onnx")
    facts = collect_facts(model)
    encodings = place(read_encodings(path), facts)
    with_values = {e.name for e in copy_over_movement(encodings, facts, read_values=values_of(model))}
    without = {e.name for e in copy_over_movement(encodings, facts)}
    assert with_values == {"lowest_t"} and without == {"lowest_t", "lowest"}


@each_row(
    ("axis", "softmax", "far", "masked"),
    [
        (-1, -1, -20.0, True),
        (3, 3, -20.0, True),
        (3, -1, -1e9, True),
        (2, -1, -20.0, False),
        (-1, 2, -20.0, False),
        (-1, -1, -19.9, False),
    ],
)
def test_a_masked_minimum_is_along_the_last_axis_and_far_below(
    axis: int, softmax: int, far: float, masked: bool
) -> None:
    """Whether the axis is an input or, in older operator sets, an attribute."""
    for older in (False, True):
        graph = TinyGraph(opset=17 if older else 18)
        graph.input("x", (2, 3, 4, 4))
        graph.input("mask", (2, 3, 4, 4), "bool")
        graph.stored("far", far)
        if older:
            graph.op("ReduceMin", ["x"], "lowest", axes=[axis])
        else:
            graph.op("ReduceMin", ["x", graph.stored("axis", [axis], "int64")], "lowest")
        graph.op("Where", ["mask", "x", graph.op("Add", ["lowest", "far"], "sunk")], "where")
        graph.op("Softmax", ["where"], "y", axis=softmax)
        model = wrap_proto(graph.model("y"), path=Path("m.onnx"))
        copied = copy_over_movement(encoding_set(x=grid(0.5)), collect_facts(model), read_values=values_of(model))
        assert ("lowest" not in {entry.name for entry in copied}) is masked


def grid(scale: float, *, bits: int = 8, signed: bool = False) -> Affine:
    return Affine(bits=bits, signed=signed, scale=np.asarray(scale), zero_point=np.asarray(0.0))


def encoding_set(**values: Affine | Float) -> EncodingSet:
    return EncodingSet(version="1.0.0", entries={n: Encoding(name=n, value=v) for n, v in values.items()})


def stored(name: str, values: object) -> TensorProto:
    return numpy_helper.from_array(np.asarray(values, dtype=np.float32), name)


def build(nodes: list[onnx.NodeProto], outputs: str, weights: list[TensorProto]) -> tuple[Model, GraphFacts]:
    infos = [helper.make_tensor_value_info(name, TensorProto.FLOAT, (2, 4)) for name in ("x", "y")]
    outs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in outputs.split()]
    graph = helper.make_graph(nodes, "g", infos, outs, weights)
    model = wrap_proto(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]), path=Path("m.onnx"))
    return model, collect_facts(model)


def test_a_float_tensor_neither_gives_nor_takes() -> None:
    node = helper.make_node
    _, facts = build([node("Relu", ["x"], ["a"]), node("Transpose", ["a"], ["b"])], "b", [])
    lends = encoding_set(b=grid(0.5))
    assert [e.name for e in copy_over_movement(lends, facts)] == ["a"]
    assert not copy_over_movement(encoding_set(a=Float(dtype="float16"), b=grid(0.5)), facts)
    assert not copy_over_movement(replace(lends, float_tensors=frozenset({"a"})), facts)
    assert not copy_over_movement(replace(encoding_set(a=grid(0.5)), float_tensors=frozenset({"b"})), facts)


def test_per_channel_entries_do_not_travel() -> None:
    _, facts = build([helper.make_node("Transpose", ["x"], ["b"])], "b", [])
    channels = Affine(bits=8, signed=True, scale=np.ones(4), zero_point=np.zeros(4), axis=1)
    assert not copy_over_movement(encoding_set(x=channels), facts)


def test_other_domains_are_not_known() -> None:
    _, facts = build([helper.make_node("Identity", ["x"], ["b"])], "b", [])
    elsewhere = replace(facts, nodes=tuple(replace(node, domain="com.example") for node in facts.nodes))
    assert copy_over_movement(encoding_set(x=grid(0.5)), facts)
    assert not copy_over_movement(encoding_set(x=grid(0.5)), elsewhere)


def bias_model(bias: object = (1.0, -3.0), *, shared: bool = False) -> tuple[Model, GraphFacts]:
    node = helper.make_node
    nodes = [
        node("Transpose", ["x"], ["xt"], perm=[1, 0]),
        node("Gemm", ["xt", "w", "b"], ["g"], name="gemm"),
        *([node("Gemm", ["y", "w2", "b"], ["g2"], name="second")] if shared else []),
        node("LayerNormalization", ["g", "lw", "lb"], ["n"], name="norm"),
    ]
    weights = [stored("w", np.ones((2, 2))), stored("w2", np.ones((4, 2))), stored("b", bias)]
    weights += [stored("lw", [1, 1]), stored("lb", bias)]
    return build(nodes, "n g2" if shared else "n", weights)


def skipped(encodings: EncodingSet, *, shared: bool = False) -> dict[str, str]:
    model, facts = bias_model(shared=shared)
    return dict(derive_biases(encodings, facts, read_values=values_of(model)).skipped)


FULL: dict[str, Affine | Float] = {
    "x": grid(0.5),
    "w": grid(0.25, signed=True),
    "g": grid(0.1),
    "lw": grid(0.01, signed=True),
}


def test_bias_scales() -> None:
    model, facts = bias_model()
    done = derive_biases(encoding_set(**FULL), facts, read_values=values_of(model))
    scales = {entry.name: float(entry.value.scale) for entry in done.entries if isinstance(entry.value, Affine)}
    assert scales == {"b": 0.125, "lb": 3 / 2**31}
    assert all(entry.is_param and entry.dtype == "int32" for entry in done.entries)


def test_the_input_is_found_over_data_movement() -> None:
    _, facts = bias_model()
    found = effective_entry(encoding_set(**FULL), facts, "xt")
    assert found is not None and found.name == "x"
    assert effective_entry(encoding_set(x=grid(0.5)), facts, "n") is None


def test_biases_without_an_entry_say_why() -> None:
    assert skipped(encoding_set(**{k: v for k, v in FULL.items() if k != "x"})) == {
        "b": "the input of gemm is not quantized"
    }
    assert skipped(encoding_set(**{k: v for k, v in FULL.items() if k != "w"})) == {
        "b": "the weight of gemm is not quantized"
    }
    assert skipped(encoding_set(**{**FULL, "x": Float(dtype="float16")})) == {"b": "the input of gemm is float16"}
    floats = replace(encoding_set(**{k: v for k, v in FULL.items() if k != "x"}), float_tensors=frozenset({"x"}))
    assert skipped(floats) == {"b": "the input of gemm is not quantized"}
    assert "several ops add it" in skipped(encoding_set(**FULL, y=grid(0.5), w2=grid(0.5)), shared=True)["b"]
    unread = derive_biases(encoding_set(**FULL), bias_model()[1], read_values=lambda name: None)
    assert "cannot be read" in unread.skipped["lb"]
    unplaced = Affine(bits=8, signed=True, scale=np.ones(2), zero_point=np.zeros(2), placed=False)
    assert "not placed" in skipped(encoding_set(**{**FULL, "w": unplaced}))["b"]


def test_existing_and_float_biases_are_left_alone() -> None:
    model, facts = bias_model()
    explicit = encoding_set(**FULL, b=grid(0.75), lb=Float(dtype="float16"))
    assert not derive_biases(explicit, facts, read_values=values_of(model)).entries


def test_zero_biases_get_the_finest_scale() -> None:
    model, facts = bias_model((0.0, 0.0))
    done = derive_biases(encoding_set(**FULL), facts, read_values=values_of(model))
    scales = {e.name: float(e.value.scale) for e in done.entries if isinstance(e.value, Affine)}
    assert scales["lb"] == FINEST_SCALE


def test_infinite_biases_get_no_scale() -> None:
    model, facts = bias_model((float("inf"), 0.0))
    assert "not finite" in derive_biases(encoding_set(**FULL), facts, read_values=values_of(model)).skipped["lb"]


def test_weights_along_an_unusual_axis_fall_back_to_the_values() -> None:
    model, facts = bias_model()
    rows = Affine(bits=8, signed=True, scale=np.ones(2), zero_point=np.zeros(2), axis=0)
    done = derive_biases(encoding_set(**{**FULL, "w": rows}), facts, read_values=values_of(model))
    made = {e.name: e.value for e in done.entries}["b"]
    assert isinstance(made, Affine)
    assert made.scale.tolist() == [1 / 2**31, 3 / 2**31]


def test_scales_that_float32_cannot_multiply_are_multiplied_in_double() -> None:
    model, facts = bias_model()
    for scale in (1e-30, 1e30):
        tiny = encoding_set(**{**FULL, "x": grid(scale), "w": grid(scale, signed=True)})
        done = derive_biases(tiny, facts, read_values=values_of(model))
        made = {e.name: e.value for e in done.entries}["b"]
        assert isinstance(made, Affine) and float(made.scale) == scale * scale


def test_products_that_are_no_scale_give_no_entry() -> None:
    model, facts = bias_model()
    for scale in (1e-200, 1e200):
        odd = encoding_set(**{**FULL, "x": grid(scale), "w": grid(scale, signed=True)})
        done = derive_biases(odd, facts, read_values=values_of(model))
        assert "no usable scale" in done.skipped["b"]
