"""Takes the compiled model apart into its distinct kernels, each with input sets over all values that it may be given.

A kernel is an operator with the Q/DQ pairs around it, alone or with the operators before and after it. Nothing is run
on a device.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping
from functools import cache
from hashlib import sha256
from typing import Any

import numpy as np
from onnx import ModelProto, TensorProto, ValueInfoProto

from deploykit.accuracy.simulate.sessions import Session
from deploykit.findings.records import Arrays, Names, Numbers, Record, Shape, field, replace
from deploykit.model.graph import GraphCopy
from deploykit.model.nodes import attribute, label, operand
from deploykit.model.ranges import ANYTHING, graph_bounds
from deploykit_ort_qnn.bench.pieces import PAIR, Pieces, anonymous, renamed, with_conversions
from deploykit_ort_qnn.bench.together import Span, covering
from deploykit_ort_qnn.rules.audit import BACKWARD, BEYOND

__all__ = ["Kernel", "kernels_of", "spared", "within_grids"]

# The range for a float input without a grid, whose values are unknown.
_FLOAT_SPAN = Span(low=-4.0, high=4.0)
# The input that must be positive: for other values the result of the operator is NaN.
_ABOVE_ZERO: Mapping[str, int] = {"Div": 1, "Mod": 1, **dict.fromkeys(("Log", "Pow", "Reciprocal", "Sqrt"), 0)}
# Inputs that hold boxes as two corners each; the second corner must not lie before the first. Without a grid, boxes do
# not begin before the map: the kernel of 2.51 moves such boxes into it.
_CORNERS: Mapping[str, int] = {"RoiAlign": 1}
RUNNING = ("CumSum",)
"""Operators that make each value of their result from the one before it."""
_PICKS = ("Gather", "GatherElements")
_WHOLE: Mapping[int, Any] = {TensorProto.INT32: np.int32, TensorProto.INT64: np.int64}
_GRID_POINTS = 256
_MOST_DENSE = 6
# The share of values that may lie at an end of their grid without meaning that they were cut off.
_FEW = 0.01
# An input with more values gets fewer sets: one set covers the grid many times over.
_MOST_ELEMENTS = 1 << 20
# A kernel with more values gets no sets: they would take more than half a gigabyte.
_MOST_GIVEN = 1 << 24


class Kernel(Record):
    """One distinct kernel, which all ``nodes`` have. ``key`` is equal for equal kernels; ``type`` is u8, u16 or float.

    ``steps`` are the scales of outputs with an integer grid. ``why`` says why it cannot be run, "" if it can: then
    ``samples`` hold its input sets, by the names in ``model``, which begin with ``prefix``. ``way`` names an operator's
    position and its repair way, "" for none.
    """

    key: str
    nodes: Names
    operators: Names
    place: str
    type: str
    prefix: str
    model: ModelProto
    samples: tuple[Arrays, ...] = ()
    steps: Mapping[str, float]
    why: str = ""
    way: str = ""


class _Cut(Record):
    """Operators cut out of a model: ``run`` are their positions, ``nodes`` those of the operators they replace."""

    model: ModelProto
    run: tuple[int, ...]
    place: str
    forward: bool
    nodes: list[int] = field(default_factory=list)


def kernels_of(model: ModelProto, *, only: Collection[str] | None = None) -> Iterator[Kernel]:
    """Yields every distinct kernel alone, then among its neighbours, in the order of the graph.

    ``only`` are labels of nodes: kernels of other nodes are left out.
    """
    if only is not None and not only:
        return
    pieces = Pieces(model)
    nodes = pieces.graph.nodes
    bounds = cache(lambda: graph_bounds(pieces.graph))
    asked = [at for at, node in enumerate(nodes) if only is None or label(node) in only]
    chosen = [at for at in asked if pieces.computes(nodes[at])]
    around = [run for at in chosen if len(run := pieces.inside(at)) > 1]
    places = [(at, pieces.alone(at), "alone") for at in chosen]
    places += [(run[len(run) // 2], run, "inside") for run in around]
    cuts = dict[str, _Cut]()
    ends = {value.name for value in (*model.graph.input, *model.graph.output)}
    for index, run, place in places:
        part = pieces.cut(run)
        if part is None:
            continue
        part = with_conversions(part, ends)
        # Computed indices that cannot be below zero, as those of a TopK: the kernel gets only such indices then.
        picked = {one.input[1] for at in run if (one := nodes[at]).op_type in _PICKS and len(one.input) > 1}
        picked -= pieces.static
        forward = bool(picked) and all(bounds().get(name, ANYTHING)[0] >= 0 for name in picked)
        key = sha256(anonymous(part) + (b" forward" if forward else b"")).hexdigest()
        cuts.setdefault(key, _Cut(model=part, run=run, place=place, forward=forward)).nodes.append(index)
    for number, (key, cut) in enumerate(cuts.items()):
        prefix = f"u{number}/"
        yield _KernelGraph(cut.model, prefix).kernel(
            forward=cut.forward,
            key=key,
            nodes=tuple(dict.fromkeys(label(nodes[index]) for index in cut.nodes)),
            operators=tuple(nodes[index].op_type for index in cut.run),
            place=cut.place,
        )


class _KernelGraph:
    """The small graph of one kernel, with all names behind a prefix: its grids, and what its inputs may hold."""

    def __init__(self, model: ModelProto, prefix: str) -> None:
        named = renamed(model, lambda n: n and prefix + n, lambda number, node: f"{prefix}{number}:{node.op_type}")
        self.graph, self._ends, self._prefix = GraphCopy(named, copy=False), named.graph, prefix

    def kernel(self, *, forward: bool, **about: Any) -> Kernel:
        """The kernel, with as many input sets as its smallest float input needs, or the reason why there are none.

        Indices count from both ends of an axis, with ``forward`` only from the beginning. The type is that of the first
        output's grid, else of the first input's, as for a comparison.
        """
        floats = [value for value in self._ends.input if value.type.tensor_type.elem_type == TensorProto.FLOAT]
        counts = [math.prod(_dims(value)) for value in floats]
        dense = max((math.ceil(_GRID_POINTS / max(count, 1)) for count in counts), default=1)
        dense = 1 if sum(counts) > _MOST_ELEMENTS else min(dense, _MOST_DENSE)
        why = ""
        if sum(math.prod(_dims(value)) for value in (*self._ends.input, *self._ends.output)) > _MOST_GIVEN:
            why = f"it reads and makes more than {_MOST_GIVEN:,} values"
        given = dict[str, list[Numbers]]()
        for number, value in enumerate(() if why else self._ends.input):
            given[value.name] = self._values(value, number, dense, forward=forward)
            if not given[value.name]:
                given, why = {}, f"what its input {value.name.partition('/')[2]} may hold is not known"
                break
        zeros = (self._grid(value.name)[1] for value in (*self._ends.output, *self._ends.input))
        zero = next((zero for zero in zeros if zero is not None), None)
        scales = {value.name: self._grid(value.name)[0] for value in self._ends.output}
        return Kernel(
            type="float" if zero is None else "u8" if zero.dtype.itemsize == 1 else "u16",
            prefix=self._prefix,
            model=self.graph.model,
            samples=tuple(dict(zip(given, one, strict=True)) for one in zip(*given.values(), strict=True)),
            steps={name: float(scale.reshape(())) for name, scale in scales.items() if scale is not None},
            why=why,
            **about,
        )

    def _grid(self, name: str) -> tuple[Any, Any]:
        """Scale and zero point of a border tensor, from the half pair that
        makes or reads it; (None, None) without a pair.

        The scale is None if it is not one for the whole tensor.
        """
        pair = self.graph.makers.get(name)
        if pair is None or pair.op_type not in PAIR:
            pair = next((node for node in self.graph.readers(name) if node.op_type == PAIR[0]), None)
        if pair is None:
            return None, None
        scale = self.graph.array(pair.input[1])
        return (scale if scale is not None and scale.size == 1 else None), self.graph.array(operand(pair, 2))

    def _values(self, value: ValueInfoProto, number: int, dense: int, *, forward: bool) -> list[Numbers]:
        """The input sets of one input; empty if its values are unknown."""
        kind, shape, name = value.type.tensor_type.elem_type, _dims(value), value.name
        if kind in (TensorProto.FLOAT, TensorProto.FLOAT16):
            # The range of the input's grid; only its positive part if the operator is not defined for other values.
            is_paired = any(node.op_type == PAIR[0] for node in self.graph.readers(name))
            low, high, step = _FLOAT_SPAN.low, _FLOAT_SPAN.high, 2.0**-6
            scale, zero = self._grid(name) if is_paired else (None, None)
            if scale is not None and zero is not None:
                info, step, point = np.iinfo(zero.dtype), float(scale.reshape(())), float(zero.reshape(-1)[0])
                low, high = (info.min - point) * step, (info.max - point) * step
            if self._is_read_at(name, _ABOVE_ZERO) and high > 0:
                low = max(low, step)
            if not is_paired and self._is_read_at(name, _CORNERS):
                low = 0.0
            made = covering(shape, Span(low=low, high=max(low, high)), number, dense=dense, turned=bool(number % 2))
            if self._is_read_at(name, _CORNERS) and shape[-1] == 4:
                pairs = [np.sort(one.reshape(*shape[:-1], 2, 2), axis=-2) for one in made]  # the lesser corner first
                made = [np.asarray(one.reshape(shape), np.float32) for one in pairs]
            return [one.astype(np.float16) for one in made] if kind == TensorProto.FLOAT16 else made
        count = len(covering((1,), _FLOAT_SPAN, 0, dense=dense))
        random = np.random.default_rng(number)
        if kind == TensorProto.BOOL:
            return [random.random(shape) < part for part in np.linspace(0.0, 1.0, count)]
        # The length of the axis that integer indices point into; other integers may mean anything.
        picks = (one for one, at in self.graph.uses(name) if one.op_type in _PICKS and at == 1)
        pick = next(picks, None) if kind in _WHOLE else None
        if pick is None:
            return []
        # Before its pairs and conversions; the size may be unknown.
        read = self.graph.shape(self.graph.origin(pick.input[0], (*PAIR, "Cast")))
        size = read[attribute(pick, "axis", 0)] if read else 0
        if not size or isinstance(size, str):
            return []
        return [random.integers(0 if forward else -size, size, shape).astype(_WHOLE[kind]) for _ in range(count)]

    def _is_read_at(self, name: str, positions: Mapping[str, int]) -> bool:
        """True if such an operator reads the tensor at its listed position, perhaps through pairs and conversions."""
        carried = [name]
        for one in carried:
            carried += [node.output[0] for node in self.graph.readers(one) if node.op_type in (*PAIR, "Cast")]
        uses = (use for one in carried for use in self.graph.uses(one))
        return any(positions.get(node.op_type) == at for node, at in uses)


def _dims(value: ValueInfoProto) -> Shape:
    return tuple(dim.dim_value for dim in value.type.tensor_type.shape.dim)


def within_grids(kernel: Kernel, *, results: bool = False) -> Kernel:
    """A kernel with only those input sets that keep the tensors inside it within their grids.

    Calibrated grids hold what real inputs produce. Beyond their ends, fused operators cut off later than the file says,
    which is no fault. Sets that go beyond are scaled towards zero. With ``results``, running sums that end the kernel
    are kept within their grid, too.
    """
    graph = GraphCopy(kernel.model, copy=False)
    ends = {value.name for value in (*kernel.model.graph.input, *kernel.model.graph.output)}
    # By the name of an inner integer tensor: the ends of its type that mean
    # a cut-off, the share of values allowed there.
    inner = dict[str, tuple[list[int], float]]()
    for node in graph.nodes:
        zero = graph.array(operand(node, 2)) if node.op_type == PAIR[0] else None
        if zero is None:
            continue
        behind = {name for reader in graph.readers(node.output[0]) for name in reader.output}
        maker = graph.makers.get(node.input[0])
        runs_on = maker is not None and maker.op_type in RUNNING
        if (node.input[0] not in ends and ends.isdisjoint(behind)) or (runs_on and results):
            info, point = np.iinfo(zero.dtype), int(np.reshape(zero, -1)[0])
            # A Relu ends at zero rightly.
            inner[node.output[0]] = [end for end in (info.min, info.max) if end != point], 0.0 if runs_on else _FEW
    if not inner:
        return kernel

    def is_cut_off(sample: Arrays) -> bool:
        made = session.run(sample)
        shares = ((np.mean(made[name] == end), few) for name, (cut, few) in inner.items() for end in cut)
        return any(share > few for share, few in shares)

    session, kept = Session(kernel.model, capture=[*inner]), []
    for sample in kernel.samples:
        for part in (1.0, 0.5, 0.25, 0.1):
            shrunk = (
                sample
                if part == 1.0
                else {
                    name: np.asarray(value * part, value.dtype) if np.issubdtype(value.dtype, np.floating) else value
                    for name, value in sample.items()
                }
            )
            if not is_cut_off(shrunk):
                kept.append(shrunk)
                break
    why = "" if kept else "what lies inside of it leaves its grid whatever it is given"
    return replace(kernel, samples=tuple(kept), why=why)


def spared(kernels: Iterable[Kernel]) -> Iterator[tuple[str, Kernel]]:
    """Yields what may alone make a kernel wrong, with the kernel given samples without it."""

    def counts_back(values: Numbers) -> bool:
        return bool(np.issubdtype(values.dtype, np.integer) and np.any(values < 0))

    for kernel in kernels:
        if any(counts_back(value) for sample in kernel.samples for value in sample.values()):
            # As many places from the beginning of the axis as the index counts from its end.
            forward = tuple(
                {name: np.where(v < 0, -1 - v, v) if counts_back(v) else v for name, v in sample.items()}
                for sample in kernel.samples
            )
            yield BACKWARD, replace(kernel, key=f"{kernel.key} counting forward", samples=forward)
        elif not {*RUNNING}.isdisjoint(kernel.operators):
            yield BEYOND, replace(within_grids(kernel, results=True), key=f"{kernel.key} within its grid")
