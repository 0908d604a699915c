"""The stage ``prepare``: works out the request, surveys its calibration data, and runs the rules on both."""

from __future__ import annotations

from pathlib import Path

from deploykit.accuracy.samples.calibration import Calibration, load_calibration
from deploykit.accuracy.samples.data_quality import survey
from deploykit.accuracy.samples.data_rules import GUIDELINE_RULES, Survey
from deploykit.accuracy.samples.inputs import InputSpec, input_specs
from deploykit.backend.backend import Situation
from deploykit.errors import InputError, UsageError
from deploykit.findings import Findings
from deploykit.findings.records import Record
from deploykit_vitis_ai.draft import QuarkDraft, make_draft
from deploykit_vitis_ai.rules import model, request

__all__ = ["DRAFT_REGISTRIES", "QuarkPrepared", "prepare"]

# The rules that judge a draft before the plan is made.
DRAFT_REGISTRIES = (request.RULES, model.RULES)


class QuarkPrepared(Record, kw_only=False):
    """The draft with its data. ``files`` maps package paths to the user's data files."""

    draft: QuarkDraft
    inputs: tuple[InputSpec, ...] = ()
    calibration: Calibration | None = None
    survey: Survey | None = None
    files: tuple[tuple[str, Path], ...] = ()
    findings: Findings = ()


def prepare(situation: Situation) -> QuarkPrepared:
    """Works out the request and reads the calibration data. Raises UsageError for options that make no sense."""
    draft = make_draft(situation)
    found = tuple(finding for registry in DRAFT_REGISTRIES for finding in registry.run(draft))
    try:
        inputs = input_specs(draft.facts)
    except InputError:  # the rank is unknown, which VAI121 reports
        return QuarkPrepared(draft, findings=found)
    source = situation.request.calibration
    if draft.random_data and draft.needs_quark:
        seen = Survey("random", "random data", samples=0)
        return QuarkPrepared(draft, inputs, survey=seen, findings=(*found, *GUIDELINE_RULES.run(seen)))
    if source is None or not (draft.needs_quark or draft.precision == "bf16"):
        return QuarkPrepared(draft, inputs, findings=found)
    calibration = load_calibration(source, inputs)
    if calibration.sound is not None:
        raise UsageError(
            f"{source}: sounds are not read by the quantizer's script",
            next="save what the model reads as .npz, one array for each input",
        )
    seen = survey(calibration, inputs)
    bad = {name for name, *_ in seen.unusable}
    usable = [path for path in calibration.files if path.name not in bad]
    return QuarkPrepared(
        draft,
        inputs,
        calibration=calibration,
        survey=seen,
        files=tuple((f"calibration/{i:05}_{path.name}", path) for i, path in enumerate(usable)),
        findings=(*found, *GUIDELINE_RULES.run(seen)),
    )
