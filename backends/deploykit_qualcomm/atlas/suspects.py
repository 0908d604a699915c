"""Which nodes of a model in memory a row of the atlas is about; it measures nothing."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING

from deploykit.graph.collect import collect_facts
from deploykit.graph.graph_copy import view_of
from deploykit.graph.loading import wrap_proto
from deploykit_qualcomm.atlas.traits import SmallGraph
from deploykit_qualcomm.rules.atlas import predicted

if TYPE_CHECKING:
    from onnx import ModelProto

__all__ = ["suspects_in"]


def suspects_in(model: ModelProto, release: str, *, verdicts: Collection[str]) -> frozenset[str]:
    """Labels of the nodes that such a verdict is predicted for; looked for once while the model stays the same."""

    def look() -> tuple[tuple[str, str], ...]:
        wrapped = wrap_proto(model, path=Path("model.onnx"))
        graph = SmallGraph(model=wrapped, facts=collect_facts(wrapped))
        return tuple((node.label, row.verdict) for node, row in predicted(graph, release))

    found = view_of(model).once(("suspects", release), look)
    return frozenset(name for name, verdict in found if verdict in verdicts)
