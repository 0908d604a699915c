"""Which tensors stay float, against what AIMET really flipped; borders and how to have fewer."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deploykit.encodings.float_sets import (
    FloatPrediction,
    find_borders,
    float_nodes,
    predict_float_set,
    suggest_extensions,
)
from deploykit.encodings.formats.aimet import read_encodings
from deploykit.encodings.values import Affine, Encoding, EncodingSet, Float
from deploykit.model import load_model
from deploykit.model.collect import collect_facts
from deploykit.model.facts import GraphFacts
from deploykit.model.load import wrap_proto
from sample_models.tiny_graphs import TinyGraph
from tables import each_row

AIMET = Path(__file__).parents[1] / "data" / "aimet"
FLIPPED = frozenset(json.loads((AIMET / "detr" / "litemp.json").read_text())["flipped_tensors"])
DECODER = frozenset(f"/decoder/{name}_output_0" for name in ("Add_2", "Add_4", "Div", "Log")) | {"onnx::Add_4934"}


def _facts(name: str) -> GraphFacts:
    return collect_facts(load_model(AIMET / name / "model.onnx"))


def _predict(model: str, variant: str) -> FloatPrediction:
    return predict_float_set(_facts(model), read_encodings(AIMET / model / f"{variant}.encodings"))


MIXES = [
    ("w8a8-fp16mix-explicit", FLIPPED),
    ("w8a8-fp16mix-omit", FLIPPED),
    ("aimet-2.31.0/w8a8-litemp-fp16", FLIPPED),
    ("w8a16-fp16mix-explicit", DECODER),
    ("w8a16-fp16mix-omit", DECODER),
]


@pytest.mark.parametrize("version", ["v0.6.1", "v1.0.0", "v2.0.0"])
@each_row(("variant", "flipped"), MIXES)
def test_the_intended_set_is_what_aimet_flipped(variant: str, flipped: frozenset[str], version: str) -> None:
    prediction = _predict("detr", f"{variant}.{version}")
    assert prediction.intended == flipped
    assert prediction.missing == frozenset()
    assert prediction.explicit == ("explicit" in variant and version != "v2.0.0")


@pytest.mark.parametrize("version", ["v0.6.1", "v1.0.0"])
@each_row(("variant", "flipped"), MIXES)
def test_only_biases_stay_float_by_accident(variant: str, flipped: frozenset[str], version: str) -> None:
    """Version 2.0.0 brings int32 biases; without them a float fallback leaves every bias float."""
    unexpected = _predict("detr", f"{variant}.{version}").unexpected
    assert unexpected
    assert all(name.endswith(".bias") for name in unexpected)
    assert _predict("detr", f"{variant}.v2.0.0").unexpected == frozenset()


@pytest.mark.parametrize("model", ["cnn", "cnn_bnfold", "vit", "detr"])
def test_nothing_is_float_where_all_is_quantized(model: str) -> None:
    prediction = _predict(model, "w8a8.v2.0.0")
    assert prediction.intended == prediction.predicted == frozenset()
    assert prediction.borders == ()


def test_inside_a_fused_pair_a_tensor_has_no_type() -> None:
    absorbed = _predict("cnn", "w8a8.v2.0.0").absorbed
    assert absorbed["/conv1/Conv_output_0"] == "/bn1/BatchNormalization"
    assert absorbed["/bn1/BatchNormalization_output_0"] == "/relu/Relu"


def test_everything_float_has_no_border() -> None:
    prediction = _predict("detr", "fp16.v1.0.0")
    assert prediction.intended == prediction.predicted
    assert len(prediction.predicted) > 40
    assert prediction.borders == ()


def test_removing_an_entry_is_predicted_to_make_a_float_tensor() -> None:
    """The gap of a careless edit: the tensor is float although its neighbours are not."""
    facts = _facts("detr")
    encodings = read_encodings(AIMET / "detr" / "w8a16-fp16mix-explicit.v0.6.1.encodings")
    entries = {name: entry for name, entry in encodings.entries.items() if name != "/postprocessor/Mul_output_0"}
    prediction = predict_float_set(facts, replace(encodings, entries=entries))
    assert "/postprocessor/Mul_output_0" in prediction.unexpected


def _affine() -> Affine:
    return Affine(bits=8, signed=False, scale=np.asarray(0.1), zero_point=np.asarray(3.0))


def _set(*names: str, floats: tuple[str, ...] = ()) -> EncodingSet:
    entries = {name: Encoding(name=name, value=_affine()) for name in names}
    entries |= {name: Encoding(name=name, value=Float(dtype="float16")) for name in floats}
    return EncodingSet(version="0.6.1", entries=entries)


def _chain(ops: list[str]) -> GraphFacts:
    graph = TinyGraph()
    name = graph.input("x", (1, 4, 4))
    for index, op in enumerate(ops):
        extra = {"perm": [0, 2, 1]} if op == "Transpose" else {}
        name = graph.op(op, [name], f"t{index}", **extra)
    return collect_facts(wrap_proto(graph.model(name), path=Path("tiny.onnx")))


def test_an_entry_travels_over_data_movement_both_ways() -> None:
    facts = _chain(["Relu", "Transpose", "Identity", "Sigmoid"])
    forward = predict_float_set(facts, _set("x", "t0", "t3"))
    backward = predict_float_set(facts, _set("x", "t2", "t3"))
    assert forward.predicted == backward.predicted == frozenset()


def test_an_explicit_float_stops_the_travel() -> None:
    facts = _chain(["Relu", "Transpose", "Identity", "Sigmoid"])
    prediction = predict_float_set(facts, _set("x", "t0", "t3", floats=("t1",)))
    assert prediction.intended == prediction.predicted == {"t1", "t2"}


@settings(max_examples=40, deadline=None)
@given(kinds=st.lists(st.booleans(), min_size=1, max_size=8))
def test_in_a_chain_of_computing_ops_exactly_the_gaps_are_float(kinds: list[bool]) -> None:
    facts = _chain(["Sigmoid"] * len(kinds))
    covered = [f"t{index}" for index, quantized in enumerate(kinds) if quantized]
    prediction = predict_float_set(facts, _set("x", *covered))
    assert prediction.predicted == {f"t{index}" for index, quantized in enumerate(kinds) if not quantized}
    runs = float_nodes(facts, prediction.predicted)
    for border in prediction.borders:
        assert border.node_index in runs
        assert border.tensor not in prediction.predicted


def test_borders_are_where_float_ops_meet_quantized_tensors() -> None:
    facts = _chain(["Sigmoid"] * 4)
    borders = find_borders(facts, {"t1", "t2"})
    assert [(b.tensor, b.direction) for b in borders] == [("t0", "to-float"), ("t3", "to-quantized")]


def test_a_small_island_is_the_best_extension() -> None:
    """float, one quantized op, float: running it in float too removes both of its borders."""
    facts = _chain(["Sigmoid"] * 9)
    floats = {"t2", "t4", "t5"}
    best = suggest_extensions(facts, floats)[0]
    assert best.tensors == ("t3",)
    assert best.removed == len(find_borders(facts, floats)) - len(find_borders(facts, floats | {"t3"}))
    assert best.removed > 0


def test_extensions_of_the_detector_remove_borders() -> None:
    facts = _facts("detr")
    floats = set(FLIPPED)
    before = len(find_borders(facts, floats))
    best = suggest_extensions(facts, floats)[0]
    assert len(find_borders(facts, floats | set(best.tensors))) == before - best.removed
    assert best.removed >= 1


def test_what_an_exporter_never_gives_an_entry_means_no_float() -> None:
    """A cast of integers and a maximum over quantized values are left out by habit, with what is moved from them."""
    graph = TinyGraph()
    x, sizes = graph.input("x", (1, 4)), graph.input("sizes", (1, 4), "int64")
    graph.op("Cast", [sizes], "cast", to=1)
    graph.op("Reshape", ["cast", graph.stored("shape", [4, 1], "int64")], "moved")
    graph.op("ReduceMax", [x], "largest", axes=[1], keepdims=1)
    graph.op("Tanh", [x], "meant")
    total = graph.op("Add", [graph.op("Add", ["moved", "largest"], "sum"), "meant"], "y")
    facts = collect_facts(wrap_proto(graph.model(total), path=Path("m.onnx")))
    scale, zero = np.asarray(0.1), np.asarray(0.0)
    grid = Affine(bits=16, signed=False, scale=scale, zero_point=zero, symmetric=False, placed=True)
    entries = {name: Encoding(name=name, value=grid) for name in ("x", "sum", "y")}
    left = predict_float_set(facts, EncodingSet(version="1.0.0", entries=entries))
    assert left.intended == {"cast", "moved", "largest", "meant"}
    assert left.by_habit == {"cast", "moved", "largest"}
    assert left.meant == {"meant"}
    stated = EncodingSet(version="1.0.0", entries=entries, float_tensors=frozenset({"cast"}))
    assert predict_float_set(facts, stated).by_habit == frozenset()
