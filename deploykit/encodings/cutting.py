"""Takes a model apart along tensors and puts parts together again; names stay the same everywhere.

It decides nowhere to cut, and knows neither encodings nor vendors.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import TYPE_CHECKING

from onnx import ModelProto, ValueInfoProto

from deploykit.model.graph import GraphCopy, view_of
from deploykit.model.nodes import captured_names
from deploykit.model.shape_inference import inferred_graph

if TYPE_CHECKING:
    from onnx import NodeProto

__all__ = ["chain_models", "crossing_tensors", "cut_model", "infer_types", "part_of"]


def infer_types(model: ModelProto) -> dict[str, ValueInfoProto]:
    """Type and shape of every tensor ONNX can infer, by name."""
    graph, _ = inferred_graph(model)
    return {item.name: item for item in (*graph.value_info, *graph.output, *graph.input)}


def crossing_tensors(graph: GraphCopy, later: Collection[int]) -> tuple[str, ...]:
    """Activations made outside the nodes at ``later`` positions and read by them, in order of reading."""
    inside = {name for index in later for name in graph.nodes[index].output} | graph.static()
    found: dict[str, None] = {}
    for index in sorted(later):
        for name in (*graph.nodes[index].input, *captured_names(graph.nodes[index])):
            if name and name not in inside and name not in graph.stored and name in graph.makers:
                found[name] = None
    return tuple(found)


def part_of(
    graph: GraphCopy,
    positions: Iterable[int],
    outputs: Sequence[str],
    *,
    name: str,
    types: dict[str, ValueInfoProto] | None = None,
) -> ModelProto:
    """The model of the nodes at some positions: inputs are what they read from outside, outputs as asked.

    Every part gets its own copy of the stored values that it reads, and of the nodes that only compute constants.
    """
    known = infer_types(graph.model) if types is None else types
    nodes = [graph.nodes[index] for index in sorted(positions)]
    fixed = _fixed(graph, nodes)
    known_fixed = {id(node) for node in fixed}
    nodes = [*fixed, *(node for node in nodes if node.op_type != "Constant" and id(node) not in known_fixed)]
    made = {out for node in nodes for out in node.output}
    read = dict.fromkeys(n for node in nodes for n in (*node.input, *captured_names(node)) if n)
    read.update(dict.fromkeys(n for n in outputs if n not in made))
    part = ModelProto()
    part.ir_version = graph.model.ir_version
    part.opset_import.extend(graph.model.opset_import)
    part.functions.extend(graph.model.functions)
    part.producer_name, part.graph.name = graph.model.producer_name, name
    part.graph.node.extend(nodes)
    part.graph.initializer.extend(t for t in graph.model.graph.initializer if t.name in read)
    stored = {t.name for t in part.graph.initializer}
    outside = [n for n in read if n not in made and n not in stored and _exists(graph, n)]
    part.graph.input.extend(_typed(n, known) for n in outside)
    part.graph.output.extend(_typed(n, known) for n in outputs)
    part.graph.value_info.extend(known[n] for n in sorted(made) if n in known and n not in outputs)
    return part


def _exists(graph: GraphCopy, name: str) -> bool:
    return name in graph.makers or name in graph.inputs


def _fixed(graph: GraphCopy, nodes: Iterable[NodeProto]) -> list[NodeProto]:
    """The nodes that only compute constants for some others, in graph order: every part makes its own."""
    static = graph.static()
    wanted: dict[str, None] = {}
    todo = [name for node in nodes for name in (*node.input, *captured_names(node))]
    while todo:
        name = todo.pop()
        maker = graph.makers.get(name)
        if maker is not None and name in static and name not in wanted:
            wanted[name] = None
            todo += maker.input
    makers = {id(graph.makers[name]) for name in wanted}
    # Asking each node of the graph for its outputs takes most of the time of an audit, which cuts hundreds of parts.
    return [node for node in graph.nodes if id(node) in makers] if makers else []


def _typed(name: str, types: dict[str, ValueInfoProto]) -> ValueInfoProto:
    return types[name] if name in types else ValueInfoProto(name=name)


def cut_model(model: ModelProto, later: Collection[int]) -> tuple[ModelProto, ModelProto]:
    """(head, tail): the tail has the nodes at ``later`` positions, which must be closed under their readers.

    The head's outputs are what the tail reads and the original outputs it makes itself; the tail makes the others, and
    reads original inputs where it needs them.
    """
    graph = view_of(model)
    types = infer_types(model)
    made_later = {name for index in later for name in graph.nodes[index].output}
    wanted = [item.name for item in model.graph.output]
    kept = [name for name in wanted if name not in made_later]
    head_outputs = list(dict.fromkeys([*crossing_tensors(graph, later), *kept]))
    earlier = [index for index in range(len(graph.nodes)) if index not in later]
    head = part_of(graph, earlier, head_outputs, name=model.graph.name, types=types)
    tail_outputs = [name for name in wanted if name in made_later]
    tail = part_of(graph, later, tail_outputs, name=f"{model.graph.name}_tail", types=types)
    GraphCopy(head, copy=False).prune()
    return head, tail


def chain_models(first: ModelProto, second: ModelProto) -> ModelProto:
    """One model that runs both, the second reading what the first makes; equal names are the same tensor."""
    chained = ModelProto()
    chained.CopyFrom(first)
    made = {out for node in first.graph.node for out in node.output}
    stored = {t.name for t in first.graph.initializer}
    inputs = {item.name for item in first.graph.input}
    chained.graph.node.extend(n for n in second.graph.node if not made & set(n.output))
    chained.graph.initializer.extend(t for t in second.graph.initializer if t.name not in stored)
    chained.graph.input.extend(i for i in second.graph.input if i.name not in made | stored | inputs)
    del chained.graph.output[:]
    chained.graph.output.extend(second.graph.output)
    chained.graph.output.extend(o for o in first.graph.output if o.name not in {i.name for i in second.graph.input})
    return chained
