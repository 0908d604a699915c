"""The commands about one model: they call the stages one after the other and decide nothing themselves."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from deploykit.accuracy.latency import Estimate
from deploykit.backend.backend import AnyBackend, Instead, Request, SharedWork, Situation
from deploykit.backend.options import KERNELS
from deploykit.backend.plans import Plan
from deploykit.errors import UsageError
from deploykit.findings import Finding, Findings
from deploykit.findings.records import Record, Tell, replace, silent
from deploykit.flow.plan import Decision, decide
from deploykit.flow.quantizing.step import quantized_situation, quantizes
from deploykit.flow.read import read_situation, read_situations, resolve_target, with_turned_borders
from deploykit.flow.run import auditor, execute, with_kernels
from deploykit.flow.seal import Output, Packaged, RanPackage, seal
from deploykit.model.load import blaming
from deploykit.model.rules import RULES as GRAPH_RULES
from deploykit.packages.placing import check_place
from deploykit.packages.writing import PackageWriter
from deploykit.system.folders import scratch
from deploykit.system.jobs import Steps, prefixed
from deploykit.system.limits import guarded_memory

if TYPE_CHECKING:
    from deploykit.backend.opinions import Audit

__all__ = [
    "PackageJob",
    "Packaged",
    "audit",
    "check",
    "estimate",
    "make_package",
    "make_packages",
    "make_plan",
    "read_jobs",
]

QUANTIZING = "quantizing the float model"
DECIDING = "deciding"
WRITING = "writing"
RUNNING = "running what can be run here"
VERIFYING = "verifying"
AUDITING = "running each kernel by itself"


class PackageJob(Record):
    """One package to make. ``shared`` holds the work shared by jobs that were read together: the model,
    preparations.
    """

    backend: AnyBackend
    given: Situation
    out: Path
    how: Output
    shared: SharedWork
    tell: Tell

    def make(self) -> Packaged:
        """Cures, chooses, plans, renders, runs, seals. Nothing is written if an error is unhandled.

        Running may show that another request for the same model is needed: that gets a further round.
        """
        quantizing = [QUANTIZING] if quantizes(self.backend, self.given) else []
        running = [RUNNING] if self.given.request.compile is not False else []
        steps = Steps(names=[*quantizing, DECIDING, WRITING, *running, VERIFYING], tell=self.tell)
        given = self.given
        with _guarded(given.request.model, given=given), ExitStack() as folders:
            steps.begin(QUANTIZING)
            hopeless = _hopeless(self.backend, given, self.shared)
            if hopeless is None:
                given = quantized_situation(self.backend, given, self.shared, self.tell)
            given = with_turned_borders(given, self.shared)
            ran: RanPackage | None = None
            asked_by: Instead | None = None
            avoided: Findings = ()
            # First a tool's crash is worked around, then wrong results are.
            for _ in range(3):
                steps.begin(DECIDING)
                try:
                    decision = hopeless or decide(self.backend, given, self.shared, self.tell)
                except UsageError:  # a node that another way was found for is made by a cure of the first round
                    if ran is None:
                        raise
                    break
                if not decision.plan.feasible:
                    break
                writer = PackageWriter(self.out, force=self.how.force, link=self.how.link, tell=self.tell)
                folders.enter_context(writer)
                steps.begin(WRITING)
                writer.add(self.backend.render(decision.prepared, decision.plan, self.how.templates))
                steps.begin(RUNNING)
                execution = execute(self.backend, decision, writer.folder, self.shared, self.tell)
                ran = RanPackage(
                    decision=decision, writer=writer, execution=execution, asked_by=asked_by, avoided=avoided
                )
                asked_by = execution.instead
                if asked_by is None:
                    break
                avoided += asked_by.over(execution.findings)
                given = replace(given, request=asked_by.request)
            if ran is None:
                return Packaged(plan=decision.plan, package=None, manifest=None, findings=decision.plan.findings)
            steps.begin(VERIFYING)
            return seal(ran, self.out, self.how, self.shared)


def read_jobs(
    requests: Sequence[Request], outs: Sequence[Path], *, progress: Sequence[Tell], **output: Any
) -> tuple[PackageJob, ...]:
    """The jobs of requests that differ in their target, backend and SDK only; the model is read once.

    ``output`` are the fields of ``Output``, as for all functions here.
    """
    shared, how = SharedWork(), Output(**output)
    for out in outs:  # checked now, not after hours of work
        check_place(out, force=how.force)
    for tell in progress[:1]:
        tell("reading the model and its encodings")
    with _guarded(*dict.fromkeys(request.model for request in requests)):
        situations = read_situations(requests)
    return tuple(
        PackageJob(backend=backend, given=given, out=out, how=how, shared=shared, tell=tell)
        for (backend, given), out, tell in zip(situations, outs, progress, strict=True)
    )


def make_package(request: Request, out: Path, *, progress: Tell = silent, **output: Any) -> Packaged:
    """Checks, plans, renders, writes and verifies one package. Nothing is written if an error is unhandled."""
    (job,) = read_jobs([request], [out], progress=[progress], **output)
    return job.make()


def make_packages(
    requests: Sequence[Request], out: Path, *, progress: Tell = silent, **output: Any
) -> tuple[Packaged, ...]:
    """Makes one package for each request; the requests differ in their target only.

    A single package goes to ``out``, several go to folders below it, named after the devices.
    """
    if len(requests) == 1:
        return (make_package(requests[0], out, progress=progress, **output),)
    names = [resolve_target(request)[1].device.id for request in requests]
    tells = [prefixed(name, progress) for name in names]
    return tuple(job.make() for job in read_jobs(requests, [out / name for name in names], progress=tells, **output))


def make_plan(request: Request, *, progress: Tell = silent) -> Plan[Any]:
    """The decision for one request; nothing is written."""
    return _decided(request, progress)[1].plan


def estimate(request: Request, *, progress: Tell = silent) -> Estimate | None:
    """The estimated time of the package by its compiler's own cost model: it is made, compiled and thrown away.

    None if the compiler gives no estimate, or if no compiler runs here. For backends with the option ``estimate``.
    """
    asked = replace(request, adapter_options={**request.adapter_options, KERNELS.name: "off"})
    with scratch() as folder:
        return make_package(asked, folder / "package", progress=progress).estimate


def check(request: Request, *, progress: Tell = silent) -> Findings:
    """The findings of a plan, with those about kernels if the backend can run each by itself here."""
    with blaming(request.model):
        backend, decision = _decided(request, progress, AUDITING)
        return with_kernels(backend, decision, progress)


def audit(request: Request, *, level: str = "full", progress: Tell = silent) -> Audit:
    """Runs each kernel of the model as it would be packaged. Raises UsageError for a backend that cannot run
    kernels.
    """
    with blaming(request.model):
        backend, decision = _decided(replace(request, backend=auditor(request.backend)), progress, AUDITING)
        return backend.audit(decision.prepared, level=level, progress=progress)


def _decided(request: Request, tell: Tell, *more: str) -> tuple[AnyBackend, Decision[Any, Any]]:
    """The backend and the decision; the later steps ``more`` are begun afterwards."""
    with _guarded(request.model, checking=True):
        backend, given = read_situation(request)
    with _guarded(request.model, given=given, checking=True):
        quantizing = [QUANTIZING] if quantizes(backend, given) else []
        steps = Steps(names=[*quantizing, DECIDING, *more], tell=tell)
        steps.begin(QUANTIZING)
        shared = SharedWork()
        decision = _hopeless(backend, given, shared)
        if decision is None:
            given = with_turned_borders(quantized_situation(backend, given, shared, tell), shared)
            steps.begin(DECIDING)
            decision = decide(backend, given, shared, tell)
    for name in more:
        steps.begin(name)
    return backend, decision


def _hopeless(backend: AnyBackend, given: Situation, shared: SharedWork) -> Decision[Any, Any] | None:
    """The decision on a model whose loops or sizes refuse it whatever its numbers are, before it is quantized."""
    if not quantizes(backend, given):
        return None
    if not _refused(map(backend.rated, GRAPH_RULES.run(given.facts))):
        return None
    asked = replace(given, request=replace(given.request, precision=None, options=()))
    decision = decide(backend, with_turned_borders(asked, shared), shared, silent)
    return decision if _refused(decision.plan.findings) else None


def _refused(findings: Iterable[Finding]) -> bool:
    """True if sizes or loops, which no quantizer changes, refuse the model."""
    return any(finding.blocks and finding.code in ("DK002", "DK003") for finding in findings)


@contextmanager
def _guarded(*models: Path, given: Situation | None = None, checking: bool = False) -> Iterator[None]:
    """Blames errors on the models, and limits memory by the size of their files, with the weights of ``given``."""
    paths = [*models, *(external.path for external in given.model.external)] if given is not None else models
    size = sum(path.stat().st_size for path in paths if path.is_file())
    with blaming(*models), guarded_memory(size, checking=checking):
        yield
