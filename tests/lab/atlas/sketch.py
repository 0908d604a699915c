"""Writes one small float graph, node by node, with values that are the same on every call; it runs nothing."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from onnx import ValueInfoProto, helper, numpy_helper, shape_inference

from deploykit.findings.records import Numbers
from deploykit_ort_qnn.bench.together import Span

if TYPE_CHECKING:
    from onnx import ModelProto

__all__ = ["AS_IT_IS", "Sketch", "Variation"]

_IR_VERSION = 8
"""What the ONNX Runtime of every wheel that can be run reads."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Variation:
    """In what way a form is drawn otherwise: ranges ``scale`` times as large, ``batch`` samples, layers around it.

    ``behind`` and ``before`` put a layer with stored weights in front of every input, and after the result. ``wide``
    gives the result a range so many times as large as it needs, 0 that of the input.
    """

    scale: float = 1.0
    batch: int = 1
    behind: bool = False
    before: bool = False
    wide: float = 1.0


AS_IT_IS = Variation()


class Coarse(Span):
    """A range whose values lie off every edge: an eighth behind a multiple of a quarter."""

    def moved(self, values: Numbers) -> Numbers:
        """Values of it, where rounding carries nothing over an edge."""
        ends = np.ceil(self.low * 4) / 4, np.floor(self.high * 4) / 4 - 0.25
        return np.asarray(np.clip(np.floor(values * 4) / 4, *ends) + 0.125, np.float32)


class Sketch:
    """Collects inputs with two samples each, stored values and nodes; every name begins with ``prefix``.

    ``spans`` are the ranges of the float inputs.
    """

    def __init__(self, seed: str, prefix: str = "", opset: int = 17, variation: Variation = AS_IT_IS) -> None:
        self.samples: tuple[dict[str, Numbers], ...] = ({}, {})
        self.spans: dict[str, Span] = {}
        self._variation = variation
        self._random = np.random.default_rng(zlib.crc32(seed.encode()))
        self._prefix, self._opset, self._count = prefix, opset, 0
        self._inputs: list[Any] = []
        self._stored: list[Any] = []
        self._nodes: list[Any] = []

    def input(self, *shape: int, low: float = -2.0, high: float = 2.0, coarse: bool = False) -> str:
        """A float input whose values are spread evenly; its name.

        ``coarse`` ones are an eighth behind a multiple of a quarter: rounding does not carry them over an edge.
        """
        if not coarse:
            low, high = low * self._variation.scale, high * self._variation.scale
        if self._variation.batch > 1 and len(shape) > 2 and shape[0] == 1:
            shape = (self._variation.batch, *shape[1:])
        values = [self._random.uniform(low, high, shape) for _ in self.samples]
        if coarse:
            values = [np.floor(value * 4) / 4 + 0.125 for value in values]
        name = self._given([value.astype(np.float32) for value in values])
        self.spans[name] = (Coarse if coarse else Span)(low=low, high=high)
        return self.layer(name, shape) if self._variation.behind and not coarse and low < 0 else name

    def layer(self, x: str, shape: Sequence[int]) -> str:
        """A layer with stored weights that keeps the shape: a 1x1 convolution of an image, else a product."""
        if len(shape) == 4:
            return self.op("Conv", x, self.weight(shape[1], shape[1], 1, 1))
        return self.op("MatMul", x, self.weight(shape[-1], shape[-1])) if len(shape) > 1 else x

    def places(self, *shape: int, below: int, dtype: str = "int64") -> str:
        """An input of whole numbers from 0 on."""
        return self._given([self._random.integers(0, below, shape).astype(dtype) for _ in self.samples])

    def _given(self, values: Sequence[Numbers]) -> str:
        name = self._name("x")
        kind = helper.np_dtype_to_tensor_dtype(values[0].dtype)
        self._inputs.append(helper.make_tensor_value_info(name, kind, list(values[0].shape)))
        for sample, value in zip(self.samples, values, strict=True):
            sample[name] = value
        return name

    def weight(self, *shape: int) -> str:
        """A stored float tensor like a layer's."""
        fan = max(1, int(np.prod(shape[1:])))
        return self.stored(self._random.normal(0.0, 1.0 / np.sqrt(fan), shape).astype(np.float32))

    def between(self, low: float, high: float, *shape: int) -> str:
        """A stored float tensor, spread evenly."""
        return self.stored(self._random.uniform(low, high, shape).astype(np.float32))

    def stored(self, value: npt.ArrayLike, dtype: str = "") -> str:
        """A stored tensor; whole numbers are int64."""
        array = np.asarray(value, dtype=dtype or None)
        name = self._name("w")
        self._stored.append(numpy_helper.from_array(array, name))
        return name

    def op(self, op_type: str, *inputs: str, outputs: int = 1, **attributes: Any) -> str:
        """A node; the name of its first output."""
        made = [self._name("t") for _ in range(outputs)]
        self._nodes.append(helper.make_node(op_type, list(inputs), made, name=f"{made[0]}:{op_type}", **attributes))
        return made[0]

    def split(self, op_type: str, *inputs: str, outputs: int, **attributes: Any) -> list[str]:
        """A node of several outputs; all their names."""
        self.op(op_type, *inputs, outputs=outputs, **attributes)
        return list(self._nodes[-1].output)

    def model(self, *outputs: str) -> ModelProto:
        """The graph with inferred shapes. Raises what ONNX raises about a graph that is none."""
        infos = [ValueInfoProto(name=name) for name in outputs]
        graph = helper.make_graph(self._nodes, "atlas", self._inputs, infos, self._stored)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", self._opset)])
        model.ir_version = _IR_VERSION
        return shape_inference.infer_shapes(model, strict_mode=True)

    def _name(self, kind: str) -> str:
        self._count += 1
        return f"{self._prefix}{kind}{self._count}"
