"""The Python API: every command as one function with keyword arguments, heavy modules loaded on the call.

It turns arguments into a request and calls the stage that does it; it adds nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from os import PathLike
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Literal, TypeAlias

from deploykit.api.audits import audit
from deploykit.api.fleets import init, matrix
from deploykit.api.measures import advise, evaluate, ladder, locate, lpbq, mix, sensitivity, simulate, split
from deploykit.backend.options import ConfigKeys, OptionGiven
from deploykit.backend.requests import make_request

if TYPE_CHECKING:
    from deploykit.answers.capability_answers import Answer
    from deploykit.answers.diagnosis import Diagnosis
    from deploykit.backend.plans import Plan
    from deploykit.backend.probes import CheckLine
    from deploykit.findings import Finding
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
    "lpbq",
    "matrix",
    "mix",
    "package",
    "plan",
    "quantize",
    "sensitivity",
    "simulate",
    "split",
    "targets",
    "verify",
]

AnyPath: TypeAlias = str | PathLike[str]
Mixed: TypeAlias = Literal["auto", "fallback", "segments", "refuse"]
Progress: TypeAlias = Callable[[str], None]
"""Called with one line of news during long work."""


def package(
    model: AnyPath,
    *,
    target: str,
    out: AnyPath,
    backend: str | None = None,
    sdk: str | None = None,
    encodings: AnyPath | None = None,
    float_tensors: AnyPath | None = None,
    precision: str | None = None,
    calibration: AnyPath | None = None,
    quantizer: str | None = None,
    goal: str | None = None,
    metric: str | None = None,
    metric_command: str | None = None,
    references: AnyPath | None = None,
    inputs: str | Iterable[str] = (),
    mixed: Mixed = "auto",
    rewrite: str | Iterable[str] = (),
    no_rewrite: str | Iterable[str] = (),
    compile: bool | None = None,  # noqa: A002 (the published name)
    second_opinion: bool = True,
    samples: bool = True,
    options: ConfigKeys = (),
    force: bool = False,
    templates: AnyPath | None = None,
    sbom: bool = False,
    link: bool = False,
    progress: Progress | None = None,
    **backend_options: OptionGiven,
) -> Packaged:
    """Check, plan, render, write and verify one package; ``package`` None is a no. Raises DeploykitError."""
    from deploykit.flow.pipeline import make_package as make

    request = make_request(
        model,
        target,
        own=backend_options,
        backend=backend,
        sdk=sdk,
        encodings=encodings,
        float_tensors=float_tensors,
        precision=precision,
        calibration=calibration,
        quantizer=quantizer,
        goal=goal,
        metric=metric,
        metric_command=metric_command,
        references=references,
        inputs=inputs,
        mixed=mixed,
        rewrite=rewrite,
        no_rewrite=no_rewrite,
        compile=compile,
        second_opinion=second_opinion,
        samples=samples,
        options=options,
    )
    return make(request, Path(out), force=force, templates=_path(templates), sbom=sbom, link=link, progress=progress)


def plan(
    model: AnyPath,
    *,
    target: str,
    backend: str | None = None,
    sdk: str | None = None,
    encodings: AnyPath | None = None,
    float_tensors: AnyPath | None = None,
    precision: str | None = None,
    calibration: AnyPath | None = None,
    quantizer: str | None = None,
    goal: str | None = None,
    metric: str | None = None,
    metric_command: str | None = None,
    references: AnyPath | None = None,
    inputs: str | Iterable[str] = (),
    mixed: Mixed = "auto",
    rewrite: str | Iterable[str] = (),
    no_rewrite: str | Iterable[str] = (),
    compile: bool | None = None,  # noqa: A002 (the published name)
    second_opinion: bool = True,
    samples: bool = True,
    options: ConfigKeys = (),
    progress: Progress | None = None,
    **backend_options: OptionGiven,
) -> Plan[Any]:
    """The decision for one model and target, nothing written; arguments and what it raises as for ``package``."""
    from deploykit.flow.pipeline import make_plan

    request = make_request(
        model,
        target,
        own=backend_options,
        backend=backend,
        sdk=sdk,
        encodings=encodings,
        float_tensors=float_tensors,
        precision=precision,
        calibration=calibration,
        quantizer=quantizer,
        goal=goal,
        metric=metric,
        metric_command=metric_command,
        references=references,
        inputs=inputs,
        mixed=mixed,
        rewrite=rewrite,
        no_rewrite=no_rewrite,
        compile=compile,
        second_opinion=second_opinion,
        samples=samples,
        options=options,
    )
    return make_plan(request, progress=progress)


def check(
    model: AnyPath,
    *,
    target: str,
    backend: str | None = None,
    sdk: str | None = None,
    encodings: AnyPath | None = None,
    float_tensors: AnyPath | None = None,
    precision: str | None = None,
    calibration: AnyPath | None = None,
    quantizer: str | None = None,
    goal: str | None = None,
    metric: str | None = None,
    metric_command: str | None = None,
    references: AnyPath | None = None,
    inputs: str | Iterable[str] = (),
    mixed: Mixed = "auto",
    rewrite: str | Iterable[str] = (),
    no_rewrite: str | Iterable[str] = (),
    compile: bool | None = None,  # noqa: A002 (the published name)
    second_opinion: bool = True,
    samples: bool = True,
    options: ConfigKeys = (),
    **backend_options: OptionGiven,
) -> tuple[Finding, ...]:
    """Only the findings of a plan; arguments and what it raises as for ``package``."""
    from deploykit.flow.checking import check as find

    request = make_request(
        model,
        target,
        own=backend_options,
        backend=backend,
        sdk=sdk,
        encodings=encodings,
        float_tensors=float_tensors,
        precision=precision,
        calibration=calibration,
        quantizer=quantizer,
        goal=goal,
        metric=metric,
        metric_command=metric_command,
        references=references,
        inputs=inputs,
        mixed=mixed,
        rewrite=rewrite,
        no_rewrite=no_rewrite,
        compile=compile,
        second_opinion=second_opinion,
        samples=samples,
        options=options,
    )
    return find(request)


def quantize(
    model: AnyPath,
    *,
    target: str,
    calibration: AnyPath,
    out: AnyPath,
    precision: str | None = None,
    quantizer: str | None = None,
    goal: str | None = None,
    metric: str | None = None,
    metric_command: str | None = None,
    references: AnyPath | None = None,
    sdk: str | None = None,
    backend: str | None = None,
    options: ConfigKeys = (),
    time_limit: float | None = None,
    force: bool = False,
    progress: Progress | None = None,
) -> Quantization:
    """Encodings for a float model, made by ``quantizer`` (default: the best that is installed) on ``calibration``.

    ``options`` are the quantizer's own; ``time_limit`` is in seconds. Raises DeploykitError for what makes no sense,
    ToolError when the quantizer fails or is not installed.
    """
    from deploykit.flow.quantizing.command import quantize as run

    request = make_request(
        model,
        target,
        own={},
        backend=backend,
        sdk=sdk,
        precision=precision,
        calibration=calibration,
        quantizer=quantizer,
        goal=goal,
        metric=metric,
        metric_command=metric_command,
        references=references,
        options=options,
    )
    return run(request, Path(out), force=force, timeout=time_limit, progress=progress)


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
    from deploykit.flow.pipeline import verify as judge

    signers = _path(allowed_signers)
    return judge(Path(package), numerics=numerics, expect_digest=expect_digest, allowed_signers=signers)


def explain(package: AnyPath) -> Explanation:
    """A package in words, from its manifest: can it be shipped, what was decided, changed and measured.

    PackageError when the folder is no package, or its manifest was changed.
    """
    from deploykit.report.explaining import explain as tell

    return tell(Path(package))


def build(package: AnyPath, *, on_line: Progress | None = None) -> BuildReport:
    """Run a package's own build script; raises PackageError when the package is not as it was made."""
    from deploykit.packages.building import build_package

    return build_package(Path(package), on_line=on_line)


def targets(words: str = "") -> tuple[Device, ...]:
    """The devices of all backends whose id, names or facts contain every word; () where none does. Raises nothing."""
    from deploykit.backend.plugins import all_devices
    from deploykit.tables.devices import search_devices

    return search_devices(all_devices(), words)


def compat(*words: str, sdk: str = "", target: str = "", arch: str = "", tool: str = "", backend: str = "") -> Answer:
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


def _path(given: AnyPath | None) -> Path | None:
    return None if given is None else Path(given)
