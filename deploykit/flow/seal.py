"""The stage ``seal``: writes results and findings into the manifest, checks the folder, and publishes it as a whole."""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import onnx

from deploykit.accuracy.judge.kinds import Reading
from deploykit.accuracy.latency import Estimate
from deploykit.accuracy.samples.domains import encoded_range
from deploykit.accuracy.samples.gathering import EXPECTED_FILE, RECORDED_FILE, record, record_expected
from deploykit.accuracy.simulate.simulation import rounding_shows
from deploykit.backend.backend import BytesFile, Execution, Instead, SharedWork, Situation, TextFile
from deploykit.backend.plans import Plan, Step
from deploykit.backend.status import Compiled, Correctness, PackageStatus, Right
from deploykit.errors import DefectError, DeploykitError, InputError, PackageError
from deploykit.findings import Findings, exit_status, settled_findings, sort_findings
from deploykit.findings.records import Json, Names, Published, Record, plain, published, replace
from deploykit.flow.plan import Decision
from deploykit.flow.render import documents
from deploykit.flow.samples import samples_of
from deploykit.model.collect import constant_value
from deploykit.model.facts import changes_between
from deploykit.model.load import load_model
from deploykit.model.weights import lean_weights
from deploykit.packages.sbom import SBOM, sbom_text
from deploykit.packages.verifying import verify_package
from deploykit.packages.writing import PackageWriter

__all__ = ["Output", "Packaged", "RanPackage", "seal"]

_MOST_CHANGES = 200
"""The most changes in a manifest: for a model with a thousand equal blocks the first ones and their number
say enough.
"""

QUANTIZE = "quantize"
"""The step that makes encodings for a float model, before planning."""


class Output(Record):
    """How a package is written. ``templates`` is a folder of the user's own templates, ``link`` shares large files."""

    force: bool = False
    templates: Path | None = None
    sbom: bool = False
    link: bool = False


class Packaged(Published):
    """The outcome of packaging. ``package`` is None if it was refused and nothing was written.

    ``digest`` is the value for ``deploykit verify --expect-digest``.
    """

    plan: Plan[Any]
    package: Path | None
    manifest: Path | None
    digest: str = ""
    executed: Names = ()
    generated: Names = ()
    findings: Findings
    status: PackageStatus = PackageStatus()
    estimate: Estimate | None = None

    @property
    def exit_status(self) -> int:
        """0 if a package was written, nothing blocks, nothing was refused and nothing is wrong; else 1."""
        return 1 if self.package is None or not self.status.good else exit_status(self.findings)

    def as_published(self) -> Json:
        """The JSON of ``deploykit package``."""
        decided = {name: getattr(self.plan, name) for name in ("backend", "target", "sdk", "route", "rejected")}
        told = {**decided, **published(self, without=("plan",))}
        return {**told, "findings": sort_findings(self.findings), "digest": self.digest or None}


class RanPackage(Record):
    """A decision, its unpublished folder, and the results of the run there.

    ``asked_by`` is why this package was made after another one; ``avoided``
    are the findings of those before it, as handled.
    """

    decision: Decision[Any, Any]
    writer: PackageWriter
    execution: Execution
    asked_by: Instead | None
    avoided: Findings

    @property
    def findings(self) -> Findings:
        """The findings of plan and execution, with the avoided ones and the reason for a second package."""
        settled = settled_findings(self.decision.plan.findings, self.execution.settled)
        said = () if self.asked_by is None else self.asked_by.findings
        # A finding that came again was not avoided.
        found = {finding.about for finding in self.execution.findings}
        gone = (finding for finding in (*self.avoided, *said) if finding.about not in found)
        return sort_findings((*settled, *self.execution.findings, *gone))

    @property
    def right(self) -> Correctness:
        """The verdict of the run, else of a trial, else of the simulation, whose yes is void if a compiler refused."""
        tried = None if self.asked_by is None else self.asked_by.right
        right = self.execution.right or tried or self.decision.plan.right
        if self.execution.compiled.state is Compiled.REFUSED and right.state is Right.YES:
            return replace(right, state=Right.NOT_JUDGED, why=f"nothing runs; simulated by itself, {right.why}")
        return right


def seal(ran: RanPackage, out: Path, how: Output, shared: SharedWork) -> Packaged:
    """Adds documents, samples and the manifest, verifies the folder, and publishes it.

    Raises DefectError if it does not verify, InputError if the given model is not valid.
    """
    decision, writer, execution, plan = ran.decision, ran.writer, ran.execution, ran.decision.plan
    writer.record_outputs()
    findings = ran.findings
    right, doubt = ran.right, _doubt(ran, shared)
    if doubt:
        right = replace(right, state=Right.NOT_JUDGED, why=f"{doubt}; beside that copy the package has {right.why}")
    status = PackageStatus(compiled=execution.compiled, right=right)
    generated = tuple(step.id for step in plan.steps if step.id not in execution.executed)
    quantized = () if decision.given.quantized is None else (QUANTIZE,)
    execution = replace(execution, executed=(*quantized, *execution.executed))
    samples = _recorded_samples(ran, shared)
    given, facts = decision.given, decision.given.facts
    changes = changes_between(facts, decision.chosen.situation.facts)
    holds = partial(encoded_range, facts, partial(constant_value, given.model), given.encodings)
    account: Json = {}
    quantizing: tuple[Step, ...] = ()
    if given.quantized is not None:
        account = dict(given.quantized.record)
        # The quantizer as a step, with its inputs and outputs by the roles in ``inputs``.
        step = Step(
            QUANTIZE,
            tool=str(account["quantizer"]),
            argv=(),
            inputs=("float-model", "calibration"),
            outputs=("model", "encodings"),
            note="ran before the package was planned; 'quantization' holds its account",
        )
        quantizing = (step,)
    ladder = {} if given.ladder is None else {"ladder": dict(given.ladder)}  # also if it led to float16
    writer.add(documents(decision, changes, writer, execution, status, findings, generated, how.templates))
    manifest = {
        "schema": 1,
        "deploykit": version("deploykit"),
        "backend": plan.backend,
        "target": plan.target,
        "sdk": plan.sdk,
        "route": plan.route,
        "decision": {
            "assumed": plan.assumed,
            "rejected": plan.rejected,
            "alternatives": plan.alternatives,
            "candidates": plan.candidates,
            "changed_places": len(changes),
            "changes": changes[:_MOST_CHANGES],
        },
        "inputs": _inputs(given, writer),
        "io": [
            {"name": name, "kind": kind, "type": facts.tensors[name].dtype, "shape": facts.tensors[name].shape}
            | ({"layout": "nhwc"} if name in facts.channel_last else {})
            | ({"range": (held.low.min(), held.high.max())} if (held := holds(name)) else {})
            for kind, names in (("input", facts.inputs), ("output", facts.outputs))
            for name in names
        ],
        "steps": (*quantizing, *plan.steps),
        "precision": {"intended": plan.precision.intended, "expected": plan.precision.expected},
        "float_tensors": [] if given.encodings is None else sorted(given.encodings.floats),
        "executed": execution.executed,
        "generated": generated,
        "quantization": {**account, **ladder} or None,
        "record": execution.record,
        "estimate": execution.estimate,
        "status": status,
        "findings": findings,
        "samples": samples,
        "reading": replace(Reading.of(facts), doubt=doubt) if samples and not facts.channel_last else None,
    }
    manifest = plain(manifest)
    writer.add([TextFile(SBOM, sbom_text(manifest))] if how.sbom else [])
    writer.seal(manifest)
    _assert_sound(writer, given.request.model)
    return Packaged(
        plan=plan,
        package=out,
        manifest=writer.publish(),
        digest=writer.digest,
        executed=execution.executed,
        generated=generated,
        findings=findings,
        status=status,
        estimate=execution.estimate,
    )


def _doubt(ran: RanPackage, shared: SharedWork) -> str:
    """Why a yes says nothing of the model as it was handed in; "" where it does, or there is no yes."""
    given = ran.decision.given
    with suppress(DeploykitError):  # it does not run here
        if ran.right.state is Right.YES:
            model = given.model if given.quantized is None else load_model(given.quantized.model)
            return rounding_shows(lean_weights(model), samples_of(given, shared))
    return ""


def _recorded_samples(ran: RanPackage, shared: SharedWork) -> Json | None:
    """Records a few of the samples judged on, so that verification years later can judge on the same data."""
    decision, writer, samples = ran.decision, ran.writer, ran.decision.chosen.samples
    if samples is None and ran.execution.right is not None:  # nothing was simulated, but the run was judged
        with suppress(DeploykitError):  # a backend may read data that is not decoded here
            samples = samples_of(decision.given, shared)
    if samples is None or not samples.may_judge:
        return None
    told, data = record(samples, keep=decision.given.request.keep_samples)
    # A backend may have written samples in its own form: these stay.
    if data is not None and RECORDED_FILE not in writer.records:
        writer.add([BytesFile(RECORDED_FILE, data)])
    # What the float model gives for them: a packaged model is judged by it, not by itself.
    judge = decision.chosen.explored.judge
    paths = writer.records
    is_other = not decision.given.facts.is_qdq or any(path.startswith("encodings/") for path in paths)
    if data is not None and judge is not None and is_other and EXPECTED_FILE not in paths:
        expected = record_expected(judge.feeds, {"float": judge.reference}, samples.label)
        writer.add([BytesFile(EXPECTED_FILE, expected)] if expected else [])
    return told


def _inputs(situation: Situation, writer: PackageWriter) -> list[dict[str, object]]:
    """The inputs of the package by name and hash; without paths of this machine."""
    request = situation.request
    rows = [] if situation.quantized is None else [("float-model", situation.quantized.model)]
    rows += [("model", request.model)]
    rows += [("external-data", external.path) for external in situation.model.external]
    rows += [("encodings", request.encodings)] if request.encodings is not None else []
    rows += [("float-tensors", request.float_tensors)] if request.float_tensors is not None else []
    own = {name: value for name, value in request.adapter_options.items() if isinstance(value, Path)}
    rows += [(name.replace("_", "-"), path) for name, path in own.items() if path.is_file()]
    described = []
    for role, path in rows:
        size, digest = writer.witnessed.hash(path)
        described.append({"role": role, "name": path.name, "bytes": size, "sha256": digest})
    return described


def _assert_sound(writer: PackageWriter, model: Path) -> None:
    try:
        report = verify_package(writer.folder, witnessed=writer.witnessed)
    except PackageError as error:
        raise DefectError(f"the package that was just written cannot be read: {error.why or error.what}") from error
    bad = "; ".join(f"{check.id}: {check.detail}" for check in report.checks if not check.ok)
    if not bad:
        return
    # Readers differ in what they accept; a model that breaks ONNX's rules makes a package that does so, too.
    try:
        onnx.checker.check_model(str(model))
    except (onnx.checker.ValidationError, ValueError, RuntimeError) as error:
        why = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise InputError(f"{model}: not a valid ONNX model", why=why, next="export the model again") from None
    raise DefectError(f"the package that was just written does not verify: {bad}")
