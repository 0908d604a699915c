"""Checks settings over which onnx or ONNX Runtime never end, or end the process: equations of Einsum, axes.

It looks at what they are alone; whether they fit the operands is for shape inference to say.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

from deploykit.errors import InputError
from deploykit.model.files.tensors import nested_graphs
from deploykit.model.nodes import label
from deploykit.model.ops import is_standard

if TYPE_CHECKING:
    from onnx import ModelProto, NodeProto

__all__ = ["check_hazards"]

_TERM = r"[A-Za-z ]*(?:\.\.\.[A-Za-z ]*)?"
_EQUATION = re.compile(rf"{_TERM}(?:,{_TERM})*(?:->{_TERM})?".encode())
"""Einsum of ONNX operator set 12: letters, at most one ellipsis in a term, and spaces that say nothing."""


_FARTHEST = 1 << 16
"""No tensor has so many dimensions; onnx keeps some axes in 32 bits."""


def check_hazards(path: Path, proto: ModelProto) -> None:
    """InputError, naming the node, where an Einsum has an equation that is none, or an axis is none."""
    for node in _nodes(proto):
        for attribute in node.attribute:
            if attribute.name == "axis" and abs(attribute.i) > _FARTHEST:
                raise InputError(
                    f"{path}: node {label(node)!r} has the axis {attribute.i}",
                    why="no tensor has so many dimensions",
                    next="export the model again",
                )
        if node.op_type == "Einsum" and is_standard(node):
            for attribute in node.attribute:
                if attribute.name == "equation" and not _EQUATION.fullmatch(attribute.s):
                    raise InputError(
                        f"{path}: node {label(node)!r} has the equation {attribute.s[:80].decode(errors='replace')!r}",
                        why="an equation of Einsum holds letters, commas, '...' once in a term, and '->' once",
                        next="export the model again",
                    )


def _nodes(proto: ModelProto) -> Iterator[NodeProto]:
    for nodes in (proto.graph.node, *(function.node for function in proto.functions)):
        yield from chain(nodes, *(graph.node for graph in nested_graphs(nodes)))
