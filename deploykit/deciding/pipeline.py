"""The main job, stage by stage: read, plan, render, write, verify. Each function is one command of the API.

It joins the stages and decides nothing itself; what a device or an SDK can do is the adapter's business.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from deploykit.contract.backend import Backend, Execution, PackageFile, Progress, Request, Situation, TextFile
from deploykit.contract.plans import Plan
from deploykit.contract.plugins import all_devices, load_backend
from deploykit.contract.targets import Target, find_device
from deploykit.deciding.choice import Chosen, choose_way
from deploykit.deciding.rules import RULES as CHOICE_RULES
from deploykit.errors import DefectError, UsageError
from deploykit.findings import Finding, Severity, exit_status, sort_findings
from deploykit.packages.verifying import VerifyReport, verify_package
from deploykit.packages.writing import PackageWriter, hash_file, read_manifest

if TYPE_CHECKING:
    from deploykit.encodings.values import EncodingSet
    from deploykit.graph.facts import GraphFacts

__all__ = [
    "Packaged",
    "check",
    "make_package",
    "make_packages",
    "make_plan",
    "plan_situation",
    "read_situation",
    "resolve_target",
    "verify",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Packaged:
    """The outcome of the main job. ``package`` is None when the answer was no and nothing was written."""

    plan: Plan
    package: Path | None
    manifest: Path | None
    executed: tuple[str, ...] = ()
    generated: tuple[str, ...] = ()
    findings: tuple[Finding, ...] = ()

    @property
    def exit_status(self) -> int:
        """0 when a package was written and nothing blocks, else 1."""
        return 1 if self.package is None else exit_status(self.findings)

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
            "executed": list(self.executed),
            "generated": list(self.generated),
        }


def resolve_target(request: Request) -> tuple[Backend, Target]:
    """The backend and the device under the wanted SDK version; raises UnknownTargetError."""
    if request.backend is not None:
        backend = load_backend(request.backend)
        device = find_device(backend.devices(), request.target)
        return backend, backend.resolve(device, request.sdk)
    device = find_device(all_devices(), request.target)
    if not device.backends:
        raise UsageError(f"target {device.id}: no installed backend packages for it", next="name one with --backend")
    backend = load_backend(device.backends[0])
    return backend, backend.resolve(device, request.sdk)


def read_situation(request: Request) -> tuple[Backend, Situation]:
    """Everything known before a decision: the target first, because that is cheap, then model and encodings."""
    ((backend, situation),) = read_situations([request])
    return backend, situation


def read_situations(requests: Sequence[Request]) -> list[tuple[Backend, Situation]]:
    """The same for requests that differ in their target only: model and encodings are read once."""
    from deploykit.graph import load_model
    from deploykit.graph.collect import collect_facts

    targets = [resolve_target(request) for request in requests]
    model = load_model(requests[0].model)
    facts = collect_facts(model)
    encodings = _read_encodings(requests[0], facts)
    return [
        (backend, Situation(request=request, model=model, facts=facts, encodings=encodings, target=target))
        for request, (backend, target) in zip(requests, targets, strict=True)
    ]


def _read_encodings(request: Request, facts: GraphFacts) -> EncodingSet | None:
    if request.encodings is None:
        if request.float_tensors is not None:
            raise UsageError("--float-tensors without --encodings", next="give the encodings it belongs to")
        return None
    from deploykit.encodings.reading import read_encodings
    from deploykit.quantization.placement import place

    encodings = read_encodings(request.encodings)
    if request.float_tensors is not None:
        from deploykit.encodings.float_tensors import read_float_tensors, with_float_tensors

        encodings = with_float_tensors(encodings, read_float_tensors(request.float_tensors))
    return place(encodings, facts)


def _core_findings(situation: Situation) -> tuple[Finding, ...]:
    from deploykit.graph.rules import RULES as GRAPH_RULES
    from deploykit.quantization.encodings_on_graph import EncodingsOnGraph
    from deploykit.quantization.rules import RULES as ENCODING_RULES

    graph = GRAPH_RULES.run(situation.facts)
    if situation.encodings is None:
        return graph
    return (*graph, *ENCODING_RULES.run(EncodingsOnGraph(encodings=situation.encodings, facts=situation.facts)))


def make_plan(request: Request, *, progress: Progress | None = None) -> Plan:
    """The decision for one request, nothing written."""
    backend, situation = read_situation(request)
    return _decide(backend, situation, progress or _silent)[1]


def plan_situation(backend: Backend, situation: Situation) -> Plan:
    """The decision for a model as it is; ``lowest_sdk`` asks this for one model under many releases."""
    plan = backend.plan(situation)
    findings = (*situation.target.findings, *_core_findings(situation), *plan.findings)
    return replace(plan, findings=sort_findings(_each_once(findings)))


def _decide(backend: Backend, given: Situation, tell: Progress) -> tuple[Situation, Plan]:
    """The situation to package, which may be a rewritten one, and its plan.

    What is wrong with the model as it was given stays visible: its errors are shown as handled by the rewriting.
    """
    chosen = choose_way(backend, given, tell)
    tell("planning")
    plan = backend.plan(chosen.situation)
    changed = chosen.situation.rewritten or chosen.situation.segments
    avoided = _avoided(backend.plan(given), plan, chosen) if changed else ()
    findings = (*given.target.findings, *_core_findings(given), *CHOICE_RULES.run(chosen), *plan.findings, *avoided)
    return chosen.situation, replace(plan, findings=sort_findings(_each_once(findings)), candidates=chosen.candidates)


def _avoided(before: Plan, after: Plan, chosen: Chosen) -> tuple[Finding, ...]:
    """Errors and warnings of the model as it was given that the rewritten one no longer has."""
    left = {(finding.code, finding.subject.name) for finding in after.findings}
    gone = [finding for finding in before.findings if (finding.code, finding.subject.name) not in left]
    how = chosen.explains or "the graph is rewritten"
    return tuple(finding.with_handled(how) for finding in gone if finding.severity is not Severity.INFO)


def _each_once(findings: Iterable[Finding]) -> list[Finding]:
    """Two stages may see the same thing; the first word stands."""
    kept: dict[tuple[str, str, str], Finding] = {}
    for finding in findings:
        kept.setdefault((finding.code, finding.subject.name, finding.message), finding)
    return list(kept.values())


def check(request: Request) -> tuple[Finding, ...]:
    """Only the findings of a plan."""
    return make_plan(request).findings


def make_package(
    request: Request, out: Path, *, force: bool = False, templates: Path | None = None, progress: Progress | None = None
) -> Packaged:
    """Check, plan, render, write and verify one package; nothing is written when an error is not handled."""
    return make_packages([request], out, force=force, templates=templates, progress=progress)[0]


def make_packages(
    requests: Sequence[Request],
    out: Path,
    *,
    force: bool = False,
    templates: Path | None = None,
    progress: Progress | None = None,
) -> tuple[Packaged, ...]:
    """One package for each request; the requests differ in their target only.

    A single one goes to ``out``, several go to folders below it, named after the devices.
    """
    tell: Progress = progress or _silent
    tell("reading the model and its encodings")
    made = []
    for backend, given in read_situations(requests):
        name = given.target.device.id
        where = out if len(requests) == 1 else out / name
        say = tell if len(requests) == 1 else _prefixed(name, tell)
        made.append(_package(backend, given, where, force=force, templates=templates, tell=say))
    return tuple(made)


def _prefixed(name: str, tell: Progress) -> Progress:
    return lambda line: tell(f"{name}: {line}")


def _package(
    backend: Backend, given: Situation, out: Path, *, force: bool, templates: Path | None, tell: Progress
) -> Packaged:
    situation, plan = _decide(backend, given, tell)
    if not plan.feasible:
        return Packaged(plan=plan, package=None, manifest=None, findings=plan.findings)
    with PackageWriter(out, force=force) as writer:
        tell("rendering")
        writer.add(backend.render(situation, plan, templates))
        execution = _execute(backend, writer, plan, situation, tell)
        writer.record_outputs()
        findings = sort_findings((*plan.findings, *execution.findings))
        writer.add(_documents(plan, situation, execution, findings, templates))
        tell("verifying")
        writer.seal(_manifest(plan, given, execution, findings))
        _assert_sound(verify_package(writer.folder))
        manifest = writer.publish()
    return Packaged(
        plan=plan,
        package=out,
        manifest=manifest,
        executed=execution.executed,
        generated=_generated(plan, execution),
        findings=findings,
    )


def _execute(backend: Backend, writer: PackageWriter, plan: Plan, situation: Situation, tell: Progress) -> Execution:
    if situation.request.compile is False:
        return Execution()
    return backend.execute(writer.folder, plan, situation, tell)


def _assert_sound(report: VerifyReport) -> None:
    bad = [check for check in report.checks if not check.ok]
    if bad:
        raise DefectError(
            "the package that was just written does not verify: "
            + "; ".join(f"{check.id}: {check.detail}" for check in bad)
        )


def _generated(plan: Plan, execution: Execution) -> tuple[str, ...]:
    """The steps that were written down but did not run here."""
    return tuple(step.id for step in plan.steps if step.id not in execution.executed)


def _documents(
    plan: Plan,
    situation: Situation,
    execution: Execution,
    findings: tuple[Finding, ...],
    templates: Path | None,
) -> Iterable[PackageFile]:
    from deploykit.packages.pages import render_readme, render_report

    model_name = situation.request.model.name
    generated = _generated(plan, execution)
    yield TextFile(path="README.md", text=render_readme(plan, model_name, execution, generated, findings, templates))
    yield TextFile(path="report.html", text=render_report(plan, situation, execution, generated, findings, templates))


def _manifest(
    plan: Plan, situation: Situation, execution: Execution, findings: tuple[Finding, ...]
) -> Mapping[str, Any]:
    from importlib.metadata import version

    return {
        "schema": 1,
        "deploykit": version("deploykit"),
        "backend": plan.backend,
        "target": dict(plan.target),
        "sdk": dict(plan.sdk),
        "route": None if plan.route is None else plan.route.to_json(),
        "inputs": _inputs(situation),
        "steps": [step.to_json() for step in plan.steps],
        "precision": {"intended": dict(plan.precision.intended), "expected": dict(plan.precision.expected)},
        "float_tensors": sorted(situation.encodings.floats) if situation.encodings is not None else [],
        "executed": list(execution.executed),
        "generated": list(_generated(plan, execution)),
        "record": dict(execution.record),
        "findings": [finding.to_json() for finding in findings],
    }


def _inputs(situation: Situation) -> list[dict[str, Any]]:
    """What the package was made from, by name and hash; no path of this machine."""
    request = situation.request
    rows = [("model", request.model)]
    rows += [("external-data", external.path) for external in situation.model.external]
    rows += [("encodings", request.encodings)] if request.encodings is not None else []
    rows += [("float-tensors", request.float_tensors)] if request.float_tensors is not None else []
    described = []
    for role, path in rows:
        size, digest = hash_file(path)
        described.append({"role": role, "name": path.name, "bytes": size, "sha256": digest})
    return described


def verify(package: Path, *, numerics: bool = False) -> VerifyReport:
    """Judge a package on disk: integrity, then what the adapter knows about it, then the numbers if asked for."""
    read_manifest(package)
    return verify_package(package, numerics=numerics)


def _silent(line: str) -> None:
    del line
