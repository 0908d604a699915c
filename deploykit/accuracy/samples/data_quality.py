"""Measures calibration data: file by file, in the first layers of the model, and how settled the ranges are.

It measures only; ``data_rules`` says what is good or bad about the data.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import TypeAlias

import numpy as np
from onnx import ModelProto, ValueInfoProto, helper

from deploykit.accuracy.samples.calibration import Calibration, places_in, read_places
from deploykit.accuracy.samples.data_rules import DataFit, FirstLayer, Preparation, RangeGrowth, Survey
from deploykit.accuracy.samples.images import images_misfit, inspect_image
from deploykit.accuracy.samples.inputs import InputSpec, evenly_chosen
from deploykit.accuracy.simulate.sessions import Session
from deploykit.errors import InputError
from deploykit.findings.records import Doubles, Feeds, Names, Numbers, grouped, replace
from deploykit.model.facts import GraphFacts, NodeFact
from deploykit.model.graph import GraphCopy, view_of
from deploykit.model.nodes import copy_of
from deploykit.model.operators import Trait, has
from deploykit.model.weights import stored_values
from deploykit.system.files import read_regular

__all__ = ["LOOKED_AT", "MOST", "data_fit", "range_growth", "survey", "takes_pictures"]

LOOKED_AT = 8
"""Samples on which the first layers are run; they are spread over all that are given."""
MOST = 32
"""The most samples on which ranges are measured; where there are more, nothing is said about the growth of ranges."""
_LEAST = 4  # a half of fewer samples says nothing
_COVERED = 0.9
_ENDS = ("ReduceMin", "ReduceMax")
_SKETCH = 4096  # values of a sample that are compared with those of the next
_FRAME_WORDS = re.compile(r"frame|video|clip|vid|seq|cam", re.IGNORECASE)
_NUMBERED = re.compile(r"(.*?)(\d+)$")
_STEPS = 8  # nodes between an input and the layer that is looked for behind it
# Mean and deviation of colours in 0..1, by which most published vision models were trained (torchvision).
_IMAGENET = (np.asarray([0.485, 0.456, 0.406]), np.asarray([0.229, 0.224, 0.225]))

_Run: TypeAlias = Callable[[Sequence[Numbers]], Doubles]


def survey(calibration: Calibration, inputs: tuple[InputSpec, ...]) -> Survey:
    """Look at every file of ``calibration`` once; a user's reader cannot be looked at without running it."""
    if calibration.kind == "arrays":
        return _arrays(calibration, inputs)
    if calibration.kind != "images":
        return Survey(calibration.kind, calibration.origin, samples=0)
    unusable, usable, digests = [], [], {}
    for path in calibration.files:
        try:
            inspect_image(path)
        except InputError as error:
            unusable.append((path.name, error.why or error.what, error.next))
            continue
        usable.append(path)
        digests[path.name] = hashlib.sha256(read_regular(path)).hexdigest()
    return Survey(
        "images",
        calibration.origin,
        samples=len(usable),
        unusable=tuple(unusable),
        identical=_groups(digests),
        numbered_frames=_counts_frames(usable),
        labels=Counter(calibration.labels.values()),
        misfit="" if calibration.recipe is None else images_misfit(calibration.recipe, inputs),
    )


def _arrays(calibration: Calibration, inputs: tuple[InputSpec, ...]) -> Survey:
    """The survey of array files, sample by sample; the first input tells constant samples and near-equal neighbours."""
    unusable = list[tuple[str, str, str]]()
    digests = dict[str, str]()
    constant = list[str]()
    not_finite = list[str]()
    correlations = list[float]()
    last: Numbers | None = None
    for path in calibration.files:
        try:
            for index, sample in enumerate(read_places(places_in(path, inputs, sound=calibration.sound))):
                name, digest = f"{path.name}[{index}]", hashlib.sha256()
                for value in sample.values():
                    digest.update(value.tobytes())
                digests[name] = digest.hexdigest()
                given = next(iter(sample.values()))
                first = given.astype(np.float64).ravel()
                if not np.isfinite(first).all():
                    not_finite.append(name)
                    continue
                if first.size > 1 and float(first.min()) == float(first.max()):
                    constant.append(name)
                sketch = first[:: max(1, first.size // _SKETCH)]
                sketch = sketch - sketch.mean()
                # Columns of feature rows differ so much that all rows look alike.
                if last is not None and last.shape == sketch.shape and given.ndim > 2:
                    length = float(np.linalg.norm(sketch) * np.linalg.norm(last))
                    correlations.append(float(sketch @ last) / length if length else 0.0)
                last = sketch
        except InputError as error:
            why = f": {error.why}" if error.why else ""
            unusable.append((path.name, f"{error.what.removeprefix(f'{path}: ')}{why}", error.next))
    return Survey(
        "arrays",
        calibration.origin,
        samples=len(digests),
        unusable=tuple(unusable),
        identical=_groups(digests),
        constant=tuple(constant),
        not_finite=tuple(not_finite),
        neighbours=median(correlations) if correlations else None,
        numbered_frames=not correlations and _counts_frames(calibration.files),
        labels=Counter(calibration.labels.values()),
    )


def _groups(digests: Mapping[str, str]) -> tuple[Names, ...]:
    by_digest = grouped((digest, name) for name, digest in digests.items())
    return tuple(tuple(names) for names in by_digest.values() if len(names) > 1)


def _counts_frames(files: Sequence[Path]) -> bool:
    """True when the names of all files speak of frames, and nine in ten numbers follow the one before."""
    numbers = [
        int(match[2])
        for path in files
        if (match := _NUMBERED.match(path.stem))
        and (_FRAME_WORDS.search(match[1]) or _FRAME_WORDS.search(path.parent.name))
    ]
    steps = [b - a for a, b in pairwise(numbers)]
    return len(numbers) == len(files) >= 8 and steps.count(1) >= 0.9 * len(steps)


def range_growth(model: ModelProto, facts: GraphFacts, feeds: Feeds) -> RangeGrowth | None:
    """How much of the range of all samples one half misses, for computed float tensors.

    None for fewer than four samples. The model is run with the two ends of each range as its only outputs, so memory is
    that of one run. The halves are made by each bit of a sample's index, so that the order of the samples matters
    little. Raises InputError for a sample that does not fit the model.
    """
    tensors = facts.tensors.items()
    names = [name for name, t in tensors if t.producer is not None and t.dtype == "float" and not t.is_weight]
    if len(feeds) < _LEAST or not names:
        return None
    wide = copy_of(model)
    del wide.graph.output[:]
    ends = [(name, end) for name in names for end in _ENDS]
    wide.graph.node.extend(helper.make_node(end, [name], [f"{name}{end}"], keepdims=0) for name, end in ends)
    wide.graph.output.extend(ValueInfoProto(name=f"{name}{end}") for name, end in ends)
    rows = Session(wide).runs(feeds)
    spans = np.asarray([[row[f"{name}{end}"] for name, end in ends] for row in rows], np.float64)
    spans = spans.reshape(len(rows), len(names), 2)
    spans = spans[:, np.isfinite(spans).all(axis=(0, 2))]
    if not spans.size:
        return None

    def widths(some: Doubles) -> Doubles:
        return np.asarray(some[:, :, 1].max(axis=0) - some[:, :, 0].min(axis=0))

    places, wanted = np.arange(len(rows)), _COVERED * widths(spans)
    halves = [places >> bit & 1 == side for bit in range((len(rows) - 1).bit_length() - 1) for side in (0, 1)]
    missed = [float((widths(spans[half]) < wanted).mean()) for half in halves]
    return RangeGrowth(samples=len(rows), tensors=spans.shape[1], unseen=sum(missed) / len(missed))


def takes_pictures(facts: GraphFacts) -> bool:
    """True where the first float input looks like a picture, whose first layers then tell how it was prepared."""
    return _first_float(facts)[1] > 0


def _first_float(facts: GraphFacts) -> tuple[str, int]:
    """The first float input, "" for none, and its colours: 1 or 3 for a picture, channels first, else 0."""
    name = next((name for name in facts.inputs if facts.tensors[name].is_float), "")
    shape = facts.tensors[name].shape if name else None
    return name, int(shape[1]) if shape is not None and len(shape) == 4 and shape[1] in (1, 3) else 0


def data_fit(model: ModelProto, facts: GraphFacts, feeds: Feeds, known: DataFit) -> DataFit:
    """``known`` with what a few samples of a float model tell about its first float input.

    The weights of a model that takes pictures are loaded. Raises InputError where its first layers do not run on them.
    """
    name, colours = _first_float(facts)
    if not name:
        return known
    some = [feeds[at] for at in evenly_chosen(len(feeds), LOOKED_AT)]
    values = [np.asarray(feed[name], np.float64) for feed in some]
    low, high = min(float(value.min()) for value in values), max(float(value.max()) for value in values)
    graph, chain, reached = view_of(model), list[NodeFact](), name
    # The nodes behind a picture, as long as each result has one reader.
    while colours and len(chain) < _STEPS and (reader := facts.only_reader(reached)) is not None:
        chain.append(reader)
        reached = reader.outputs[0]
    changes = _changes([feed[name] for feed in some], low, high, colours) if chain else {}
    preparation = _preparation(chain, graph, some, name, changes)
    layer = next((node for node in chain if has(node, Trait.CONVOLVES)), None)
    divides_by = 0.0  # by the first operator behind the input; a factor counts as its reciprocal
    for node in facts.consumers_of(name):
        scale = next(filter(None, map(graph.scalar, node.inputs)), 0.0) if node.op_type in ("Div", "Mul") else 0.0
        divides_by = divides_by or (scale if not scale or node.op_type == "Div" else 1 / scale)
    first_layer = None
    if preparation is None and layer is not None:
        made = _runner(graph, some, name, layer.outputs[0])([np.asarray(feed[name]) for feed in some])
        first_layer = FirstLayer(node=layer.label, deviation=float(np.median(made.std(axis=1))))
    return replace(
        known,
        input=name,
        low=low,
        high=high,
        whole_numbers=all(bool((value == np.round(value)).all()) for value in values),
        divides_by=divides_by,
        preparation=preparation,
        first_layer=first_layer,
    )


def _preparation(
    chain: Sequence[NodeFact],
    graph: GraphCopy,
    feeds: Feeds,
    name: str,
    changes: Mapping[str, list[Numbers]],
) -> Preparation | None:
    """How far data is from the statistics of the BatchNormalization right behind a convolution.

    None where there is no such norm, or it was never trained.
    """
    place = next((at for at, node in enumerate(chain) if node.op_type == "BatchNormalization"), 0)
    if not place or not has(chain[place - 1], Trait.CONVOLVES):
        return None
    norm = chain[place]
    if any(other not in graph.stored for other in norm.inputs[3:5]):
        return None
    mean, variance = (stored_values(graph.stored[other]).astype(np.float64) for other in norm.inputs[3:5])
    if not mean.any() and (variance == 1).all():
        return None
    run, known = _runner(graph, feeds, name, norm.inputs[0]), np.maximum(variance, 1e-12)

    def distance(values: Sequence[Numbers]) -> float:
        made = run(values)
        ratio = np.maximum(made.var(axis=1), 1e-12) / known
        shift = np.minimum((made.mean(axis=1) - mean) ** 2 / known, 1e6)
        return float(np.mean(np.abs(np.log(ratio)) + shift))

    return Preparation(
        node=norm.label,
        as_given=distance([np.asarray(feed[name]) for feed in feeds]),
        changed={change: distance(values) for change, values in changes.items()},
    )


def _changes(given: Sequence[Numbers], low: float, high: float, colours: int) -> dict[str, list[Numbers]]:
    """The data as it would be with other preparations, by name; only those that make sense for its range."""
    found = dict[str, list[Numbers]]()
    unit: list[Numbers] = [np.asarray(value, np.float32) for value in given]
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


def _runner(graph: GraphCopy, feeds: Feeds, name: str, output: str) -> _Run:
    """A function that gives one tensor for other values of one input, as channels times the rest."""
    part = GraphCopy(graph.model)
    del part.model.graph.output[:]
    part.model.graph.output.add().name = output
    part.prune()
    session = Session(part.model)

    def run(values: Sequence[Numbers]) -> Doubles:
        made = [session.run({**feed, name: v})[output] for feed, v in zip(feeds, values, strict=True)]
        return np.concatenate([np.moveaxis(v, 1, 0).reshape(v.shape[1], -1) for v in made], axis=1).astype(np.float64)

    return run
