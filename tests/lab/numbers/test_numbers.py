"""The judge on small models of many kinds, right and wrong in nine ways, on every kind of inputs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import onnx
import pytest
from msgspec.structs import replace

from deploykit.accuracy.judge.judge import Judge
from deploykit.accuracy.samples.calibration import parse_declarations
from deploykit.accuracy.samples.gathering import Samples, gather
from deploykit.accuracy.samples.inputs import Label, input_specs
from deploykit.accuracy.simulate.sessions import Session
from deploykit.accuracy.simulate.simulation import Simulator
from deploykit.encodings.new_grids import GridKind, affine_for_range
from deploykit.encodings.values import Affine, Encoding, EncodingSet
from deploykit.findings.records import Feeds
from deploykit.model.collect import facts_of

from . import pictures, words
from .sketches import MODELS, Sample

DRAWN = (pictures, words)
"""Importing them enters their models."""
LABELS = (Label.GIVEN, Label.DECLARED, Label.DERIVED)

Values: TypeAlias = dict[str, np.ndarray]
Outputs: TypeAlias = list[Values]


class Bench:
    """One model with everything that is run on it, each once."""

    def __init__(self, sample: Sample, folder: Path) -> None:
        self.sample = sample
        self.model, self.ends = sample.build()
        self.facts = facts_of(self.model)
        self._data = folder / f"{sample.name}.npz"
        self._said_of: dict[Label, Mapping[str, bool | None]] = {}
        feeds = sample.feeds()
        stacked: dict[str, Any] = {name: np.stack([feed[name] for feed in feeds]) for name in feeds[0]}
        np.savez(self._data, **stacked)

    def gather(self, label: Label) -> Samples:
        """Inputs of one kind. The calibration data is a file, as the user's is."""
        match label:
            case Label.GIVEN:
                return gather(self.model, self.facts, calibration=self._data)
            case Label.DECLARED:
                return gather(self.model, self.facts, declared=self._said(self.ends))
            case Label.DERIVED:
                inputs = {name: self.encodings.entries[name] for name in self.ends if name in self.encodings.entries}
                said = self._said(self.sample.said)
                encodings = replace(self.encodings, entries=inputs)
                return gather(self.model, self.facts, declared=said, encodings=encodings)
        return gather(self.model, self.facts)

    def _said(self, names: Any) -> Any:
        texts = [f"{name}={self.ends[name][0]}..{self.ends[name][1]}" for name in names]
        return parse_declarations(texts, input_specs(self.facts))

    @cached_property
    def samples(self) -> dict[Label, Samples]:
        """All kinds that judge."""
        return {label: self.gather(label) for label in LABELS}

    @cached_property
    def encodings(self) -> EncodingSet:
        """W8A16 whose ranges hold everything the inputs may be: the user's samples, both ends, and between."""
        made = [name for node in self.model.graph.node for name in node.output if self.facts.tensors[name].is_float]
        session = Session(self.model, capture=made)
        feeds = [*self.gather(Label.GIVEN).feeds, *self.gather(Label.DECLARED).feeds]
        runs = [{**feed, **session.run(feed)} for feed in feeds]
        stored = {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in self.model.graph.initializer}
        weights = [
            n.input[1] for n in self.model.graph.node if n.op_type in ("MatMul", "Conv") and n.input[1] in stored
        ]
        inputs = [name for name in self.ends if self.facts.tensors[name].is_float]
        entries = {name: _entry(name, [run[name] for run in runs], 16) for name in (*inputs, *made)}
        entries |= {name: _entry(name, [stored[name]], 8) for name in weights}
        return EncodingSet(version="2.0.0", entries=entries)

    def wrecked(self) -> EncodingSet:
        """The same encodings but for one tensor, whose range is a thirtieth of what it should be."""
        entry = self.encodings.entries[self.sample.wrecked]
        assert isinstance(entry.value, Affine)
        value = replace(entry.value, scale=entry.value.scale / 30)
        return replace(self.encodings, entries={**self.encodings.entries, entry.name: replace(entry, value=value)})

    def run(self, encodings: EncodingSet, feeds: Feeds) -> Outputs:
        simulator = Simulator(self.model, encodings)
        return [dict(simulator.run(feed)) for feed in feeds]

    def verdicts(self, label: Label) -> Mapping[str, bool | None]:
        """What the judge says of every way that makes sense, on one kind of inputs; each is asked once."""
        if label not in self._said_of:
            judge = Judge(self.model, self.facts, self.samples[label])
            given = {way: outputs_of(self, way, judge.feeds) for way in WAYS}
            found = {way: judge.compare(outputs).right for way, outputs in given.items() if outputs is not None}
            self._said_of[label] = found
        return self._said_of[label]

    def faulty(self, feeds: Feeds) -> Outputs:
        session = Session(self.sample.build(faulty=True)[0])
        with np.errstate(all="ignore"):
            return [dict(session.run(feed)) for feed in feeds]


def _entry(name: str, values: list[np.ndarray], bits: int) -> Encoding:
    low, high = min(float(v.min()) for v in values), max(float(v.max()) for v in values)
    grid = GridKind(bits=bits, signed=bits == 8, symmetric=bits == 8)
    return Encoding(name=name, value=affine_for_range(low, high, grid), is_param=bits == 8)


# What is wrong by construction. Each takes the right outputs and changes the first one, in every sample.


def _of_first(change: Callable[[np.ndarray], np.ndarray]) -> Callable[[Outputs], Outputs]:
    def changed(outputs: Outputs) -> Outputs:
        name = next(iter(outputs[0]))
        return [{**values, name: change(values[name]).astype(values[name].dtype)} for values in outputs]

    return changed


def _channels(array: np.ndarray) -> int:
    """The axis of classes, coordinates or features; of a sequence, which may lie either way, the shorter one."""
    if array.ndim == 3 and 1 < array.shape[2] < array.shape[1]:
        return 2
    return next((axis for axis in range(1, array.ndim) if array.shape[axis] > 1), 0)


def _dead(outputs: Outputs) -> Outputs:
    """The channel that holds most is zero everywhere; of labels the commonest is never given."""
    name = next(iter(outputs[0]))
    every = np.stack([values[name] for values in outputs])
    if every.dtype.kind == "i":
        common = np.bincount(every.ravel()).argmax()
        made = np.where(every == common, (common + 1) % (every.max() + 1), every)
    else:
        made = every.copy()
        rows = np.moveaxis(made, _channels(every[0]) + 1, 0)
        rows[np.square(rows.astype(np.float64)).reshape(len(rows), -1).sum(axis=1).argmax()] = 0
    return [{**values, name: array} for values, array in zip(outputs, made, strict=True)]


def _shifted(array: np.ndarray) -> np.ndarray:
    """Boxes by a tenth of the image; of anything else every value a quarter of the longest axis further."""
    if array.ndim == 3 and array.shape[-1] == 4:
        return np.asarray(array + 0.1 * array.max())
    if array.ndim == 3 and array.shape[1] == 9:  # four coordinates beside five scores
        return np.concatenate([array[:, :4] + 0.1 * array[:, :4].max(), array[:, 4:]], axis=1)
    axis = int(np.argmax(array.shape))
    return np.roll(array, max(array.shape[axis] // 4, 1), axis=axis)


def _permuted(array: np.ndarray) -> np.ndarray:
    """Every class in the place of the next, and every label as the next one."""
    if array.dtype.kind == "i":
        return np.asarray((array + 1) % (array.max() + 1))
    axis = _channels(array)
    return np.roll(array, 1, axis=axis)


def _one_nan(outputs: Outputs) -> Outputs:
    name = next(iter(outputs[0]))
    broken = outputs[-1][name].copy()
    broken.reshape(-1)[broken.size // 2] = np.nan
    return [*outputs[:-1], {**outputs[-1], name: broken}]


WRONG: Mapping[str, Callable[[Outputs], Outputs]] = {
    "scaled by a half": _of_first(lambda array: array // 2 if array.dtype.kind in "iu" else array * 0.5),
    "dead channel": _dead,
    "shifted": _of_first(_shifted),
    "labels permuted": _of_first(_permuted),
    "zeroed": _of_first(np.zeros_like),
    "one NaN": _one_nan,
    "sign": _of_first(lambda array: array.max() - array if array.dtype.kind in "iu" else -array),
}
WAYS = ("right", *WRONG, "one range", "own fault")


def outputs_of(bench: Bench, way: str, feeds: Feeds) -> Outputs | None:
    """What a model that is right, or wrong in one way, gives; None where a way makes no sense."""
    if way == "own fault":
        return bench.faulty(feeds) if bench.sample.fault else None
    if way == "one range":
        return bench.run(bench.wrecked(), feeds)
    right = bench.run(bench.encodings, feeds)
    if way == "right":
        return right
    first = next(iter(right[0].values()))
    if way == "one NaN" and first.dtype.kind != "f":
        return None
    return WRONG[way](right)


@pytest.mark.parametrize(
    "sample",
    [pytest.param(sample, id=sample.name) for sample in MODELS],
)
def test_the_judge_is_right_about_it(sample: Sample, tmp_path: Path) -> None:
    """On every kind of inputs, about every way of being wrong."""
    bench = Bench(sample, tmp_path)
    for label in LABELS:
        assert bench.samples[label].label == label
        wrong = {way: right for way, right in bench.verdicts(label).items() if right is not (way == "right")}
        if sample.fault.startswith("negative indices") and label is Label.DERIVED:
            assert wrong.pop("own fault")  # made-up indices count from the front, as those of every application
        assert wrong == {}, f"{sample.name} on {label} inputs"
    _no_verdict_on_arbitrary_inputs(bench)
    _the_destroyed_range_is_a_real_fault(bench)


def _no_verdict_on_arbitrary_inputs(bench: Bench) -> None:
    """Where the graph says what its inputs are, nothing is arbitrary: then plain feeds of no label are."""
    made = bench.gather(Label.ARBITRARY)
    arbitrary = made if made.label is Label.ARBITRARY else made.feeds
    judge = Judge(bench.model, bench.facts, arbitrary)
    for way in WAYS:
        outputs = outputs_of(bench, way, judge.feeds)
        if outputs is not None:
            verdict = judge.compare(outputs)
            assert verdict.right is None, f"a verdict on arbitrary inputs: {way}"
            assert all(number.passes is None for number in verdict.numbers)


def _the_destroyed_range_is_a_real_fault(bench: Bench) -> None:
    """By plain arithmetic, without the judge: the right model is near the float one, the wrecked one is not."""
    feeds = bench.gather(Label.GIVEN).feeds
    session = Session(bench.model)
    wanted = [session.run(feed) for feed in feeds]
    right, wrecked = (_distances(wanted, bench.run(e, feeds)) for e in (bench.encodings, bench.wrecked()))
    name = min(right, key=lambda output: right[output])  # rows behind a TopK may have changed places in the others
    assert right[name] < 0.16  # softly drawn classes of small models lose most to 8-bit weights
    assert wrecked[name] > max(0.08, 3 * right[name])


def _distances(wanted: Sequence[Mapping[str, np.ndarray]], got: Outputs) -> dict[str, float]:
    """By output, how much differs beside what varies."""
    shares = {}
    for name in wanted[0]:
        one, two = (np.stack([values[name] for values in side]).astype(np.float64) for side in (wanted, got))
        shares[name] = float(np.sqrt(np.square(one - two).mean()) / (one.std() or 1.0))
    return shares
