"""Puts a way in the place of one operator, of a kernel by itself or of a whole model. Nothing is run on a device."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from deploykit.errors import UsageError
from deploykit.model.graph import GraphCopy, copy_of
from deploykit.model.nodes import label
from deploykit.rewrites.contract import NoMatchError
from deploykit_ort_qnn.audit_units import Kernel
from deploykit_ort_qnn.excerpts import PAIR
from deploykit_ort_qnn.repairs.place import Place
from deploykit_ort_qnn.repairs.ways import WAYS

if TYPE_CHECKING:
    from onnx import ModelProto

    from deploykit_ort_qnn.bench.inputs import Numbers

__all__ = ["Trial", "repaired_model", "repairs_of", "trial_of"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """A kernel with one of its operators done in another way; its names begin with ``prefix``, as do its samples'."""

    kernel: Kernel
    way: str
    prefix: str
    model: ModelProto
    samples: Sequence[Mapping[str, Numbers]]

    def of_kernel(self, name: str) -> str:
        """What a tensor is called in the kernel."""
        return self.kernel.prefix + name.removeprefix(self.prefix)


def trial_of(kernel: Kernel, at: int, way: str, number: int) -> Trial:
    """The kernel with its operator at that position done in that way; ``number`` is of its prefix.

    Raises NoMatchError where it is none for that operator.
    """
    graph = GraphCopy(kernel.model)
    operators = [node for node in graph.nodes if node.op_type not in (*PAIR, "Constant")]
    if [node.op_type for node in operators[at : at + 1]] != [kernel.operators[at]]:
        raise NoMatchError("the operator does not stand where it was")
    WAYS[way].build(Place(graph, operators[at]))
    prefix = f"u{number}/"
    return Trial(
        kernel=kernel,
        way=way,
        prefix=prefix,
        model=_renamed(graph.model, kernel.prefix, prefix),
        samples=[{_named(name, kernel.prefix, prefix): value for name, value in one.items()} for one in kernel.samples],
    )


def repairs_of(options: Mapping[str, Any]) -> dict[str, str]:
    """The way of each node that one is asked for of, ``NODE=WAY``; UsageError for a way that is none."""
    found = {}
    for word in options.get("repair") or ():
        node, _, way = word.rpartition("=")
        if not node or way not in WAYS:
            raise UsageError(
                f"--repair {word}: not a node and a way", next=f"NODE=WAY, a way is one of {', '.join(WAYS)}"
            )
        found[node] = way
    return found


def repaired_model(model: ModelProto, repairs: Mapping[str, str]) -> ModelProto:
    """A copy in which nodes are done in other ways, by label; UsageError where that cannot be."""
    graph = GraphCopy(model)
    for name, way in repairs.items():
        node = next((node for node in graph.nodes if label(node) == name), None)
        if node is None:
            raise UsageError(f"--repair {name}={way}: there is no such node", next="name one of the prepared model")
        try:
            WAYS[way].build(Place(graph, node))
        except NoMatchError as error:
            raise UsageError(f"--repair {name}={way}: {error.reason}", next="another way") from None
    return graph.model


def _renamed(model: ModelProto, old: str, new: str) -> ModelProto:
    copy = copy_of(model)
    graph = copy.graph
    for value in (*graph.input, *graph.output, *graph.initializer):
        value.name = _named(value.name, old, new)
    for node in graph.node:
        node.name = _named(node.name, old, new)
        node.input[:] = [_named(name, old, new) for name in node.input]
        node.output[:] = [_named(name, old, new) for name in node.output]
    del graph.value_info[:]
    return copy


def _named(name: str, old: str, new: str) -> str:
    return name and new + name.removeprefix(old)
