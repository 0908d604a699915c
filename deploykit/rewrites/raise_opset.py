"""Raises a model's operator set to one that compilers still read; what each operator computes stays the same.

By its number alone where no operator in use changed its meaning, else by ONNX's own converter.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from deploykit.encodings.place import keep_entries, share_entry
from deploykit.errors import InputError
from deploykit.model.graph import GraphCopy, copy_of
from deploykit.model.nodes import opset_of, raise_opset
from deploykit.model.shape_inference import infer
from deploykit.rewrites.contract import MatchResult, Refusal, Rewritten, Site, Transform

if TYPE_CHECKING:
    from onnx import ModelProto

    from deploykit.encodings.values import EncodingSet

__all__ = ["transform"]

_LEAST = 7
"""Before it, broadcasting was an attribute and every node was written differently; compilers no longer read that."""

_WANTED = 13
"""The first with grids per channel, and the oldest that tools in use are tested with."""

_DEFAULTS_SINCE_IR = 4


def match(model: ModelProto) -> MatchResult:
    """A model of an operator set below 7 that ONNX's converter can raise."""
    given = opset_of(model)
    if not 0 < given < _LEAST:
        return MatchResult(reason=f"its operator set {given} is read by compilers")
    try:
        raise_opset(copy_of(model), _WANTED)
    except InputError as error:
        return MatchResult(refusals=(Refusal(nodes=(), reason=error.why or error.what),), reason=error.what)
    why = f"its operator set is {given}"
    return MatchResult(sites=(Site(nodes=(), tensors=(), why=why),))


def apply(model: ModelProto, encodings: EncodingSet | None, matched: MatchResult) -> Rewritten:
    """The model of operator set 13; entries of tensors keep their names."""
    del matched
    given, raised = opset_of(model), raise_opset(copy_of(model), _WANTED)
    if model.ir_version < _DEFAULTS_SINCE_IR:
        _drop_stored_inputs(raised)
    graph = GraphCopy(raised, copy=False)
    encodings = _with_slopes_per_channel(graph, encodings)
    note = f"operator set {given} became {_WANTED}"
    return Rewritten(model=graph.model, encodings=keep_entries(encodings, graph), notes=(note,))


def _drop_stored_inputs(model: ModelProto) -> None:
    """Before IR 4 every stored tensor had to be listed as an input; from 4 on that means a default for one."""
    stored = {tensor.name for tensor in model.graph.initializer}
    kept = [item for item in model.graph.input if item.name not in stored]
    del model.graph.input[:]
    model.graph.input.extend(kept)


def _with_slopes_per_channel(graph: GraphCopy, encodings: EncodingSet | None) -> EncodingSet | None:
    """A PRelu's slopes belonged to the channels; now they broadcast from the last axis, which the converter forgets."""
    types = infer(graph.model).types
    for node in [node for node in graph.nodes if node.op_type == "PRelu"]:
        slopes, shape = graph.array(node.input[1]), types.get(node.input[0], ("", None))[1]
        if slopes is not None and shape is not None and slopes.size > 1 and len(shape) > 2:
            name, wanted = node.input[1], (-1, *(1,) * (len(shape) - 2))
            node.input[1] = graph.store(f"{name}_per_channel", slopes.reshape(wanted))
            encodings = share_entry(encodings, name, [node.input[1]])
    graph.prune()
    return encodings


transform = Transform(
    name="raise-opset",
    summary="Raises an operator set below 7 to 13.",
    match=match,
    apply=apply,
    ulps=256.0,  # before is computed by ONNX's reference, which adds in another order
)
