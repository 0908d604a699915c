"""Rules about how calibration data fits a model, codes DK230 to DK239; data that fits gives no finding."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from deploykit.findings import SubjectKind
from deploykit.findings.rules import Found, Registry

if TYPE_CHECKING:
    from deploykit.numerics.data_fit import DataFit

__all__ = ["RULES"]

RULES: Registry[DataFit] = Registry("calibration-fit")

_SOURCES = ["deploykit: measured on the calibration data and the float model"]
_NEARLY_255 = (200.0, 300.0)
_UNSEEN = 0.2
_IMBALANCE = 3


def _about(fit: DataFit, message: str, hint: str = "", **evidence: object) -> Found:
    return Found(kind=SubjectKind.DATA, name=fit.origin, message=message, hint=hint, evidence=evidence)


@RULES.rule(
    "DK230",
    "scaled-twice-or-never",
    "error",
    what="The model divides its input by about 255, and the data lies within 0 and 1.",
    why="The model then sees 1/255 of what it was trained on: every range that is calibrated is that much too narrow.",
    fix="Give the data as it comes from the decoder, in 0..255.",
    sources=_SOURCES,
)
def check_divided(fit: DataFit) -> Iterator[Found]:
    """A graph that scales, on data that is scaled."""
    if _NEARLY_255[0] <= fit.divides_by <= _NEARLY_255[1] and fit.low >= 0 and fit.high <= 1.001:
        message = f"{fit.input} is divided by {fit.divides_by:g} in the model, and lies in {fit.low:g}..{fit.high:g}"
        yield _about(fit, message, divides_by=fit.divides_by, range=[fit.low, fit.high])


@RULES.rule(
    "DK231",
    "data-in-another-scale",
    "error",
    what="The data fits the model's first BatchNormalization much better when it is scaled by 255 or 1/255.",
    why="A BatchNormalization keeps mean and variance of the training. Data in 0..255 for a model of 0..1, or the other"
    " way round, gives ranges that are wrong by that factor in every layer up to the first normalization.",
    fix="Scale the data as the training did, and calibrate again.",
    sources=_SOURCES,
)
def check_scale(fit: DataFit) -> Iterator[Found]:
    """0..255 against 0..1."""
    yield from _prepared(fit, ("divided by 255", "times 255"))


@RULES.rule(
    "DK232",
    "channels-in-another-order",
    "warning",
    what="The data fits the model's first BatchNormalization much better with its colours in the other order.",
    why="Decoders differ: some give red, green, blue, some blue, green, red. A model accepts both and answers worse.",
    fix="Swap the colours where the data is prepared, and calibrate again.",
    sources=_SOURCES,
)
def check_order(fit: DataFit) -> Iterator[Found]:
    """BGR against RGB."""
    yield from _prepared(fit, ("channels in the other order",))


@RULES.rule(
    "DK233",
    "normalisation-missing",
    "error",
    what="The data fits the model's first BatchNormalization much better once mean and deviation are taken out.",
    why="Most vision models were trained on (x - mean) / deviation per colour. Without it inputs are never negative,"
    " and the ranges that are calibrated are those of other data.",
    fix="Normalise the data as the training did, and calibrate again.",
    sources=_SOURCES,
)
def check_normalised(fit: DataFit) -> Iterator[Found]:
    """Plain colours for a model of normalised ones."""
    yield from _prepared(fit, ("normalised by mean and deviation",))


def _prepared(fit: DataFit, changes: tuple[str, ...]) -> Iterator[Found]:
    found = fit.preparation
    if found is not None and found.better in changes:
        message = (
            f"{fit.input} lies in {fit.low:.4g}..{fit.high:.4g}; {found.better} it is {found.changed[found.better]:.2f}"
            f" from what {found.node} saw in training, as it is {found.as_given:.2f}"
        )
        yield _about(fit, message, node=found.node, as_given=found.as_given, changed=dict(found.changed))


@RULES.rule(
    "DK234",
    "ranges-still-growing",
    "warning",
    what="One half of the calibration samples does not show the ranges that the other half has.",
    why="Where a half misses more than a tenth of a range, the whole most likely misses some of it as well, and what"
    " lies beyond is clipped on the device.",
    fix="Give more samples, and different ones: ranges are settled when a half of them shows nearly all.",
    sources=[*_SOURCES, "vendor user guide UG1414, quantizer flow: 100 to 1000 calibration images"],
)
def check_growth(fit: DataFit) -> Iterator[Found]:
    """Half of the samples against all."""
    if fit.unseen > _UNSEEN:
        wanted = max(2 * fit.samples, 100)
        yield _about(
            fit,
            f"half of {fit.samples} samples misses more than a tenth of the range of {fit.unseen:.0%} of the tensors",
            f"give about {wanted} samples",
            samples=fit.samples,
            tensors=fit.tensors,
            share=fit.unseen,
        )


@RULES.rule(
    "DK235",
    "classes-unlike-often",
    "warning",
    what="One class has more than three times the samples of another.",
    why="Percentile and energy-based ranges follow what is frequent; a class that is rare is clipped first.",
    fix="Take about the same number of samples of each class.",
    sources=["deploykit: counted in labels.csv, or by the folder of each sample"],
)
def check_classes(fit: DataFit) -> Iterator[Found]:
    """Labels that were given, counted."""
    if len(fit.labels) < 2:
        return
    rare, often = min(fit.labels, key=lambda k: fit.labels[k]), max(fit.labels, key=lambda k: fit.labels[k])
    if fit.labels[often] > _IMBALANCE * fit.labels[rare]:
        message = f"class {often!r} has {fit.labels[often]} samples, class {rare!r} has {fit.labels[rare]}"
        hint = f"add {fit.labels[often] - fit.labels[rare]} samples of {rare!r}, or take fewer of {often!r}"
        yield _about(fit, message, hint, counts=dict(fit.labels))
