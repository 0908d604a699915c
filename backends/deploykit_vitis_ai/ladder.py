"""``--precision auto``: the device's formats, cheapest first, each made and measured until the outputs are good enough.

The first one was made already, and parts of it may stay in float; what is found is another request for the same model.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from deploykit.accuracy.search.goals import GOAL
from deploykit.backend.backend import Instead, Progress, Request
from deploykit_vitis_ai.draft import Draft, make_draft
from deploykit_vitis_ai.measuring import Measured
from deploykit_vitis_ai.prepare import Prepared
from deploykit_vitis_ai.quality import Quality
from deploykit_vitis_ai.remedy import Remedy, find_remedy, is_enough, needs_none
from deploykit_vitis_ai.rules.execution import RULES as OUTCOME_RULES
from deploykit_vitis_ai.rules.execution import Choice, Outcome, Rung
from deploykit_vitis_ai.rules.registries import DRAFT_REGISTRIES
from deploykit_vitis_ai.trials import tried

if TYPE_CHECKING:
    from deploykit.system.environments import Environment

__all__ = ["find_precision"]


def find_precision(
    environment: Environment, package: Path, details: Prepared, measured: Measured, progress: Progress
) -> Remedy:
    """Climb from what was made: parts of it in float, then wider formats. The first good enough wins, else the best."""
    draft = details.draft
    parts = find_remedy(environment, package, details, measured, progress)
    best = parts.quality or measured.quality
    rungs = [Rung(words=draft.precision, outcome=_said(measured.quality), chosen=parts.instead is None)]
    rungs += [
        Rung(words=f"{draft.precision} with {trial.words} in float", outcome=trial.after, chosen=trial.kept)
        for trial in parts.trials
    ]
    won: tuple[Request, Measured] | None = None
    for name in draft.ladder[1:]:
        if best is None or needs_none(draft, best):
            break
        request = _asking(draft, name)
        refused = _refused(details, request)
        if refused:
            rungs.append(Rung(words=name, outcome=f"not possible ({', '.join(refused)})"))
            continue
        progress(f"the outputs are not good enough: trying {name}")
        made = tried(environment, package, details, request, progress)
        rungs.append(Rung(words=name, outcome="not made" if made is None else _said(made.quality)))
        if made is not None and made.quality is not None and _wins(draft, made.quality, best):
            best, won = made.quality, (request, made)
            rungs = [replace(rung, chosen=rung is rungs[-1]) for rung in rungs]
    choice = Choice(
        rungs=tuple(rungs),
        asked=_asked(draft),
        reached=_reached(draft, best),
    )
    return _told(draft, parts, won, choice)


def _asked(draft: Draft) -> str:
    assert draft.goal is not None
    return f"{'are' if draft.goal.name == GOAL else 'reach'} {draft.goal.in_words}"


def _wins(draft: Draft, quality: Quality, best: Quality) -> bool:
    return is_enough(draft, quality) or quality.is_better_than(best)


def _reached(draft: Draft, quality: Quality | None) -> bool | None:
    """None where nobody can say."""
    return None if quality is None or draft.goal is None else quality.is_met(draft.goal)


def _said(quality: Quality | None) -> str:
    return "not judged" if quality is None else quality.described


def _asking(draft: Draft, name: str) -> Request:
    """The request for a format. What was tried in float on the way is over, so all of it is quantized."""
    request = draft.situation.request
    whole = {} if draft.exclusions else {"exclude_nothing": True}
    options = {**request.adapter_options, **whole, "hold_out": draft.hold_out}
    return replace(request, precision=name, goal=None, adapter_options=options)


def _refused(details: Prepared, request: Request) -> tuple[str, ...]:
    """The codes of what forbids a request, known before anything runs."""
    draft = make_draft(replace(details.draft.situation, request=request))
    found = (finding for registry in DRAFT_REGISTRIES for finding in registry.run(draft))
    return tuple(dict.fromkeys(finding.code for finding in found if finding.blocks))


def _told(draft: Draft, parts: Remedy, won: tuple[Request, Measured] | None, choice: Choice) -> Remedy:
    """The winner with the whole story; a format that won makes the parts that were tried a part of that."""
    said = OUTCOME_RULES.run(Outcome(toolchain=draft.toolchain, state="ready", choice=choice))
    if won is not None:
        request, made = won
        instead = Instead(
            request=request, how=f"{request.precision} instead: {_said(made.quality)}", findings=said, right=made.right
        )
        return Remedy(instead=instead, quality=made.quality, choice=choice)
    if parts.instead is None:
        return replace(parts, choice=choice)
    return replace(parts, instead=replace(parts.instead, findings=(*parts.instead.findings, *said)), choice=choice)
