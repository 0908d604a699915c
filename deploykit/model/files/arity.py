"""Checks that every standard operator has the inputs and outputs it needs; later stages index them without asking.

It looks at counts and names, not at types, shapes or attributes: whether those fit is for shape inference to say.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from deploykit.errors import InputError
from deploykit.model.files.tensors import nested_graphs
from deploykit.model.nodes import label
from deploykit.model.ops import is_standard
from deploykit.model.opset import opset_of

if TYPE_CHECKING:
    from onnx import ModelProto, NodeProto

__all__ = ["check_arity"]


@dataclass(frozen=True, slots=True)
class _Signature:
    """How many inputs and outputs an operator takes, and how many of the first inputs must be given."""

    inputs: range
    outputs: range
    required: int


def check_arity(path: Path, proto: ModelProto) -> None:
    """InputError, naming the node, where a standard operator has too few or too many inputs or outputs."""
    opset = opset_of(proto)
    for node in _nodes(proto):
        signature = _signature(node.op_type, opset) if is_standard(node) else None
        if signature is not None:
            _check(path, node, signature)


def _nodes(proto: ModelProto) -> Iterator[NodeProto]:
    yield from proto.graph.node
    for graph in nested_graphs(proto.graph.node):
        yield from graph.node


@cache
def _signature(op_type: str, opset: int) -> _Signature | None:
    """What the operator's schema says; None for operators that the installed onnx does not know."""
    from onnx import defs

    if opset <= 0:  # nobody knows which version is meant: ask for the least that any of them has
        least = min((known.min_input for known in _versions().get(op_type, ())), default=0)
        return _Signature(range(least, 1 << 31), range(1, 1 << 31), least)
    try:
        schema = defs.get_schema(op_type, opset)
    except (defs.SchemaError, TypeError, OverflowError):
        return None
    single = defs.OpSchema.FormalParameterOption.Single
    required = 0
    for parameter in schema.inputs:
        if parameter.option != single:
            break
        required += 1
    return _Signature(
        range(schema.min_input, schema.max_input + 1), range(schema.min_output, schema.max_output + 1), required
    )


@cache
def _versions() -> Mapping[str, Sequence[Any]]:
    """Every version of each standard operator that the installed onnx knows."""
    from onnx import defs

    found: dict[str, list[Any]] = {}
    for schema in defs.get_all_schemas_with_history():
        if not schema.domain:
            found.setdefault(schema.name, []).append(schema)
    return found


def _check(path: Path, node: NodeProto, signature: _Signature) -> None:
    for what, names, allowed in (("inputs", node.input, signature.inputs), ("outputs", node.output, signature.outputs)):
        if len(names) not in allowed:
            least, most = allowed.start, allowed.stop - 1
            wanted = f"{least}" if least == most else f"at least {least}" if most > 1 << 20 else f"{least} to {most}"
            raise InputError(
                f"{path}: node {label(node)!r} has {len(names)} {what}",
                why=f"{node.op_type} takes {wanted}",
                next="export the model again; onnx.checker.check_model says what else is wrong",
            )
    if not all(node.input[: signature.required]):
        position = list(node.input).index("")
        raise InputError(
            f"{path}: node {label(node)!r} leaves out its input {position}",
            why=f"{node.op_type} cannot do without it",
            next="export the model again; onnx.checker.check_model says what else is wrong",
        )
