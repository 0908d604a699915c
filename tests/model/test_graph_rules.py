"""The rules about graphs alone: each one on a graph that triggers it and on one that does not."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper

from deploykit.findings import Finding
from deploykit.model.collect import collect_facts
from deploykit.model.load import wrap_proto
from deploykit.model.rules import RULES as GRAPH_RULES
from rule_cases import check_pairs
from sample_models.networks import dynamic_net
from tables import each_row
from text_models import text_model

AIMET = Path(__file__).parents[1] / "data" / "aimet"


def model(
    body: str = "y = Relu (x)", given: str = "float[4] x", made: str = "y", opset: int = 17, **stored: Any
) -> onnx.ModelProto:
    """Named nodes from ``x`` to ``y``."""
    proto = text_model(given, body, made, opset=opset, **stored)
    proto.opset_import.append(helper.make_opsetid("own", 1))
    for index, node in enumerate(proto.graph.node):
        node.name = f"n{index}"
    return proto


def without_opset() -> onnx.ModelProto:
    made = model()
    del made.opset_import[:]
    return made


def outside() -> onnx.ModelProto:
    """Its file is this test module: large enough, and nobody reads it."""
    proto = model("y = Add (x, w)")
    tensor = proto.graph.initializer.add(name="w", data_type=1, dims=[4], data_location=TensorProto.EXTERNAL)
    tensor.external_data.add(key="location", value=Path(__file__).name)
    return proto


def functional(body: str) -> onnx.ModelProto:
    """A model that defines an operator of its own."""
    proto = model(body)
    inner = [helper.make_node("Relu", ["a"], ["b"])]
    proto.functions.append(helper.make_function("own", "Own", ["a"], ["b"], inner, [helper.make_opsetid("", 17)]))
    return proto


ADD = "y = Add (x, w)"
COUNTED = "where = NonZero (x)  y = Cast <to = 1> (where)"
BRANCHES = "then_branch = t () => (float[4] b) { b = Relu (x) }, else_branch = e () => (float[4] d) { d = Relu (x) }"
CASES: dict[str, tuple[onnx.ModelProto, onnx.ModelProto]] = {
    "DK001": (model(given="float[batch,4] x"), model(given="float[1,4] x")),
    "DK002": (model(COUNTED), model()),
    "DK003": (model(f"c = Constant <value = bool {{1}}> ()  y = If (c) <{BRANCHES}>"), model()),
    "DK004": (without_opset(), model()),
    "DK005": (model(opset=9000), model()),
    "DK006": (functional("y = own.Own (x)"), functional("y = Relu (x)")),
    "DK007": (without_opset(), model()),
    "DK008": (
        model(ADD, w=[0.0, -np.inf, 1.0, np.nan]),
        # An infinite bound is none.
        model("c = Clip (x, , high)  y = Add (c, w)", w=[0.0, -1e38, 1.0, 2.0], high=np.float32(np.inf)),
    ),
    "DK009": (model(ADD, "double[4] x", w=np.ones(4)), model(ADD, w=[1.0] * 4)),
    "DK010": (model(made="float[4] x"), model()),
    "DK013": (outside(), model(ADD, w=[1.0] * 4)),
    "DK014": (model(given="float[0,4] x"), model(given="float[1,4] x")),
    "DK015": (model(opset=6), model(opset=7)),
    "DK016": (model("y = QLinearMatMul (x, s, z, w, s, z, s, z)", w=[1.0], s=[1.0], z=[1.0]), model()),
}


def findings(proto: onnx.ModelProto) -> tuple[Finding, ...]:
    return GRAPH_RULES.run(collect_facts(wrap_proto(proto, path=Path(__file__).parent / "my model.onnx")))


def one(proto: onnx.ModelProto, code: str) -> Finding:
    (found,) = (finding for finding in findings(proto) if finding.code == code)
    return found


def test_each_rule_fires_and_stays_silent() -> None:
    check_pairs(CASES, run=lambda _, case: findings(case))


@each_row("name", "cnn", "cnn_bnfold", "vit", "detr", "mlp")
def test_ordinary_models_have_no_findings(name: str) -> None:
    assert findings(onnx.load(AIMET / name / "model.onnx")) == ()


def test_a_dynamic_input_is_named_with_its_dimensions_and_the_option() -> None:
    found = one(model(given="float[batch,3,height,width] x"), "DK001")
    assert found.subject.name == "x" and found.blocks
    assert "dimension 0 (batch), dimension 2 (height), dimension 3 (width)" in found.message
    assert found.hint == "add --input x=1,3,HEIGHT,WIDTH with a number for each name"
    assert one(model(given="float[length] x"), "DK001").hint.startswith("add --input x=LENGTH")
    unranked = model()
    unranked.graph.input[0].type.tensor_type.ClearField("shape")
    found = one(unranked, "DK001")
    assert "unknown rank" in found.message and found.hint == "export it again with a shape for x"


SIZED = model("h = Relu (x)  y = own.Own (h)", made="float[some] y")
SIZED.graph.value_info.append(helper.make_tensor_value_info("h", TensorProto.FLOAT, (4, "some")))
RESHAPED, LATE = "y = Reshape (x, size)", "its size comes from size, which is known at run time only"


@each_row(
    ("proto", "message"),
    (dynamic_net(), ""),  # results of dynamic inputs are not told twice
    (model(COUNTED), "NonZero n0: the size of its output depends on the data"),
    (model(RESHAPED, "float[4] x, int64[1] size"), f"Reshape n0: {LATE}"),
    (model(RESHAPED, size=[2, 2]), ""),
    (SIZED, "2 tensors have no fixed size, first h (4 x some) made by n0"),
)
def test_a_size_is_told_where_it_comes_from(proto: onnx.ModelProto, message: str) -> None:
    assert [found.message for found in findings(proto) if found.code == "DK002"] == ([message] if message else [])


def test_sizes_are_said() -> None:
    assert "1 tensor(s) of 16 bytes" in one(outside(), "DK013").message
