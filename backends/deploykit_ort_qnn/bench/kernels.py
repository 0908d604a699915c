"""Takes the model that is compiled apart into its distinct kernels, each with input sets over all that it may be given.

A kernel is an operator with the Q/DQ pairs around it, alone or with the operators before and after it. Nothing is run
on a device.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from hashlib import sha256
from typing import TYPE_CHECKING, Any

import numpy as np
from onnx import ModelProto, NodeProto, TensorProto, ValueInfoProto, shape_inference

from deploykit.accuracy.simulate.sessions import Session
from deploykit.model.graph import GraphCopy
from deploykit.model.nodes import attribute, label
from deploykit.model.ranges import ANYTHING, graph_bounds
from deploykit.model.weights import constant_values
from deploykit_ort_qnn.bench.pieces import PAIR, Excerpts, KernelRuns, anonymous, renamed, with_conversions
from deploykit_ort_qnn.bench.together import Span, covering
from deploykit_ort_qnn.rules.audit import BACKWARD, BEYOND

if TYPE_CHECKING:
    from deploykit_ort_qnn.bench.together import Numbers

__all__ = ["RUNNING", "Kernel", "kernels_of", "spared", "within_grids"]

# What a float input is given: nothing says what it may hold.
_FLOAT_SPAN = Span(low=-4.0, high=4.0)
# Inputs of which zero and what lies below are no question: no number is the answer.
_ABOVE_ZERO: Mapping[str, tuple[int, ...]] = {
    "Div": (1,),
    "Mod": (1,),
    **dict.fromkeys(("Log", "Pow", "Reciprocal", "Sqrt"), (0,)),
}
# Inputs that hold boxes by two corners each: the second lies behind the first, else nothing is defined. Where no grid
# says that they may begin before the map does they do not: the kernel of 2.51 moves such boxes into it.
_CORNERS: Mapping[str, tuple[int, ...]] = {"RoiAlign": (1,)}
RUNNING = ("CumSum",)
"""Operators that make each value of their result from the one before it."""
_PICKS = ("Gather", "GatherElements")
_WHOLE: Mapping[int, Any] = {TensorProto.INT32: np.int32, TensorProto.INT64: np.int64}
_GRID_POINTS = 256
_MOST_DENSE = 6
# The share of values that may lie on an end of their grid where nothing follows from it.
_FEW = 0.01
# An input beyond it gets fewer sets: its values cover the grid many times over.
_MOST_ELEMENTS = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Kernel:
    """One distinct kernel, of all ``nodes``. ``key`` is equal for equal ones; ``type`` is its result's: u8, u16, float.

    ``steps`` are the scales of outputs with an integer grid. ``why`` says why it cannot be asked, "" where it can:
    then there are ``samples``, by the names in ``model``, which begin with ``prefix``.
    """

    key: str
    nodes: tuple[str, ...]
    operators: tuple[str, ...]
    place: str
    type: str
    prefix: str
    model: ModelProto
    samples: tuple[Mapping[str, Numbers], ...] = ()
    steps: Mapping[str, float]
    why: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Cut:
    """Operators cut out of a model: ``run`` are the positions of the first ones, ``nodes`` those that it is about."""

    model: ModelProto
    run: tuple[int, ...]
    place: str
    forward: bool
    nodes: list[int] = field(default_factory=list)


def kernels_of(model: ModelProto, *, only: Collection[str] | None = None) -> Iterator[Kernel]:
    """Every distinct kernel alone, then among its neighbours, in the order of the graph.

    ``only`` are labels of nodes: what is about no other node is left out.
    """
    if only is not None and not only:
        return
    graph, excerpts = GraphCopy(model, copy=False), Excerpts(model)
    static = graph.static()
    runs, counts_forward = KernelRuns(graph, static), _forward_counter(graph, static)
    nodes = [(at, node) for at, node in enumerate(graph.nodes) if only is None or label(node) in only]
    chosen = [at for at, node in nodes if runs.computes(node)]
    around = [run for index in chosen if len(run := runs.inside(index)) > 1]
    places = [(index, runs.alone(index), "alone") for index in chosen]
    places += [(run[len(run) // 2], run, "inside") for run in around]
    cuts: dict[str, _Cut] = {}
    ends = {value.name for value in (*model.graph.input, *model.graph.output)}
    for index, run, place in places:
        excerpt = excerpts.cut(run)
        if excerpt is not None:
            part, forward = with_conversions(excerpt.model, ends), counts_forward(run)
            key = sha256(anonymous(part) + (b" forward" if forward else b"")).hexdigest()
            cuts.setdefault(key, _Cut(model=part, run=run, place=place, forward=forward)).nodes.append(index)
    for number, (key, cut) in enumerate(cuts.items()):
        yield _kernel(graph, cut, key, f"u{number}/")


def _forward_counter(graph: GraphCopy, static: Collection[str]) -> Callable[[Iterable[int]], bool]:
    """Tells of a run whether it reads computed indices, none of which can be below zero: those of a TopK, for one."""
    bounds: dict[str, Any] = {}

    def counts_forward(run: Iterable[int]) -> bool:
        nodes = [graph.nodes[index] for index in run]
        names = {node.input[1] for node in nodes if node.op_type in _PICKS and len(node.input) > 1} - {*static}
        if names and not bounds:
            bounds.update(graph_bounds(graph))
        return bool(names) and all(bounds.get(name, ANYTHING)[0] >= 0 for name in names)

    return counts_forward


def _kernel(graph: GraphCopy, cut: _Cut, key: str, prefix: str) -> Kernel:
    named = renamed(cut.model, lambda n: n and prefix + n, lambda number, node: f"{prefix}{number}:{node.op_type}")
    inside = _KernelGraph(named)
    steps = {value.name: step for value in named.graph.output if (step := inside.step(value.name))}
    samples, why = inside.samples(forward=cut.forward)
    return Kernel(
        key=key,
        nodes=tuple(dict.fromkeys(label(graph.nodes[index]) for index in cut.nodes)),
        operators=tuple(graph.nodes[index].op_type for index in cut.run),
        place=cut.place,
        type=inside.type,
        prefix=prefix,
        model=named,
        samples=samples,
        steps=steps,
        why=why,
    )


class _KernelGraph:
    """The small graph of one kernel: its grids, and what its inputs may hold."""

    def __init__(self, model: ModelProto) -> None:
        self.graph = GraphCopy(model, copy=False)
        self._ends = model.graph

    def _pair_of(self, name: str) -> NodeProto | None:
        """The pair whose scale a border tensor has: it is made by one half, or read by the other."""
        maker = self.graph.makers.get(name)
        if maker is not None and maker.op_type in PAIR:
            return maker
        return next((node for node in self.graph.readers(name) if node.op_type == "QuantizeLinear"), None)

    def _value(self, name: str) -> Any:
        stored = self.graph.stored.get(name)
        return None if stored is None else constant_values(stored)

    def step(self, name: str) -> float:
        """The scale of a tensor as a whole, 0 where it has none."""
        pair = self._pair_of(name)
        scale = self._value(pair.input[1]) if pair is not None else None
        return float(scale.reshape(-1)[0]) if scale is not None and scale.size == 1 else 0.0

    def _zero(self, name: str) -> Any:
        pair = self._pair_of(name)
        return self._value(pair.input[2]) if pair is not None and len(pair.input) > 2 else None

    @property
    def type(self) -> str:
        """By the grid of the first output, else of the first input: what a comparison answers has none."""
        zeros = (self._zero(value.name) for value in (*self._ends.output, *self._ends.input))
        zero = next((zero for zero in zeros if zero is not None), None)
        return "float" if zero is None else "u8" if zero.dtype.itemsize == 1 else "u16"

    def samples(self, *, forward: bool) -> tuple[tuple[dict[str, Numbers], ...], str]:
        """As many sets as the smallest float input needs, or why there are none.

        Indices count from both ends of an axis, or ``forward`` alone.
        """
        floats = [value for value in self._ends.input if value.type.tensor_type.elem_type == TensorProto.FLOAT]
        counts = [math.prod(_dims(value)) for value in floats]
        dense = max((math.ceil(_GRID_POINTS / max(count, 1)) for count in counts), default=1)
        dense = 1 if sum(counts) > _MOST_ELEMENTS else min(dense, _MOST_DENSE)
        sets: list[dict[str, Numbers]] = []
        for number, value in enumerate(self._ends.input):
            values = self._values(value, number, dense, forward=forward)
            if not values:
                return (), f"what its input {value.name.partition('/')[2]} may hold is not known"
            sets = sets or [{} for _ in values]
            for feed, one in zip(sets, values, strict=True):
                feed[value.name] = one
        return tuple(sets), "" if sets else "it has no input"

    def _values(self, value: ValueInfoProto, number: int, dense: int, *, forward: bool) -> list[Numbers]:
        """The sets of one input; none where it is not known what it may hold."""
        kind, shape, name = value.type.tensor_type.elem_type, _dims(value), value.name
        if kind in (TensorProto.FLOAT, TensorProto.FLOAT16):
            made = covering(shape, self._span(name), number, dense=dense, turned=bool(number % 2))
            if self._is_read_at(name, _CORNERS) and shape[-1] == 4:
                pairs = [np.sort(one.reshape(*shape[:-1], 2, 2), axis=-2) for one in made]  # the lesser corner first
                made = [np.asarray(one.reshape(shape), np.float32) for one in pairs]
            return [one.astype(np.float16) for one in made] if kind == TensorProto.FLOAT16 else made
        count = len(covering((1,), _FLOAT_SPAN, 0, dense=dense))
        random = np.random.default_rng(number)
        if kind == TensorProto.BOOL:
            return [random.random(shape) < part for part in np.linspace(0.0, 1.0, count)]
        size = self._axis_size(name) if kind in _WHOLE else 0
        if not size:
            return []
        return [random.integers(0 if forward else -size, size, shape).astype(_WHOLE[kind]) for _ in range(count)]

    def _span(self, name: str) -> Span:
        """The range of the input's grid; above zero where the operator that reads it is not defined below."""
        pair = next((node for node in self.graph.readers(name) if node.op_type == "QuantizeLinear"), None)
        low, high, step = _FLOAT_SPAN.low, _FLOAT_SPAN.high, 2.0**-6
        scale, zero = (self._value(pair.input[1]), self._zero(name)) if pair is not None else (None, None)
        if scale is not None and zero is not None and scale.size == 1:
            info, step, point = np.iinfo(zero.dtype), float(scale.reshape(-1)[0]), float(zero.reshape(-1)[0])
            low, high = (info.min - point) * step, (info.max - point) * step
        if self._is_read_at(name, _ABOVE_ZERO) and high > 0:
            low = max(low, step)
        if pair is None and self._is_read_at(name, _CORNERS):
            low = 0.0
        return Span(low=low, high=max(low, high))

    def _is_read_at(self, name: str, positions: Mapping[str, tuple[int, ...]]) -> bool:
        """Whether a tensor, by itself or through its pairs, is one of these inputs of such an operator."""
        carried, todo = {name}, [name]
        while todo:
            for node in self.graph.readers(todo.pop()):
                if node.op_type in (*PAIR, "Cast") and node.output[0] not in carried:
                    carried.add(node.output[0])
                    todo.append(node.output[0])
        return any(
            node.input[position] in carried
            for node in self.graph.nodes
            for position in positions.get(node.op_type, ())
            if position < len(node.input)
        )

    def _axis_size(self, name: str) -> int:
        """How long the axis is that an input of whole numbers points into, 0 where it is no such input."""
        for node in self.graph.readers(name):
            if node.op_type in _PICKS and len(node.input) > 1 and node.input[1] == name:
                shape = self._shape(node.input[0])
                return int(shape[attribute(node, "axis", 0)]) if shape else 0
        return 0

    def _shape(self, name: str) -> tuple[int, ...]:
        """Of what a tensor was before its pairs and conversions, where that is an input, stored or inferred."""
        node = self.graph.makers.get(name)
        while node is not None and node.op_type in (*PAIR, "Cast"):
            name = node.input[0]
            node = self.graph.makers.get(name)
        stored = self.graph.stored.get(name)
        if stored is not None:
            return tuple(stored.dims)
        given = next((value for value in self._ends.input if value.name == name), None)
        if given is not None:
            return _dims(given)
        inferred = shape_inference.infer_shapes(self.graph.model).graph.value_info
        return next((_dims(value) for value in inferred if value.name == name), ())


def _dims(value: ValueInfoProto) -> tuple[int, ...]:
    return tuple(dim.dim_value for dim in value.type.tensor_type.shape.dim)


def within_grids(kernel: Kernel, *, results: bool = False) -> Kernel:
    """A kernel with those input sets only that keep what lies inside of it within its grids.

    Calibrated grids hold what real inputs make of them. Beyond their ends operators that were made one cut off later
    than the file says: no fault of theirs. Sets that go beyond are brought nearer to zero, by halves. With ``results``
    sums that run on and end the kernel are kept within their grid, too.
    """
    inner = _inner_integers(kernel, results=results)
    if not inner:
        return kernel
    session, kept = Session(kernel.model, capture=inner), []
    for sample in kernel.samples:
        for shrunk in (sample, *(_nearer(sample, part) for part in (0.5, 0.25, 0.1))):
            made = session.run(shrunk)
            if not any(_is_cut_off(made[name], zero, few) for name, (zero, few) in inner.items()):
                kept.append(shrunk)
                break
    why = "" if kept else "what lies inside of it leaves its grid whatever it is given"
    return replace(kernel, samples=tuple(kept), why=why)


def _inner_integers(kernel: Kernel, *, results: bool) -> dict[str, tuple[Any, float]]:
    """Of integers inside, with ``results`` of running sums at the end, too: zero points, how many may lie on an end."""
    graph, found = GraphCopy(kernel.model, copy=False), {}
    ends = {value.name for value in (*kernel.model.graph.input, *kernel.model.graph.output)}
    for node in graph.nodes:
        zero = graph.stored.get(node.input[2]) if node.op_type == "QuantizeLinear" and len(node.input) > 2 else None
        if zero is None:
            continue
        behind = {name for reader in graph.readers(node.output[0]) for name in reader.output}
        maker = graph.makers.get(node.input[0])
        runs_on = maker is not None and maker.op_type in RUNNING
        if (node.input[0] not in ends and ends.isdisjoint(behind)) or (runs_on and results):
            found[node.output[0]] = constant_values(zero), 0.0 if runs_on else _FEW
    return found


def _is_cut_off(values: Numbers, zero: Any, few: float) -> bool:
    """True where more than that share lies on an end of the type that is not zero: a Relu ends there rightly."""
    info, point = np.iinfo(values.dtype), int(np.reshape(zero, -1)[0])
    ends = [end for end in (info.min, info.max) if end != point]
    return any(float(np.mean(values == end)) > few for end in ends)


def _nearer(sample: Mapping[str, Numbers], part: float) -> dict[str, Numbers]:
    return {
        name: np.asarray(value * part, value.dtype) if np.issubdtype(value.dtype, np.floating) else value
        for name, value in sample.items()
    }


def spared(kernels: Iterable[Kernel]) -> Iterator[tuple[str, Kernel]]:
    """Of kernels that are given what may alone show them to be wrong, what that is, and the same without it."""
    for kernel in kernels:
        if any(_counts_back(value) for sample in kernel.samples for value in sample.values()):
            # As many places from the beginning of an axis as indices count from its end.
            forward = tuple(
                {n: np.where(v < 0, -1 - v, v) if _counts_back(v) else v for n, v in sample.items()}
                for sample in kernel.samples
            )
            yield BACKWARD, replace(kernel, key=f"{kernel.key} counting forward", samples=forward)
        elif not {*RUNNING}.isdisjoint(kernel.operators):
            yield BEYOND, replace(within_grids(kernel, results=True), key=f"{kernel.key} within its grid")


def _counts_back(values: Numbers) -> bool:
    return bool(np.issubdtype(values.dtype, np.integer) and np.any(values < 0))
