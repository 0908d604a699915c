"""Takes the model that is compiled apart into its distinct kernels, each with input sets over all that it may be given.

A kernel is an operator with the Q/DQ pairs around it, alone or with the operators before and after it. Nothing is run.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from hashlib import sha256
from typing import TYPE_CHECKING, Any

import numpy as np
from onnx import ModelProto, NodeProto, TensorProto, ValueInfoProto, shape_inference

from deploykit.accuracy.simulate.sessions import Session
from deploykit.model.graph import GraphCopy, copy_of
from deploykit.model.nodes import label
from deploykit.model.ranges import ANYTHING, Interval, graph_bounds
from deploykit.model.weights import constant_values
from deploykit_ort_qnn.audit_borders import with_conversions
from deploykit_ort_qnn.audit_runs import Runs
from deploykit_ort_qnn.bench.inputs import Span, covering
from deploykit_ort_qnn.excerpts import PAIR, Excerpts, anonymous

if TYPE_CHECKING:
    from deploykit_ort_qnn.bench.inputs import Numbers

__all__ = ["RUNNING", "Kernel", "kernels_of", "prefixed", "within_grids"]

_FLOAT_SPAN = Span(low=-4.0, high=4.0)
"""What a float input is given: nothing says what it may hold."""
_ABOVE_ZERO: Mapping[str, tuple[int, ...]] = {
    "Div": (1,),
    "Log": (0,),
    "Mod": (1,),
    "Pow": (0,),
    "Reciprocal": (0,),
    "Sqrt": (0,),
}
"""Inputs of which zero and what lies below are no question: no number is the answer."""
_CORNERS: Mapping[str, tuple[int, ...]] = {"RoiAlign": (1,)}
"""Inputs that hold boxes by two corners each: the second lies behind the first, else nothing is defined.

Where no grid says that they may begin before the map does they do not: the kernel of 2.51 moves such boxes into it.
"""
RUNNING = ("CumSum",)
"""Operators that make each value of their result from the one before it."""
_PICKS = ("Gather", "GatherElements")
_WHOLE = (TensorProto.INT32, TensorProto.INT64)
_GRID_POINTS = 256
_MOST_DENSE = 6
_FEW = 0.01
"""The share of values that may lie on an end of their grid where nothing follows from it."""
_MOST_ELEMENTS = 1 << 20
"""An input beyond it gets fewer sets: its values cover the grid many times over."""


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


def kernels_of(model: ModelProto, *, only: Collection[str] | None = None) -> Iterator[Kernel]:
    """Every distinct kernel alone, then among its neighbours, in the order of the graph.

    ``only`` are labels of nodes: what is about no other node is left out.
    """
    if only is not None and not only:
        return
    graph, excerpts = GraphCopy(model, copy=False), Excerpts(model)
    static = graph.static()
    found = Runs(graph, static)
    operators = [
        index
        for index, node in enumerate(graph.nodes)
        if found.computes(node) and (only is None or label(node) in only)
    ]
    runs = [(index, found.alone(index), "alone") for index in operators]
    inside = [run for index in operators if len(run := found.inside(index)) > 1]
    runs += [(run[len(run) // 2], run, "inside") for run in inside]
    cuts: dict[str, _Cut] = {}
    places = _Places(graph, static)
    ends = {value.name for value in (*model.graph.input, *model.graph.output)}
    for index, run, place in runs:
        excerpt = excerpts.cut(run)
        if excerpt is not None:
            part, forward = with_conversions(excerpt.model, ends), places.count_forward(run)
            key = sha256(anonymous(part) + (b" forward" if forward else b"")).hexdigest()
            cut = cuts.setdefault(key, _Cut(model=part, run=run, place=place, forward=forward))
            cut.nodes.append(index)
    for number, (key, cut) in enumerate(cuts.items()):
        yield _kernel(graph, cut, key, f"u{number}/")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Cut:
    """Operators cut out of a model: ``run`` are the positions of the first ones, ``nodes`` those that it is about."""

    model: ModelProto
    run: tuple[int, ...]
    place: str
    forward: bool
    nodes: list[int] = field(default_factory=list)


class _Places:
    """What is known of computed indices: those that a TopK gives, for one, never count from the end of an axis."""

    def __init__(self, graph: GraphCopy, static: Collection[str]) -> None:
        self._graph, self._static = graph, static

    def count_forward(self, run: Iterable[int]) -> bool:
        """True where operators of a run read computed indices, and none of these can be below zero."""
        nodes = [self._graph.nodes[index] for index in run]
        names = {node.input[1] for node in nodes if node.op_type in _PICKS and len(node.input) > 1} - {*self._static}
        return bool(names) and all(self._bounds.get(name, ANYTHING)[0] >= 0 for name in names)

    @cached_property
    def _bounds(self) -> Mapping[str, Interval]:
        return graph_bounds(self._graph)


def within_grids(kernel: Kernel, *, results: bool = False) -> Kernel:
    """A kernel with those input sets only that keep what lies inside of it within its grids.

    Calibrated grids hold what real inputs make of them. Beyond their ends operators that were made one cut off later
    than the file says: no fault of theirs. Sets that go beyond are brought nearer to zero, by halves. With ``results``
    sums that run on and end the kernel are kept within their grid, too.
    """
    inner = _inner_integers(kernel, results=results)
    if not inner:
        return kernel
    session = Session(kernel.model, capture=inner)
    kept = []
    for sample in kernel.samples:
        for shrunk in (sample, _nearer(sample, 0.5), _nearer(sample, 0.25), _nearer(sample, 0.1)):
            made = session.run(shrunk)
            if not any(_is_cut_off(made[name], zero, few) for name, (zero, few) in inner.items()):
                kept.append(shrunk)
                break
    why = "" if kept else "what lies inside of it leaves its grid whatever it is given"
    return replace(kernel, samples=tuple(kept), why=why)


def _inner_integers(kernel: Kernel, *, results: bool) -> dict[str, tuple[Any, float]]:
    """Of integers inside, with ``results`` of running sums at the end, too: zero points, how many may lie on an end."""
    graph = GraphCopy(kernel.model, copy=False)
    ends = {value.name for value in (*kernel.model.graph.input, *kernel.model.graph.output)}
    found = {}
    for node in graph.nodes:
        if node.op_type == "QuantizeLinear" and len(node.input) > 2:
            behind = {name for reader in graph.readers(node.output[0]) for name in reader.output}
            zero = _value(graph, node.input[2])
            maker = graph.makers.get(node.input[0])
            runs_on = maker is not None and maker.op_type in RUNNING
            is_inside = node.input[0] not in ends and ends.isdisjoint(behind)
            if (is_inside or (runs_on and results)) and zero is not None:
                found[node.output[0]] = zero, 0.0 if runs_on else _FEW
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


def _kernel(graph: GraphCopy, cut: _Cut, key: str, prefix: str) -> Kernel:
    named = prefixed(cut.model, prefix)
    inside = GraphCopy(named, copy=False)
    steps = {value.name: step for value in named.graph.output if (step := _step(inside, value.name))}
    samples, why = _samples(inside, named, forward=cut.forward)
    return Kernel(
        key=key,
        nodes=tuple(dict.fromkeys(label(graph.nodes[index]) for index in cut.nodes)),
        operators=tuple(graph.nodes[index].op_type for index in cut.run),
        place=cut.place,
        type=_type(inside, named),
        prefix=prefix,
        model=named,
        samples=samples,
        steps=steps,
        why=why,
    )


def prefixed(model: ModelProto, prefix: str) -> ModelProto:
    """A copy in which every name of a tensor or node begins with the prefix."""
    copy = copy_of(model)
    graph = copy.graph
    for value in (*graph.input, *graph.output, *graph.initializer):
        value.name = prefix + value.name
    for number, node in enumerate(graph.node):
        node.input[:] = [name and prefix + name for name in node.input]
        node.output[:] = [name and prefix + name for name in node.output]
        node.name = f"{prefix}{number}:{node.op_type}"
    del graph.value_info[:]
    return copy


def _pair_of(graph: GraphCopy, name: str) -> NodeProto | None:
    """The pair whose scale a border tensor has: it is made by one half, or read by the other."""
    maker = graph.makers.get(name)
    if maker is not None and maker.op_type in PAIR:
        return maker
    return next((node for node in graph.readers(name) if node.op_type == "QuantizeLinear"), None)


def _step(graph: GraphCopy, name: str) -> float:
    """The scale of a tensor per tensor, 0 where it has none."""
    pair = _pair_of(graph, name)
    scale = _value(graph, pair.input[1]) if pair is not None else None
    return float(scale.reshape(-1)[0]) if scale is not None and scale.size == 1 else 0.0


def _value(graph: GraphCopy, name: str) -> Any:
    stored = graph.stored.get(name)
    return None if stored is None else constant_values(stored)


def _type(graph: GraphCopy, model: ModelProto) -> str:
    """By the grid of the first output, else of the first input: what a comparison answers has none."""
    for value in (*model.graph.output, *model.graph.input):
        zero = _zero(graph, value.name)
        if zero is not None:
            return "u8" if zero.dtype.itemsize == 1 else "u16"
    return "float"


def _zero(graph: GraphCopy, name: str) -> Any:
    pair = _pair_of(graph, name)
    return _value(graph, pair.input[2]) if pair is not None and len(pair.input) > 2 else None


def _samples(graph: GraphCopy, model: ModelProto, *, forward: bool) -> tuple[tuple[dict[str, Numbers], ...], str]:
    """As many sets as the smallest float input needs, or why there are none."""
    floats = [value for value in model.graph.input if value.type.tensor_type.elem_type == TensorProto.FLOAT]
    counts = [math.prod(_shape(value)) for value in floats]
    if sum(counts) > _MOST_ELEMENTS:
        dense = 1
    else:
        dense = max((math.ceil(_GRID_POINTS / max(count, 1)) for count in counts), default=1)
    sets: list[dict[str, Numbers]] = []
    for number, value in enumerate(model.graph.input):
        values = _values(graph, value, number, min(dense, _MOST_DENSE), forward=forward)
        if isinstance(values, str):
            return (), values
        sets = sets or [{} for _ in values]
        for feed, one in zip(sets, values, strict=True):
            feed[value.name] = one
    return tuple(sets), "" if sets else "it has no input"


def _values(graph: GraphCopy, value: ValueInfoProto, number: int, dense: int, *, forward: bool) -> list[Numbers] | str:
    """The sets of one input, or why it has none; indices count from both ends of an axis, or ``forward`` alone."""
    kind, shape, name = value.type.tensor_type.elem_type, _shape(value), value.name
    if kind in (TensorProto.FLOAT, TensorProto.FLOAT16):
        half = kind == TensorProto.FLOAT16
        made = covering(shape, _span(graph, name), number, dense=dense, turned=bool(number % 2))
        if _is_read_at(graph, name, _CORNERS):
            made = [_in_order(one) for one in made]
        return [one.astype(np.float16) for one in made] if half else made
    count = len(covering((1,), _FLOAT_SPAN, 0, dense=dense))
    random = np.random.default_rng(number)
    if kind == TensorProto.BOOL:
        return [random.random(shape) < part for part in np.linspace(0.0, 1.0, count)]
    if kind in _WHOLE:
        size = _places(graph, name)
        if size:
            dtype = np.int32 if kind == TensorProto.INT32 else np.int64
            return [random.integers(0 if forward else -size, size, shape).astype(dtype) for _ in range(count)]
    return f"what its input {name.partition('/')[2]} may hold is not known"


def _shape(value: ValueInfoProto) -> tuple[int, ...]:
    return tuple(dim.dim_value for dim in value.type.tensor_type.shape.dim)


def _span(graph: GraphCopy, name: str) -> Span:
    """The range of the input's grid; above zero where the operator that reads it is not defined below."""
    pair = next((node for node in graph.readers(name) if node.op_type == "QuantizeLinear"), None)
    low, high, step = _FLOAT_SPAN.low, _FLOAT_SPAN.high, 2.0**-6
    if pair is not None:
        scale, zero = _value(graph, pair.input[1]), _zero(graph, name)
        if scale is not None and zero is not None and scale.size == 1:
            info, step = np.iinfo(zero.dtype), float(scale.reshape(-1)[0])
            point = float(zero.reshape(-1)[0])
            low, high = (info.min - point) * step, (info.max - point) * step
    if _is_read_at(graph, name, _ABOVE_ZERO) and high > 0:
        low = max(low, step)
    if pair is None and _is_read_at(graph, name, _CORNERS):
        low = 0.0
    return Span(low=low, high=max(low, high))


def _is_read_at(graph: GraphCopy, name: str, positions: Mapping[str, tuple[int, ...]]) -> bool:
    """Whether a tensor, by itself or through its pairs, is one of these inputs of such an operator."""
    return any(
        name_in in _carried(graph, name)
        for node in graph.nodes
        for position in positions.get(node.op_type, ())
        if position < len(node.input)
        for name_in in [node.input[position]]
    )


def _in_order(boxes: Numbers) -> Numbers:
    """Each box with its lesser corner first; what is no row of two corners stays."""
    if boxes.shape[-1] != 4:
        return boxes
    corners = np.sort(boxes.reshape(*boxes.shape[:-1], 2, 2), axis=-2)
    return np.asarray(corners.reshape(boxes.shape), dtype=boxes.dtype)


def _carried(graph: GraphCopy, name: str) -> set[str]:
    """A tensor and what its pairs and conversions make of it."""
    found = {name}
    for node in graph.readers(name):
        if node.op_type in (*PAIR, "Cast"):
            found |= _carried(graph, node.output[0])
    return found


def _places(graph: GraphCopy, name: str) -> int:
    """How long the axis is that an input of whole numbers points into, 0 where it is no such input."""
    for node in graph.readers(name):
        if node.op_type in _PICKS and len(node.input) > 1 and node.input[1] == name:
            axis = next((setting.i for setting in node.attribute if setting.name == "axis"), 0)
            data = graph.stored.get(node.input[0])
            shape = tuple(data.dims) if data is not None else _known_shape(graph, node.input[0])
            return int(shape[axis]) if shape else 0
    return 0


def _known_shape(graph: GraphCopy, name: str) -> tuple[int, ...]:
    """The shape of a tensor: of what it was before its pairs and conversions, where that is an input or stored."""
    node = graph.makers.get(name)
    while node is not None and node.op_type in (*PAIR, "Cast"):
        name = node.input[0]
        node = graph.makers.get(name)
    stored = graph.stored.get(name)
    if stored is not None:
        return tuple(stored.dims)
    given = next((value for value in graph.model.graph.input if value.name == name), None)
    if given is not None:
        return _shape(given)
    inferred = shape_inference.infer_shapes(graph.model).graph.value_info
    return next((_shape(value) for value in inferred if value.name == name), ())
