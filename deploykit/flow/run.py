"""The stage ``run``: compiles, emulates, quantizes or audits whatever can run on this machine. It judges no number.

The reference for judging a package is the model as given, run on the samples of the request.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from deploykit.accuracy.judge.judge import Judge, outputs_of
from deploykit.accuracy.samples.gathering import Samples
from deploykit.accuracy.samples.inputs import Label
from deploykit.accuracy.simulate.simulation import Original, fit_judge, in_float
from deploykit.backend.backend import Aids, AnyBackend, Execution, Same, SharedWork
from deploykit.backend.options import KERNELS
from deploykit.backend.plugins import load_backends
from deploykit.errors import DeploykitError, UsageError
from deploykit.findings import Findings, settled_findings, sort_findings
from deploykit.findings.records import Tell, replace
from deploykit.flow.plan import Decision
from deploykit.flow.samples import samples_of
from deploykit.model.weights import lean_weights

__all__ = ["auditor", "execute", "with_kernels"]


def execute(
    backend: AnyBackend, decision: Decision[Any, Any], folder: Path, shared: SharedWork, tell: Tell
) -> Execution:
    """Has the backend run what it can inside the package folder; nothing if the user does not want it."""
    if decision.given.request.compile is False:
        return Execution()
    given, explored = decision.given, decision.chosen.explored
    reference = explored.reference or decision.chosen.halves

    def tried() -> Samples:
        """The samples that are run; one if they are made up, as these judge
        nothing and an emulator may take minutes for each.
        """
        samples = samples_of(given, shared)
        if samples.may_judge:
            return samples
        return shared.once(("tried", samples), lambda: replace(samples, feeds=samples.varied[:1], points=()))

    def original() -> Original | None:
        return shared.once(("original", Same(given.model.proto), given.encodings, tried(), Same(reference)), judged)

    def judged() -> Original | None:
        """The model as given, in float, and the loss of its encodings or its
        own pairs; None if it does not run on the CPU.

        A float model without encodings is its own reference: more is demanded of the same graph.
        """
        samples, model, facts, encodings = tried(), lean_weights(given.model), given.facts, given.encodings
        try:
            model, facts, pairs = in_float(model, facts, takes_pairs=encodings is None)
            encodings = pairs if encodings is None else encodings
            if encodings is not None and samples.may_judge and (reference is None or samples.label is Label.DERIVED):
                judge, lost = fit_judge(model, facts, encodings, samples)
                return Original(judge=judge, quantization=lost)
            known, alone = outputs_of(model, samples.varied, explored.judge), encodings is None
            judge = Judge(model, facts, samples, same_graph=alone, reference=known)
            return Original(judge=judge, quantization=None if alone else reference, wider=explored.wider)
        except DeploykitError:  # it does not run on the CPU
            return None

    aids = Aids(progress=tell, samples=tried, original=original, shared=shared)
    return backend.execute(folder, decision.prepared, decision.plan, aids)


def auditor(asked: str | None) -> str:
    """The requested backend, or the first that can run single kernels. Raises UsageError if there is none."""
    able = [backend.id for backend in load_backends() if backend.offers("audit")]
    if asked is not None and asked not in able:
        raise UsageError(f"--backend {asked} runs no kernels by themselves", next=f"one that does: {', '.join(able)}")
    if not able:
        raise UsageError("no installed backend runs kernels by themselves", next="install one that does")
    return asked or able[0]


def with_kernels(backend: AnyBackend, decision: Decision[Any, Any], tell: Tell) -> Findings:
    """The plan's findings, with those that running kernels settled marked as handled, and the findings of
    these runs.
    """
    request, findings = decision.given.request, decision.plan.findings
    level = str(request.adapter_options.get(KERNELS.name, "off"))
    # An audit by default is not run if the user wants no compiler asked.
    forbidden = request.compile is False or (level == KERNELS.default and not request.second_opinion)
    if not backend.offers("audit") or level == "off" or forbidden:
        return findings
    audit = backend.audit(decision.prepared, level=level, progress=tell, given=decision.given)
    return tuple(sort_findings((*settled_findings(findings, audit.settled), *audit.findings)))
