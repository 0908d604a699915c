"""New encodings: grids that hold what they must, of the kind of what they replace."""

from __future__ import annotations

import numpy as np
import pytest

from deploykit.accuracy.samples.gathering import InputSource, Samples
from deploykit.accuracy.samples.inputs import Label
from deploykit.encodings.infer import infer_entries
from deploykit.encodings.values import EncodingSet
from deploykit.flow.samples import evidence_of
from deploykit.model.collect import facts_of
from sample_models.tiny_graphs import TinyGraph


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
