"""The nodes that stay in float: names and subgraphs as typed, checked with the graph, and the region they make.

Quark answers an unknown name and an open subgraph with the same sentence, and its own search stops at the first operand
of a node that leads to a start: nodes behind another operand silently stay quantized. So the region is computed here
and given to Quark node by node (``nodes_to_exclude``). It reads no file.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping

from deploykit.backend.targets import nearest_names
from deploykit.errors import UsageError
from deploykit.findings.records import Names, Record
from deploykit.model.facts import GraphFacts, NodeFact
from deploykit.model.operators import Trait, has

__all__ = ["GRAPH_INPUT", "Exclusions", "activation_types", "in_float16", "resolve_exclusions"]


# The producer of a leak from a graph input.
GRAPH_INPUT = "the graph's inputs"


class Subgraph(Record):
    """A subgraph as typed: the names of the nodes where it starts, and of those where it ends."""

    starts: Names
    ends: Names

    def __str__(self) -> str:
        return f"{','.join(self.starts)}:{','.join(self.ends)}"


class Leak(Record):
    """A path into a subgraph that passes no start: ``tensor`` of ``producer`` (a node, or the graph's inputs)."""

    subgraph: Subgraph
    tensor: str
    producer: str
    consumer: str


class Region(Record):
    """The nodes between the starts and the ends of one subgraph, both included, by index, and its leaks."""

    subgraph: Subgraph
    nodes: frozenset[int]
    leaks: tuple[Leak, ...]
    unreached: Names


class Exclusions(Record):
    """All nodes that the user wants in float. ``unknown`` maps a name that no node has to similar names."""

    nodes: Names
    regions: tuple[Region, ...]
    unknown: tuple[tuple[str, Names], ...]
    indices: frozenset[int]

    def __bool__(self) -> bool:
        return bool(self.nodes or self.regions or self.unknown)

    def names(self, facts: GraphFacts) -> Names:
        """The names of all excluded nodes in graph order, for ``nodes_to_exclude``; nodes without a name are left out.

        Quark folds a BatchNormalization into the Conv before it and names the result after the tensor between them
        (observed with 0.11.2, 0.12.post1 and 0.13). It folds a Concat into the Concat that reads it, named after its
        result (observed with 0.12.post1). These names are added.
        """
        nodes = [facts.nodes[index] for index in sorted(self.indices)]
        own = [node.name for node in nodes if node.name]
        pairs = (_folded_pair(facts, node) for node in nodes)
        folded = [pair[0].outputs[0] for pair in pairs if pair is not None]
        joined = [
            node.outputs[0]
            for node in nodes
            if node.op_type == "Concat" and any(facts.producer_of(name, "Concat") for name in node.inputs)
        ]
        return tuple(dict.fromkeys((*own, *folded, *joined)))

    def nameless(self, facts: GraphFacts) -> Names:
        """The labels of excluded nodes without a name, which Quark cannot be told to exclude."""
        return tuple(facts.nodes[index].label for index in sorted(self.indices) if not facts.nodes[index].name)


def parse_subgraph(text: str, known: Iterable[str]) -> Subgraph:
    """Parses ``START,START:END,END`` or ``[[start, …], [end, …]]``; names may hold colons if the reading
    stays clear.
    """
    if text.lstrip().startswith("["):
        try:
            starts, ends = json.loads(text)
            if not all(isinstance(name, str) for name in (*starts, *ends)) or isinstance(starts, str):
                raise TypeError
        except (ValueError, TypeError):
            raise UsageError(f"--exclude-subgraph {text}: [[start, …], [end, …]] is expected") from None
        return Subgraph(starts=tuple(starts), ends=tuple(ends))
    names = frozenset(known)
    readings = [Subgraph(starts=_split(text[:i]), ends=_split(text[i + 1 :])) for i, c in enumerate(text) if c == ":"]
    readings = [reading for reading in readings if reading.starts and reading.ends]
    if not readings:
        raise UsageError(f"--exclude-subgraph {text}: START,…:END,… is expected", next="for instance A,B:C")
    fitting = [reading for reading in readings if names.issuperset((*reading.starts, *reading.ends))]
    return (fitting or readings)[0]


def _split(text: str) -> Names:
    return tuple(part.strip() for part in text.split(",") if part.strip())


def resolve_exclusions(facts: GraphFacts, nodes: Iterable[str], subgraphs: Iterable[str]) -> Exclusions:
    """Checks names, walks every subgraph, and gathers the nodes that stay in float."""
    by_name = {node.name: node for node in facts.nodes if node.name}
    wanted = tuple(dict.fromkeys(nodes))
    typed = tuple(parse_subgraph(text, by_name) for text in subgraphs)
    asked = dict.fromkeys((*wanted, *(name for subgraph in typed for name in (*subgraph.starts, *subgraph.ends))))
    unknown = tuple((name, tuple(nearest_names(name, by_name))) for name in asked if name not in by_name)
    bad = {name for name, _ in unknown}
    regions = tuple(_walk(facts, by_name, s) for s in typed if not bad.intersection((*s.starts, *s.ends)))
    single = frozenset(by_name[name].index for name in wanted if name in by_name)
    chosen = single.union(*(region.nodes for region in regions))
    pairs = (_folded_pair(facts, facts.nodes[index]) for index in chosen)
    together = {node.index for pair in pairs if pair is not None for node in pair}
    return Exclusions(nodes=wanted, regions=regions, unknown=unknown, indices=chosen | together)


def _folded_pair(facts: GraphFacts, node: NodeFact) -> tuple[NodeFact, NodeFact] | None:
    """The Conv and the BatchNormalization that are folded into one, if ``node`` is one of them; else None."""
    if node.op_type == "BatchNormalization":
        node = facts.producer_of(node.inputs[0]) or node
    after = facts.only_reader(node.outputs[0], "BatchNormalization")
    return (node, after) if after is not None and has(node, Trait.TAKES_BATCHNORM) else None


def _walk(facts: GraphFacts, by_name: Mapping[str, NodeFact], subgraph: Subgraph) -> Region:
    """Walks from the ends back to the starts; a computed tensor from outside is a leak."""
    starts = {by_name[name].index for name in subgraph.starts}
    inside = starts | _downstream(facts, [name for index in starts for name in facts.nodes[index].outputs])
    fed = _downstream(facts, facts.inputs)  # a chain of constants does not lead into the subgraph
    region = set[int]()
    leaks = list[Leak]()
    queue = [by_name[name] for name in subgraph.ends]
    while queue:
        node = queue.pop()
        if node.index in region:
            continue
        region.add(node.index)
        if node.index in starts:
            continue
        for tensor in dict.fromkeys(node.inputs):
            before = facts.producer_of(tensor)
            if before is not None and before.index in inside:
                queue.append(before)
            elif tensor in facts.inputs or (before is not None and before.index in fed):
                producer = GRAPH_INPUT if before is None else before.label
                leaks.append(Leak(subgraph=subgraph, tensor=tensor, producer=producer, consumer=node.label))
    unreached = tuple(name for name in subgraph.starts if by_name[name].index not in region)
    return Region(subgraph=subgraph, nodes=frozenset(region), leaks=tuple(leaks), unreached=unreached)


def _downstream(facts: GraphFacts, tensors: Iterable[str]) -> set[int]:
    """The indices of the nodes that depend on these tensors."""
    found, todo = set[int](), list(tensors)
    while todo:
        for node in facts.consumers_of(todo.pop()):
            if node.index not in found:
                found.add(node.index)
                todo += node.outputs
    return found


# Operators that put no quantizer on a float input; Identity is removed altogether.
PASSIVE = frozenset(
    """
    Clip Gather HardSigmoid Identity MaxPool Relu Reshape Resize Squeeze Transpose Unsqueeze
    """.split()  # noqa: SIM905 - names are easier to read without quotes
)


def activation_types(facts: GraphFacts, excluded: Collection[int], integer: str) -> Mapping[str, str]:
    """The type of every float activation that a node makes: ``integer`` or ``float32``.

    Tensors behind a float node that are read by quantizing and by other nodes are left out: they exist in both forms.
    """
    types = dict[str, str]()
    for node in facts.nodes:
        makes_integers = node.index not in excluded
        if makes_integers and node.op_type in PASSIVE:
            source = node.inputs[0]
            if source in facts.inputs:
                makes_integers = any(_quantizes(reader, excluded) for reader in facts.consumers_of(source))
            else:
                makes_integers = types.get(source) == integer
        for name in node.outputs:
            fact = facts.tensor(name)
            if fact.is_weight or fact.dtype not in ("float", "float16"):
                continue
            # Behind a float node its readers decide, if they agree.
            readers = [_quantizes(reader, excluded) for reader in facts.consumers_of(name)]
            if makes_integers or (readers and all(readers) and name not in facts.outputs):
                types[name] = integer
            elif not any(readers):
                types[name] = "float32"
    return types


def in_float16(facts: GraphFacts, excluded: Collection[int], types: Mapping[str, str]) -> Mapping[str, str]:
    """The types if excluded nodes stay float16; a tensor at the border exists in both forms and is left out."""
    borders = {
        name
        for node in facts.nodes
        for name in node.outputs
        if any((reader.index in excluded) is not (node.index in excluded) for reader in facts.consumers_of(name))
    }
    return {name: "float16" if kind == "float32" else kind for name, kind in types.items() if name not in borders}


def _quantizes(node: NodeFact, excluded: Collection[int]) -> bool:
    return node.index not in excluded and node.op_type not in PASSIVE
