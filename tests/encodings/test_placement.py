"""Placement on real graphs; the order trap of 1.0.0 is proven against AIMET's 2.0.0 export of the same simulation."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from deploykit import api
from deploykit.accuracy.simulate.simulation import simulate_files
from deploykit.encodings.files import check_encodings, convert_encodings
from deploykit.encodings.formats.aimet import parse_encodings
from deploykit.encodings.formats.differences import diff
from deploykit.encodings.place import layouts, place
from deploykit.encodings.read import read_placed
from deploykit.encodings.values import Affine, EncodingSet, Lpbq
from deploykit.errors import InputError
from deploykit.model.facts import GraphFacts
from deploykit.model.parameters import parameter_uses
from tables import each_row
from text_models import text_model

AIMET = Path(__file__).parents[1] / "data" / "aimet"
GraphOf = Callable[[str], GraphFacts]
Collect = Callable[[onnx.ModelProto], GraphFacts]


def odd_model() -> onnx.ModelProto:
    """Weights that reach their op in unusual ways."""
    shapes: dict[str, Any] = {"deconv": (4, 8, 3, 3), "deconv_b": (8,), "turned": (10, 6), "hidden": (6, 12)}
    shapes |= {"stacked": (2, 6, 7), "shared": (6, 6), "table": (3, 6), "plain": (6, 6), "wide": (1, 6)}
    shapes |= {"ln_w": (6,), "ln_b": (6,)}
    body = "a = ConvTranspose (x, deconv, deconv_b)  turned_t = Transpose <perm = [1, 0]> (turned)"
    body += "  b = MatMul (m, turned_t)  hidden_i = Identity (hidden)  c = Gemm (m, hidden_i)  d = MatMul (s, stacked)"
    body += "  e = MatMul (m, shared)  f = Gemm <transB = 1> (m, shared)  g = Add (m, table)  h0 = MatMul (m, plain)"
    body += "  h = Add (wide, h0)  i = MatMul (p, q)  j = LayerNormalization (m, ln_w, ln_b)"
    given = "float[1,4,5,5] x, float[3,6] m, float[2,3,6] s, float[3,3] p, float[3,3] q"
    made = ", ".join("abcdefghij")
    stored: dict[str, Any] = {name: np.ones(shape, np.float32) for name, shape in shapes.items()}
    return text_model(given, body, made, **stored)


def test_axes_of_weights_read_in_unusual_ways(collect: Collect) -> None:
    known = layouts(collect(odd_model()))
    axes = {name: (known[name].channel_axis, known[name].block_axis) for name in known if known[name].is_param}
    assert axes == {
        "deconv": (1, 0),
        "turned": (0, 1),
        "hidden": (1, 0),
        "stacked": (2, 1),
        "plain": (1, 0),
        "shared": (None, None),  # two ops disagree
        **dict.fromkeys(("deconv_b", "ln_w", "ln_b"), (None, None)),
    }
    # A wide constant that is added to a product is no bias.
    assert not {"wide", "table"} & parameter_uses(collect(odd_model())).keys()


def test_the_axis_is_not_guessed_where_two_are_as_long_as_the_list(collect: Collect) -> None:
    step = {"bitwidth": 8, "dtype": "int", "is_symmetric": "True", "max": 1.27, "min": -1.28, "scale": 0.01}
    lists = {"shared": [{**step, "offset": -128}] * 6}
    given = parse_encodings({"version": "0.6.1", "activation_encodings": {}, "param_encodings": lists}, where="w")
    value = place(given, collect(odd_model())).entries["shared"].value
    assert isinstance(value, Affine) and value.axis is None


def test_lpbq_of_a_batched_weight(collect: Collect) -> None:
    """2.0.0 states the block axis only; with more than two long dimensions the graph gives the channel axis."""
    entry: dict[str, Any] = {"name": "stacked", "output_dtype": "int4", "axis": 1, "block_size": 2}
    entry["per_block_int_scale"] = np.ones((2, 3, 7), dtype=int).tolist()
    entry["per_channel_float_scale"] = np.ones((2, 1, 7)).tolist()
    encodings = parse_encodings({"version": "2.0.0", "encodings": [entry]}, where="w")
    value = encodings.entries["stacked"].value
    assert isinstance(value, Lpbq) and value.axis is None
    settled = place(encodings, collect(odd_model())).entries["stacked"].value
    assert isinstance(settled, Lpbq) and (settled.axis, settled.block_axis) == (2, 1)


# One way from files to encodings on a graph: every command reads the same things and refuses the same things.

CNN = AIMET / "cnn"
MODEL, ENCODINGS = CNN / "model.onnx", CNN / "w8a8.v2.0.0.encodings"
READERS: list[Callable[[Path, Path], Any]] = [
    lambda path, floats: api.plan(MODEL, target="sm8650", encodings=path, float_tensors=floats),
    lambda path, floats: simulate_files(MODEL, path, float_tensors=floats),
    lambda path, floats: check_encodings(path, model=MODEL, float_tensors=floats),
    lambda path, floats: convert_encodings(path, "1.0.0", float_tensors=floats),
    lambda path, floats: convert_encodings(path, "1.0.0", model=MODEL, float_tensors=floats),
]


@each_row("reader", *READERS)
def test_a_float_list_is_taken_beside_entries_not_against(tmp_path: Path, reader: Callable[[Path, Path], Any]) -> None:
    floats = tmp_path / "floats"
    floats.write_text("logits\n")
    with pytest.raises(InputError, match=r"'logits' has an entry of uint8, but is listed as float") as refused:
        reader(ENCODINGS, floats)
    assert str(ENCODINGS) in refused.value.what
    floats.write_text("/conv1/Conv_output_0\n")
    reader(ENCODINGS, floats)


def test_a_qdq_model_stands_for_its_encodings_and_a_float_model_for_none(tmp_path: Path, graph_of: GraphOf) -> None:
    facts = graph_of("cnn")
    from_model, from_file = (read_placed(path, facts) for path in (CNN / "w8a8.qdq.onnx", ENCODINGS))
    assert from_model.entries.keys() == {e.name for e in from_file if e.dtype != "int32"}
    common = EncodingSet(version="2.0.0", entries={name: from_file.entries[name] for name in from_model.entries})
    assert not diff(from_model, common, tolerance=1.2e-7, grid_only=True)
    twin = tmp_path / "float.onnx"
    shutil.copy(MODEL, twin)
    with pytest.raises(InputError, match=r"float\.onnx: a model without QuantizeLinear"):
        read_placed(twin, facts)
