"""Rewrites layers with block-quantized weights as MatMul and Add: Gemm, 1x1 Conv, and MatMul with a bias behind it.

Compilers take block-quantized weights of a MatMul that they refuse, or compute wrongly, in the other forms. The
weight's grid goes along exactly; the product's grid is derived from that of the sum, so no calibration is needed.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from onnx import helper

from deploykit.encodings.values import Affine, Encoding, EncodingSet, Lpbq
from deploykit.model.graph import GraphCopy, view_of
from deploykit.model.nodes import attribute, label
from deploykit.model.weights import constant_values
from deploykit.rewrites.contract import MatchResult, Refusal, Rewritten, Site

if TYPE_CHECKING:
    from onnx import ModelProto, NodeProto

__all__ = ["blocks_to_matmul", "has_blocks", "match_blocks", "value_grid"]

Kind = Literal["gemm", "conv", "matmul-add"]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Layer:
    kind: Kind
    output: str
    weight: str
    bias: str = ""
    product: str = ""
    rank: int = 2


@dataclass(slots=True, kw_only=True)
class _Work:
    graph: GraphCopy
    entries: dict[str, Encoding]
    replaced: dict[str, list[NodeProto]] = field(default_factory=dict)
    dropped: set[str] = field(default_factory=set)


def has_blocks(encodings: EncodingSet | None, name: str) -> bool:
    """True when the tensor's entry is per block."""
    entry = None if encodings is None else encodings.get(name)
    return entry is not None and (isinstance(entry.value, Lpbq) or getattr(entry.value, "block_size", None) is not None)


def match_blocks(model: ModelProto, encodings: EncodingSet) -> MatchResult:
    """The layers with block-quantized weights that are not already a MatMul alone."""
    graph = view_of(model)
    sites, refusals = list[Site](), list[Refusal]()
    for node in graph.nodes:
        if len(node.input) < 2 or not has_blocks(encodings, node.input[1]) or node.input[1] not in graph.stored:
            continue
        found = _layer(graph, node)
        if isinstance(found, str):
            refusals.append(Refusal(nodes=(label(node),), reason=found))
        elif found is not None:
            why = f"{label(node)} has block-quantized weights"
            sites.append(Site(nodes=(label(node),), tensors=(found.weight,), why=why, data=found))
    none = "" if sites or refusals else "no layer with block-quantized weights needs another form"
    return MatchResult(sites=tuple(sites), refusals=tuple(refusals), reason=none)


def _layer(graph: GraphCopy, node: NodeProto) -> _Layer | str | None:
    bias = node.input[2] if len(node.input) > 2 else ""
    if bias and bias not in graph.stored:
        return f"its bias {bias} is not a constant"
    common: dict[str, Any] = {"output": node.output[0], "weight": node.input[1]}
    if node.op_type == "Gemm":
        if attribute(node, "alpha", 1.0) != 1.0 or attribute(node, "beta", 1.0) != 1.0:
            return "it has factors of its own"
        return _Layer(kind="gemm", bias=bias, **common)
    if node.op_type == "Conv":
        return _pointwise(graph, node, bias)
    if node.op_type == "MatMul":
        reader = graph.only_reader(node.output[0])
        other = "" if reader is None else _bias_of(graph, reader, node.output[0])
        if reader is not None and other:
            common["output"] = reader.output[0]
            return _Layer(kind="matmul-add", bias=other, product=node.output[0], **common)
        return None
    return f"{node.op_type} has no form as MatMul"


def _bias_of(graph: GraphCopy, reader: NodeProto, product: str) -> str:
    if reader.op_type != "Add":
        return ""
    other = reader.input[0] if reader.input[1] == product else reader.input[1]
    return other if other in graph.stored and len(graph.stored[other].dims) == 1 else ""


def _pointwise(graph: GraphCopy, node: NodeProto, bias: str) -> _Layer | str:
    dims = list(graph.stored[node.input[1]].dims)
    plain = all(dim == 1 for dim in dims[2:]) and attribute(node, "group", 1) == 1
    plain &= all(step == 1 for step in attribute(node, "strides", [1])) and not any(attribute(node, "pads", [0]))
    if not plain:
        return "it is no 1x1 convolution with stride 1, without padding and groups"
    return _Layer(kind="conv", output=node.output[0], weight=node.input[1], bias=bias, rank=len(dims))


def blocks_to_matmul(model: ModelProto, encodings: EncodingSet, found: MatchResult) -> Rewritten:
    """Rewrite what ``match_blocks`` found. Results change by float32 rounding only."""
    graph = GraphCopy(model)
    work = _Work(graph=graph, entries=dict(encodings.entries))
    changed = []
    for site in found.sites:
        layer: _Layer = site.data
        if layer.kind == "matmul-add":
            _split_bias(work, layer)
        else:
            changed.append(graph.makers[layer.output])
            _as_matmul(work, changed[-1], layer)
    made = {graph.index_of(node): work.replaced[node.output[0]] for node in changed}
    graph.replace_nodes(changed, made)
    for name in work.dropped:
        if not graph.readers(name):
            work.entries.pop(name, None)
    return Rewritten(model=graph.model, encodings=replace(encodings, entries=work.entries))


def _split_bias(work: _Work, layer: _Layer) -> None:
    """MatMul and Add stay; the product gets a grid of its own, so that nobody fuses the two."""
    _derive_product(work, layer.product, layer.output, layer.bias)


def _as_matmul(work: _Work, node: NodeProto, layer: _Layer) -> None:
    conv = layer.kind == "conv"
    base = node.name or layer.output
    made: list[NodeProto] = []
    source = node.input[0]
    if conv or attribute(node, "transA", 0):
        order = [0, *range(2, layer.rank), 1] if conv else [1, 0]
        source = _moved(work, made, source, f"{base}/to_last", order)
    weight = _weight(work, layer, transpose=conv or bool(attribute(node, "transB", 0)))
    result = work.graph.fresh(f"{layer.output}_last") if conv else layer.output
    if conv and layer.output in work.entries:
        work.entries[result] = replace(work.entries[layer.output], name=result)
    product = work.graph.fresh(f"{layer.output}_product") if layer.bias else result
    made.append(helper.make_node("MatMul", [source, weight], [product], name=f"{base}/MatMul"))
    if layer.bias:
        made.append(helper.make_node("Add", [product, layer.bias], [result], name=f"{base}/Add"))
        _derive_product(work, product, result, layer.bias)
    if conv:
        order = [0, layer.rank - 1, *range(1, layer.rank - 1)]
        made.append(helper.make_node("Transpose", [result], [layer.output], name=f"{base}/to_first", perm=order))
    work.replaced[layer.output] = made
    work.dropped.add(layer.weight)


def _moved(work: _Work, made: list[NodeProto], source: str, base: str, order: list[int]) -> str:
    name = work.graph.fresh(f"{base}_output")
    made.append(helper.make_node("Transpose", [source], [name], name=base, perm=order))
    if source in work.entries:
        work.entries[name] = replace(work.entries[source], name=name, is_param=False)
    return name


def _weight(work: _Work, layer: _Layer, *, transpose: bool) -> str:
    """The weight as [inputs, outputs], with its grid."""
    if not transpose:
        return layer.weight
    values = constant_values(work.graph.stored[layer.weight])
    flat = np.ascontiguousarray(values.reshape(values.shape[:2]).T)
    name = work.graph.store(f"{layer.weight}_matmul", flat)
    entry = work.entries[layer.weight]
    work.entries[name] = replace(entry, name=name, value=_turned(entry.value))
    return name


def _turned(value: Any) -> Any:
    """The grid of a transposed weight whose further dimensions are all 1."""
    assert value.axis in (0, 1) or value.axis is None
    changes: dict[str, Any] = {
        "axis": None if value.axis is None else 1 - value.axis,
        "block_axis": 1 - value.block_axis,
    }
    names = ("channel_scale", "block_scale") if isinstance(value, Lpbq) else ("scale", "zero_point")
    for name in names:
        array = getattr(value, name)
        changes[name] = np.ascontiguousarray(array.reshape(array.shape[:2]).T)
    return replace(value, **changes)


def _derive_product(work: _Work, product: str, total: str, bias: str) -> None:
    """Product = sum - bias, so its range follows from both; the bias gets the range of its values."""
    entry = work.entries.get(total)
    if entry is None or not isinstance(entry.value, Affine) or entry.value.scale.size != 1:
        return
    values = constant_values(work.graph.stored[bias]).astype(np.float64)
    low = float(entry.value.minimum.min()) - float(values.max())
    high = float(entry.value.maximum.max()) - float(values.min())
    if not math.isfinite(low) or not math.isfinite(high):  # a bias that is no number: nothing follows from it
        return
    bits = entry.value.bits
    work.entries[product] = Encoding(name=product, value=_grid(low, high, bits), is_param=False)
    work.entries[bias] = Encoding(name=bias, value=value_grid(values, bits), is_param=False)


def value_grid(values: Any, bits: int) -> Affine:
    """The unsigned per-tensor grid of stored values, with 0 on it."""
    finite = values[np.isfinite(values)]  # what stands for infinity, and NaN, has no step of its own
    return _grid(float(finite.min(initial=0.0)), float(finite.max(initial=0.0)), bits)


def _grid(low: float, high: float, bits: int) -> Affine:
    low, high = min(low, 0.0), max(high, 0.0)
    scale = (high - low) / (2**bits - 1) or 1.0
    return Affine(bits=bits, signed=False, scale=np.asarray(scale), zero_point=np.asarray(float(round(-low / scale))))
