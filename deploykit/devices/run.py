"""Runs a package on a device: looks at the device, pushes, runs, judges, measures and records, or diagnoses a failure.

The backend decides what runs there; the connection decides how it gets there.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from shlex import quote
from typing import NamedTuple

from msgspec.structs import fields

from deploykit.accuracy.judge.measures import overall_db
from deploykit.accuracy.judge.verdict import Verdict
from deploykit.answers.diagnosis import Diagnosis
from deploykit.backend.backend import AnyBackend, Check
from deploykit.backend.on_device import DeviceFile, DeviceJob, DeviceRequest, DeviceResults, Measuring, Place
from deploykit.backend.plugins import load_backend
from deploykit.backend.status import Correctness, Right
from deploykit.devices.measure import faster, summarize
from deploykit.devices.places import DeviceRow
from deploykit.devices.profiles import beside_estimate, units_of
from deploykit.devices.record import OutputBeside, RunRecord, keep_record, last_samples
from deploykit.devices.sessions import session_job, session_results
from deploykit.devices.visit import Visit, VisitEnd, visiting
from deploykit.encodings.insert_qdq import insert_qdq
from deploykit.errors import DeploykitError, InputError, ToolError, UsageError
from deploykit.findings.records import Arrays, Json, Published, Tell, replace, silent
from deploykit.model.weights import whole_model
from deploykit.packages.building import diagnosis_of
from deploykit.packages.manifests import content_of, read_manifest
from deploykit.packages.rejudging import PackageJudge, judge_of
from deploykit.packages.verifying import VerifyReport, require_integrity
from deploykit.packages.writing import clear_left
from deploykit.system.folders import holding, scratch

__all__ = ["RunOptions", "RunReport", "rerun", "run_package", "run_there"]


class RunOptions(Measuring, eq=False):
    """How to run on any device: the samples, how to measure, and the earlier times to compare with.

    ``data`` of None uses the samples of the package; ``against`` of None compares with
    nothing. ``keep`` keeps the folder on the device.
    """

    data: Path | None = None
    against: Path | None = None
    keep: bool = False


class RunReport(Published):
    """The result of a run: its record and the path of that, or what the program's log says about the failure.

    ``record`` is None if the program failed; ``diagnosis`` is None if it succeeded.
    """

    record: RunRecord | None
    path: str = ""
    status: int = 0
    said: tuple[str, ...] = ()
    diagnosis: Diagnosis | None = None

    @property
    def exit_status(self) -> int:
        """0 if right and within its budget, 1 if not, 5 if the program on the device failed."""
        return 5 if self.record is None else self.record.exit_status

    def as_published(self) -> Json:
        """The JSON that ``deploykit run --json`` prints."""
        if self.record:
            return {"ok": self.exit_status == 0, "record": self.path, **self.record.to_json()}
        return {"schema": 1, "ok": False, "status": self.status, "log": self.said, "diagnosis": self.diagnosis}


class _Run(NamedTuple):
    """What happened on the device; ``results`` is None if the program failed."""

    place: Place
    job: DeviceJob
    end: VisitEnd
    results: DeviceResults | None


def run_package(package: Path, row: DeviceRow, options: RunOptions, tell: Tell) -> RunReport:
    """Run a package on a device and store the record in the package. Raises DeploykitError.

    Nothing is stored for a run that did not end.
    """
    budget_us = row.budget_us
    manifest = read_manifest(package)
    with holding(package) as alone:
        if alone:
            clear_left(package)
    require_integrity(package, "make the package again")
    before = None if options.against is None else last_samples(options.against)
    judge = judge_of(package, manifest, row.thresholds, data=options.data)
    with scratch() as folder:
        run = run_there(package, row, options, judge.feeds, folder, tell, otherwise=judge)
        if run.results is None:  # explain the failure with the catalogue of known failures
            log = run.end.log
            said = tuple(log.read_text("utf-8", "replace").splitlines())
            return RunReport(record=None, status=run.end.status, said=said, diagnosis=diagnosis_of(log, package))
    results, where = run.results, run.job.where
    outputs = judge.finished(results.outputs)
    missing = [name for name in judge.facts.outputs if any(name not in one for one in outputs)]
    if missing:
        raise ToolError(f"{row.at}: did not compute {', '.join(missing)}")
    verdict = judge.judged(outputs)
    beside = None if judge.emulated is None or where != "device" else judge.judged(judge.emulated)
    # If the device's clock was set during the run, the times add up to more than the whole run took by this clock.
    latency = summarize(results.latencies_us, within_s=run.end.took_s) if results.latencies_us else None
    if latency and where != "device":  # a slower emulator says nothing about a chip
        latency = replace(latency, trend=replace(latency.trend, words=""))
    budget = None
    if budget_us and latency:
        budget = {"p90_us": budget_us, "held": latency.p90_us <= budget_us}
    record = RunRecord(
        package=str(manifest["digest"]),
        backend=str(manifest["backend"]),
        target=str((manifest.get("target") or {}).get("id", "")),
        device=run.place,
        where=where,
        started=run.job.started,
        power=row.power or "as the package says",
        right=judge.right(verdict, where),
        emulator=None if beside is None else judge.right(beside, "emulator"),
        outputs=tuple(_beside(judge, outputs, verdict, beside)),
        init_us=results.init_us,
        latency=latency,
        peak_mb=results.peak_mb,
        temperature_after=run.end.temperature,
        units=units_of(results.operators),
        operators=results.operators,
        estimate=beside_estimate(package, manifest, results.operators),
        libraries=results.libraries,
        budget=budget,
        against=None if before is None or latency is None else faster(latency.samples_us, before),
    )
    return RunReport(record=record, path=keep_record(package, content_of(manifest), record))


def run_there(
    package: Path,
    row: DeviceRow,
    options: RunOptions,
    feeds: Sequence[Arrays],
    folder: Path,
    tell: Tell,
    *,
    otherwise: PackageJudge | None = None,
) -> _Run:
    """Run a package on the given samples, without judging or recording.
    Raises ToolError if the device or connection fails.

    The results are written to ``folder``. If the backend runs nothing on this machine, its processor runs the model of
    ``otherwise``; None raises UsageError instead.
    """
    manifest = read_manifest(package)
    backend = load_backend(str(manifest["backend"]))
    with visiting(row, folder, keep=options.keep, tell=tell) as visit:
        measuring = {field.name: getattr(options, field.name) for field in fields(Measuring)}
        request = DeviceRequest(feeds=feeds, place=visit.place, power=row.power, **measuring)
        _check_chip(visit.place, manifest, backend)
        job = backend.device_job(package, manifest, request)
        plain = job is None and row.at == "local"
        if plain and otherwise:
            job = _on_cpu(package, otherwise, request)
        if job is None:
            raise UsageError(f"--on {row.at}: {backend.id} runs nothing there", next="its own scripts run it by hand")
        _check_distributions(visit, job)
        end, results = visit.run(job, folder), None
        try:
            if end.status == 0 and plain:
                results = session_results(request, end.pulled)
            elif end.status == 0:
                results = backend.device_results(package, request, end.pulled)
        except InputError as error:  # in a profile or an output: the device's fault, not the user's file
            raise ToolError(f"{row.at}: sent what cannot be read", why=error.what) from None
    return _Run(visit.place, job, end, results)


def rerun(package: Path, report: VerifyReport) -> VerifyReport:
    """The report, with a verdict on what the compiled context gives where an emulator on this machine runs it."""
    try:
        judge = judge_of(package, read_manifest(package))
        if not (report.ok and judge.samples.may_judge):
            return report
        with scratch() as folder:
            once = RunOptions(iterations=0, profile=False)
            run = run_there(package, DeviceRow(at="local"), once, judge.feeds, folder, silent)
    except UsageError:  # the backend runs nothing here
        return report
    except DeploykitError as error:
        told = Check("context-numbers", ok=True, detail=f"not run here: {error.what}")
        return replace(report, checks=(*report.checks, told))
    if run.job.where != "emulator":
        return report
    outputs = [{}] if run.results is None else judge.finished(run.results.outputs)
    if why := judge.unlike(outputs[0]):
        right = Correctness(state=Right.NO, why=f"the compiled context {why}")
    else:
        right = judge.right(judge.judged(outputs), run.job.where)
    told = Check("context-numbers", ok=right.state is not Right.NO, detail=str(right))
    return replace(report, checks=(*report.checks, told), status=replace(report.status, right=right))


def _check_chip(place: Place, manifest: Json, backend: AnyBackend) -> None:
    """Raise ToolError if the device reports a chip of another architecture than the package was made for."""
    target = manifest.get("target") or {}
    found = backend.device_of_id(place.soc) if place.soc else None
    if found is None or found.id == target.get("id"):
        return
    wanted, arch = target.get("arch"), found.fact("arch")
    if arch is None or arch != wanted:
        raise ToolError(
            f"{place.name}: is {found.id} ({arch or 'of an unknown architecture'}), and the package is for "
            f"{target.get('id')} ({wanted or 'unknown'})",
            next=f"deploykit package … --target {found.id}",
        )


def _check_distributions(visit: Visit, job: DeviceJob) -> None:
    """Raise ToolError if the Python that runs the job there lacks the runtime or has another release of it.

    This is checked before anything is pushed.
    """
    for name, wanted in job.distributions.items():
        code = f"import importlib.metadata as m\ntry: print(m.version({name!r}))\nexcept ImportError: print()"
        told = visit.connection.ask(f"PYTHONSAFEPATH=1 {quote(job.argv[0])} -c {quote(code)}")
        found = told[-1].strip() if told else ""
        if found != wanted:
            has = f"has {name} {found}" if found else f"has no {name}"
            raise ToolError(
                f"{visit.connection.where}: {has}, the package is for {wanted}",
                why="what one release compiled is not what another one loads",
                next=f"install {name}=={wanted} in {job.argv[0]}, or name another Python with --python",
            )


def _on_cpu(package: Path, judge: PackageJudge, request: DeviceRequest) -> DeviceJob:
    """Make a job that runs the packaged model on this machine's processor, with encodings from beside it inserted."""
    if len(judge.pieces) > 1:
        raise ToolError(f"{package}: is run in pieces", why="on this machine one model is run, not a chain of them")
    model = whole_model(judge.whole)
    if judge.alone is not None:
        model = insert_qdq(model, judge.alone, bias="float").model
    file = DeviceFile("model.onnx", model.SerializeToString())
    # The times of single operators on a processor say nothing about the device.
    return session_job(replace(request, profile=False), {"model": file.path}, [file], where="simulated")


def _beside(
    judge: PackageJudge, outputs: Sequence[Arrays], verdict: Verdict, emulator: Verdict | None
) -> list[OutputBeside]:
    rows = []
    for name, value in verdict.sqnr_db.items():
        told = [value, None, None]
        if emulator and judge.emulated:
            pairs = [(there[name], here[name]) for there, here in zip(judge.emulated, outputs, strict=True)]
            told[1:] = emulator.sqnr_db.get(name), overall_db(pairs)
        device, before, both = (None if db is None or not math.isfinite(db) else round(db, 3) for db in told)
        rows.append(OutputBeside(output=name, device_db=device, emulator_db=before, beside_db=both))
    return rows
