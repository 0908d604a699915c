"""Turns inputs and outputs of four axes to channels last; the nodes between them and all values stay the same."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from onnx import ModelProto, helper
from onnx.compose import add_prefix_graph

from deploykit.encodings.place import GrowingSet
from deploykit.encodings.values import EncodingSet
from deploykit.errors import UsageError
from deploykit.model.facts import LAYOUT, GraphFacts
from deploykit.model.graph import GraphCopy

__all__ = ["asked_borders", "turn_borders"]

_TO_FIRST, _TO_LAST = (0, 3, 1, 2), (0, 2, 3, 1)


def asked_borders(texts: Iterable[str], facts: GraphFacts) -> frozenset[str]:
    """The inputs and outputs that ``--io`` names; UsageError for a text that names none.

    ``nhwc`` names all of four axes, ``NAME=nhwc`` one. Those that are channels last already, as a model from TensorFlow
    begins and ends, are left out.
    """
    four = [n for n in (*facts.inputs, *facts.outputs) if facts.tensors[n].rank == 4 and not facts.is_stored(n)]
    named = set[str]()
    for text in texts:
        name, _, layout = text.rpartition("=")
        if layout != "nhwc" or name not in ("", *four) or not four:
            known = ", ".join(four) or "none"
            raise UsageError(f"--io {text}: nhwc or NAME=nhwc is expected", why=f"with four axes: {known}")
        named |= {name} if name else {*four}

    def is_last(name: str) -> bool:
        maker, readers = facts.producer_of(name), facts.consumers_of(name)
        beside = [maker] if maker else readers[:1]
        return any(node.attributes.get("perm") == (_TO_LAST if maker else _TO_FIRST) for node in beside)

    return frozenset(name for name in named if not is_last(name))


def turn_borders(
    model: ModelProto, encodings: EncodingSet | None, names: Collection[str]
) -> tuple[ModelProto, EncodingSet | None]:
    """A copy of the model with these inputs and outputs as N, H, W, C under their old names, and its encodings.

    The tensor inside gets a new name and the entry of the input or output. The model's metadata say which were turned.
    """
    graph, entries = GraphCopy(model), GrowingSet(encodings)
    proto, inside = graph.model.graph, {name: graph.fresh(f"{name}_nchw") for name in sorted(names)}
    # With an empty prefix it renames, in the bodies of control flow as well.
    add_prefix_graph(proto, "", True, False, False, False, False, False, inplace=True, name_map={**inside})
    nodes, turned = [*proto.node], {made: name for name, made in inside.items()}
    for item in (*proto.input, *proto.output):
        if item.name in turned:
            made, name, dims = item.name, turned[item.name], item.type.tensor_type.shape.dim
            item.name = name
            dims.extend([dims[axis] for axis in _TO_LAST if dims])
            del dims[:4]
            ends, perm, at = ([made, name], _TO_LAST, len(nodes))
            if name in graph.inputs:
                ends, perm, at = ([name, made], _TO_FIRST, 0)
            nodes.insert(at, helper.make_node("Transpose", ends[:1], ends[1:], f"{made}_turn", perm=perm))
            entries.share(name, made)
            graph.model.metadata_props.add(key=f"{LAYOUT}{name}", value="nhwc")
    graph.set_nodes(nodes)
    return graph.model, entries.encodings
