"""Sets a batch that is a symbol to one, where nothing else of the inputs is dynamic: devices take fixed sizes.

Exports leave the first dimension open so that any number of samples may be given at once. No node changes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from deploykit.encodings.place import keep_entries
from deploykit.model.graph import GraphCopy, view_of
from deploykit.rewrites.contract import MatchResult, Refusal, Rewritten, Site, Transform

if TYPE_CHECKING:
    from onnx import ModelProto, TensorShapeProto, ValueInfoProto

    from deploykit.encodings.values import EncodingSet

__all__ = ["transform"]

_LEAST_RANK = 2
"""The one dimension of a vector may as well be a length."""


def match(model: ModelProto) -> MatchResult:
    """The inputs whose first dimension is not a number, when no other dimension of any input is not."""
    graph = view_of(model)
    inputs = [item for item in model.graph.input if item.name in graph.inputs]
    dynamic = [(item, [axis for axis, dim in enumerate(_dims(item)) if not dim.dim_value > 0]) for item in inputs]
    open_ = [(item, axes) for item, axes in dynamic if axes]
    if not open_:
        return MatchResult(reason="no input has a dimension that is not a number")
    for item, axes in open_:
        if axes != [0] or len(_dims(item)) < _LEAST_RANK or _dims(item)[0].HasField("dim_value"):
            reason = f"{item.name} is dynamic in what need not be a batch"
            return MatchResult(refusals=(Refusal(nodes=(), reason=reason),), reason=reason)
    names = tuple(item.name for item, _ in open_)
    return MatchResult(sites=(Site(nodes=(), tensors=names, why="only their first dimension is open"),))


def _dims(item: ValueInfoProto) -> Sequence[TensorShapeProto.Dimension]:
    return list(item.type.tensor_type.shape.dim) if item.type.HasField("tensor_type") else ()


def apply(model: ModelProto, encodings: EncodingSet | None, matched: MatchResult) -> Rewritten:
    """One sample in every input and output that shares the symbol; shapes in between are inferred anew."""
    graph = GraphCopy(model)
    names = {name for site in matched.sites for name in site.tensors}
    inputs = [item for item in graph.model.graph.input if item.name in names]
    symbols = {_dims(item)[0].dim_param for item in inputs} - {""}
    for item in inputs:
        _set_one(item, [0])
    for item in graph.model.graph.output:
        _set_one(item, [axis for axis, dim in enumerate(_dims(item)) if dim.dim_param in symbols])
    infos = [item for item in graph.model.graph.value_info if not any(dim.dim_param for dim in _dims(item))]
    del graph.model.graph.value_info[:]
    graph.model.graph.value_info.extend(infos)
    note = f"the batch of {', '.join(sorted(names))} is one sample"
    return Rewritten(model=graph.model, encodings=keep_entries(encodings, graph), notes=(note,))


def _set_one(item: ValueInfoProto, axes: Iterable[int]) -> None:
    for axis in axes:
        item.type.tensor_type.shape.dim[axis].dim_value = 1


transform = Transform(
    name="batch-of-one",
    summary="Sets a batch that is a symbol to one.",
    match=match,
    apply=apply,
)
