"""The samples of one request: gathers them once, derives evidence from them, and finds faults in them.

It runs the float model to observe ranges. It makes no inputs itself and runs no quantizer.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING

import numpy as np
from onnx import ModelProto, helper

from deploykit.accuracy.samples.gathering import Samples, gather
from deploykit.accuracy.samples.inputs import Label, input_specs
from deploykit.accuracy.simulate.sessions import Session
from deploykit.backend.backend import Same, SharedWork, Situation
from deploykit.backend.requests import FLOATS
from deploykit.encodings.backward import Evidence
from deploykit.errors import DeploykitError, InputError
from deploykit.findings import Findings, sort_findings
from deploykit.findings.records import Feeds, Interval
from deploykit.model.facts import GraphFacts
from deploykit.model.load import Model
from deploykit.model.nodes import copy_of
from deploykit.model.weights import lean_weights, load_small_weights

if TYPE_CHECKING:
    from deploykit.accuracy.samples.calibration import Calibration

__all__ = [
    "about_samples",
    "data_findings",
    "evidence_of",
    "largest_seen",
    "observed_ranges",
    "samples_of",
]

_MEANINGFUL = frozenset({Label.GIVEN, Label.RECORDED, Label.DECLARED})
"""The labels of inputs whose values show what a model really sees; derived ones only show what a grid could hold."""
_FEW = "DK621"
"""The guideline on the number of samples, which a measurement replaces if there is one."""


def samples_of(situation: Situation, shared: SharedWork) -> Samples:
    """The best samples for each input of the model as given: given, declared, derived or arbitrary ones.

    Raises InputError for data that does not fit the inputs, UsageError for a declaration that is not valid.
    """
    request, encodings = situation.request, situation.encodings
    key = ("samples", Same(situation.model.proto), encodings, request.calibration, request.inputs)
    known: Samples | None = shared.known(key)
    if known is not None:
        return known
    model = load_small_weights(situation.model)
    if encodings is None and situation.facts.is_qdq:  # a quantized model holds the ranges of its inputs itself
        from deploykit.encodings.qdq import read_qdq

        encodings = read_qdq(model, source=str(situation.model.path))
    declared = {}
    if request.inputs:
        from deploykit.accuracy.samples.calibration import parse_declarations

        declared = parse_declarations(request.inputs, input_specs(situation.facts))
    samples = gather(model, situation.facts, calibration=request.calibration, declared=declared, encodings=encodings)
    return shared.keep(key, samples)


def observed_ranges(model: ModelProto, names: Iterable[str], feeds: Feeds) -> dict[str, Interval]:
    """The lowest and highest finite value of each tensor over all samples, in the float model."""
    wanted = tuple(names)
    ranges = dict[str, Interval]()
    session = Session(model, capture=wanted) if wanted else None
    for values in session.runs(feeds) if session else ():
        for name in wanted:
            finite = values[name][np.isfinite(values[name])]
            low, high = ranges.get(name, (math.inf, -math.inf))
            if finite.size:
                ranges[name] = (min(low, float(finite.min())), max(high, float(finite.max())))
    return ranges


def largest_seen(situation: Situation, shared: SharedWork, names: Collection[str]) -> Mapping[str, float]:
    """The largest magnitude of float tensors on the user's data; empty without data or if it does not fit."""
    asked = situation.request.calibration, situation.request.inputs
    if not names or not any(asked):  # without the user's data nothing is made up, and no weights are read
        return {}
    key = ("largest seen", Same(situation.model.proto), *asked, tuple(names))
    known: Mapping[str, float] | None = shared.known(key)
    if known is not None:
        return known
    found = dict[str, float]()
    with suppress(DeploykitError):
        if (samples := samples_of(situation, shared)).may_judge:
            model = copy_of(lean_weights(situation.model))
            del model.graph.output[:]
            for name in names:  # only one number is kept for each
                model.graph.node.append(helper.make_node("Abs", [name], [f"|{name}|"]))
                model.graph.node.append(helper.make_node("ReduceMax", [f"|{name}|"], [f"max {name}"], keepdims=0))
                model.graph.output.add(name=f"max {name}")
            runs = Session(model).runs(samples.feeds)
            found = {name: max(float(run[f"max {name}"]) for run in runs) for name in names}
    return shared.keep(key, found)


def evidence_of(model: ModelProto, samples: Samples) -> Evidence:
    """The evidence of samples for each input: none for made-up inputs, and none for tensors that depend on them."""
    labels = {name: source.label for name, source in samples.of_inputs.items()}
    inputs = frozenset(name for name, label in labels.items() if label in _MEANINGFUL)
    declared = {}
    for name in (name for name in inputs if labels[name] is Label.DECLARED):
        # The feeds of a declared range hold both of its ends.
        values = [feed[name] for feed in samples.feeds]
        declared[name] = (min(float(one.min()) for one in values), max(float(one.max()) for one in values))

    def observe(names: Collection[str]) -> dict[str, Interval]:
        return observed_ranges(model, names, samples.feeds)

    words = samples.described_for_humans
    return Evidence(inputs=inputs, declared=declared, observe=observe if inputs else None, words=words)


def data_findings(given: Situation, shared: SharedWork) -> Findings:
    """The findings about a request's samples; empty without samples, and for a reader, which is not run here."""
    given = given.unturned or given  # pictures are recognized by their channels, which the rules look for first
    source, model, facts = given.request.calibration, given.model, given.facts
    if source is None:
        return ()
    from deploykit.accuracy.samples.calibration import load_calibration, parse_declarations
    from deploykit.accuracy.samples.data_quality import LOOKED_AT, MOST
    from deploykit.accuracy.samples.images import can_decode

    key = ("data findings", Same(model.proto), given.encodings, source, given.request.precision)
    known: Findings | None = shared.known(key)
    if known is not None:
        return known
    inputs = input_specs(facts)
    calibration = load_calibration(source, inputs)
    if calibration.kind == "reader":
        return ()
    gives_ranges = given.encodings is None and not facts.is_qdq and given.request.precision not in (None, *FLOATS)
    feeds: Feeds = ()
    available = 0
    # The survey reports data that does not fit; an input that would be made up tells nothing.
    with suppress(InputError):
        if calibration.kind == "arrays" or can_decode():
            declared, most = parse_declarations(given.request.inputs, inputs), MOST if gives_ranges else LOOKED_AT
            samples = gather(load_small_weights(model), facts, calibration=source, declared=declared, most=most)
            if samples.label in (Label.GIVEN, Label.DECLARED):
                feeds, available = samples.feeds, samples.available
    found = about_samples(model, facts, calibration, feeds, available=available, gives_ranges=gives_ranges)
    return shared.keep(key, found)


def about_samples(
    model: Model,
    facts: GraphFacts,
    calibration: Calibration,
    feeds: Feeds,
    *,
    available: int,
    gives_ranges: bool,
) -> Findings:
    """The findings about data of which some ``feeds`` were read; ``feeds`` is empty if it is not decoded here.

    With ``gives_ranges`` a quantizer takes its ranges from the data: then it is
    also checked for size and for balanced classes.
    """
    from deploykit.accuracy.samples.data_quality import data_fit, range_growth, survey, takes_pictures
    from deploykit.accuracy.samples.data_rules import FIT_RULES, GUIDELINE_RULES, DataFit

    all_read = gives_ranges and 0 < available == len(feeds)
    growth = None
    # Only if all samples were read, and if the model runs here and has no empty tensors.
    with suppress(InputError):
        growth = range_growth(lean_weights(model), facts, feeds) if all_read else None
    labels = Counter(calibration.labels.values()) if gives_ranges else {}
    fit = DataFit(origin=calibration.origin, growth=growth, labels=labels, unused=calibration.unused)
    if feeds:
        weights = lean_weights(model) if takes_pictures(facts) else load_small_weights(model)
        with suppress(InputError):  # if the first layers do not run here, the code that runs the model says so
            fit = data_fit(weights, facts, feeds, fit)
    found = list(FIT_RULES.run(fit))
    if gives_ranges:
        with suppress(InputError):  # an input without a rank is reported elsewhere
            guidelines = GUIDELINE_RULES.run(survey(calibration, input_specs(facts)))
            found += [finding for finding in guidelines if growth is None or finding.code != _FEW]
    return sort_findings(found)
