"""Folds nodes that stored values and static shapes settle, and takes out nodes that do nothing.

It works in rounds, with bounded memory, and loses no grid: tensors with an entry keep their names.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from typing import Any

import numpy as np
from onnx import ModelProto, NodeProto, helper, numpy_helper

from deploykit.encodings.values import EncodingSet
from deploykit.findings.records import Arrays, Numbers
from deploykit.model.graph import GraphCopy
from deploykit.model.nodes import attribute, captured_names, label, operand
from deploykit.model.operators import BITS, QUANTIZERS, Trait, is_standard, ops
from deploykit.model.running import CpuSession, quiet_options
from deploykit.model.values import byte_size, dtype_name
from deploykit.model.weights import element_type, is_unreadable, with_values_inside
from deploykit.rewrites.contract import MatchResult, ModelLook, Rewritten, Site, Transform, rewritten

__all__ = ["fold"]

_LARGEST_BYTES = 16 << 20
"""Bytes. A larger result stays computed, unless it is at most four times the size of what it is computed from."""

_LARGEST_GROWTH = 4
# Bytes. Above, an Identity of a stored value is not folded, for a shared weight would be stored twice.
_LARGEST_COPY = 1 << 12

_ASKING = ("Shape", "Size")
# Not folded: control flow, chance, and the grids of a QDQ model.
_STAYING = ops(Trait.CONTROL_FLOW, Trait.RANDOM) | {"Constant", "DynamicQuantizeLinear", *QUANTIZERS}
_REARRANGING = ops(Trait.REARRANGES) | {"Concat", "Pad"}

_Values = dict[str, Numbers]


def fold(graph: GraphCopy, kept: Collection[str] = ()) -> int:
    """Compute settled nodes and store their results, in place, until no node is settled.

    Returns how many were computed, or became a Cast. A node stays where it makes a tensor in ``kept``, an output of the
    model or a tensor that a subgraph reads. Shape and Size of static shapes are settled too.
    """
    likes, hopeless = _of_known_type(graph), set[str]()
    for node in likes:
        node.op_type = "Cast"
        node.attribute.append(helper.make_attribute("to", element_type(graph.dtype(node.input.pop()))))
    if likes:
        graph.prune()
    count = len(likes)
    while ready := _ready(graph, kept, hopeless):
        values, failed = _computed(graph, ready)
        hopeless |= failed
        done = [node for node in ready if all(name in values for name in node.output if name)]
        count += len(done)
        inside = {id(node) for node in done}
        for name in (name for node in done for name in node.output if name):
            if any(id(reader) not in inside for reader in graph.readers(name)):
                graph.model.graph.initializer.append(numpy_helper.from_array(values[name], name))
        graph.replace_nodes(done, {})
    return count


def _of_known_type(graph: GraphCopy | ModelLook) -> list[NodeProto]:
    """The CastLikes whose type is known: they are Casts, which more compilers take, and need no second tensor."""
    likes = [node for node in graph.nodes if node.op_type == "CastLike"]
    return [node for node in likes if is_standard(node) and graph.dtype(node.input[1])]


def _bound(graph: GraphCopy, kept: Collection[str]) -> set[str]:
    """Tensors that must go on being made by a node."""
    return {*kept, *graph.outputs, *(name for node in graph.nodes for name in captured_names(node))}


def _ready(graph: GraphCopy, kept: Collection[str], hopeless: Collection[str] = ()) -> list[NodeProto]:
    """The nodes that one round computes, in graph order."""
    bound = _bound(graph, kept)
    # Bytes of the stored values that each settled tensor is computed from.
    settled = {name: byte_size(tensor, name) for name, tensor in graph.stored.items() if not is_unreadable(tensor)}
    found, old = [], graph.opset < 11
    for node in graph.nodes:
        outputs = [name for name in node.output if name]
        if not is_standard(node) or node.op_type in _STAYING or not outputs or node.output[0] in hopeless:
            continue
        if any(name in bound for name in outputs):
            continue
        sources = [name for name in node.input if name]
        if node.op_type in _ASKING and graph.static_shape(node.input[0]) is not None:
            source = 0
        elif sources and all(name in settled for name in sources):
            source = sum(settled[name] for name in sources)
        else:
            continue
        copies_much = node.op_type == "Identity" and source > _LARGEST_COPY
        most = max(_LARGEST_BYTES, _LARGEST_GROWTH * source)
        sizes = [(graph.static_shape(name), BITS.get(graph.dtype(name))) for name in outputs]
        fit = all(shape is not None and bits and math.prod(shape) * bits // 8 <= most for shape, bits in sizes)
        # Below operator set 11 a negative axis gives no size: a Concat of stored values is as large as these.
        joins = old and node.op_type == "Concat" and source <= _LARGEST_COPY
        fit |= joins and all(name in graph.stored for name in sources)
        if fit and not copies_much:
            settled.update(dict.fromkeys(outputs, source))
            found.append(node)
    return found


def _computed(graph: GraphCopy, nodes: Sequence[NodeProto]) -> tuple[_Values, set[str]]:
    """The results of the nodes by name, and the outputs of nodes that cannot be run; a batch that fails is halved."""
    values: _Values = {}
    todo, failed = [list[Any]()], set[str]()
    for node in nodes:
        shape = graph.static_shape(node.input[0]) if node.op_type in _ASKING else None
        if shape is None:
            todo[0].append(node)
        elif node.op_type == "Size":
            values[node.output[0]] = np.asarray(math.prod(shape), np.int64)
        else:
            dims = shape[attribute(node, "start", 0) : attribute(node, "end", len(shape))]
            values[node.output[0]] = np.asarray(dims, np.int64)
    while todo:
        batch = todo.pop()
        runnable = [node for node in batch if not failed.intersection(node.input)]
        failed.update(name for node in batch if failed.intersection(node.input) for name in node.output)
        try:
            values |= _run(graph, runnable, values)
        except Exception:  # the runtime raises whatever its C++ side threw; the node then stays as it is
            middle = len(runnable) // 2
            if middle:
                todo += [runnable[middle:], runnable[:middle]]
            else:
                failed.update(name for node in runnable for name in node.output)
    return values, failed


def _run(graph: GraphCopy, nodes: Sequence[NodeProto], known: Arrays) -> _Values:
    """Run a model without inputs: the nodes, and the stored values that they read. The results, by name."""
    if not nodes:
        return {}
    part = ModelProto(ir_version=graph.model.ir_version)
    part.opset_import.extend(graph.model.opset_import)
    part.graph.name = "settled"
    part.graph.node.extend(nodes)
    made = {name for node in nodes for name in node.output if name}
    for name in dict.fromkeys(name for node in nodes for name in node.input if name and name not in made):
        if name in known:
            part.graph.initializer.append(numpy_helper.from_array(known[name], name))
        else:
            part.graph.initializer.append(with_values_inside(graph.stored[name]))
            part.graph.initializer[-1].name = name
    names = sorted(made)
    for name in names:
        part.graph.output.add().name = name
    return dict(zip(names, CpuSession(part.SerializeToString(), quiet_options()).run(names, {}), strict=True))


# JAX guards a softmax by Max(-inf, logits): it lifts an empty maximum, and changes no number.
_NEUTRAL = {"Max": -np.inf, "Min": np.inf}
_SHAPING = ("Reshape", "Expand", "Tile", "Flatten", "Squeeze", "Unsqueeze")


def _idle_nodes(graph: GraphCopy, named: Collection[str]) -> list[tuple[NodeProto, str]]:
    """Nodes that hand on an operand unchanged, each with that operand.

    A node whose output is named by the model, a subgraph or an entry stays.
    """
    bound, found = _bound(graph, named), []
    for node in graph.nodes:
        if not is_standard(node) or len([name for name in node.output if name]) != 1 or node.output[0] in bound:
            continue
        op_type, matters = node.op_type, [*node.input[:1]]
        if op_type == "Concat":  # an empty tensor adds nothing
            matters = [name for name in node.input if 0 not in (graph.static_shape(name) or ())]
        elif op_type in _NEUTRAL:  # a Max with -inf, a Min with inf: a NaN passes both
            matters = [name for name in node.input if graph.scalar(name) != _NEUTRAL[op_type]]
        if len(matters) != 1:
            continue
        given = matters[0]
        idle = op_type == "Identity"
        if op_type in (*_NEUTRAL, *_SHAPING, "Concat"):
            shape = graph.static_shape(given)
            idle = shape is not None and shape == graph.static_shape(node.output[0])
        elif op_type == "Cast":
            idle = graph.dtype(given) == dtype_name(attribute(node, "to", 0)) != ""
        elif op_type == "Dropout":
            idle = not operand(node, 2)
        elif op_type == "Transpose":
            order = list(attribute(node, "perm", ()))
            idle = bool(order) and order == sorted(order)
        if idle:
            found.append((node, given))
    return found


def _find_settled(graph: ModelLook) -> MatchResult:
    """The nodes that stored values and static shapes settle, and the nodes that hand on their operand unchanged."""
    found = (
        (_ready(graph, ()), "stored values and static shapes settle them"),
        ([node for node, _ in _idle_nodes(graph, ())], "they change nothing"),
        (_of_known_type(graph), "the types that they read off other tensors are known"),
    )
    sites = [
        Site(tuple(map(label, nodes)), tensors=tuple(node.output[0] for node in nodes), why=why)
        for nodes, why in found
        if nodes
    ]
    return MatchResult(tuple(sites), reason="" if sites else "nothing is settled, and no node is idle")


def _simplify(model: ModelProto, encodings: EncodingSet | None, matched: MatchResult) -> Rewritten:
    """Fold, and take idle nodes out, until neither finds a node; a tensor whose entry nothing else holds stays."""
    del matched
    graph = GraphCopy(model)
    # Tensors with an entry, or meant to be float: taking their node out must not lose the entry.
    named = frozenset() if encodings is None else frozenset(encodings.entries) | encodings.float_tensors
    before = len(graph.nodes)
    computed = removed = 0
    while True:
        idle = _idle_nodes(graph, named)
        source = dict[str, str]()
        for node, given in idle:  # in graph order: what it reads may be a copy itself
            source[node.output[0]] = source.get(given, given)
        for node in graph.nodes:
            node.input[:] = [source.get(name, name) for name in node.input]
        graph.replace_nodes([node for node, _ in idle], {})
        # Results without an entry that only rearrange stored values with one: folding would lose the grid. What
        # arithmetic makes of a grid lies on it no longer, so there is nothing to lose.
        told = {
            name
            for node in graph.nodes
            if node.op_type in _REARRANGING and any(other in named and other in graph.stored for other in node.input)
            for name in node.output
            if name not in named
        }
        folded = fold(graph, told)
        computed, removed = computed + folded, removed + len(idle)
        if not folded and not idle:
            break
    note = f"{computed} nodes computed once, {removed} idle ones taken out: {before} nodes became {len(graph.nodes)}"
    return rewritten(graph, encodings, note)


simplify = Transform(
    "simplify",
    summary="Folds what stored values and static shapes settle, and takes out what does nothing.",
    find=_find_settled,
    apply=_simplify,
    # Kernels with constant operands round in another order: an LSTM with folded weights by ten roundings.
    ulps=32.0,
)
