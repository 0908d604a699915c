"""Completes encodings with every entry that follows from the others: int32 biases and copies over data movement.

The result is what AIMET's 2.0.0 export holds beyond its older files. Existing entries are never changed and no range is
invented.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import numpy as np
from msgspec.structs import replace
from onnx import ModelProto

from deploykit.encodings.formats.differences import compare_values
from deploykit.encodings.values import Affine, Array, Encoding, EncodingSet, Lpbq, Value
from deploykit.model.facts import GraphFacts, NodeFact
from deploykit.model.graph import view_of
from deploykit.model.operators import BIAS, WEIGHT, Trait, data_outputs, has
from deploykit.model.parameters import ParameterUse, parameter_uses, stored_behind
from deploykit.model.patterns import find_blocks

__all__ = ["complete", "complete_encodings", "copy_over_movement"]

_ALL = -1
_DATA_INPUTS: Mapping[str, tuple[int, ...]] = {
    "Clip": (0, 1, 2),
    "Concat": (_ALL,),
    "Dropout": (0, 1),
    "Max": (_ALL,),
    "MaxRoiPool": (0, 1),
    "Min": (_ALL,),
    "Pad": (0, 2),
    "Scatter": (0, 2),
    "ScatterElements": (0, 2),
    "ScatterND": (0, 2),
    "Where": (1, 2),
}
"""The input positions whose entries AIMET compares; for other operators the first input alone."""

_FAR_BELOW = -20.0

ReadValues = Callable[[str], "Array | None"]
"""A function that gives the values of a stored tensor, or None when they cannot be read."""


def copy_over_movement(
    encodings: EncodingSet, facts: GraphFacts, *, read_values: ReadValues | None = None
) -> tuple[Encoding, ...]:
    """The entries that follow from data movement, in the order in which they were found.

    An operator whose inputs all share one entry gives it to its outputs, and one whose outputs share an entry gives it
    to an input that nothing else reads; the graph is walked forwards, then backwards. Per-channel entries do not
    travel, since axes move too. ``read_values`` is only called for scalars, to recognize a masked Softmax, whose
    ReduceMin AIMET leaves alone; without it no such ReduceMin is recognized.
    """
    floats = encodings.floats
    known: dict[str, Value] = {e.name: e.value for e in encodings if e.name not in floats}
    copying = (node for node in facts.nodes if has(node, Trait.AIMET_COPIES, Trait.AIMET_JOINS))
    moving = [node for node in copying if not _is_masked_minimum(facts, node, read_values)]
    found = dict[str, Value]()
    for node in (*moving, *reversed(moving)):
        positions = _DATA_INPUTS.get(node.op_type, (0,))
        inputs = tuple(n for i, n in enumerate(node.inputs) if n and (i in positions or _ALL in positions))
        outputs = data_outputs(node, node.outputs)
        if not inputs or not outputs:
            continue
        takers = [name for name in inputs if name not in known and facts.only_reader(name)]
        given: dict[str, Value | None] = dict.fromkeys(takers, _shared(outputs, known))
        # A padded tensor takes its input's entry whatever the padding is quantized to.
        given |= dict.fromkeys(outputs, _shared(inputs[:1] if node.op_type == "Pad" else inputs, known))
        for name, value in given.items():
            if value is not None and name not in known and name not in floats:
                found[name] = known[name] = value
    params = parameter_uses(facts)
    return tuple(Encoding(name, value, is_param=name in params) for name, value in found.items())


def _shared(names: tuple[str, ...], known: Mapping[str, Value]) -> Value | None:
    """The per-tensor entry that all these tensors share; None when they share none."""
    first, *others = map(known.get, names)
    if first is None or first.granularity != "per-tensor":
        return None
    same = all(other is not None and (first is other or not compare_values(first, other)) for other in others)
    return first if same else None


def _is_masked_minimum(facts: GraphFacts, node: NodeFact, read_values: ReadValues | None) -> bool:
    """True for ReduceMin in ``Softmax(Where(mask, x, ReduceMin(x) + far))``: tool chains match that as one op."""
    if node.op_type != "ReduceMin" or read_values is None:
        return False
    add = facts.only_reader(node.outputs[0], "Add")
    where = add and facts.only_reader(add.outputs[0], "Where")
    softmax = where and facts.only_reader(where.outputs[0], "Softmax")
    if add is None or softmax is None or softmax.attributes.get("axis", -1) not in (-1, 3):
        return False
    if len(node.inputs) > 1:
        last_axis = _scalar(node.inputs[1], read_values) in (-1.0, 3.0)
    else:
        last_axis = list(node.attributes.get("axes", ())) in ([-1], [3])
    return last_axis and any(_scalar(name, read_values) <= _FAR_BELOW for name in add.inputs if name != node.outputs[0])


def _scalar(name: str, read_values: ReadValues) -> float:
    """The value of a stored scalar; NaN, which compares with nothing, for everything else."""
    values = read_values(name)
    return float(values.flat[0]) if values is not None and values.size == 1 else float("nan")


_FINEST_SCALE = 0.01 / (2**32 - 1)
"""AIMET's floor for an int32 scale: the grid still reaches from -0.005 to 0.005."""

_LARGEST_SCALE = 1e298
_FINEST_FLOAT16 = 2.0**-14


def _biases(facts: GraphFacts) -> Iterator[tuple[ParameterUse, ParameterUse | None, str]]:
    """Every bias in graph order, with the weight beside it (None where it is not stored) and its node's data tensor."""
    uses = parameter_uses(facts)
    weights = {use.node.index: use for found in uses.values() for use in found if use.role == WEIGHT}
    firsts = (next((use for use in found if use.role == BIAS), None) for found in uses.values())
    for use in sorted((use for use in firsts if use is not None), key=lambda use: use.node.index):
        yield use, weights.get(use.node.index), use.node.inputs[0]
    # The biases of norms that the graph writes out node by node.
    for block in find_blocks(facts):
        bias, scale = (stored_behind(facts, name) if name else None for name in (block.bias, block.scale))
        if block.kind == "LayerNormalization" and bias is not None and scale is not None:
            node = facts.nodes[block.nodes[-1]]
            yield ParameterUse(bias, BIAS, node=node), ParameterUse(scale, WEIGHT, node=node), block.source


def effective_entry(encodings: EncodingSet, facts: GraphFacts, name: str) -> Encoding | None:
    """The entry of a tensor, or the nearest one upstream over ops that keep the grid; None when there is none."""
    for _ in range(len(facts.nodes) + 1):
        entry = encodings.get(name)
        if entry is not None or name in encodings.float_tensors:
            return entry
        producer = facts.producer_of(name)
        if producer is None or not producer.inputs:
            return None
        keeps_grid = has(producer, Trait.AIMET_COPIES)
        if producer.op_type == "Cast":
            keeps_grid = all(facts.tensor(end).is_float for end in (producer.inputs[0], producer.outputs[0]))
        if not keeps_grid:
            return None
        name = producer.inputs[0]
    return None


def _int32_scale(
    encodings: EncodingSet,
    facts: GraphFacts,
    bias: ParameterUse,
    stored: ParameterUse | None,
    source: str,
    read_values: ReadValues,
) -> Array | str:
    """The scale of a bias, or the reason why it gets none; ``stored`` is the weight beside it, ``source`` the data."""
    node, name = bias.node, bias.name
    data = effective_entry(encodings, facts, source)
    # The stored weight's own entry, or what a computed second input is quantized to.
    beside = encodings.get(stored.name) if stored else effective_entry(encodings, facts, node.inputs[1])
    for entry, what in ((data, "input"), (beside, "weight")):
        if entry is None:
            return f"the {what} of {node.label} is not quantized"
        if not isinstance(entry.value, Affine | Lpbq):
            return f"the {what} of {node.label} is {entry.dtype}"
    assert data is not None and beside is not None and isinstance(beside.value, Affine | Lpbq)
    weight, per_tensor = beside.value, beside.value.granularity == "per-tensor"
    if not weight.placed:
        return f"the weight of {node.label} is not placed on the graph"
    if has(node, Trait.RECURRENT) and not per_tensor:
        return f"{node.op_type} joins the biases of all its gates, and their weights do not share a scale"
    # Where the weight's scales run along the output channels, each belongs to one element of the bias.
    if has(node, Trait.LINEAR) and (
        per_tensor
        or stored is None
        or (weight.axis == stored.channel_axis and weight.block_axis in (None, stored.block_axis))
    ):
        # Input scale times weight scale: per channel, of the largest block, and of the channel scale of LPBQ.
        if len(parameter_uses(facts)[name]) > 1:
            return f"several ops add it, {node.label} among them, and each would need another scale"
        if not isinstance(data.value, Affine) or data.value.granularity != "per-tensor":
            return f"the input of {node.label} is not quantized per tensor"
        given = data.value.scale
        with np.errstate(over="ignore", under="ignore"):
            if isinstance(weight, Lpbq):
                # Observed: AIMET keeps the channel scales of LPBQ in double, and only the input's in float32.
                scale = np.asarray(given.astype(np.float32).astype(np.float64) * weight.channel_scale)
            else:
                # The product in float32, as AIMET computes it; in double where float32 would underflow or overflow.
                single = given.astype(np.float32) * weight.scale.astype(np.float32)
                fits = np.isfinite(single) & (single >= np.finfo(np.float32).tiny)
                scale = np.where(fits, single.astype(np.float64), np.asarray(given * weight.scale))
        if weight.block_axis is not None:
            scale = scale.max(axis=weight.block_axis)
        return scale.reshape(-1) if scale.ndim else scale
    # The finest scale that holds the bias: one for all its values, or one for each where the weight is per channel.
    values = read_values(name)
    if values is None:
        return f"the scale comes from its values, and {name!r} cannot be read"
    floor = max(_FINEST_SCALE, _FINEST_FLOAT16 if facts.tensors[name].dtype == "float16" else 0.0)
    scale = np.maximum(np.abs(values.astype(np.float64)) / 2**31, floor)
    if not np.isfinite(scale).all():
        return f"{name!r} holds values that are not finite"
    return np.asarray(scale.max()) if per_tensor else scale.reshape(-1)


def complete(
    encodings: EncodingSet, facts: GraphFacts, *, read_values: ReadValues
) -> tuple[EncodingSet, dict[str, str]]:
    """Placed encodings with int32 biases and copies over data movement added; and the reason why a bias has no entry.

    ``read_values`` gives the values of stored tensors; it is called for scalars and for the biases of norms only (and
    of weights whose channels run along an unusual axis), since their scale comes from their values.
    """
    uses, entries, skipped = parameter_uses(facts), list[Encoding](), dict[str, str]()
    for bias, weight, source in _biases(facts):
        name = bias.name
        if name in encodings or name in encodings.float_tensors or name in skipped:
            continue
        scale = _int32_scale(encodings, facts, bias, weight, source, read_values)
        if not isinstance(scale, str) and not ((scale > 0) & (scale < _LARGEST_SCALE)).all():
            scale = f"the product of the scales, {float(scale.flat[0]):g}, is no usable scale"
        if isinstance(scale, str):
            skipped[name] = scale
            continue
        zero, axis = np.zeros(scale.shape), 0 if scale.ndim else None
        made = Affine(bits=32, signed=True, scale=scale, zero_point=zero, symmetric=True, axis=axis)
        entries.append(Encoding(name, made, is_param=name in uses))
    with_biases = encodings.with_entries(entries)
    return with_biases.with_entries(copy_over_movement(with_biases, facts, read_values=read_values)), skipped


def complete_encodings(model: ModelProto, encodings: EncodingSet) -> tuple[EncodingSet, dict[str, str]]:
    """The encodings with every entry that follows over data movement, and the source tensor of each new entry.

    Tensors named as float stay float; per-channel and per-block entries are never carried.
    """
    graph = view_of(model)
    entries, origin = dict(encodings.entries), dict[str, str]()
    forward = [
        (node.input[0], name)
        for node in graph.nodes
        if has(node, Trait.CARRIES_GRID) and node.input
        for name in data_outputs(node, node.output)
    ]
    backward = list[tuple[str, str]]()
    for node in reversed(graph.nodes):
        name = node.input[0] if node.input else ""
        if not name or name in graph.stored:
            continue
        alone = graph.only_reader(name) is not None
        if has(node, Trait.CARRIES_GRID) and (name in graph.makers or alone):
            backward += [(output, name) for output in data_outputs(node, node.output)]
        elif node.op_type == "Relu" and alone:
            backward.append((node.output[0], name))
    # Entries that went backward may go forward again, to the other consumers.
    for source, target in (*forward, *backward, *forward):
        entry = entries.get(source)
        if entry is None or target in entries or target in encodings.floats:
            continue
        value = entry.value
        if isinstance(value, Affine) and value.granularity == "per-tensor" and value.bits in (8, 16):
            entries[target] = Encoding(target, value, is_param=False)
            origin[target] = source
    return replace(encodings, entries=entries), origin
