"""Groups quantized tensors into layers: what an operator makes, the parameters it reads, and what enters through it.

A MatMul and the Add of its bias are one layer, and so is a norm that is written out. This is how AIMET's sensitivity
analysis groups quantizers, so that its layers and these can be held against each other. Nothing is measured here.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass

from deploykit.model.facts import GraphFacts, NodeFact
from deploykit.model.fusion import BLOCKS
from deploykit.model.parameters import ParameterUse, bias_after_matmul, parameter_uses
from deploykit.model.patterns import find_blocks

__all__ = ["Layer", "layers_of"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """One operator, a MatMul with its bias, or a norm that is written out.

    ``activations`` are what it makes, and what it reads that nothing makes: inputs and constants.
    """

    name: str
    op_type: str
    weights: tuple[str, ...]
    activations: tuple[str, ...]

    @property
    def tensors(self) -> tuple[str, ...]:
        """All of them, weights first."""
        return (*self.weights, *self.activations)


def layers_of(facts: GraphFacts, names: Collection[str]) -> tuple[Layer, ...]:
    """The layers that hold some of the given tensors, in graph order; the others of a layer are left out.

    A tensor that enters the graph belongs to every operator that reads it.
    """
    uses = parameter_uses(facts)
    heads = _heads(facts)
    groups: dict[int, list[NodeFact]] = {}
    for node in facts.nodes:
        if node.op_type != "Constant":
            groups.setdefault(heads.get(node.index, node.index), []).append(node)
    known = frozenset(names)
    made = (_layer(facts, nodes, known, uses) for nodes in groups.values())
    return tuple(layer for layer in made if layer.tensors)


def _heads(facts: GraphFacts) -> dict[int, int]:
    """The first node of its layer, by node, for those that are in a layer with others."""
    heads = {}
    for block in find_blocks(facts):
        if BLOCKS[block.kind].certain:
            heads.update(dict.fromkeys(block.nodes, block.nodes[0]))
    for node in facts.nodes:
        makers = (facts.producer_of(name) for name in node.inputs) if node.op_type == "Add" else ()
        maker = next((maker for maker in makers if maker is not None and bias_after_matmul(facts, maker)), None)
        if maker is not None:
            heads[node.index] = maker.index
    return heads


def _layer(
    facts: GraphFacts, nodes: list[NodeFact], known: frozenset[str], uses: dict[str, tuple[ParameterUse, ...]]
) -> Layer:
    inside = {node.index for node in nodes}
    read = dict.fromkeys(name for node in nodes for name in _entering(facts, node))
    # A weight may reach its MatMul through Identity or Transpose; the use knows, the list of inputs does not.
    weights = {name for name, found in uses.items() if name in known and any(u.node.index in inside for u in found)}
    made = [name for node in nodes for name in node.outputs]
    activations = dict.fromkeys(name for name in (*read, *made) if name in known and name not in uses)
    return Layer(
        name=nodes[0].label,
        op_type=nodes[0].op_type,
        weights=tuple(sorted(weights)),
        activations=tuple(activations),
    )


def _entering(facts: GraphFacts, node: NodeFact) -> Iterator[str]:
    """Inputs and stored values that a node reads: nothing of the graph makes them."""
    for name in node.inputs:
        fact = facts.tensors.get(name)
        if fact is not None and (fact.producer is None or fact.is_weight):
            yield name
