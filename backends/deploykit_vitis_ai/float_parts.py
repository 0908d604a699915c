"""Parts of a float model that may stay in float without being named by the user: its post-processing, smallest first.

What is left out in the end, and whether anything is, is decided on measured outputs elsewhere.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from deploykit.backend.backend import Situation
from deploykit.encodings.post_processing import PostProcessing, find_post_processing
from deploykit.model.facts import GraphFacts
from deploykit.model.weights import load_small_weights

__all__ = ["FloatPart", "float_parts"]


@dataclass(frozen=True, slots=True, kw_only=True)
class FloatPart:
    """Nodes by name, in graph order, what they are in words, and the analysis they come from."""

    names: tuple[str, ...]
    words: str
    found: PostProcessing


def float_parts(situation: Situation) -> tuple[FloatPart, ...]:
    """The post-processing that integers hurt, then the same with the last layers before it.

    Empty where there is none, and where a node of it has no name: Quark knows nodes by name only.
    """
    from deploykit.model.graph import GraphCopy
    from deploykit.model.ranges import graph_bounds

    facts = situation.facts
    ranges = graph_bounds(GraphCopy(load_small_weights(situation.model), copy=False))
    found = find_post_processing(facts, ranges)
    return () if found is None else tuple(_parts(facts, found))


def _parts(facts: GraphFacts, found: PostProcessing) -> Iterator[FloatPart]:
    for nodes, words in (
        (found.nodes, str(found)),
        (found.nodes | found.heads, f"{found}, and the last layers before"),
    ):
        names = tuple(facts.nodes[index].name for index in sorted(nodes))
        if all(names):
            yield FloatPart(names=names, words=words, found=found)
