"""Takes QuantizeLinear and DequantizeLinear out of a model: the float model and the encodings they stood for.

The opposite of ``insert_qdq``. What is no encoding, such as a grid computed at run time, stays where it is and is
reported.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from onnx import helper, numpy_helper

from deploykit.encodings.formats.differences import compare_values
from deploykit.encodings.qdq import QDQ_VERSION
from deploykit.encodings.qdq_graph import DEQUANTIZE, QdqGraph
from deploykit.encodings.qdq_names import PlainNames
from deploykit.encodings.values import Affine, Encoding, EncodingSet, Float, Float8, Lpbq, Value
from deploykit.errors import InputError
from deploykit.model.graph import GraphCopy
from deploykit.model.nodes import label
from deploykit.model.weights import constant_values

if TYPE_CHECKING:
    from onnx import ModelProto, NodeProto

__all__ = ["Extracted", "extract_qdq"]

_SOURCE = "the model"


@dataclass(frozen=True, slots=True, kw_only=True)
class Extracted:
    """The float model, its encodings (placed), and the nodes that could not be taken out, with the reason."""

    model: ModelProto
    encodings: EncodingSet
    kept: dict[str, str] = field(default_factory=dict)


@dataclass(slots=True, kw_only=True)
class _Work:
    graph: GraphCopy
    qdq: QdqGraph
    names: PlainNames
    entries: dict[str, Encoding] = field(default_factory=dict)
    weights: dict[str, Any] = field(default_factory=dict)
    kept: dict[str, str] = field(default_factory=dict)
    gone: set[int] = field(default_factory=set)


def extract_qdq(model: ModelProto) -> Extracted:
    """Remove every pair and every dequantized constant. Weights become float32 initializers on their grid."""
    graph = GraphCopy(model)
    work = _Work(graph=graph, qdq=QdqGraph.of(graph, source=_SOURCE), names=PlainNames(graph=graph))
    for node in work.qdq.quantizers():
        if node.op_type != DEQUANTIZE:
            continue
        try:
            _take(work, node)
        except InputError as error:
            work.kept[label(node)] = error.what.removeprefix(f"{_SOURCE}: ")
    _rewire(work)
    entries = dict(sorted(work.entries.items()))
    return Extracted(model=graph.model, encodings=EncodingSet(version=QDQ_VERSION, entries=entries), kept=work.kept)


def _take(work: _Work, node: NodeProto) -> None:
    """One DequantizeLinear: of an activation's pair, of a stored weight, or of a scale (left to its reader)."""
    if work.qdq.makes_scales(node):
        work.gone.add(id(node))
        return
    value, quantize = work.qdq.value(node), work.qdq.first_of_pair(node)
    if quantize is not None:
        _take_pair(work, node, quantize, value)
    elif node.input[0] in work.graph.stored:
        _take_weight(work, node, value)
    else:
        source = work.graph.maker(node.input[0])
        work.qdq.fail(node, f"reads integers from {'the graph input' if source is None else label(source)}")


def _take_pair(work: _Work, node: NodeProto, quantize: NodeProto, value: Value) -> None:
    name = work.names.final(quantize.input[0])
    known = work.entries.get(name)
    if known is not None and compare_values(known.value, value):
        work.qdq.fail(node, f"quantizes {name!r} a second time, onto another grid")
    work.entries.pop(name, None)
    final = work.names.join(name, node.output[0])
    work.entries[final] = Encoding(name=final, value=value, is_param=work.qdq.is_param(quantize))
    work.gone |= {id(node), id(quantize)}


def _take_weight(work: _Work, node: NodeProto, value: Value) -> None:
    name = work.qdq.plain_name(node)
    if name in work.weights:  # the same integers, dequantized twice
        name = str(node.output[0])
    integers = constant_values(work.graph.stored[node.input[0]]).astype(np.float32)
    work.weights[name] = _dequantize(integers, value)
    work.entries[name] = Encoding(name=name, value=value, is_param=work.qdq.is_param(node))
    work.names.say(node.output[0], name)
    work.gone.add(id(node))


def _dequantize(integers: Any, value: Value) -> Any:
    assert not isinstance(value, Float)
    if isinstance(value, Float8):
        return np.asarray(integers * _spread(value.scale, value.axis, integers.ndim), np.float32)
    axis = value.block_axis
    if axis is not None and value.block_size is not None:
        scale = np.repeat(value.scale.astype(np.float32), value.block_size, axis=axis)
        zero = 0.0 if isinstance(value, Lpbq) else np.repeat(value.zero_point, value.block_size, axis=axis)
    else:
        assert isinstance(value, Affine)
        scale = _spread(value.scale.astype(np.float32), value.axis, integers.ndim)
        zero = _spread(value.zero_point, value.axis, integers.ndim)
    return np.asarray((integers - zero) * scale, np.float32)


def _spread(numbers: Any, axis: int | None, rank: int) -> Any:
    if axis is None or numbers.ndim == 0:
        return numbers
    return numbers.reshape(tuple(-1 if i == axis else 1 for i in range(rank)))


def _rewire(work: _Work) -> None:
    """Let the others read and make what the taken nodes stood between; their scales and integers go with them."""
    graph = work.graph
    constants = dict(graph.stored)
    graph.model.graph.initializer.extend(numpy_helper.from_array(value, name) for name, value in work.weights.items())
    kept = [node for node in graph.nodes if id(node) not in work.gone]
    for node in kept:
        for names in (node.input, node.output):
            for position, name in enumerate(names):
                names[position] = work.names.final(name)
    for copy, name in work.names.copies.items():
        kept.append(helper.make_node("Identity", [name], [copy], name=graph.fresh(copy)))
        work.entries[copy] = replace(work.entries[name], name=copy)
    graph.set_nodes(kept)
    del graph.model.graph.value_info[:]
    graph.drop_unused({*constants, *work.weights})
