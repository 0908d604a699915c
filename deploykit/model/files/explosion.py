"""Recognises nodes for which shape inference could use more memory than any machine has, before it is run.

A few dozen nodes can make a shape of a billion dimensions: Gather adds ranks, Concat of a shape with itself doubles
it, and a Reshape has as many dimensions as its second input has values. Bounds are kept from above, values never read.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

from onnx import numpy_helper

from deploykit.model.files.tensors import dtype_name, element_count, is_external
from deploykit.model.nodes import bodies

if TYPE_CHECKING:
    from onnx import GraphProto, NodeProto, TensorProto, ValueInfoProto

__all__ = ["MOST_DIMS", "explosive_nodes"]

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
            return _constant(node)
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
            return _volume(inputs[0])
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


def _volume(shape: _Bound) -> float:
    """The elements of a tensor whose shape has these bounds."""
    if math.inf in (shape.elements, shape.value) or shape.elements > MOST_DIMS:
        return math.inf
    return math.prod([float(shape.value)] * int(shape.elements))


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


def _constant(node: NodeProto) -> _Bound:
    for attribute in node.attribute:
        if attribute.HasField("t"):
            return _stored(attribute.t)
    length = _longest_list(node)
    return _Bound(rank=1, elements=max(length, 1), carried=length if length <= MOST_DIMS else 0)


def _larger(one: _Bound, other: _Bound) -> _Bound:
    return _Bound(
        rank=max(one.rank, other.rank),
        elements=max(one.elements, other.elements),
        carried=max(one.carried, other.carried),
        value=one.value,
    )
