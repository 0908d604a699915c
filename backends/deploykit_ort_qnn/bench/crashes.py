"""What can be done where the compiler dies or never ends: name the operators, and find a form that compiles.

Trials are few and remembered; what is found is as small as the time allowed. It packages nothing: what it finds is
another request for the same model, for the core to start again with.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

from deploykit.backend.backend import Instead, Progress, Request
from deploykit.model import load_model
from deploykit.model.nodes import label
from deploykit.model.weights import load_weights
from deploykit.rewrites.contract import load_transform, transform_names
from deploykit_ort_qnn.bench.ask import TimedBench
from deploykit_ort_qnn.bench.pieces import PAIR, Pieces, anonymous

if TYPE_CHECKING:
    from onnx import ModelProto

    from deploykit_ort_qnn.compiler.jobs import CompileJob, CompileOutcome

__all__ = ["CrashCulprit", "Rescue", "find_culprit", "rescue"]

# For all trials together: the package that was asked for is late already.
_SECONDS = 300.0
# Seconds for one trial. A part that takes longer than the second is taken for one that never ends.
_LONGEST = {"crashed": 60.0, "timed-out": 30.0}
# Runs of at most so many operators are tried without each single one of them.
_FEW = 24
_MODE = "htp_graph_finalization_optimization_mode"
_MODES = ("3", "1", "2")


@dataclass(frozen=True, slots=True, kw_only=True)
class CrashCulprit:
    """Operators that do it on their own: the model of them, and each one's label and type in graph order.

    ``whole`` is False where the time was over before fewer were tried.
    """

    model: ModelProto
    operators: tuple[tuple[str, str], ...]
    whole: bool

    def __str__(self) -> str:
        return ", ".join(f"{kind} {name}" for name, kind in self.operators)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rescue:
    """The operators that do it, None where no part does; and what to do instead, None where nothing helped."""

    culprit: CrashCulprit | None
    instead: Instead | None


def rescue(job: CompileJob, outcome: CompileOutcome, request: Request, progress: Progress) -> Rescue:
    """Look for the operators that end the compilation as ``outcome`` says, then for what makes them compile."""
    bench = TimedBench(
        options=job.options,
        entries=job.entries,
        deadline=time.monotonic() + min(_SECONDS, job.timeout),
        longest=_LONGEST[outcome.status],
        progress=progress,
        host=job.host,
    )
    model = load_weights(load_model(Path(job.root) / job.model))
    culprit = find_culprit(model, outcome.status, bench)
    if culprit is None:
        return Rescue(culprit=None, instead=None)
    chosen = next(chain(_rewritten(culprit, request, bench), _other_modes(culprit, request, bench)), None)
    why = f"as it was the compiler failed ({outcome.message}) on {culprit}"
    instead = None if chosen is None else Instead(request=chosen[0], how=f"{chosen[1]}; {why}")
    return Rescue(culprit=culprit, instead=instead)


def find_culprit(model: ModelProto, status: str, bench: TimedBench) -> CrashCulprit | None:
    """The operators whose compilation alone has that status; None where no part of the model does it again."""
    pieces, nodes = Pieces(model), list(model.graph.node)
    operators = [index for index, node in enumerate(nodes) if node.op_type not in (*PAIR, "Constant")]

    def does(chosen: Sequence[int]) -> bool:
        piece = pieces.cut(chosen) if chosen else None
        if piece is None:
            return False
        bench.progress(f"looking for what kills the compiler: {len(chosen)} of {len(operators)} operators")
        return bench.ask(piece, anonymous(piece)).status == status

    if not does(operators):
        return None
    end = _least(1, len(operators), lambda size: does(operators[:size]))
    start = end - _least(1, end, lambda size: does(operators[end - size : end]))
    left = operators[start:end]
    for index in tuple(left) if len(left) <= _FEW else ():
        fewer = [other for other in left if other != index]
        left = fewer if does(fewer) else left
    found = pieces.cut(left)
    assert found is not None
    named = tuple((label(nodes[index]), nodes[index].op_type) for index in left)
    return CrashCulprit(model=found, operators=named, whole=not bench.is_over)


def _least(low: int, high: int, holds: Callable[[int], bool]) -> int:
    """The smallest size for which it holds, as far as it holds for all larger ones; ``high`` is known to."""
    while low < high:
        middle = (low + high) // 2
        if holds(middle):
            high = middle
        else:
            low = middle + 1
    return high


def _rewritten(culprit: CrashCulprit, request: Request, bench: TimedBench) -> Iterator[tuple[Request, str]]:
    """The rewrites after which the operators compile, with the request that asks for each."""
    for name in transform_names():
        transform = load_transform(name)
        if name in (*request.rewrite, *request.no_rewrite) or bench.is_over or transform.ulps is None:
            continue
        found = transform.match(culprit.model)
        done = transform.apply(culprit.model, None, found) if found else None
        # With a tail the outputs would be others.
        if done is not None and done.tail is None and bench.ask(done.model, anonymous(done.model)).taken:
            yield replace(request, rewrite=(*request.rewrite, name)), f"the graph is rewritten ({name})"


def _other_modes(culprit: CrashCulprit, request: Request, bench: TimedBench) -> Iterator[tuple[Request, str]]:
    """The finalization modes with which the operators compile, unless one was asked for."""
    if request.adapter_options.get("finalization_mode") is not None or _MODE in bench.options:
        return
    for mode in _MODES:
        tried = replace(bench, options={**bench.options, _MODE: mode})
        if not bench.is_over and tried.ask(culprit.model, anonymous(culprit.model)).taken:
            options: Mapping[str, object] = {**request.adapter_options, "finalization_mode": int(mode)}
            yield replace(request, adapter_options=options), f"it is compiled with finalization mode {mode}"
