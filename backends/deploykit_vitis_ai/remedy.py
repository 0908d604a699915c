"""Leaves a part of the model in float where integers destroyed the outputs: tried with the real quantizer, or undone.

It packages nothing: what it finds is another request for the same model, for the core to start again with. Parts that
the user named are the user's business, and nothing is tried then.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from deploykit.backend.backend import Instead, Progress, Request
from deploykit.model.facts import GraphFacts
from deploykit_vitis_ai.draft import Draft
from deploykit_vitis_ai.float_parts import FloatPart, float_parts
from deploykit_vitis_ai.measuring import Measured
from deploykit_vitis_ai.prepare import Prepared
from deploykit_vitis_ai.quality import Quality
from deploykit_vitis_ai.rules.execution import RULES as OUTCOME_RULES
from deploykit_vitis_ai.rules.execution import Choice, Outcome, Trial
from deploykit_vitis_ai.trials import tried

if TYPE_CHECKING:
    from deploykit.system.environments import Environment

__all__ = ["Remedy", "find_remedy", "is_enough", "needs_none"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Remedy:
    """What was tried, and the request that is better than the one that was made; None where none is.

    ``quality`` is that of what is proposed; ``choice`` is there where formats were tried as well.
    """

    trials: tuple[Trial, ...] = ()
    instead: Instead | None = None
    quality: Quality | None = None
    choice: Choice | None = None


def is_enough(draft: Draft, quality: Quality) -> bool:
    """True for outputs that reach the goal; without a format to be chosen, for outputs that are right."""
    return (quality.verdict.right if draft.goal is None else quality.is_met(draft.goal)) is True


def needs_none(draft: Draft, quality: Quality | None) -> bool:
    """True where nothing is to be tried: the outputs are good enough, or nobody can say."""
    return quality is None or is_unknown(draft, quality) or is_enough(draft, quality)


def is_unknown(draft: Draft, quality: Quality) -> bool:
    """True where nobody can say: what the judge does not judge, unless signal to noise is all that is asked for."""
    return quality.verdict.right is None and (draft.goal is None or draft.goal.asks_outputs)


def find_remedy(
    environment: Environment, package: Path, details: Prepared, measured: Measured, progress: Progress
) -> Remedy:
    """Try the parts, smallest first, until the outputs are good enough; the best one counts, if it is better at all."""
    draft, given = details.draft, measured.quality
    if given is None or needs_none(draft, given) or not _may_choose(draft):
        return Remedy()
    parts = [part for part in float_parts(draft.situation) if draft.found is None or part.names != draft.found.names]
    best, winner = given, None
    trials: list[tuple[FloatPart, Quality]] = []
    for part in parts:
        progress(f"the outputs are not good enough: trying with {part.words} in float")
        made = tried(environment, package, details, _asking(draft, part), progress)
        if made is None or made.quality is None:
            continue
        quality = made.quality
        trials.append((part, quality))
        if is_enough(draft, quality) or quality.is_better_than(best):
            best, winner = quality, part
        if is_enough(draft, best):
            break
    told = tuple(_trial(draft.facts, part, given, quality, kept=part is winner) for part, quality in trials)
    if winner is None:
        return Remedy(trials=told)
    return Remedy(trials=told, instead=_instead(draft, winner, told), quality=best)


def _may_choose(draft: Draft) -> bool:
    """False where the user said what stays in float."""
    named = draft.exclusions and draft.found is None
    return not named and not draft.situation.request.adapter_options.get("exclude_nothing")


def _asking(draft: Draft, part: FloatPart) -> Request:
    """The request with this part named, and the format where it was to be chosen."""
    request = draft.situation.request
    precision = draft.precision if draft.ladder else request.precision
    options = {**request.adapter_options, "exclude_node": part.names, "hold_out": draft.hold_out}
    return replace(request, precision=precision, goal=None, adapter_options=options)


def _trial(facts: GraphFacts, part: FloatPart, before: Quality, after: Quality, *, kept: bool) -> Trial:
    names = set(part.names)
    inside = [node.index for node in facts.nodes if node.name in names]
    return Trial(
        words=part.words,
        nodes=part.names,
        before=before.described,
        after=after.described,
        kept=kept,
        of_nodes=len(inside) / len(facts.nodes),
        of_values=_values(facts, inside) / max(_values(facts, range(len(facts.nodes))), 1),
    )


def _values(facts: GraphFacts, nodes: Iterable[int]) -> int:
    """How many numbers these nodes compute, as far as shapes are known."""
    made = [facts.tensors[name].shape for index in nodes for name in facts.nodes[index].outputs if name]
    return sum(math.prod(dim for dim in shape if isinstance(dim, int)) for shape in made if shape is not None)


def _instead(draft: Draft, part: FloatPart, trials: tuple[Trial, ...]) -> Instead:
    won = next(trial for trial in trials if trial.kept)
    return Instead(
        request=_asking(draft, part),
        how=f"{part.words} stay in float: {won.after} instead of {won.before}",
        findings=OUTCOME_RULES.run(Outcome(toolchain=draft.toolchain, state="ready", trials=trials)),
    )
