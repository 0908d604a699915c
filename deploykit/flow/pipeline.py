"""The main job, stage by stage: read, decide, render, execute, write, verify. Each function is one command of the API.

It joins the stages and decides nothing itself; what a device or an SDK can do is the adapter's business.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import onnx

from deploykit.accuracy.samples.recording import RECORDED_FILE, record
from deploykit.backend.backend import (
    Aids,
    AnyBackend,
    Backend,
    BytesFile,
    Execution,
    PackageFile,
    Progress,
    Request,
    Situation,
    TextFile,
)
from deploykit.backend.kept import Kept
from deploykit.backend.plans import Plan, Step
from deploykit.backend.plugins import load_backends
from deploykit.backend.status import Correctness, Status
from deploykit.errors import DefectError, InputError, PackageError
from deploykit.findings import Finding, exit_status, sort_findings
from deploykit.flow.decision import Decision, decide
from deploykit.flow.drawn_detections import drawn_detections
from deploykit.flow.quantizing.step import quantized_situation
from deploykit.flow.reading import read_situation, read_situations, resolve_target
from deploykit.flow.sampling import samples_of
from deploykit.flow.steps import DECIDING, QUANTIZING, RUNNING, VERIFYING, WRITING, steps_to
from deploykit.model.load import blaming
from deploykit.packages.recorded_decision import recorded_decision, recorded_quantization
from deploykit.packages.sbom import SBOM, sbom_text
from deploykit.packages.verifying import VerifyReport, verify_package
from deploykit.packages.writing import PackageWriter
from deploykit.report.pages import render_readme, render_report
from deploykit.system.steps import Steps, prefixed

__all__ = ["Packaged", "each_package", "make_package", "make_packages", "make_plan", "verify"]

QUANTIZE = "quantize"
"""The step that makes encodings out of a float model, before anything is planned."""

P = TypeVar("P")
D = TypeVar("D")


@dataclass(frozen=True, slots=True, kw_only=True)
class Output:
    """How a package is put on disk. ``templates`` is a folder of the user's own, ``link`` shares large files."""

    force: bool = False
    templates: Path | None = None
    sbom: bool = False
    link: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Packaged:
    """The outcome of the main job. ``package`` is None when the answer was no and nothing was written.

    ``digest`` is what ``deploykit verify --expect-digest`` takes.
    """

    plan: Plan[Any]
    package: Path | None
    manifest: Path | None
    digest: str = ""
    executed: tuple[str, ...] = ()
    generated: tuple[str, ...] = ()
    findings: tuple[Finding, ...] = ()
    status: Status = field(default_factory=Status)

    @property
    def exit_status(self) -> int:
        """0 when a package was written, nothing blocks, nothing was refused and nothing is wrong; else 1."""
        return 1 if self.package is None or not self.status.good else exit_status(self.findings)

    def to_json(self) -> dict[str, Any]:
        """The published shape of ``deploykit package --json``."""
        return {
            "backend": self.plan.backend,
            "target": dict(self.plan.target),
            "sdk": dict(self.plan.sdk),
            "route": None if self.plan.route is None else self.plan.route.to_json(),
            "rejected": [rejected.to_json() for rejected in self.plan.rejected],
            "findings": [finding.to_json() for finding in sort_findings(self.findings)],
            "package": None if self.package is None else str(self.package),
            "manifest": None if self.manifest is None else str(self.manifest),
            "digest": self.digest or None,
            "executed": list(self.executed),
            "generated": list(self.generated),
            "status": self.status.to_json(),
        }


def make_plan(request: Request, *, progress: Progress | None = None) -> Plan[Any]:
    """The decision for one request, nothing written."""
    tell: Progress = progress or _silent
    with blaming(request.model):
        backend, situation = read_situation(request)
        steps = steps_to(DECIDING, backend, situation, tell)
        steps.begin(QUANTIZING)
        quantized = quantized_situation(backend, situation, tell)
        steps.begin(DECIDING)
        return decide(backend, quantized, Kept(), tell).plan


def make_package(request: Request, out: Path, *, progress: Progress | None = None, **output: Any) -> Packaged:
    """Check, plan, render, write and verify one package; nothing is written when an error is not handled.

    ``output`` are the fields of ``Output``, as for all of these functions.
    """
    return make_packages([request], out, progress=progress, **output)[0]


def make_packages(
    requests: Sequence[Request], out: Path, *, progress: Progress | None = None, **output: Any
) -> tuple[Packaged, ...]:
    """One package for each request; the requests differ in their target only.

    A single one goes to ``out``, several go to folders below it, named after the devices.
    """
    tell: Progress = progress or _silent
    several = len(requests) > 1
    names = [resolve_target(request)[1].device.id for request in requests] if several else []
    made = each_package(
        requests,
        [out / name for name in names] if several else [out],
        progress=[prefixed(name, tell) for name in names] if several else [tell],
        **output,
    )
    return tuple(make() for make in made)


def each_package(
    requests: Sequence[Request], outs: Sequence[Path], *, progress: Sequence[Progress], **output: Any
) -> Iterator[Callable[[], Packaged]]:
    """What makes the package of each request when it is called, in order; model and prepared work are shared.

    The requests differ in their target, backend and SDK only. Raises as ``make_package`` does for what they share.
    """
    kept, how = Kept(), Output(**output)
    for tell in progress[:1]:
        tell("reading the model and its encodings")
    with blaming(*dict.fromkeys(request.model for request in requests)):
        situations = read_situations(requests)
    for (backend, given), out, tell in zip(situations, outs, progress, strict=True):

        def make(
            backend: AnyBackend = backend, given: Situation = given, out: Path = out, tell: Progress = tell
        ) -> Packaged:
            steps = steps_to(VERIFYING, backend, given, tell)
            with blaming(given.request.model):
                steps.begin(QUANTIZING)
                quantized = quantized_situation(backend, given, tell)
                return _package(backend, quantized, out, kept, how, steps, tell)

        yield make


def _package(
    backend: Backend[P, D],
    given: Situation,
    out: Path,
    kept: Kept,
    how: Output,
    steps: Steps,
    tell: Progress,
    *,
    avoided: tuple[Finding, ...] = (),
    seen: Correctness | None = None,
) -> Packaged:
    """One package; ``avoided`` is what an earlier try failed at, which this one gets over; ``seen`` how right."""
    steps.begin(DECIDING)
    decision = decide(backend, given, kept, tell)
    plan = decision.plan
    if not plan.feasible:
        return Packaged(plan=plan, package=None, manifest=None, findings=plan.findings)
    with PackageWriter(out, force=how.force, link=how.link, tell=tell) as writer:
        steps.begin(WRITING)
        writer.add(backend.render(decision.prepared, plan, how.templates))
        steps.begin(RUNNING)
        execution = _execute(backend, writer, decision, kept, tell)
        other = execution.instead
        if other is not None and not avoided:
            again = _package(
                backend,
                replace(given, request=other.request),
                out,
                kept,
                how,
                steps,
                tell,
                avoided=(*other.over(execution.findings), *other.findings),
                seen=other.right,
            )
            if again.package is not None:
                return again
        writer.record_outputs()
        findings = sort_findings((*execution.settle(plan.findings), *execution.with_avoided(avoided)))
        status = Status(compiled=execution.compiled, right=execution.right or seen or decision.right)
        recorded = _record_samples(writer, decision)
        writer.add(_documents(decision, writer, execution, status, findings, how.templates))
        steps.begin(VERIFYING)
        manifest_rows = {**_manifest(decision, execution, status, findings, writer), "samples": recorded}
        writer.add([TextFile(path=SBOM, text=sbom_text(manifest_rows))] if how.sbom else [])
        writer.seal(manifest_rows)
        _assert_sound(writer, given.request.model)
        manifest = writer.publish()
    return Packaged(
        plan=plan,
        package=out,
        manifest=manifest,
        digest=writer.digest,
        executed=_executed(given, execution),
        generated=_generated(plan, execution),
        findings=findings,
        status=status,
    )


def _execute(
    backend: Backend[P, D], writer: PackageWriter, decision: Decision[P, D], kept: Kept, tell: Progress
) -> Execution:
    if decision.given.request.compile is False:
        return Execution()
    aids = Aids(
        progress=tell,
        samples=partial(samples_of, decision.given, kept),
        opinion=next((known for known in load_backends() if known.offers("preflight")), None),
    )
    return backend.execute(writer.folder, decision.prepared, decision.plan, aids)


def _record_samples(writer: PackageWriter, decision: Decision[P, D]) -> Mapping[str, Any] | None:
    """Keep a few of the samples that were judged on, so that verification years later judges on the same data."""
    samples = decision.chosen.samples
    if samples is None or not samples.may_judge:
        return None
    recording = record(samples, keep=decision.given.request.keep_samples)
    if recording.data is not None:
        writer.add([BytesFile(path=RECORDED_FILE, data=recording.data)])
    return recording.to_json()


def _assert_sound(writer: PackageWriter, model: Path) -> None:
    """DefectError where the package does not verify, or InputError where the model was not valid to begin with."""
    try:
        report = verify_package(writer.folder, witnessed=writer.witnessed)
    except PackageError as error:
        raise DefectError(f"the package that was just written cannot be read: {error.why or error.what}") from error
    bad = [check for check in report.checks if not check.ok]
    if bad:
        _refuse_invalid(model)
        raise DefectError(
            "the package that was just written does not verify: "
            + "; ".join(f"{check.id}: {check.detail}" for check in bad)
        )


def _refuse_invalid(model: Path) -> None:
    """Readers differ in what they let pass; what is written of a model that breaks ONNX's rules breaks them too."""
    try:
        onnx.checker.check_model(str(model))
    except (onnx.checker.ValidationError, ValueError, RuntimeError) as error:
        why = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise InputError(f"{model}: not a valid ONNX model", why=why, next="export the model again") from None


def _generated(plan: Plan[Any], execution: Execution) -> tuple[str, ...]:
    """The steps that were written down but did not run here."""
    return tuple(step.id for step in plan.steps if step.id not in execution.executed)


def _documents(
    decision: Decision[Any, Any],
    writer: PackageWriter,
    execution: Execution,
    status: Status,
    findings: tuple[Finding, ...],
    templates: Path | None,
) -> Iterable[PackageFile]:
    plan, situation, files = decision.plan, decision.situation, tuple(writer.records.values())
    model_name = situation.request.model.name
    generated = _generated(plan, execution)
    execution = replace(execution, executed=_executed(situation, execution))
    readme = render_readme(plan, model_name, execution, generated, status, findings, templates)
    yield TextFile(path="README.md", text=readme)
    drawn = drawn_detections(decision, execution)
    report = render_report(
        plan, situation, decision.changes, execution, generated, status, findings, files, templates, drawn
    )
    yield TextFile(path="report.html", text=report)


def _manifest(
    decision: Decision[Any, Any],
    execution: Execution,
    status: Status,
    findings: tuple[Finding, ...],
    writer: PackageWriter,
) -> Mapping[str, Any]:
    from importlib.metadata import version

    plan, situation = decision.plan, decision.given
    return {
        "schema": 1,
        "deploykit": version("deploykit"),
        "backend": plan.backend,
        "target": dict(plan.target),
        "sdk": dict(plan.sdk),
        "route": None if plan.route is None else plan.route.to_json(),
        "decision": recorded_decision(plan, decision.changes),
        "inputs": _inputs(situation, writer),
        "steps": [*_quantizing(situation), *(step.to_json() for step in plan.steps)],
        "precision": {"intended": dict(plan.precision.intended), "expected": dict(plan.precision.expected)},
        "float_tensors": sorted(situation.encodings.floats) if situation.encodings is not None else [],
        "executed": list(_executed(situation, execution)),
        "generated": list(_generated(plan, execution)),
        "quantization": recorded_quantization(situation),
        "record": dict(execution.record),
        "status": status.to_json(),
        "findings": [finding.to_json() for finding in findings],
    }


def _executed(situation: Situation, execution: Execution) -> tuple[str, ...]:
    """What ran here, in order; the quantizer where it made the encodings."""
    return (*(() if situation.quantized is None else (QUANTIZE,)), *execution.executed)


def _quantizing(situation: Situation) -> tuple[dict[str, Any], ...]:
    """The quantizer as a step: what it was given and what it left, by the roles of ``inputs``."""
    if situation.quantized is None:
        return ()
    record = situation.quantized.record
    step = Step(
        id=QUANTIZE,
        tool=str(record["quantizer"]),
        argv=(),
        inputs=("float-model", "calibration"),
        outputs=("model", "encodings"),
        note="ran before the package was planned; 'quantization' holds its account",
    )
    return (step.to_json(),)


def _inputs(situation: Situation, writer: PackageWriter) -> list[dict[str, Any]]:
    """What the package was made from, by name and hash; no path of this machine."""
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


def verify(
    package: Path, *, numerics: bool = False, expect_digest: str | None = None, allowed_signers: Path | None = None
) -> VerifyReport:
    """Judge a package on disk: integrity, then what the adapter knows about it, then the numbers if asked for."""
    return verify_package(package, numerics=numerics, expect_digest=expect_digest, allowed_signers=allowed_signers)


def _silent(line: str) -> None:
    del line
