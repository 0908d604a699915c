"""Builds ways best first and stops when one is proven good; what was not built is listed with the reason.

The order is structure; which way wins among those built is decided by ``ranking``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from deploykit.accuracy.judge.judging import Verdict
from deploykit.backend.backend import MixedSupport
from deploykit.flow.ranking import Choice, Way, choose, choose_unjudged, is_proven
from deploykit.flow.ways import (
    WIDER_END,
    Ground,
    Prepared,
    as_is,
    direct,
    fallback,
    in_segments,
    rewritten,
    simulated,
    wider_end,
)

__all__ = ["Explored", "explore"]

_FURTHER = (("rewrite-split", ("split-output", "scale-last"), 2), ("rewrite-cut", ("cut-tail",), 3))
"""Integer ways beyond the first rewrites: their id, what they do in addition, and how much they intrude."""

_Build = Callable[[], "Prepared | None"]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Explored:
    """The ways that were built, which one won, and the encodings' own simulation."""

    built: tuple[Prepared, ...]
    winner: Prepared | None
    choice: Choice
    reference: Verdict | None


def explore(ground: Ground, support: MixedSupport, *, mixed: str, tell: Callable[[str], None]) -> Explored:
    """Build and judge ways until one is proven good. ``mixed`` is the request's word, ``support`` the backend's.

    Where nothing is meant as float there is nothing to mix or to cut, whatever was asked for.
    """
    if not ground.prediction.intended and mixed in ("fallback", "segments"):
        mixed = "auto"
    reference: Verdict | None = None
    if ground.judge is not None:
        tell("simulating the encodings as they are")
        reference = simulated(ground)
    reference_db = float("nan") if reference is None else reference.overall_db
    is_right = reference is not None and reference.right is True
    built: list[Prepared] = []
    skipped: dict[str, str] = {}
    proven = False
    builders = _builders(ground, reference, built)
    for identity in _order(ground, support):
        why_not = _not_wanted(_KINDS.get(identity, "integer"), support, mixed)
        if not why_not and proven:
            proof = "is proven good" if ground.judge is not None else "does what the file means"
            why_not = f"not built: a better one {proof}"
        if why_not:
            skipped[identity] = why_not
            continue
        tell(f"trying {identity}")
        made = builders[identity]()
        if made is not None:
            built.append(replace(made, way=_limited(made.way, support)))
            proven = (
                proven
                or is_proven(built[-1].way, reference_db, reference_right=is_right)
                or _is_meant(built[-1].way, ground)
            )
    choice = _choose([item.way for item in built], ground, support, reference_db, mixed)
    listed = tuple(Way(id=identity, kind="", unavailable=why) for identity, why in skipped.items())
    verdicts = {**skipped, **choice.verdicts}
    won = next((item for item in built if choice.winner is not None and item.way is choice.winner), None)
    choice = Choice(winner=choice.winner, verdicts=verdicts, ways=(*choice.ways, *listed))
    return Explored(built=tuple(built), winner=won, choice=choice, reference=reference)


def _is_meant(way: Way, ground: Ground) -> bool:
    """True for an integer way where float16 was left open by habit alone and no number can speak for another."""
    by_habit = bool(ground.prediction.intended) and not ground.prediction.meant
    return ground.judge is None and by_habit and way.kind == "integer" and not way.unavailable


_KINDS = {"fallback": "fallback", "segments": "segments", "direct": "direct"}


def _order(ground: Ground, support: MixedSupport) -> tuple[str, ...]:
    """Best first: what changes nothing, what is exact, what the SDK does safely, what intrudes, what mixes.

    Without numbers what intrudes more has nothing that speaks for it, and what was meant as float stays float.
    """
    judged, further = ground.judge is not None, (WIDER_END, *(identity for identity, _, _ in _FURTHER))
    if not ground.prediction.intended:
        sites = ground.has_sites
        first = (*(() if ground.asked and sites else ("as-is",)), *(("rewrite",) if sites else ()))
        return (*first, *further) if judged else first
    last = ("direct",) if "direct" in support.kinds or "direct" in support.without else ()
    if not judged:
        meant = ("fallback", "segments", "rewrite") if ground.prediction.meant else ("rewrite", "fallback", "segments")
        return (*meant, *last)
    if support.safe:
        return ("rewrite", "fallback", *further, "segments", *last)
    return ("rewrite", *further, "segments", "fallback", *last)


def _builders(ground: Ground, reference: Verdict | None, built: list[Prepared]) -> dict[str, _Build]:
    ways: dict[str, _Build] = {
        "as-is": lambda: as_is(ground, reference),
        "rewrite": lambda: rewritten(ground, "rewrite", ground.first, 1, None),
        WIDER_END: lambda: _wider_end(ground, built),
        "segments": lambda: in_segments(ground),
        "fallback": lambda: fallback(ground),
        "direct": lambda: direct(ground, next((item for item in built if item.way.id == "fallback"), None)),
    }
    return ways | {identity: _further(ground, identity, names, how, built) for identity, names, how in _FURTHER}


def _wider_end(ground: Ground, built: list[Prepared]) -> Prepared | None:
    """On top of the last integer way."""
    base = next((item for item in reversed(built) if item.way.kind == "integer"), None)
    return None if base is None else wider_end(ground, base)


def _further(ground: Ground, identity: str, names: tuple[str, ...], intrusion: int, built: list[Prepared]) -> _Build:
    """A further integer way, on top of the first one where that changed something."""

    def build() -> Prepared | None:
        base = next((item.rewriting for item in built if item.way.id == "rewrite"), None)
        every = names if base is not None else (*ground.first, *names)
        made = rewritten(ground, identity, every, intrusion, base)
        return made if made is not None and set(names) & set(made.way.rewrites) else None

    return build


def _not_wanted(kind: str, support: MixedSupport, mixed: str) -> str:
    if mixed in ("fallback", "segments") and kind != mixed:
        return f"not asked for (--mixed {mixed})"
    if mixed == "refuse" and kind != "integer":
        return "not asked for (--mixed refuse)"
    return "" if kind in support.kinds else support.without.get(kind, "not offered here")


def _limited(way: Way, support: MixedSupport) -> Way:
    """The way with how sure the backend is of its kind."""
    return replace(way, confidence=support.confidence.get(way.kind, way.confidence))


def _choose(ways: list[Way], ground: Ground, support: MixedSupport, reference_db: float, mixed: str) -> Choice:
    if ground.judge is None:
        means_floats = bool(ground.prediction.meant)
        return choose_unjudged(ways, sdk_mixes_safely=support.safe, mixed=mixed, means_floats=means_floats)
    return choose(ways, reference_db=reference_db, sdk_mixes_safely=support.safe, mixed=mixed)
