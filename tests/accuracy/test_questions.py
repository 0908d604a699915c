"""What inputs are made of a graph, what its outputs are, and what is said of outputs that differ."""

import math
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from deploykit.accuracy.judge.judge import judge_outputs
from deploykit.accuracy.judge.kinds import detection_sets, pieces_of
from deploykit.accuracy.judge.verdict import Context
from deploykit.accuracy.samples.domains import encoded_range, input_domains
from deploykit.accuracy.samples.gathering import gather
from deploykit.accuracy.samples.inputs import input_specs
from deploykit.accuracy.search.layer_losses import layers_of
from deploykit.accuracy.simulate.graph_pieces import GraphPieces
from deploykit.accuracy.simulate.quantizers import fake_quantize, quantizers_of
from deploykit.model.collect import constant_value
from graph_questions import Asked, answers_of
from told import verdict_lines

LARGEST = 3000
"""The values that are looked at of a tensor, or of a sample."""


def numbers(values: Any) -> str:
    return "/".join(f"{value:.4g}" for value in np.asarray(values, np.float64).ravel()[:9])


def inputs(asked: Asked) -> Iterator[str]:
    """What is known of the values of each, and the first ones that are made."""
    facts = asked.facts
    read = lambda name: constant_value(asked.model, name)  # noqa: E731
    for name, one in input_domains(facts, read).items():
        yield f"{name} from {one.low} to {one.high}{', a mask' * one.is_mask}: {one.why} ({one.node or 'no operator'})"
    for name in facts.inputs:
        known = encoded_range(facts, read, asked.encodings, name)
        yield from [] if known is None else [f"{name} from {numbers(known.low)} to {numbers(known.high)}: {known.why}"]
    if sum(math.prod(one.made_shape) for one in input_specs(facts)) > LARGEST:
        return
    made = gather(asked.proto, facts, encodings=asked.encodings)
    yield made.described_for_humans
    for name, source in made.of_inputs.items():
        ends = [f"{numbers(feed[name].min())}..{numbers(feed[name].max())}" for feed in made.feeds if feed[name].size]
        yield f"{name} {source.label}: {source.why}; {' '.join(ends)}, first {numbers(made.feeds[0][name])}"


def kinds(asked: Asked) -> Iterator[str]:
    for piece in (piece for output in asked.facts.outputs for piece in pieces_of(asked.facts, output)):
        yield f"{piece.output} {piece}: {piece.kind}, {piece.task}, classes along {piece.class_axis}"
    for one in detection_sets(asked.facts):
        yield f"detections {', '.join(one.outputs)} of {one.sizes or 'no size'}"


def judged(asked: Asked) -> Iterator[str]:
    """Eight made-up samples of the outputs with noise, then with one that is turned and one that is twice as large."""
    facts, rng = asked.facts, np.random.default_rng(5)
    shapes = {name: facts.static_shape(name) for name in facts.outputs}
    known = {name: shape for name, shape in shapes.items() if shape and 0 < math.prod(shape) < LARGEST}
    one = [{name: rng.uniform(0, 1, shape) for name, shape in known.items()} for _ in range(8)]
    noisy = [{name: value + 0.03 * rng.normal(size=value.shape) for name, value in row.items()} for row in one]
    turned = {name: np.roll(value, 1, -1) for name, value in noisy[0].items()}
    damaged = [turned, {name: 2 * value for name, value in noisy[1].items()}, *noisy[2:]]
    for other in (noisy, damaged):
        yield from verdict_lines(judge_outputs(facts, Context(label="given"), one, other)) if known else []


def quantized(asked: Asked) -> Iterator[str]:
    """What quantizers make of stored values, or of -3 to 3; the layers that hold them, and the pieces of a run."""
    values, skipped = quantizers_of(asked.proto, asked.encodings)
    facts = asked.facts
    for name, value in values.items():
        stored, shape = constant_value(asked.model, name), facts.static_shape(name) or ()
        if math.prod(shape) > LARGEST:
            continue
        given = np.linspace(-3, 3, math.prod(shape)).reshape(shape) if stored is None else stored
        yield f"{name}: {numbers(fake_quantize(given, value))}"
    yield from (f"{name} is not simulated: {why}" for name, why in skipped.items())
    for layer in layers_of(facts, values):
        yield f"{layer.name} with {', '.join(layer.tensors)}"
    pieces = GraphPieces(asked.proto, facts.outputs, size=2)
    yield f"{pieces.pieces} hand on {pieces.crossing}, last {sorted(pieces.last.items())}, {sorted(pieces.opaque)}"


QUESTIONS: Mapping[str, Callable[[Asked], Iterator[str]]] = {
    "inputs": inputs,
    "judged": judged,
    "kinds": kinds,
    "quantized": quantized,
}

test_answers = answers_of(Path(__file__).with_name("graphs.txt"), QUESTIONS)
