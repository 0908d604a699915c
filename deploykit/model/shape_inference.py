"""Infers the type and shape of every tensor with onnx, on a copy without weights, and never fails because of it.

It opens no external data and looks into no function of the model. What onnx could not survive is hidden from it first:
nodes whose shapes would fill any memory, and Slices behind a tensor that would have fewer than no elements.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from onnx import ModelProto, numpy_helper, shape_inference

from deploykit.model.nodes import attribute, bodies, captured_names
from deploykit.model.operators import is_standard
from deploykit.model.values import dtype_name, element_count, is_external
from deploykit.system.limits import limited_memory

if TYPE_CHECKING:
    from onnx import GraphProto, NodeProto, TensorProto, TensorShapeProto, TypeProto, ValueInfoProto

__all__ = ["Inferred", "Shape", "contradicts", "explosive_nodes", "infer", "inferred_graph"]

Shape: TypeAlias = tuple[int | str | None, ...] | None

_KEPT_INTEGERS = 1024
_KEPT_OTHERS = 64
"""Elements up to which stored values go along: shapes may depend on integers, and on factors of Resize."""

_CONTRIBUTED = "com.microsoft"
_SHAPED_LIKE = {"QuantizeLinear": "", "DequantizeLinear": "", "Gelu": "Identity", "QuickGelu": "Identity"}
"""Contributed operators that onnx knows nothing of, with an operator of the standard that gives the same shape ("": the
one of the same name). 16-bit Q/DQ are among them before opset 21; without them every shape behind them is unknown."""

_OPAQUE = "deploykit.opaque"
"""A domain of which shape inference knows nothing: it looks at no node of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Inferred:
    """(dtype, shape) of tensors by name; ``problem`` is empty unless inference was impossible.

    ``negative`` names a tensor that would have fewer than no elements, in a graph with a Slice, where onnx and ONNX
    Runtime end the process.
    """

    types: Mapping[str, tuple[str, Shape]] = field(default_factory=dict)
    problem: str = ""
    negative: str = ""


_SEEN: dict[bytes, Inferred] = {}
_LEAST_MEMORY, _MEMORY_PER_BYTE = 512 << 20, 64
"""Bytes that inference may take, and for each byte of the model without weights; real models take three."""
_MOST_SEEN = 16
"""Names of graphs of which the answer is kept: matchers, rules and proofs ask about a handful again and again."""
_QUICKLY_NAMED = 8 << 20
"""Bytes of a model up to which its own bytes name it as well: to write them takes less than to make the copy."""


def infer(proto: ModelProto) -> Inferred:
    """What is declared and what onnx infers from it; the model is not changed and no external data is opened."""
    whole = key = b""
    known: Inferred | None = None
    try:
        whole = sha256(proto.SerializeToString()).digest() if proto.ByteSize() <= _QUICKLY_NAMED else b""
        known = _SEEN.get(whole)
        if known is None:
            lean = _without_weights(proto)
            key = sha256(lean.SerializeToString(deterministic=True)).digest()
            known = _SEEN.get(key) or _types(proto, *_inferred(proto, lean))
    except Exception as error:  # a tensor that claims what it cannot hold ends it before onnx is asked
        return _types(proto, proto.graph, _reason(error))
    for name in filter(None, (key, whole)):  # the one asked for last stands last, and the first goes first
        _SEEN.pop(name, None)
        _SEEN[name] = known
    while len(_SEEN) > _MOST_SEEN:
        del _SEEN[next(iter(_SEEN))]
    return known


def inferred_graph(proto: ModelProto) -> GraphProto:
    """The graph with what onnx infers in its ``value_info``, without weights; as declared where it cannot."""
    try:
        return _inferred(proto, _without_weights(proto))[0]
    except Exception:  # as above
        return proto.graph


def contradicts(proto: ModelProto, shapes: Mapping[str, Sequence[int]]) -> bool:
    """Whether onnx finds that operators do not fit together at these input shapes, and does not find it without them.

    Far cheaper than a run, and says nothing where it finds nothing.
    """
    lean = _without_weights(proto)
    if explosive_nodes(lean.graph) or _is_inconsistent(lean):
        return False
    for item in lean.graph.input:
        for dim, size in zip(item.type.tensor_type.shape.dim, shapes.get(item.name, ()), strict=False):
            dim.dim_value = size
    del lean.graph.value_info[:]
    for item in lean.graph.output:
        item.type.tensor_type.ClearField("shape")
    return _is_inconsistent(lean)


def _is_inconsistent(lean: ModelProto) -> bool:
    try:
        shape_inference.infer_shapes(lean, data_prop=True, strict_mode=True)
    except Exception:  # the binding raises whatever its C++ side threw
        return True
    return False


def _inferred(proto: ModelProto, lean: ModelProto) -> tuple[GraphProto, str, str]:
    """The completed graph, why it could not be completed, and the tensor below zero; ``lean`` is used up."""
    try:
        lean.opset_import.add(domain=_OPAQUE, version=1)
        for index in explosive_nodes(proto.graph):
            lean.graph.node[index].domain = _OPAQUE
        # What onnx computes of shapes may grow with each node of a chain, whatever it is looked through for before.
        with limited_memory(_LEAST_MEMORY + _MEMORY_PER_BYTE * lean.ByteSize()):
            graph, negative = _infer_in_stages(lean)
        return graph, "", negative
    except Exception as error:  # the binding raises whatever its C++ side threw; shapes are then simply unknown
        return proto.graph, _reason(error), ""


def _reason(error: Exception) -> str:
    return " ".join(str(error).split())[:300] or type(error).__name__


def _types(proto: ModelProto, graph: GraphProto, problem: str, negative: str = "") -> Inferred:
    """What the graph says, without the symbols that the inference invented: those that the model does not have."""
    said = (dim.dim_param for item in _items(proto.graph) for dim in _dims(item.type))
    symbols = {symbol for symbol in said if symbol and isinstance(symbol, str)}
    types = {item.name: _type_of(item.type, symbols) for item in _items(graph)}
    return Inferred(types=types, problem=problem, negative=negative)


def _items(graph: GraphProto) -> tuple[ValueInfoProto, ...]:
    return (*graph.value_info, *graph.input, *graph.output)


def _dims(proto: TypeProto) -> Iterator[TensorShapeProto.Dimension]:
    """The dimensions of a tensor's type; sequences, maps and optionals have none."""
    return iter(proto.tensor_type.shape.dim if proto.HasField("tensor_type") else ())


def _type_of(proto: TypeProto, symbols: set[str]) -> tuple[str, Shape]:
    """(dtype, shape) of a declared type; negative dimensions and other symbols count as unknown."""
    if not proto.HasField("tensor_type"):
        return "", None
    dtype = dtype_name(proto.tensor_type.elem_type)
    if not proto.tensor_type.HasField("shape"):
        return dtype, None
    dims: list[int | str | None] = []
    for dim in proto.tensor_type.shape.dim:
        if dim.HasField("dim_value"):
            dims.append(dim.dim_value if dim.dim_value >= 0 else None)
        else:
            dims.append(dim.dim_param if dim.dim_param in symbols else None)
    return dtype, tuple(dims)


def _without_weights(proto: ModelProto) -> ModelProto:
    """A copy in which stored tensors have a type and dimensions, and values only where a shape may depend on them."""
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
            if node.domain == _CONTRIBUTED and node.op_type in _SHAPED_LIKE:
                copy.domain, copy.op_type = "", _SHAPED_LIKE[node.op_type] or node.op_type
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
    integer = "int" in dtype_name(tensor.data_type)
    if not is_external(tensor) and count <= (_KEPT_INTEGERS if integer else _KEPT_OTHERS):
        copy.CopyFrom(tensor)
        return
    copy.name, copy.data_type = tensor.name, tensor.data_type
    copy.dims.extend(tensor.dims)


# A Slice of a tensor with a negative dimension is where onnx ends the process (an assertion in its C++ code), and a
# graph that nobody ran may say anything: a Conv whose window is larger than its input, a Pad that cuts off more than
# there is. So Slices are shown only once nothing before them can have such a dimension. Real graphs take two rounds.

_STAGES = 32
"""Slices that wait longer than that stay hidden: what they give is unknown then. A network of 12 convolutions that pad
by the values at the ends needs 13."""

_MAY_SHRINK = {"CenterCropPad", "Col2Im", "Conv", "ConvTranspose", "DeformConv", "Expand", "MaxUnpool", "Pad", "Resize"}
_MAY_SHRINK |= {"STFT", "Upsample", "AveragePool", "LpPool", "MaxPool", "ConvInteger", "QLinearConv", "Scan", "Loop"}
_MAY_SHRINK |= {"If", "SequenceMap"}
"""Operators of which inference can say that they give fewer than no elements."""

_WINDOWS = {"Conv", "AveragePool", "LpPool", "MaxPool"}


def _infer_in_stages(lean: ModelProto) -> tuple[GraphProto, str]:
    """The completed graph, and the tensor below zero for which a Slice was not looked at, "" for none."""
    waiting = [(node, node.domain) for node in lean.graph.node if _slices(node)]
    for node, _ in waiting:
        node.domain = _OPAQUE
    for _ in range(_STAGES):
        found = shape_inference.infer_shapes(lean, data_prop=True).graph
        if not waiting:
            return found, ""
        made = (*found.value_info, *found.output)
        below = next((item.name for item in made if any(dim.dim_value < 0 for dim in _dims(item.type))), "")
        if below:
            return found, below
        late = _behind(lean.graph)
        still = []
        for node, domain in waiting:
            if late & {*node.input, *captured_names(node)}:
                still.append((node, domain))
            else:
                node.domain = domain
        waiting = still
    return shape_inference.infer_shapes(lean, data_prop=True).graph, ""


def _slices(node: NodeProto) -> bool:
    """True for a Slice, and for a node in whose bodies one is."""
    if node.op_type == "Slice":
        return is_standard(node)
    return any(_slices(inner) for body in bodies(node) for inner in body.node)


def _behind(graph: GraphProto) -> set[str]:
    """Tensors behind a hidden node and, after it, one that may shrink: their shapes may still change."""
    touched, late = set[str](), set[str]()
    for node in graph.node:
        read = {*node.input, *captured_names(node)}
        if node.domain == _OPAQUE or read & touched:
            touched.update(node.output)
            shrinks = node.op_type in _MAY_SHRINK and not (node.op_type in _WINDOWS and _keeps_one(node))
            if read & late or (read & touched and shrinks):
                late.update(node.output)
    return late


def _keeps_one(node: NodeProto) -> bool:
    """True for a window that is no larger than its padding and one step: it gives no fewer than no places."""
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


# A few dozen nodes can make a shape of a billion dimensions: Gather adds ranks, Concat of a shape with itself doubles
# it, and a Reshape has as many dimensions as its second input has values. Such nodes are found by bounds from above.

_MOST_DIMS = 1024
"""Dimensions of one shape beyond which a node is left out of shape inference."""

_MOST_ELEMENTS = 1 << 62
"""Beyond every real size a number of elements is unknown: whole numbers that grow without end take time as well."""

_SHAPE_OPERAND = {"Reshape": 1, "Expand": 1, "ConstantOfShape": 0, "Col2Im": 1}
_SAME_COUNT = {"Abs", "Cast", "CastLike", "Ceil", "Clip", "CumSum", "Flatten", "Floor", "Identity", "Neg", "Not"}
_SAME_COUNT |= {"Reshape", "Round", "ScatterElements", "ScatterND", "Sign", "Slice", "Split", "Sqrt", "Squeeze"}
_SAME_COUNT |= {"Transpose", "Unsqueeze", "ReduceMax", "ReduceMin", "ReduceProd", "ReduceSum", "Reciprocal"}
_PAIRWISE = {"Add", "And", "Div", "Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual", "Max", "Min", "Mod"}
_PAIRWISE |= {"Mul", "Or", "Pow", "Sub", "Where", "Xor"}
_SAME_VALUES = {"Cast", "Gather", "Identity", "Reshape", "Slice", "Squeeze", "Unsqueeze"}


class _Bound(NamedTuple):
    """Upper bounds: the rank, the number of elements, how many values a shape computation carries, and their size.

    Zero elements mean a number that inference cannot know either.
    """

    rank: int = 0
    elements: float = 0
    carried: int = 0
    value: float = math.inf


_NOTHING = _Bound()


def explosive_nodes(graph: GraphProto) -> frozenset[int]:
    """The indices of nodes that shape inference must not look at; their outputs stay unknown. Linear in the graph."""
    return frozenset(_explosive(graph, {}))


def _explosive(graph: GraphProto, known: dict[str, _Bound]) -> Iterator[int]:
    """The explosive nodes of one graph, in order; ``known`` takes the bounds of its tensors."""
    declared: dict[str, _Bound] = {}
    for item in _items(graph):
        dims = list(_dims(item.type))
        sizes = [dim.dim_value for dim in dims if dim.HasField("dim_value")]
        whole = item.type.HasField("tensor_type") and len(sizes) == len(dims) <= _MOST_DIMS
        declared[item.name] = _Bound(rank=len(dims), elements=_capped(math.prod(sizes)) if whole else 0)
    known.update((item.name, declared[item.name]) for item in graph.input)
    known.update((tensor.name, _bound_of_stored(tensor)) for tensor in graph.initializer)
    for index, node in enumerate(graph.node):
        bound = _bound_of(node, known)
        if max(bound.rank, bound.carried) > _MOST_DIMS:
            yield index
            bound = _NOTHING
        for name in filter(None, node.output):
            said = declared.get(name, _NOTHING)
            rank, elements = max(bound.rank, said.rank), max(bound.elements, said.elements)
            known[name] = _Bound(rank, elements, bound.carried, bound.value)


def _capped(count: float) -> float:
    return count if count < _MOST_ELEMENTS else math.inf


def _bound_of_stored(tensor: TensorProto) -> _Bound:
    count = element_count(tensor, tensor.name)
    # Longer lists than a shape can be are tables to look things up in; inference never sees their values.
    # Only lists of int32 and int64 are followed as shapes; the integers of a quantized weight are none.
    shape_like = len(tensor.dims) <= 1 and dtype_name(tensor.data_type) in ("int32", "int64")
    carried = count if count <= _MOST_DIMS and shape_like else 0
    value = math.inf
    if carried and not is_external(tensor):
        value = float(numpy_helper.to_array(tensor).max())
    return _Bound(rank=len(tensor.dims), elements=count, carried=carried, value=value)


def _bound_of(node: NodeProto, known: dict[str, _Bound]) -> _Bound:
    """The bounds of what a node makes."""
    op = node.op_type
    inner = [_rank_of_body(graph, known) for graph in bodies(node)]
    if inner:
        return _Bound(rank=1 + max(inner), elements=math.inf)
    longest = max((len(found.ints) for found in node.attribute), default=0)
    if op == "Constant":
        stored = next((found.t for found in node.attribute if found.HasField("t")), None)
        listed = _Bound(rank=1, elements=max(longest, 1), carried=longest if longest <= _MOST_DIMS else 0)
        return listed if stored is None else _bound_of_stored(stored)
    inputs = [known.get(name, _NOTHING) for name in node.input] or [_NOTHING]
    first = inputs[0]
    if op == "Shape":
        return _Bound(rank=1, elements=first.rank, carried=first.rank, value=first.elements or math.inf)
    if op == "Size":
        return _Bound(rank=first.rank, elements=1, carried=1)
    carried = first.carried
    if op == "Concat":
        carried = sum(bound.carried for bound in inputs)
    elif op in _PAIRWISE or op == "Gather":
        carried = max(bound.carried for bound in inputs)
    value = max(bound.value for bound in inputs) if op == "Concat" else first.value if op in _SAME_VALUES else math.inf
    return _Bound(_rank_of(node, inputs, longest), _count_of(node, inputs), carried, value)


def _rank_of_body(graph: GraphProto, known: dict[str, _Bound]) -> int:
    """The rank that a body's outputs may have; its names are added to those around it."""
    if any(True for _ in _explosive(graph, known)):
        return _MOST_DIMS
    return max((known.get(item.name, _NOTHING).rank for item in graph.output), default=0)


def _rank_of(node: NodeProto, inputs: list[_Bound], longest: int) -> int:
    ranks = [bound.rank for bound in inputs]
    operand = _SHAPE_OPERAND.get(node.op_type)
    if operand is not None and operand < len(inputs):
        count = inputs[operand].elements
        return _MOST_DIMS + 1 if count > _MOST_DIMS else max(int(count), ranks[0] if node.op_type == "Expand" else 0)
    match node.op_type:
        case "NonZero" | "Range":
            return 2
        case "Gather" | "GatherND":
            return max(sum(ranks) - 1, 0)
        case "Unsqueeze":
            added = inputs[1].elements if len(inputs) > 1 else longest
            return ranks[0] + int(min(max(added, 1), _MOST_DIMS + 1))
        case "OneHot" | "ConcatFromSequence" | "SequenceAt":
            return max(ranks) + 1
        case "Einsum":
            return max((len(found.s) for found in node.attribute), default=0)
        case "RandomNormal" | "RandomUniform" | "Reshape":
            return longest
        case _:
            return max(ranks)


def _count_of(node: NodeProto, inputs: list[_Bound]) -> float:
    counts = [bound.elements for bound in inputs]
    match node.op_type:
        case "Concat":
            return _capped(sum(counts))
        case "Gather" if len(inputs) == 2 and inputs[0].rank <= 1:
            return counts[1]
        case "ConstantOfShape":
            shape = inputs[0]
            if math.inf in (shape.elements, shape.value) or shape.elements > _MOST_DIMS:
                return math.inf
            return math.prod([float(shape.value)] * int(shape.elements))
        case op if op in _SAME_COUNT:
            return counts[0]
        case op if op in _PAIRWISE:
            flat = all(bound.rank <= 1 for bound in inputs)
            return max(counts) if flat else _capped(math.prod(max(count, 1) for count in counts))
        case _:
            return math.inf
