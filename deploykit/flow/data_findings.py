"""What there is to say about the user's samples: how they fit the model, and whether ranges may be taken from them.

It joins what is measured with the rules, for every command that is given samples. It runs no quantizer.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from deploykit.accuracy.samples.data_fit import LOOKED_AT, DataFit, data_fit, takes_pictures
from deploykit.accuracy.samples.data_rules import RULES as FIT_RULES
from deploykit.accuracy.samples.gathering import Samples, gather
from deploykit.accuracy.samples.guidelines import RULES as GUIDELINES
from deploykit.accuracy.samples.image_samples import can_decode
from deploykit.accuracy.samples.inputs import input_specs
from deploykit.accuracy.samples.labels import Label
from deploykit.accuracy.samples.range_growth import MOST, RangeGrowth, range_growth
from deploykit.accuracy.samples.sources import Calibration, load_calibration
from deploykit.accuracy.samples.survey import survey
from deploykit.backend.backend import Situation
from deploykit.backend.kept import Kept, Same
from deploykit.errors import InputError
from deploykit.findings import Finding, sort_findings
from deploykit.flow.sampling import declarations
from deploykit.model.weights import lean_weights, load_small_weights

if TYPE_CHECKING:
    from onnx import ModelProto

    from deploykit.accuracy.simulate.sessions import Feed
    from deploykit.model import Model
    from deploykit.model.facts import GraphFacts

__all__ = ["about_samples", "data_findings"]

_FLOATS = (None, "fp32", "fp16", "bf16")
_FEW, _CLASSES = "DK621", "DK626"
"""Guidelines that a measurement, or a rule that is stricter, stands for here."""


def data_findings(given: Situation, kept: Kept) -> tuple[Finding, ...]:
    """About the samples of a request; nothing without any, and of a reader, which is not run here, nothing either."""
    source = given.request.calibration
    if source is None:
        return ()
    key = ("data findings", Same(given.model.proto), Same(given.encodings), source, given.request.precision)
    return kept.once(key, lambda: _of_situation(given, source))


def _of_situation(given: Situation, source: Path) -> tuple[Finding, ...]:
    calibration = load_calibration(source)
    if calibration.kind == "reader":
        return ()
    model, facts = given.model, given.facts
    gives_ranges = given.encodings is None and not facts.is_qdq and given.request.precision not in _FLOATS
    samples = (
        _read(given, source, MOST if gives_ranges else LOOKED_AT)
        if calibration.kind == "arrays" or can_decode()
        else None
    )
    feeds = () if samples is None else samples.feeds
    count = 0 if samples is None else samples.available
    return about_samples(model, facts, calibration, feeds, available=count, gives_ranges=gives_ranges)


def _read(given: Situation, source: Path, most: int) -> Samples | None:
    """The samples; None where an input would have to be made up, and where they do not fit, which the survey says."""
    try:
        declared = declarations(given.request, given.facts)
        model = load_small_weights(given.model)
        samples = gather(model, given.facts, calibration=source, declared=declared, most=most)
    except InputError:
        return None
    return samples if samples.label in (Label.GIVEN, Label.DECLARED) else None


def about_samples(
    model: Model,
    facts: GraphFacts,
    calibration: Calibration,
    feeds: Sequence[Feed],
    *,
    available: int,
    gives_ranges: bool,
) -> tuple[Finding, ...]:
    """The findings about data of which some ``feeds`` were read, none where it is not decoded here.

    With ``gives_ranges`` the data is what a quantizer takes its ranges from: then it is also asked whether there is
    enough of it, and whether its classes are alike in number.
    """
    settled = gives_ranges and 0 < available == len(feeds)
    growth = _growth(lean_weights(model), facts, feeds) if settled else None  # of some of many nothing is known
    labels = Counter(calibration.labels.values()) if gives_ranges else {}
    fit = DataFit(origin=calibration.origin, growth=growth, labels=labels)
    if feeds:
        weights = lean_weights(model) if takes_pictures(facts) else load_small_weights(model)
        with suppress(InputError):  # the first layers do not run here: whoever runs the model says so
            fit = data_fit(weights, facts, feeds, origin=calibration.origin, growth=growth, labels=labels)
    found = list(FIT_RULES.run(fit))
    if gives_ranges:
        said = {_CLASSES} if growth is None else {_CLASSES, _FEW}
        found += [finding for finding in _guidelines(calibration, facts) if finding.code not in said]
    return sort_findings(found)


def _guidelines(calibration: Calibration, facts: GraphFacts) -> tuple[Finding, ...]:
    try:
        inputs = input_specs(facts)
    except InputError:  # an input without a rank is told by whoever wants one
        return ()
    return GUIDELINES.run(survey(calibration, inputs))


def _growth(model: ModelProto, facts: GraphFacts, feeds: Sequence[Feed]) -> RangeGrowth | None:
    """None as well where the whole model does not run here, or holds tensors without elements."""
    try:
        return range_growth(model, facts, feeds)
    except InputError:
        return None
