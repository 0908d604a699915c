"""The rules about graphs alone: each one on a graph that triggers it and on one that does not."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from deploykit.findings import Finding
from deploykit.model import wrap_proto
from deploykit.model.collect import collect_facts
from deploykit.model.rules import RULES as GRAPH_RULES
from sample_models.networks import dynamic_net
from tables import each_row

AIMET = Path(__file__).parents[1] / "data" / "aimet"


def info(name: str, shape: Sequence[int | str] | None = (4,), kind: int = TensorProto.FLOAT) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, kind, shape)


def model(
    nodes: Sequence[onnx.NodeProto] = (),
    *,
    x: Sequence[int | str] = (4,),
    output: str = "y",
    kind: int = TensorProto.FLOAT,
    opset: int = 17,
    functions: Sequence[onnx.FunctionProto] = (),
    tensors: Sequence[onnx.TensorProto] = (),
) -> onnx.ModelProto:
    """Named nodes from ``x`` to ``y``; a Relu when none are given."""
    made = list(nodes) or [helper.make_node("Relu", ["x"], ["y"], name="relu")]
    for index, node in enumerate(made):
        node.name = node.name or f"n{index}"
    graph = helper.make_graph(made, "g", [info("x", x, kind)], [info(output, None, kind)], list(tensors))
    opsets = [helper.make_opsetid("", opset), helper.make_opsetid("own", 1)]
    return helper.make_model(graph, opset_imports=opsets, functions=functions, ir_version=8)


def stored(name: str, *values: float, dtype: type = np.float32) -> onnx.TensorProto:
    return numpy_helper.from_array(np.array(values, dtype), name)


def without_opset() -> onnx.ModelProto:
    made = model()
    del made.opset_import[:]
    return made


def with_body() -> onnx.ModelProto:
    body = helper.make_graph([helper.make_node("Relu", ["x"], ["b"])], "body", [], [info("b")])
    always = helper.make_node("Constant", [], ["c"], value=numpy_helper.from_array(np.array(True)))
    return model([always, helper.make_node("If", ["c"], ["y"], then_branch=body, else_branch=body)])


def unnamed() -> onnx.ModelProto:
    made = model()
    made.graph.node[0].name = ""
    return made


def outside() -> onnx.ModelProto:
    """Its file is this test module: large enough, and nobody reads it."""
    tensor = onnx.TensorProto(name="w", data_type=1, dims=[4], data_location=TensorProto.EXTERNAL)
    tensor.external_data.add(key="location", value=Path(__file__).name)
    return model([helper.make_node("Add", ["x", "w"], ["y"])], tensors=[tensor])


def add(*values: float, dtype: type = np.float32) -> onnx.ModelProto:
    kind = TensorProto.DOUBLE if dtype is np.float64 else TensorProto.FLOAT
    return model([helper.make_node("Add", ["x", "w"], ["y"])], tensors=[stored("w", *values, dtype=dtype)], kind=kind)


OWN = helper.make_function(
    "own", "Own", ["a"], ["b"], [helper.make_node("Relu", ["a"], ["b"])], [helper.make_opsetid("", 17)]
)
COUNTED = [
    helper.make_node("NonZero", ["x"], ["where"]),
    helper.make_node("Cast", ["where"], ["y"], to=TensorProto.FLOAT),
]

CASES: dict[str, tuple[onnx.ModelProto, onnx.ModelProto]] = {
    "DK001": (model(x=("batch", 4)), model(x=(1, 4))),
    "DK002": (model(COUNTED), model()),
    "DK003": (with_body(), model()),
    "DK004": (without_opset(), model()),
    "DK005": (model(opset=9000), model()),
    "DK006": (model([helper.make_node("Own", ["x"], ["y"], domain="own")], functions=[OWN]), model(functions=[OWN])),
    "DK007": (without_opset(), model()),
    "DK008": (add(0, -np.inf, 1, np.nan), add(0, -1e38, 1, 2)),
    "DK009": (add(1, 2, 3, 4, dtype=np.float64), add(1, 2, 3, 4)),
    "DK010": (model(output="x"), model()),
    "DK011": (model(tensors=[stored("idle", 1, 2)]), add(1, 2, 3, 4)),
    "DK012": (unnamed(), model()),
    "DK013": (outside(), add(1, 2, 3, 4)),
    "DK014": (model(x=(0, 4)), model(x=(1, 4))),
    "DK015": (model(opset=6), model(opset=7)),
    "DK016": (
        model([helper.make_node("QLinearMatMul", [*"xsz", *"wsz", *"sz"], ["y"])], tensors=[*map(stored, "wsz")]),
        model(),
    ),
}


def findings(proto: onnx.ModelProto) -> tuple[Finding, ...]:
    return GRAPH_RULES.run(collect_facts(wrap_proto(proto, path=Path(__file__).parent / "my model.onnx")))


def one(proto: onnx.ModelProto, code: str) -> Finding:
    (found,) = (finding for finding in findings(proto) if finding.code == code)
    return found


@each_row("code", sorted(CASES))
def test_each_rule_fires_where_it_should_and_nowhere_else(
    code: str, as_expected: Callable[[str, Iterable[Finding]], None]
) -> None:
    triggering, clean = CASES[code]
    as_expected(code, findings(triggering))
    assert code not in {finding.code for finding in findings(clean)}


def test_every_rule_has_a_case() -> None:
    assert {rule.code for rule in GRAPH_RULES} == set(CASES)


@pytest.mark.parametrize("name", ["cnn", "cnn_bnfold", "vit", "detr", "mlp"])
def test_ordinary_models_have_no_findings(name: str) -> None:
    assert findings(onnx.load(AIMET / name / "model.onnx")) == ()


def test_a_dynamic_input_is_named_with_its_dimensions_and_the_option() -> None:
    found = one(model(x=("batch", 3, "height", "width")), "DK001")
    assert found.subject.name == "x"
    assert "dimension 0 (batch), dimension 2 (height), dimension 3 (width)" in found.message
    assert found.hint == "add --input x=1,3,HEIGHT,WIDTH with a number for each name"
    assert found.blocks


def test_an_input_of_unknown_rank() -> None:
    proto = model()
    proto.graph.input[0].type.tensor_type.ClearField("shape")
    found = one(proto, "DK001")
    assert "unknown rank" in found.message
    assert found.hint == "export it again with a shape for x"


def test_results_of_dynamic_inputs_are_not_told_twice() -> None:
    assert "DK002" not in {finding.code for finding in findings(dynamic_net())}
    found = one(model(COUNTED), "DK002")
    assert found.subject.name == "n0"
    assert found.message == "NonZero n0: the size of its output depends on the data"


def test_a_size_that_is_computed_from_values_is_told_at_the_node_that_uses_it() -> None:
    size = helper.make_tensor_value_info("size", TensorProto.INT64, (1,))
    proto = model([helper.make_node("Reshape", ["x", "size"], ["y"])])
    proto.graph.input.append(size)
    found = one(proto, "DK002")
    assert found.message == "Reshape n0: its size comes from size, which is known at run time only"
    fixed = model([helper.make_node("Reshape", ["x", "size"], ["y"])], tensors=[stored("size", 2, 2, dtype=np.int64)])
    assert "DK002" not in {finding.code for finding in findings(fixed)}


def test_a_size_of_unknown_origin_is_told_at_the_first_tensor() -> None:
    proto = model([helper.make_node("Relu", ["x"], ["h"]), helper.make_node("Own", ["h"], ["y"], domain="own")])
    proto.graph.value_info.append(info("h", (4, "some")))
    proto.graph.output[0].CopyFrom(info("y", ("some",)))
    found = one(proto, "DK002")
    assert found.subject.name == "h"
    assert found.message == "2 tensors have no fixed size, first h (4 x some) made by n0"


def test_sizes_are_said() -> None:
    assert "1 tensor(s) of 16 bytes" in one(outside(), "DK013").message
    assert "1 stored tensors of 8 bytes: idle" in one(model(tensors=[stored("idle", 1, 2)]), "DK011").message
