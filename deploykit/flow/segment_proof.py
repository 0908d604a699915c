"""Proves that a chain of segments equals the whole: bit for bit in float32, within a step where it is quantized."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from deploykit.accuracy.judge.judging import made_by
from deploykit.accuracy.simulate.sessions import Feed, Session
from deploykit.accuracy.simulate.simulation import Simulator
from deploykit.encodings.segments import Partition, Segment, whole_as_cut
from deploykit.encodings.values import EncodingSet, Float
from deploykit.model.shape_inference import infer

if TYPE_CHECKING:
    from onnx import ModelProto

__all__ = ["ChainProof", "SegmentChain", "prove_chain"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ChainProof:
    """``float_equal`` is bit equality in float32; ``steps`` the largest difference of the quantized chain.

    ``steps`` counts in steps of each output's own encoding, or in float32 roundings of its largest value where it has
    none.
    """

    float_equal: bool
    steps: float

    @property
    def holds(self) -> bool:
        """True when both halves of the claim hold."""
        return self.float_equal and self.steps <= 1.0


class SegmentChain:
    """Runs the segments one after the other.

    ``quantized`` ones with their encodings, float ones in float16 where ``half`` is given, else in float32.
    """

    def __init__(
        self, segments: Sequence[Segment], *, quantized: bool, half: bool = False, capture: Sequence[str] = ()
    ) -> None:
        self._runs: list[Session | Simulator] = []
        for segment in segments:
            entries = _half(segment) if half and segment.is_float else segment.encodings
            inner = made_by(segment.model, capture)
            if quantized and entries is not None:
                self._runs.append(Simulator(segment.model, entries, capture=inner))
            else:
                self._runs.append(Session(segment.model, capture=inner))
        self._inputs = [segment.inputs for segment in segments]

    def run(self, feed: Feed) -> dict[str, npt.NDArray[Any]]:
        """Every input and every output of every segment by name."""
        values: dict[str, npt.NDArray[Any]] = dict(feed)
        for run, inputs in zip(self._runs, self._inputs, strict=True):
            values.update(run.run({name: values[name] for name in inputs}))
        return values


def _half(segment: Segment) -> EncodingSet:
    """All float tensors of a segment as float16, weights included, for a device that computes it so."""
    made = {name for name, (dtype, _) in infer(segment.model).types.items() if dtype == "float"}
    stored = {t.name for t in segment.model.graph.initializer if t.data_type == t.FLOAT}
    return EncodingSet(version="", entries={}, float_tensors=frozenset(made | stored))


def prove_chain(
    model: ModelProto, encodings: EncodingSet, cut: Partition, segments: tuple[Segment, ...], feeds: Sequence[Feed]
) -> ChainProof:
    """Compare the chain with the whole on every sample, in float32 and quantized.

    The whole is simulated with quantizers where the chain has them (``whole_as_cut``).
    """
    uncut, in_force = whole_as_cut(model, encodings, cut, segments)
    names = [item.name for item in model.graph.output]
    plain, whole = SegmentChain(segments, quantized=False), Session(model)
    chain, simulated = SegmentChain(segments, quantized=True), Simulator(uncut, in_force)
    equal, steps = True, 0.0
    for feed in feeds:
        wanted, got = whole.run(feed), plain.run(feed)
        equal = equal and all(np.array_equal(wanted[name], got[name], equal_nan=True) for name in names)
        wanted, got = simulated.run(feed), chain.run(feed)
        steps = max([steps, *(_steps(wanted[name], got[name], in_force, name) for name in names)])
    return ChainProof(float_equal=equal, steps=steps)


def _steps(wanted: npt.NDArray[Any], got: npt.NDArray[Any], encodings: EncodingSet, name: str) -> float:
    difference = np.abs(wanted.astype(np.float64) - got.astype(np.float64))
    largest = float(np.nanmax(difference, initial=0.0))
    entry = encodings.get(name)
    if entry is None or isinstance(entry.value, Float):
        scale = float(np.nanmax(np.abs(wanted), initial=0.0)) * float(np.finfo(np.float32).eps)
        return largest / scale if scale else largest
    return largest / float(np.max(entry.value.scale))
