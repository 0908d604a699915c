"""Applies transforms one after the other, each with new encodings and a proof; what fails the proof is undone.

The proof: the model before and after on the same samples, outputs equal within the transform's stated number of
float32 roundings. It chooses nothing.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from deploykit.deciding.entry_values import fill_entries
from deploykit.encodings.values import EncodingSet
from deploykit.errors import InputError
from deploykit.numerics.sessions import Feed, Session
from deploykit.quantization.cutting import chain_models
from deploykit.rewrites.contract import Refusal, Rewritten, Site, Transform, load_transform

if TYPE_CHECKING:
    from onnx import ModelProto

__all__ = ["SAFE_REWRITES", "RewriteStep", "Rewriting", "difference_in_ulps", "rewrite", "run_chain"]

SAFE_REWRITES = ("saturating-constant", "mask-constant", "logit-of-sigmoid", "log-of-ratio")
"""Rewrites that keep the inputs and outputs as they are, in the order in which they are tried."""

_ULP = float(np.finfo(np.float32).eps)


@dataclass(frozen=True, slots=True, kw_only=True)
class RewriteStep:
    """What became of one transform: kept or not and why, where it applied, where not, and the proof.

    ``ulps`` is the largest difference of any output on the samples, in float32 roundings of that output's largest
    magnitude; None when nothing was run.
    """

    name: str
    kept: bool
    reason: str
    sites: tuple[Site, ...] = ()
    refusals: tuple[Refusal, ...] = ()
    notes: tuple[str, ...] = ()
    ulps: float | None = None

    def to_json(self) -> dict[str, Any]:
        """The published shape."""
        finite = self.ulps is not None and math.isfinite(self.ulps)
        return {
            "rewrite": self.name,
            "kept": self.kept,
            "reason": self.reason,
            "sites": [{"nodes": list(s.nodes), "tensors": list(s.tensors), "why": s.why} for s in self.sites],
            "refusals": [{"nodes": list(r.nodes), "reason": r.reason} for r in self.refusals],
            "notes": list(self.notes),
            "ulps": self.ulps if finite else None,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Rewriting:
    """The rewritten model, its encodings, the host model that restores the original outputs, and the steps taken."""

    model: ModelProto
    encodings: EncodingSet | None
    tail: ModelProto | None
    steps: tuple[RewriteStep, ...]

    @property
    def kept(self) -> tuple[str, ...]:
        """The names of the transforms that changed something and passed their proof."""
        return tuple(step.name for step in self.steps if step.kept)


def rewrite(model: ModelProto, encodings: EncodingSet | None, names: Iterable[str], feeds: Sequence[Feed]) -> Rewriting:
    """Apply the named transforms in order. Raises UsageError for an unknown name and without samples."""
    state = Rewriting(model=model, encodings=encodings, tail=None, steps=())
    for name in names:
        state = _step(state, load_transform(name), feeds)
    return state


def _step(state: Rewriting, transform: Transform, feeds: Sequence[Feed]) -> Rewriting:
    matched = transform.match(state.model)
    if not matched:
        step = RewriteStep(name=transform.name, kept=False, reason=matched.reason, refusals=matched.refusals)
        return _with(state, step)
    made = transform.apply(state.model, state.encodings, matched)
    ulps, problem = _prove(state.model, made, transform, feeds)
    step = RewriteStep(
        name=transform.name,
        kept=not problem,
        reason=problem or "proven equal on the samples",
        sites=matched.sites,
        refusals=matched.refusals,
        notes=made.notes,
        ulps=ulps,
    )
    if problem:
        return _with(state, step)
    encodings = made.encodings
    if encodings is not None and made.touched:
        encodings = fill_entries(made.model, encodings, made.touched, feeds, ranges=made.ranges)
    tail = made.tail if state.tail is None else chain_models(made.tail, state.tail) if made.tail else state.tail
    return Rewriting(model=made.model, encodings=encodings, tail=tail, steps=(*state.steps, step))


def _with(state: Rewriting, step: RewriteStep) -> Rewriting:
    return Rewriting(model=state.model, encodings=state.encodings, tail=state.tail, steps=(*state.steps, step))


def _prove(
    before: ModelProto, made: Rewritten, transform: Transform, feeds: Sequence[Feed]
) -> tuple[float | None, str]:
    """The largest difference in roundings and, unless it is small enough, what is wrong."""
    if transform.ulps is None:
        return None, ""
    if not feeds:
        return None, "undone: there are no samples to prove it on"
    original = Session(before)
    worst = 0.0
    try:
        changed = [Session(part) for part in (made.model, made.tail) if part is not None]
        for feed in feeds:
            worst = max(worst, difference_in_ulps(original.run(feed), run_chain(changed, feed)))
    except InputError as error:
        return None, f"undone: {error.what} ({error.why})"
    if worst > transform.ulps:
        return worst, f"undone: outputs differ by {worst:.3g} roundings, {transform.ulps:g} are allowed"
    return worst, ""


def run_chain(sessions: Sequence[Session], feed: Feed) -> dict[str, npt.NDArray[Any]]:
    """Run models one after the other, each reading inputs and everything made before it."""
    values: dict[str, npt.NDArray[Any]] = dict(feed)
    for session in sessions:
        values.update(session.run(values))
    return values


def difference_in_ulps(wanted: Feed, got: Feed) -> float:
    """The largest difference over all wanted outputs, relative to float32 rounding of each output's largest value.

    Infinite where NaN and infinities do not lie in the same places, or a shape differs.
    """
    return max((_ulps(value, got.get(name)) for name, value in wanted.items()), default=0.0)


def _ulps(wanted: npt.NDArray[Any], got: npt.NDArray[Any] | None) -> float:
    if got is None or got.shape != wanted.shape:
        return math.inf
    a, b = np.asarray(wanted, dtype=np.float64), np.asarray(got, dtype=np.float64)
    odd = ~np.isfinite(a)
    if not np.array_equal(a[odd], b[odd], equal_nan=True) or not np.isfinite(b[~odd]).all():
        return math.inf
    if not (~odd).any():
        return 0.0
    largest = float(np.abs(a[~odd]).max())
    difference = float(np.abs(a[~odd] - b[~odd]).max())
    return difference / (largest * _ULP) if largest else (math.inf if difference else 0.0)
