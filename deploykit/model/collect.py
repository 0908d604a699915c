"""Collects the facts of a graph, and the values of a few stored tensors on request.

External data is opened only by ``constant_value`` and ``constant_range``, for the one tensor they are asked about.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from onnx import AttributeProto, ModelProto

from deploykit.errors import InputError
from deploykit.findings.records import Interval, Numbers, grouped
from deploykit.model.checks import check_attention
from deploykit.model.facts import LAYOUT, GraphFacts, NodeFact, TensorFact, TensorRole
from deploykit.model.graph import GraphView, view_of
from deploykit.model.load import Model
from deploykit.model.nodes import names_read
from deploykit.model.operators import DEFAULT_DOMAINS, is_standard
from deploykit.model.shape_inference import Inferred, infer
from deploykit.model.values import (
    byte_size,
    dtype_name,
    element_count,
    is_external,
    stored_tensors,
)
from deploykit.model.weights import WeightFiles, is_unreadable, weight
from deploykit.system.store import made_once

__all__ = ["collect_facts", "constant_range", "constant_value", "facts_of", "model_of_view", "plain"]

_WORTH_READING = 16_384
_LOOKED_AT = ("float", "float16", "double")


def collect_facts(model: Model) -> GraphFacts:
    """What is true of the model's main graph; the model is not changed and no external data is opened."""
    proto, graph = model.proto, model.proto.graph
    inferred = infer(proto)
    if inferred.negative:
        raise InputError(
            f"{model.path}: {inferred.negative!r} would have fewer than no elements",
            why="a window is larger than what it looks at, or more is cut off than there is",
            next="export the model again with the input sizes that it is made for",
        )
    tensors = _tensors(model, inferred)
    nodes = tuple(
        NodeFact(
            index=index,
            name=node.name,
            op_type=node.op_type,
            domain="" if is_standard(node) else node.domain,
            inputs=tuple(node.input),
            outputs=tuple(node.output),
            attributes={
                found.name: value
                for found in node.attribute
                # What a Constant holds is a value, not a setting.
                if node.op_type != "Constant" and (value := plain(found)) is not None
            },
        )
        for index, node in enumerate(graph.node)
    )
    check_attention(model.path, nodes, tensors)
    # Stored floats of moderate size, inside the model file: which of them hold NaN or infinity, and the value of those
    # with one element.
    non_finite = dict[str, str]()
    scalars = dict[str, float]()
    for name, tensor in model.stored.items():
        if dtype_name(tensor.data_type) not in _LOOKED_AT or is_unreadable(tensor):
            continue
        count = element_count(tensor, name)
        if count <= _WORTH_READING:
            values = weight(model, name)
            if not np.isfinite(values).all():
                kinds = {"NaN": np.isnan(values), "infinity": np.isposinf(values), "-infinity": np.isneginf(values)}
                non_finite[name] = " and ".join(kind for kind, mask in kinds.items() if mask.any())
            if count == 1:
                scalars[name] = float(values.reshape(()))
    opsets = dict[str, int]()
    for entry in proto.opset_import:
        domain = "" if entry.domain in DEFAULT_DOMAINS else entry.domain
        opsets[domain] = max(entry.version, opsets.get(domain, 0))
    return GraphFacts(
        model_name=model.path.name,
        producer=" ".join(filter(None, (proto.producer_name, proto.producer_version))),
        opsets=opsets,
        inputs=tuple(name for name, fact in tensors.items() if fact.role is TensorRole.INPUT),
        outputs=tuple(item.name for item in graph.output),
        nodes=nodes,
        tensors=tensors,
        weight_bytes=sum(byte_size(stored.proto, stored.where) for stored in stored_tensors(proto)),
        functions=frozenset(function.name for function in proto.functions),
        non_finite=non_finite,
        inference_problem=inferred.problem,
        scalars=scalars,
        channel_last=frozenset(
            name
            for entry in proto.metadata_props
            # protobuf gives bytes where the key is not valid text.
            if isinstance(key := entry.key, str)
            and (name := key.removeprefix(LAYOUT)) != key
            and name in tensors
            and tensors[name].rank == 4
        ),
    )


@made_once
def model_of_view(view: GraphView) -> Model:
    """The ``Model`` of a graph in memory, made once while the graph stays the same.

    The graph was checked when it was read; the path is made up and no file is looked for.
    """
    return Model(path=Path("model.onnx"), proto=view.model, stored=view.stored)


def facts_of(model: ModelProto | GraphView) -> GraphFacts:
    """The facts of a model in memory, collected once while it stays the same."""
    view = model if isinstance(model, GraphView) else view_of(model)
    return view.once("facts", lambda: collect_facts(model_of_view(view)))


def constant_value(model: Model, name: str, *, limit: int = 1024) -> Numbers | None:
    """The values of a stored tensor of at most ``limit`` elements; None for a larger one or one that is computed."""
    tensor = model.stored.get(name)
    if tensor is None or element_count(tensor, name) > limit:
        return None
    return weight(model, name)


def constant_range(model: Model, name: str, files: WeightFiles | None = None) -> Interval | None:
    """The smallest and largest value of a stored tensor, infinities included and NaN left out.

    None where the tensor is computed, holds no numbers, or is empty. Reads exactly this tensor, of ``files`` kept open.
    """
    if name not in model.stored:
        return None
    values = weight(model, name, files)
    if values.dtype.kind in "OSUc" or not values.size:
        return None
    if values.dtype.kind not in "fiub":  # types that numpy knows only by extension, such as bfloat16
        values = values.astype(np.float32)
    low, high = float(np.fmin.reduce(values, axis=None)), float(np.fmax.reduce(values, axis=None))
    return None if np.isnan(low) else (low, high)


def plain(attribute: AttributeProto) -> Any:
    """The value of an attribute as a number, text or tuple; None for tensors, graphs and types."""
    match attribute.type:
        case AttributeProto.FLOAT:
            return attribute.f
        case AttributeProto.INT:
            return attribute.i
        case AttributeProto.STRING:
            return attribute.s.decode(errors="replace")
        case AttributeProto.FLOATS:
            return tuple(attribute.floats)
        case AttributeProto.INTS:
            return tuple(attribute.ints)
        case AttributeProto.STRINGS:
            return tuple(text.decode(errors="replace") for text in attribute.strings)
        case _:
            return None


def _tensors(model: Model, inferred: Inferred) -> dict[str, TensorFact]:
    graph = model.proto.graph
    # The node that makes each tensor, and those that read it, subgraphs included, each once and in graph order.
    producers = {name: index for index, node in enumerate(graph.node) for name in node.output if name}
    consumers = grouped((name, index) for index, node in enumerate(graph.node) for name in names_read(node))
    outputs = {item.name for item in graph.output}
    sparse = {tensor.values.name: tensor for tensor in graph.sparse_initializer}
    initializers = dict.fromkeys((*(tensor.name for tensor in graph.initializer), *sparse))
    inputs = [item.name for item in graph.input if item.name not in initializers]
    found = dict[str, TensorFact]()
    for name in (*inputs, *initializers, *producers):
        held = sparse[name].values if name in sparse else model.stored.get(name)
        if held is None:
            role = TensorRole.ACTIVATION if name in producers else TensorRole.INPUT
            dtype, shape = inferred.types.get(name, ("", None))
        else:
            role = TensorRole.CONSTANT if name in producers else TensorRole.INITIALIZER
            dtype, shape = dtype_name(held.data_type), tuple(sparse[name].dims if name in sparse else held.dims)
        found[name] = TensorFact(
            name=name,
            role=role,
            dtype=dtype,
            shape=shape,
            producer=producers.get(name),
            consumers=tuple(consumers.get(name, ())),
            is_output=name in outputs,
            external=held is not None and is_external(held),
        )
    return found
