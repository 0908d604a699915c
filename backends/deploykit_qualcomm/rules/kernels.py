"""Lint rules about integer kernels that answer wrongly, as seen on the emulator. Codes QNN290 to QNN292."""

from __future__ import annotations

import math
from collections.abc import Iterator

from deploykit.contract.backend import Situation
from deploykit.findings.rules import Found, Registry
from deploykit.graph.facts import NodeFact
from deploykit.graph.ops import Trait, has
from deploykit_qualcomm.rules.views import at_node, grid_of, nodes, quantized
from deploykit_qualcomm.softmax_steps import LEAST_UNITS, SOURCE, step_units, whole_step

__all__ = ["RULES"]

_SEEN = "onnxruntime-qnn 2.7.0 (QAIRT 2.51) run on Linux x86-64"
_POOLS = ("AveragePool", "GlobalAveragePool", "MaxPool")

RULES: Registry[Situation] = Registry("situation")


@RULES.rule(
    "QNN290",
    "softmax-small-step",
    "warning",
    what="A quantized Softmax whose input has a very small step.",
    why="The kernel of QAIRT 2.51 counts the step in units of an exponent of two, 2^-22 in 16 bits and 2^-18 in 8. "
    "Below 16 of them the results are wrong: 18 dB for rows of 16 values. Other releases were not tried.",
    fix="give its input an encoding with a larger step",
    sources=(SOURCE,),
)
def check_softmax_step(situation: Situation) -> Iterator[Found]:
    """By the encoding or the pair of the input."""
    for node in nodes(situation, "Softmax"):
        grid = grid_of(situation, node.inputs[0])
        units = None if grid is None else step_units(grid)
        if grid is None or units is None or units >= LEAST_UNITS:
            continue
        step = float(grid.scale.reshape(()))
        wanted = f"at least {whole_step(grid):.4g}"
        yield at_node(node, f"its input {node.inputs[0]} has steps of {step:.4g}, the kernel wants {wanted}", step=step)


@RULES.rule(
    "QNN291",
    "gate-in-16-bits",
    "warning",
    what="x times Sigmoid(x) in 16 bits behind a convolution or a pooling.",
    why="QAIRT 2.51 makes one operator of it that is wrong at many heights and widths: 34 of 160 tried gave -1 to 14 "
    "dB, squares of 9 to 13 among them. In 8 bits, or behind other operators, it is right. Other releases were not "
    "tried.",
    fix="leave the Sigmoid's output out of the encodings, or check the outputs on the target",
    sources=(f"{_SEEN}: 160 shapes up to 90 x 90, kernels of 1 and 3, 8 to 64 channels, emulator against CPU",),
)
def check_gate(situation: Situation) -> Iterator[Found]:
    """A Sigmoid in 16 bits that is multiplied by what it reads."""
    facts = situation.facts
    for node in nodes(situation, "Sigmoid"):
        maker, kinds = facts.producer_of(node.inputs[0]), [quantized(situation, name) for name in _ends(node)]
        slides = maker is not None and (has(maker, Trait.CONVOLVES) or maker.op_type in _POOLS)
        if not slides or not all(kind is not None and kind.bits == 16 for kind in kinds):
            continue
        for reader in facts.consumers_of(node.outputs[0]):
            if reader.op_type == "Mul" and set(reader.inputs) == set(_ends(node)):
                yield at_node(reader, f"{node.inputs[0]} times its Sigmoid, in 16 bits")


def _ends(node: NodeFact) -> tuple[str, str]:
    return node.inputs[0], node.outputs[0]


@RULES.rule(
    "QNN292",
    "clip-inside-its-grid",
    "warning",
    what="A quantized Clip behind a convolution whose bounds lie inside of its output's encoding.",
    why="QAIRT 2.51 makes one operator of the two, in which only the ends of the encoding cut off: bounds inside of it "
    "are lost (-2 to 18 dB in 16 bits; in 8 bits too). A Relu is right. Other releases were not tried.",
    fix="end the encoding of its output at its bounds",
    sources=(f"{_SEEN}: 32 combinations of bounds and encodings, emulator against CPU",),
)
def check_clip(situation: Situation) -> Iterator[Found]:
    """Bounds by stored inputs or attributes; ends of the grid by more than a step beyond them."""
    for node in nodes(situation, "Clip"):
        maker, grid = situation.facts.producer_of(node.inputs[0]), grid_of(situation, node.outputs[0])
        if maker is None or not has(maker, Trait.CONVOLVES) or grid is None or grid.scale.size != 1:
            continue
        low, high = _bound(situation, node, 1, "min"), _bound(situation, node, 2, "max")
        ends, step = (float(grid.minimum.min()), float(grid.maximum.max())), float(grid.scale.min())
        if ends[0] < min(low, 0.0) - step or ends[1] > max(high, 0.0) + step:
            bounds = f"[{low:.4g}, {high:.4g}]"
            yield at_node(node, f"it ends at {bounds}, its output's encoding at [{ends[0]:.4g}, {ends[1]:.4g}]")


def _bound(situation: Situation, node: NodeFact, position: int, attribute: str) -> float:
    """A bound, infinite where it is absent or computed."""
    from deploykit.graph.collect import constant_range

    sign = -1 if attribute == "min" else 1
    if attribute in node.attributes:
        return float(node.attributes[attribute])
    name = node.inputs[position] if len(node.inputs) > position else ""
    stored = constant_range(situation.model, name) if name else None
    return sign * math.inf if stored is None else stored[0]
