"""Computes what depends on stored values only, once, and stores the result: position embeddings, grids, shared scales.

Ops that no device has (Einsum on constants) then never reach a compiler. Copies through Identity are taken out as well.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import onnxruntime as ort
from onnx import numpy_helper

from deploykit.encodings.cut import part_of
from deploykit.encodings.place import keep_entries
from deploykit.errors import InputError
from deploykit.model.graph import GraphCopy, view_of
from deploykit.model.nodes import captured_names, label
from deploykit.model.running import CpuSession
from deploykit.model.weights import is_outside, whole_model
from deploykit.rewrites.contract import MatchResult, Refusal, Rewritten, Site, Transform

if TYPE_CHECKING:
    import numpy.typing as npt
    from onnx import ModelProto

    from deploykit.encodings.values import EncodingSet

__all__ = ["transform"]

_LARGEST = 1 << 24
"""Elements of a result that is worth storing; a larger one would bloat the model."""


def match(model: ModelProto) -> MatchResult:
    """The nodes that compute constants, and the tensors of theirs that others read."""
    graph = view_of(model)
    static = graph.static()
    fixed = [i for i, n in enumerate(graph.nodes) if n.op_type != "Constant" and n.output and _all_in(n.output, static)]
    made = {name for index in fixed for name in graph.nodes[index].output if name}
    inside = {id(graph.nodes[index]) for index in fixed}
    needed = tuple(sorted(n for n in made if any(id(r) not in inside for r in graph.readers(n)) and _plain(graph, n)))
    if not needed:
        return MatchResult(reason="nothing is computed from stored values only")
    outside = [tensor.name for tensor in graph.stored.values() if is_outside(tensor)]
    if outside:
        reason = f"{outside[0]} lies in a file that was not read"
        return MatchResult(refusals=(Refusal(nodes=(), reason=reason),), reason=reason)
    nodes = tuple(label(graph.nodes[index]) for index in fixed)
    site = Site(nodes=nodes, tensors=needed, why="they depend on stored values only", data=(tuple(fixed), needed))
    return MatchResult(sites=(site,))


def _all_in(names: Any, known: frozenset[str]) -> bool:
    return all(name in known for name in names if name)


def _plain(graph: GraphCopy, name: str) -> bool:
    """Neither an output of the model nor read inside a subgraph: both need a maker."""
    return name not in graph.outputs and not any(name in captured_names(node) for node in graph.readers(name))


def apply(model: ModelProto, encodings: EncodingSet | None, matched: MatchResult) -> Rewritten:
    """Run the nodes once and store what others read; entries of stored results stay, those inside fall away."""
    graph = GraphCopy(model)
    positions, needed = matched.sites[0].data
    values = _compute(graph, positions, needed)
    kept = {name: value for name, value in values.items() if value.size <= _LARGEST}
    _store(graph, kept)
    count = len(model.graph.node) - len(graph.nodes)
    return Rewritten(
        model=graph.model,
        encodings=keep_entries(encodings, graph),
        notes=(f"{count} nodes are computed, {len(kept)} tensors stored",),
    )


def _compute(graph: GraphCopy, positions: tuple[int, ...], names: tuple[str, ...]) -> dict[str, npt.NDArray[Any]]:
    part = part_of(graph, positions, names, name="constants")
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    try:
        values = CpuSession(whole_model(part).SerializeToString(), options).run(names, {})
    except Exception as error:
        why = str(error).splitlines()[0]
        raise InputError(f"{graph.model.graph.name}: its constants cannot be computed", why=why) from None
    return dict(zip(names, values, strict=True))


def _store(graph: GraphCopy, values: dict[str, npt.NDArray[Any]]) -> None:
    gone = []
    for node in graph.nodes:
        if node.output and _all_in(node.output, frozenset(values)):
            gone.append(node)
        else:
            for place, name in enumerate(node.output):
                if name in values:
                    node.output[place] = graph.fresh(f"{name}_computed")
    graph.model.graph.initializer.extend(numpy_helper.from_array(value, name) for name, value in values.items())
    graph.replace_nodes(gone, {})


transform = Transform(
    name="fold-constants",
    summary="Computes what depends on stored values only, and stores the result.",
    match=match,
    apply=apply,
    ulps=4.0,
)
