"""How settled the ranges of a model's tensors are: what one half of the samples shows of what all of them show.

It measures; whether more samples are wanted is said by ``data_rules``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
from onnx import ModelProto, ValueInfoProto, helper

from deploykit.accuracy.simulate.sessions import Feed, Session
from deploykit.model.facts import GraphFacts

__all__ = ["LEAST", "MOST", "RangeGrowth", "range_growth"]

LEAST = 4
"""Samples of which a half still says something."""

MOST = 32
"""Samples that are run at most; of more than that nothing is said here."""

_COVERED = 0.9
_ENDS = ("ReduceMin", "ReduceMax")

_Spans: TypeAlias = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class RangeGrowth:
    """``unseen`` is the share of ``tensors`` whose range one half of the ``samples`` does not show to nine tenths.

    It is the mean of several halves.
    """

    samples: int
    tensors: int
    unseen: float


def range_growth(model: ModelProto, facts: GraphFacts, feeds: Sequence[Feed]) -> RangeGrowth | None:
    """Halves of the samples against all of them, over the computed float tensors; None of fewer than ``LEAST``.

    Only the two ends of each range leave a run, so memory is that of one. Raises InputError for a sample that does not
    fit the model.
    """
    names = [name for name, tensor in facts.tensors.items() if tensor.producer is not None and tensor.dtype == "float"]
    names = [name for name in names if not facts.tensors[name].is_weight]
    if len(feeds) < LEAST or not names:
        return None
    session = Session(_with_ends(model, names))
    rows = session.runs(feeds)
    ends = [f"{name}{end}" for name in names for end in _ENDS]
    spans = np.asarray([[row[end] for end in ends] for row in rows], np.float64).reshape(len(rows), len(names), 2)
    spans = spans[:, np.isfinite(spans).all(axis=(0, 2))]
    if not spans.size:
        return None
    wanted = _COVERED * _widths(spans)
    missed = [float((_widths(spans[half]) < wanted).mean()) for half in _halves(len(rows))]
    return RangeGrowth(samples=len(rows), tensors=spans.shape[1], unseen=sum(missed) / len(missed))


def _halves(count: int) -> Iterator[list[int]]:
    """Both halves of several ways to part the samples, so that their order says little: by each bit of the place."""
    for bit in range((count - 1).bit_length() - 1):
        for side in (0, 1):
            yield [place for place in range(count) if place >> bit & 1 == side]


def _widths(spans: _Spans) -> _Spans:
    """Of each tensor, over samples x tensors x (low, high)."""
    widths: _Spans = spans[:, :, 1].max(axis=0) - spans[:, :, 0].min(axis=0)
    return widths


def _with_ends(model: ModelProto, names: Iterable[str]) -> ModelProto:
    """The model with the least and the largest value of each tensor as its only outputs."""
    wide = ModelProto()
    wide.CopyFrom(model)
    del wide.graph.output[:]
    for name in names:
        for end in _ENDS:
            wide.graph.node.append(helper.make_node(end, [name], [f"{name}{end}"], keepdims=0))
            wide.graph.output.append(ValueInfoProto(name=f"{name}{end}"))
    return wide
