"""Missing entries that fusion explains are no float16 by omission; a slip still is noticed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from deploykit.encodings.coverage import missing_entries
from deploykit.encodings.float_sets import absorbing_fusions, predict_float_set
from deploykit.encodings.formats.aimet import read_encodings
from deploykit.encodings.formats.conversion import convert
from deploykit.encodings.place import layouts, place
from deploykit.encodings.values import Affine, Encoding, EncodingSet, Float
from deploykit.model import load_model, wrap_proto
from deploykit.model.collect import collect_facts
from deploykit.model.facts import GraphFacts
from deploykit.model.patterns import BLOCKS, PAIRS
from sample_models.tiny_graphs import TinyGraph
from tables import each_row

ZOO = Path(__file__).parents[1] / "data" / "zoo"
MODELS = ("distilbert", "gru_lstm", "segformer", "superres")


@each_row("name", MODELS)
def test_true_files_that_quantize_everything_intend_no_float(name: str) -> None:
    facts = collect_facts(load_model(ZOO / name / "model.onnx"))
    encodings = read_encodings(ZOO / name / "w8a16.v1.0.0.encodings")
    newer = convert(place(encodings, facts), "2.0.0", layouts=layouts(facts)).encodings
    for given in (encodings, newer):
        assert predict_float_set(facts, given).intended == frozenset()
        assert missing_entries(facts, given) == ()


@pytest.mark.parametrize("name", ["distilbert", "segformer"])
def test_an_entry_that_is_missing_behind_a_norm_is_noticed(name: str) -> None:
    facts = collect_facts(load_model(ZOO / name / "model.onnx"))
    encodings = read_encodings(ZOO / name / "w8a16.v1.0.0.encodings")
    ends = [n.outputs[0] for n in facts.nodes if n.op_type == "Add" and "orm" in n.name and n.outputs[0] in encodings]
    assert ends
    for end in ends[:3]:
        rest = {key: entry for key, entry in encodings.entries.items() if key != end}
        assert end in predict_float_set(facts, replace(encodings, entries=rest)).intended


def _encodings(*names: str, floats: str = "") -> EncodingSet:
    grid = Affine(bits=16, signed=False, scale=np.asarray(0.1), zero_point=np.asarray(3.0))
    entries = {name: Encoding(name=name, value=grid) for name in names}
    entries |= {name: Encoding(name=name, value=Float(dtype="float16")) for name in floats.split()}
    return EncodingSet(version="1.0.0", entries=entries)


def _conv_then(op_type: str) -> GraphFacts:
    graph = TinyGraph()
    graph.input("x", (1, 2, 4, 4))
    graph.op("Conv", ["x", graph.stored("w", np.ones((2, 2, 1, 1)))], "c")
    extra = {"PRelu": [graph.stored("slope", np.ones((2, 1, 1)))], "Clip": [graph.stored("0", 0), graph.stored("6", 6)]}
    if op_type == "SiLU":
        graph.op("Mul", ["c", graph.op("Sigmoid", ["c"], "s")], "y")
    else:
        graph.op(op_type, ["c", *extra.get(op_type, [])], "y")
    return collect_facts(wrap_proto(graph.model("y"), path=Path("tiny.onnx")))


ACTIVATIONS = ["Relu", "PRelu", "LeakyRelu", "Clip", "HardSwish", "SiLU"]


@each_row("op_type", ACTIVATIONS)
def test_between_a_conv_and_its_activation_no_entry_is_needed(op_type: str) -> None:
    facts = _conv_then(op_type)
    encodings = _encodings("x", "w", "y", "slope", "0", "6")
    assert predict_float_set(facts, encodings).intended == frozenset()
    assert missing_entries(facts, encodings) == ()


@each_row("op_type", ACTIVATIONS)
def test_where_the_result_has_none_either_the_whole_is_float(op_type: str) -> None:
    assert {"c", "y"} <= predict_float_set(_conv_then(op_type), _encodings("x", "w", "slope")).intended


def test_a_lone_sigmoid_without_entry_is_a_slip() -> None:
    facts = _conv_then("SiLU")
    assert missing_entries(facts, _encodings("x", "w", "c", "y")) == ("s",)


def test_a_stated_float_is_believed() -> None:
    found = predict_float_set(_conv_then("PRelu"), _encodings("x", "w", "y", "slope", floats="c"))
    assert "c" in found.intended


def test_every_row_of_the_table_says_where_it_is_known_from() -> None:
    assert all(row.source for row in PAIRS)
    assert all(row.source for row in BLOCKS.values())
    certain = {(row.name, maker) for row in PAIRS if row.certain for maker in row.makers}
    assert {("PRelu", "Conv"), ("LeakyRelu", "Conv"), ("Relu", "Add"), ("HardSwish", "BatchNormalization")} <= certain
    assert BLOCKS["LayerNormalization"].certain
    assert not BLOCKS["Gelu"].certain


@each_row("op_type", ACTIVATIONS)
def test_what_the_file_speaks_about_is_not_explained_away(op_type: str) -> None:
    """Neither an entry of its own, nor the word that it is float."""
    facts, encodings = _conv_then(op_type), _encodings("x", "w", "y", "slope", "0", "6")
    assert "c" in absorbing_fusions(facts, encodings)
    assert "c" not in absorbing_fusions(facts, _encodings("x", "w", "y", "slope", "0", "6", "c"))
    assert "c" not in absorbing_fusions(facts, replace(encodings, float_tensors=frozenset({"c"})))


def test_in_a_block_that_always_fuses_an_entry_counts_as_well() -> None:
    graph = TinyGraph()
    graph.stored("two", 2.0)
    mean = graph.op("ReduceMean", [graph.input("x", (2, 8))], "mean", axes=[-1])
    centred = graph.op("Sub", ["x", mean], "centred")
    square = graph.op("ReduceMean", [graph.op("Pow", [centred, "two"], "square")], "variance", axes=[-1])
    root = graph.op("Sqrt", [graph.op("Add", [square, graph.stored("eps", 1e-5)], "safe")], "root")
    graph.op("Div", [centred, root], "y")
    facts = collect_facts(wrap_proto(graph.model("y"), path=Path("tiny.onnx")))
    whole = {"mean", "centred", "square", "variance", "safe", "root"}
    assert whole <= absorbing_fusions(facts, _encodings("x", "y")).keys()
    some = absorbing_fusions(facts, replace(_encodings("x", "y", "root"), float_tensors=frozenset({"safe"})))
    assert whole & some.keys() == whole - {"root", "safe"}


def test_what_vanishes_into_one_operator_is_listed_in_the_same_order_in_every_run() -> None:
    facts = collect_facts(load_model(ZOO / "distilbert" / "model.onnx"))
    found = absorbing_fusions(facts, read_encodings(ZOO / "distilbert" / "w8a16.v1.0.0.encodings"))
    blocks: dict[str, list[str]] = {}
    for name, fusion in found.items():
        if name in fusion.inside:
            blocks.setdefault(fusion.result, []).append(name)
    assert any(len(names) > 2 for names in blocks.values())
    assert all(names == sorted(names) for names in blocks.values())
