"""Which missing entries fusion explains: the tensor vanishes into an operator that a tool chain computes as one.

It combines what may fuse (``graph.fusion``) with what a set of encodings says, and guesses no intent.
"""

from __future__ import annotations

from collections.abc import Mapping

from deploykit.encodings.values import EncodingSet
from deploykit.model.facts import GraphFacts
from deploykit.model.fusion import Fusion, fusions

__all__ = ["absorbing_fusions"]


def absorbing_fusions(facts: GraphFacts, encodings: EncodingSet) -> Mapping[str, Fusion]:
    """Tensors without an entry that vanish into one operator, each with the fusion that it vanishes into.

    Stored tensors that only serve such operators (an epsilon, an exponent, the bias of a norm) are among them. A tensor
    that is stated to be float is not: the file speaks about it. The order is the same in every run.
    """
    stated = encodings.floats
    found: dict[str, Fusion] = {}
    settings: dict[str, set[int]] = {}
    for fusion in fusions(facts):
        if not _explains(fusion, encodings):
            continue
        found.update((name, fusion) for name in sorted(fusion.inside) if name not in encodings and name not in stated)
        for name in sorted(fusion.settings - stated):
            readers = settings.setdefault(name, set())
            readers.update(i for i in facts.tensors[name].consumers if _takes_part(facts, fusion, i))
            if name not in encodings and readers.issuperset(facts.tensors[name].consumers):
                found[name] = fusion
    return found


def _explains(fusion: Fusion, encodings: EncodingSet) -> bool:
    if fusion.certain:
        return True
    return fusion.result in encodings and not any(name in encodings for name in fusion.inside)


def _takes_part(facts: GraphFacts, fusion: Fusion, index: int) -> bool:
    """True for a node that makes something inside a fusion, or its result."""
    return any(name == fusion.result or name in fusion.inside for name in facts.nodes[index].outputs)
