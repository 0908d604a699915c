"""Refuses graphs that later stages could not walk, and settings over which onnx or ONNX Runtime never end.

It looks at names, counts and single settings; whether shapes and types fit is for shape inference to say.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from deploykit.errors import InputError
from deploykit.model.nodes import captured_names, label, opset_of
from deploykit.model.operators import is_standard
from deploykit.model.values import nested_graphs

if TYPE_CHECKING:
    from onnx import FunctionProto, GraphProto, ModelProto, NodeProto

    from deploykit.model.facts import NodeFact, TensorFact

__all__ = ["check_arity", "check_attention", "check_hazards", "check_structure"]

_ONCE = "ONNX graphs assign every name exactly once; with two values under one name nobody can say which is meant"
_AGAIN = "export the model again, or give one of them another name"


def check_structure(path: Path, proto: ModelProto) -> None:
    """InputError, naming the tensor and the node, where the graph is not in single assignment form and sorted order."""
    if not proto.graph.output:
        raise InputError(f"{path}: its graph has no outputs, so it computes nothing", next="export the model again")
    head = (proto.producer_name, proto.producer_version, proto.graph.name)
    for text in (*head, *(entry.domain for entry in proto.opset_import)):
        if not isinstance(text, str):
            raise _no_text(path, text, "the model")
    _Checker(path).graph(proto.graph, set(), "the graph")
    for function in proto.functions:
        names = (*function.input, *function.output, function.name, function.domain)
        if not all(isinstance(name, str) for name in names) or not function.name:
            raise InputError(f"{path}: a function of the model has no valid name", next="export the model again")
        _Checker(path).nodes(function.node, set(function.input), "function " + repr(function.name))
    _check_calls(path, proto)


def _no_text(path: Path, text: object, what: str) -> InputError:
    """Protobuf hands over bytes where a text is not valid."""
    return InputError(
        f"{path}: {what} has the name {text!r:.80}, which is not UTF-8", next="copy or export the model again"
    )


class _Checker:
    """Walks graphs with the set of names visible so far; subgraphs see those of the graphs around them."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def graph(self, graph: GraphProto, visible: set[str], where: str) -> None:
        names: set[str] = set()
        for name in chain((t.name for t in graph.initializer), (s.values.name for s in graph.sparse_initializer)):
            self._name(name, f"an initializer of {where}")
            if name in names:
                raise InputError(f"{self.path}: {where} has the initializer {name!r} twice", why=_ONCE, next=_AGAIN)
            names.add(name)
        own = names
        inputs: set[str] = set()
        for item in graph.input:
            self._name(item.name, f"an input of {where}")
            if item.name in inputs:
                raise InputError(f"{self.path}: {where} has the input {item.name!r} twice", why=_ONCE, next=_AGAIN)
            inputs.add(item.name)
        # Before IR version 4 every initializer was listed among the inputs too: that is one tensor, not two.
        self.nodes(graph.node, visible, where, own | inputs, [item.name for item in graph.output])

    def nodes(
        self,
        nodes: Sequence[NodeProto],
        visible: set[str],
        where: str,
        own: Iterable[str] = (),
        outputs: Iterable[str] = (),
    ) -> None:
        """Check nodes in order; ``visible`` is as before when it returns."""
        made, added = set(own), [name for name in own if name not in visible]
        visible.update(added)
        for node in nodes:
            self._node(node, visible, nodes, where)
            for name in filter(None, node.output):
                if not isinstance(name, str):
                    raise _no_text(self.path, name, f"an output of node {label(node)!r}")
                if name in made:
                    raise InputError(
                        f"{self.path}: node {label(node)!r} makes {name!r}, which exists already",
                        why=_ONCE,
                        next=_AGAIN,
                    )
                made.add(name)
                if name not in visible:
                    visible.add(name)
                    added.append(name)
        for name in outputs:
            self._name(name, f"an output of {where}")
            if name not in visible:
                raise InputError(
                    f"{self.path}: nothing makes {name!r}, an output of {where}", next="export the model again"
                )
        visible.difference_update(added)

    def _node(self, node: NodeProto, visible: set[str], nodes: Sequence[NodeProto], where: str) -> None:
        if not node.op_type:
            raise InputError(f"{self.path}: node {label(node)!r} has no operator type", next="export the model again")
        for name in (node.name, node.op_type, node.domain, *(attribute.name for attribute in node.attribute)):
            if not isinstance(name, str):
                raise _no_text(self.path, name, f"node {label(node)!r}")
        for name in filter(None, node.input):
            if not isinstance(name, str):
                raise _no_text(self.path, name, f"an input of node {label(node)!r}")
            if name not in visible:
                raise _unordered(self.path, nodes, node, name)
        for attribute in node.attribute:
            for graph in (*([attribute.g] if attribute.HasField("g") else []), *attribute.graphs):
                self.graph(graph, visible, f"{attribute.name!r} of node {label(node)!r} in {where}"[:300])

    def _name(self, name: str, what: str) -> None:
        if not isinstance(name, str):
            raise _no_text(self.path, name, what)
        if not name:
            raise InputError(f"{self.path}: {what} has no name", why="tensors are told apart by their names")


def _unordered(path: Path, nodes: Sequence[NodeProto], node: NodeProto, name: str) -> InputError:
    """Why a node reads a name that does not exist yet: a cycle, wrong order, or nobody makes it."""
    where = f"{path}: node {label(node)!r} reads {name!r}"
    if not any(name in other.output for other in nodes):
        return InputError(f"{where}, which nothing makes", next="export the model again, or complete the graph")
    cycle = _find_cycle(nodes)
    if cycle:
        shown = " -> ".join([*cycle[:6], *(["…"] if len(cycle) > 6 else []), cycle[0]])
        return InputError(
            f"{where} before it is made: the graph has a cycle",
            why=f"the cycle is {shown}",
            next="break the cycle; recurrence is written with Loop, Scan or by unrolling",
        )
    return InputError(
        f"{where} before it is made: the nodes are not in execution order",
        why="ONNX wants the nodes topologically sorted, and every reader walks them in order",
        next="sort the nodes, for instance with TopologicalSortPass of the onnx-ir package",
    )


def _find_cycle(nodes: Sequence[NodeProto]) -> list[str]:
    """The labels of the nodes of one cycle, [] when there is none; linear, by taking away what depends on nothing."""
    makers = {name: index for index, node in enumerate(nodes) for name in node.output if name}
    needs = [{makers[name] for name in _reads(node) if name in makers} for node in nodes]
    readers: list[list[int]] = [[] for _ in nodes]
    for index, needed in enumerate(needs):
        for maker in needed:
            readers[maker].append(index)
    waiting = [len(needed) for needed in needs]
    ready = [index for index, count in enumerate(waiting) if not count]
    while ready:
        for reader in readers[ready.pop()]:
            waiting[reader] -= 1
            if not waiting[reader]:
                ready.append(reader)
    stuck = next((index for index, count in enumerate(waiting) if count), None)
    return [] if stuck is None else [label(nodes[index]) for index in _walk_back(stuck, needs, waiting)]


def _walk_back(start: int, needs: Sequence[set[int]], waiting: Sequence[int]) -> list[int]:
    """From a node that never becomes ready, follow unmet needs until one repeats; the cycle, earliest node first."""
    seen: dict[int, int] = {}
    trail: list[int] = []
    while start not in seen:
        seen[start] = len(trail)
        trail.append(start)
        start = next(needed for needed in needs[start] if waiting[needed])
    cycle = trail[seen[start] :][::-1]
    first = cycle.index(min(cycle))
    return cycle[first:] + cycle[:first]


def _reads(node: NodeProto) -> Iterator[str]:
    yield from filter(None, node.input)
    yield from captured_names(node)


def _check_calls(path: Path, proto: ModelProto) -> None:
    """InputError where functions of the model call each other in a circle, or expand beyond measure."""
    bodies = {(function.domain, function.name): function for function in proto.functions}
    sizes: dict[tuple[str, str], int] = {}
    for start in bodies:
        _expand(path, start, bodies, sizes)
    _bounded(path, sum(sizes.get((node.domain, node.op_type), 0) for node in _all_nodes(proto.graph.node)))


_MOST_EXPANDED = 1_000_000


def _bounded(path: Path, expanded: int) -> int:
    if expanded > _MOST_EXPANDED:
        raise InputError(
            f"{path}: its functions expand to more than {_MOST_EXPANDED:,} nodes", why="no real model has that many"
        )
    return expanded


def _expand(
    path: Path,
    start: tuple[str, str],
    bodies: dict[tuple[str, str], FunctionProto],
    sizes: dict[tuple[str, str], int],
) -> None:
    """Fill ``sizes`` with the number of nodes that ``start`` and what it calls expand to; without recursion."""
    todo = [(start, False)]
    open_calls: set[tuple[str, str]] = set()
    while todo:
        key, visited = todo.pop()
        if key in sizes:
            continue
        calls = [(node.domain, node.op_type) for node in _all_nodes(bodies[key].node)]
        if visited:
            open_calls.discard(key)
            sizes[key] = _bounded(path, sum(1 + sizes.get(call, 0) for call in calls))
            continue
        if key in open_calls:
            raise InputError(f"{path}: its function {key[1]!r} calls itself", why="ONNX functions must not recurse")
        open_calls.add(key)
        todo.append((key, True))
        todo += [(call, False) for call in dict.fromkeys(calls) if call in bodies and call not in sizes]


def _all_nodes(nodes: Iterable[NodeProto]) -> Iterator[NodeProto]:
    yield from nodes
    for graph in nested_graphs(nodes):
        yield from graph.node


@dataclass(frozen=True, slots=True)
class _Signature:
    """How many inputs and outputs an operator takes, and how many of the first inputs must be given."""

    inputs: range
    outputs: range
    required: int


def check_arity(path: Path, proto: ModelProto) -> None:
    """InputError, naming the node, where a standard operator has too few or too many inputs or outputs."""
    opset = opset_of(proto)
    for node in _nodes(proto):
        signature = _signature(node.op_type, opset) if is_standard(node) else None
        if signature is not None:
            for what, names, allowed in (
                ("inputs", node.input, signature.inputs),
                ("outputs", node.output, signature.outputs),
            ):
                if len(names) not in allowed:
                    least, most = allowed.start, allowed.stop - 1
                    wanted = (
                        f"{least}" if least == most else f"at least {least}" if most > 1 << 20 else f"{least} to {most}"
                    )
                    raise InputError(
                        f"{path}: node {label(node)!r} has {len(names)} {what}",
                        why=f"{node.op_type} takes {wanted}",
                        next="export the model again; onnx.checker.check_model says what else is wrong",
                    )
            if not all(node.input[: signature.required]):
                position = list(node.input).index("")
                raise InputError(
                    f"{path}: node {label(node)!r} leaves out its input {position}",
                    why=f"{node.op_type} cannot do without it",
                    next="export the model again; onnx.checker.check_model says what else is wrong",
                )


def _nodes(proto: ModelProto) -> Iterator[NodeProto]:
    yield from proto.graph.node
    for graph in nested_graphs(proto.graph.node):
        yield from graph.node


@cache
def _signature(op_type: str, opset: int) -> _Signature | None:
    """What the operator's schema says; None for operators that the installed onnx does not know."""
    from onnx import defs

    if opset <= 0:  # nobody knows which version is meant: ask for the least that any of them has
        least = min((known.min_input for known in _versions().get(op_type, ())), default=0)
        return _Signature(range(least, 1 << 31), range(1, 1 << 31), least)
    try:
        schema = defs.get_schema(op_type, opset)
    except (defs.SchemaError, TypeError, OverflowError):
        return None
    single = defs.OpSchema.FormalParameterOption.Single
    required = 0
    for parameter in schema.inputs:
        if parameter.option != single:
            break
        required += 1
    return _Signature(
        range(schema.min_input, schema.max_input + 1), range(schema.min_output, schema.max_output + 1), required
    )


@cache
def _versions() -> Mapping[str, Sequence[Any]]:
    """Every version of each standard operator that the installed onnx knows."""
    from onnx import defs

    found: dict[str, list[Any]] = {}
    for schema in defs.get_all_schemas_with_history():
        if not schema.domain:
            found.setdefault(schema.name, []).append(schema)
    return found


_TERM = r"[A-Za-z ]*(?:\.\.\.[A-Za-z ]*)?"
_EQUATION = re.compile(rf"{_TERM}(?:,{_TERM})*(?:->{_TERM})?".encode())
"""Einsum of ONNX operator set 12: letters, at most one ellipsis in a term, and spaces that say nothing."""


_FARTHEST = 1 << 16
"""No tensor has so many dimensions; onnx keeps some axes in 32 bits."""


def check_hazards(path: Path, proto: ModelProto) -> None:
    """InputError, naming the node, where an Einsum has an equation that is none, or an axis is none."""
    for node in _nodes_everywhere(proto):
        for attribute in node.attribute:
            if attribute.name == "axis" and abs(attribute.i) > _FARTHEST:
                raise InputError(
                    f"{path}: node {label(node)!r} has the axis {attribute.i}",
                    why="no tensor has so many dimensions",
                    next="export the model again",
                )
        if node.op_type == "Einsum" and is_standard(node):
            for attribute in node.attribute:
                if attribute.name == "equation" and not _EQUATION.fullmatch(attribute.s):
                    raise InputError(
                        f"{path}: node {label(node)!r} has the equation {attribute.s[:80].decode(errors='replace')!r}",
                        why="an equation of Einsum holds letters, commas, '...' once in a term, and '->' once",
                        next="export the model again",
                    )


def _nodes_everywhere(proto: ModelProto) -> Iterator[NodeProto]:
    for nodes in (proto.graph.node, *(function.node for function in proto.functions)):
        yield from chain(nodes, *(graph.node for graph in nested_graphs(nodes)))


_RANKS = {"Q": (3, 4), "K": (3, 4), "V": (3, 4), "attn_mask": (0, 1, 2, 3, 4), "past_key": (4,), "past_value": (4,)}
_CACHE = (4, 5)
"""Positions of the cached keys and values: both are given, or none is."""


def check_attention(path: Path, nodes: Iterable[NodeFact], tensors: Mapping[str, TensorFact]) -> None:
    """InputError, naming the node, for an operand of a rank that Attention does not take, and for half a cache."""
    for node in nodes:
        if node.op_type != "Attention" or not is_standard(node):
            continue
        for operand, name in zip(_RANKS, node.inputs, strict=False):
            shape = tensors[name].shape if name in tensors else None
            if shape is not None and len(shape) not in _RANKS[operand]:
                raise InputError(
                    f"{path}: node {node.label!r}: {operand} {name!r} has rank {len(shape)}",
                    why=f"Attention takes rank {' or '.join(map(str, _RANKS[operand]))} there",
                    next="export the model again",
                )
        given = [at < len(node.inputs) and bool(node.inputs[at]) for at in _CACHE]
        if any(given) and not all(given):
            raise InputError(
                f"{path}: node {node.label!r} has cached keys or cached values, and not both",
                next="export the model again",
            )
