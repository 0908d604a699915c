"""How calibration data fits a model: its scale against the first layers, its order of channels, what it leaves unseen.

A BatchNormalization keeps the mean and the variance that it saw in training: what the data gives in its place tells
whether the data was prepared as it was then. Nothing is judged here; the rules are in ``data_rules``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
from onnx import helper, numpy_helper

from deploykit.graph.facts import GraphFacts, NodeFact
from deploykit.graph.ops import Trait, has
from deploykit.numerics.graph_pieces import GraphPieces
from deploykit.numerics.partial_runs import PartialRuns
from deploykit.numerics.sessions import Feed, Session

__all__ = ["DataFit", "Preparation", "data_fit"]

_IMAGENET = (np.asarray([0.485, 0.456, 0.406]), np.asarray([0.229, 0.224, 0.225]))
"""Mean and deviation of colours in 0..1, by which most published vision models were trained (torchvision)."""

_LEAST_SAMPLES = 4
_COVERED = 0.9


@dataclass(frozen=True, slots=True, kw_only=True)
class Preparation:
    """What the first BatchNormalization says: its distance from the data as given, and from the data changed.

    A distance is the mean over channels of what mean and variance differ from those of the training; 0 is equal.
    """

    node: str
    as_given: float
    changed: Mapping[str, float]

    @property
    def better(self) -> str:
        """The change by which the data fits best, where it fits much better; else empty."""
        if self.as_given < 1 or not self.changed:
            return ""
        name = min(self.changed, key=lambda change: self.changed[change])
        return name if self.changed[name] < self.as_given / 4 else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class DataFit:
    """What was seen. ``divides_by`` is what the model itself divides its input by, 0 for nothing.

    ``unseen`` is the share of tensors whose range one half of the samples does not show to nine tenths.
    """

    origin: str
    input: str
    low: float
    high: float
    whole_numbers: bool
    image_like: bool
    divides_by: float = 0.0
    preparation: Preparation | None = None
    samples: int = 0
    tensors: int = 0
    unseen: float = 0.0
    labels: Mapping[str, int] = field(default_factory=dict)


def data_fit(
    facts: GraphFacts, runs: PartialRuns, *, origin: str, labels: Mapping[str, int] | None = None
) -> DataFit | None:
    """About the first float input of a float run; None where the model has none."""
    name = next((name for name in runs.graph.inputs if facts.tensors[name].is_float), None)
    if name is None:
        return None
    values = [np.asarray(feed[name], np.float64) for feed in runs.feeds]
    unseen, tensors = _unseen(runs)
    return DataFit(
        origin=origin,
        input=name,
        low=min(float(value.min()) for value in values),
        high=max(float(value.max()) for value in values),
        whole_numbers=all(bool((value == np.round(value)).all()) for value in values),
        image_like=_colours(facts, name) > 0,
        divides_by=_divides_by(runs.graph, facts, name),
        preparation=_preparation(facts, runs, name),
        samples=len(values),
        tensors=tensors,
        unseen=unseen,
        labels=labels or {},
    )


def _colours(facts: GraphFacts, name: str) -> int:
    """1 or 3 for a picture, channels first; 0 for anything else."""
    shape = facts.tensors[name].shape
    return int(shape[1]) if shape is not None and len(shape) == 4 and shape[1] in (1, 3) else 0


def _divides_by(graph: GraphPieces, facts: GraphFacts, name: str) -> float:
    """What the first operator behind an input divides it by, a factor counted as its reciprocal."""
    for node in facts.consumers_of(name):
        stored = [graph.stored[other] for other in node.inputs if other in graph.stored]
        if node.op_type not in ("Div", "Mul") or len(stored) != 1 or math.prod(stored[0].dims) != 1:
            continue
        value = float(numpy_helper.to_array(stored[0]).reshape(()))
        if value:
            return value if node.op_type == "Div" else 1 / value
    return 0.0


def _unseen(runs: PartialRuns) -> tuple[float, int]:
    """Every second sample against all of them, over the computed float tensors."""
    if len(runs.feeds) < _LEAST_SAMPLES:
        return 0.0, 0
    missed = total = 0
    for number, piece in enumerate(runs.graph.pieces):
        inner = runs.inner_values(number)
        for name in runs.graph.made(piece):
            spans = [_span(values[name]) for values in inner if values[name].dtype == np.float32 and values[name].size]
            if len(spans) == len(inner):
                total += 1
                missed += not _covers(spans[::2], spans)
    return (missed / total if total else 0.0), total


def _span(values: npt.NDArray[Any]) -> tuple[float, float]:
    finite = values[np.isfinite(values)]
    return (float(finite.min()), float(finite.max())) if finite.size else (0.0, 0.0)


def _covers(some: Sequence[tuple[float, float]], every: Sequence[tuple[float, float]]) -> bool:
    widths = [max(high for _, high in spans) - min(low for low, _ in spans) for spans in (some, every)]
    return widths[0] >= _COVERED * widths[1]


def _preparation(facts: GraphFacts, runs: PartialRuns, name: str) -> Preparation | None:
    """What the first BatchNormalization behind the first convolution of a picture says."""
    colours = _colours(facts, name)
    node = _first_norm(facts, name) if colours else None
    if node is None or any(other not in runs.graph.stored for other in node.inputs[3:5]):
        return None
    mean, variance = (numpy_helper.to_array(runs.graph.stored[other]).astype(np.float64) for other in node.inputs[3:5])
    session = _head(runs, node.inputs[0])
    given = [np.asarray(feed[name]) for feed in runs.feeds]
    others = [{key: value for key, value in feed.items() if key in session.inputs} for feed in runs.feeds]

    def distance(values: Sequence[npt.NDArray[Any]]) -> float:
        feeds: list[Feed] = [{**rest, name: value} for rest, value in zip(others, values, strict=True)]
        made = [np.moveaxis(session.run(feed)[node.inputs[0]], 1, 0).reshape(len(mean), -1) for feed in feeds]
        return _distance(np.concatenate(made, axis=1).astype(np.float64), mean, variance)

    changes = _changes(given, colours)
    return Preparation(
        node=node.label,
        as_given=distance(given),
        changed={change: distance(values) for change, values in changes.items()},
    )


def _first_norm(facts: GraphFacts, name: str) -> NodeFact | None:
    """The BatchNormalization behind the first convolution, looked for along single steps from the input."""
    for _ in range(8):
        readers = facts.consumers_of(name)
        if len(readers) != 1:
            return None
        if readers[0].op_type == "BatchNormalization":
            maker = facts.producer_of(name)
            return readers[0] if maker is not None and has(maker, Trait.CONVOLVES) else None
        name = readers[0].outputs[0]
    return None


def _head(runs: PartialRuns, output: str) -> Session:
    """A session of the nodes in front of one tensor."""
    graph, places, todo = runs.graph, set[int](), [output]
    while todo:
        maker = graph.makers.get(todo.pop())
        if maker is not None and maker not in places:
            places.add(maker)
            todo += graph.reads[maker]
    types = {name: helper.np_dtype_to_tensor_dtype(np.asarray(runs.feeds[0][name]).dtype) for name in graph.inputs}
    return Session(graph.model_of(sorted(places), [output], stored=graph.stored, types=types))


def _distance(values: npt.NDArray[np.float64], mean: npt.NDArray[Any], variance: npt.NDArray[Any]) -> float:
    spread = np.maximum(values.var(axis=1), 1e-12)
    known = np.maximum(variance, 1e-12)
    shift = (values.mean(axis=1) - mean) ** 2 / known
    return float(np.mean(np.abs(np.log(spread / known)) + np.minimum(shift, 1e6)))


def _changes(given: Sequence[npt.NDArray[Any]], colours: int) -> dict[str, list[npt.NDArray[Any]]]:
    """The data as it would be with another preparation; only such as make sense for its range."""
    low, high = min(float(v.min()) for v in given), max(float(v.max()) for v in given)
    found: dict[str, list[npt.NDArray[Any]]] = {}
    unit: list[npt.NDArray[Any]] = [np.asarray(value, np.float32) for value in given]
    if low >= 0 and high > 2:
        unit = [value / np.float32(255) for value in given]
        found["divided by 255"] = unit
    elif low >= 0 and high <= 1.001:
        found["times 255"] = [value * np.float32(255) for value in given]
    if low >= 0 and colours == 3:
        mean, deviation = (part.reshape(1, 3, 1, 1).astype(np.float32) for part in _IMAGENET)
        found["normalised by mean and deviation"] = [(value - mean) / deviation for value in unit]
    if colours == 3:
        found["channels in the other order"] = [np.ascontiguousarray(value[:, ::-1]) for value in given]
    return found
