"""Shows Slices to shape inference only once nothing before them can have a negative dimension.

onnx ends the whole process there (an assertion in its C++ code), and a graph that nobody ran may say anything: a Conv
whose window is larger than its input, a Pad that cuts off more than there is. Real graphs take one round more.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING

from deploykit.model.nodes import attribute, bodies, captured_names

if TYPE_CHECKING:
    from onnx import GraphProto, ModelProto, NodeProto, TensorShapeProto, ValueInfoProto

__all__ = ["OPAQUE", "forget_negative", "inferred_in_stages"]

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
