"""Leaves a part of the model in float where integers destroyed the outputs: tried with the real quantizer, or undone.

It packages nothing: what it finds is another request for the same model, for the core to start again with. Parts that
the user named are the user's business, and nothing is tried then.
"""

from __future__ import annotations

import json
import math
import shutil
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from deploykit.contract.backend import Instead, Progress, Request
from deploykit.errors import ToolError
from deploykit.graph.facts import GraphFacts
from deploykit.numerics.verdicts import Verdict
from deploykit_vitis_ai import configs
from deploykit_vitis_ai.draft import Draft, make_draft
from deploykit_vitis_ai.float_parts import FloatPart, float_parts
from deploykit_vitis_ai.measuring import Measured, measure
from deploykit_vitis_ai.prepare import Prepared
from deploykit_vitis_ai.rules.execution import RULES as OUTCOME_RULES
from deploykit_vitis_ai.rules.execution import Outcome, Trial

if TYPE_CHECKING:
    from deploykit.system import Environment

__all__ = ["Remedy", "find_remedy"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Remedy:
    """What was tried, and the request that is better than the one that was made; None where none is."""

    trials: tuple[Trial, ...] = ()
    instead: Instead | None = None


def find_remedy(
    environment: Environment, package: Path, details: Prepared, measured: Measured, progress: Progress
) -> Remedy:
    """Try the parts, smallest first, until the outputs are right; the best one counts, if it is better at all."""
    draft, given = details.draft, measured.verdict
    if given is None or given.right is not False or not _may_choose(draft):
        return Remedy()
    parts = [part for part in float_parts(draft.situation) if draft.found is None or part.names != draft.found.names]
    best, winner = given, None
    trials: list[tuple[FloatPart, Verdict]] = []
    for part in parts:
        progress(f"the outputs are wrong: trying with {part.words} in float")
        verdict = _tried(environment, package, details, _asking(draft, part), progress)
        if verdict is None:
            continue
        trials.append((part, verdict))
        if verdict.is_better_than(best):
            best, winner = verdict, part
        if best.right:
            break
    told = tuple(_trial(draft.facts, part, given, verdict, kept=part is winner) for part, verdict in trials)
    return Remedy(trials=told, instead=None if winner is None else _instead(draft, winner, told))


def _may_choose(draft: Draft) -> bool:
    named = draft.exclusions and draft.found is None
    return not named and not draft.situation.request.adapter_options.get("exclude_nothing")


def _asking(draft: Draft, part: FloatPart) -> Request:
    """The request with this part named."""
    request = draft.situation.request
    return replace(request, adapter_options={**request.adapter_options, "exclude_node": part.names})


def _tried(
    environment: Environment, package: Path, details: Prepared, request: Request, progress: Progress
) -> Verdict | None:
    """The verdict on a copy of the package with this request's recipe; None where the quantizer gave up."""
    draft = make_draft(replace(details.draft.situation, request=request))
    given = json.loads((package / configs.RECIPE).read_text("utf-8"))
    recipe = configs.quantize_recipe(draft, given["calibration"], details.inputs)
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "package"
        shutil.copytree(package, copy, ignore=shutil.ignore_patterns("artifacts", "logs"))
        (copy / configs.RECIPE).write_text(json.dumps(recipe), "utf-8")
        try:
            return measure(environment, copy, draft, progress, trial=True).verdict
        except ToolError as error:
            progress(f"not tried: {error.what}")
            return None


def _trial(facts: GraphFacts, part: FloatPart, before: Verdict, after: Verdict, *, kept: bool) -> Trial:
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
