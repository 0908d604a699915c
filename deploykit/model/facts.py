"""What is true of one ONNX graph, as plain values: tensors, nodes, shapes, who produces and who reads.

Collected once by ``collect_facts`` from a model whose external weights were not loaded. Nothing here decides.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, TypeVar, cast

from deploykit.model.element_types import FLOATS

__all__ = ["GraphFacts", "NodeFact", "TensorFact", "TensorRole"]

T = TypeVar("T")


class TensorRole(StrEnum):
    """Where a tensor comes from."""

    INPUT = "input"
    INITIALIZER = "initializer"
    CONSTANT = "constant"
    ACTIVATION = "activation"


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorFact:
    """One tensor. ``shape`` has ints, symbol names, or None for unknown dims; it is None when the rank is unknown.

    ``dtype`` is ONNX's lower-case name (``float``, ``int64``, ``uint8`` …) or "" when unknown. ``producer`` is the
    index of the node that makes it, ``consumers`` those that read it (each once, in graph order).
    """

    name: str
    role: TensorRole
    dtype: str
    shape: tuple[int | str | None, ...] | None
    producer: int | None = None
    consumers: tuple[int, ...] = ()
    is_output: bool = False
    external: bool = False

    @property
    def rank(self) -> int | None:
        """The number of dimensions, or None."""
        return None if self.shape is None else len(self.shape)

    @property
    def is_static(self) -> bool:
        """True when every dimension is a known number."""
        return self.shape is not None and all(isinstance(dim, int) for dim in self.shape)

    @property
    def is_weight(self) -> bool:
        """True for stored values: initializers and outputs of Constant nodes."""
        return self.role in (TensorRole.INITIALIZER, TensorRole.CONSTANT)

    @property
    def is_float(self) -> bool:
        """True for a floating-point tensor."""
        return self.dtype in FLOATS


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeFact:
    """One node; ``attributes`` holds plain values (tensors of attributes are left out)."""

    index: int
    name: str
    op_type: str
    domain: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: Mapping[str, Any] = field(default_factory=dict)

    @property
    def label(self) -> str:
        """The node's name, or its type and first output where it has none."""
        return self.name or f"{self.op_type} -> {self.outputs[0] if self.outputs else '?'}"


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphFacts:
    """The facts of the main graph. ``subgraph_ops`` are op types met inside Loop, If and Scan bodies only.

    ``functions`` are op types that the model itself defines; their bodies are not looked into. ``non_finite`` says what
    small stored tensors hold besides numbers (``NaN``, ``infinity``); large and external ones are not read.
    ``inference_problem`` says why shapes could not be inferred; then only declared ones are known. ``scalars`` are the
    values of stored floats of one element, by which exponents, epsilons and factors are told apart.
    """

    model_name: str
    graph_name: str
    producer: str
    ir_version: int
    opsets: Mapping[str, int]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    nodes: tuple[NodeFact, ...]
    tensors: Mapping[str, TensorFact]
    subgraph_ops: frozenset[str] = frozenset()
    weight_bytes: int = 0
    functions: frozenset[str] = frozenset()
    non_finite: Mapping[str, str] = field(default_factory=dict)
    inference_problem: str = ""
    scalars: Mapping[str, float] = field(default_factory=dict)
    _derived: dict[Hashable, object] = field(default_factory=dict, init=False, repr=False, compare=False)

    def once(self, key: Hashable, make: Callable[[], T]) -> T:
        """What follows from these facts, made when it is first asked for; one key always stands for one thing."""
        if key not in self._derived:
            self._derived[key] = make()
        return cast("T", self._derived[key])

    @property
    def opset(self) -> int:
        """The version of the default domain's operator set, 0 when absent."""
        return self.opsets.get("", 0)

    @property
    def is_qdq(self) -> bool:
        """True when the graph holds QuantizeLinear or DequantizeLinear nodes."""
        return any(node.op_type in ("QuantizeLinear", "DequantizeLinear") for node in self.nodes)

    def producer_of(self, tensor: str) -> NodeFact | None:
        """The node that makes a tensor, or None for inputs, initializers and unknown names."""
        fact = self.tensors.get(tensor)
        return None if fact is None or fact.producer is None else self.nodes[fact.producer]

    def consumers_of(self, tensor: str) -> tuple[NodeFact, ...]:
        """The nodes that read a tensor, in graph order."""
        fact = self.tensors.get(tensor)
        return () if fact is None else tuple(self.nodes[index] for index in fact.consumers)
