"""The Python API: every command as one function with keyword arguments, heavy modules loaded on the call.

It turns arguments into a request and calls the stage that does it; it adds nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from os import PathLike
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Literal, TypedDict, Unpack

from deploykit.backend.requests import AnyPath, RequestOptions, make_request
from deploykit.findings.records import Json, Tell, replace, silent
from deploykit.system.limits import limited_time, memory_budget, with_memory

if TYPE_CHECKING:
    from deploykit.accuracy.judge.compare import Evaluation
    from deploykit.accuracy.search.layer_losses import Sensitivity
    from deploykit.accuracy.search.locate import Located
    from deploykit.accuracy.simulate.simulation import Simulation
    from deploykit.answers.asking import CompatAnswer
    from deploykit.answers.diagnosis import Diagnosis
    from deploykit.answers.precision_advice import Advice
    from deploykit.backend.opinions import Audit
    from deploykit.backend.plans import Plan
    from deploykit.backend.probes import CheckLine
    from deploykit.devices.run import RunReport
    from deploykit.encodings.files import PartReport
    from deploykit.encodings.lpbq_files import LpbqReport
    from deploykit.findings import Findings
    from deploykit.fleet.on_devices import DeviceRun
    from deploykit.fleet.results import CellResult, Results, RunDifference
    from deploykit.fleet.scouting import Scouted
    from deploykit.flow.candidates import Mixed, SimulatedLadder
    from deploykit.flow.pipeline import Packaged
    from deploykit.flow.quantizing.command import Quantization
    from deploykit.packages.building import BuildReport
    from deploykit.packages.verifying import VerifyReport
    from deploykit.report.explaining import Explanation
    from deploykit.tables.devices import Device

__all__ = [
    "advise",
    "audit",
    "build",
    "check",
    "compat",
    "diagnose",
    "doctor",
    "evaluate",
    "explain",
    "init",
    "ladder",
    "locate",
    "locate_on",
    "lpbq",
    "matrix",
    "matrix_diff",
    "matrix_emit",
    "matrix_run",
    "mix",
    "package",
    "plan",
    "quantize",
    "run",
    "sensitivity",
    "simulate",
    "split",
    "targets",
    "verify",
]


class Asked(TypedDict, total=False):
    """What a model is asked on: the data, else a seed."""

    data: AnyPath | None
    samples: int | None
    seed: int


class Question(Asked, total=False):
    """The same with encodings, or a precision to make some from the data."""

    encodings: AnyPath | None
    precision: str | None
    float_tensors: AnyPath | None


class Bounds(TypedDict, total=False):
    """What outputs must have: dB but for the cosine, the errors of boxes (in pixels) and the agreement."""

    min_cosine: float | None
    min_sqnr: float | None
    max_box_error: float | None
    min_agreement: float | None


class MoreBounds(Bounds, total=False):
    """The same with the peak signal to noise, and the largest error."""

    min_psnr: float | None
    max_error: float | None


def package(
    model: AnyPath,
    *,
    target: str,
    out: AnyPath,
    force: bool = False,
    templates: AnyPath | None = None,
    sbom: bool = False,
    link: bool = False,
    progress: Tell | None = None,
    **request: Unpack[RequestOptions],
) -> Packaged:
    """Check, plan, render, write and verify one package; ``package`` None is a no. Raises DeploykitError."""
    from deploykit.flow.pipeline import make_package

    asked = make_request(model, target, **request)
    return make_package(
        asked, Path(out), force=force, templates=_path(templates), sbom=sbom, link=link, progress=progress or silent
    )


def plan(model: AnyPath, *, target: str, progress: Tell | None = None, **request: Unpack[RequestOptions]) -> Plan[Any]:
    """The decision for one model and target, nothing written; arguments and what it raises as for ``package``."""
    from deploykit.flow.pipeline import make_plan

    return make_plan(make_request(model, target, **request), progress=progress or silent)


def check(model: AnyPath, *, target: str, **request: Unpack[RequestOptions]) -> Findings:
    """Only the findings of a plan; arguments and what it raises as for ``package``."""
    from deploykit.flow.pipeline import check as find

    return find(make_request(model, target, **request))


def audit(
    model: AnyPath,
    *,
    target: str,
    kernels: Literal["quick", "auto", "full"] = "full",
    progress: Tell | None = None,
    **request: Unpack[RequestOptions],
) -> Audit:
    """Each distinct kernel of the model as ``package`` would compile it, run over its whole grid and judged.

    ``kernels`` is ``quick`` for those under suspicion alone, ``auto`` for as many as are soon done. Deviations are in
    steps of the output's grid. Raises UsageError for a backend that runs none by itself, DeploykitError for what makes
    no sense.
    """
    from deploykit.flow.pipeline import audit as run

    return run(make_request(model, target, **request), level=kernels, progress=progress or silent)


def quantize(
    model: AnyPath,
    *,
    target: str,
    out: AnyPath,
    time_limit: float | None = None,
    force: bool = False,
    progress: Tell | None = None,
    **request: Unpack[RequestOptions],
) -> Quantization:
    """Encodings for a float model, made by ``quantizer`` (default: the best that is installed) on ``calibration``.

    That must be given. ``options`` are the quantizer's own; ``time_limit`` is in seconds; the other arguments as for
    ``package``. Raises DeploykitError for what makes no sense, ToolError when the quantizer fails or is not installed.
    """
    from deploykit.flow.quantizing.command import quantize as run

    asked = make_request(model, target, **request)
    return run(asked, Path(out), force=force, timeout=time_limit, progress=progress or silent)


def verify(
    package: AnyPath,
    *,
    numerics: bool = False,
    expect_digest: str | None = None,
    allowed_signers: AnyPath | None = None,
) -> VerifyReport:
    """Judge a package on disk, its simulated ``numerics`` included if wanted; PackageError when the folder is none.

    ``expect_digest`` is the digest that was printed when it was made or built; ``allowed_signers`` a file that names
    who may have signed it, in the format of ssh-keygen.
    """
    from deploykit.packages.verifying import verify_package

    signers = _path(allowed_signers)
    return verify_package(Path(package), numerics=numerics, expect_digest=expect_digest, allowed_signers=signers)


def explain(package: AnyPath) -> Explanation:
    """A package in words, from its manifest: can it be shipped, what was decided, changed and measured.

    PackageError when the folder is no package, or its manifest was changed.
    """
    from deploykit.report.explaining import explain as tell

    return tell(Path(package))


def build(package: AnyPath, *, on_line: Tell | None = None) -> BuildReport:
    """Run a package's own build script; raises PackageError when the package is not as it was made."""
    from deploykit.packages.building import build_package

    return build_package(Path(package), on_line=on_line)


def run(
    package: AnyPath,
    *,
    on: str,
    data: AnyPath | None = None,
    iterations: int = 100,
    warmup: int = 10,
    seconds: float = 10.0,
    power: Literal["", "burst", "balanced", "saver"] = "",
    profile: bool = True,
    max_p90: str = "",
    against: AnyPath | None = None,
    python: str = "",
    keep: bool = False,
    file: AnyPath = "deploykit.toml",
    progress: Tell | None = None,
) -> RunReport:
    """Run a package on a device, judge its outputs, measure, and keep the record in the package.

    ``on`` is ``local``, ``adb[:SERIAL]``, ``ssh://user@host[:port]`` or a name in ``file``; ``data`` replaces the
    samples that the package keeps; ``max_p90`` (``5ms``) is a budget; ``against`` is a record, or a package with runs.
    Raises PackageError for a folder that is no package, ToolError where the device cannot be reached, the connection is
    cut or what the device needs is missing, UsageError for what makes no sense.
    """
    from deploykit.accuracy.latency import read_time
    from deploykit.devices.places import device_at
    from deploykit.devices.run import RunOptions, run_package

    read_time(max_p90, "--max-p90")  # so that the option is named where it is wrong
    row = device_at(on, Path(file))
    row = replace(row, python=python or row.python, power=power or row.power, max_p90=max_p90 or row.max_p90)
    options = RunOptions(
        data=_path(data),
        iterations=iterations,
        warmup=warmup,
        seconds=seconds,
        profile=profile,
        against=_path(against),
        keep=keep,
    )
    return run_package(Path(package), row, options, progress or silent)


def targets(words: str = "") -> tuple[Device, ...]:
    """The devices of all backends whose id, names or facts contain every word; () where none does. Raises nothing."""
    from deploykit.backend.plugins import all_devices
    from deploykit.tables.devices import search_devices

    return search_devices(all_devices(), words)


def compat(
    *words: str, sdk: str = "", target: str = "", arch: str = "", tool: str = "", backend: str = ""
) -> CompatAnswer:
    """What the tables of all backends say about ``words``, for one SDK version, target, architecture, tool, backend.

    Each row has its status, since when, its sources and how sure it is; what has no row is unknown. Raises
    UnknownTargetError for a device or an SDK that is in no table.
    """
    from deploykit.answers.asking import ask

    return ask(words, sdk=sdk, target=target, arch=arch, tool=tool, backend=backend)


def diagnose(log: AnyPath | IO[bytes], *, model: AnyPath | None = None, tools: Iterable[str] = ()) -> Diagnosis:
    """Known failures in a vendor's log, a path or an open stream; ``model`` maps mangled names back to its own.

    ``tools`` are known to have written the log. Raises InputError when a file cannot be read.
    """
    from deploykit.answers.diagnosis import diagnose as judge
    from deploykit.answers.diagnosis import diagnose_log
    from deploykit.backend.plugins import catalog_of, load_backends
    from deploykit.packages.building import names_of_models

    names = None if model is None else names_of_models([Path(model)])
    catalog = catalog_of(load_backends())
    if isinstance(log, str | PathLike):
        return diagnose_log(Path(log), catalog, names, tools=tools)
    return judge(log, catalog, names, tools=tools)


def doctor() -> tuple[CheckLine, ...]:
    """What this machine can do: SDKs, wheels, compilers, devices. Raises nothing: what fails is a line of its own."""
    from deploykit.answers.machine import examine
    from deploykit.backend.plugins import load_backends

    return examine(load_backends())


def init(folder: AnyPath, *, targets: Iterable[str], force: bool = False) -> tuple[Path, Scouted]:
    """Write ``deploykit.toml`` into a folder of models, and return where it is and what was found.

    Raises InputError where the folder holds no model, UnknownTargetError for a device that is none, PackageError where
    the file exists and ``force`` is not given.
    """
    from deploykit.backend.plugins import device_named
    from deploykit.fleet.description import FILE_NAME
    from deploykit.fleet.scouting import scout, toml_text
    from deploykit.system.files import write_files

    ids = tuple(dict.fromkeys(device_named(target).id for target in targets))
    scouted = scout(Path(folder))
    file = Path(folder) / FILE_NAME
    write_files({file: toml_text(scouted, ids)}, force=force)
    return file, scouted


def matrix(
    file: AnyPath = "deploykit.toml",
    *,
    out: AnyPath = "matrix",
    only: str | Iterable[str] = (),
    executor: str = "local",
    processes: int | None = None,
    time_limit: float = 3600.0,
    fail_fast: bool = False,
    fresh: bool = False,
    max_time: str = "",
    progress: Callable[[str, str], None] | None = None,
    on_result: Callable[[CellResult], None] | None = None,
) -> Results:
    """Package every model of a ``deploykit.toml`` for every target, and write the results to ``out``.

    ``only`` are patterns of cells (``yolo/phone``), models or targets; ``executor`` is ``local`` or
    ``dask://HOST:PORT``; ``time_limit`` is in seconds and per cell. ``max_time`` (``5ms``) is what a model may take by
    its compiler's estimate. ``progress`` is called with a cell and a line of news, ``on_result`` with each result. A
    cell that fails is a result, not an error. Raises InputError for a file that is none, UsageError for options that
    make no sense, PackageError where ``out`` cannot be used.
    """
    from deploykit.accuracy.latency import read_time
    from deploykit.fleet.running import run_matrix, select

    return run_matrix(
        select(Path(file), only=_texts(only)),
        Path(file).name,
        Path(out),
        executor=executor,
        processes=processes,
        time_limit=time_limit,
        fail_fast=fail_fast,
        fresh=fresh,
        max_time_us=read_time(max_time),
        tell=progress or silent,
        done=on_result or silent,
    )


def matrix_run(
    results: Results,
    file: AnyPath = "deploykit.toml",
    *,
    out: AnyPath,
    progress: Callable[[str, str], None] | None = None,
) -> tuple[DeviceRun, ...]:
    """Run what a matrix made on the devices that its file names, one at a time on each and all devices at once.

    A run that fails is a result, not an error. Raises UsageError where no device, or one of no target, is named.
    """
    from deploykit.devices.places import devices_in
    from deploykit.fleet.on_devices import run_on_devices

    return run_on_devices(results, devices_in(Path(file)), Path(out), progress or silent)


def matrix_diff(old: AnyPath, new: AnyPath) -> RunDifference:
    """What changed between two result folders; InputError where one is none."""
    from deploykit.fleet.results import compare, read_results

    return compare(read_results(Path(old)), read_results(Path(new)))


def matrix_emit(engine: str, file: AnyPath = "deploykit.toml", *, only: str | Iterable[str] = ()) -> str:
    """The same matrix for another engine, as text: ``github-actions``, ``gitlab`` or ``snakemake``."""
    from deploykit.fleet.running import emit, select

    return emit(engine, Path(file), select(Path(file), only=_texts(only)))


def evaluate(
    baseline: AnyPath,
    candidate: AnyPath,
    *,
    data: AnyPath | None = None,
    model: AnyPath | None = None,
    target: str = "TARGET",
    **bounds: Unpack[MoreBounds],
) -> Evaluation:
    """How close two sets of outputs are, or two models on ``data``.

    ``model`` is the float model, which dead channels are traced back to and which says what the outputs are; ``target``
    completes the command that is then proposed. Raises InputError for files that cannot be read or compared.
    """
    from deploykit.accuracy.judge.compare import evaluate as judge
    from deploykit.accuracy.judge.rules import Thresholds

    left, right, asked = Path(baseline), Path(candidate), Thresholds(**bounds)
    with _blaming(left, right):
        return judge(left, right, data=_path(data), model=_path(model), target=target, thresholds=asked)


def simulate(
    model: AnyPath,
    encodings: AnyPath,
    *,
    data: AnyPath | None = None,
    samples: int | None = None,
    seed: int = 0,
    float_tensors: AnyPath | None = None,
    memory: str | None = None,
    **bounds: Unpack[Bounds],
) -> Simulation:
    """Quantized inference as the encodings define it, against float, on ``data`` or on inputs that are made.

    The bounds replace the limits of the verdict. A model whose weights would take more than ``memory`` (``"3G"``) is
    run part by part, with the same numbers. Raises InputError for files that cannot be read.
    """
    from deploykit.accuracy.judge.verdict import Thresholds
    from deploykit.accuracy.simulate.simulation import simulate_files

    with with_memory(memory), _blaming(model):
        return simulate_files(
            Path(model),
            Path(encodings),
            data=_path(data),
            samples=samples,
            seed=seed,
            float_tensors=_path(float_tensors),
            thresholds=Thresholds(**bounds),
        )


def locate(
    model: AnyPath,
    candidate: AnyPath | None = None,
    *,
    encodings: AnyPath | None = None,
    threshold_db: float = 20.0,
    time_limit: float | None = None,
    memory: str | None = None,
    **asked: Unpack[Asked],
) -> Located:
    """The first operator at which a model and another, or its own simulation (``encodings``), diverge.

    After ``time_limit`` seconds the nearest operator known by then is named, and ``exhausted`` says so. They diverge
    below ``threshold_db`` of signal to noise. Raises InputError for files that cannot be read.
    """
    from deploykit.accuracy.search.locate import locate_files

    with limited_time(time_limit), with_memory(memory), _blaming(model):
        given = {"encodings": _path(encodings), **_paths(asked)}
        return locate_files(Path(model), _path(candidate), threshold_db=threshold_db, **given)


def locate_on(
    package: AnyPath,
    *,
    on: str,
    file: AnyPath = "deploykit.toml",
    samples: int | None = None,
    threshold_db: float = 20.0,
    progress: Tell | None = None,
) -> Located:
    """The first operator that a device computes otherwise than the packaged model on the CPU; ``on`` as for ``run``.

    Raises PackageError for a folder that is no package, ToolError where the device or the compiler here fails.
    """
    from deploykit.backend.plugins import load_backend
    from deploykit.devices.locating import locate_on as find
    from deploykit.devices.places import device_at
    from deploykit.flow.pipeline import make_package

    tell = progress or silent

    def make(model: Path, manifest: Json, out: Path) -> None:
        """The model as the package was made, but for its outputs."""
        takes = {option.name for option in load_backend(manifest["backend"]).options()}
        route = {"route": manifest["route"]["id"]} if "route" in takes else {}
        wanted = {"sdk": manifest["sdk"]["version"], "backend": manifest["backend"], **route}
        make_package(make_request(model, manifest["target"]["id"], compile=True, **wanted), out, progress=tell)

    return find(Path(package), device_at(on, Path(file)), make, tell, threshold_db=threshold_db, samples=samples)


def sensitivity(
    model: AnyPath,
    *,
    seconds: float | None = None,
    memory: str | None = None,
    resume: bool = True,
    progress: Tell | None = None,
    **question: Unpack[Question],
) -> Sensitivity:
    """What the model loses when only one layer or tensor is quantized, and when only that one stays float.

    Without encodings they are made from the range of each tensor on the data, at a ``precision``. Measuring ends after
    so many ``seconds``; what is kept of the samples takes at most a quarter of ``memory``. With ``resume`` the
    measurements of an earlier call are taken over. Losses are signal to noise in dB. Raises InputError for files that
    cannot be read.
    """
    from deploykit.accuracy.search.layer_losses import Budget, analyze_files

    with with_memory(memory), _blaming(model):
        return analyze_files(
            Path(model),
            **_paths(question),
            budget=Budget(seconds=seconds, bytes=memory_budget() // 4),
            resume=resume,
            tell=progress or silent,
        )


def advise(
    file: AnyPath | None = None,
    *,
    accuracies: Mapping[str, float] | None = None,
    goal: str | None = None,
    lower_is_better: bool = False,
) -> Advice:
    """What accuracies at several precisions say about a model, and the next step.

    ``accuracies`` are values by precision (fp32, fp16, w16a16, w8a16, w8a8, w4a16 …), of any measure; ``file`` holds
    such a table as TOML or JSON. The ``goal`` is a drop of at most 1 % unless said otherwise; ``lower_is_better`` for
    an error instead of an accuracy. ``ladder`` measures them. Raises InputError, UsageError for a goal that is none.
    """
    from deploykit.answers.precision_advice import advise_on

    return advise_on(_path(file), dict(accuracies or {}), goal=goal, lower_is_better=lower_is_better)


def ladder(
    model: AnyPath,
    *,
    goal: str | None = None,
    data: AnyPath | None = None,
    samples: int | None = None,
    target: str | None = None,
    sdk: str | None = None,
    metric: str | None = None,
    references: AnyPath | None = None,
    lower_is_better: bool = False,
    estimate: bool = False,
    progress: Tell | None = None,
) -> SimulatedLadder:
    """Measure fp16, w16a16, w8a16, w4a16 and w8a8 of a float model on the simulation, conclude, take the next step.

    Ranges come from one half of the samples, numbers from the other. With a ``target`` only types that it mixes with
    integers are raised to. ``metric`` is the user's own measure (docs/quantize.md). Without a
    ``goal`` of a measure 1 % may be lost, else outputs must be right (docs/quantize.md). ``data`` are samples of the
    field: an ``.npz``, ``.npy`` or a folder. With ``estimate`` a compiler that runs here says how long each candidate
    takes on the ``target``. Raises InputError for files that cannot be read or do not fit.
    """
    from deploykit.accuracy.judge.metric import user_metric
    from deploykit.flow.candidates import simulated_ladder

    with _blaming(model):
        return simulated_ladder(
            Path(model),
            goal=goal,
            lower_is_better=lower_is_better,
            data=_path(data),
            samples=samples,
            target=target,
            sdk=sdk,
            metric=user_metric(metric, references=_path(references)),
            estimate=estimate,
            tell=progress or silent,
        )


def mix(
    model: AnyPath,
    *,
    goal: str,
    to: str | None = None,
    target: str | None = None,
    sdk: str | None = None,
    metric: str | None = None,
    references: AnyPath | None = None,
    lower_is_better: bool = False,
    progress: Tell | None = None,
    **question: Unpack[Question],
) -> Mixed:
    """The fewest of the most sensitive layers in ``to`` (float16 or int16) that reach the goal, as new encodings.

    With a ``target`` only types that it mixes with integers are taken. ``metric`` is the user's
    own measure (docs/quantize.md). Raises InputError for files
    that cannot be read, UsageError for a goal that is none.
    """
    from deploykit.accuracy.judge.metric import user_metric
    from deploykit.accuracy.search.goals import parse_goal
    from deploykit.flow.candidates import mix_files

    with _blaming(model):
        return mix_files(
            Path(model),
            goal=parse_goal(goal, lower_is_better=lower_is_better),
            to=to,
            target=target,
            sdk=sdk,
            metric=user_metric(metric, references=_path(references)),
            tell=progress or silent,
            **_paths(question),
        )


def lpbq(model: AnyPath, out: AnyPath, *, refine: bool = False, force: bool = False) -> LpbqReport:
    """Turn block-quantized int4 weights into LPBQ; the report holds the loss per weight.

    Raises InputError for a model that cannot be read, PackageError where ``out`` stands and ``force`` is not given.
    """
    from deploykit.encodings.lpbq_files import convert_file

    with _blaming(model):
        return convert_file(Path(model), Path(out), refined=refine, force=force)


def split(
    models: Iterable[AnyPath], out: AnyPath, *, parts: int, encodings: AnyPath | None = None
) -> tuple[PartReport, ...]:
    """Cut models over the same weights into ``parts`` each, all alike, and write them into a new folder.

    Raises InputError for models that cannot be read or are not over the same weights.
    """
    from deploykit.encodings.files import split_files

    paths = [Path(model) for model in models]
    with _blaming(*paths):
        return split_files(paths, Path(out), parts=parts, encodings=_path(encodings))


def _blaming(*models: AnyPath) -> AbstractContextManager[None]:
    """Within it, an exception that nobody foresaw is an InputError where one of the models is not valid."""
    from deploykit.model.load import blaming

    return blaming(*map(Path, models))


def _path(given: AnyPath | None) -> Path | None:
    return None if given is None else Path(given)


def _paths(asked: Asked) -> Json:
    """The same with files as paths."""
    given: dict[str, Any] = {**asked}
    files = ("encodings", "float_tensors", "data")
    return {name: _path(value) if name in files else value for name, value in given.items()}


def _texts(given: str | Iterable[str]) -> tuple[str, ...]:
    return (given,) if isinstance(given, str) else tuple(given)
