"""Lint rules about what QAIRT's converters make of a model, and, for every route, about values beyond float16.

Codes QNN127, QNN240, QNN250 and QNN281.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Set

from deploykit.backend.backend import Situation
from deploykit.encodings.values import EncodingSet
from deploykit.findings import Severity
from deploykit.findings.records import Interval, Record, field, replace
from deploykit.findings.rules import Finds, Found, Registry
from deploykit.model.operators import LARGEST_FLOAT16, Trait, has, ops
from deploykit_qualcomm.rules.constraints import constraint
from deploykit_qualcomm.rules.views import (
    at_node,
    dynamic_matmuls,
    grid_of,
    listed,
    nodes,
    quantized,
    rewrite_advice,
    sdk_of,
)

__all__ = ["FLOAT16_RULES", "RULES", "Float16Plan"]

_MOST_MOVES = 16  # operators in a row that only move data
_NARROW_LOG = 4.0  # the least range at which the kernel was seen to be right
_LOG_SEEN_IN = ("2.51",)

RULES = Registry[Situation]("situation")


@RULES.rule("QNN240", "second-operand-as-weight", "warning", constraint("matmul-second-operand").source)
def check_second_operand(situation: Situation) -> Finds:
    """A MatMul of two activations whose second operand has no encoding of its own.

    The converter treats the second operand as a weight: without an entry it gets --weights_bitwidth, 8 bits in a w8a16
    plan.

    Fix: give the second operand an encoding
    """
    # Only if encodings exist and the first operand has one; a tensor that was only moved keeps its grid.
    if situation.encodings is None:
        return
    for node in dynamic_matmuls(situation):
        first, second = (_has_grid(situation, name) for name in node.inputs[:2])
        if first and not second:
            yield at_node(node, f"its second operand {node.inputs[1]} has no encoding, and gets the width of weights")


def _has_grid(situation: Situation, name: str) -> bool:
    """True if a tensor, or the one it was moved from, has an encoding: converters copy encodings over moves."""
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
    "onnxruntime-qnn 2.7.0 (QAIRT 2.51) run on Linux x86-64: five-node model, emulator against CPU",
)
def check_narrow_log(situation: Situation) -> Finds:
    """A Log with a uint16 output whose range is narrower than 4.

    The HTP compiler of QAIRT 2.51 makes a kernel that returns the lowest value for every input; nothing is said.

    Fix: widen its output encoding to a range of at least 4, or try --rewrite log-range
    """
    # An error for releases with which it was seen, a warning for the others. For ONNX Runtime's provider the
    # adapter's own rule (ORT009) reports it, because it knows the rewrites.
    version = sdk_of(situation).version
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


@RULES.rule("QNN281", "unfolded-batch-norm", "warning", "qualcomm/aimet#2930")
def check_batch_norm(situation: Situation) -> Finds:
    """Encodings on a BatchNormalization that the converter will fold.

    The converter folds it into the layer before; the entries of the tensors in between and of its parameters are lost.

    Fix: fold BatchNormalization before quantizing (aimet_onnx.batch_norm_fold)
    """
    # A normalization right behind a linear layer, with an entry between them.
    facts = situation.facts
    for node in nodes(situation, "BatchNormalization"):
        producer = facts.producer_of(node.inputs[0], *ops(Trait.TAKES_BATCHNORM))
        if producer is not None and facts.only_reader(node.inputs[0]) and situation.encodings is not None:
            lost = [name for name in node.inputs if name in situation.encodings]
            if lost:
                yield at_node(node, f"it folds into {producer.label}; the entries of {listed(lost)} are lost")


# Larger constants are weights, not range problems; they are not read for this rule.
_WORTH_READING = 1 << 20
# Measured at four norms: 300 is right, 400 and more come out as 362.
_LARGEST_NORM = math.sqrt(2 * LARGEST_FLOAT16)
_NORMS = "onnxruntime-qnn 2.7.0 (QAIRT 2.51) run on Linux x86-64: ReduceL2 over 64 to 4096 values, norms of 300 to 1600"


class Float16Plan(Record):
    """The tensors planned as float16, and the encodings with the ranges of the others.

    ``seen`` gives the largest magnitudes of tensors on the user's data.
    """

    situation: Situation
    tensors: Set[str]
    encodings: EncodingSet | None = None
    seen: Callable[[Collection[str]], Mapping[str, float]] = field(default=lambda _: {})


FLOAT16_RULES = Registry[Float16Plan]("float16-plan")


@FLOAT16_RULES.rule(
    "QNN127",
    "beyond-float16",
    "error",
    ("IEEE 754 binary16", "qualcomm/aimet#4102 (ranges up to 2.7e34)"),
    cure=("log-of-scaled", "mask-constant"),
)
def check_range(plan: Float16Plan) -> Finds:
    """A tensor planned as float16 whose values exceed 65504.

    float16 turns them into infinity, without a word. AIMET simulates a disabled quantizer in float32, so the simulation
    does not show it; the provider compiles whole float graphs in float16. What no bound tells, your data shows.

    Fix: clamp the constant that causes it, rewrite the operation so that the range fits, or quantize it to integers
    """
    # An error if such values occur and reach arithmetic; a warning if they saturate, or are only an upper bound. Masks
    # that only switch off positions of a Softmax are left out, and so are values that bounds prove impossible.
    if not plan.tensors:
        return
    from deploykit.encodings.reach import collect_reach, only_masks, proven_bounds, saturates
    from deploykit.model.collect import constant_range
    from deploykit.model.facts import setting_of
    from deploykit.model.weights import weight_files

    facts, model, encodings = plan.situation.facts, plan.situation.model, plan.encodings
    proven = proven_bounds(facts, model, encodings)
    with weight_files() as files:

        def bounds(name: str) -> Interval | None:
            size = math.prod(facts.static_shape(name) or ())
            return constant_range(model, name, files) if size <= _WORTH_READING else None

        reach = facts.once(("reach", encodings), lambda: collect_reach(facts, encodings, bounds, bounds=proven))
    for name in sorted((plan.tensors & reach.keys()) - _folded_by_converters(plan.situation)):
        found = reach[name]
        # A bound of a Clip that becomes infinite in float16 has the same effect.
        if found.magnitude <= LARGEST_FLOAT16 or setting_of(facts, name) or only_masks(facts, name, found):
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
                "range": [found.low, found.high],
                "cause": found.cause,
                "saturates": harmless,
                "attained": found.attained,
            },
        )

    # With data, only the first tensor beyond float16 is reported, not those that follow from it.
    untold = plan.tensors - {name for name, found in reach.items() if found.magnitude > LARGEST_FLOAT16}
    made = [name for node in facts.nodes for name in node.outputs if name in untold]
    beyond = {name: peak for name, peak in plan.seen(made).items() if LARGEST_FLOAT16 < peak < math.inf}
    for name, peak in beyond.items():
        maker = facts.producer_of(name)
        if maker is not None and beyond.keys().isdisjoint(maker.inputs) and not saturates(facts, name):
            yield Found(
                "tensor",
                name,
                f"{name} is planned as float16 but reaches {peak:.4g} on your samples (limit {LARGEST_FLOAT16:g})",
                severity=Severity.WARNING,
            )

    # The kernel sums squares in float16, up to twice its largest value, so the norm has this limit.
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


@FLOAT16_RULES.rule(
    "QNN132",
    "mean-through-its-sum",
    "warning",
    "onnxruntime-qnn 2.7.0 (QAIRT 2.51) run on Linux x86-64: LayerNormalization as jax writes it (Magika 1.0.3)",
    cure="sum-to-mean",
)
def check_sums(plan: Float16Plan) -> Finds:
    """A mean in float16 that is computed as a sum and divided then.

    The sum leaves float16 where the mean is far inside. A norm of 512 values lost everything so; ReduceMean does not.

    Fix: write ReduceMean
    """
    # Nothing is reported if bounds prove that the sum fits.
    from deploykit.encodings.reach import proven_bounds
    from deploykit.rewrites.contract import load_transform

    model, planned = plan.situation.model, plan.tensors
    sites = [one for one in load_transform("sum-to-mean").match(model.proto).sites if planned >= set(one.tensors)]
    proven = proven_bounds(plan.situation.facts, model, plan.encodings) if sites else {}
    for site in sites:
        (name,) = site.tensors
        node = plan.situation.facts.producer_of(name)
        if node is not None and max(map(abs, proven[name])) > LARGEST_FLOAT16:
            yield at_node(node, f"the sum is in float16, and {site.why} only then")


def _folded_by_converters(situation: Situation) -> frozenset[str]:
    """Stored parameters of BatchNormalization whose scale and offset fit: converters compute these before casting.

    For example a variance of 1e7: divided by its root, the scale is small.
    """
    import numpy as np

    from deploykit.model.graph import view_of
    from deploykit.model.weights import load_small_weights

    norms = [node for node in situation.facts.nodes if node.op_type == "BatchNormalization" and len(node.inputs) >= 5]
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
        with np.errstate(all="ignore"):  # a negative variance gives NaN, which is not small
            factor = scale / np.sqrt(variance + float(node.attributes.get("epsilon", 1e-5)))
        most = max(np.abs(factor).max(initial=0), np.abs(offset - mean * factor).max(initial=0))
        (small if most <= LARGEST_FLOAT16 else large).update(names)
    return frozenset(small - large)
