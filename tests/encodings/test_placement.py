"""One way from files to encodings on a graph: every command reads the same things and refuses the same things."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from deploykit.encodings.formats.differences import diff
from deploykit.encodings.read import read_placed
from deploykit.encodings.values import EncodingSet
from deploykit.errors import InputError
from deploykit.model.facts import GraphFacts

AIMET = Path(__file__).parents[1] / "data" / "aimet"
GraphOf = Callable[[str], GraphFacts]

CNN = AIMET / "cnn"
MODEL, ENCODINGS = CNN / "model.onnx", CNN / "w8a8.v2.0.0.encodings"


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
