"""What scale-last, split-output and cut-tail share: from a set of last nodes to the head, the host's tail, encodings.

It does not choose the nodes.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING

from deploykit.encodings.cut import cut_model
from deploykit.encodings.place import keep_entries
from deploykit.model.graph import GraphCopy
from deploykit.model.operators import Trait, ops
from deploykit.rewrites.contract import MatchResult, Rewritten

if TYPE_CHECKING:
    from onnx import ModelProto

    from deploykit.encodings.values import EncodingSet

__all__ = ["MOVES", "apply_cut", "closed_downward", "followers", "with_makers"]

MOVES = ops(Trait.REARRANGES) | {"Cast", "Concat"}
"""Ops that only move or copy values, whatever these are."""


def closed_downward(graph: GraphCopy, allowed: Collection[str], start: Iterable[int] = ()) -> frozenset[int]:
    """Positions of nodes of allowed types, or in ``start``, whose every reader is such a node too: the movable end."""
    given = frozenset(start)
    where = {id(node): index for index, node in enumerate(graph.nodes)}
    later: set[int] = set()
    for index in reversed(range(len(graph.nodes))):
        node = graph.nodes[index]
        if node.op_type == "Constant" or (node.op_type not in allowed and index not in given):
            continue
        if all(where[id(reader)] in later for name in node.output for reader in graph.readers(name)):
            later.add(index)
    return frozenset(later)


def followers(graph: GraphCopy, chosen: Iterable[int], within: Iterable[int]) -> set[int]:
    """Positions of the chosen nodes, and of those within others that they lead to."""
    below = set(chosen)
    reached = {name for index in below for name in graph.nodes[index].output}
    for index in sorted(within):
        if reached & set(graph.nodes[index].input):
            below.add(index)
            reached.update(graph.nodes[index].output)
    return below


def with_makers(graph: GraphCopy, later: Collection[int], light: set[str]) -> frozenset[int]:
    """``later`` plus the makers of ``light`` tensors that only it reads: they would otherwise compute for nobody."""
    where = {id(node): index for index, node in enumerate(graph.nodes)}
    grown = set(later)
    for index in reversed(range(len(graph.nodes))):
        node = graph.nodes[index]
        readers = [where[id(reader)] for name in node.output for reader in graph.readers(name)]
        is_output = any(name in graph.outputs for name in node.output)
        if readers and not is_output and all(r in grown for r in readers) and light & set(node.output):
            grown.add(index)
    return frozenset(grown)


def apply_cut(model: ModelProto, encodings: EncodingSet | None, matched: MatchResult) -> Rewritten:
    """Cut before the nodes whose positions the first site carries; new outputs without an entry need one."""
    later: frozenset[int] = matched.sites[0].data
    head, tail = cut_model(model, later)
    graph = GraphCopy(head, copy=False)
    fresh = [item.name for item in head.graph.output if item.name not in {o.name for o in model.graph.output}]
    entries = keep_entries(encodings, graph)
    speechless = {
        item.name
        for item in head.graph.output
        if item.name in fresh
        and item.type.tensor_type.elem_type in (0, 1)
        and encodings is not None
        and item.name not in encodings
        and item.name not in encodings.floats
    }
    note = f"new outputs: {', '.join(fresh)}; the host computes " + ", ".join(item.name for item in tail.graph.output)
    return Rewritten(model=head, encodings=entries, touched=frozenset(speechless), notes=(note,), tail=tail)
