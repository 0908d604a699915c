"""The rule about values that float16 cannot hold, whoever plans a tensor as float16. Code QNN127."""

from __future__ import annotations

import math
from collections.abc import Iterator, Set
from dataclasses import dataclass
from typing import TYPE_CHECKING

from deploykit.backend.backend import Situation
from deploykit.findings import Severity
from deploykit.findings.rules import Found, Registry
from deploykit.model.operators import LARGEST_FLOAT16

if TYPE_CHECKING:
    from deploykit.encodings.values import EncodingSet

__all__ = ["RULES", "Float16Plan"]

# Constants with more elements are weights, not range problems; they are not read for this question.
_WORTH_READING = 1 << 20
# Measured at four lengths: 300 is right, 400 and more come out as 362.
_LARGEST_NORM = math.sqrt(2 * LARGEST_FLOAT16)
_NORMS = "onnxruntime-qnn 2.7.0 (QAIRT 2.51) run on Linux x86-64: ReduceL2 over 64 to 4096 values, norms of 300 to 1600"


@dataclass(frozen=True, slots=True, kw_only=True)
class Float16Plan:
    """The tensors that are planned as float16, and the encodings that tell the ranges of the others."""

    situation: Situation
    tensors: Set[str]
    encodings: EncodingSet | None = None


RULES: Registry[Float16Plan] = Registry("float16-plan")


@RULES.rule(
    "QNN127",
    "beyond-float16",
    "error",
    sources=("IEEE 754 binary16", "qualcomm/aimet#4102 (ranges up to 2.7e34)"),
    cure="log-of-scaled",
)
def check_range(plan: Float16Plan) -> Iterator[Found]:
    """A tensor planned as float16 whose values exceed 65504.

    float16 turns them into infinity, without a word. AIMET simulates a disabled quantizer in float32, so the simulation
    does not show it; the provider compiles whole float graphs in float16.

    Fix: clamp the constant that causes it, or rewrite the operation, so that the range fits
    """
    # An error where such values are attained and reach arithmetic; a warning where they saturate, or hold at most.
    # Masks that only switch positions of a Softmax off are left out, and so is what bounds prove impossible.
    if not plan.tensors:
        return
    from deploykit.encodings.reach import collect_reach, only_masks, proven_bounds, saturates
    from deploykit.model.collect import constant_range

    facts = plan.situation.facts

    def bounds(name: str) -> tuple[float, float] | None:
        size = math.prod(dim for dim in facts.tensors[name].shape or () if isinstance(dim, int))
        return constant_range(plan.situation.model, name) if size <= _WORTH_READING else None

    proven = proven_bounds(plan.situation.model, plan.encodings)
    reach = collect_reach(facts, plan.encodings, bounds, bounds=proven)
    folded = _folded_by_converters(plan.situation)
    for name in sorted((plan.tensors & reach.keys()) - folded):
        found = reach[name]
        if found.magnitude <= LARGEST_FLOAT16 or only_masks(facts, name, found):
            continue
        harmless = saturates(facts, name)
        most = "" if found.attained else "at most "
        yield Found(
            "tensor",
            name,
            f"{name} is planned as float16 but reaches {most}{found.low:.4g} .. {found.high:.4g} "
            f"(limit {LARGEST_FLOAT16:g}), caused by {found.cause}"
            + ("; every path from it saturates, so infinity is harmless there" if harmless else ""),
            severity=Severity.WARNING if harmless or most else None,
            evidence={
                "range": [_as_json(found.low), _as_json(found.high)],
                "cause": found.cause,
                "saturates": harmless,
                "attained": found.attained,
            },
        )

    # A norm is taken of a sum of squares in float16, which ends at twice its largest value.
    for node in facts.nodes:
        high = proven.get(node.outputs[0], (0.0, 0.0))[1] if node.op_type == "ReduceL2" else 0.0
        if node.outputs[0] in plan.tensors and _LARGEST_NORM < high < math.inf:
            yield Found(
                "tensor",
                node.outputs[0],
                f"{node.outputs[0]} is a norm in float16 of at most {high:.4g}: its kernel goes up to "
                f"{_LARGEST_NORM:.0f}, as the squares are added up in float16",
                severity=Severity.WARNING,
                hint="divide by a constant before it, and multiply by that behind it",
                sources=(_NORMS,),
                evidence={"range": [0.0, high], "limit": _LARGEST_NORM},
            )


def _folded_by_converters(situation: Situation) -> frozenset[str]:
    """Stored parameters of BatchNormalization whose scale and offset fit: converters compute these two before casting.

    A variance of 1e7 is one of them: divided by its root, the scale is small.
    """
    import numpy as np

    from deploykit.model.graph import view_of
    from deploykit.model.weights import load_small_weights

    facts = situation.facts
    norms = [node for node in facts.nodes if node.op_type == "BatchNormalization" and len(node.inputs) >= 5]
    if not norms:
        return frozenset()
    graph = view_of(load_small_weights(situation.model))
    small, large = set[str](), set[str]()
    for node in norms:
        names = node.inputs[1:5]
        values = [graph.array(name) for name in names]
        if any(value is None for value in values):
            large.update(names)
            continue
        scale, offset, mean, variance = (value.astype(np.float64) for value in values if value is not None)
        factor = scale / np.sqrt(variance + float(node.attributes.get("epsilon", 1e-5)))
        most = max(np.abs(factor).max(initial=0), np.abs(offset - mean * factor).max(initial=0))
        (small if most <= LARGEST_FLOAT16 else large).update(names)
    return frozenset(small - large)


def _as_json(end: float) -> float | str:
    """One end of a range; JSON has no infinity."""
    return end if math.isfinite(end) else str(end)
