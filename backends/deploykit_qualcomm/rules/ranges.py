"""Lint rules about ranges of values: swamped grids, grids on the wrong side of zero. Codes QNN275 and QNN280."""

from __future__ import annotations

import math
from collections.abc import Iterator

from deploykit.backend.backend import Situation
from deploykit.encodings.values import Affine
from deploykit.findings import SubjectKind
from deploykit.findings.rules import Found, Registry
from deploykit_qualcomm.rules.views import listed

__all__ = ["RULES"]

_SWAMPED = 1e6

RULES: Registry[Situation] = Registry("situation")


@RULES.rule(
    "QNN275",
    "swamped-grid",
    "warning",
    what="An integer encoding with a range so wide that ordinary values all become one step.",
    why="A mask or padding constant (1e30, 3.4e38) sets the range: every other value of the tensor is rounded away. "
    "On a detector the boxes were off by 807 pixels, while compiler and types were content.",
    fix="give --calibration, so that a mask or a constant that only saturates is clamped by itself, or clamp the "
    "constant before quantizing",
    sources=(
        "qualcomm/aimet#4102 (ranges up to 2.7e34)",
        "RT-DETRv2 topology with aimet-onnx 2.42.0: 807 pixels, 306 with anchors clamped to 20",
    ),
    cure=("simplify", "mask-constant"),
)
def check_swamped(situation: Situation) -> Iterator[Found]:
    """Activations and constants, by the largest magnitude of the grid."""
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


@RULES.rule(
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
