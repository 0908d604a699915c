"""Rules about encodings that were made here, codes DK220 to DK229; they look at what ran, never at a quantizer."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from deploykit.findings import SubjectKind
from deploykit.findings.rules import Found, Registry

if TYPE_CHECKING:
    from deploykit.flow.quantizing.choosing import Picked
    from deploykit.flow.quantizing.making import Numbers

__all__ = ["AGREES_DB", "RULES", "QuantizedNumbers"]

AGREES_DB = 60.0
"""Two simulations of the same encodings that differ by more than a millionth of the signal's energy mean two things."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QuantizedNumbers:
    """What the rules look at: the model's file name, who quantized it, and the numbers."""

    model: str
    precision: str
    picked: Picked
    numbers: Numbers


RULES: Registry[QuantizedNumbers] = Registry("quantized")


@RULES.rule(
    "DK220",
    "quantized-by-default",
    "warning",
    what="The encodings were made by the embedded quantizer, because the one for this target is not installed.",
    why="The embedded quantizer knows nothing of the device: which operators share a grid, which weights must be "
    "symmetric, what the device computes in one kernel. A quantizer for the target does.",
    fix="install it with 'deploykit toolchain install', or say --with ort to take the embedded one",
    sources=("the toolchains of the backend",),
)
def check_default(quantized: QuantizedNumbers) -> Iterator[Found]:
    """A better quantizer is known, and not here."""
    better = quantized.picked.better
    if better is None:
        return
    spec = better.spec
    yield Found(
        kind=SubjectKind.ENVIRONMENT,
        name=spec.id,
        message=f"{quantized.picked.quantizer.id} made the encodings, since {spec.id} is not installed",
        hint=f"run 'deploykit toolchain install {spec.id}' ({spec.disk_mb} MiB, about {spec.minutes} minutes)",
        evidence={"quantizer": quantized.picked.quantizer.id, "missing": spec.id},
    )


@RULES.rule(
    "DK221",
    "quantized-here",
    "info",
    what="The encodings of this package were made here from the float model and the calibration data.",
    why="Nobody but this run vouches for them; what they cost stands beside them.",
    fix="there is nothing to do",
    sources=("the quantizer, run while packaging",),
)
def check_quantized(quantized: QuantizedNumbers) -> Iterator[Found]:
    """Who made them, and what is left of the signal."""
    numbers = quantized.numbers
    on = "samples that it calibrated on" if numbers.seen else "samples that it did not see"
    value = numbers.to_json()["sqnr_db"]
    shown = "no difference" if value is None else f"{value:.1f} dB"
    yield Found(
        kind=SubjectKind.MODEL,
        name=quantized.model,
        message=f"quantized to {quantized.precision} by {quantized.picked.quantizer.id}: {shown} on "
        f"{numbers.samples} {on}",
        evidence={"quantizer": quantized.picked.quantizer.id, "sqnr_db": value, "samples": numbers.samples},
    )


@RULES.rule(
    "DK222",
    "simulations-disagree",
    "warning",
    what="The quantizer's own simulation and deploykit's differ on the same encodings.",
    why="What was calibrated is then not what is judged here: an encoding was lost, or one of the two simulates "
    "something else.",
    fix="go by deploykit's number, which is of the files that were written; report it to the quantizer's makers",
    sources=("both simulations, run on the same samples",),
)
def check_agreement(quantized: QuantizedNumbers) -> Iterator[Found]:
    """The two against each other."""
    agreement = quantized.numbers.agreement_db
    if agreement is None or agreement >= AGREES_DB:
        return
    yield Found(
        kind=SubjectKind.MODEL,
        name=quantized.model,
        message=f"the simulation of {quantized.picked.quantizer.id} and deploykit's agree to {agreement:.1f} dB only",
        evidence={"agreement_db": agreement, "largest_difference": quantized.numbers.largest_difference},
    )


@RULES.rule(
    "DK223",
    "judged-on-seen-samples",
    "info",
    what="There were too few calibration samples to hold any out.",
    why="Numbers on the samples that the ranges were taken from look better than those on others.",
    fix="give at least five samples; makers of quantizers advise some hundreds",
    sources=("the calibration data",),
)
def check_seen(quantized: QuantizedNumbers) -> Iterator[Found]:
    """Nothing was held out."""
    if quantized.numbers.seen:
        yield Found(
            kind=SubjectKind.DATA,
            name=quantized.model,
            message=f"judged on {quantized.numbers.samples} of the samples that it was calibrated on",
        )
