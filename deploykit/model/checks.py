"""Refuses graphs that later stages could not walk, and settings with which onnx or ONNX Runtime never finish.

It looks at names, counts and single settings; whether shapes and types fit is for shape inference to say.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from deploykit.errors import InputError
from deploykit.findings.records import Record
from deploykit.model.nodes import bodies, copy_of, label, names_read, opset_of
from deploykit.model.operators import Trait, has, is_standard
from deploykit.model.values import nested_graphs

if TYPE_CHECKING:
    from onnx import GraphProto, ModelProto, NodeProto

    from deploykit.model.facts import NodeFact, TensorFact

__all__ = ["check_attention", "check_graph", "sort_nodes"]

_ONCE = "ONNX graphs assign every name exactly once; with two values under one name nobody can say which is meant"
_EXPORT = "export the model again"
_EXPORT_CHECKED = "export the model again; onnx.checker.check_model says what else is wrong"

# Nodes that the functions of a model may expand to; no real model has that many.
_MOST_EXPANDED = 1_000_000

_TERM = r"[A-Za-z ]*(?:\.\.\.[A-Za-z ]*)?"
# Einsum of ONNX operator set 12: letters, at most one ellipsis in a term, and spaces that say nothing.
_EQUATION = re.compile(rf"{_TERM}(?:,{_TERM})*(?:->{_TERM})?".encode())

# No tensor has so many dimensions; onnx keeps some axes in 32 bits.
_FARTHEST = 1 << 16


def check_graph(path: Path, proto: ModelProto) -> None:
    """Raise InputError, naming the tensor and the node, unless the graph is well formed.

    Every name is made once and before it is read, standard operators have the inputs and outputs that they need,
    functions do not call each other in circles, and no axis or equation is beyond reason.
    """
    if not proto.graph.output:
        raise InputError(f"{path}: its graph has no outputs, so it computes nothing", next=_EXPORT)
    checker = _Checker(path=path, opset=opset_of(proto))
    domains = (entry.domain for entry in proto.opset_import)
    checker.texts("the model", proto.producer_name, proto.producer_version, proto.graph.name, *domains)
    checker.graph(proto.graph, set(), "the graph")
    for function in proto.functions:
        names = (*function.input, *function.output, function.name, function.domain)
        if not all(isinstance(name, str) for name in names) or not function.name:
            checker.fail("a function of the model has no valid name")
        own = _Checker(path=path, opset=opset_of(function))
        own.nodes(function.node, set(function.input), f"function {function.name!r}")
    # InputError where functions of the model call each other in a circle, or expand beyond measure.
    functions = {(function.domain, function.name): _called(function.node) for function in proto.functions}
    sizes = dict[tuple[str, str], int]()
    order = TopologicalSorter({key: functions.keys() & set(calls) for key, calls in functions.items()})
    try:
        for key in order.static_order():
            sizes[key] = sum(1 + sizes.get(call, 0) for call in functions[key])
            if sizes[key] > _MOST_EXPANDED:
                break  # whoever calls it only has more
    except CycleError as error:
        name = error.args[1][0][1]
        raise InputError(f"{path}: its function {name!r} calls itself", why="ONNX functions must not recurse") from None
    if max((*sizes.values(), sum(sizes.get(call, 0) for call in _called(proto.graph.node)))) > _MOST_EXPANDED:
        raise InputError(
            f"{path}: its functions expand to more than {_MOST_EXPANDED:,} nodes",
            why="no real model has that many; the file is damaged or hostile",
        )


def sort_nodes(graph: GraphProto) -> bool:
    """Put nodes in execution order, in place.

    True where they were in another, as when float16 converters append their Casts. A cycle stays, and is refused later.
    """
    makers = {made: at for at, node in enumerate(graph.node) for made in node.output}
    reads = [{makers[name] for name in names_read(node) if name in makers} for node in graph.node]
    astray = any(max(read, default=-1) >= at for at, read in enumerate(reads))
    with suppress(CycleError):
        order = TopologicalSorter(dict(enumerate(reads))).static_order() if astray else ()
        nodes = [copy_of(graph.node[at]) for at in order]
        del graph.node[: len(nodes)]
        graph.node.extend(nodes)
    return astray


class _Checker(Record):
    """Walks graphs with the set of names visible so far; subgraphs see those of the graphs around them."""

    path: Path
    opset: int

    def fail(self, what: str, *, why: str = "", next: str = _EXPORT) -> NoReturn:  # noqa: A002
        """Raise an InputError that names the file."""
        raise InputError(f"{self.path}: {what}", why=why, next=next)

    def texts(self, what: str, *names: object) -> None:
        """Refuse names that are not valid UTF-8, which protobuf hands over as bytes."""
        for name in names:
            if not isinstance(name, str):
                said = f"{what} has the name {name!r:.80}, which is not UTF-8"
                self.fail(said, next="copy or export the model again")

    def graph(self, graph: GraphProto, visible: set[str], where: str) -> None:
        """Check one graph and all inside it; ``visible`` is as before when it returns."""
        stored = [*(t.name for t in graph.initializer), *(s.values.name for s in graph.sparse_initializer)]
        own = set[str]()
        for kind, names in (("initializer", stored), ("input", [item.name for item in graph.input])):
            seen = set[str]()
            for name in names:
                self._named(name, f"an {kind} of {where}")
                if name in seen:
                    self.fail(f"{where} has the {kind} {name!r} twice", why=_ONCE)
                seen.add(name)
            # Before IR version 4 every initializer was listed among the inputs too: that is one tensor, not two.
            own |= seen
        self.nodes(graph.node, visible, where, own, [item.name for item in graph.output])

    def _named(self, name: str, what: str) -> None:
        self.texts(what, name)
        if not name:
            self.fail(f"{what} has no name", why="tensors are told apart by their names")

    def nodes(
        self,
        nodes: Sequence[NodeProto],
        visible: set[str],
        where: str,
        own: Iterable[str] = (),
        outputs: Iterable[str] = (),
    ) -> None:
        """Check nodes in order, then that something makes the outputs; ``visible`` is as before when it returns."""
        made = set(own)
        added = made - visible
        visible |= added
        for node in nodes:
            self._node(node, visible, nodes, where)
            for name in filter(None, node.output):
                if name in made:
                    self.fail(f"node {label(node)!r} makes {name!r}, which exists already", why=_ONCE)
                made.add(name)
                if name not in visible:
                    visible.add(name)
                    added.add(name)
        for name in outputs:
            self._named(name, f"an output of {where}")
            if name not in visible:
                self.fail(f"nothing makes {name!r}, an output of {where}")
        visible -= added

    def _node(self, node: NodeProto, visible: set[str], nodes: Sequence[NodeProto], where: str) -> None:
        if not node.op_type:
            self.fail(f"node {label(node)!r} has no operator type")
        names = [node.name, node.op_type, node.domain, *node.input, *node.output]
        names += [attribute.name for attribute in node.attribute]
        if {*map(type, names)} != {str}:  # words are only made for a model that is refused
            self.texts(f"something of node {label(node)!r}", *names)
        for name in filter(None, node.input):
            if name not in visible:
                self._refuse_unknown(nodes, node, name)
        signature = _signature(node.op_type, self.opset) if is_standard(node) else None
        if signature is not None:
            inputs, outputs, required, kinds = signature
            for what, names, allowed in (("inputs", node.input, inputs), ("outputs", node.output, outputs)):
                if len(names) not in allowed:
                    least, most = allowed.start, allowed.stop - 1
                    several = f"{least} to {most}" if most <= 1 << 20 else f"at least {least}"
                    self.fail(
                        f"node {label(node)!r} has {len(names)} {what}",
                        why=f"{node.op_type} takes {least if least == most else several}",
                        next=_EXPORT_CHECKED,
                    )
            if not all(node.input[:required]):
                said = f"node {label(node)!r} leaves out its input {list(node.input).index('')}"
                self.fail(said, why=f"{node.op_type} cannot do without it", next=_EXPORT_CHECKED)
            given = {one.name: one.AttributeType.Name(one.type) for one in node.attribute}
            for name, (kind, needed) in kinds.items():
                if given.get(name, "" if needed else kind) != kind:
                    said = f"node {label(node)!r} has no attribute {name!r} of type {kind}"
                    self.fail(said, why=f"{node.op_type} takes no other", next=_EXPORT_CHECKED)
        for attribute in node.attribute:
            if attribute.name == "axis" and abs(attribute.i) > _FARTHEST:
                self.fail(f"node {label(node)!r} has the axis {attribute.i}", why="no tensor has so many dimensions")
            if node.op_type == "Einsum" and attribute.name == "equation" and not _EQUATION.fullmatch(attribute.s):
                self.fail(
                    f"node {label(node)!r} has the equation {attribute.s[:80].decode(errors='replace')!r}",
                    why="an equation of Einsum holds letters, commas, '...' once in a term, and '->' once",
                )
        self._bodies(node, visible, where)

    def _bodies(self, node: NodeProto, visible: set[str], where: str) -> None:
        inner = [*bodies(node)]
        if has(node, Trait.CONTROL_FLOW):
            fed, made = len(node.input), len(node.output)
            wanted = {"If": [(0, made)] * 2, "Loop": [(fed, made + 1)] * (fed <= made + 2)}
            ends = [(len({v.name for v in g.input} - {t.name for t in g.initializer}), len(g.output)) for g in inner]
            if ends != wanted.get(node.op_type, ends or None):
                why = "a body is fed what its node is, and gives what its node does"
                self.fail(f"node {label(node)!r} has no body that fits it", why=why, next=_EXPORT_CHECKED)
        for graph in inner:
            self.graph(graph, visible, f"a body of node {label(node)!r} in {where}"[:300])

    def _refuse_unknown(self, nodes: Sequence[NodeProto], node: NodeProto, name: str) -> NoReturn:
        """Refuse a name that is read before it exists: there is a cycle, the order is wrong, or no node makes it."""
        what = f"node {label(node)!r} reads {name!r}"
        makers = {made: index for index, other in enumerate(nodes) for made in other.output}
        if name not in makers:
            self.fail(f"{what}, which nothing makes", next="export the model again, or complete the graph")
        reads = enumerate(map(names_read, nodes))
        try:
            TopologicalSorter({i: {makers[n] for n in read if n in makers} for i, read in reads}).prepare()
        except CycleError as error:
            cycle: list[int] = error.args[1][:-1]
            first = cycle.index(min(cycle))
            shown = [label(nodes[index]) for index in (*cycle[first:], *cycle[:first])]
            self.fail(
                f"{what} before it is made: the graph has a cycle",
                why=f"the cycle is {' -> '.join([*shown[:6], *(['…'] if len(shown) > 6 else []), shown[0]])}",
                next="break the cycle; recurrence is written with Loop, Scan or by unrolling",
            )
        self.fail(
            f"{what} before it is made: the nodes are not in execution order",
            why="ONNX wants the nodes topologically sorted, and every reader walks them in order",
            next="sort the nodes, for instance with TopologicalSortPass of the onnx-ir package",
        )


@cache
def _signature(op_type: str, opset: int) -> tuple[range, range, int, Mapping[str, tuple[str, bool]]] | None:
    """How many inputs and outputs an operator takes, how many of the first inputs must be given, and its attributes.

    These by name, each with its type and whether it must be given.
    None for operators that the installed onnx does not know.
    """
    from onnx import defs

    if opset <= 0:  # nobody knows which version is meant: ask for the least that any of them has
        known = (schema for schema in defs.get_all_schemas_with_history() if not schema.domain)
        least = min((schema.min_input for schema in known if schema.name == op_type), default=0)
        return range(least, 1 << 31), range(1, 1 << 31), least, {}
    try:
        schema = defs.get_schema(op_type, opset)
    except (defs.SchemaError, TypeError, OverflowError):
        return None
    single = [parameter.option == defs.OpSchema.FormalParameterOption.Single for parameter in schema.inputs]
    required = single.index(False) if False in single else len(single)
    kinds = {name: (str(one.type).rpartition(".")[2], one.required) for name, one in schema.attributes.items()}
    fed, made = range(schema.min_input, schema.max_input + 1), range(schema.min_output, schema.max_output + 1)
    return fed, made, required, kinds


def _called(nodes: Iterable[NodeProto]) -> list[tuple[str, str]]:
    """Domain and operator of all nodes, those of bodies included."""
    inner: Iterator[NodeProto] = (node for graph in nested_graphs(nodes) for node in graph.node)
    return [(node.domain, node.op_type) for node in (*nodes, *inner)]


# Ranks of Attention's operands in operator set 23 and later (ONNX operator documentation).
_RANKS = {"Q": (3, 4), "K": (3, 4), "V": (3, 4), "attn_mask": (0, 1, 2, 3, 4), "past_key": (4,), "past_value": (4,)}


def check_attention(path: Path, nodes: Iterable[NodeFact], tensors: Mapping[str, TensorFact]) -> None:
    """Raise InputError, naming the node, for an operand whose rank Attention does not take, and for half a cache.

    Half a cache is cached keys without cached values, or the reverse. ONNX Runtime ends the process where a cache has
    no rank 4. Unknown ranks are not judged.
    """
    for node in nodes:
        if node.op_type != "Attention" or not is_standard(node):
            continue
        for operand, name in zip(_RANKS, node.inputs, strict=False):
            shape = tensors[name].shape if name in tensors else None
            if shape is not None and len(shape) not in _RANKS[operand]:
                raise InputError(
                    f"{path}: node {node.label!r}: {operand} {name!r} has rank {len(shape)}",
                    why=f"Attention takes rank {' or '.join(map(str, _RANKS[operand]))} there",
                    next=_EXPORT,
                )
        if len({bool(node.operand(at)) for at in (4, 5)}) > 1:  # cached keys and cached values
            raise InputError(
                f"{path}: node {node.label!r} has cached keys or cached values, and not both", next=_EXPORT
            )
