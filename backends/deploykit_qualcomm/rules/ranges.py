"""Lint rules about ranges of values: float16's limit, swamped grids, a kernel that fails on narrow ranges.

Codes QNN245, QNN250, QNN275 and QNN280.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

from deploykit.contract.backend import Situation
from deploykit.findings import Severity, SubjectKind
from deploykit.rules import Found
from deploykit_qualcomm.rules.constraints import constraint
from deploykit_qualcomm.rules.registries import CONVERTER_LINT, EP_LINT, QNN_LINT
from deploykit_qualcomm.rules.views import at_node, grid_of, listed, nodes

__all__: list[str] = []

_FLOAT16_MAX = 65504.0
_SWAMPED = 1e6
_WORTH_READING = 1 << 20
_NARROW_LOG = 4.0
_LOG_SEEN_IN = ("2.51",)


@EP_LINT.rule(
    "QNN245",
    "float-model-beyond-float16",
    "error",
    what="A value beyond 65504 in a model that is compiled as float.",
    why="With a soc_model the provider compiles float graphs in float16: the value becomes infinity, without a word.",
    fix="clamp the constant that causes it, or quantize the model",
    sources=constraint("fp16-overflow").source,
)
def check_float16(situation: Situation) -> Iterator[Found]:
    """What constants and bounded operators tell; a model with Q/DQ pairs or encodings is not a float model."""
    if situation.facts.is_qdq or situation.encodings is not None:
        return
    from deploykit.graph.collect import constant_range
    from deploykit.quantization.reach import collect_reach, saturates

    facts = situation.facts

    def bounds(name: str) -> tuple[float, float] | None:
        size = math.prod(dim for dim in facts.tensors[name].shape or () if isinstance(dim, int))
        return constant_range(situation.model, name) if size <= _WORTH_READING else None

    reach = collect_reach(facts, None, bounds)
    for name in sorted(name for name, found in reach.items() if found.magnitude > _FLOAT16_MAX):
        harmless = saturates(facts, name)
        yield Found(
            kind=SubjectKind.TENSOR,
            name=name,
            severity=Severity.WARNING if harmless else None,
            message=f"{name} reaches {reach[name].low:.4g} .. {reach[name].high:.4g} because of {reach[name].cause}"
            + ("; every path from it saturates" if harmless else ""),
        )


@CONVERTER_LINT.rule(
    "QNN250",
    "narrow-log-16-bit",
    "error",
    what="A Log with a uint16 output whose range is narrower than 4.",
    why="The HTP compiler of QAIRT 2.51 makes a kernel that returns the lowest value for every input; nothing is said.",
    fix="widen the output encoding of the Log to a range of at least 4, or rewrite it with --rewrite log-range",
    sources=("onnxruntime-qnn 2.7.0 (QAIRT 2.51) run on Linux x86-64: five-node model, emulator against CPU",),
)
def check_narrow_log(situation: Situation) -> Iterator[Found]:
    """An error where it was seen, a warning for other releases, about which nothing is known.

    For ONNX Runtime's provider the adapter's own rule speaks (ORT009), because it knows what it rewrites.
    """
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
            yield made if seen else replace(made, severity=Severity.WARNING)


@QNN_LINT.rule(
    "QNN275",
    "swamped-grid",
    "warning",
    what="An integer encoding with a range so wide that ordinary values all become one step.",
    why="A mask or padding constant (1e30, 3.4e38) sets the range: every other value of the tensor is rounded away. "
    "On a detector the boxes were off by 807 pixels, while compiler and types were content.",
    fix="clamp the constant before quantizing (for instance --rewrite saturating-constant or mask-constant)",
    sources=(
        "qualcomm/aimet#4102 (ranges up to 2.7e34)",
        "RT-DETRv2 topology with aimet-onnx 2.42.0: 807 pixels, 306 with anchors clamped to 20",
    ),
)
def check_swamped(situation: Situation) -> Iterator[Found]:
    """Activations and constants, by the largest magnitude of the grid."""
    from deploykit.encodings.values import Affine

    wide = {}
    for entry in situation.encodings or ():
        if isinstance(entry.value, Affine) and entry.value.bits <= 16:
            most = max(abs(float(entry.value.minimum.min())), abs(float(entry.value.maximum.max())))
            if most > _SWAMPED:
                wide[entry.name] = most
    for name, most in wide.items():
        yield Found(
            kind=SubjectKind.TENSOR,
            name=name,
            message=f"{name}: its grid reaches {most:.3g}",
            evidence={"magnitude": most if math.isfinite(most) else None},
        )


@QNN_LINT.rule(
    "QNN280",
    "signed-activations",
    "warning",
    what="Asymmetric activations on a signed grid.",
    why="AIMET's force_activation_as='signed' is meant for other targets: on the HTP an Exp was refused with 0xc26.",
    fix="export with force_activation_as=None (symmetric signed, asymmetric unsigned) or 'unsigned' for 16 bits",
    sources=("qualcomm/aimet#4090",),
)
def check_signed_activations(situation: Situation) -> Iterator[Found]:
    """Entries of computed tensors, signed and off-centre."""
    from deploykit.encodings.values import Affine

    names = []
    for entry in situation.encodings or ():
        fact = situation.facts.tensors.get(entry.name)
        if fact is None or fact.is_weight or not isinstance(entry.value, Affine) or not entry.value.signed:
            continue
        if entry.value.symmetric is not True and bool((abs(entry.value.zero_point) > 0.5).any()):
            names.append(entry.name)
    if names:
        yield Found(
            kind=SubjectKind.ENCODINGS,
            name=(situation.request.encodings or situation.request.model).name,
            message=f"{len(names)} asymmetric activations are signed: {listed(names)}",
            evidence={"tensors": names},
        )
