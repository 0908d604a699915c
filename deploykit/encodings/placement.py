"""Places encodings on a graph: axes, order, and which entries are parameters; lengths are checked on the way.

It changes no scale. What the graph cannot settle stays as it was, and ``formats.conversion`` says so.
"""

from __future__ import annotations

from dataclasses import replace

from deploykit.encodings.placing import Layout, place_entry
from deploykit.encodings.values import EncodingSet
from deploykit.model.facts import GraphFacts, TensorFact
from deploykit.model.operators import WEIGHT
from deploykit.model.parameters import ParameterUse, parameter_uses

__all__ = ["layouts", "place"]


def place(encodings: EncodingSet, facts: GraphFacts, *, infer_blocks: bool = False) -> EncodingSet:
    """The encodings with axes, the tensor's own order and ``is_param`` as the graph has them.

    Entries of tensors that the graph does not have are kept as they are (a rule names them). ``infer_blocks`` gives
    blockwise lists of 0.6.1 the only block size that fits. Raises InputError, naming file and tensor, where the length
    of a list contradicts the shape of its tensor.
    """
    known = layouts(facts)
    entries = {
        name: place_entry(
            entry, known[name], source=encodings.source, version=encodings.version, infer_blocks=infer_blocks
        )
        if name in known
        else entry
        for name, entry in encodings.entries.items()
    }
    return replace(encodings, entries=entries)


def layouts(facts: GraphFacts) -> dict[str, Layout]:
    """The layout of every tensor of a graph."""
    uses = parameter_uses(facts)
    return {name: _layout(fact, uses.get(name, ())) for name, fact in facts.tensors.items()}


def _layout(fact: TensorFact, uses: tuple[ParameterUse, ...]) -> Layout:
    shape = tuple(dim for dim in fact.shape or () if isinstance(dim, int)) if fact.is_static else None
    weights = [use for use in uses if use.role == WEIGHT and use.channel_axis is not None]
    axes = {(use.channel_axis, use.block_axis) for use in weights}
    # A weight that two ops read along different axes is settled by neither.
    channel, block = axes.pop() if len(axes) == 1 else (None, None)
    reader = f"{weights[0].node.op_type} {weights[0].node.label!r}" if weights else ""
    return Layout(shape=shape, channel_axis=channel, block_axis=block, is_param=bool(uses), reader=reader)
