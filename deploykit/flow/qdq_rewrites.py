"""Rewrites a model that holds its quantization as Q/DQ nodes: taken out, rewritten with its grids, and put in again.

The rewrite is proven on the float model as ever; then the quantized one must come as close to that as it did before.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from deploykit.accuracy.judge.quality import sqnr_db
from deploykit.accuracy.simulate.sessions import Feed, Session
from deploykit.encodings.insert_qdq import insert_qdq
from deploykit.encodings.qdq import extract_qdq
from deploykit.flow.rewriting import RewriteStep, Rewriting, rewrite

if TYPE_CHECKING:
    from collections.abc import Callable

    from onnx import ModelProto

    from deploykit.encodings.backward import Evidence

__all__ = ["rewrite_quantized"]

_MOST_LOST_DB = 1.0
"""Grids of new tensors round once more; what is lost by a wrong one is tens of dB."""


def rewrite_quantized(
    model: ModelProto,
    names: Iterable[str],
    feeds: Sequence[Feed],
    *,
    evidence: Callable[[ModelProto], Evidence] | None = None,
) -> Rewriting:
    """The rewritten QDQ model; the given one, and steps that say why, where a rewrite cannot keep the grids.

    ``model`` must hold its weights. Raises UsageError for an unknown name, InputError for samples that do not fit.
    """
    taken = extract_qdq(model)
    made = rewrite(taken.model, taken.encodings, names, feeds, evidence=evidence)
    if not made.kept:
        return replace(made, model=model, encodings=None)
    problem = _problem(made, taken.kept)
    quantized = None
    if not problem:
        assert made.encodings is not None
        quantized = insert_qdq(made.model, made.encodings, bias="encoded", unsigned_activations=False)
        problem = "; ".join(f"{entry.tensor}: {entry.reason}" for entry in quantized.skipped[:3])
    if quantized is not None and not problem:
        problem = _loss(taken.model, model, quantized.model, feeds)
    if quantized is None or problem:
        steps = tuple(_undone(step, problem) for step in made.steps)
        return Rewriting(model=model, encodings=None, tail=None, steps=steps)
    return replace(made, model=quantized.model, encodings=None)


def _problem(made: Rewriting, left: dict[str, str]) -> str:
    """What keeps the rewritten float model from being quantized as the given one was."""
    if left:
        name, why = next(iter(left.items()))
        return f"{len(left)} quantizers cannot be taken out, first {name}: {why}"
    if made.tail is not None:
        return "its outputs change; rewrite the float model, and give its --encodings"
    if made.open:
        return f"nothing tells the range of {min(made.open)}: give data with --calibration"
    return ""


def _loss(float_model: ModelProto, given: ModelProto, made: ModelProto, feeds: Sequence[Feed]) -> str:
    """Why the rewritten model is not as close to the float one as the given model is; "" where it is."""
    right, before, after = (Session(model) for model in (float_model, given, made))
    for feed in feeds:
        wanted, was, now = right.run(feed), before.run(feed), after.run(feed)
        for name, value in was.items():
            if np.array_equal(value, now[name], equal_nan=True):
                continue
            old, new = sqnr_db(wanted[name], value), sqnr_db(wanted[name], now[name])
            if not new >= old - _MOST_LOST_DB:
                return f"quantized, {name} has {new:.1f} dB against the float model and had {old:.1f}"
    return ""


def _undone(step: RewriteStep, problem: str) -> RewriteStep:
    return replace(step, kept=False, reason=f"undone: {problem}") if step.kept else step
