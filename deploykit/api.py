"""The Python API: every command as one function with keyword arguments; heavy modules are loaded on first use.

It turns arguments into a request and calls the stage that handles it; it adds nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from os import PathLike
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Literal, TypedDict, Unpack

import deploykit
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

__all__ = [*deploykit.__all__, "matrix_diff", "matrix_emit", "matrix_run"]


class Asked(TypedDict, total=False):
    """Where inputs come from: the data, else a seed for made-up ones."""

    data: AnyPath | None
    samples: int | None
    seed: int


class Question(Asked, total=False):
    """The same with encodings, or a precision for which to make some from the data."""

    encodings: AnyPath | None
    precision: str | None
    float_tensors: AnyPath | None


class Aim(TypedDict, total=False):
    """The device with its SDK, and the user's own measure with what it compares with."""

    target: str | None
    sdk: str | None
    metric: str | None
    references: AnyPath | None
    lower_is_better: bool


class RaisingQuestion(Question, Aim, total=False):
    """Both."""


class Bounds(TypedDict, total=False):
    """Limits for outputs: in dB except for the cosine, the errors of boxes (in pixels) and the agreement."""

    min_cosine: float | None
    min_sqnr: float | None
    max_box_error: float | None
    min_agreement: float | None


class MoreBounds(Bounds, total=False):
    """The same with the peak signal-to-noise ratio and the largest error."""

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
    """Check, plan, render, write and verify one package. Raises DeploykitError.

    ``package`` of the result is None if the answer is "no".
    """
    from deploykit.flow.pipeline import make_package

    asked = make_request(model, target, **request)
    return make_package(
        asked, Path(out), force=force, templates=_path(templates), sbom=sbom, link=link, progress=progress or silent
    )


def plan(model: AnyPath, *, target: str, progress: Tell | None = None, **request: Unpack[RequestOptions]) -> Plan[Any]:
    """Make the plan for one model and target and write nothing; arguments and what it raises as for ``package``."""
    from deploykit.flow.pipeline import make_plan

    return make_plan(make_request(model, target, **request), progress=progress or silent)


def check(model: AnyPath, *, target: str, **request: Unpack[RequestOptions]) -> Findings:
    """Return only the findings of a plan; arguments and what it raises as for ``package``."""
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
    """Run each distinct kernel of the model, as ``package`` would compile it, over its whole grid and judge it.

    ``kernels`` is ``quick`` for suspected ones only, ``auto`` for as many as take little time. Deviations
    are in steps of the output's grid. Raises UsageError for a backend that cannot run kernels,
    DeploykitError for arguments that are not valid.
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
    """Make encodings for a float model with ``quantizer`` (default: the best that is installed) on ``calibration``.

    ``calibration`` is required. ``options`` are the quantizer's own; ``time_limit`` is in seconds; the
    other arguments are those of ``package``. Raises DeploykitError for arguments that are not valid,
    ToolError if the quantizer fails or is not installed.
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
    """Verify a package on disk. Raises PackageError if the folder is not a package.

    ``numerics`` also runs the package's models here, and its compiled context where an emulator can, and
    judges their outputs. ``expect_digest`` is the digest that was printed when the package was made or
    built; ``allowed_signers`` is a file of those who may have signed it, in the format of ssh-keygen.
    """
    from deploykit.packages.verifying import verify_package

    signers = _path(allowed_signers)
    report = verify_package(Path(package), numerics=numerics, expect_digest=expect_digest, allowed_signers=signers)
    if not numerics:
        return report
    from deploykit.devices.run import rerun

    return rerun(Path(package), report)


def explain(package: AnyPath) -> Explanation:
    """Explain a package from its manifest: whether it can be shipped, and what was decided, changed and measured.

    Raises PackageError if the folder is not a package or its manifest was changed.
    """
    from deploykit.report.explaining import explain as tell

    return tell(Path(package))


def build(package: AnyPath, *, on_line: Tell | None = None) -> BuildReport:
    """Run a package's own build script. Raises PackageError if the package is not as it was made."""
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
    """Run a package on a device, judge its outputs, measure times, and store the record in the package.

    ``on`` is ``local``, ``adb[:SERIAL]``, ``ssh://user@host[:port]`` or a name in ``file``; ``data`` replaces the
    samples in the package; ``seconds`` limits the measurement; ``max_p90`` (``5ms``) is a budget; ``against``
    is an earlier record, or a package with runs. Raises PackageError for a folder that is not a package,
    ToolError if the device cannot be reached, the connection is cut or something that the device needs is
    missing, UsageError for arguments that are not valid.
    """
    from deploykit.accuracy.latency import read_time
    from deploykit.devices.places import device_at
    from deploykit.devices.run import RunOptions, run_package

    read_time(max_p90, "--max-p90")  # checked here so that the error names the option
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
    """Return the devices of all backends whose id, names or facts contain every word. Raises nothing."""
    from deploykit.backend.plugins import all_devices
    from deploykit.tables.devices import search_devices

    return search_devices(all_devices(), words)


def compat(
    *words: str, sdk: str = "", target: str = "", arch: str = "", tool: str = "", backend: str = ""
) -> CompatAnswer:
    """Return what the tables of all backends say about ``words``, for one SDK
    version, target, architecture, tool, backend.

    Each row has its status, the release since which it applies, its sources and its confidence; what has no row is
    unknown. Raises UnknownTargetError for a device or an SDK that is in no table.
    """
    from deploykit.answers.asking import ask

    return ask(words, sdk=sdk, target=target, arch=arch, tool=tool, backend=backend)


def diagnose(log: AnyPath | IO[bytes], *, model: AnyPath | None = None, tools: Iterable[str] = ()) -> Diagnosis:
    """Find known failures in a vendor's log, given as a path or an open stream.

    ``model`` is used to map mangled names back to the model's own; None maps none. ``tools`` are known to have written
    the log. Raises InputError if a file cannot be read.
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
    """Report what this machine can do: SDKs, wheels, compilers, devices. Raises nothing: a failure is a line."""
    from deploykit.answers.machine import examine
    from deploykit.backend.plugins import load_backends

    return examine(load_backends())


def init(folder: AnyPath, *, targets: Iterable[str], force: bool = False) -> tuple[Path, Scouted]:
    """Write ``deploykit.toml`` into a folder of models; return its path and what was found.

    Raises InputError if the folder holds no model, UnknownTargetError for an unknown device, PackageError if the file
    exists and ``force`` is not set.
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
    ``dask://HOST:PORT``; ``processes`` of None uses all processors; ``time_limit`` is in seconds per cell. ``max_time``
    (``5ms``) limits a model's time by its compiler's estimate. ``progress`` is called with a cell and a line of text,
    ``on_result`` with each result. A cell that fails is a result, not an error. Raises InputError for a file that is
    not valid, UsageError for options that are not valid, PackageError if ``out`` cannot be used.
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
    """Run the packages of a matrix on the devices in its file: one at a time per device, all devices in parallel.

    A run that fails is a result, not an error. Raises UsageError if there
    is no device, or for a device without a target.
    """
    from deploykit.devices.places import devices_in
    from deploykit.fleet.on_devices import run_on_devices

    return run_on_devices(results, devices_in(Path(file)), Path(out), progress or silent)


def matrix_diff(old: AnyPath, new: AnyPath) -> RunDifference:
    """Compare two result folders. Raises InputError if one of them holds no results."""
    from deploykit.fleet.results import compare, read_results

    return compare(read_results(Path(old)), read_results(Path(new)))


def matrix_emit(engine: str, file: AnyPath = "deploykit.toml", *, only: str | Iterable[str] = ()) -> str:
    """Return the matrix as text for another engine: ``github-actions``, ``gitlab`` or ``snakemake``."""
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
    """Measure how close two sets of outputs are, or the outputs of two models on ``data``.

    ``model`` is the float model, in which dead channels are traced and which describes the outputs; ``target``
    completes the command that is proposed. Raises InputError for files that cannot be read or compared.
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
    """Simulate quantized inference as the encodings define it, compared with float, on ``data`` or made-up inputs.

    The bounds replace the limits of the verdict. A model whose weights would take more than ``memory`` (``"3G"``) is
    run part by part, with the same results. Raises InputError for files that cannot be read.
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
    """Find the first operator at which a model and another, or its own simulation (``encodings``), diverge.

    They diverge below ``threshold_db`` of signal-to-noise ratio. After ``time_limit`` seconds the nearest operator
    found so far is returned with ``exhausted`` set. Raises InputError for files that cannot be read.
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
    """Find the first operator whose result on a device differs from the packaged model's on the CPU.

    ``on`` is as for ``run``. Raises PackageError for a folder that is not a package,
    ToolError if the device or the compiler here fails.
    """
    from deploykit.backend.plugins import load_backend
    from deploykit.devices.locating import locate_on as find
    from deploykit.devices.places import device_at
    from deploykit.flow.pipeline import make_package

    tell = progress or silent

    def make(model: Path, manifest: Json, out: Path) -> None:
        """Package a model like the original package, apart from its outputs."""
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
    """Measure the loss when only one layer or tensor is quantized, and when only that one stays float.

    Without encodings they are made from the range of each tensor on the data, at a ``precision``. Measuring ends after
    ``seconds``; stored samples take at most a quarter of ``memory``. With ``resume`` the measurements of an earlier
    call are reused. Losses are signal-to-noise ratios in dB. Raises InputError for files that cannot be read.
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
    """Explain what accuracies at several precisions say about a model, and suggest the next step.

    ``accuracies`` maps precisions (fp32, fp16, w16a16, w8a16, w8a8, w4a16 …) to values of any measure; ``file`` holds
    such a table as TOML or JSON. The default ``goal`` is a drop of at most 1 %; ``lower_is_better`` is for an error
    instead of an accuracy. ``ladder`` measures them. Raises InputError, and UsageError for a goal that is not valid.
    """
    from deploykit.answers.precision_advice import advise_on

    return advise_on(_path(file), dict(accuracies or {}), goal=goal, lower_is_better=lower_is_better)


def ladder(
    model: AnyPath,
    *,
    goal: str | None = None,
    data: AnyPath | None = None,
    samples: int | None = None,
    estimate: bool = False,
    progress: Tell | None = None,
    **aim: Unpack[Aim],
) -> SimulatedLadder:
    """Measure a float model simulated at fp16, w16a16, w8a16, w4a16 and w8a8, draw a conclusion and take the next step.

    Ranges come from one half of the samples, numbers from the other. With a ``target`` only precisions that it can mix
    with integers are used. ``metric`` is the user's own measure (docs/quantize.md). Without a ``goal``, 1 % of the
    measure may be lost, or outputs must be right if there is no measure. ``data`` are real samples: an ``.npz``,
    ``.npy`` or a folder. With ``estimate``, a compiler that runs here estimates the time of each candidate on the
    ``target``. Raises InputError for files that cannot be read or do not fit.
    """
    from deploykit.flow.candidates import simulated_ladder

    asked = {"data": _path(data), "samples": samples, **_paths(aim)}
    with _blaming(model):
        return simulated_ladder(Path(model), goal=goal, estimate=estimate, tell=progress or silent, **asked)


def mix(
    model: AnyPath,
    *,
    goal: str,
    to: str | None = None,
    progress: Tell | None = None,
    **question: Unpack[RaisingQuestion],
) -> Mixed:
    """Make encodings with the fewest of the most sensitive layers in ``to`` (float16 or int16) that reach the goal.

    With a ``target`` only types that it can mix with integers are used. ``metric`` is the user's own measure
    (docs/quantize.md). Raises InputError for files that cannot be read, UsageError for a goal that is not valid.
    """
    from deploykit.flow.candidates import mix_files

    with _blaming(model):
        return mix_files(Path(model), goal=goal, to=to, tell=progress or silent, **_paths(question))


def lpbq(model: AnyPath, out: AnyPath, *, refine: bool = False, force: bool = False) -> LpbqReport:
    """Turn block-quantized int4 weights into LPBQ; the report holds the loss per weight.

    Raises InputError for a model that cannot be read, PackageError if ``out`` exists and ``force`` is not set.
    """
    from deploykit.encodings.lpbq_files import convert_file

    with _blaming(model):
        return convert_file(Path(model), Path(out), refined=refine, force=force)


def split(
    models: Iterable[AnyPath], out: AnyPath, *, parts: int, encodings: AnyPath | None = None
) -> tuple[PartReport, ...]:
    """Cut models with the same weights into ``parts`` each, all at the same places, and write them into a new folder.

    Raises InputError for models that cannot be read or do not share their weights.
    """
    from deploykit.encodings.files import split_files

    paths = [Path(model) for model in models]
    with _blaming(*paths):
        return split_files(paths, Path(out), parts=parts, encodings=_path(encodings))


def _blaming(*models: AnyPath) -> AbstractContextManager[None]:
    """Return a context in which an unexpected exception becomes an InputError if one of the models is not valid."""
    from deploykit.model.load import blaming

    return blaming(*map(Path, models))


def _path(given: AnyPath | None) -> Path | None:
    return None if given is None else Path(given)


def _paths(asked: Mapping[str, Any]) -> Json:
    """Return the same arguments with files as paths."""
    files = ("encodings", "float_tensors", "data", "references")
    return {name: _path(value) if name in files else value for name, value in asked.items()}


def _texts(given: str | Iterable[str]) -> tuple[str, ...]:
    return (given,) if isinstance(given, str) else tuple(given)
