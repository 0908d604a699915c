"""Does first what converters do before they look at a graph: folds what is settled, and takes out what does nothing.

Shapes that are static, masks and grids made of them, copies, casts to the same type. Kept tensors keep their names.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

from deploykit.encodings.place import keep_entries
from deploykit.model.graph import GraphCopy, view_of
from deploykit.model.nodes import attribute, captured_names, label
from deploykit.model.shape_inference import Shape, infer
from deploykit.model.values import dtype_name
from deploykit.rewrites.contract import MatchResult, Rewritten, Site, Transform
from deploykit.rewrites.folding import Types, fold, foldable_nodes

if TYPE_CHECKING:
    from onnx import ModelProto, NodeProto

    from deploykit.encodings.values import EncodingSet

__all__ = ["transform"]

_MOVING = frozenset({"Concat", "Expand", "Flatten", "Gather", "Identity", "Pad", "Reshape", "Slice", "Split"})
_MOVING |= {"Squeeze", "Tile", "Transpose", "Unsqueeze"}


def match(model: ModelProto) -> MatchResult:
    """What stored values and static shapes settle, and the nodes that hand on what they get."""
    graph = view_of(model)
    settled = foldable_nodes(graph)
    idle = _idle_nodes(graph, infer(model).types, ())
    sites = [
        Site(nodes=tuple(label(node) for node in nodes), tensors=tuple(node.output[0] for node in nodes), why=why)
        for nodes, why in ((settled, "stored values and static shapes settle them"), (idle, "they change nothing"))
        if nodes
    ]
    return MatchResult(sites=tuple(sites), reason="" if sites else "nothing is settled, and no node is idle")


def apply(model: ModelProto, encodings: EncodingSet | None, matched: MatchResult) -> Rewritten:
    """Fold and take out, again while either finds something; what has an entry that nothing else says stays."""
    del matched
    graph = GraphCopy(model)
    before = len(graph.nodes)
    computed = removed = 0
    while True:
        idle = _idle_nodes(graph, infer(graph.model).types, _named(encodings))
        _bypass(graph, idle)
        folded = fold(graph, _told_by_inputs(graph, encodings))
        computed, removed = computed + folded, removed + len(idle)
        if not folded and not idle:
            break
    note = f"{computed} nodes computed once, {removed} idle ones taken out: {before} nodes became {len(graph.nodes)}"
    return Rewritten(model=graph.model, encodings=keep_entries(encodings, graph), notes=(note,))


def _named(encodings: EncodingSet | None) -> frozenset[str]:
    """Tensors with an entry, or meant to be float: what takes them out must not lose that."""
    return frozenset() if encodings is None else frozenset(encodings.entries) | encodings.float_tensors


def _told_by_inputs(graph: GraphCopy, encodings: EncodingSet | None) -> frozenset[str]:
    """Results without an entry of their own that only rearrange stored values with one: folding would lose the grid.

    What arithmetic makes of a grid lies on it no longer: there is nothing to lose.
    """
    named = _named(encodings)
    return frozenset(
        name
        for node in graph.nodes
        if node.op_type in _MOVING and any(other in named and other in graph.stored for other in node.input)
        for name in node.output
        if name not in named
    )


def _idle_nodes(graph: GraphCopy, types: Types, named: Collection[str]) -> list[NodeProto]:
    """Nodes whose output is their first input; those whose output the model, a subgraph or an entry names stay."""
    bound = {*graph.outputs, *named, *(name for node in graph.nodes for name in captured_names(node))}
    return [
        node
        for node in graph.nodes
        if node.domain in ("", "ai.onnx")
        and len([name for name in node.output if name]) == 1
        and node.output[0] not in bound
        and _is_idle(node, types)
    ]


def _is_idle(node: NodeProto, types: Types) -> bool:
    given, made = types.get(node.input[0]) if node.input else None, types.get(node.output[0])
    if node.op_type == "Identity":
        return True
    if node.op_type == "Cast":
        return given is not None and given[0] == dtype_name(attribute(node, "to", 0)) != ""
    if node.op_type == "Dropout":
        return len(node.input) < 3 or not node.input[2]
    if node.op_type in ("Reshape", "Expand", "Tile", "Flatten", "Squeeze", "Unsqueeze"):
        return given is not None and made is not None and _same_shape(given[1], made[1])
    if node.op_type == "Transpose":
        order = attribute(node, "perm", ())
        return bool(order) and list(order) == sorted(order)
    return False


def _same_shape(one: Shape, other: Shape) -> bool:
    return one is not None and one == other and all(isinstance(dim, int) for dim in one)


def _bypass(graph: GraphCopy, nodes: Sequence[NodeProto]) -> None:
    """Let the readers of each node read what it reads, and drop it."""
    source: dict[str, str] = {}
    for node in nodes:  # in graph order: what it reads may be a copy itself
        source[node.output[0]] = source.get(node.input[0], node.input[0])
    for node in graph.nodes:
        for place, name in enumerate(node.input):
            node.input[place] = source.get(name, name)
    graph.replace_nodes(nodes, {})


transform = Transform(
    name="simplify",
    summary="Folds what stored values and static shapes settle, and takes out what does nothing.",
    match=match,
    apply=apply,
    ulps=4.0,
)
