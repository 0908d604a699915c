"""Rules about calibration data: the guidelines (DK621 to DK628), and how data fits a model (DK230 to DK236, DK252).

Data that is fine gives no finding. What the rules look at is measured by ``data_quality``; nothing is read here.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from deploykit.findings import listed
from deploykit.findings.records import Json, Names, Published, Record
from deploykit.findings.rules import Finds, Found, Registry

__all__ = ["FIT_RULES", "GUIDELINE_RULES", "DataFit", "FirstLayer", "Preparation", "RangeGrowth", "Survey"]


class Survey(Published, kw_only=False):
    """What was seen of calibration data.

    ``unusable`` are (file, why, what to do); ``identical`` are groups of equal samples by name. ``neighbours`` is the
    median correlation of samples that follow each other, None where it was not measured; ``numbered_frames`` is True
    when the file names count frames without gaps and correlation was not measured. ``misfit`` says why the result of an
    image recipe does not fit the model.
    """

    kind: str
    origin: str
    samples: int
    unusable: tuple[tuple[str, str, str], ...] = ()
    identical: tuple[Names, ...] = ()
    constant: Names = ()
    not_finite: Names = ()
    neighbours: float | None = None
    numbered_frames: bool = False
    labels: Mapping[str, int] = {}
    misfit: str = ""

    def as_published(self) -> Json:
        """The fields that a package's record holds."""
        return {name: getattr(self, name) for name in ("kind", "origin", "samples", "unusable", "labels")}


class Preparation(Record):
    """How far data is from the statistics in the first BatchNormalization: as it is given, and after each change.

    A distance is the mean over channels of how mean and variance differ from those of the training; 0 is equal.
    """

    node: str
    as_given: float
    changed: Mapping[str, float]

    @property
    def better(self) -> str:
        """The change by which the data fits best, where it fits much better; else empty."""
        if self.as_given < 1 or not self.changed:
            return ""
        name = min(self.changed, key=lambda change: self.changed[change])
        return name if self.changed[name] < self.as_given / 4 else ""


class FirstLayer(Record):
    """The first convolution behind a picture, and the deviation of its results on the data: the median of its channels.

    Networks are trained so that this is near 1, whatever the scale of their data: it is far off for data of another
    scale.
    """

    node: str
    deviation: float


class RangeGrowth(Record):
    """How much ranges still grow.

    ``unseen`` is the share of ``tensors`` of whose range one half of the samples shows less than nine tenths: the mean
    over several halves of ``samples``.
    """

    samples: int
    tensors: int
    unseen: float


class DataFit(Record):
    """What was seen of data in front of a model.

    ``divides_by`` is the number that the model divides its input by, 0 for none. ``growth`` is None where ranges do not
    come from this data, or only some of its samples were looked at.
    """

    origin: str
    input: str = ""
    low: float = 0.0
    high: float = 0.0
    whole_numbers: bool = False
    divides_by: float = 0.0
    preparation: Preparation | None = None
    first_layer: FirstLayer | None = None
    growth: RangeGrowth | None = None
    labels: Mapping[str, int] = {}
    unused: Sequence[str] = ()


GUIDELINE_RULES = Registry[Survey]("calibration")
FIT_RULES = Registry[DataFit]("calibration-fit")

_GUIDE = "vendor user guide UG1414, quantizer flow: 100 to 1000 calibration images"
_FEW = 100  # the lower end of the guide
_MEASURED = ["deploykit: measured on the calibration data"]
_FITTED = ["deploykit: measured on the calibration data and the float model"]
# The deviation of what a first convolution makes is near 1 where its data is of the scale that it was trained on, and
# on bytes instead of normalised colours about sixty times that.
_FAR_OFF = 20.0


def _about(seen: Survey | DataFit, message: str, hint: str = "", **evidence: object) -> Found:
    return Found("data", seen.origin, message, hint=hint, evidence=evidence)


@GUIDELINE_RULES.rule("DK621", "few-calibration-samples", "warning", _GUIDE)
def check_number(survey: Survey) -> Finds:
    """There are fewer calibration samples than quantizers are usually given.

    Ranges seen on a few samples are narrower than those of real use; values beyond them are clipped.

    Fix: Give 100 to 1000 samples that look like what the model will meet.
    """
    if survey.kind in ("arrays", "images") and 0 < survey.samples < _FEW:
        yield _about(survey, f"{survey.samples} calibration samples", samples=survey.samples)


@GUIDELINE_RULES.rule("DK622", "no-calibration-sample", "error", _MEASURED)
def check_any(survey: Survey) -> Finds:
    """Not one calibration sample can be used.

    A quantizer that gets nothing stops, or makes up ranges.

    Fix: See which files are named as unusable, and why.
    """
    if survey.kind in ("arrays", "images") and not survey.samples:
        yield _about(survey, "no calibration sample can be used")


@GUIDELINE_RULES.rule("DK623", "unusable-calibration-file", "error", _MEASURED)
def check_usable(survey: Survey) -> Finds:
    """A calibration file is damaged, or does not fit the model's inputs in name, shape or type.

    Quantizers skip such files, or fail with a log line only.

    Fix: Repair or remove the file.
    """
    for file, why, instead in survey.unusable:
        yield Found("file", file, why, hint=instead)
    if survey.misfit:
        yield _about(survey, survey.misfit)


@GUIDELINE_RULES.rule("DK624", "identical-samples", "warning", _MEASURED)
def check_identical(survey: Survey) -> Finds:
    """Calibration samples are byte for byte the same.

    They add weight to one scene and no information.

    Fix: Remove the copies.
    """
    for group in survey.identical:
        yield _about(survey, f"identical: {listed(group)}", samples=list(group))


@GUIDELINE_RULES.rule("DK625", "sequential-frames", "warning", _MEASURED)
def check_sequential(survey: Survey) -> Finds:
    """The calibration samples follow each other like frames of one film.

    Neighbouring frames show the same scene, so that many samples carry the ranges of few.

    Fix: Take frames far apart, or from different films.
    """
    # Numbered frames, or neighbours that are nearly the same.
    if survey.numbered_frames:
        yield _about(survey, "the file names count frames without a gap")
    elif survey.neighbours is not None and survey.samples >= 8 and survey.neighbours > 0.95:
        yield _about(
            survey,
            f"samples that follow each other are nearly the same (median correlation {survey.neighbours:.3f})",
            correlation=survey.neighbours,
        )


@GUIDELINE_RULES.rule("DK627", "random-calibration-data", "warning", _MEASURED)
def check_random(survey: Survey) -> Finds:
    """The model is calibrated with random data: not for production.

    Random values have other ranges than real inputs: the result shows that the tools run, not that it works.

    Fix: Give real samples with --calibration.
    """
    if survey.kind == "random":
        yield _about(survey, "calibrated with random data: not for production")


@GUIDELINE_RULES.rule("DK628", "empty-looking-samples", "error", _MEASURED)
def check_values(survey: Survey) -> Finds:
    """A calibration sample is constant, or has values that are not finite.

    NaN and infinity make ranges meaningless; a constant sample is usually a failed decode.

    Fix: Remove the sample, and see how it was made.
    """
    # Constant samples and samples that are not finite.
    if survey.not_finite:
        yield _about(survey, f"not finite: {listed(survey.not_finite)}", samples=list(survey.not_finite))
    if survey.constant:
        yield _about(survey, f"constant: {listed(survey.constant)}", samples=list(survey.constant))


@FIT_RULES.rule("DK230", "scaled-twice-or-never", "error", _FITTED)
def check_divided(fit: DataFit) -> Finds:
    """The model divides its input by about 255, and the data lies within 0 and 1.

    The model then sees 1/255 of what it was trained on: every range that is calibrated is that much too narrow.

    Fix: Give the data as it comes from the decoder, in 0..255.
    """
    # A graph that scales, on data that is scaled.
    if 200 <= fit.divides_by <= 300 and fit.low >= 0 and fit.high <= 1.001:
        message = f"{fit.input} is divided by {fit.divides_by:g} in the model, and lies in {fit.low:g}..{fit.high:g}"
        yield _about(fit, message, divides_by=fit.divides_by, range=[fit.low, fit.high])


@FIT_RULES.rule("DK231", "data-in-another-scale", "error", _FITTED)
def check_scale(fit: DataFit) -> Finds:
    """The data fits the model's first BatchNormalization much better when it is scaled by 255 or 1/255.

    A BatchNormalization keeps mean and variance of the training. Data in 0..255 for a model of 0..1, or the other way
    round, gives ranges that are wrong by that factor in every layer up to the first normalization.

    Fix: Scale the data as the training did, and calibrate again.
    """
    yield from _prepared(fit, ("divided by 255", "times 255"))


@FIT_RULES.rule("DK232", "channels-in-another-order", "warning", _FITTED)
def check_order(fit: DataFit) -> Finds:
    """The data fits the model's first BatchNormalization much better with its colours in the other order.

    Decoders differ: some give red, green, blue, some blue, green, red. A model accepts both and answers worse.

    Fix: Swap the colours where the data is prepared, and calibrate again.
    """
    yield from _prepared(fit, ("channels in the other order",))


@FIT_RULES.rule("DK233", "normalisation-missing", "error", _FITTED)
def check_normalised(fit: DataFit) -> Finds:
    """The data fits the model's first BatchNormalization much better once mean and deviation are taken out.

    Most vision models were trained on (x - mean) / deviation per colour. Without it inputs are never negative, and the
    ranges that are calibrated are those of other data.

    Fix: Normalise the data as the training did, and calibrate again.
    """
    # Plain colours for a model of normalised ones.
    yield from _prepared(fit, ("normalised by mean and deviation",))


def _prepared(fit: DataFit, changes: tuple[str, ...]) -> Finds:
    found = fit.preparation
    if found is not None and found.better in changes:
        message = (
            f"{fit.input} lies in {fit.low:.4g}..{fit.high:.4g} and is {found.as_given:.2f} from what {found.node} saw "
            f"in training; {found.better} it would be {found.changed[found.better]:.2f}"
        )
        yield _about(fit, message, node=found.node, as_given=found.as_given, changed=dict(found.changed))


@FIT_RULES.rule("DK234", "ranges-still-growing", "warning", [*_FITTED, _GUIDE])
def check_growth(fit: DataFit) -> Finds:
    """One half of the calibration samples does not show the ranges that the other half has.

    Where a half misses more than a tenth of a range, the whole most likely misses some of it as well, and what lies
    beyond is clipped on the device.

    Fix: Give more samples, and different ones: ranges are settled when a half of them shows nearly all.
    """
    growth = fit.growth
    if growth is None or growth.unseen <= 0.2:
        return
    message = (
        f"half of {growth.samples} samples misses more than a tenth of the range of {growth.unseen:.0%} of the tensors"
    )
    hint = f"give about {max(2 * growth.samples, 100)} samples"
    yield _about(fit, message, hint, samples=growth.samples, tensors=growth.tensors, share=growth.unseen)


@FIT_RULES.rule(
    "DK235",
    "classes-unlike-often",
    "warning",
    "deploykit: counted in labels.csv, or by the folder of each sample",
)
def check_classes(fit: DataFit) -> Finds:
    """One class has more than three times the samples of another, and more than an even draw gives by chance.

    Percentile and energy-based ranges follow what is frequent; a class that is rare is clipped first.

    Fix: Take about the same number of samples of each class.
    """
    counts = fit.labels
    if len(counts) < 2:
        return
    rare, often = min(counts, key=lambda name: counts[name]), max(counts, key=lambda name: counts[name])
    message = f"class {often!r} has {counts[often]} samples, class {rare!r} has {counts[rare]}"
    # The most frequent of k equally likely classes has about the mean and sqrt(2 ln k) deviations more: a hundred
    # pictures of a thousand classes hold one of some and three of others, and nothing is wrong with them.
    mean = sum(counts.values()) / len(counts)
    by_chance = mean + math.sqrt(2 * mean * math.log(len(counts)))
    if counts[often] > 3 * counts[rare] and counts[often] > by_chance:
        hint = f"add {counts[often] - counts[rare]} samples of {rare!r}, or take fewer of {often!r}"
        yield _about(fit, message, hint, counts=dict(counts))


@FIT_RULES.rule("DK236", "files-not-used", "info", _MEASURED)
def check_unused(fit: DataFit) -> Finds:
    """Files in the folder of calibration data are no arrays, pictures or sounds by their names.

    Whoever counts on them has fewer samples than the folder seems to hold.

    Fix: Save what is meant to be read as .npy, .npz, .png, .jpg, .bmp or .wav.
    """
    if fit.unused:
        yield _about(fit, f"{len(fit.unused)} not used: {listed(fit.unused)}")


@FIT_RULES.rule("DK252", "bytes-for-a-model-of-small-values", "warning", _FITTED)
def check_bytes(fit: DataFit) -> Finds:
    """The data is whole numbers in 0..255, the model does not scale them, and its first convolution answers with values
    far larger than such layers are trained to give.

    Exporters fold the BatchNormalization into that convolution, and the statistics of the training with it; what is
    left is its size. Without the scaling of the training every range up to the first normalization is about 255 times
    too wide.

    Fix: Scale the data as the training did (mostly to 0..1, then mean and deviation), and calibrate again, unless the
    model really was trained on bytes.
    """
    # Pictures as they come from the decoder, in front of folded statistics.
    layer = fit.first_layer
    if layer is None or fit.divides_by or not fit.whole_numbers or fit.low < 0 or fit.high < 100:
        return
    if layer.deviation > _FAR_OFF:
        message = (
            f"{fit.input} holds whole numbers in {fit.low:g}..{fit.high:g}, of which {layer.node} makes values of"
            f" deviation {layer.deviation:.3g}; divided by 255 it would be {layer.deviation / 255:.3g}"
        )
        yield _about(fit, message, node=layer.node, deviation=layer.deviation, range=[fit.low, fit.high])
