"""Gives ``quantization.inferring`` what only a run tells: the values of tensors on data that the user gave or declared.

It makes no input and no range of its own.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from deploykit.accuracy.samples.labels import Label
from deploykit.accuracy.simulate.sessions import Feed, Session
from deploykit.encodings.backward import Evidence

if TYPE_CHECKING:
    from onnx import ModelProto

    from deploykit.accuracy.samples.gathering import Samples

__all__ = ["evidence_of", "observed_ranges"]

_MEANINGFUL = frozenset({Label.GIVEN, Label.RECORDED, Label.DECLARED})
"""Labels of inputs whose values say what a model really sees; derived ones only say what a grid could hold."""


def observed_ranges(model: ModelProto, names: Iterable[str], feeds: Sequence[Feed]) -> dict[str, tuple[float, float]]:
    """The lowest and highest finite value of each tensor over all samples, in the float model."""
    wanted = tuple(names)
    ranges: dict[str, tuple[float, float]] = {}
    session = Session(model, capture=wanted) if wanted else None
    for values in session.runs(feeds) if session else ():
        for name in wanted:
            finite = values[name][np.isfinite(values[name])]
            low, high = ranges.get(name, (math.inf, -math.inf))
            if finite.size:
                ranges[name] = (min(low, float(finite.min())), max(high, float(finite.max())))
    return ranges


def evidence_of(model: ModelProto, samples: Samples) -> Evidence:
    """What samples tell, input by input: made-up inputs tell nothing, and neither does what hangs on them."""
    labels = {name: source.label for name, source in samples.of_inputs.items()}
    inputs = frozenset(name for name, label in labels.items() if label in _MEANINGFUL)
    declared = {name: _ends(name, samples.feeds) for name in inputs if labels[name] is Label.DECLARED}

    def observe(names: Collection[str]) -> dict[str, tuple[float, float]]:
        return observed_ranges(model, names, samples.feeds)

    words = samples.described_for_humans
    return Evidence(inputs=inputs, declared=declared, observe=observe if inputs else None, words=words)


def _ends(name: str, feeds: Sequence[Feed]) -> tuple[float, float]:
    """The least and largest value of an input; the feeds of a declared range hold both of its ends."""
    return min(float(feed[name].min()) for feed in feeds), max(float(feed[name].max()) for feed in feeds)
