"""Why tensors have no encoding, against every kind of file that AIMET wrote for the fixtures."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from deploykit.encodings.coverage import CoverageStatus, collect_coverage, missing_entries
from deploykit.encodings.formats.aimet import read_encodings
from deploykit.encodings.values import Affine, Encoding, EncodingSet, Float
from deploykit.model import load_model, wrap_proto
from deploykit.model.collect import collect_facts
from deploykit.model.facts import GraphFacts
from deploykit.model.patterns import fusions
from tables import each_row

AIMET = Path(__file__).parents[1] / "data" / "aimet"
VERSIONS = ("0.6.1", "1.0.0", "2.0.0")
MODELS = ("cnn", "cnn_bnfold", "vit", "detr", "mlp")
LITEMP = frozenset(json.loads((AIMET / "detr" / "litemp.json").read_text())["flipped_tensors"])
DECODER = frozenset(f"/decoder/{name}_output_0" for name in ("Add_2", "Div", "Log", "Add_4")) | {"onnx::Add_4934"}
"""The tensors that generate.py sets to float16 by hand (decoder_to_float)."""

S = CoverageStatus


def facts_of(name: str) -> GraphFacts:
    return collect_facts(load_model(AIMET / name / "model.onnx"))


def coverage(name: str, variant: str) -> dict[str, CoverageStatus]:
    return collect_coverage(facts_of(name), read_encodings(AIMET / name / f"{variant}.encodings"))


def of(found: dict[str, CoverageStatus], status: CoverageStatus) -> set[str]:
    return {name for name, one in found.items() if one is status}


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("variant", ["w8a8", "w8a16"])
@each_row("name", MODELS)
def test_nothing_is_missing_where_aimet_quantized_everything(name: str, variant: str, version: str) -> None:
    found = coverage(name, f"{variant}.v{version}")
    assert not {S.MISSING, S.FLOAT16} & set(found.values())
    entries = read_encodings(AIMET / name / f"{variant}.v{version}.encodings")
    assert of(found, S.ENCODED) == set(entries.entries)


@each_row("path", sorted(AIMET.glob("mlp/**/*.encodings")), ids=lambda path: path.stem)
def test_nor_in_any_blockwise_or_narrow_variant(path: Path) -> None:
    assert missing_entries(facts_of("mlp"), read_encodings(path)) == ()


@pytest.mark.parametrize("version", VERSIONS)
@each_row(
    ("variant", "floats"),
    [("w8a8-fp16mix-omit", LITEMP), ("aimet-2.31.0/w8a8-litemp-fp16", LITEMP), ("w8a16-fp16mix-omit", DECODER)],
)
def test_left_out_floats_are_exactly_what_is_missing(variant: str, floats: frozenset[str], version: str) -> None:
    assert of(coverage("detr", f"{variant}.v{version}"), S.MISSING) == floats


@pytest.mark.parametrize("version", ["0.6.1", "1.0.0"])
@pytest.mark.parametrize(
    ("variant", "floats"), [("w8a8-fp16mix-explicit", LITEMP), ("w8a16-fp16mix-explicit", DECODER)]
)
def test_stated_floats_are_intended(variant: str, floats: frozenset[str], version: str) -> None:
    found = coverage("detr", f"{variant}.v{version}")
    assert S.MISSING not in found.values()
    assert of(found, S.FLOAT16) == floats


@pytest.mark.parametrize(("variant", "floats"), [("w8a8-fp16mix-explicit", LITEMP), ("w8a16-fp16mix-omit", DECODER)])
def test_listed_floats_are_intended_in_the_version_that_cannot_say_it(variant: str, floats: frozenset[str]) -> None:
    encodings = read_encodings(AIMET / "detr" / f"{variant}.v2.0.0.encodings")
    found = collect_coverage(facts_of("detr"), replace(encodings, float_tensors=floats))
    assert S.MISSING not in found.values()
    assert of(found, S.FLOAT16) == floats


def test_a_model_all_in_float16_is_all_intended() -> None:
    found = coverage("detr", "fp16.v1.0.0")
    assert not {S.MISSING, S.ENCODED} & set(found.values())
    # 2.0.0 cannot say float16: the same export then has nothing at all.
    assert of(coverage("detr", "fp16.v2.0.0"), S.MISSING) >= LITEMP


def test_removing_any_entry_is_noticed() -> None:
    """Every entry of the older layout is there for a reason: none may vanish without becoming missing or explained."""
    facts = facts_of("detr")
    encodings = read_encodings(AIMET / "detr" / "w8a8.v0.6.1.encodings")
    explained: set[CoverageStatus] = set()
    for name in encodings.entries:
        rest = {key: entry for key, entry in encodings.entries.items() if key != name}
        found = collect_coverage(facts, replace(encodings, entries=rest))
        assert found[name] is not S.ENCODED
        explained |= {found[name]} - {S.MISSING}
    assert explained <= {S.MOVEMENT, S.SHAPE_OR_INDEX}


def test_every_kind_of_reason_occurs() -> None:
    found = coverage("cnn", "w8a8.v0.6.1")
    # 13 tensors of the graph have no entry and are a bias or a statistic: 12 of BatchNormalization and the Gemm's.
    assert Counter(map(str, found.values())) == {"encoded": 18, "fused-intermediate": 7, "data-movement": 1, "bias": 13}
    assert coverage("vit", "w8a8.v1.0.0")["/blocks/blocks.0/attn/Constant_1_output_0"] is S.SHAPE_OR_INDEX


def info(name: str, shape: tuple[int, ...] | None = (2, 4), kind: int = TensorProto.FLOAT) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, kind, shape)


def graph(nodes: list[onnx.NodeProto], inputs: str, output: str, **stored: npt.NDArray[Any]) -> GraphFacts:
    tensors = [numpy_helper.from_array(value.astype(np.float32), name) for name, value in stored.items()]
    made = helper.make_graph(nodes, "g", [info(n) for n in inputs.split()], [info(output, None)], tensors)
    proto = helper.make_model(made, opset_imports=[helper.make_opsetid("", 17)])
    return collect_facts(wrap_proto(proto, path=Path("m.onnx")))


def encodings(*integers: str, floats: str = "", listed: str = "") -> EncodingSet:
    grid = Affine(bits=8, signed=False, scale=np.array(0.1), zero_point=np.array(3.0))
    entries = {name: Encoding(name=name, value=grid) for name in integers}
    entries |= {name: Encoding(name=name, value=Float(dtype="float16")) for name in floats.split()}
    return EncodingSet(version="1.0.0", entries=entries, float_tensors=frozenset(listed.split()))


def test_float_copies_and_what_serves_only_floats() -> None:
    facts = graph(
        [
            helper.make_node("Mul", ["x", "scale"], ["a"]),
            helper.make_node("Transpose", ["a"], ["b"]),
            helper.make_node("Relu", ["b"], ["y"]),
        ],
        "x",
        "y",
        scale=np.ones(4),
    )
    assert collect_coverage(facts, encodings("x", "y", floats="a")) == {
        "x": "encoded",
        "scale": "intended-float16",
        "a": "intended-float16",
        "b": "intended-float16",
        "y": "encoded",
    }
    assert collect_coverage(facts, encodings("x", "y")) == {
        "x": "encoded",
        "scale": "missing",
        "a": "missing",
        "b": "missing",
        "y": "encoded",
    }


def test_pairs_are_fused_only_where_nobody_else_looks_in() -> None:
    def inside(nodes: list[onnx.NodeProto], inputs: str = "x") -> set[str]:
        found = fusions(graph(nodes, inputs, "y", w=np.ones((4, 4))))
        return {name for fusion in found if fusion.certain for name in fusion.inside}

    conv = helper.make_node("Gemm", ["x", "w"], ["a"])
    assert inside([conv, helper.make_node("Relu", ["a"], ["y"])]) == {"a"}
    assert not inside([conv, helper.make_node("Relu", ["a"], ["b"]), helper.make_node("Add", ["a", "b"], ["y"])])
    computed = [helper.make_node("MatMul", ["x", "w"], ["a"]), helper.make_node("Add", ["a", "z"], ["y"])]
    assert not inside(computed, "x z")
    assert not inside([conv, helper.make_node("Relu", ["a"], ["y"], domain="own")])


def test_settings_and_dead_tensors() -> None:
    facts = graph(
        [helper.make_node("Clip", ["x", "low", "high"], ["a"]), helper.make_node("Add", ["a", "low2"], ["y"])],
        "x",
        "y",
        low=np.array(0.0),
        high=np.array(6.0),
        low2=np.array(1.0),
        dead=np.ones(3),
    )
    found = collect_coverage(facts, encodings("x", "a", "y"))
    assert found["low"] == "shape-or-index"
    assert found["low2"] == "missing"
    assert "dead" not in found


def test_a_bias_that_is_also_an_operand_is_no_bias() -> None:
    nodes = [helper.make_node("Gemm", ["x", "w", "b"], ["a"]), helper.make_node("Mul", ["a", "b"], ["y"])]
    facts = graph(nodes, "x", "y", w=np.ones((4, 4)), b=np.ones(4))
    assert collect_coverage(facts, encodings("x", "w", "a", "y"))["b"] == "missing"
