"""The facts of graphs, and the rules about graphs alone: each on a graph that triggers it and on one that does not."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from deploykit.findings import Finding
from deploykit.model.collect import collect_facts, constant_range, constant_value, plain
from deploykit.model.emptying import emptied
from deploykit.model.facts import GraphFacts, TensorRole, changes_between, setting_of
from deploykit.model.load import wrap_proto
from deploykit.model.rules import RULES as GRAPH_RULES
from deploykit.model.weights import element_type
from rule_cases import check_pairs
from tables import each_row
from text_models import text_model
from told import check_file

AIMET = Path(__file__).parents[1] / "data" / "aimet"
PATH = Path("m.onnx")


def facts_of(proto: onnx.ModelProto) -> GraphFacts:
    return collect_facts(wrap_proto(proto, path=PATH))


def test_what_a_model_says_about_itself() -> None:
    facts = facts_of(onnx.load(AIMET / "detr" / "model.onnx"))
    assert (facts.model_name, facts.producer, facts.opset) == ("m.onnx", "pytorch 2.4.0", 16)
    assert (facts.inputs, facts.outputs) == (("images", "orig_target_sizes"), ("detections",))
    constant = "/decoder/Constant_1_output_0"
    roles = [facts.tensors[name].role for name in ("images", "detections", "onnx::Add_4934", constant)]
    assert roles == [TensorRole.INPUT, TensorRole.ACTIVATION, TensorRole.INITIALIZER, TensorRole.CONSTANT]
    assert facts.tensors["detections"].is_output and facts.tensors[constant].is_weight
    assert facts.nodes[0].attributes["pads"] == (1, 1, 1, 1) and facts.inference_problem == ""
    own = onnx.helper.make_node("Own", ["x"], ["y"], words=["a", "b"], one=b"c\xff")
    assert [plain(attribute) for attribute in own.attribute] == ["c\ufffd", ("a", "b")]
    bounded = setting_of(facts, constant)
    assert bounded is not None and bounded.op_type == "Clip"
    assert setting_of(facts, "images") is None is setting_of(facts, "detections")
    graph = onnx.load(AIMET / "detr" / "model.onnx").graph
    constants = [attribute.t for node in graph.node for attribute in node.attribute if attribute.name == "value"]
    assert facts.weight_bytes == sum(numpy_helper.to_array(t).nbytes for t in (*graph.initializer, *constants))


def test_sizes_below_zero_are_not_known() -> None:
    negative = text_model("float[2,3] x", "y = Relu (x)")
    negative.graph.input[0].type.tensor_type.shape.dim[0].dim_value = -1
    assert facts_of(negative).tensors["x"].shape == (None, 3)


def test_constants_on_demand() -> None:
    stored: Any = {"odd": [np.nan, -np.inf, 3.0], "nothing": np.zeros((0, 2), np.float32), "nan": [np.nan]}
    stored |= {f"nan{count}": np.full(count, np.nan, np.float32) for count in (16384, 16385)}
    stored |= {f"ones{count}": np.ones(count, np.float32) for count in (1024, 1025)}
    stored |= {
        "text": np.array(["a"], dtype=object),
        "flags": np.array([False, True]),
        "complex": np.ones(2, np.complex64),
    }
    proto = text_model("float[2] x", "c = Constant <value_floats = [1.0, -2.0]> ()  y = Sum (x, c)", **stored)
    loaded = wrap_proto(proto, path=PATH)
    value = constant_value(loaded, "c")
    assert value is not None and value.tolist() == [1.0, -2.0]
    assert constant_value(loaded, "c", limit=1) is None and constant_value(loaded, "x") is None
    assert constant_range(loaded, "c") == (-2.0, 1.0)
    assert constant_range(loaded, "odd") == (-np.inf, 3.0)
    assert constant_range(loaded, "flags") == (0.0, 1.0)
    for name in ("nothing", "text", "complex", "nan", "x", "unknown"):
        assert constant_range(loaded, name) is None
    facts = facts_of(proto)
    assert facts.tensors["c"].shape == (2,) and facts.non_finite == {
        "odd": "NaN and -infinity",
        "nan": "NaN",
        "nan16384": "NaN",
    }
    assert [constant_value(loaded, f"ones{count}") is None for count in (1024, 1025)] == [False, True]
    # Types that numpy does not know.
    proto.graph.initializer.append(helper.make_tensor("w", TensorProto.BFLOAT16, [2], [0.5, -3.0]))
    proto.graph.initializer.append(helper.make_tensor("v", TensorProto.INT4, [2], [-8, 7]))
    loaded = wrap_proto(proto, path=PATH)
    assert constant_range(loaded, "w") == (-3.0, 0.5) and constant_range(loaded, "v") == (-8.0, 7.0)


def test_a_copy_without_weights_keeps_sizes_and_little_else() -> None:
    proto = text_model("float[4] x", "y = Relu (x)")
    sizes = {"int4": [2048, 2049, 2051, 2050], "float": [256, 257, 300, 258], "string": [300], "double": [0]}
    for kind, counts in sizes.items():
        for count in counts:
            proto.graph.initializer.add(name=f"{kind}{count}", data_type=element_type(kind), dims=[count])
    flags = proto.graph.initializer.add(name="flags", data_type=9, dims=[2], data_location=TensorProto.EXTERNAL)
    flags.external_data.add(key="location", value="secret")
    values = numpy_helper.from_array(np.ones(1, np.float32) * 3, "sparse")
    sparse = onnx.SparseTensorProto(values=values, indices=numpy_helper.from_array(np.array([2])), dims=[4])
    proto.graph.sparse_initializer.append(sparse)
    for name, value in (("one", sparse), ("many", [sparse])):
        proto.graph.node[0].attribute.append(helper.make_attribute(name, value))
    made = emptied(proto, str.upper, str.upper)
    assert (made.replaced, made.kept) == (14, 0)
    ones = np.float32(1).tobytes()
    assert made.files == {"ones-int4.bin": (b"\x11", 1026), "ones-float.bin": (ones, 1200)}
    outside = {one.name: {e.key: e.value for e in one.external_data} for one in made.model.graph.initializer}
    assert {name: place for name, place in outside.items() if place} == {
        f"{kind.upper()}{count}": {"location": f"ones-{kind}.bin", "offset": "0", "length": str(length)}
        for kind, count, length in [
            *(("int4", count, (count + 1) // 2) for count in (2049, 2051, 2050)),
            *(("float", count, 4 * count) for count in (257, 300, 258)),
        ]
    }
    inline = {one.name: one for one in made.model.graph.initializer if not outside[one.name]}
    assert inline["FLOAT256"].raw_data == ones * 256 and inline["INT42048"].raw_data == b"\x11" * 1024
    assert inline["FLAGS"].raw_data == b"\1\1" and not any(inline["STRING300"].string_data)
    (relu,), (kept,) = made.model.graph.node, made.model.graph.sparse_initializer
    for one in (kept, relu.attribute[0].sparse_tensor, *relu.attribute[1].sparse_tensors):
        values, places = (numpy_helper.to_array(part).tolist() for part in (one.values, one.indices))
        assert (one.values.name, values, places, [*one.dims]) == ("SPARSE", [1.0], [2], [4])


def changed(body: str) -> GraphFacts:
    return facts_of(text_model("float[4] x, float[4] w", body, "float[4] y, float[4] z"))


GIVEN = "a = Mul (x, w)  b = Relu (a)  c = Neg (b)  y = Abs (c)  d = Sin (x)  z = Cos (d)"


def places(after: str) -> Iterator[str]:
    """Where a graph differs from ``GIVEN``; a shared input or weight makes no neighbours."""
    for place in changes_between(changed(GIVEN), changed(after)):
        yield f"{place}, at {', '.join(node.label for node in place.before)}: {place.to_json()}"


def test_the_places_where_two_graphs_differ() -> None:
    check_file(Path(__file__).with_name("places.told"), places)


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
PAIR = "q = QuantizeLinear (x, s, z)  y = DequantizeLinear (q, s, z)"
COUNTED = "where = NonZero (x)  y = Cast <to = 1> (where)"
BRANCHES = "then_branch = t () => (float[4] b) { b = Relu (x) }, else_branch = e () => (float[4] d) { d = Relu (x) }"
CASES: dict[str, tuple[onnx.ModelProto, onnx.ModelProto]] = {
    "DK001": (model(given="float[batch,4] x"), model(given="float[1,4] x")),
    "DK002": (model(COUNTED), model()),
    "DK003": (model(f"c = Constant <value = bool {{1}}> ()  y = If (c) <{BRANCHES}>"), model()),
    "DK004": (without_opset(), model()),
    "DK005": (model(opset=9000), model(opset=onnx.defs.onnx_opset_version())),
    "DK006": (functional("y = own.Own (x)"), functional("y = Relu (x)")),
    "DK007": (without_opset(), model()),
    "DK008": (
        model(ADD, w=[0.0, -np.inf, 1.0, np.nan]),
        # An infinite bound is none.
        model("c = Clip (x, , high)  y = Add (c, w)", w=[0.0, -1e38, 1.0, 2.0], high=np.float32(np.inf)),
    ),
    "DK018": (model(PAIR, s=np.float32(np.inf), z=np.uint8(0)), model(PAIR, s=np.float32(1), z=np.uint8(0))),
    "DK009": (model(ADD, "double[4] x", w=np.ones(4)), model(ADD, w=[1.0] * 4)),
    "DK010": (model(made="float[4] x"), model()),
    "DK013": (outside(), model(ADD, w=[1.0] * 4)),
    "DK014": (model(given="float[0,4] x"), model(given="float[1,4] x")),
    "DK015": (model(opset=6), model(opset=7)),
    "DK016": (model("y = QLinearMatMul (x, s, z, w, s, z, s, z)", w=[1.0], s=[1.0], z=[1.0]), model()),
    "DK017": (
        model("a = Cast <to = 8> (x) b = Cast <to = 13> (x) c = Cast <to = 17> (x) y = Cast <to = 1> (a)", opset=19),
        model("a = Cast <to = 7> (x) y = Cast <to = 1> (a)"),
    ),
}


def findings(proto: onnx.ModelProto) -> tuple[Finding, ...]:
    return GRAPH_RULES.run(collect_facts(wrap_proto(proto, path=Path(__file__).parent / "my model.onnx")))


def test_each_rule_fires_and_stays_silent() -> None:
    check_pairs(CASES, run=lambda _, case: findings(case))


@each_row("name", "cnn", "cnn_bnfold", "vit", "detr", "mlp")
def test_ordinary_models_have_no_findings(name: str) -> None:
    assert findings(onnx.load(AIMET / name / "model.onnx")) == ()
