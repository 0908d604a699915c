"""Makes the constants of matched sites smaller, and says which ranges are proven for what they reach.

What a constant becomes is the calling rewrite's business.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from deploykit.encodings.place import encoded_bounds, keep_entries
from deploykit.model.graph import GraphCopy
from deploykit.model.ranges import Interval, graph_bounds
from deploykit.rewrites.contract import MatchResult, Rewritten, Site

if TYPE_CHECKING:
    from onnx import ModelProto

    from deploykit.encodings.values import EncodingSet

__all__ = ["shrink_constants"]

Shrink = Callable[[GraphCopy, Site, Mapping[str, Interval]], str]
"""Changes one site's constant, given the bounds of all tensors before, and says what it did."""


def shrink_constants(
    model: ModelProto, encodings: EncodingSet | None, matched: MatchResult, shrink: Shrink
) -> Rewritten:
    """Shrink every site; bounds of what the constants reach are proven from the encodings where these exist."""
    graph = GraphCopy(model)
    passed = {name for site in matched.sites for name in site.tensors}
    known = {name: value for name, value in encoded_bounds(encodings).items() if name not in passed}
    before = graph_bounds(graph, known)
    notes = [shrink(graph, site, before) for site in matched.sites]
    after = graph_bounds(graph, known)
    return Rewritten(
        model=graph.model,
        encodings=keep_entries(encodings, graph),
        touched=frozenset(passed),
        ranges={name: after[name] for name in passed if all(math.isfinite(end) for end in after[name])},
        notes=tuple(notes),
    )
