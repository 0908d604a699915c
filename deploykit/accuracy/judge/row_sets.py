"""Which axes of a graph's tensors hold rows that were chosen, and so stand in an order that means nothing.

TopK and NonMaxSuppression choose; every op behind them keeps, merges, gathers or drops such axes. It follows them
through the graph by shapes alone and looks at no values: ``deploykit.accuracy.judge.alignment`` does.
"""

from __future__ import annotations

from collections.abc import Sequence

from deploykit.accuracy.judge.row_rules import CHOOSERS, RULES, elementwise
from deploykit.accuracy.judge.rows import Axes, index_tensors
from deploykit.model.facts import GraphFacts, NodeFact

__all__ = ["RowSets"]


class RowSets:
    """The chosen rows of every tensor of a graph; one pass over its nodes."""

    def __init__(self, facts: GraphFacts) -> None:
        self._facts = facts
        self._axes: dict[str, Axes] = {}
        self._behind: set[str] = set()
        if not any(node.op_type in CHOOSERS for node in facts.nodes):
            return
        for node in facts.nodes:
            if node.op_type in CHOOSERS or any(name in self._behind for name in node.inputs):
                self._behind.update(node.outputs)
            self._follow(node)

    def axes(self, tensor: str) -> Axes:
        """Per axis of a tensor its rows, None for axes in their natural order; empty when there are none at all."""
        return self._axes.get(tensor, ())

    def is_behind(self, tensor: str) -> bool:
        """True when a choice lies on some way to the tensor: without ``axes`` its order may still mean nothing."""
        return tensor in self._behind

    def choices_of(self, tensor: str) -> tuple[str, ...]:
        """The tensors that must be seen to put the rows of ``tensor`` in order."""
        return index_tensors(self.axes(tensor))

    def shape(self, tensor: str) -> tuple[int | str | None, ...] | None:
        """The shape as known."""
        fact = self._facts.tensors.get(tensor)
        return None if fact is None else fact.shape

    def full(self, tensor: str) -> Axes | None:
        """``axes`` with a None for every axis of a tensor without chosen rows; None when the rank is unknown."""
        found = self._axes.get(tensor)
        if found is not None:
            return found
        shape = self.shape(tensor)
        return None if shape is None else (None,) * len(shape)

    def _follow(self, node: NodeFact) -> None:
        chooses = node.op_type in CHOOSERS
        if not chooses and not any(name in self._axes for name in node.inputs):
            return
        made = RULES.get(node.op_type, elementwise)(self, node)
        if made is None:
            return
        several: Sequence[Axes] = made if made and isinstance(made[0], tuple) else [made] * len(node.outputs)  # type: ignore[list-item]
        for name, axes in zip(node.outputs, several, strict=False):
            shape = self.shape(name)
            if name and any(axes) and (shape is None or len(shape) == len(axes)):
                self._axes[name] = tuple(axes)
