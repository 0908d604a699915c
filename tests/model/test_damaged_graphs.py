"""Real graphs damaged at random: either they are refused with a message, or every fact and rule copes with them."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import onnx
from hypothesis import given, settings
from hypothesis import strategies as st

from deploykit.encodings.float_sets import collect_coverage
from deploykit.encodings.formats.aimet import read_encodings
from deploykit.encodings.values import EncodingSet
from deploykit.errors import InputError
from deploykit.model import wrap_proto
from deploykit.model.collect import collect_facts
from deploykit.model.rules import RULES as GRAPH_RULES

AIMET = Path(__file__).parents[1] / "data" / "aimet"
OPS = "Add Clip Concat Constant Conv Einsum Gather If MatMul Pad Range Relu Reshape Resize Shape Split TopK"
OPS += " Transpose Unsqueeze Where"


@cache
def original(name: str) -> tuple[onnx.ModelProto, EncodingSet]:
    proto = onnx.load(AIMET / name / "model.onnx")
    del proto.graph.value_info[:]
    return proto, read_encodings(AIMET / name / "w8a8.v1.0.0.encodings")


def damage(proto: onnx.ModelProto, draw: st.DrawFn) -> None:
    node = draw(st.sampled_from(list(proto.graph.node)))
    match draw(st.sampled_from(["type", "input", "attribute", "integers", "shape", "dtype", "output"])):
        case "type":
            node.op_type = draw(st.sampled_from(OPS.split()))
        case "input" if node.input:
            known = [tensor.name for tensor in proto.graph.initializer] + [item.name for item in proto.graph.input]
            node.input[draw(st.integers(0, len(node.input) - 1))] = draw(st.sampled_from(["", *known]))
        case "attribute" if node.attribute:
            del node.attribute[draw(st.integers(0, len(node.attribute) - 1))]
        case "integers" if node.attribute:
            draw(st.sampled_from(list(node.attribute))).ints[:] = draw(st.lists(st.integers(-(2**63), 2**63 - 1)))
        case "shape":
            for dim in proto.graph.input[0].type.tensor_type.shape.dim:
                dim.dim_value = draw(st.sampled_from([-1, 0, 1, 3, 2**40]))
        case "dtype":
            proto.graph.input[0].type.tensor_type.elem_type = draw(st.sampled_from([0, 7, 9, 11, 16, 99]))
        case _:
            node.output.append(f"extra {len(node.output)} of {node.name}")


@st.composite
def damaged(draw: st.DrawFn) -> tuple[onnx.ModelProto, EncodingSet]:
    proto, encodings = original(draw(st.sampled_from(["cnn", "vit", "detr", "mlp"])))
    copy = onnx.ModelProto()
    copy.CopyFrom(proto)
    for _ in range(draw(st.integers(1, 5))):
        damage(copy, draw)
    return copy, encodings


@settings(deadline=None, max_examples=25)
@given(case=damaged())
def test_damaged_graphs_never_end_in_a_traceback(case: tuple[onnx.ModelProto, EncodingSet]) -> None:
    proto, encodings = case
    try:
        facts = collect_facts(wrap_proto(proto, path=Path("m.onnx")))
    except InputError as error:
        assert error.what.startswith("m.onnx: ")
        return
    assert collect_coverage(facts, encodings).keys() <= facts.tensors.keys()
    assert all(finding.message for finding in GRAPH_RULES.run(facts))
