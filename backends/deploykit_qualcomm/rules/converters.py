"""Lint rules about what QAIRT's own converters make of a model. Codes QNN240, QNN250 and QNN281."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from deploykit.backend.backend import Situation
from deploykit.findings import Severity
from deploykit.findings.rules import Found, Registry
from deploykit.model.operators import Trait, has
from deploykit_qualcomm.rules.constraints import constraint
from deploykit_qualcomm.rules.views import at_node, dynamic_matmuls, grid_of, listed, nodes, quantized, rewrite_advice

__all__ = ["RULES"]

_MOST_MOVES = 16  # operators that only move data, one behind the other
_NARROW_LOG = 4.0  # the least range at which the kernel was seen to be right
_LOG_SEEN_IN = ("2.51",)
_FOLDED_INTO = ("Conv", "ConvTranspose", "Gemm")

RULES: Registry[Situation] = Registry("situation")


@RULES.rule("QNN240", "second-operand-as-weight", "warning", sources=constraint("matmul-second-operand").source)
def check_second_operand(situation: Situation) -> Iterator[Found]:
    """A MatMul of two activations whose second operand has no encoding of its own.

    The converter treats the second operand as a weight: without an entry it gets --weights_bitwidth, 8 bits in a w8a16
    plan.

    Fix: give the second operand an encoding
    """
    # Only where encodings exist and the first operand has one; what is merely moved keeps its grid.
    if situation.encodings is None:
        return
    for node in dynamic_matmuls(situation):
        first, second = (_has_grid(situation, name) for name in node.inputs[:2])
        if first and not second:
            yield at_node(node, f"its second operand {node.inputs[1]} has no encoding")


def _has_grid(situation: Situation, name: str) -> bool:
    """By its own encoding, or by that of the tensor it was moved from: converters copy it over such operators."""
    for _ in range(_MOST_MOVES):
        if quantized(situation, name) is not None:
            return True
        producer = situation.facts.producer_of(name)
        if producer is None or not has(producer, Trait.CARRIES_GRID):
            return False
        name = producer.inputs[0]
    return False


@RULES.rule(
    "QNN250",
    "narrow-log-16-bit",
    "error",
    sources=("onnxruntime-qnn 2.7.0 (QAIRT 2.51) run on Linux x86-64: five-node model, emulator against CPU",),
)
def check_narrow_log(situation: Situation) -> Iterator[Found]:
    """A Log with a uint16 output whose range is narrower than 4.

    The HTP compiler of QAIRT 2.51 makes a kernel that returns the lowest value for every input; nothing is said.

    Fix: widen its output encoding to a range of at least 4, or try --rewrite log-range
    """
    # An error where it was seen, a warning for other releases, about which nothing is known.
    # For ONNX Runtime's provider the adapter's own rule speaks (ORT009), because it knows what it rewrites.
    version = "" if situation.target.sdk is None else situation.target.sdk.version
    seen = version.startswith(_LOG_SEEN_IN)
    for node in nodes(situation, "Log"):
        grid = grid_of(situation, node.outputs[0])
        if grid is None or grid.dtype != "uint16":
            continue
        width = float(grid.maximum.max() - grid.minimum.min())
        if width < _NARROW_LOG:
            note = "" if seen else f"; seen on 2.51, unknown on {version}"
            made = at_node(node, f"its uint16 output spans {width:.4g}, less than 4{note}", width=width)
            hint = f"widen its output encoding to a range of at least 4, or {rewrite_advice(situation, 'log-range')}"
            yield replace(made, hint=hint, severity=None if seen else Severity.WARNING)


@RULES.rule("QNN281", "unfolded-batch-norm", "warning", sources=("qualcomm/aimet#2930",))
def check_batch_norm(situation: Situation) -> Iterator[Found]:
    """Encodings on a BatchNormalization that the converter will fold.

    The converter folds it into the layer before; the entries of the tensors in between and of its parameters are lost.

    Fix: fold BatchNormalization before quantizing (aimet_onnx.batch_norm_fold)
    """
    # A normalization right behind a linear layer, with an entry between them.
    facts = situation.facts
    for node in nodes(situation, "BatchNormalization"):
        producer = facts.producer_of(node.inputs[0])
        alone = len(facts.consumers_of(node.inputs[0])) == 1
        if producer is not None and producer.op_type in _FOLDED_INTO and alone and situation.encodings is not None:
            lost = [name for name in node.inputs if name in situation.encodings]
            if lost:
                yield at_node(node, f"it folds into {producer.label}; the entries of {listed(lost)} are lost")
