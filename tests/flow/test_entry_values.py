"""New encodings: grids that hold what they must, of the kind of what they replace."""

from __future__ import annotations

import numpy as np
import pytest

from deploykit.accuracy.samples.gathering import InputSource, Samples
from deploykit.accuracy.samples.inputs import Label
from deploykit.encodings.infer import infer_entries
from deploykit.encodings.new_grids import GridKind, affine_for_range
from deploykit.encodings.values import Affine, Encoding, EncodingSet, Float
from deploykit.flow.samples import evidence_of
from deploykit.model.collect import facts_of
from sample_models.tiny_graphs import TinyGraph


def _set(**values: Affine | Float) -> EncodingSet:
    entries = {name: Encoding(name=name, value=value) for name, value in values.items()}
    return EncodingSet(version="1.0.0", entries=entries)


def _grid(bits: int, *, signed: bool = False) -> Affine:
    return affine_for_range(-1, 1, GridKind(bits=bits, signed=signed))


def test_new_entries_are_of_the_kind_they_replace() -> None:
    graph = TinyGraph()
    name = graph.input("x", (3,))
    for output in ("a", "b", "c", "d"):
        name = graph.op("Tanh", [name], output)
    model = graph.model("d")
    encodings = _set(a=_grid(8, signed=True), b=_grid(16), c=Float(dtype="float16"), x=_grid(8), y=_grid(8))
    made = infer_entries(model, facts_of(model), encodings, "abcd", proven={"b": (-0.5, 0.25)}).encodings
    dtypes = {name: made.entries[name].dtype for name in "abcd"}
    assert dtypes["a"] == "int8"
    assert dtypes["b"] == "uint16"
    assert dtypes["c"] == "uint16", "16 bits where it was float16"
    assert dtypes["d"] == "uint8"
    b = made.entries["b"].value
    assert isinstance(b, Affine)
    assert float(b.maximum) == pytest.approx(0.25, abs=1e-4)


def test_a_tensor_of_the_side_list_becomes_an_integer() -> None:
    graph = TinyGraph()
    graph.op("Tanh", [graph.input("x", (2,))], "y")
    encodings = EncodingSet(version="2.0.0", entries={}, float_tensors=frozenset({"y", "z"}))
    model = graph.model("y")
    made = infer_entries(model, facts_of(model), encodings, ["y"]).encodings
    assert made.float_tensors == {"z"}
    assert made.entries["y"].dtype == "uint16"


@pytest.mark.parametrize("label", list(Label))
def test_only_what_the_user_gave_or_said_is_evidence(label: Label) -> None:
    """Input by input: a tensor is looked at where it hangs on meaningful inputs alone."""
    graph = TinyGraph()
    graph.op("Exp", [graph.input("x", (2,))], "ex")
    graph.op("Exp", [graph.input("z", (2,))], "ez")
    graph.op("Add", ["ex", "ez"], "sum")
    model = graph.model("sum")
    sources = {"x": InputSource(label=label, why=""), "z": InputSource(label=Label.ARBITRARY, why="")}
    feeds = ({"x": np.asarray([0, 1], np.float32), "z": np.asarray([0, 9], np.float32)},)
    samples = Samples(feeds=feeds, of_inputs=sources)
    found = infer_entries(
        model,
        facts_of(model),
        EncodingSet(version="1.0.0", entries={}),
        ["ex", "ez", "sum"],
        evidence=evidence_of(model, samples),
    )
    meaningful = label in (Label.GIVEN, Label.RECORDED, Label.DECLARED)
    assert {tensor.name for tensor in found.open} == ({"ez", "sum"} if meaningful else {"ex", "ez", "sum"})
    if meaningful:
        room = 1 if label is Label.DECLARED else 2  # a declared range holds all that there is
        assert found.concluded["ex"].interval == pytest.approx((1, room * np.e))
    sum_ = next(tensor for tensor in found.open if tensor.name == "sum")
    assert sum_.inputs == (("z",) if meaningful else ("x", "z"))
