"""Which tensors of a graph are settings of the nodes that read them; which positions those are says ``ops``.

It looks at positions only, never at values.
"""

from __future__ import annotations

from deploykit.model.facts import GraphFacts, NodeFact
from deploykit.model.ops import settings

__all__ = ["is_setting", "setting_of"]

_MOST_INPUTS = 5
"""No operator with settings reads more; looking through longer lists for every tensor in them would not be linear."""


def is_setting(node: NodeFact, name: str) -> bool:
    """True where ``node`` reads ``name`` as a setting only."""
    read_so = settings(node)
    if not read_so or len(node.inputs) > _MOST_INPUTS:
        return False
    positions = {index for index, used in enumerate(node.inputs) if used == name}
    return bool(positions) and positions <= read_so


def setting_of(facts: GraphFacts, name: str) -> NodeFact | None:
    """The first reader of a tensor that every reader takes as a setting, else None."""
    readers = facts.consumers_of(name)
    return readers[0] if readers and all(is_setting(node, name) for node in readers) else None
