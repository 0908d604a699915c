"""Shows others' measurements of the model's network, which is recognized by its structure. Code QNN330.

A model is one of the table's networks if all its operators have the same types, weight shapes, output shapes and steps;
otherwise nothing is shown. Nothing is concluded from the numbers.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from hashlib import sha256
from pathlib import Path

from deploykit.backend.backend import Situation
from deploykit.findings.records import Record, grouped
from deploykit.findings.rules import Finds, Found, Registry
from deploykit.model.facts import GraphFacts
from deploykit.model.operators import QUANTIZERS, Trait, ops
from deploykit.model.parameters import stored_behind_pairs
from deploykit.system.store import made_once
from deploykit.tables.reading import read_toml, structure

__all__ = ["RULES"]

# Exporters differ in these operators, which the chip does not compute.
_NOT_COUNTED = ops(Trait.RESHAPES) | {"Cast", "Constant", *QUANTIZERS}
_STEPS = ("dilations", "group", "strides")

RULES = Registry[Situation]("situation")


class PublishedNetwork(Record):
    """A network with its ``times`` in milliseconds by chip, precision and way (``onnx`` or ``dlc``), wholly
    on the NPU.
    """

    name: str
    structure: tuple[str, ...]
    times: Mapping[str, Mapping[str, Mapping[str, float]]]


class PublishedTable(Record):
    """The content of ``published.toml``. ``ways`` describes how each way
    runs, ``source`` names the source of all numbers.
    """

    schema: int
    source: str
    licence: str
    ways: Mapping[str, str]
    network: tuple[PublishedNetwork, ...] = ()


@cache
def published_networks() -> PublishedTable:
    """The networks and their measurements."""
    path = Path(__file__).parents[1] / "data" / "published.toml"
    return structure(PublishedTable, read_toml(path, shipped=True), where=f"{path.name}:")


@made_once
def structure_of(facts: GraphFacts) -> str:
    """A digest of the inputs and of all computing operators, with the shapes of their weights and outputs.

    "" if an input has an open size: with another size the time differs.
    """
    if any(facts.static_shape(name) is None for name in facts.inputs):
        return ""
    lines = [f"input {facts.static_shape(name)}" for name in facts.inputs]
    for node in facts.nodes:
        if node.op_type in _NOT_COUNTED or not node.outputs or not facts.is_data(node.outputs[0]):
            continue
        if node.op_type == "BatchNormalization" and facts.producer_of(node.inputs[0], "Conv"):
            continue  # some exporters fold it, others do not
        weight = stored_behind_pairs(facts, node.operand(1))
        # Not every exporter writes an attribute with its default value.
        steps = [value for name in _STEPS if (value := node.attributes.get(name)) not in (None, 1, (1, 1), [1, 1])]
        stored = None if weight is None else facts.static_shape(weight)
        lines.append(f"{node.op_type} {stored} {[str(step) for step in steps]} {facts.static_shape(node.outputs[0])}")
    return sha256("\n".join(sorted(lines)).encode()).hexdigest()[:20]


@RULES.rule("QNN330", "measured-by-others", "info", "qualcomm/ai-hub-models v0.47.0, perf.yaml")
def check_published(situation: Situation) -> Finds:
    """A network of which others published how long it takes on this chip.

    The structure is the same, operator by operator; weights play no part in time. Another release, layout of inputs or
    power mode gives other times.

    Fix: deploykit run measures your own
    """
    table, chip = published_networks(), situation.target.device.id
    own = structure_of(situation.facts)
    network = next((row for row in table.network if own in row.structure and chip in row.times), None)
    if network is None:
        return
    measured = network.times[chip].items()
    told = grouped((way, f"{took:g} ms in {precision}") for precision, times in measured for way, took in times.items())
    ways = "; ".join(f"{', '.join(times)} {table.ways[way]}" for way, times in told.items())
    message = f"measured by others, wholly on the NPU: {ways}; this is {network.name}, operator by operator"
    yield Found(
        "model",
        situation.request.model.name,
        message,
        sources=(table.source,),
        evidence={"network": network.name, "times_ms": network.times[chip]},
    )
