"""Does each graph of a context binary keep below what its chip's compiler allows for one graph, and by how much.

It adds up what the binary itself states; where the binary or the tables state nothing, nothing is judged.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from deploykit_qualcomm.archs import capability

__all__ = ["judged"]

_SERIALIZED = ("constants", "op_data", "shared_weights")
"""What the limit counts: buffers for activations, inputs and outputs are made when the binary is loaded."""


def judged(graph: Mapping[str, Any], arch: str, limit_mb: int | None) -> dict[str, Any]:
    """The graph with ``fits``: bytes that count, the limit, and the parts that a split would need.

    ``limit_mb`` is the limit that the binary itself records, in MiB; where it records none, the tables speak for the
    architecture. ``fits`` is None for binaries before blob version 3.3, which state the spill buffer alone;
    ``limit_bytes``, ``ok`` and ``parts`` are None where no limit is known.
    """
    memory = graph["memory"]
    if any(use not in memory for use in _SERIALIZED):
        return {**graph, "fits": None}
    counted = sum(memory[use] for use in _SERIALIZED)
    limit, source = _limit(arch, limit_mb)
    return {
        **graph,
        "fits": {
            "counted_bytes": counted,
            "limit_bytes": limit,
            "ok": None if limit is None else counted <= limit,
            "parts": None if limit is None else max(1, -(-counted // limit)),
            "source": source,
        },
    }


def _limit(arch: str, limit_mb: int | None) -> tuple[int | None, list[str]]:
    if limit_mb is not None:
        return limit_mb << 20, ["the binary's own record (memory_alloc_limit)"]
    fact = capability("graph_limit_kb", arch=arch)
    if fact is None or not isinstance(fact.value, int):
        return None, []
    return fact.value << 10, list(fact.source)
