"""What can be done where the compiler dies or never ends: name the operators, and find a form that compiles.

It packages nothing: what it finds is another request for the same model, for the core to start again with.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

from deploykit.backend.backend import Instead, Progress, Request
from deploykit.model import load_model
from deploykit.model.weights import load_weights
from deploykit.rewrites.contract import load_transform, transform_names
from deploykit_ort_qnn.culprits import Culprit, find_culprit
from deploykit_ort_qnn.excerpts import anonymous
from deploykit_ort_qnn.trials import Trials

if TYPE_CHECKING:
    from onnx import ModelProto

    from deploykit_ort_qnn.compiler import CompileJob, CompileOutcome

__all__ = ["Rescue", "rescue"]

_SECONDS = 300.0
"""For all trials together: the package that was asked for is late already."""

_LONGEST = {"crashed": 60.0, "timed-out": 30.0}
"""Seconds for one trial. A part that takes longer than the second is taken for one that never ends."""

_MODE = "htp_graph_finalization_optimization_mode"
_MODES = ("3", "1", "2")


@dataclass(frozen=True, slots=True, kw_only=True)
class Rescue:
    """The operators that do it, None where no part does; and what to do instead, None where nothing helped."""

    culprit: Culprit | None
    instead: Instead | None


def rescue(job: CompileJob, outcome: CompileOutcome, request: Request, progress: Progress) -> Rescue:
    """Look for the operators that end the compilation as ``outcome`` says, then for what makes them compile."""
    trials = Trials(
        options=job.options,
        entries=job.entries,
        deadline=time.monotonic() + min(_SECONDS, job.timeout),
        longest=_LONGEST[outcome.status],
        progress=progress,
        host=job.host,
    )
    model = load_weights(load_model(Path(job.root) / job.model))
    culprit = find_culprit(model, outcome.status, trials)
    if culprit is None:
        return Rescue(culprit=None, instead=None)
    chosen = next(chain(_rewritten(culprit, request, trials), _other_modes(culprit, request, trials)), None)
    why = f"as it was the compiler failed ({outcome.message}) on {culprit}"
    instead = None if chosen is None else Instead(request=chosen[0], how=f"{chosen[1]}; {why}")
    return Rescue(culprit=culprit, instead=instead)


def _rewritten(culprit: Culprit, request: Request, trials: Trials) -> Iterator[tuple[Request, str]]:
    """The rewrites after which the operators compile, with the request that asks for each."""
    for name in transform_names():
        if name in (*request.rewrite, *request.no_rewrite) or trials.is_over:
            continue
        changed = _changed(name, culprit.model)
        if changed is not None and trials.of(changed, anonymous(changed)).taken:
            yield replace(request, rewrite=(*request.rewrite, name)), f"the graph is rewritten ({name})"


def _changed(name: str, model: ModelProto) -> ModelProto | None:
    """The operators rewritten; None where nothing applies, or where outputs or values would be others."""
    transform = load_transform(name)
    found = transform.match(model) if transform.ulps is not None else None
    if not found:
        return None
    done = transform.apply(model, None, found)
    return done.model if done.tail is None else None


def _other_modes(culprit: Culprit, request: Request, trials: Trials) -> Iterator[tuple[Request, str]]:
    """The finalization modes with which the operators compile, unless one was asked for."""
    if request.adapter_options.get("finalization_mode") is not None or _MODE in trials.options:
        return
    for mode in _MODES:
        tried = replace(trials, options={**trials.options, _MODE: mode})
        if not trials.is_over and tried.of(culprit.model, anonymous(culprit.model)).taken:
            options: Mapping[str, object] = {**request.adapter_options, "finalization_mode": int(mode)}
            yield replace(request, adapter_options=options), f"it is compiled with finalization mode {mode}"
