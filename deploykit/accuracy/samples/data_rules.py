"""Rules about how calibration data fits a model, codes DK230 to DK235 and DK252; data that fits gives no finding."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

from deploykit.findings import SubjectKind
from deploykit.findings.rules import Found, Registry

if TYPE_CHECKING:
    from deploykit.accuracy.samples.data_fit import DataFit

__all__ = ["RULES"]

RULES: Registry[DataFit] = Registry("calibration-fit")

_SOURCES = ["deploykit: measured on the calibration data and the float model"]
_NEARLY_255 = (200.0, 300.0)
_UNSEEN = 0.2
_IMBALANCE = 3
_BYTES = 100.0
_FAR_OFF = 20.0
"""Deviation of a first convolution's output: near 1 where its data is of the scale that it was trained on, and on
bytes instead of normalised colours about sixty times that."""


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
    growth = fit.growth
    if growth is None or growth.unseen <= _UNSEEN:
        return
    message = (
        f"half of {growth.samples} samples misses more than a tenth of the range of {growth.unseen:.0%} of the tensors"
    )
    hint = f"give about {max(2 * growth.samples, 100)} samples"
    yield _about(fit, message, hint, samples=growth.samples, tensors=growth.tensors, share=growth.unseen)


@RULES.rule(
    "DK235",
    "classes-unlike-often",
    "warning",
    what="One class has more than three times the samples of another, and more than an even draw gives by chance.",
    why="Percentile and energy-based ranges follow what is frequent; a class that is rare is clipped first.",
    fix="Take about the same number of samples of each class.",
    sources=["deploykit: counted in labels.csv, or by the folder of each sample"],
)
def check_classes(fit: DataFit) -> Iterator[Found]:
    """Labels that were given, counted."""
    counts = fit.labels
    if len(counts) < 2:
        return
    rare, often = min(counts, key=lambda k: counts[k]), max(counts, key=lambda k: counts[k])
    if counts[often] > _IMBALANCE * counts[rare] and counts[often] > _by_chance(list(counts.values())):
        message = f"class {often!r} has {counts[often]} samples, class {rare!r} has {counts[rare]}"
        hint = f"add {counts[often] - counts[rare]} samples of {rare!r}, or take fewer of {often!r}"
        yield _about(fit, message, hint, counts=dict(counts))


def _by_chance(counts: list[int]) -> float:
    """About what the most frequent of equally likely classes reaches: the mean, and sqrt(2 ln k) deviations above it.

    A hundred pictures of a thousand classes hold one of some and three of others, and nothing is wrong with them.
    """
    mean = sum(counts) / len(counts)
    return mean + math.sqrt(2 * mean * math.log(len(counts)))


@RULES.rule(
    "DK252",
    "bytes-for-a-model-of-small-values",
    "warning",
    what="The data is whole numbers in 0..255, the model does not scale them, and its first convolution answers with"
    " values far larger than such layers are trained to give.",
    why="Exporters fold the BatchNormalization into that convolution, and the statistics of the training with it; what"
    " is left is its size. Without the scaling of the training every range up to the first normalization is about 255"
    " times too wide.",
    fix="Scale the data as the training did (mostly to 0..1, then mean and deviation), and calibrate again. If the"
    " model really was trained on bytes there is nothing to do.",
    sources=_SOURCES,
)
def check_bytes(fit: DataFit) -> Iterator[Found]:
    """Pictures as they come from the decoder, in front of folded statistics."""
    layer = fit.first_layer
    if layer is None or fit.divides_by or not fit.whole_numbers or fit.low < 0 or fit.high < _BYTES:
        return
    if layer.deviation > _FAR_OFF:
        message = (
            f"{fit.input} holds whole numbers in {fit.low:g}..{fit.high:g}, of which {layer.node} makes values of"
            f" deviation {layer.deviation:.3g}; divided by 255 it would be {layer.deviation / 255:.3g}"
        )
        yield _about(fit, message, node=layer.node, deviation=layer.deviation, range=[fit.low, fit.high])
