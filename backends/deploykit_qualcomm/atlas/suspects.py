"""Which nodes of a model in memory a row of the atlas is about; it measures nothing."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

from deploykit.model.collect import facts_of, read_of
from deploykit_qualcomm.atlas.traits import SmallGraph
from deploykit_qualcomm.rules.atlas import predicted

if TYPE_CHECKING:
    from onnx import ModelProto

__all__ = ["suspects_in"]


def suspects_in(
    model: ModelProto, release: str, *, verdicts: Collection[str], only: Collection[str] | None = None
) -> frozenset[str]:
    """Labels of the nodes that such a verdict is predicted for; ``only`` are those that are looked at, None is all.

    The model is read once while it stays the same: a plan asks about a few nodes of it, an audit about all.
    """
    graph = SmallGraph(model=read_of(model), facts=facts_of(model))
    found = predicted(graph, release, only=only)
    return frozenset(node.label for node, row in found if row.verdict in verdicts)
