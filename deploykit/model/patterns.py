"""Finds operators that a graph writes out node by node, and other patterns of several nodes. It changes nothing.

It looks at structure, shapes and the values of stored scalars, and knows neither encodings nor what a tool chain makes
of a pattern.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain

from deploykit.model.facts import GraphFacts, NodeFact
from deploykit.model.operators import is_standard
from deploykit.model.parameters import stored_behind

__all__ = [
    "Block",
    "Reduction",
    "Repeated",
    "dynamically_quantized",
    "find_blocks",
    "over_short_axes",
    "repeated_before_norm",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """One written-out operator.

    ``kind`` is the operator's ONNX name. ``nodes`` are indices in graph order, ``source`` is the tensor it reads,
    ``result`` the one it makes. ``inside`` are the tensors computed between the two. ``scale`` and ``bias`` are the
    stored parameters of a norm, "" without; ``settings`` are all other stored tensors: exponents, epsilon, factors.
    """

    kind: str
    nodes: tuple[int, ...]
    source: str
    result: str
    inside: frozenset[str]
    settings: frozenset[str]
    scale: str = ""
    bias: str = ""


def find_blocks(facts: GraphFacts) -> tuple[Block, ...]:
    """Every block, in the order of their last nodes; no two share a node, and the longer one wins."""
    finder = _Finder(facts)
    found: list[Block] = []
    for node in facts.nodes:
        if is_standard(node) and node.op_type in _STARTS:
            found += filter(None, (match(finder, node) for match in _STARTS[node.op_type]))
    taken: set[int] = set()
    kept = []
    for block in sorted(found, key=lambda block: -len(block.nodes)):
        if taken.isdisjoint(block.nodes):
            taken.update(block.nodes)
            kept.append(block)
    return tuple(sorted(kept, key=lambda block: block.nodes[-1]))


class _Finder:
    """Questions that the matchers ask of a graph."""

    def __init__(self, facts: GraphFacts) -> None:
        self.facts = facts

    def maker(self, name: str, *op_types: str) -> NodeFact | None:
        """The node that makes a tensor, if it is one of the given types."""
        node = self.facts.producer_of(name)
        return node if node is not None and node.op_type in op_types and is_standard(node) else None

    def reader(self, name: str, *op_types: str) -> NodeFact | None:
        """The only reader of a tensor that is no output, if it is one of the given types."""
        readers = self.facts.consumers_of(name)
        if len(readers) != 1 or self.facts.tensors[name].is_output:
            return None
        return readers[0] if readers[0].op_type in op_types and is_standard(readers[0]) else None

    def stored(self, name: str) -> bool:
        """True for a stored tensor, looking through Identity."""
        return stored_behind(self.facts, name) is not None

    def scalar(self, name: str) -> float | None:
        """The value of a stored scalar, or None."""
        behind = stored_behind(self.facts, name)
        return None if behind is None else self.facts.scalars.get(behind)

    def other(self, node: NodeFact, name: str) -> str | None:
        """The second operand beside ``name``; None where there is not exactly one."""
        rest = [used for used in node.inputs if used != name]
        return rest[0] if len(node.inputs) == 2 and len(rest) == 1 else None

    def scalar_beside(self, node: NodeFact, name: str) -> float | None:
        """The stored scalar that a node combines ``name`` with."""
        other = self.other(node, name)
        return None if other is None else self.scalar(other)

    def split(self, node: NodeFact) -> tuple[str, str] | None:
        """(computed, stored) operands of a node that has one of each, Identity seen through."""
        if len(node.inputs) != 2:
            return None
        first, second = node.inputs
        if self.stored(first) == self.stored(second):
            return None
        return (second, first) if self.stored(first) else (first, second)

    def block(self, kind: str, source: str, nodes: Iterable[NodeFact], affine: _Affine | None = None) -> Block | None:
        """The block of these nodes; None where something outside reads what is computed inside."""
        ordered = sorted({node.index: node for node in nodes}.values(), key=lambda node: node.index)
        indices = {node.index for node in ordered}
        result = ordered[-1].outputs[0]
        inside = {name for node in ordered for name in node.outputs if name} - {result}
        for name in inside:
            fact = self.facts.tensors[name]
            if fact.is_output or not indices.issuperset(fact.consumers):
                return None
        read = set(chain.from_iterable(node.inputs for node in ordered))
        scale, bias = ("", "") if affine is None else (affine.scale, affine.bias)
        return Block(
            kind=kind,
            nodes=tuple(sorted(indices)),
            source=source,
            result=result,
            inside=frozenset(inside),
            settings=frozenset(name for name in read if self.stored(name)) - {scale, bias},
            scale=scale,
            bias=bias,
        )


@dataclass(frozen=True, slots=True)
class _Affine:
    """The nodes behind a normalized tensor, and the stored scale and bias that they bring in."""

    nodes: tuple[NodeFact, ...]
    scale: str
    bias: str = ""


def _match_norm(finder: _Finder, root: NodeFact) -> Block | None:
    """From Sqrt (or Pow with -0.5) of mean(c²) + eps: up to c, down to c / root, a scale and a bias."""
    if root.op_type == "Pow" and finder.scalar(root.inputs[1]) != -0.5:
        return None
    upward = _mean_square(finder, root.inputs[0])
    if upward is None:
        return None
    centred, nodes = upward
    downward = _normalized(finder, root, centred)
    if downward is None:
        return None
    nodes += [root, *downward]
    kind, source = "RMSNormalization", centred
    minus = finder.maker(centred, "Sub")
    mean = None if minus is None else finder.maker(minus.inputs[1], "ReduceMean")
    if minus is not None and mean is not None and mean.inputs[0] == minus.inputs[0]:
        nodes += [minus, mean]
        kind, source = "LayerNormalization", minus.inputs[0]
    affine = _scale_and_bias(finder, downward[-1])
    return finder.block(kind, source, [*nodes, *(affine.nodes if affine else ())], affine)


def _mean_square(finder: _Finder, name: str) -> tuple[str, list[NodeFact]] | None:
    """(c, nodes) where a tensor is mean(c²), or that plus a stored scalar."""
    nodes = []
    plus = finder.maker(name, "Add")
    operands = None if plus is None else finder.split(plus)
    if plus is not None and operands is not None:
        nodes.append(plus)
        name = operands[0]
    mean = finder.maker(name, "ReduceMean")
    square = None if mean is None else finder.maker(mean.inputs[0], "Mul", "Pow")
    if (
        mean is None
        or square is None
        or not (
            square.inputs[0] == square.inputs[1] if square.op_type == "Mul" else finder.scalar(square.inputs[1]) == 2.0
        )
    ):
        return None
    return square.inputs[0], [*nodes, mean, square]


def _normalized(finder: _Finder, root: NodeFact, centred: str) -> list[NodeFact] | None:
    """The nodes from the root to c / root: one Div, or a reciprocal and a Mul."""
    inverse = root if root.op_type == "Pow" else finder.reader(root.outputs[0], "Reciprocal", "Div")
    if inverse is None:
        return None
    if inverse.op_type == "Div" and tuple(inverse.inputs) == (centred, root.outputs[0]):
        return [inverse]
    if inverse.op_type == "Div" and finder.scalar(inverse.inputs[0]) != 1.0:
        return None
    product = finder.reader(inverse.outputs[0], "Mul")
    if product is None or finder.other(product, inverse.outputs[0]) != centred:
        return None
    return [product] if inverse is root else [inverse, product]


def _scale_and_bias(finder: _Finder, node: NodeFact) -> _Affine | None:
    """What follows a normalized tensor: Casts and a Reshape, a Mul by a stored scale, an Add of a stored bias."""
    waiting: list[NodeFact] = []
    after = finder.reader(node.outputs[0], "Cast", "Mul", "Reshape")
    while after is not None and after.op_type != "Mul":
        waiting.append(after)
        after = finder.reader(after.outputs[0], "Cast", "Mul", "Reshape")
    operands = None if after is None else finder.split(after)
    if after is None or operands is None:
        return None
    plus = finder.reader(after.outputs[0], "Add")
    added = None if plus is None else finder.split(plus)
    if plus is None or added is None:
        return _Affine((*waiting, after), operands[1])
    return _Affine((*waiting, after, plus), operands[1], added[1])


def _match_grouped(finder: _Finder, node: NodeFact) -> Block | None:
    """InstanceNormalization inside two Reshapes with a scale behind them is how a group norm is exported."""
    before = finder.maker(node.inputs[0], "Reshape")
    back = finder.reader(node.outputs[0], "Reshape")
    affine = None if back is None else _scale_and_bias(finder, back)
    if before is None or back is None or affine is None:
        return None
    return finder.block("GroupNormalization", before.inputs[0], [before, node, back, *affine.nodes], affine)


_GATES = {"Erf": "Gelu", "Tanh": "Gelu", "Sigmoid": "Swish", "HardSigmoid": "HardSwish", "Clip": "HardSwish"}
_SCALAR_STEPS = ("Add", "Div", "Mul", "Pow", "Sub")
_MOST_STEPS = 8


def _match_gate(finder: _Finder, gate: NodeFact) -> Block | None:
    """x times a function of x that a Sigmoid, Erf, Tanh or Clip bounds, with scalar steps between and behind."""
    nodes, name, source = [gate], gate.outputs[0], ""
    for _ in range(_MOST_STEPS):
        node = finder.reader(name, *_SCALAR_STEPS)
        if node is None:
            break
        if finder.scalar_beside(node, name) is None:
            above = None if source or node.op_type != "Mul" else _gated(finder, gate, finder.other(node, name))
            if above is None:
                break
            source = above[0]
            nodes += above[1]
        nodes.append(node)
        name = node.outputs[0]
    if not source or (gate.op_type in ("Erf", "Tanh") and all(node.op_type != "Add" for node in nodes)):
        return None
    return finder.block(_GATES[gate.op_type], source, nodes)


def _gated(finder: _Finder, gate: NodeFact, beside: str | None) -> tuple[str, list[NodeFact]] | None:
    """(x, nodes) where what stands beside a gate is x, or x times a scalar, and the gate is computed from x."""
    if beside is None:
        return None
    scaled = finder.maker(beside, "Div", "Mul")
    operands = None if scaled is None else finder.split(scaled)
    candidates = [(beside, list[NodeFact]())]
    if scaled is not None and operands is not None and finder.scalar(operands[1]) is not None:
        candidates.append((operands[0], [scaled]))
    for source, steps in candidates:
        cone = _scalar_cone(finder, gate.inputs[0], source)
        if cone is not None:
            return source, [*steps, *cone]
    return None


def _scalar_cone(finder: _Finder, name: str, source: str) -> list[NodeFact] | None:
    """The scalar steps from the source to a tensor, x + k·x³ among them; None where anything else takes part."""
    nodes: dict[int, NodeFact] = {}
    todo = [name]
    while todo:
        current = todo.pop()
        if current == source or finder.scalar(current) is not None:
            continue
        node = finder.maker(current, *_SCALAR_STEPS)
        if node is None or len(nodes) == _MOST_STEPS:
            return None
        if node.index not in nodes:
            nodes[node.index] = node
            todo += node.inputs
    return list(nodes.values())


def _match_softmax(finder: _Finder, exponential: NodeFact) -> Block | None:
    """exp(x - max(x)) over its own sum; the subtraction may be missing."""
    quotient = next((n for n in finder.facts.consumers_of(exponential.outputs[0]) if n.op_type == "Div"), None)
    if quotient is None or quotient.inputs[0] != exponential.outputs[0]:
        return None
    total = finder.maker(quotient.inputs[1], "ReduceSum")
    if total is None or total.inputs[0] != exponential.outputs[0]:
        return None
    nodes, source = [exponential, quotient, total], exponential.inputs[0]
    minus = finder.maker(source, "Sub")
    largest = None if minus is None else finder.maker(minus.inputs[1], "ReduceMax")
    if minus is not None and largest is not None and largest.inputs[0] == minus.inputs[0]:
        nodes += [minus, largest]
        source = minus.inputs[0]
    return finder.block("Softmax", source, nodes)


_STARTS = {
    "Clip": (_match_gate,),
    "Erf": (_match_gate,),
    "Exp": (_match_softmax,),
    "HardSigmoid": (_match_gate,),
    "InstanceNormalization": (_match_grouped,),
    "Pow": (_match_norm,),
    "Sigmoid": (_match_gate,),
    "Sqrt": (_match_norm,),
    "Tanh": (_match_gate,),
}
"""The operator that a block is found by, and what may stand around it."""


_SUMS = frozenset({"ReduceMean", "ReduceSum"})
_PASSED = frozenset({"DequantizeLinear", "Identity", "QuantizeLinear", "Reshape", "Squeeze", "Unsqueeze"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Reduction:
    """The node, the tensor it reduces, and that tensor's shape."""

    node: NodeFact
    source: str
    shape: tuple[int, ...]


def over_short_axes(facts: GraphFacts) -> Iterator[Reduction]:
    """Every ReduceMean and ReduceSum whose axes hold one of length 1 beside longer ones, behind a Transpose."""
    for node in facts.nodes:
        if node.op_type not in _SUMS or not is_standard(node):
            continue
        source, axes = node.inputs[0], node.attributes.get("axes")
        given, made = facts.static_shape(source), facts.static_shape(node.outputs[0])
        if given is None or made is None:
            continue
        count = len(given) if axes is None else len(axes)
        if axes is None and len(node.inputs) > 1 and node.inputs[1]:
            count = (facts.static_shape(node.inputs[1]) or (0,))[0]
        longer = sum(dim > 1 for dim in given) - sum(dim > 1 for dim in made)
        before = facts.maker_behind(source, _PASSED)
        turned = before is not None and before.op_type == "Transpose" and is_standard(before)
        if 0 < longer < count and turned:
            yield Reduction(node=node, source=source, shape=given)


_RESHAPES = frozenset({"Flatten", "Identity", "Reshape", "Squeeze", "Unsqueeze"})
_NORMS = frozenset({"LayerNormalization", "RMSNormalization"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Repeated:
    """The node in front of the normalization, the operand of shape ``given`` that it repeats to ``shape``."""

    node: NodeFact
    operand: str
    given: tuple[int, ...]
    shape: tuple[int, ...]


def repeated_before_norm(facts: GraphFacts) -> Iterator[Repeated]:
    """Every Add or Mul of static shape that a layer or RMS normalization reads, one operator or written out.

    The operand has rows of its own for several positions: one row, or one column, for all of them is not meant.
    """
    sources = {node.inputs[0] for node in facts.nodes if node.op_type in _NORMS and node.inputs}
    sources |= {block.source for block in find_blocks(facts) if block.kind in _NORMS}
    # A Reshape between sum and norm changes nothing here.
    before = {node.index for name in sources if (node := facts.maker_behind(name, _RESHAPES)) is not None}
    for index in sorted(before):
        node = facts.nodes[index]
        if node.op_type not in ("Add", "Mul") or not is_standard(node):
            continue
        shape = facts.static_shape(node.outputs[0])
        for name in dict.fromkeys(node.inputs):
            given = facts.static_shape(name)
            if shape and given and math.prod(given) < math.prod(shape) and given[-1] > 1 and math.prod(given[:-1]) > 1:
                yield Repeated(node=node, operand=name, given=given, shape=shape)


_INTEGER = frozenset({"ConvInteger", "MatMulInteger"})


def dynamically_quantized(facts: GraphFacts) -> frozenset[str]:
    """Labels of the nodes of whole chains: DynamicQuantizeLinear, MatMulInteger or ConvInteger, Cast, Mul.

    A DynamicQuantizeLinear belongs to them where every reader of its integers does, and the model does not give them.
    """
    whole: set[str] = set()
    for first in facts.nodes:
        if first.op_type != "DynamicQuantizeLinear":
            continue
        readers = facts.consumers_of(first.outputs[0])
        inside = [reader.label for reader in readers if reader.op_type in _INTEGER and _scaled(facts, reader)]
        whole.update(inside)
        if readers and len(inside) == len(readers) and first.outputs[0] not in facts.outputs:
            whole.add(first.label)
    return frozenset(whole)


def _scaled(facts: GraphFacts, integer: NodeFact) -> bool:
    """Whether the sums become floats in one Cast, and that is multiplied by a scale."""
    casts = facts.consumers_of(integer.outputs[0])
    if len(casts) != 1 or casts[0].op_type != "Cast":
        return False
    after = facts.consumers_of(casts[0].outputs[0])
    return len(after) == 1 and after[0].op_type == "Mul"
