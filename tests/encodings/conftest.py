from collections.abc import Callable
from pathlib import Path

import onnx
import pytest

from deploykit.facts.graph import GraphFacts, NodeFact, TensorFact, TensorRole

AIMET = Path(__file__).parents[1] / "data" / "aimet"


def facts_of(model: onnx.ModelProto) -> GraphFacts:
    """The facts that these tests need, collected without deploykit's own collector."""
    graph = onnx.shape_inference.infer_shapes(model).graph
    stored = {i.name: (tuple(i.dims), i.data_type, TensorRole.INITIALIZER) for i in graph.initializer}
    for node in graph.node:
        if node.op_type == "Constant":
            value = node.attribute[0].t
            stored[node.output[0]] = (tuple(value.dims), value.data_type, TensorRole.CONSTANT)
    infos = {i.name: i.type.tensor_type for i in (*graph.input, *graph.output, *graph.value_info)}
    inputs = {i.name for i in graph.input} - stored.keys()
    nodes = tuple(
        NodeFact(
            index=index,
            name=node.name,
            op_type=node.op_type,
            domain=node.domain,
            inputs=tuple(node.input),
            outputs=tuple(node.output),
            attributes={a.name: onnx.helper.get_attribute_value(a) for a in node.attribute if a.name != "value"},
        )
        for index, node in enumerate(graph.node)
    )
    producers = {name: node.index for node in nodes for name in node.outputs if node.op_type != "Constant"}
    names = dict.fromkeys([*infos, *stored, *producers])
    return GraphFacts(
        model_name="",
        graph_name=graph.name,
        producer="",
        ir_version=model.ir_version,
        opsets={o.domain: o.version for o in model.opset_import},
        inputs=tuple(inputs),
        outputs=tuple(o.name for o in graph.output),
        nodes=nodes,
        tensors={name: tensor(name, nodes, infos, stored, producers, inputs) for name in names if name},
    )


def tensor(name, nodes, infos, stored, producers, inputs) -> TensorFact:  # type: ignore[no-untyped-def]
    role = TensorRole.INPUT if name in inputs else TensorRole.ACTIVATION
    if name in stored:
        shape, dtype, role = stored[name]
    else:
        info = infos.get(name)
        dtype = info.elem_type if info is not None else 0
        known = info is not None and info.HasField("shape")
        shape = tuple(d.dim_value if d.HasField("dim_value") else None for d in info.shape.dim) if known else None
    return TensorFact(
        name=name,
        role=role,
        dtype=onnx.TensorProto.DataType.Name(dtype).lower() if dtype else "",
        shape=shape,
        producer=producers.get(name),
        consumers=tuple(node.index for node in nodes if name in node.inputs),
    )


@pytest.fixture(scope="session")
def model_of() -> Callable[[str], onnx.ModelProto]:
    """A model of the AIMET fixtures by its folder's name."""
    return lambda name: onnx.load(AIMET / name / "model.onnx")


@pytest.fixture(scope="session")
def graph_of(model_of: Callable[[str], onnx.ModelProto]) -> Callable[[str], GraphFacts]:
    """The facts of a model of the AIMET fixtures."""
    known: dict[str, GraphFacts] = {}

    def get(name: str) -> GraphFacts:
        if name not in known:
            known[name] = facts_of(model_of(name))
        return known[name]

    return get


@pytest.fixture(scope="session")
def collect() -> Callable[[onnx.ModelProto], GraphFacts]:
    """Facts of any model."""
    return facts_of
