"""A form in a type: float16, or with Q/DQ pairs around everything.

The pairs are the plain ones: no repair of the preparation is made, since what an operator is like without it is asked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

import numpy as np
from onnx import ModelProto, NodeProto, TensorProto, ValueInfoProto, helper, numpy_helper

from atlas.forms import Form
from atlas.sketch import AS_IT_IS, Sketch, Variation
from deploykit.accuracy.simulate.sessions import Session
from deploykit.encodings.insert_qdq import insert_qdq
from deploykit.encodings.new_grids import GridKind, affine_for_range
from deploykit.encodings.values import Affine, Encoding, EncodingSet
from deploykit.findings.records import Numbers
from deploykit.model.graph import GraphCopy
from deploykit.model.operators import Trait, has, settings
from deploykit.model.weights import stored_values
from deploykit_ort_qnn.bench.together import Span

__all__ = ["TYPES", "Kind", "Unit", "unit"]

Kind = Literal["fp16", "w8a8", "w8a16", "w4a8", "w4a16"]
Sets: TypeAlias = Sequence[Mapping[str, Numbers]]
TYPES: tuple[Kind, ...] = ("fp16", "w8a8", "w8a16")

_ACTIVATION = {
    "w8a8": GridKind(bits=8, signed=False),
    "w8a16": GridKind(bits=16, signed=False),
    "w4a8": GridKind(bits=8, signed=False),
    "w4a16": GridKind(bits=16, signed=False),
}
_SCALE = GridKind(bits=8, signed=False)
_CHANNEL_AXIS = {"Conv": 0, "ConvTranspose": 1}
_LAYERS = ("Conv", "ConvTranspose", "MatMul", "Gemm")
_FROM_ZERO_TO_ONE = ("Sigmoid", "Softmax", "HardSigmoid")


@dataclass(frozen=True, slots=True, kw_only=True)
class Unit:
    """One graph. Every name in it begins with ``prefix``; ``samples`` are its inputs, twice.

    ``spans`` are the ranges of its float inputs, ``steps`` the scales of outputs with an integer grid.
    """

    form: Form
    kind: Kind
    prefix: str
    model: ModelProto
    samples: tuple[Mapping[str, Numbers], ...]
    spans: Mapping[str, Span] = field(default_factory=dict)
    steps: Mapping[str, float] = field(default_factory=dict)


def unit(
    form: Form,
    kind: Kind,
    number: int,
    variation: Variation = AS_IT_IS,
    *,
    sets: Callable[[Sketch], Sets] | None = None,
) -> Unit:
    """The graph of one form in one type, drawn as it is or otherwise.

    ``sets`` are all that it will be given, where that is more than its two samples: then what lies between its
    operators has a grid for all of them, so that nothing is cut off there, which an operator made of several may do
    later than the file says.
    """
    prefix = f"u{number}/"
    sketch = Sketch(form.id, prefix, form.opset, variation)
    made = form.draw(sketch)
    model = sketch.model(made)
    shape = _shape(model.graph.output[0])
    if variation.before and model.graph.output[0].type.tensor_type.elem_type == TensorProto.FLOAT:
        model = sketch.model(sketch.layer(made, shape))
    steps = {}
    if kind == "fp16":
        model = _in_float16(model, prefix)
    else:
        several = len(model.graph.node) > 1
        grids = dict(_grids(model, sets(sketch) if sets is not None and several else sketch.samples, kind))
        if variation.wide != 1 and made in grids:
            own = grids[made] if variation.wide else grids[model.graph.input[0].name]
            grids[made] = _wider(own, variation.wide or 1.0, _ACTIVATION[kind])
        entries = {name: Encoding(name=name, value=grid) for name, grid in grids.items()}
        encodings = EncodingSet(version="2.0.0", entries=entries)
        steps = {value.name: float(grids[value.name].scale) for value in model.graph.output if value.name in grids}
        model = insert_qdq(model, encodings, bias="int32").model
    return Unit(
        form=form, kind=kind, prefix=prefix, model=model, samples=sketch.samples, spans=sketch.spans, steps=steps
    )


def _shape(value: ValueInfoProto) -> tuple[int, ...]:
    return tuple(dim.dim_value for dim in value.type.tensor_type.shape.dim)


def _wider(grid: Affine, times: float, kind: GridKind) -> Affine:
    return affine_for_range(float(grid.minimum) * times, float(grid.maximum) * times, kind)


def _in_float16(model: ModelProto, prefix: str) -> ModelProto:
    """The same graph in float16, between conversions: that a float graph is compiled in float16 is not so everywhere.

    QAIRT 2.36.1 compiles it in float32 (observed: weights of four bytes in the binary, 140 dB against the CPU).
    """
    graph = model.graph
    # The factors of a Resize are float32 whatever its data are.
    factors = {name for node in graph.node if node.op_type == "Resize" for name in node.input[2:3]}
    for tensor in graph.initializer:
        if tensor.data_type == TensorProto.FLOAT and tensor.name not in factors:
            tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor).astype(np.float16), tensor.name))
    renamed, first, last = dict[str, str](), [], []
    for value in graph.input:
        if value.type.tensor_type.elem_type == TensorProto.FLOAT:
            renamed[value.name] = f"{value.name}_half"
            first.append(_cast(value.name, renamed[value.name], TensorProto.FLOAT16))
    for value in graph.output:
        if value.type.tensor_type.elem_type == TensorProto.FLOAT:
            renamed[value.name] = f"{value.name}_half"
            last.append(_cast(renamed[value.name], value.name, TensorProto.FLOAT))
    for node in graph.node:
        for names in (node.input, node.output):
            for position, name in enumerate(names):
                names[position] = renamed.get(name, name)
    nodes = [*first, *graph.node, *last]
    made = helper.make_graph(nodes, f"{prefix}float16", graph.input, graph.output, graph.initializer)
    return helper.make_model(made, opset_imports=model.opset_import, ir_version=model.ir_version)


def _cast(source: str, target: str, kind: int) -> NodeProto:
    return helper.make_node("Cast", [source], [target], name=f"{target}:Cast", to=kind)


def _grids(model: ModelProto, samples: Sequence[Mapping[str, Numbers]], named: Kind) -> Iterator[tuple[str, Affine]]:
    """Every float tensor's grid, in the order of the graph: what moves values keeps theirs."""
    graph, kind = GraphCopy(model), _ACTIVATION[named]
    values = _values(model, samples)
    found: dict[str, Affine] = {}
    for value in graph.model.graph.input:
        if values[value.name].dtype == np.float32:
            found[value.name] = _around(values[value.name], kind)
    for node in graph.nodes:
        found |= _weights(graph, node, kind, 4 if named.startswith("w4") else 8)
        for name in filter(None, node.output):
            if name in values and values[name].dtype == np.float32:
                moved = found.get(node.input[0]) if has(node, Trait.CARRIES_GRID) else None
                found[name] = moved or _result(node, values[name], kind)
    yield from found.items()


def _values(model: ModelProto, samples: Sequence[Mapping[str, Numbers]]) -> dict[str, Numbers]:
    names = [name for node in model.graph.node for name in node.output if name]
    session = Session(model, capture=names)
    runs = [{**sample, **session.run(sample)} for sample in samples]
    return {name: np.concatenate([np.ravel(run[name]) for run in runs]) for name in runs[0]}


def _around(values: Numbers, kind: GridKind) -> Affine:
    return affine_for_range(float(values.min()), float(values.max()), kind)


def _result(node: NodeProto, values: Numbers, kind: GridKind) -> Affine:
    if node.op_type in _FROM_ZERO_TO_ONE:
        return affine_for_range(0.0, 1.0, kind)
    return _around(values, kind)


def _weights(graph: GraphCopy, node: NodeProto, kind: GridKind, bits: int) -> dict[str, Affine]:
    """Grids of what is stored: weights per channel, scales in 8 bits, all else like activations; none for biases."""
    found = {}
    for position, name in enumerate(node.input):
        if name not in graph.stored or position in settings(node):
            continue
        values = stored_values(graph.stored[name])
        if values.dtype != np.float32:
            continue
        if node.op_type in _LAYERS and position == 1:
            found[name] = _per_channel(node, values, bits)
        elif node.op_type in _LAYERS or (node.op_type in _BIASED and position == 2):
            continue  # its scale follows from the other two
        else:
            found[name] = _around(values, _SCALE if node.op_type.endswith("Normalization") else kind)
    return found


_BIASED = ("LayerNormalization", "BatchNormalization")


def _per_channel(node: NodeProto, values: Numbers, bits: int) -> Affine:
    turned = any(setting.name == "transB" and setting.i for setting in node.attribute)
    axis = _CHANNEL_AXIS.get(node.op_type, 0 if turned else values.ndim - 1)
    rows = np.moveaxis(values, axis, 0).reshape(values.shape[axis], -1)
    scale = np.abs(rows).max(axis=1).astype(np.float64) / ((1 << (bits - 1)) - 1)
    return Affine(bits=bits, signed=True, scale=scale, zero_point=np.zeros_like(scale), symmetric=True, axis=axis)
