"""Computes what a graph's stored values and static shapes settle, in rounds, with bounded memory.

It takes a working copy and edits it; which encodings must survive is said by its caller.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import onnxruntime as ort
from onnx import ModelProto, numpy_helper

from deploykit.model.graph import GraphCopy
from deploykit.model.nodes import attribute, captured_names
from deploykit.model.operators import BITS
from deploykit.model.running import CpuSession
from deploykit.model.shape_inference import Shape, infer
from deploykit.model.values import byte_size
from deploykit.model.weights import is_outside, taken_in

if TYPE_CHECKING:
    from onnx import NodeProto

__all__ = ["LARGEST_BYTES", "fold", "foldable_nodes"]

LARGEST_BYTES = 16 << 20
"""A result above this stays computed, unless it is at most four times what it is computed from."""

_ASKING = ("Shape", "Size")
_LARGEST_GROWTH = 4
_MOST_ROUNDS = 64
"""A round settles shapes that the next one reads; real exports need fewer than ten."""

_KEPT = frozenset({"Constant", "If", "Loop", "Scan", "QuantizeLinear", "DequantizeLinear", "DynamicQuantizeLinear"})
_KEPT |= {"Bernoulli", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike"}
"""Not folded: control flow, chance, and the grids of a QDQ model."""

_LARGEST_COPY = 1 << 12
"""An Identity of a stored value is folded below this: above, a weight that is shared would be stored twice."""

Types = Mapping[str, tuple[str, Shape]]


def foldable_nodes(graph: GraphCopy, kept: Collection[str] = ()) -> list[NodeProto]:
    """The nodes that one round computes: those made of stored values, and those that ask for a static shape.

    Nodes that make a tensor in ``kept``, an output of the model or something that a subgraph reads stay.
    """
    return _ready(graph, infer(graph.model).types, {*kept, *graph.outputs, *_captured(graph)}, ())


def fold(graph: GraphCopy, kept: Collection[str] = ()) -> int:
    """Compute and store, round by round, until nothing more is settled; how many nodes were computed."""
    bound = {*kept, *graph.outputs, *_captured(graph)}
    hopeless: set[str] = set()
    count = 0
    for _ in range(_MOST_ROUNDS):
        types = infer(graph.model).types
        ready = _ready(graph, types, bound, hopeless)
        if not ready:
            break
        values, failed = _values(graph, ready, types)
        hopeless |= failed
        done = [node for node in ready if all(name in values for name in node.output if name)]
        count += len(done)
        _store(graph, done, values)
    return count


def _captured(graph: GraphCopy) -> set[str]:
    return {name for node in graph.nodes for name in captured_names(node)}


def _ready(graph: GraphCopy, types: Types, bound: Collection[str], hopeless: Collection[str]) -> list[NodeProto]:
    # bytes of the stored values that each tensor is computed from, for every tensor that is settled
    settled = {name: byte_size(tensor, name) for name, tensor in graph.stored.items() if not is_outside(tensor)}
    found = []
    for node in graph.nodes:
        outputs = [name for name in node.output if name]
        if node.domain not in ("", "ai.onnx") or node.op_type in _KEPT or not outputs or node.output[0] in hopeless:
            continue
        if any(name in bound for name in outputs):
            continue
        source = _source_bytes(node, settled, types)
        if source is not None and all(_fits(types.get(name), source) for name in outputs):
            settled.update(dict.fromkeys(outputs, source))
            found.append(node)
    return found


def _source_bytes(node: NodeProto, settled: Mapping[str, int], types: Types) -> int | None:
    if node.op_type in _ASKING and _static(types.get(node.input[0])) is not None:
        return 0
    sources = [name for name in node.input if name]
    if not sources or any(name not in settled for name in sources):
        return None
    total = sum(settled[name] for name in sources)
    return None if node.op_type == "Identity" and total > _LARGEST_COPY else total


def _static(known: tuple[str, Shape] | None) -> tuple[int, ...] | None:
    shape = None if known is None else known[1]
    if shape is None or not all(isinstance(dim, int) for dim in shape):
        return None
    return tuple(int(dim) for dim in shape if isinstance(dim, int))


def _fits(known: tuple[str, Shape] | None, source: int) -> bool:
    shape = _static(known)
    if known is None or shape is None or known[0] not in BITS:
        return False
    return math.prod(shape) * BITS[known[0]] // 8 <= max(LARGEST_BYTES, _LARGEST_GROWTH * source)


def _values(graph: GraphCopy, nodes: Sequence[NodeProto], types: Types) -> tuple[dict[str, npt.NDArray[Any]], set[str]]:
    """What the nodes give, and the outputs of those that cannot be run; a batch that fails is halved."""
    values = {node.output[0]: _asked_shape(node, types) for node in nodes if node.op_type in _ASKING}
    failed: set[str] = set()
    todo = [[node for node in nodes if node.op_type not in _ASKING]]
    while todo:
        batch = todo.pop()
        runnable = [node for node in batch if not failed.intersection(node.input)]
        failed.update(name for node in batch if failed.intersection(node.input) for name in node.output)
        try:
            values |= _run(graph, runnable, values)
        except Exception:  # the runtime raises whatever its C++ side threw; the node then stays as it is
            middle = len(runnable) // 2
            if middle:
                todo += [runnable[middle:], runnable[:middle]]
            else:
                failed.update(name for node in runnable for name in node.output)
    return values, failed


def _asked_shape(node: NodeProto, types: Types) -> npt.NDArray[Any]:
    shape = _static(types.get(node.input[0]))
    assert shape is not None
    if node.op_type == "Size":
        return np.asarray(math.prod(shape), np.int64)
    return np.asarray(shape[attribute(node, "start", 0) : attribute(node, "end", len(shape))], np.int64)


def _run(
    graph: GraphCopy, nodes: Sequence[NodeProto], known: Mapping[str, npt.NDArray[Any]]
) -> dict[str, npt.NDArray[Any]]:
    if not nodes:
        return {}
    part = _part(graph, nodes, known)
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    names = [item.name for item in part.graph.output]
    return dict(zip(names, CpuSession(part.SerializeToString(), options).run(names, {}), strict=True))


def _part(graph: GraphCopy, nodes: Sequence[NodeProto], known: Mapping[str, npt.NDArray[Any]]) -> ModelProto:
    """A model without inputs: the nodes, and what they read stored under the same names."""
    part = ModelProto(ir_version=graph.model.ir_version)
    part.opset_import.extend(graph.model.opset_import)
    part.graph.name = "settled"
    part.graph.node.extend(nodes)
    made = {name for node in nodes for name in node.output if name}
    for name in dict.fromkeys(name for node in nodes for name in node.input if name and name not in made):
        if name in known:
            part.graph.initializer.append(numpy_helper.from_array(known[name], name))
        else:
            part.graph.initializer.add().CopyFrom(taken_in(graph.stored[name]))
            part.graph.initializer[-1].name = name
    for name in sorted(made):
        part.graph.output.add().name = name
    return part


def _store(graph: GraphCopy, done: Sequence[NodeProto], values: Mapping[str, npt.NDArray[Any]]) -> None:
    inside = {id(node) for node in done}
    names = [name for node in done for name in node.output if name]
    needed = [name for name in names if any(id(reader) not in inside for reader in graph.readers(name))]
    graph.model.graph.initializer.extend(numpy_helper.from_array(values[name], name) for name in needed)
    graph.replace_nodes(done, {})
