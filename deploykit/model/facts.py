"""What is true of one ONNX graph, as plain values: tensors, nodes, shapes, who produces and who reads.

Collected once by ``collect_facts`` from a model whose external weights were not loaded. Nothing here decides or infers;
two graphs can be compared.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Container, Iterator, Mapping, Sequence
from enum import StrEnum
from typing import Any

from deploykit.findings.records import Json, Names, OpenShape, Record, Shape, replace
from deploykit.model.operators import BITS, FLOATS, QUANTIZERS, Trait, has, quantizes_at_run_time, settings, static_from
from deploykit.system.store import Kept, made_once

__all__ = [
    "LAYOUT",
    "GraphChange",
    "GraphFacts",
    "NodeFact",
    "TensorFact",
    "TensorRole",
    "changes_between",
    "channel_first",
    "data_shaped_nodes",
    "dynamic_inputs",
    "in_words",
    "is_setting",
    "setting_of",
    "shape_text",
    "static_tensors",
    "tensor_bytes",
    "with_static",
]

LAYOUT = "deploykit.layout."
"""The prefix of a key in a model's metadata; the tensor that is named behind it was turned to channels last."""


class TensorRole(StrEnum):
    """Where a tensor comes from."""

    INPUT = "input"
    INITIALIZER = "initializer"
    CONSTANT = "constant"
    ACTIVATION = "activation"


class TensorFact(Record):
    """One tensor. ``shape`` has ints, symbol names, or None for unknown dims; it is None when the rank is unknown.

    ``dtype`` is ONNX's lower-case name (``float``, ``int64``, ``uint8`` …) or "" when unknown. ``producer`` is the
    index of the node that makes it, ``consumers`` those that read it (each once, in graph order).
    """

    name: str
    role: TensorRole
    dtype: str
    shape: OpenShape
    producer: int | None = None
    consumers: tuple[int, ...] = ()
    is_output: bool = False
    external: bool = False

    @property
    def rank(self) -> int | None:
        """The number of dimensions, or None."""
        return None if self.shape is None else len(self.shape)

    @property
    def static_shape(self) -> Shape | None:
        """The shape where every dimension is a known number, else None."""
        known: Any = self.shape
        return known if known is not None and {*map(type, known)} <= {int} else None

    @property
    def is_weight(self) -> bool:
        """True for stored values: initializers and outputs of Constant nodes."""
        return self.role in (TensorRole.INITIALIZER, TensorRole.CONSTANT)

    @property
    def is_float(self) -> bool:
        """True for a floating-point tensor."""
        return self.dtype in FLOATS


_NONE = TensorFact(name="", role=TensorRole.ACTIVATION, dtype="", shape=None)


class NodeFact(Record):
    """One node; ``attributes`` holds plain values (tensors of attributes are left out)."""

    index: int
    name: str
    op_type: str
    domain: str
    inputs: Names
    outputs: Names
    attributes: Json

    @property
    def label(self) -> str:
        """The node's name, or its type and first output where it has none."""
        return self.name or f"{self.op_type} -> {self.outputs[0] if self.outputs else '?'}"

    def operand(self, at: int) -> str:
        """The name of an input, "" where it is left out."""
        return self.inputs[at] if at < len(self.inputs) else ""

    def axis(self, default: int = 0) -> int:
        """The attribute ``axis``, which may count from the end; ``default`` where it is left out."""
        return int(self.attributes.get("axis", default))


class GraphFacts(Record, Kept, dict=True):
    """The facts of the main graph.

    ``functions`` are op types that the model itself defines; their bodies are not looked into. ``non_finite`` says what
    small stored tensors hold besides numbers (``NaN``, ``infinity``); large and external ones are not read.
    ``inference_problem`` says why shapes could not be inferred; then only declared ones are known. ``scalars`` are the
    values of stored floats of one element, by which exponents, epsilons and factors are told apart. ``channel_last``
    are the inputs and outputs that were turned here: the model as it was given has them with the channels first.
    """

    model_name: str
    producer: str
    opsets: Mapping[str, int]
    inputs: Names
    outputs: Names
    nodes: tuple[NodeFact, ...]
    tensors: Mapping[str, TensorFact]
    weight_bytes: int
    functions: frozenset[str]
    non_finite: Mapping[str, str]
    inference_problem: str
    scalars: Mapping[str, float]
    channel_last: frozenset[str]

    @property
    def opset(self) -> int:
        """The version of the default domain's operator set, 0 when absent."""
        return self.opsets.get("", 0)

    @property
    def is_qdq(self) -> bool:
        """True when the graph holds QuantizeLinear or DequantizeLinear nodes, except for quantization at run time."""
        types = {node.op_type for node in self.nodes}
        return "QuantizeLinear" in types or (
            "DequantizeLinear" in types and not any(map(quantizes_at_run_time, self.nodes))
        )

    def tensor(self, name: str) -> TensorFact:
        """The fact of a tensor; an empty one where the graph has no tensor of that name."""
        return self.tensors.get(name, _NONE)

    def is_stored(self, tensor: str) -> bool:
        """True for a tensor whose values the model stores."""
        return self.tensor(tensor).is_weight

    def is_data(self, tensor: str) -> bool:
        """True for a tensor that holds floats, or whose type is not known."""
        fact = self.tensors.get(tensor)
        return fact is not None and (fact.is_float or not fact.dtype)

    def static_shape(self, tensor: str) -> Shape | None:
        """The shape of a tensor where every dimension is a known number, else None."""
        return self.tensor(tensor).static_shape

    def producer_of(self, tensor: str, *op_types: str) -> NodeFact | None:
        """The node that makes a tensor, if it is of one of the given types (any when none is given).

        None for inputs, initializers and unknown names.
        """
        place = self.tensor(tensor).producer
        node = None if place is None else self.nodes[place]
        return node if node is not None and (not op_types or node.op_type in op_types) else None

    def origin(self, tensor: str, passed: Container[str]) -> str:
        """The tensor from which this one is made, looking through the first inputs of operators in ``passed``."""
        while (node := self.producer_of(tensor)) is not None and node.op_type in passed:
            tensor = node.inputs[0]
        return tensor

    def maker_behind(self, tensor: str, passed: Container[str], *op_types: str) -> NodeFact | None:
        """The node that makes the ``origin`` of a tensor, if it is of one of the given types; else None."""
        return self.producer_of(self.origin(tensor, passed), *op_types)

    def consumers_of(self, tensor: str) -> tuple[NodeFact, ...]:
        """The nodes that read a tensor, in graph order."""
        return tuple(self.nodes[index] for index in self.tensor(tensor).consumers)

    def only_reader(self, tensor: str, *op_types: str) -> NodeFact | None:
        """The node that reads a tensor, when it is the only one, and of one of the given types (any without them)."""
        readers = self.consumers_of(tensor)
        return readers[0] if len(readers) == 1 and (not op_types or readers[0].op_type in op_types) else None


@made_once
def static_tensors(facts: GraphFacts) -> frozenset[str]:
    """Stored tensors and everything that deterministic operators compute from them alone."""
    stored = (name for name, fact in facts.tensors.items() if fact.is_weight)
    return static_from(stored, ((node, node.inputs, node.outputs) for node in facts.nodes))


@made_once
def with_static(facts: GraphFacts) -> GraphFacts:
    """The facts with static tensors in the role of constants; the same object when there are none."""
    computed = [name for name in static_tensors(facts) if not facts.tensors[name].is_weight]
    constants = {name: replace(facts.tensors[name], role=TensorRole.CONSTANT) for name in computed}
    return replace(facts, tensors={**facts.tensors, **constants}) if computed else facts


def channel_first(facts: GraphFacts) -> GraphFacts:
    """The facts with inputs and outputs in the layout that they had before they were turned to channels last.

    In the result, ``channel_last`` are the outputs whose last Transpose became an Identity. Where a rewrite merged that
    Transpose with another, the output stays as it is.
    """
    tensors, nodes, turned = dict(facts.tensors), list(facts.nodes), set[str]()
    for name in facts.channel_last:
        turn = facts.maker_behind(name, QUANTIZERS, "Transpose")
        shape = tensors[name].shape or ()
        if turn is not None:
            nodes[turn.index] = replace(turn, op_type="Identity")
            turned.add(name)
        if name in (*facts.inputs, *turned):
            tensors[name] = replace(tensors[name], shape=(*shape[:1], *shape[3:], *shape[1:3]))
    return replace(facts, nodes=tuple(nodes), tensors=tensors, channel_last=frozenset(turned))


# No operator with settings reads more; looking through longer lists for every tensor in them would not be linear.
_MOST_INPUTS = 5


def is_setting(node: NodeFact, name: str) -> bool:
    """True where ``node`` reads ``name`` as a setting only."""
    read_so = settings(node)
    if not read_so or len(node.inputs) > _MOST_INPUTS:
        return False
    positions = {index for index, used in enumerate(node.inputs) if used == name}
    return bool(positions) and positions <= read_so


def setting_of(facts: GraphFacts, name: str) -> NodeFact | None:
    """The first reader of a tensor, where every reader takes it as a setting; else None."""
    readers = facts.consumers_of(name)
    return readers[0] if readers and all(is_setting(node, name) for node in readers) else None


class DynamicDim(Record):
    """One dimension that is not a number: ``axis`` counts from the front, None where not even the rank is known."""

    tensor: str
    axis: int | None
    symbol: str | None

    @property
    def label(self) -> str:
        """The dimension as people name it: its symbol, or its position."""
        if self.axis is None:
            return "an unknown rank"
        return f"dimension {self.axis}" + (f" ({self.symbol})" if self.symbol else " (unnamed)")


def dynamic_inputs(facts: GraphFacts) -> tuple[DynamicDim, ...]:
    """Every dimension of a graph input that is not fixed, in graph order."""
    found = []
    for name in facts.inputs:
        shape = facts.tensors[name].shape
        if shape is None:
            found.append(DynamicDim(tensor=name, axis=None, symbol=None))
        for axis, dim in enumerate(shape or ()):
            if not isinstance(dim, int):
                found.append(DynamicDim(tensor=name, axis=axis, symbol=dim))
    return tuple(found)


def data_shaped_nodes(facts: GraphFacts) -> Iterator[tuple[NodeFact, str]]:
    """The nodes whose output size depends on values, each with the reason in words; in graph order.

    A computed size counts where it makes a difference: every input of the graph is static, and the output is not.
    """
    fixed = not dynamic_inputs(facts)
    for node in facts.nodes:
        if has(node, Trait.SIZED_BY_VALUES):
            yield node, "the size of its output depends on the data"
        elif fixed and has(node, Trait.SIZED_BY_INPUT):
            sizes = node.inputs if node.op_type == "Range" else node.inputs[1:2]
            known_late = (TensorRole.ACTIVATION, TensorRole.INPUT)
            computed = [name for name in sizes if name in facts.tensors and facts.tensors[name].role in known_late]
            made = (facts.tensors[name] for name in node.outputs if name in facts.tensors)
            if computed and any(fact.static_shape is None for fact in made):
                yield node, f"its size comes from {computed[0]}, which is known at run time only"


def tensor_bytes(fact: TensorFact) -> int | None:
    """The size of a tensor in bytes in its own type, None where type or shape are not known."""
    bits = BITS.get(fact.dtype)
    return None if bits is None or fact.static_shape is None else (bits * math.prod(fact.static_shape) + 7) // 8


def shape_text(fact: TensorFact) -> str:
    """A shape as people write it: 1 x 3 x height x ?; "unknown" where the rank is unknown."""
    if fact.shape is None:
        return "unknown"
    return " x ".join("?" if dim is None else str(dim) for dim in fact.shape) or "a scalar"


class GraphChange(Record):
    """One place where two graphs differ: the nodes that are gone and those that replace them, each in graph order."""

    before: tuple[NodeFact, ...]
    after: tuple[NodeFact, ...]

    def __str__(self) -> str:
        return in_words([node.op_type for node in self.before], [node.op_type for node in self.after])

    def to_json(self) -> Json:
        """The operator types before and after, and the labels of the nodes that are gone."""
        return {
            "before": [node.op_type for node in self.before],
            "after": [node.op_type for node in self.after],
            "nodes": [node.label for node in self.before],
        }


def in_words(before: Sequence[str], after: Sequence[str]) -> str:
    """A change in words, by operator types: ``Sigmoid, 2 Clip → Clip``."""
    old, new = (
        ", ".join(kind if count == 1 else f"{count} {kind}" for kind, count in Counter(kinds).items())
        for kinds in (before, after)
    )
    if sorted(before) == sorted(after):
        return f"{new} with other inputs or attributes"
    return f"{old or 'nothing'} → {new or 'nothing'}"


def changes_between(before: GraphFacts, after: GraphFacts) -> tuple[GraphChange, ...]:
    """The places where two graphs differ, in the order of the first; () for the same graph.

    A node is the same where its type, inputs, outputs and plain attributes are. Changed nodes that share a computed
    tensor are one place.
    """
    if before is after:
        return ()
    same = {*map(_identity, before.nodes)} & {*map(_identity, after.nodes)}
    computed = {name for node in (*before.nodes, *after.nodes) for name in node.outputs if name}
    places = list[tuple[set[str], list[NodeFact], list[NodeFact]]]()  # computed tensors, nodes before, nodes after
    for at, facts in ((1, before), (2, after)):
        for node in facts.nodes:
            if _identity(node) in same:
                continue
            place: Any = (computed & {*node.inputs, *node.outputs}, [], [])
            place[at].append(node)
            for other in [other for other in places if not other[0].isdisjoint(place[0])]:
                places.remove(other)
                place = (place[0] | other[0], other[1] + place[1], other[2] + place[2])
            places.append(place)
    changes = [
        GraphChange(
            before=tuple(sorted(gone, key=lambda node: node.index)),
            after=tuple(sorted(come, key=lambda node: node.index)),
        )
        for _, gone, come in places
    ]
    return tuple(sorted(changes, key=lambda change: (change.before or change.after)[0].index))


def _identity(node: NodeFact) -> tuple[object, ...]:
    return node.domain, node.op_type, node.inputs, node.outputs, repr(sorted(node.attributes.items()))
