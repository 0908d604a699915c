"""Finds operators that a graph writes out node by node, pairs that tool chains fuse, and other patterns of nodes.

It looks at structure, shapes and the values of stored scalars; it knows no encodings and changes nothing.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from itertools import permutations
from typing import Any

from msgspec import Struct

from deploykit.findings.records import Record, Shape
from deploykit.model.facts import GraphFacts, NodeFact, TensorFact
from deploykit.model.operators import Trait, has, is_standard, ops
from deploykit.model.parameters import bias_after_matmul, stored_behind
from deploykit.system.store import made_once

__all__ = [
    "NORMS",
    "PAIRS",
    "Fusion",
    "casts_of_indices",
    "find_blocks",
    "fusions",
    "repeated_before_norm",
    "written_layer_norms",
]


class FusedBlock(Record):
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
    scale: str
    bias: str


@made_once
def find_blocks(facts: GraphFacts) -> tuple[FusedBlock, ...]:
    """All written-out operators, in the order of their last nodes; no two share a node, and the longer one wins."""
    finder, found = _Finder(facts), list[FusedBlock]()
    for node in facts.nodes:
        for match in _ENDS_OR_GATES.get(node.op_type, ()) if is_standard(node) else ():
            block = match(finder, node)
            found += [] if block is None else [block]
    taken = set[int]()
    kept = []
    for block in sorted(found, key=lambda block: -len(block.nodes)):
        if taken.isdisjoint(block.nodes):
            taken.update(block.nodes)
            kept.append(block)
    return tuple(sorted(kept, key=lambda block: block.nodes[-1]))


def written_layer_norms(facts: GraphFacts) -> Iterator[FusedBlock]:
    """Every written-out layer normalization, without its scale and bias, whose inner tensors nothing else reads."""
    finder = _Finder(facts)
    for node in facts.nodes:
        found = finder.match(_LAYER_NORM, node.outputs[0], {}) if node.op_type in ("Div", "Mul") else None
        block = None if found is None else finder.block("LayerNormalization", found["x"], finder.nodes(found))
        if block is not None:
            yield block


class _Finder(Struct, frozen=True):
    """One graph, with the questions that the matchers ask of it."""

    facts: GraphFacts

    def match(self, pattern: Any, name: str, found: Mapping[Any, Any]) -> Mapping[Any, Any] | None:
        """The match of a pattern at a tensor, added to ``found``; None where the pattern does not fit.

        It maps the names in the pattern to tensors, and node indices to nodes. In a pattern, a text stands for one
        tensor, a float for a stored scalar, ``None`` for any stored tensor, a tuple for an operator with its first
        operands, and a list for alternatives.
        """
        if isinstance(pattern, list):
            for each in pattern:
                fit = self.match(each, name, found)
                if fit is not None:
                    return fit
            return None
        if isinstance(pattern, str):
            return {**found, pattern: name} if found.get(pattern, name) == name else None
        if pattern is None or isinstance(pattern, float):
            fits = self.stored(name) if pattern is None else self.scalar(name) == pattern
            return found if fits else None
        op_type, *operands = pattern
        node = self.maker(name, op_type)
        if node is None or len(node.inputs) < len(operands):
            return None
        for inputs in permutations(node.inputs) if op_type in ("Add", "Mul") else (node.inputs,):
            made: Mapping[Any, Any] | None = {**found, node.index: node}
            for each, used in zip(operands, inputs, strict=False):
                made = None if made is None else self.match(each, used, made)
            if made is not None:
                return made
        return None

    def nodes(self, found: Mapping[Any, Any]) -> list[NodeFact]:
        """The nodes of a match in graph order, without its tensors."""
        return [found[index] for index in sorted(key for key in found if isinstance(key, int))]

    def maker(self, name: str, *op_types: str) -> NodeFact | None:
        """The node that makes a tensor, if it is one of the given types."""
        node = self.facts.producer_of(name, *op_types)
        return node if node is not None and is_standard(node) else None

    def reader(self, name: str, *op_types: str) -> NodeFact | None:
        """The only reader of a tensor that is no output, if it is one of the given types."""
        node = None if self.facts.tensor(name).is_output else self.facts.only_reader(name, *op_types)
        return node if node is not None and is_standard(node) else None

    def stored(self, name: str) -> bool:
        """True for a stored tensor, looking through Identity."""
        return stored_behind(self.facts, name) is not None

    def scalar(self, name: str) -> float | None:
        """The value of a stored scalar, or None."""
        behind = stored_behind(self.facts, name)
        return None if behind is None else self.facts.scalars.get(behind)

    def split(self, node: NodeFact) -> tuple[str, str] | None:
        """(computed, stored) operands of an Add, Mul or Div that has one of each, Identity seen through."""
        first, second = node.inputs
        if self.stored(first) == self.stored(second):
            return None
        return (second, first) if self.stored(first) else (first, second)

    def block(
        self, kind: str, source: str, nodes: Iterable[NodeFact], scale: str = "", bias: str = ""
    ) -> FusedBlock | None:
        """The block of these nodes; None where a tensor computed inside is an output or has a reader outside."""
        ordered = {node.index: node for node in sorted(nodes, key=lambda node: node.index)}
        *_, last = ordered.values()
        inside = {name for node in ordered.values() for name in node.outputs if name} - {last.outputs[0]}
        for fact in map(self.facts.tensors.__getitem__, inside):
            if fact.is_output or not ordered.keys() >= set(fact.consumers):
                return None
        read = {name for node in ordered.values() for name in node.inputs if self.stored(name)}
        return FusedBlock(
            kind=kind,
            nodes=tuple(ordered),
            source=source,
            result=last.outputs[0],
            inside=frozenset(inside),
            settings=frozenset(read - {scale, bias}),
            scale=scale,
            bias=bias,
        )


def _norm_of(centred: Any) -> list[Any]:
    """The patterns of  c / sqrt(mean(c²) + epsilon)."""
    mean_square = ("ReduceMean", [("Mul", centred, centred), ("Pow", centred, 2.0)])
    variance = [("Add", mean_square, None), mean_square]
    root = ("Sqrt", variance)
    inverses = [("Reciprocal", root), ("Div", 1.0, root), ("Pow", variance, -0.5)]
    return [("Div", centred, root), ("Mul", centred, inverses)]


_LAYER_NORM, _RMS_NORM = _norm_of(("Sub", "x", ("ReduceMean", "x"))), _norm_of("x")
_SOFTMAX = ("Div", "e", ("ReduceSum", "e"))
_EXPONENTIAL = [("Exp", ("Sub", "x", ("ReduceMax", "x"))), ("Exp", "x")]


def _match_norm(finder: _Finder, last: NodeFact) -> FusedBlock | None:
    """The block of a tensor divided by its root mean square, with scale and bias behind it; None without one."""
    for kind, pattern in (("LayerNormalization", _LAYER_NORM), ("RMSNormalization", _RMS_NORM)):
        found = finder.match(pattern, last.outputs[0], {})
        if found is not None:
            more, scale, bias = _scale_and_bias(finder, last)
            return finder.block(kind, found["x"], [*finder.nodes(found), *more], scale, bias)
    return None


def _scale_and_bias(finder: _Finder, node: NodeFact) -> tuple[list[NodeFact], str, str]:
    """(nodes, scale, bias) behind a normalized tensor.

    The nodes are Casts and Reshapes, a Mul by a stored scale and an Add of a stored bias.
    """
    nodes = list[NodeFact]()
    after = finder.reader(node.outputs[0], "Cast", "Mul", "Reshape")
    while after is not None and after.op_type != "Mul":
        nodes.append(after)
        after = finder.reader(after.outputs[0], "Cast", "Mul", "Reshape")
    scaled = None if after is None else finder.split(after)
    if after is None or scaled is None:
        return [], "", ""
    plus = finder.reader(after.outputs[0], "Add")
    added = None if plus is None else finder.split(plus)
    if plus is None or added is None:
        return [*nodes, after], scaled[1], ""
    return [*nodes, after, plus], scaled[1], added[1]


def _match_grouped(finder: _Finder, node: NodeFact) -> FusedBlock | None:
    """The block of a group norm, exported as InstanceNormalization inside two Reshapes with a scale behind them."""
    before, back = finder.maker(node.inputs[0], "Reshape"), finder.reader(node.outputs[0], "Reshape")
    if before is None or back is None:
        return None
    more, scale, bias = _scale_and_bias(finder, back)
    return (
        finder.block("GroupNormalization", before.inputs[0], [before, node, back, *more], scale, bias) if more else None
    )


def _match_softmax(finder: _Finder, last: NodeFact) -> FusedBlock | None:
    """The block of exp(x - max(x)) over its own sum; the subtraction may be missing."""
    found = finder.match(_SOFTMAX, last.outputs[0], {})
    found = None if found is None else finder.match(_EXPONENTIAL, found["e"], found)
    return None if found is None else finder.block("Softmax", found["x"], finder.nodes(found))


_GATES = {"Erf": "Gelu", "Tanh": "Gelu", "Sigmoid": "Swish", "HardSigmoid": "HardSwish", "Clip": "HardSwish"}
_SCALAR_STEPS = ("Add", "Div", "Mul", "Pow", "Sub")
# Exporters write a GELU in at most eight steps.
_MOST_STEPS = 8


def _match_gate(finder: _Finder, gate: NodeFact) -> FusedBlock | None:
    """The block of x times a function of x that a Sigmoid, Erf, Tanh or Clip bounds; scalar steps may lie between."""
    nodes, name, source = [gate], gate.outputs[0], ""
    for _ in range(_MOST_STEPS):
        node = finder.reader(name, *_SCALAR_STEPS)
        beside = [] if node is None or len(node.inputs) != 2 else [used for used in node.inputs if used != name]
        if node is None or len(beside) != 1:
            break
        if finder.scalar(beside[0]) is None:
            above = None if source or node.op_type != "Mul" else _gated(finder, gate, beside[0])
            if above is None:
                break
            source = above[0]
            nodes += above[1]
        nodes.append(node)
        name = node.outputs[0]
    if not source or (gate.op_type in ("Erf", "Tanh") and all(node.op_type != "Add" for node in nodes)):
        return None
    return finder.block(_GATES[gate.op_type], source, nodes)


def _gated(finder: _Finder, gate: NodeFact, beside: str) -> tuple[str, list[NodeFact]] | None:
    """(x, nodes) where ``beside`` is x, or x times a scalar, and the gate is computed from x alone; else None."""
    scaled = finder.maker(beside, "Div", "Mul")
    operands = None if scaled is None else finder.split(scaled)
    candidates = [(beside, list[NodeFact]())]
    if scaled is not None and operands is not None and finder.scalar(operands[1]) is not None:
        candidates.append((operands[0], [scaled]))
    for source, steps in candidates:
        # The scalar steps from x to the gate, x + k·x³ among them.
        nodes, todo = {node.index: node for node in steps}, [gate.inputs[0]]
        while todo:
            current = todo.pop()
            if current == source or finder.scalar(current) is not None:
                continue
            node = finder.maker(current, *_SCALAR_STEPS)
            if node is None or len(nodes) > _MOST_STEPS:
                break
            if node.index not in nodes:
                nodes[node.index] = node
                todo += node.inputs
        else:
            return source, list(nodes.values())
    return None


# The matchers that are tried at each operator.
_ENDS_OR_GATES = {
    **dict.fromkeys(_GATES, (_match_gate,)),
    "Div": (_match_norm, _match_softmax),
    "InstanceNormalization": (_match_grouped,),
    "Mul": (_match_norm,),
}


NORMS = ("LayerNormalization", "RMSNormalization")
"""Kinds of written-out operators that AIMET's passes make one operator of (source: ``_PASSES``).

A norm over the last axes and one over the image have the same form. The other kinds exist as one operator of ONNX, and
runtimes match what is written out; no file with one was seen.
"""


def repeated_before_norm(facts: GraphFacts) -> Iterator[tuple[NodeFact, str, Shape, Shape]]:
    """Every Add or Mul of static shape that a layer or RMS normalization reads, one operator or written out.

    Each comes with the operand that it repeats, the operand's shape and the shape of the result. The operand has rows
    of its own for several positions: one row, or one column, for all of them is not meant.
    """
    sources = {node.inputs[0] for node in facts.nodes if node.op_type in NORMS and node.inputs}
    sources |= {block.source for block in find_blocks(facts) if block.kind in NORMS}
    # A Reshape between sum and norm changes nothing here.
    before = {node.index for name in sources if (node := facts.maker_behind(name, ops(Trait.RESHAPES))) is not None}
    for index in sorted(before):
        node = facts.nodes[index]
        if node.op_type not in ("Add", "Mul") or not is_standard(node):
            continue
        shape = facts.static_shape(node.outputs[0])
        for name in dict.fromkeys(node.inputs):
            given = facts.static_shape(name)
            if shape and given and math.prod(given) < math.prod(shape) and given[-1] > 1 and math.prod(given[:-1]) > 1:
                yield node, name, given, shape


# What tool chains compute as one operator, as a table with sources. A tensor inside has no type of its own, and the
# encodings that AIMET writes for an NPU have no entry for it. ``encodings`` judges whether this explains a missing
# entry.

_CONFIG = "aimet-onnx 2.42.0, supergroups of the NPU configurations v73 to v85 (read)"
_PASSES = "aimet-onnx 2.42.0, supergroup_pass_list of the NPU configurations v68 to v85 and its graph passes (read)"
_FILES = "encodings that aimet-onnx 2.31.0 and 2.42.0 wrote for an NPU (tests/data/aimet)"
_ALIKE = "in analogy to the pairs that AIMET's configurations name; no file with it was seen"

_CONVOLUTIONS = ops(Trait.CONVOLVES)
_SUMMING = frozenset({"Add", "MatMul", "Gemm", "ConvTranspose"})


class FusedKind(Struct, frozen=True):
    """An operator that is fused with any of ``makers`` in front of it, and the source of that fact."""

    name: str
    makers: frozenset[str]
    source: str


PAIRS: tuple[FusedKind, ...] = (
    FusedKind("BatchNormalization", ops(Trait.TAKES_BATCHNORM), _FILES),
    FusedKind("Relu", _CONVOLUTIONS | {"Add", "Gemm", "BatchNormalization"}, _CONFIG),
    FusedKind("Relu", frozenset({"MatMul"}), _FILES),
    FusedKind("Clip", frozenset({"Conv"}), _CONFIG),
    FusedKind("Clip", frozenset({"BatchNormalization", "ConvTranspose", "Gemm"}), _FILES),
    FusedKind("Clip", frozenset({"Add", "MatMul"}), _ALIKE),
    FusedKind("PRelu", frozenset({"BatchNormalization", "Conv"}), _CONFIG),
    FusedKind("PRelu", _SUMMING, _ALIKE),
    FusedKind("LeakyRelu", frozenset({"BatchNormalization", "Conv"}), _CONFIG),
    FusedKind("LeakyRelu", _SUMMING, _ALIKE),
    FusedKind("HardSwish", frozenset({"BatchNormalization"}), _CONFIG),
    FusedKind("HardSwish", _SUMMING | {"Conv"}, _ALIKE),
)
"""Pairs of operators in which the maker computes the first input of the reader.

A MatMul and the Add of its bias are a pair too; ``bias_after_matmul`` recognizes it (source: ``_PASSES``).
"""

# Readers that are fused with a Conv through a Transpose between the two; source: ``_CONFIG``.
_THROUGH_TRANSPOSE = frozenset({"LeakyRelu", "PRelu", "Relu"})

# Blocks that are fused with the operator that computes their input, as HardSwish is in ``PAIRS``.
_GATED = frozenset({"HardSwish", "Swish"})

# The most inputs of an operator that is fused with its maker: those of BatchNormalization. Looking through longer lists
# for every tensor in them would not be linear.
_MOST_INPUTS = 5


class Fusion(Record):
    """Tensors that vanish because tool chains compute their nodes as one operator.

    ``inside`` are computed tensors, ``settings`` stored ones that serve only this operator; ``node`` makes the
    ``result``, and ``words`` describe the place ("between Conv and the Relu fused with it"). Where it is ``certain``,
    entries are missing inside whatever the rest of the file says. The others explain missing entries only where nothing
    inside has an entry and the result has one.
    """

    node: NodeFact
    result: str
    inside: frozenset[str]
    settings: frozenset[str] = frozenset()
    certain: bool
    words: str


@made_once
def fusions(facts: GraphFacts) -> tuple[Fusion, ...]:
    """Every fused pair and every written-out block of a graph; linear in its size."""
    found = [pair for tensor in facts.tensors.values() if (pair := _fused_pair(facts, tensor)) is not None]
    for block in find_blocks(facts):
        certain, node = block.kind in NORMS, facts.nodes[block.nodes[-1]]
        inside, words = block.inside, f"inside the {block.kind} that {node.op_type} ends"
        source = facts.tensors[block.source]
        alone = not source.is_output and set(source.consumers) <= set(block.nodes)
        maker = facts.producer_of(block.source) if block.kind in _GATED and alone else None
        if maker is not None and (has(maker, Trait.LINEAR) or maker.op_type == "Add"):
            inside, words = inside | {block.source}, f"between {maker.op_type} and the {block.kind} fused with it"
        # One lone omission is more likely a slip than a fusion.
        if certain or len(inside) > 1:
            settings = block.settings | ({block.bias} if block.bias else set())
            fusion = Fusion(
                node=node, result=block.result, inside=inside, settings=settings, certain=certain, words=words
            )
            found.append(fusion)
    return tuple(found)


def _fused_pair(facts: GraphFacts, tensor: TensorFact) -> Fusion | None:
    """The fused pair with a tensor between its operators, perhaps with a Transpose; None without one."""
    maker, reader = facts.producer_of(tensor.name), _fusable_reader(facts, tensor)
    if maker is None or reader is None or not is_standard(maker):
        return None
    inside, last, certain = {tensor.name}, tensor.name, True
    if bias_after_matmul(facts, maker) is None:
        if maker.op_type == "Conv" and reader.op_type == "Transpose":
            last = reader.outputs[0]
            behind = _fusable_reader(facts, facts.tensors[last])
            if behind is None or behind.op_type not in _THROUGH_TRANSPOSE:
                return None
            inside, reader = inside | {last}, behind
        else:
            rows = [row for row in PAIRS if row.name == reader.op_type and maker.op_type in row.makers]
            certain = any(row.source is not _ALIKE for row in rows)
            if not rows:
                return None
        if reader.inputs[0] != last:
            return None
    words = f"between {maker.op_type} and the {reader.op_type} fused with it"
    return Fusion(node=reader, result=reader.outputs[0], inside=frozenset(inside), certain=certain, words=words)


def _fusable_reader(facts: GraphFacts, tensor: TensorFact) -> NodeFact | None:
    reader = facts.only_reader(tensor.name)
    if reader is None or tensor.is_output or len(reader.inputs) > _MOST_INPUTS:
        return None
    return reader if is_standard(reader) and reader.inputs.count(tensor.name) == 1 else None


def casts_of_indices(facts: GraphFacts, name: str) -> tuple[NodeFact, ...]:
    """The readers of a float tensor where all cast it to integers: it holds indices, not amounts. Else ()."""
    readers = facts.consumers_of(name)
    cast = all(node.op_type == "Cast" and "int" in facts.tensor(node.outputs[0]).dtype for node in readers)
    return readers if cast and facts.tensor(name).is_float else ()
