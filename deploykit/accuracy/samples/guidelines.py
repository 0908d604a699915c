"""The guidelines for calibration data as rules over a survey; data that is fine gives no finding."""

from __future__ import annotations

from collections.abc import Iterator

from deploykit.accuracy.samples.survey import Survey
from deploykit.findings import SubjectKind, listed
from deploykit.findings.rules import Found, Registry

__all__ = ["RULES"]


RULES: Registry[Survey] = Registry("calibration")

_FEW = 100
_SAME_SCENE = 0.95
_IMBALANCE = 10
_MEASURED = ["deploykit: measured on the calibration data"]
_GUIDE = ["vendor user guide UG1414, quantizer flow: 100 to 1000 calibration images"]


def _about(survey: Survey, message: str, **evidence: object) -> Found:
    return Found(kind=SubjectKind.DATA, name=survey.origin, message=message, evidence=evidence)


@RULES.rule(
    "DK621",
    "few-calibration-samples",
    "warning",
    what="There are fewer calibration samples than quantizers are usually given.",
    why="Ranges seen on a few samples are narrower than those of real use; values beyond them are clipped.",
    fix="Give 100 to 1000 samples that look like what the model will meet.",
    sources=_GUIDE,
)
def check_number(survey: Survey) -> Iterator[Found]:
    """Fewer than 100 samples."""
    if survey.kind in ("arrays", "images") and 0 < survey.samples < _FEW:
        yield _about(survey, f"{survey.samples} calibration samples", samples=survey.samples)


@RULES.rule(
    "DK622",
    "no-calibration-sample",
    "error",
    what="Not one calibration sample can be used.",
    why="A quantizer that gets nothing stops, or makes up ranges.",
    fix="See which files are named as unusable, and why.",
    sources=_MEASURED,
)
def check_any(survey: Survey) -> Iterator[Found]:
    """No usable sample at all."""
    if survey.kind in ("arrays", "images") and not survey.samples:
        yield _about(survey, "no calibration sample can be used")


@RULES.rule(
    "DK623",
    "unusable-calibration-file",
    "error",
    what="A calibration file is damaged, or does not fit the model's inputs in name, shape or type.",
    why="Quantizers skip such files, or fail with a log line only.",
    fix="Repair or remove the file.",
    sources=_MEASURED,
)
def check_usable(survey: Survey) -> Iterator[Found]:
    """Each unusable file, by name."""
    for file, why in survey.unusable:
        yield Found(kind=SubjectKind.FILE, name=file, message=why)
    if survey.misfit:
        yield _about(survey, survey.misfit)


@RULES.rule(
    "DK624",
    "identical-samples",
    "warning",
    what="Calibration samples are byte for byte the same.",
    why="They add weight to one scene and no information.",
    fix="Remove the copies.",
    sources=_MEASURED,
)
def check_identical(survey: Survey) -> Iterator[Found]:
    """Groups of equal samples."""
    for group in survey.identical:
        yield _about(survey, f"identical: {listed(group)}", samples=list(group))


@RULES.rule(
    "DK625",
    "sequential-frames",
    "warning",
    what="The calibration samples follow each other like frames of one film.",
    why="Neighbouring frames show the same scene, so that many samples carry the ranges of few.",
    fix="Take frames far apart, or from different films.",
    sources=_MEASURED,
)
def check_sequential(survey: Survey) -> Iterator[Found]:
    """Numbered frames, or neighbours that are nearly the same."""
    if survey.numbered_frames:
        yield _about(survey, "the file names count frames without a gap")
    elif survey.neighbours is not None and survey.samples >= 8 and survey.neighbours > _SAME_SCENE:
        yield _about(
            survey,
            f"samples that follow each other are nearly the same (median correlation {survey.neighbours:.3f})",
            correlation=survey.neighbours,
        )


@RULES.rule(
    "DK626",
    "class-imbalance",
    "warning",
    what="One class has more than ten times the samples of another.",
    why="Ranges of rare classes may hardly be seen.",
    fix="Take about the same number of samples of each class.",
    sources=_MEASURED,
)
def check_balance(survey: Survey) -> Iterator[Found]:
    """Labels that were given, counted."""
    if len(survey.labels) < 2:
        return
    rare, often = min(survey.labels, key=lambda k: survey.labels[k]), max(survey.labels, key=lambda k: survey.labels[k])
    if survey.labels[often] > _IMBALANCE * survey.labels[rare]:
        message = f"class {often!r} has {survey.labels[often]} samples, class {rare!r} has {survey.labels[rare]}"
        yield _about(survey, message, counts=dict(survey.labels))


@RULES.rule(
    "DK627",
    "random-calibration-data",
    "warning",
    what="The model is calibrated with random data: not for production.",
    why="Random values have other ranges than real inputs: the result shows that the tools run, not that it works.",
    fix="Give real samples with --calibration.",
    sources=_MEASURED,
)
def check_random(survey: Survey) -> Iterator[Found]:
    """Random data, which somebody asked for."""
    if survey.kind == "random":
        yield _about(survey, "calibrated with random data: not for production")


@RULES.rule(
    "DK628",
    "empty-looking-samples",
    "error",
    what="A calibration sample is constant, or has values that are not finite.",
    why="NaN and infinity make ranges meaningless; a constant sample is usually a failed decode.",
    fix="Remove the sample, and see how it was made.",
    sources=_MEASURED,
)
def check_values(survey: Survey) -> Iterator[Found]:
    """Constant samples and samples that are not finite."""
    if survey.not_finite:
        yield _about(survey, f"not finite: {listed(survey.not_finite)}", samples=list(survey.not_finite))
    if survey.constant:
        yield _about(survey, f"constant: {listed(survey.constant)}", samples=list(survey.constant))
