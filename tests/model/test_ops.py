"""The table of operator traits: what it says of each operator, and that ONNX Runtime does what it claims."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
from onnx import helper, numpy_helper

from deploykit.model.operators import RANGES, ROLES, Trait, data_outputs, ops
from tables import each_row


def test_every_name_is_an_operator_of_onnx() -> None:
    schemas = [schema for schema in onnx.defs.get_all_schemas_with_history() if schema.domain == ""]
    known, named = {schema.name for schema in schemas}, ops(*Trait) | RANGES.keys() | ROLES.keys()
    graphs = {onnx.defs.OpSchema.AttrType.GRAPH, onnx.defs.OpSchema.AttrType.GRAPHS}
    running = {schema.name for schema in schemas if graphs & {one.type for one in schema.attributes.values()}}
    assert running == ops(Trait.CONTROL_FLOW)
    assert named - known <= {"RMSNormalization"}  # of opset 23, which older onnx packages do not know


# What follows runs every operator of which the table claims something about values.

X = np.random.default_rng(3).normal(scale=3.0, size=(1, 4, 6, 6)).astype(np.float32)
SEQUENCE = X.reshape(6, 4, 6)


@dataclass(frozen=True, kw_only=True)
class Run:
    """One use of an operator: data first, then what else it reads."""

    data: np.ndarray[Any, Any] = field(default_factory=lambda: X)
    more: tuple[Any, ...] = ()
    attributes: Mapping[str, Any] = field(default_factory=dict)
    outputs: int = 1


def longs(*values: int) -> np.ndarray[Any, Any]:
    return np.asarray(values, np.int64)


RUNS: Mapping[str, Run] = {
    "Compress": Run(more=(np.array([True, False, True]),), attributes={"axis": 2}),
    "DepthToSpace": Run(attributes={"blocksize": 2}),
    "Dropout": Run(more=(np.float32(0.5),), outputs=2),
    "Expand": Run(more=(longs(2, 4, 6, 6),)),
    "Flatten": Run(),
    "Gather": Run(more=(longs(2, 0),), attributes={"axis": 1}),
    "GatherElements": Run(more=(np.ones((1, 4, 6, 6), np.int64),), attributes={"axis": 2}),
    "GatherND": Run(more=(longs(0, 3)[None],)),
    "Identity": Run(),
    "Reshape": Run(more=(longs(4, -1),)),
    "ReverseSequence": Run(data=SEQUENCE, more=(longs(6, 3, 2, 1),)),
    "Slice": Run(more=(longs(1), longs(5), longs(3), longs(2))),
    "SpaceToDepth": Run(attributes={"blocksize": 2}),
    "Split": Run(attributes={"axis": 1, "num_outputs": 2}, outputs=2),
    "Squeeze": Run(more=(longs(0),)),
    "Tile": Run(more=(longs(1, 2, 1, 1),)),
    "Transpose": Run(attributes={"perm": [0, 2, 3, 1]}),
    "Unsqueeze": Run(more=(longs(1),)),
    "GlobalMaxPool": Run(),
    "MaxPool": Run(attributes={"kernel_shape": [3, 3], "pads": [1, 1, 1, 1]}, outputs=2),
    "ReduceMax": Run(more=(longs(3),)),
    "ReduceMin": Run(more=(longs(1),)),
    "TopK": Run(more=(longs(3),), outputs=2),
    "Unique": Run(data=np.round(X), outputs=2),
}


def run(op_type: str, case: Run) -> dict[str, np.ndarray[Any, Any]]:
    """The outputs that hold values, by name."""
    names = [f"y{index}" for index in range(case.outputs)]
    reads = ["x", *(f"c{index}" for index in range(len(case.more)))]
    stored = [numpy_helper.from_array(np.asarray(one), name) for one, name in zip(case.more, reads[1:], strict=True)]
    made = helper.make_node(op_type, reads, names, **case.attributes)
    given = helper.make_tensor_value_info("x", helper.np_dtype_to_tensor_dtype(case.data.dtype), case.data.shape)
    shown = [onnx.ValueInfoProto(name=name) for name in names]
    graph = helper.make_graph([made], "one", [given], shown, stored)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    values = dict(zip(names, session.run(None, {"x": case.data}), strict=True))
    return {name: values[name] for name in data_outputs(made, names)}


@each_row("op_type", *sorted(ops(Trait.REARRANGES, Trait.SELECTS)))
def test_what_moves_data_gives_values_of_its_input_at_places_that_they_decide_or_not(op_type: str) -> None:
    """Numbering the elements shows where each went; any other values go the same way, or do not."""
    case = RUNS[op_type]
    found = run(op_type, case)
    assert all(value.size and np.isin(value, case.data).all() for value in found.values())
    turned = run(op_type, replace(case, data=-case.data))
    if op_type in ops(Trait.SELECTS):
        assert any(not np.array_equal(value, -turned[name]) for name, value in found.items())
        return
    numbers = np.arange(case.data.size, dtype=np.float32).reshape(case.data.shape)
    places = run(op_type, replace(case, data=numbers))
    for name, value in found.items():
        np.testing.assert_array_equal(value, case.data.reshape(-1)[places[name].astype(np.int64)])


ULP = 2.0**-23
"""ONNX Runtime's Tanh rounds one step beyond 1; the table speaks of exact arithmetic."""


@each_row("op_type", *sorted(RANGES))
def test_bounded_operators_keep_their_range(op_type: str) -> None:
    data = np.linspace(-40.0, 40.0, 4001, dtype=np.float32)[None]
    found = run(op_type, Run(data=data))["y0"]
    low, high = RANGES[op_type]
    assert low - ULP <= found.min() and found.max() <= high + ULP
    if op_type != "Softmax":  # its values share one sum
        assert found.min() < low + 1e-3 and found.max() > high - 1e-3
