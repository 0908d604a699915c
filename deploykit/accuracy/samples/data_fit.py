"""How calibration data fits a model: its scale against the first layers, its order of channels, what it leaves unseen.

A BatchNormalization keeps the mean and the variance that it saw in training: what the data gives in its place tells
whether the data was prepared as it was then. Without one, the size of what the first convolution makes still tells
bytes from small values. Nothing is judged here; the rules are in ``data_rules``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
from onnx import ModelProto, helper

from deploykit.accuracy.samples.range_growth import RangeGrowth
from deploykit.accuracy.samples.stored import spread
from deploykit.accuracy.simulate.graph_pieces import GraphPieces
from deploykit.accuracy.simulate.sessions import Feed, Session
from deploykit.model.facts import GraphFacts, NodeFact
from deploykit.model.operators import Trait, has
from deploykit.model.weights import stored_values

__all__ = ["LOOKED_AT", "DataFit", "FirstLayer", "Preparation", "data_fit", "takes_pictures"]

_IMAGENET = (np.asarray([0.485, 0.456, 0.406]), np.asarray([0.229, 0.224, 0.225]))
"""Mean and deviation of colours in 0..1, by which most published vision models were trained (torchvision)."""

_STEPS = 8
"""Nodes between an input and what is looked for behind it."""

LOOKED_AT = 8
"""Samples that the first layers are run on; spread over what is given."""


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
class FirstLayer:
    """The first convolution behind a picture: the deviation of what it makes of the data, the median of its channels.

    Networks are trained so that this is near 1, whatever the scale of their data: it is far off for data of another.
    """

    node: str
    deviation: float


@dataclass(frozen=True, slots=True, kw_only=True)
class DataFit:
    """What was seen. ``divides_by`` is what the model itself divides its input by, 0 for nothing.

    ``growth`` is None where ranges do not come from this data, or only some of its samples were looked at.
    """

    origin: str
    input: str = ""
    low: float = 0.0
    high: float = 0.0
    whole_numbers: bool = False
    image_like: bool = False
    divides_by: float = 0.0
    preparation: Preparation | None = None
    first_layer: FirstLayer | None = None
    growth: RangeGrowth | None = None
    labels: Mapping[str, int] = field(default_factory=dict)


def data_fit(
    model: ModelProto,
    facts: GraphFacts,
    feeds: Sequence[Feed],
    *,
    origin: str,
    growth: RangeGrowth | None = None,
    labels: Mapping[str, int] | None = None,
) -> DataFit:
    """About the first float input of a float model, on a few of the samples; of another the labels and the growth.

    The weights of a model that takes pictures are loaded. Raises InputError where its first layers do not run on them.
    """
    name = _float_input(facts)
    counted = dict(labels or {})
    if not name:
        return DataFit(origin=origin, growth=growth, labels=counted)
    some = [feeds[at] for at in spread(len(feeds), LOOKED_AT)]
    values = [np.asarray(feed[name], np.float64) for feed in some]
    graph = GraphPieces(model, facts.outputs)
    preparation = _preparation(facts, graph, some, name)
    return DataFit(
        origin=origin,
        input=name,
        low=min(float(value.min()) for value in values),
        high=max(float(value.max()) for value in values),
        whole_numbers=all(bool((value == np.round(value)).all()) for value in values),
        image_like=_colours(facts, name) > 0,
        divides_by=_divides_by(graph, facts, name),
        preparation=preparation,
        first_layer=None if preparation is not None else _first_layer(facts, graph, some, name),
        growth=growth,
        labels=counted,
    )


def takes_pictures(facts: GraphFacts) -> bool:
    """True where the first float input looks like a picture, whose first layers then tell how it was prepared."""
    name = _float_input(facts)
    return bool(name) and _colours(facts, name) > 0


def _float_input(facts: GraphFacts) -> str:
    """The first one; "" where there is none."""
    return next((name for name in facts.inputs if facts.tensors[name].is_float), "")


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
        value = float(stored_values(stored[0]).reshape(()))
        if value:
            return value if node.op_type == "Div" else 1 / value
    return 0.0


def _preparation(facts: GraphFacts, graph: GraphPieces, feeds: Sequence[Feed], name: str) -> Preparation | None:
    """What the first BatchNormalization behind the first convolution of a picture says; None of one never trained."""
    colours = _colours(facts, name)
    node = _first_norm(facts, name) if colours else None
    if node is None or any(other not in graph.stored for other in node.inputs[3:5]):
        return None
    mean, variance = (stored_values(graph.stored[other]).astype(np.float64) for other in node.inputs[3:5])
    if not mean.any() and (variance == 1).all():
        return None
    run = _runner(graph, feeds, name, node.inputs[0])
    given = [np.asarray(feed[name]) for feed in feeds]
    changes = _changes(given, colours)
    return Preparation(
        node=node.label,
        as_given=_distance(run(given), mean, variance),
        changed={change: _distance(run(values), mean, variance) for change, values in changes.items()},
    )


def _first_layer(facts: GraphFacts, graph: GraphPieces, feeds: Sequence[Feed], name: str) -> FirstLayer | None:
    """The first convolution of a picture, run on the data."""
    node = _first_convolution(facts, name) if _colours(facts, name) else None
    if node is None:
        return None
    made = _runner(graph, feeds, name, node.outputs[0])([np.asarray(feed[name]) for feed in feeds])
    return FirstLayer(node=node.label, deviation=float(np.median(made.std(axis=1))))


_Run = Callable[[Sequence[npt.NDArray[Any]]], npt.NDArray[np.float64]]


def _runner(graph: GraphPieces, feeds: Sequence[Feed], name: str, output: str) -> _Run:
    """Gives what one tensor holds for other values of one input, as channels times the rest."""
    session = _head(graph, feeds[0], output)
    others = [{key: value for key, value in feed.items() if key in session.inputs} for feed in feeds]

    def run(values: Sequence[npt.NDArray[Any]]) -> npt.NDArray[np.float64]:
        made = [session.run({**rest, name: v})[output] for rest, v in zip(others, values, strict=True)]
        return np.concatenate([np.moveaxis(v, 1, 0).reshape(v.shape[1], -1) for v in made], axis=1).astype(np.float64)

    return run


def _first_convolution(facts: GraphFacts, name: str) -> NodeFact | None:
    """The first convolution, looked for along single steps from the input."""
    for _ in range(_STEPS):
        readers = facts.consumers_of(name)
        if len(readers) != 1 or has(readers[0], Trait.CONVOLVES):
            return readers[0] if len(readers) == 1 else None
        name = readers[0].outputs[0]
    return None


def _first_norm(facts: GraphFacts, name: str) -> NodeFact | None:
    """The BatchNormalization behind the first convolution, looked for along single steps from the input."""
    for _ in range(_STEPS):
        readers = facts.consumers_of(name)
        if len(readers) != 1:
            return None
        if readers[0].op_type == "BatchNormalization":
            maker = facts.producer_of(name)
            return readers[0] if maker is not None and has(maker, Trait.CONVOLVES) else None
        name = readers[0].outputs[0]
    return None


def _head(graph: GraphPieces, feed: Feed, output: str) -> Session:
    """A session of the nodes in front of one tensor."""
    places, todo = set[int](), [output]
    while todo:
        maker = graph.makers.get(todo.pop())
        if maker is not None and maker not in places:
            places.add(maker)
            todo += graph.reads[maker]
    types = {name: helper.np_dtype_to_tensor_dtype(np.asarray(feed[name]).dtype) for name in graph.inputs}
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
