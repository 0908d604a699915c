"""One operator of the compiled model with its pairs, and the nodes that are built to replace it.

It treats all operators alike and decides nothing. The replacement is put into
a copy of the graph as a whole, or not at all.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
from onnx import NodeProto, TensorProto, helper, numpy_helper

from deploykit.accuracy.simulate.sessions import Session
from deploykit.encodings.values import on_axis
from deploykit.errors import DeploykitError
from deploykit.findings.records import Numbers, Record, Shape
from deploykit.model.graph import GraphCopy
from deploykit.model.nodes import attribute
from deploykit.rewrites.contract import NoMatchError
from deploykit_ort_qnn.bench.pieces import PAIR

__all__ = ["OperatorPlace", "PairGrid"]

# From this operator set on, ONNX itself has Q/DQ pairs of 16 bits.
_MICROSOFT = "com.microsoft"
_WIDE_OPSET = 21


class PairGrid(Record):
    """The scale and the zero point of a Q/DQ pair: one of each, or one per channel along ``axis``."""

    scale: Numbers
    zero: Numbers
    axis: int = 1

    @property
    def low(self) -> float:
        """The least value on a grid with one scale."""
        return float((np.iinfo(self.zero.dtype).min - float(self.zero)) * float(self.scale))

    @property
    def high(self) -> float:
        """The greatest value on a grid with one scale."""
        return float((np.iinfo(self.zero.dtype).max - float(self.zero)) * float(self.scale))

    @property
    def bits(self) -> int:
        """The width of the grid's integers."""
        return 8 * self.zero.dtype.itemsize

    @classmethod
    def over(cls, low: float, high: float, dtype: npt.DTypeLike) -> PairGrid:
        """A grid that holds this range and zero; symmetric if the type is signed."""
        info, low, high = np.iinfo(np.dtype(dtype)), min(low, 0.0), max(high, 0.0)
        if info.min < 0:
            scale = max(-low, high) / info.max or 1.0
            return cls(scale=np.asarray(scale, np.float32), zero=np.asarray(0, info.dtype))
        scale = (high - low) / info.max or 1.0
        return cls(scale=np.asarray(scale, np.float32), zero=np.asarray(round(-low / scale), info.dtype))

    def integers(self, values: Numbers) -> Numbers:
        """The values as integers on a grid with one scale."""
        info = np.iinfo(self.zero.dtype)
        steps = np.rint(np.asarray(values, np.float64) / float(self.scale)) + float(self.zero)
        return np.clip(steps, info.min, info.max).astype(self.zero.dtype)


class OperatorPlace:
    """An operator with one result, and what is built in its place. Raises
    NoMatchError for more results or unknown sizes.

    Names of built tensors end in what the repair way calls them; ``finish`` puts the nodes into the graph.
    """

    def __init__(self, graph: GraphCopy, node: NodeProto) -> None:
        if len([name for name in node.output if name]) != 1:
            raise NoMatchError("it has more than one result")
        self.graph, self.node, self.result = graph, node, str(node.output[0])
        self._made: list[NodeProto] = []

    def shape(self, name: str) -> Shape:
        """The shape of a tensor. Raises NoMatchError if it is not known."""
        known = self.graph.shape(name)
        sizes = tuple(size for size in known or () if isinstance(size, int) and size > 0)
        if sizes != known:
            raise NoMatchError(f"the shape of {name} is not known")
        return sizes

    def assert_is(self, *operators: str) -> None:
        """Raises NoMatchError for another operator."""
        if self.node.op_type not in operators:
            raise NoMatchError(f"it is no {' or '.join(operators)}")

    def setting(self, name: str, default: Any) -> Any:
        """The value of one of the operator's attributes."""
        return attribute(self.node, name, default)

    @cached_property
    def grid(self) -> PairGrid | None:
        """The grid of the operator's result, None for a float."""
        return next((self._read(node) for node in self.graph.readers(self.result) if node.op_type == PAIR[0]), None)

    @property
    def result_grid(self) -> PairGrid:
        """The grid of the operator's result. Raises NoMatchError for a float."""
        if self.grid is None:
            raise NoMatchError("its result has no grid")
        return self.grid

    def _pair(self, name: str) -> NodeProto | None:
        """The DequantizeLinear that makes a tensor, None if another node does."""
        maker = self.graph.makers.get(name)
        return maker if maker is not None and maker.op_type == PAIR[1] else None

    def grid_of(self, name: str) -> PairGrid | None:
        """The grid of a tensor that the operator reads, None for a float."""
        pair = self._pair(name)
        return None if pair is None else self._read(pair)

    def one_grid(self, name: str) -> PairGrid:
        """The grid of a tensor that the operator reads. Raises NoMatchError if it has none, or more than one scale."""
        grid = self.grid_of(name)
        if grid is None or grid.scale.size != 1:
            raise NoMatchError(f"{name} has no grid of one scale")
        return grid

    def _read(self, pair: NodeProto) -> PairGrid:
        scale, zero = (self.graph.array(name) for name in pair.input[1:3])
        if scale is None or zero is None:
            raise NoMatchError("a grid around it is not stored")
        shaped = (scale.reshape(()), zero.reshape(())) if scale.size == 1 else (scale, zero)
        return PairGrid(scale=shaped[0], zero=shaped[1], axis=int(attribute(pair, "axis", 1)))

    def integers(self, name: str) -> Numbers | None:
        """The stored integers of a tensor that the operator reads; None for a float or a computed tensor."""
        pair = self._pair(name)
        return None if pair is None else self.graph.array(pair.input[0])

    def value(self, name: str) -> Numbers | None:
        """The stored values of a tensor as floats, None for a computed tensor."""
        stored, integers, grid = self.graph.array(name), self.integers(name), self.grid_of(name)
        if stored is not None or integers is None or grid is None:
            return stored
        sides = (grid.scale, grid.zero)
        scale, zero = (on_axis(side, grid.axis, integers.ndim) if side.size > 1 else side for side in sides)
        return np.asarray((integers.astype(np.float64) - zero.astype(np.float64)) * scale, np.float32)

    @cached_property
    def only_computed(self) -> str:
        """The operator's first input, if that is its only computed one. Raises NoMatchError otherwise."""
        computed = [name for name in self.node.input if name and self.value(name) is None]
        if len(computed) != 1 or computed[0] != self.node.input[0]:
            raise NoMatchError("it reads more than one computed tensor")
        return str(computed[0])

    @cached_property
    def function(self) -> Callable[[Numbers], Numbers]:
        """The operator as a function of its computed input, run in float32 on the CPU."""
        source, names = self.only_computed, dict.fromkeys(filter(None, self.node.input))
        values = {name: value for name in names if (value := self.value(name)) is not None}
        given = helper.make_tensor_value_info(source, TensorProto.FLOAT, self.shape(source))
        made = helper.make_tensor_value_info(self.result, TensorProto.FLOAT, None)
        stored = [numpy_helper.from_array(value, name) for name, value in values.items()]
        graph = helper.make_graph([self.node], "alone", [given], [made], stored)
        version, opsets = self.graph.model.ir_version, self.graph.model.opset_import
        try:
            session = Session(helper.make_model(graph, ir_version=version, opset_imports=opsets))
        except DeploykitError as error:
            raise NoMatchError(f"it does not run by itself: {error.what}") from None
        return lambda values: session.run({source: values.astype(np.float32)})[self.result]

    def number(self, name: str, value: Numbers) -> str:
        """Stores a constant in the graph and returns its name."""
        return self.graph.store(f"{self.result}_{name}", value)

    def floats(self, name: str, values: Numbers, grid: PairGrid | None) -> str:
        """Stores floats in the type that the operator reads, on a grid if one is given, and gives the tensor's name.

        Integers are stored as those of the grid.
        """
        if grid is not None:
            steps = grid.integers(values) if np.issubdtype(values.dtype, np.floating) else values
            return self._half(PAIR[1], self.number(f"{name}_q", steps), f"{self.result}_{name}", grid)
        half = self.graph.dtype(self.node.input[0]) == "float16"
        return self.number(name, values.astype(np.float16 if half else np.float32))

    def step(self, op: str, inputs: Sequence[str], grid: PairGrid | None, **settings: Any) -> str:
        """Adds an operator and gives its result's name; on the grid, if one is given."""
        made = self.graph.fresh(f"{self.result}_{op.lower()}")
        self._made.append(helper.make_node(op, list(inputs), [made], name=made, **settings))
        return made if grid is None else self.converted(made, grid)

    def moved_on_result_grid(self) -> str:
        """The operator's computed input in the result's grid: operators that only move values need not convert then."""
        return self.only_computed if self.grid is None else self.converted(self.only_computed, self.grid)

    def taken(self, source: str, places: Mapping[int, Numbers], grid: PairGrid | None) -> str:
        """The values of the operator's input at those places of each axis; zeros for places below zero.

        A mask makes the zeros: Pad and Concat put other integers there on some grids (QAIRT 2.51).
        """
        given, name = self.shape(self.node.input[0]), source
        rank = len(given)
        mask = np.ones([1] * rank)
        for axis, along in places.items():
            mask = mask * on_axis(along >= 0, axis, rank)
            if not np.array_equal(along, np.arange(given[axis])):
                stored = self.number(f"places_{axis}", np.clip(along, 0, None).astype(np.int64))
                name = self.step("Gather", [name, stored], grid, axis=axis)
        if mask.all():
            return name
        ones = grid and PairGrid.over(0.0, 1.0, grid.zero.dtype)
        return self.step("Mul", [name, self.floats("mask", mask, ones)], grid)

    def converted(self, source: str, grid: PairGrid) -> str:
        """Adds a Q/DQ pair behind a tensor and gives the pair's result."""
        return self._half(PAIR[1], self._half(PAIR[0], source, f"{source}_to", grid), f"{source}_on", grid)

    def _half(self, op: str, source: str, name: str, grid: PairGrid) -> str:
        made = self.graph.fresh(name)
        scale, zero = self.number("scale", grid.scale), self.number("zero", grid.zero)
        settings: dict[str, Any] = {"axis": grid.axis} if grid.scale.size > 1 else {}
        if grid.bits == 16 and self.graph.opset < _WIDE_OPSET:
            settings["domain"] = _MICROSOFT
            known = self.graph.model.opset_import
            if not any(entry.domain == _MICROSOFT for entry in known):
                known.add(domain=_MICROSOFT, version=1)
        self._made.append(helper.make_node(op, [source, scale, zero], [made], name=made, **settings))
        return made

    def operator_on(self, inputs: Sequence[str], **settings: Any) -> str:
        """Adds the operator itself on other tensors and gives its result; a setting that is None is removed."""
        made = self.graph.fresh(f"{self.result}_again")
        node = NodeProto()
        node.CopyFrom(self.node)
        node.input[:], node.output[:], node.name = inputs, [made], made
        kept = [one for one in node.attribute if one.name not in settings]
        del node.attribute[:]
        node.attribute.extend(kept)
        node.attribute.extend(helper.make_attribute(n, value) for n, value in settings.items() if value is not None)
        self._made.append(node)
        return made

    def finish(self, name: str) -> None:
        """Replaces the operator by what was built; the tensor ``name`` takes the place of its result."""
        makers = {made: node for node in self._made for made in node.output}
        half = makers[name]
        if half.op_type == PAIR[1] and (given := self.grid) is not None:
            made = self._read(half)
            alike = np.array_equal(made.zero, given.zero) and np.array_equal(made.scale, given.scale)
            if alike and made.zero.dtype == given.zero.dtype:
                name = makers[half.input[0]].input[0]  # the result's own pair stands behind it
        for node in self._made:
            node.output[:] = [self.result if made == name else made for made in node.output]
            node.input[:] = [self.result if read == name else read for read in node.input]
        self.graph.replace_nodes([self.node], {self.graph.index_of(self.node): self._made})
