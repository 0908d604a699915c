"""Infers the type and shape of every tensor with onnx, on a copy without weights, and never fails because of it.

It opens no external data and looks into no function of the model. What onnx could not survive is hidden from it first.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from hashlib import sha256
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from onnx import ModelProto, numpy_helper, shape_inference

from deploykit.model.nodes import attribute, bodies, captured_names
from deploykit.model.values import dtype_name, element_count, is_external

if TYPE_CHECKING:
    from onnx import GraphProto, NodeProto, TensorProto, TensorShapeProto, TypeProto, ValueInfoProto

__all__ = [
    "MOST_DIMS",
    "OPAQUE",
    "Inferred",
    "Shape",
    "explosive_nodes",
    "forget_negative",
    "infer",
    "inferred_graph",
    "inferred_in_stages",
    "type_of",
]

MOST_DIMS = 1024
"""Dimensions of one shape beyond which a node is left out of shape inference."""

_MOST_ELEMENTS = 1 << 62

_SHAPE_OPERAND = {"Reshape": 1, "Expand": 1, "ConstantOfShape": 0, "Col2Im": 1}
_SAME_COUNT = {"Abs", "Cast", "CastLike", "Ceil", "Clip", "CumSum", "Flatten", "Floor", "Identity", "Neg", "Not"}
_SAME_COUNT |= {"Reshape", "Round", "ScatterElements", "ScatterND", "Sign", "Slice", "Split", "Sqrt", "Squeeze"}
_SAME_COUNT |= {"Transpose", "Unsqueeze", "ReduceMax", "ReduceMin", "ReduceProd", "ReduceSum", "Reciprocal"}
_PAIRWISE = {"Add", "And", "Div", "Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual", "Max", "Min", "Mod"}
_PAIRWISE |= {"Mul", "Or", "Pow", "Sub", "Where", "Xor"}


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
    return frozenset(_Bounds().walk(graph))


class _Bounds:
    """The bounds of all tensors met so far; names of subgraphs are added to those around them."""

    def __init__(self) -> None:
        self.known: dict[str, _Bound] = {}

    def walk(self, graph: GraphProto) -> Iterator[int]:
        """The explosive nodes of one graph, in order."""
        declared = {item.name: _declared(item) for item in (*graph.value_info, *graph.output)}
        self.known.update((item.name, _declared(item)) for item in graph.input)
        self.known.update((tensor.name, _stored(tensor)) for tensor in graph.initializer)
        for index, node in enumerate(graph.node):
            bound = self._of(node)
            explosive = bound.rank > MOST_DIMS or bound.carried > MOST_DIMS
            if explosive:
                yield index
            for name in filter(None, node.output):
                self.known[name] = _larger(_NOTHING if explosive else bound, declared.get(name, _NOTHING))

    def _of(self, node: NodeProto) -> _Bound:
        inner = [self._subgraph(graph) for graph in bodies(node)]
        if inner:
            return _Bound(rank=1 + max(inner), elements=math.inf)
        if node.op_type == "Constant":
            for found in node.attribute:
                if found.HasField("t"):
                    return _stored(found.t)
            length = _longest_list(node)
            return _Bound(rank=1, elements=max(length, 1), carried=length if length <= MOST_DIMS else 0)
        inputs = [self.known.get(name, _NOTHING) for name in node.input]
        if node.op_type == "Shape" and inputs:
            rank = inputs[0].rank
            return _Bound(rank=1, elements=rank, carried=rank, value=inputs[0].elements or math.inf)
        return _Bound(
            rank=_rank(node, inputs),
            elements=_count(node, inputs),
            carried=_carried(node, inputs),
            value=_value(node, inputs),
        )

    def _subgraph(self, graph: GraphProto) -> int:
        """The rank that a body's outputs may have."""
        if any(True for _ in self.walk(graph)):
            return MOST_DIMS
        return max((self.known.get(item.name, _NOTHING).rank for item in graph.output), default=0)


def _count(node: NodeProto, inputs: list[_Bound]) -> float:
    counts = [bound.elements for bound in inputs] or [0]
    match node.op_type:
        case "Size":
            return 1
        case "Concat":
            return _capped(sum(counts))
        case "Gather" if len(inputs) == 2 and inputs[0].rank <= 1:
            return counts[1]
        case "ConstantOfShape" if inputs:
            # The elements of a tensor whose shape has these bounds.
            return (
                math.inf
                if math.inf in (inputs[0].elements, inputs[0].value) or inputs[0].elements > MOST_DIMS
                else math.prod([float(inputs[0].value)] * int(inputs[0].elements))
            )
        case op if op in _SAME_COUNT:
            return counts[0]
        case op if op in _PAIRWISE:
            flat = all(bound.rank <= 1 for bound in inputs)
            return max(counts) if flat else _capped(math.prod(max(count, 1) for count in counts))
        case _:
            return math.inf


def _capped(count: float) -> float:
    """Beyond every real size a number of elements is unknown: whole numbers that grow without end take time as well."""
    return count if count < _MOST_ELEMENTS else math.inf


def _value(node: NodeProto, inputs: list[_Bound]) -> float:
    values = [bound.value for bound in inputs] or [math.inf]
    if node.op_type in ("Cast", "Gather", "Identity", "Reshape", "Slice", "Squeeze", "Unsqueeze"):
        return values[0]
    return max(values) if node.op_type == "Concat" else math.inf


def _rank(node: NodeProto, inputs: list[_Bound]) -> int:
    ranks = [bound.rank for bound in inputs] or [0]
    operand = _SHAPE_OPERAND.get(node.op_type)
    if operand is not None and operand < len(inputs):
        count = inputs[operand].elements
        return MOST_DIMS + 1 if count > MOST_DIMS else max(int(count), ranks[0] if node.op_type == "Expand" else 0)
    match node.op_type:
        case "NonZero" | "Range":
            return 2
        case "Gather" | "GatherND":
            return max(sum(ranks) - 1, 0)
        case "Unsqueeze":
            added = inputs[1].elements if len(inputs) > 1 else _longest_list(node)
            return ranks[0] + int(min(max(added, 1), MOST_DIMS + 1))
        case "OneHot" | "ConcatFromSequence" | "SequenceAt":
            return max(ranks) + 1
        case "Einsum":
            return max(len(attribute.s) for attribute in node.attribute) if node.attribute else 0
        case "RandomNormal" | "RandomUniform" | "Reshape":
            return _longest_list(node)
        case _:
            return max(ranks)


def _carried(node: NodeProto, inputs: list[_Bound]) -> int:
    carried = [bound.carried for bound in inputs] or [0]
    match node.op_type:
        case "Size":
            return 1
        case "Concat":
            return sum(carried)
        case op if op in _PAIRWISE or op == "Gather":
            return max(carried)
        case _:
            return carried[0]


def _longest_list(node: NodeProto) -> int:
    return max((len(attribute.ints) for attribute in node.attribute), default=0)


def _declared(item: ValueInfoProto) -> _Bound:
    if not item.type.HasField("tensor_type"):
        return _NOTHING
    dims = item.type.tensor_type.shape.dim
    known = [dim.dim_value for dim in dims if dim.HasField("dim_value")]
    count = _capped(math.prod(known)) if len(known) == len(dims) <= MOST_DIMS else 0
    return _Bound(rank=len(dims), elements=count)


def _stored(tensor: TensorProto) -> _Bound:
    count = element_count(tensor, tensor.name)
    # Longer lists than a shape can be are tables to look things up in; inference never sees their values.
    # Only lists of int32 and int64 are followed as shapes; the integers of a quantized weight are none.
    shape_like = len(tensor.dims) <= 1 and dtype_name(tensor.data_type) in ("int32", "int64")
    carried = count if count <= MOST_DIMS and shape_like else 0
    value = _largest(tensor) if carried else math.inf
    return _Bound(rank=len(tensor.dims), elements=count, carried=carried, value=value)


def _largest(tensor: TensorProto) -> float:
    """The largest value of a short list of integers that lies in the model itself."""
    if is_external(tensor):
        return math.inf
    values = numpy_helper.to_array(tensor)
    return float(values.max()) if values.size and values.dtype.kind in "iu" else math.inf


def _larger(one: _Bound, other: _Bound) -> _Bound:
    return _Bound(
        rank=max(one.rank, other.rank),
        elements=max(one.elements, other.elements),
        carried=max(one.carried, other.carried),
        value=one.value,
    )


OPAQUE = "deploykit.opaque"
"""A domain of which shape inference knows nothing: it looks at no node of it."""

_STAGES = 8
"""Slices that wait longer than that stay hidden: what they give is unknown then."""
_MAY_SHRINK = {"CenterCropPad", "Col2Im", "Conv", "ConvTranspose", "DeformConv", "Expand", "MaxUnpool", "Pad", "Resize"}
_MAY_SHRINK |= {"STFT", "Upsample", "AveragePool", "LpPool", "MaxPool", "ConvInteger", "QLinearConv", "Scan", "Loop"}
_MAY_SHRINK |= {"If", "SequenceMap"}
"""Operators of which inference can say that they give fewer than no elements."""
_WINDOWS = {"Conv", "AveragePool", "LpPool", "MaxPool"}


def forget_negative(items: Iterable[ValueInfoProto]) -> None:
    """Declared dimensions below zero become unknown, which is what exporters that write them mean."""
    for item in items:
        for dim in _negative(item):
            dim.Clear()


def inferred_in_stages(lean: ModelProto, infer: Callable[[ModelProto], ModelProto]) -> tuple[GraphProto, str]:
    """The graph as ``infer`` completes it, and the tensor below zero for which a Slice was not looked at, "" for none.

    ``lean`` is used up.
    """
    waiting = [(node, node.domain) for node in lean.graph.node if _slices(node)]
    if not waiting:
        return infer(lean).graph, ""
    for node, _ in waiting:
        node.domain = OPAQUE
    if all(entry.domain != OPAQUE for entry in lean.opset_import):
        lean.opset_import.add(domain=OPAQUE, version=1)
    for _ in range(_STAGES):
        found = infer(lean).graph
        if not waiting:
            return found, ""
        below = next((item.name for item in (*found.value_info, *found.output) if [*_negative(item)]), "")
        if below:
            return found, below
        late = _behind(lean.graph)
        ready = [index for index, (node, _) in enumerate(waiting) if not late & {*node.input, *captured_names(node)}]
        for index in ready:
            node, domain = waiting[index]
            node.domain = domain
        left = {*range(len(waiting))} - {*ready}
        waiting = [waiting[index] for index in sorted(left)]
    return infer(lean).graph, ""


def _negative(item: ValueInfoProto) -> Iterator[TensorShapeProto.Dimension]:
    if item.type.HasField("tensor_type"):
        yield from (dim for dim in item.type.tensor_type.shape.dim if dim.dim_value < 0)


def _slices(node: NodeProto) -> bool:
    """True for a Slice, and for a node in whose bodies one is and nothing may shrink; any other with one is hidden."""
    if node.op_type == "Slice":
        return node.domain in ("", "ai.onnx")
    return any(_slices(inner) for body in bodies(node) for inner in body.node)


def _behind(graph: GraphProto) -> set[str]:
    """Tensors behind a hidden node and, after it, one that may shrink: their shapes are not settled yet."""
    touched, late = set[str](), set[str]()
    for node in graph.node:
        read = {*node.input, *captured_names(node)}
        if node.domain == OPAQUE or read & touched:
            touched.update(node.output)
            if read & late or (read & touched and _may_shrink(node)):
                late.update(node.output)
    return late


def _may_shrink(node: NodeProto) -> bool:
    if node.op_type not in _MAY_SHRINK:
        return False
    return node.op_type not in _WINDOWS or not _keeps_one(node)


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
    reach = [(size - 1) * step + 1 for size, step in zip(kernel, dilations, strict=True)]
    padded = [pads[axis] + pads[axis + rank] for axis in range(rank)]
    return all(
        size - more <= step and min(size, step, pads[axis], pads[axis + rank]) >= 0
        for axis, (size, more, step) in enumerate(zip(reach, padded, strides, strict=True))
    )


Shape: TypeAlias = tuple[int | str | None, ...] | None

_KEPT_INTEGERS = 1024
_KEPT_OTHERS = 64

_CONTRIBUTED = "com.microsoft"
_SHAPED_LIKE = {"QuantizeLinear": "", "DequantizeLinear": "", "Gelu": "Identity", "QuickGelu": "Identity"}
"""Contributed operators that onnx knows nothing of, with an operator of the standard that gives the same shape ("": the
one of the same name). 16-bit Q/DQ are among them before opset 21; without them every shape behind them is unknown."""


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
_MOST_SEEN = 16
"""Names of graphs of which the answer is kept: matchers, rules and proofs ask about a handful again and again."""
_QUICKLY_NAMED = 8 << 20
"""Bytes of a model up to which its own bytes name it as well: to write them takes less than to make the copy."""


def infer(proto: ModelProto) -> Inferred:
    """What is declared and what onnx infers from it; the model is not changed and no external data is opened."""
    try:
        whole = sha256(proto.SerializeToString()).digest() if proto.ByteSize() <= _QUICKLY_NAMED else b""
        if whole in _SEEN:
            return _keep(whole, _SEEN.pop(whole))
        lean = _without_weights(proto)
        key = sha256(lean.SerializeToString(deterministic=True)).digest()
    except Exception as error:  # as below: a tensor that claims what it cannot hold ends it before onnx is asked
        return _types(proto, proto.graph, _reason(error))
    known = _SEEN.pop(key) if key in _SEEN else _types(proto, *_inferred(proto, lean))
    return _keep(whole, _keep(key, known)) if whole else _keep(key, known)


def _keep(name: bytes, known: Inferred) -> Inferred:
    """The one asked for last stands last, and the first goes first."""
    _SEEN[name] = known
    if len(_SEEN) > _MOST_SEEN:
        del _SEEN[next(iter(_SEEN))]
    return known


def inferred_graph(proto: ModelProto) -> tuple[GraphProto, str]:
    """The graph with what onnx infers in its ``value_info``, without weights; as declared, and why, where it cannot."""
    try:
        graph, problem, _ = _inferred(proto, _without_weights(proto))
        return graph, problem
    except Exception as error:
        return proto.graph, _reason(error)


def _inferred(proto: ModelProto, lean: ModelProto) -> tuple[GraphProto, str, str]:
    try:
        # Give nodes that inference must not look at a domain of which it knows nothing.
        explosive = explosive_nodes(proto.graph)
        for index in explosive:
            lean.graph.node[index].domain = OPAQUE
        if explosive:
            lean.opset_import.add(domain=OPAQUE, version=1)
        graph, negative = inferred_in_stages(lean, partial(shape_inference.infer_shapes, data_prop=True))
        return graph, "", negative
    except Exception as error:  # the binding raises whatever its C++ side threw; shapes are then simply unknown
        return proto.graph, _reason(error), ""


def _reason(error: Exception) -> str:
    return " ".join(str(error).split())[:300] or type(error).__name__


def _types(proto: ModelProto, graph: GraphProto, problem: str, negative: str = "") -> Inferred:
    symbols = _symbols(proto.graph)
    items = (*graph.value_info, *graph.input, *graph.output)
    return Inferred(
        types={item.name: type_of(item.type, symbols) for item in items}, problem=problem, negative=negative
    )


def type_of(proto: TypeProto, symbols: frozenset[str] | None = None) -> tuple[str, Shape]:
    """(dtype, shape) of a declared type; sequences, maps and optionals have neither.

    Symbols outside ``symbols`` were invented by the inference and count as unknown, as negative numbers do.
    """
    if not proto.HasField("tensor_type"):
        return "", None
    tensor = proto.tensor_type
    dtype = dtype_name(tensor.elem_type)
    if not tensor.HasField("shape"):
        return dtype, None
    dims: list[int | str | None] = []
    for dim in tensor.shape.dim:
        if dim.HasField("dim_value"):
            dims.append(dim.dim_value if dim.dim_value >= 0 else None)
        else:
            symbol = dim.dim_param
            dims.append(symbol if symbol and (symbols is None or symbol in symbols) else None)
    return dtype, tuple(dims)


def _symbols(graph: GraphProto) -> frozenset[str]:
    """Symbols that the model itself declares."""
    items: Iterable[ValueInfoProto] = (*graph.value_info, *graph.input, *graph.output)
    return frozenset(
        dim.dim_param
        for item in items
        if item.type.HasField("tensor_type")
        for dim in item.type.tensor_type.shape.dim
        if dim.dim_param and isinstance(dim.dim_param, str)
    )


def _without_weights(proto: ModelProto) -> ModelProto:
    """A copy in which stored tensors have a type and dimensions, and values only where a shape may depend on them."""
    lean = ModelProto(ir_version=proto.ir_version)
    lean.opset_import.extend(proto.opset_import)
    graph = lean.graph
    graph.name = proto.graph.name or "graph"
    for items, copies in (
        (proto.graph.input, graph.input),
        (proto.graph.output, graph.output),
        (proto.graph.value_info, graph.value_info),
    ):
        copies.extend(items)
        forget_negative(copies)
    for tensor in proto.graph.initializer:
        _copy_tensor(tensor, graph.initializer.add())
    for node in proto.graph.node:
        _copy_node(node, graph.node.add())
    return lean


def _copy_tensor(tensor: TensorProto, copy: TensorProto) -> None:
    count = element_count(tensor, tensor.name)
    integer = "int" in dtype_name(tensor.data_type)
    if not is_external(tensor) and count <= (_KEPT_INTEGERS if integer else _KEPT_OTHERS):
        copy.CopyFrom(tensor)
        return
    copy.name, copy.data_type = tensor.name, tensor.data_type
    copy.dims.extend(tensor.dims)


def _copy_node(node: NodeProto, copy: NodeProto) -> None:
    if node.op_type != "Constant":
        copy.CopyFrom(node)
        if node.domain == _CONTRIBUTED and node.op_type in _SHAPED_LIKE:
            copy.domain, copy.op_type = "", _SHAPED_LIKE[node.op_type] or node.op_type
        return
    copy.op_type, copy.domain, copy.name = node.op_type, node.domain, node.name
    copy.output.extend(node.output)
    for found in node.attribute:
        twin = copy.attribute.add()
        if found.HasField("t"):
            twin.name, twin.type = found.name, found.type
            _copy_tensor(found.t, twin.t)
        else:
            twin.CopyFrom(found)
