"""Infers the type and shape of every tensor with onnx, on a copy without weights, and never fails because of it.

It opens no external data and looks into no function of the model. Memory is bounded, and what would end the process
inside onnx is hidden from it first: Slices behind a tensor that may have a negative size.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from hashlib import sha256

from onnx import (
    GraphProto,
    ModelProto,
    NodeProto,
    TensorProto,
    TensorShapeProto,
    TypeProto,
    helper,
    shape_inference,
)

from deploykit.findings.records import OpenShape, Record
from deploykit.model.nodes import attribute, captured_names
from deploykit.model.operators import CONTRIBUTED, is_standard
from deploykit.model.values import dtype_name, element_count, is_external, is_heavy, nested_graphs
from deploykit.system.limits import limited_memory

__all__ = ["Inferred", "contradiction", "infer"]


# Stored tensors of at most so many elements keep their values: shapes may depend on integers, and on factors of Resize.
_KEPT_INTEGERS, _KEPT_OTHERS = 1024, 64

# Contributed operators that onnx does not know, with the standard operator that gives the same shape ("" for the one of
# the same name). 16-bit Q/DQ are among them before opset 21; without them every shape behind them is unknown.
_SHAPED_LIKE = {"QuantizeLinear": "", "DequantizeLinear": "", "Gelu": "Identity", "QuickGelu": "Identity"}

# A domain that shape inference does not know: it skips its nodes.
_OPAQUE = "deploykit.opaque"


class Inferred(Record):
    """Element type and shape of tensors by name; ``problem`` is "" unless inference was impossible.

    ``negative`` names a tensor that would have a negative size, in a graph with a Slice, where onnx and ONNX Runtime
    end the process; "" for none.
    """

    types: Mapping[str, tuple[str, OpenShape]]
    problem: str
    negative: str


_SEEN: dict[bytes, Inferred] = {}
# Bytes that inference may take: at least, and for each byte of the model without weights. Real models take three per
# byte.
_LEAST_MEMORY, _MEMORY_PER_BYTE = 512 << 20, 64
# Digests of graphs of which the answer is kept: matchers, rules and proofs ask about a handful again and again.
_MOST_SEEN = 16


def infer(proto: ModelProto) -> Inferred:
    """The declared types and shapes, and what onnx infers from them.

    The model is not changed, no external data is opened.
    """
    whole = key = b""
    known: Inferred | None = None
    try:
        whole = b"" if is_heavy(proto) else sha256(proto.SerializeToString()).digest()
        known = _SEEN.get(whole)
        if known is None:
            lean = _without_weights(proto)
            key = sha256(lean.SerializeToString(deterministic=True)).digest()
            known = _SEEN.get(key)
            if known is None:
                lean.opset_import.add(domain=_OPAQUE, version=1)
                with _bounded(lean):
                    graph, negative = _infer_in_stages(lean)
                known = _types(proto, graph, negative=negative)
    except Exception as error:  # the binding raises whatever its C++ side threw; shapes are then simply unknown
        known = _types(proto, proto.graph, _reason(error))
    for name in filter(None, (key, whole)):  # the one asked for last stands last, and the first goes first
        _SEEN.pop(name, None)
        _SEEN[name] = known
    while len(_SEEN) > _MOST_SEEN:
        del _SEEN[next(iter(_SEEN))]
    return known


def contradiction(proto: ModelProto, shapes: Mapping[str, Sequence[int]]) -> str:
    """Why operators do not fit together at these input shapes, by onnx.

    "" where it finds nothing wrong, or finds something without these shapes too. Far cheaper than a run.
    """
    lean = _without_weights(proto)
    for item in lean.graph.input:
        for dim, size in zip(item.type.tensor_type.shape.dim, shapes.get(item.name, ()), strict=False):
            dim.dim_value = size
    del lean.graph.value_info[:]
    for item in lean.graph.output:
        item.type.tensor_type.ClearField("shape")
    found = _inconsistency(lean)
    return found if found and not _inconsistency(_without_weights(proto)) else ""


def _inconsistency(lean: ModelProto) -> str:
    try:
        with _bounded(lean):
            shape_inference.infer_shapes(lean, data_prop=True, strict_mode=True)
    except Exception as error:  # the binding raises whatever its C++ side threw
        return "(op_type:".join(_reason(error).split("(op_type:")[:2])  # the first error; the others follow from it
    return ""


# Enough for 200,000 nodes on tensors of seven dimensions; a megabyte of nodes can ask for a thousand times as many.
_MOST_SIZES = 1_500_000


@contextmanager
def _bounded(lean: ModelProto) -> Iterator[None]:
    """Bounds what onnx takes for a graph; raises ValueError for one whose shapes have too many sizes altogether.

    A few dozen nodes can make a shape of a billion sizes (Gather adds ranks, Concat of a shape with itself doubles it,
    a Reshape has as many sizes as its second input has values). onnx reports a single large allocation that is refused;
    but where many small ones use up the memory, its library ends the process.
    """
    total = 0
    for graph in (lean.graph, *nested_graphs(lean.graph.node)):
        ranks = {item.name: sum(1 for _ in _dims(item.type)) for item in graph.input}
        ranks.update((tensor.name, len(tensor.dims)) for tensor in graph.initializer)
        lengths = {tensor.name: tensor.dims[0] for tensor in graph.initializer if len(tensor.dims) == 1}
        for node in graph.node:
            given = [ranks.get(name, 0) for name in node.input] or [0]
            listed = max((len(found.ints) for found in node.attribute), default=0)
            stated = lengths.get(node.input[1], 1) if len(node.input) > 1 else listed
            rank = max(given)
            if node.op_type in ("Gather", "GatherND"):
                rank = sum(given)
            elif node.op_type in ("Unsqueeze", "Reshape", "Expand"):
                rank = given[0] + stated if node.op_type == "Unsqueeze" else max(stated, rank)
            ranks.update((name, rank) for name in node.output)
            total += rank * len(node.output)
            if total > _MOST_SIZES:
                raise ValueError(f"its tensors have more than {_MOST_SIZES:,} dimensions altogether")
    with limited_memory(_LEAST_MEMORY + _MEMORY_PER_BYTE * lean.ByteSize()):
        yield


def _reason(error: Exception) -> str:
    if isinstance(error, MemoryError):
        return "its shapes would take more memory than those of any real model"
    return " ".join(str(error).split())[:300] or type(error).__name__


def _types(proto: ModelProto, graph: GraphProto, problem: str = "", negative: str = "") -> Inferred:
    """Types and shapes in a graph, without the symbols that inference invented: those that the model does not have."""
    declared, found = ((*one.value_info, *one.input, *one.output) for one in (proto.graph, graph))
    said = (dim.dim_param for item in declared for dim in _dims(item.type))
    symbols = {symbol for symbol in said if symbol and isinstance(symbol, str)}
    types = {item.name: _type_of(item.type, symbols) for item in found}
    return Inferred(types=types, problem=problem, negative=negative)


def _dims(proto: TypeProto) -> Iterator[TensorShapeProto.Dimension]:
    """The dimensions of a tensor's type; sequences, maps and optionals have none."""
    return iter(proto.tensor_type.shape.dim if proto.HasField("tensor_type") else ())


def _type_of(proto: TypeProto, symbols: set[str]) -> tuple[str, OpenShape]:
    """(dtype, shape) of a declared type; negative sizes and symbols that are not in ``symbols`` become None."""
    if not proto.HasField("tensor_type"):
        return "", None
    dtype = dtype_name(proto.tensor_type.elem_type)
    if not proto.tensor_type.HasField("shape"):
        return dtype, None
    dims = list[int | str | None]()
    for dim in proto.tensor_type.shape.dim:
        if dim.HasField("dim_value"):
            dims.append(dim.dim_value if dim.dim_value >= 0 else None)
        else:
            dims.append(dim.dim_param if dim.dim_param in symbols else None)
    return dtype, tuple(dims)


def _without_weights(proto: ModelProto) -> ModelProto:
    """A copy whose stored tensors keep their types and dimensions, and values only where a shape may depend on them."""
    lean = ModelProto(ir_version=proto.ir_version)
    lean.opset_import.extend(proto.opset_import)
    lean.graph.name = proto.graph.name or "graph"
    for kind in ("input", "output", "value_info"):
        copies = getattr(lean.graph, kind)
        copies.extend(getattr(proto.graph, kind))
        for item in copies:
            for dim in _dims(item.type):
                if dim.dim_value < 0:  # exporters that write such dimensions mean unknown ones
                    dim.Clear()
    for tensor in proto.graph.initializer:
        _copy_tensor(tensor, lean.graph.initializer.add())
    for node in proto.graph.node:
        copy = lean.graph.node.add()
        if node.op_type != "Constant":
            copy.CopyFrom(node)
            if node.domain == CONTRIBUTED and node.op_type in _SHAPED_LIKE:
                copy.domain, copy.op_type = "", _SHAPED_LIKE[node.op_type] or node.op_type
            if node.op_type == "RegexFullMatch":  # onnx ends the process where its input has no type
                copy.domain = _OPAQUE
            continue
        copy.op_type, copy.domain, copy.name = node.op_type, node.domain, node.name
        copy.output.extend(node.output)
        for found in node.attribute:
            twin = copy.attribute.add()
            if found.HasField("t"):
                twin.name, twin.type = found.name, found.type
                _copy_tensor(found.t, twin.t)
            else:
                twin.CopyFrom(found)
    return lean


def _copy_tensor(tensor: TensorProto, copy: TensorProto) -> None:
    count = element_count(tensor, tensor.name)
    if not is_external(tensor) and count <= (_KEPT_INTEGERS if "int" in dtype_name(tensor.data_type) else _KEPT_OTHERS):
        copy.CopyFrom(tensor)
        return
    copy.name, copy.data_type = tensor.name, tensor.data_type
    copy.dims.extend(tensor.dims)


# onnx ends the process (an assertion in its C++ code) at a Slice of a tensor with a negative size, and a graph that
# nobody ran may have one: a Conv whose window is larger than its input, a Pad that cuts off more than there is. So a
# Slice is shown to onnx only once no tensor before it can have a negative size. Real graphs take two rounds.

# Slices that wait for more rounds stay hidden, and their outputs unknown. A network of 12 convolutions that pad by the
# values at the ends needs 13.
_STAGES = 32

_MAY_SHRINK = {"CenterCropPad", "Col2Im", "Conv", "ConvTranspose", "DeformConv", "Expand", "MaxUnpool", "Pad", "Resize"}
_MAY_SHRINK |= {"STFT", "Upsample", "AveragePool", "LpPool", "MaxPool", "ConvInteger", "QLinearConv", "Scan", "Loop"}
_MAY_SHRINK |= {"If", "SequenceMap"}
"""Operators for which inference may report a negative size."""

_WINDOWS = {"Conv", "AveragePool", "LpPool", "MaxPool"}


def _infer_in_stages(lean: ModelProto) -> tuple[GraphProto, str]:
    """The completed graph, and the tensor with a negative size because of which Slices stay hidden, "" for none."""
    for node in lean.graph.node:
        if node.op_type == "STFT" and attribute(node, "onesided") is None:
            node.attribute.append(helper.make_attribute("onesided", 1))  # the default, which onnx 1.23 takes for 0
    # A Slice, or a node in whose bodies one is.
    waiting = [
        (node, node.domain)
        for node in lean.graph.node
        if any(
            one.op_type == "Slice" and is_standard(one)
            for one in (node, *(inner for body in nested_graphs([node]) for inner in body.node))
        )
    ]
    for node, _ in waiting:
        node.domain = _OPAQUE
    if lean.graph.value_info and "existing shape differ" in _inconsistency(lean):
        # Shapes that an exporter left behind contradict the operators: what runs follows the operators.
        del lean.graph.value_info[:]
    for _ in range(_STAGES):
        found = shape_inference.infer_shapes(lean, data_prop=True).graph
        if not waiting:
            return found, ""
        made = (*found.value_info, *found.output)
        below = next((item.name for item in made if any(dim.dim_value < 0 for dim in _dims(item.type))), "")
        if below:
            return found, below
        # Tensors behind a hidden node and, after it, one that may shrink: their shapes may still change.
        touched, late = set[str](), set[str]()
        for node in lean.graph.node:
            read = {*node.input, *captured_names(node)}
            if node.domain == _OPAQUE or read & touched:
                touched.update(node.output)
                shrinks = node.op_type in _MAY_SHRINK and not (node.op_type in _WINDOWS and _keeps_one(node))
                if read & late or (read & touched and shrinks):
                    late.update(node.output)

        still = []
        for node, domain in waiting:
            if late & {*node.input, *captured_names(node)}:
                still.append((node, domain))
            else:
                node.domain = domain
        waiting = still
    return shape_inference.infer_shapes(lean, data_prop=True).graph, ""


def _keeps_one(node: NodeProto) -> bool:
    """True for a window that is no larger than its padding and one step: its output never has a negative size."""
    kernel = attribute(node, "kernel_shape") or []
    rank = len(kernel)
    if attribute(node, "auto_pad", "NOTSET") not in ("NOTSET", "VALID") and kernel:
        return True
    pads = attribute(node, "pads") or [0] * 2 * rank
    strides, dilations = (attribute(node, name) or [1] * rank for name in ("strides", "dilations"))
    if not kernel or not len(pads) == 2 * len(strides) == 2 * len(dilations) == 2 * rank:
        return False
    axes = zip(kernel, strides, dilations, pads[:rank], pads[rank:], strict=True)
    return all(
        (size - 1) * dilation + 1 - before - after <= step and min((size - 1) * dilation + 1, step, before, after) >= 0
        for size, step, dilation, before, after in axes
    )
