"""A sensitivity analysis beside one whole run per tensor, at 1,000 operators, in one run; prints ratios, not seconds.

Run it by hand: ``python tests/lab/benchmarks/sensitivity.py``; no test times anything.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import onnx

from deploykit.accuracy.simulate.partial_runs import PartialRuns
from deploykit.accuracy.simulate.simulation import Simulator
from deploykit.encodings.new_grids import GridKind, affine_for_range
from deploykit.encodings.values import Encoding, EncodingSet, Value
from deploykit.findings.records import Arrays
from sample_models.tiny_graphs import TinyGraph

T = TypeVar("T")

WIDTH = 64
SAMPLED = 20
"""So many tensors stand for all in the slow way; spread over the graph."""


@dataclass(frozen=True)
class Ratios:
    """How many times faster than opening and running the whole model per tensor, and than only running it."""

    alone: float
    without: float
    alone_kept_open: float
    without_kept_open: float


def chain(operators: int) -> tuple[onnx.ModelProto, dict[str, Value]]:
    """A residual chain of MatMul, Add, Relu, Add: the worst case, since everything is behind everything before it."""
    rng = np.random.default_rng(0)
    graph = TinyGraph()
    x = graph.input("x", (1, WIDTH))
    values: dict[str, Value] = {}
    grid = affine_for_range(-4, 4, GridKind(bits=8, signed=False))
    for block in range(operators // 4):
        weight = graph.stored(f"w{block}", rng.normal(size=(WIDTH, WIDTH)) / np.sqrt(WIDTH) / 2)
        bias = graph.stored(f"b{block}", rng.normal(size=WIDTH) / 10)
        inner = graph.op(
            "Relu", [graph.op("Add", [graph.op("MatMul", [x, weight], f"m{block}"), bias], f"a{block}")], f"r{block}"
        )
        x = graph.op("Add", [x, inner], f"x{block}")
        values |= dict.fromkeys((weight, f"a{block}", f"r{block}", x), grid)
    return graph.model(x), values


def measure(operators: int = 1000, *, every: int = 1, sampled: int = SAMPLED) -> Ratios:
    """Both ways on two samples, per tensor: the fast one for each ``every``-th, the slow one for some of these."""
    model, values = chain(operators)
    rng = np.random.default_rng(1)
    feeds: list[Arrays] = [{"x": rng.normal(size=(1, WIDTH)).astype(np.float32)} for _ in range(2)]
    outputs = [item.name for item in model.graph.output]
    asked = list(values)[::every]
    some = asked[:: len(asked) // sampled]
    exact, exact_seconds = _timed(lambda: PartialRuns(model, feeds, wanted=outputs))
    quantized, quantized_seconds = _timed(lambda: PartialRuns(model, feeds, wanted=outputs, values=values))
    _, alone = _timed(lambda: [exact.run({name: values[name]}) for name in asked])
    _, without = _timed(lambda: [quantized.run({name: None}) for name in asked])
    fast = ((exact_seconds + alone) / len(asked), (quantized_seconds + without) / len(asked))
    opened = [_whole(model, feeds, {name: values[name]}) for name in some]
    left_out = [_whole(model, feeds, {n: v for n, v in values.items() if n != name}) for name in some]
    return Ratios(
        alone=float(np.mean([sum(both) for both in opened])) / fast[0],
        without=float(np.mean([sum(both) for both in left_out])) / fast[1],
        alone_kept_open=float(np.mean([run for _, run in opened])) / fast[0],
        without_kept_open=float(np.mean([run for _, run in left_out])) / fast[1],
    )


def _whole(model: onnx.ModelProto, feeds: list[Arrays], values: dict[str, Value]) -> tuple[float, float]:
    """Seconds to open a simulation and to run it."""
    entries = {name: Encoding(name=name, value=value) for name, value in values.items()}
    simulator, opening = _timed(lambda: Simulator(model, EncodingSet(version="", entries=entries)))
    _, running = _timed(lambda: [simulator.run(feed) for feed in feeds])
    return opening, running


def _timed(work: Callable[[], T]) -> tuple[T, float]:
    started = time.perf_counter()
    return work(), time.perf_counter() - started


if __name__ == "__main__":
    for count in (100, 300, 1000, 2000):
        found = measure(count)
        whole = f"{found.alone:.0f} and {found.without:.0f} x faster than opening and running the whole model"
        kept = f"{found.alone_kept_open:.1f} and {found.without_kept_open:.1f} x than only running it"
        print(f"{count} operators, one tensor quantized and one left float: {whole}; {kept}")
