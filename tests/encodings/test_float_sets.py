"""Which tensors have an entry, need none, miss one or stay float; against what AIMET really flipped."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace
from onnx.shape_inference import infer_shapes

from deploykit.encodings.float_sets import (
    CoverageStatus,
    absorbing_fusions,
    collect_coverage,
    missing_entries,
    predict_float_set,
    unscaled_rows,
)
from deploykit.encodings.formats.aimet import read_encodings
from deploykit.encodings.formats.conversion import convert
from deploykit.encodings.place import layouts, place
from deploykit.model.collect import collect_facts, facts_of
from deploykit.model.load import load_model
from tables import each_row
from text_models import text_model

DATA = Path(__file__).parents[1] / "data"
AIMET, ZOO = DATA / "aimet", DATA / "zoo"
VERSIONS = ("0.6.1", "1.0.0", "2.0.0")
LITEMP = frozenset(json.loads((AIMET / "detr" / "litemp.json").read_text())["flipped_tensors"])
# The tensors that generate.py sets to float16 by hand (decoder_to_float).
DECODER = frozenset(f"/decoder/{name}_output_0" for name in ("Add_2", "Div", "Log", "Add_4")) | {"onnx::Add_4934"}
S = CoverageStatus


DETR = collect_facts(load_model(AIMET / "detr" / "model.onnx"))


def of(found: dict[str, CoverageStatus], status: CoverageStatus) -> set[str]:
    return {name for name, one in found.items() if one is status}


# What AIMET quantized as a whole, and what it flipped.


@pytest.mark.parametrize("version", VERSIONS)
@each_row(
    ("variant", "flipped"),
    ("w8a8-fp16mix-explicit", LITEMP),
    ("w8a8-fp16mix-omit", LITEMP),
    ("aimet-2.31.0/w8a8-litemp-fp16", LITEMP),
    ("w8a16-fp16mix-explicit", DECODER),
    ("w8a16-fp16mix-omit", DECODER),
)
def test_the_intended_set_is_what_aimet_flipped(variant: str, flipped: frozenset[str], version: str) -> None:
    given, newest = read_encodings(AIMET / f"detr/{variant}.v{version}.encodings"), version == "2.0.0"
    stated = "explicit" in variant and not newest
    prediction = predict_float_set(DETR, given)
    assert (prediction.intended, prediction.missing, prediction.explicit) == (flipped, frozenset(), stated)
    # Version 2.0.0 brings int32 biases; without them a float fallback leaves every bias float.
    assert all(name.endswith(".bias") for name in prediction.unexpected)
    assert bool(prediction.unexpected) is not newest
    assert of(collect_coverage(DETR, given), S.FLOAT16 if stated else S.MISSING) == flipped
    found = collect_coverage(DETR, replace(given, float_tensors=flipped))
    assert of(found, S.FLOAT16) == flipped and S.MISSING not in found.values()


@each_row("name", "distilbert", "gru_lstm", "segformer", "superres")
def test_true_files_intend_no_float_and_a_slip_behind_a_norm_is_noticed(name: str) -> None:
    facts = collect_facts(load_model(ZOO / name / "model.onnx"))
    given = read_encodings(ZOO / name / "w8a16.v1.0.0.encodings")
    newer = convert(place(given, facts), "2.0.0", layouts=layouts(facts)).encodings
    for each in (given, newer):
        assert predict_float_set(facts, each).intended == frozenset() and missing_entries(facts, each) == ()
    ends = [n.outputs[0] for n in facts.nodes if n.op_type == "Add" and "orm" in n.name and n.outputs[0] in given]
    assert bool(ends) is (name in ("distilbert", "segformer"))
    for end in ends[:3]:
        rest = {key: entry for key, entry in given.entries.items() if key != end}
        assert end in predict_float_set(facts, replace(given, entries=rest)).intended
    # What vanishes into one operator is listed in the same order in every run.
    blocks: dict[str, list[str]] = {}
    for inside, fusion in absorbing_fusions(facts, given).items():
        if inside in fusion.inside:
            blocks.setdefault(fusion.result, []).append(inside)
    assert all(names == sorted(names) for names in blocks.values())


@each_row(
    ("given", "body", "found"),
    ("float[1,3] x", "c = Sub (x, m)  s = Div (c, d)  l = MatMul (s, w)  b = Add (l, d)  y = Mul (b, d)", {*"xcmd"}),
    ("float[1,3] x", "h = Div (x, half)  s = Mul (d, h)  y = MatMul (s, w)", {"x", "h", "half", "d"}),
    ("float[1,3] x", "h = Div (x, half)  y = MatMul (h, w)", set()),
    ("float[1,3] x, float[1,3] z", "s = Sub (x, z)  y = Div (s, d)", set()),
    ("float[1,3] x", "t = Tanh (x)  y = Div (t, d)", set()),
    ("float[1,1,3] x", "y = Div (x, d)", set()),
)
def test_rows_of_features_are_no_integers_until_they_are_scaled(given: str, body: str, found: set[str]) -> None:
    stored: dict[str, Any] = {"m": [1.0, 2.0, 3.0], "d": [1.0, 2.0, 3.0], "half": 0.5, "w": np.eye(3, dtype=np.float32)}
    assert {*unscaled_rows(facts_of(infer_shapes(text_model(given, body, **stored))))} == found
