"""Which tensors have an entry, need none, miss one or stay float; against what AIMET really flipped."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from deploykit.encodings.float_sets import (
    CoverageStatus,
    absorbing_fusions,
    collect_coverage,
    find_borders,
    missing_entries,
    predict_float_set,
    suggest_extensions,
)
from deploykit.encodings.formats.aimet import read_encodings
from deploykit.encodings.formats.conversion import convert
from deploykit.encodings.place import layouts, place
from deploykit.encodings.values import Affine, Encoding, EncodingSet, Float
from deploykit.model.collect import collect_facts
from deploykit.model.facts import GraphFacts
from deploykit.model.load import load_model, wrap_proto
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


def text_facts(body: str, made: str = "y", given: str = "float[2,4] x", **stored: Any) -> GraphFacts:
    return collect_facts(wrap_proto(text_model(given, body, made, **stored), path=Path("m.onnx")))


def entries(names: str, floats: str = "", listed: str = "") -> EncodingSet:
    grid = Affine(bits=16, signed=False, scale=np.asarray(0.1), zero_point=np.asarray(3.0))
    made = {name: Encoding(name=name, value=grid) for name in names.split()}
    made |= {name: Encoding(name=name, value=Float(dtype="float16")) for name in floats.split()}
    return EncodingSet(version="1.0.0", entries=made, float_tensors=frozenset(listed.split()))


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


# Fusions: what needs no entry, and what is a slip.

CONV: dict[str, Any] = {"w": np.ones((2, 2, 1, 1), "f4"), "slope": np.ones((2, 1, 1), "f4"), "low": 0.0, "high": 6.0}
ACTIVATIONS = {"Relu": "Relu (c)", "PRelu": "PRelu (c, slope)", "LeakyRelu": "LeakyRelu (c)", "SiLU": "Mul (c, s)"}
ACTIVATIONS |= {"Clip": "Clip (c, low, high)", "HardSwish": "HardSwish (c)"}


def conv_then(name: str, made: str = "y") -> GraphFacts:
    body = "c = Conv (x, w)  " + ("s = Sigmoid (c)  " if name == "SiLU" else "") + f"y = {ACTIVATIONS[name]}"
    return text_facts(body, made, given="float[1,2,4,4] x", **CONV)


@each_row("name", *ACTIVATIONS)
def test_between_a_conv_and_its_activation_no_entry_is_needed(name: str) -> None:
    facts, given = conv_then(name), entries("x w y slope low high")
    assert predict_float_set(facts, given).intended == frozenset() and missing_entries(facts, given) == ()
    assert "c" in absorbing_fusions(facts, given)
    assert "c" not in absorbing_fusions(conv_then(name, "y, c"), given), "it is an output as well"
    # What the file speaks about is not explained away, neither by an entry nor by the word that it is float.
    assert "c" not in absorbing_fusions(facts, entries("x w y slope low high c"))
    assert "c" not in absorbing_fusions(facts, replace(given, float_tensors=frozenset({"c"})))
    assert "c" in predict_float_set(facts, entries("x w y slope low high", floats="c")).intended
    # Where the result has none either the whole is float.
    assert {"c", "y"} <= predict_float_set(facts, entries("x w slope")).intended


@each_row(("floats", "rest"), ("a", "intended-float16"), ("", "missing"))  # float copies, and what serves only floats
def test_float_copies_and_what_serves_only_floats(floats: str, rest: str) -> None:
    facts = text_facts("a = Mul (x, scale)  b = Transpose (a)  y = Relu (b)", scale=[1.0] * 4)
    found = collect_coverage(facts, entries("x y", floats=floats))
    assert found == {"x": "encoded", "scale": rest, "a": rest, "b": rest, "y": "encoded"}


def test_what_is_stated_as_float_stays_so_beside_an_integer_copy() -> None:
    facts = text_facts("a = Transpose (x)  y = Relu (a)")
    assert predict_float_set(facts, entries("x y", floats="a")).predicted == {"a"}


def chain(*ops: str) -> GraphFacts:
    names = ["x", *(f"t{index}" for index in range(len(ops)))]
    steps = [f"{made} = {op} ({read})" for read, made, op in zip(names, names[1:], ops, strict=False)]
    return text_facts("  ".join(steps), names[-1])


def test_borders_are_where_kinds_meet_and_a_small_island_is_the_best_extension() -> None:
    borders = find_borders(chain(*["Sigmoid"] * 4), {"t1", "t2"})
    assert [(b.tensor, b.direction) for b in borders] == [("t0", "to-float"), ("t3", "to-quantized")]
    first, *_ = suggest_extensions(chain(*["Sigmoid"] * 4), {"t1", "t2"})
    assert (first.tensors, first.removed) == (("t3",), 1)
    small = chain(*["Sigmoid"] * 9)
    assert suggest_extensions(small, {"t2", "t4", "t5"})[0].tensors == ("t3",)
    for facts, floats in ((small, {"t2", "t4", "t5"}), (DETR, set(LITEMP))):
        best, *others = suggest_extensions(facts, floats)
        assert all(other.removed > 0 for other in others)
        before, after = (len(find_borders(facts, names)) for names in (floats, floats | set(best.tensors)))
        assert best.removed == before - after >= 1


# How an entry travels, where kinds meet, and how to have fewer borders.


def test_constants_in_effect_have_no_type_and_make_no_border() -> None:
    """Two linears that share a bias through Identity, as exporters write it, and a grid made from constants."""
    body = "alias = Identity (bias)  p0 = MatMul (x, w)  sum0 = Add (p0, bias)  p1 = MatMul (sum0, w2)"
    body += "  sum1 = Add (p1, alias)  negated = Neg (base)  grid = Exp (negated)  squashed = Sigmoid (sum1)"
    weights, ones = np.ones((4, 4), np.float32), [1.0] * 4
    facts = text_facts(f"{body}  y = Mul (squashed, grid)", w=weights, w2=weights, bias=ones, base=ones)
    found = predict_float_set(facts, entries("x w w2 sum0 sum1 squashed base y"))
    assert not found.intended and found.predicted == {"bias"} and not found.borders
    assert {border.tensor for border in find_borders(facts, {"squashed"})} == {"sum1", "y"}
    assert {border.tensor for border in find_borders(facts, {"squashed"}, ignored={"sum1"})} == {"y"}
