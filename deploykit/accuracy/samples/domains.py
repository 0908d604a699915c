"""Which values an integer or bool input may hold, as far as the graph says; nothing is run, and unknown stays unknown.

It weighs the claims of an input's readers: limits that a reader enforces (an index, a stored grid) count before what a
comparison suggests.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from deploykit.accuracy.samples.claims import Claim, Rank, ReadConstant, Walk, stored_integers
from deploykit.model.facts import GraphFacts

__all__ = ["Domain", "input_domains"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Domain:
    """The values from ``low`` to ``high``, both included; an end that the graph does not state is None.

    ``why`` says in words what the graph states and ``node`` where. ``is_mask`` is a choice between 0 and 1.
    """

    low: int | None
    high: int | None
    why: str
    node: str = ""
    is_mask: bool = False

    @property
    def known(self) -> bool:
        """True when both ends are stated, so that legal values can be made."""
        return self.low is not None and self.high is not None


def input_domains(facts: GraphFacts, read: ReadConstant) -> dict[str, Domain]:
    """The domain of every integer and bool input. ``read`` is asked for constants beside the paths of these inputs."""
    walk = Walk(facts, read)
    chosen = [name for name in facts.inputs if not facts.tensors[name].is_float]
    return {name: _domain(facts.tensors[name].dtype, walk.claims(name)) for name in chosen}


def _domain(dtype: str, claims: tuple[Claim, ...]) -> Domain:
    if dtype == "bool":
        return Domain(low=0, high=1, why="it is of type bool", is_mask=True)
    rank = max((claim.rank for claim in claims), default=Rank.UNKNOWN)
    heard = [claim for claim in claims if claim.rank == rank]
    if rank is Rank.LOOKS_LIKE and any(claim.rank is Rank.UNKNOWN for claim in claims):
        rank, heard = Rank.UNKNOWN, [claim for claim in claims if claim.rank is Rank.UNKNOWN]
    if not heard:
        return Domain(low=0, high=1, why="nothing in the graph looks at its values")
    if rank is Rank.UNKNOWN:
        return Domain(low=None, high=None, why=heard[0].why, node=heard[0].node)
    low, high = _within(dtype, max(claim.low for claim in heard), min(claim.high for claim in heard))
    tightest = min(heard, key=lambda claim: (claim.high - claim.low, claim.node))
    if low is not None and high is not None and low > high:
        why = f"what its readers state excludes each other ({'; '.join(claim.why for claim in heard)})"
        return Domain(low=None, high=None, why=why, node=tightest.node)
    is_mask = rank in (Rank.MASK, Rank.LOOKS_LIKE) and (low, high) == (0, 1)
    return Domain(low=low, high=high, why=tightest.why, node=tightest.node, is_mask=is_mask)


def _within(dtype: str, low: float, high: float) -> tuple[int | None, int | None]:
    """Whole numbers inside the claimed ones, within what the type holds; None for an open end."""
    least, most = stored_integers(dtype) or (-math.inf, math.inf)
    start = max(low, least) if math.isfinite(low) else low
    end = min(high, most) if math.isfinite(high) else high
    return (math.ceil(start) if math.isfinite(start) else None, math.floor(end) if math.isfinite(end) else None)
