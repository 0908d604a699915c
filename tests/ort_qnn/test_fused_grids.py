"""Which tensors inside fused operators get a grid, and which the provider folds away by itself."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from deploykit.encodings.values import Affine, Encoding, EncodingSet
from deploykit_ort_qnn.forms.missing_grids import fused_grids, recurrent_biases
from sample_models.tiny_graphs import TinyGraph

GRID = Affine(bits=8, signed=False, scale=np.asarray(0.05), zero_point=np.asarray(128.0), symmetric=False, placed=True)


def _given(*names: str) -> EncodingSet:
    return EncodingSet(version="2.0.0", entries={name: Encoding(name=name, value=GRID) for name in names})


@pytest.mark.parametrize(("bits", "wanted"), [(32, ()), (None, ()), (8, ("product",))])
def test_a_product_before_an_int32_bias_gets_none(bits: int | None, wanted: tuple[str, ...]) -> None:
    """ONNX Runtime makes one layer of MatMul and bias; a grid between them would round what that layer adds exactly."""
    graph = TinyGraph()
    product = graph.op("MatMul", [graph.input("x", (1, 4)), graph.stored("w", np.eye(4))], "product")
    model = graph.model(graph.op("Add", [product, graph.stored("bias", np.ones(4))], "y"))
    given = _given("x", "w", "y")
    bias = {} if bits is None else {"bias": Encoding(name="bias", value=replace(GRID, bits=bits), is_param=True)}
    encodings = replace(given, entries={**given.entries, **bias})
    completed, made = fused_grids(model, encodings, None)
    assert made == wanted
    assert completed.entries.keys() - encodings.entries.keys() == set(wanted)


def test_what_leads_to_a_prelu_gets_one() -> None:
    graph = TinyGraph()
    weight = graph.stored("w", np.full((4, 3, 1, 1), 0.1))
    convolved = graph.op("Conv", [graph.input("x", (1, 3, 8, 8)), weight], "convolved")
    model = graph.model(graph.op("PRelu", [convolved, graph.stored("slope", np.full((4, 1, 1), 0.25))], "y"))
    encodings, made = fused_grids(model, _given("x", "w", "y", "slope"), None)
    assert made == ("convolved",)
    assert isinstance(encodings.entries["convolved"].value, Affine)


def test_the_bias_of_a_recurrent_layer_stays_in_float() -> None:
    """A trained VAD of LSTM was refused for it: int32 is taken only as the bias of a product."""
    graph = TinyGraph()
    stored = [graph.stored(n, np.full(s, 0.1)) for n, s in (("w", (1, 16, 3)), ("r", (1, 16, 4)), ("b", (1, 32)))]
    model = graph.model(graph.op("LSTM", [graph.input("x", (2, 1, 3)), *stored], "y", hidden_size=4))
    bias = Encoding(name="b", value=replace(GRID, bits=32, signed=True, scale=np.asarray(1e-6)), is_param=True)
    left, names = recurrent_biases(model, replace(_given("x", "w"), entries={**_given("x", "w").entries, "b": bias}))
    assert names == ("b",)
    assert set(left.entries) == {"x", "w"}
