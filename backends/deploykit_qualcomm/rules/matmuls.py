"""Lint rules about products of two activations, as attention has them. Codes QNN240 and QNN241."""

from __future__ import annotations

from collections.abc import Iterator

from deploykit.contract.backend import Situation
from deploykit.graph.facts import NodeFact
from deploykit.rules import Found
from deploykit_qualcomm.rules.constraints import constraint
from deploykit_qualcomm.rules.registries import CONVERTER_LINT, EP_LINT
from deploykit_qualcomm.rules.views import at_node, below_arch, is_computed, nodes, quantized

__all__: list[str] = []

_MOST_MOVES = 16


def _dynamic(situation: Situation) -> Iterator[NodeFact]:
    for node in nodes(situation, "MatMul"):
        if all(is_computed(situation.facts, name) for name in node.inputs[:2]):
            yield node


@CONVERTER_LINT.rule(
    "QNN240",
    "second-operand-as-weight",
    "warning",
    what="A MatMul of two activations whose second operand has no encoding of its own.",
    why="The converter treats the second operand as a weight: without an entry it gets --weights_bitwidth, 8 bits in "
    "a w8a16 plan.",
    fix="give the second operand an encoding",
    sources=constraint("matmul-second-operand").source,
)
def check_second_operand(situation: Situation) -> Iterator[Found]:
    """Only where encodings exist and the first operand has one; what is merely moved keeps its grid."""
    if situation.encodings is None:
        return
    for node in _dynamic(situation):
        first, second = (_has_grid(situation, name) for name in node.inputs[:2])
        if first and not second:
            yield at_node(node, f"its second operand {node.inputs[1]} has no encoding")


def _has_grid(situation: Situation, name: str) -> bool:
    """By its own encoding, or by that of the tensor it was moved from: converters copy it over such operators."""
    from deploykit.graph.ops import GRID_PRESERVING_OPS

    for _ in range(_MOST_MOVES):
        if quantized(situation, name) is not None:
            return True
        producer = situation.facts.producer_of(name)
        if producer is None or producer.op_type not in GRID_PRESERVING_OPS:
            return False
        name = producer.inputs[0]
    return False


@EP_LINT.rule(
    "QNN241",
    "second-operand-silently-8-bit",
    "warning",
    what="A MatMul of two uint16 activations.",
    why="The provider converts the second operand to 8 bits, without a message; the ONNX model still says uint16, so "
    "ONNX Runtime on the CPU shows a better result than the device (41 dB between the two).",
    fix="make both operands of such products symmetric int16 on v73 and newer (78.7 dB), and judge on the emulator",
    sources=(
        "onnxruntime-qnn 2.7.0 run on Linux x86-64: JSON graph shows UFIXED_POINT_8, isolated MatMul 40.8 to 40.9 dB",
    ),
)
def check_uint16_product(situation: Situation) -> Iterator[Found]:
    """Both operands by their type; on v68 and v69 symmetric int16 is refused."""
    for node in _dynamic(situation):
        types = [found.dtype if (found := quantized(situation, name)) else "" for name in node.inputs[:2]]
        if types == ["uint16", "uint16"]:
            way = "nothing better is taken before v73" if below_arch(situation, 73) else "symmetric int16 keeps 16 bits"
            yield at_node(node, f"{node.inputs[1]} is computed with 8 bits on the HTP; {way}")
