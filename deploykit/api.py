"""The Python API: every command as one function with keyword arguments, heavy modules loaded on the call.

It turns arguments into a request and calls the stage that does it; it adds nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from deploykit.contract.backend import Request

if TYPE_CHECKING:
    from deploykit.contract.plans import Plan
    from deploykit.contract.probes import CheckLine
    from deploykit.deciding.pipeline import Packaged
    from deploykit.diagnosis import Diagnosis
    from deploykit.findings import Finding
    from deploykit.numerics.evaluation import Evaluation
    from deploykit.numerics.locating import Located
    from deploykit.numerics.simulation import Simulation
    from deploykit.packages.building import BuildReport
    from deploykit.packages.verifying import VerifyReport
    from deploykit.quantization.lpbq_files import LpbqReport
    from deploykit.queries.capability_answers import Answer
    from deploykit.tables.devices import Device

__all__ = [
    "build",
    "check",
    "compat",
    "diagnose",
    "doctor",
    "evaluate",
    "locate",
    "lpbq",
    "package",
    "plan",
    "simulate",
    "targets",
    "verify",
]

AnyPath: TypeAlias = str | PathLike[str]


def package(
    model: AnyPath,
    *,
    target: str,
    out: AnyPath,
    force: bool = False,
    templates: AnyPath | None = None,
    progress: Callable[[str], None] | None = None,
    **request: Any,
) -> Packaged:
    """Check, plan, render, write and verify one package.

    ``request`` takes what ``deploykit package`` takes: ``backend``, ``sdk``, ``encodings``, ``float_tensors``,
    ``precision``, ``calibration``, ``mixed``, ``rewrite``, ``no_rewrite``, ``compile``, ``options`` (a mapping of
    configuration keys) and the options of single backends (``route``, ``input_list`` …). Raises DeploykitError for
    files and names that make no sense; a "no" about the model is a result whose ``package`` is None.
    """
    from deploykit.deciding.pipeline import make_package

    made = _request(model, target, request)
    folder = None if templates is None else Path(templates)
    return make_package(made, Path(out), force=force, templates=folder, progress=progress)


def plan(model: AnyPath, *, target: str, **request: Any) -> Plan[Any]:
    """The decision for one model and target, nothing written; arguments as for ``package``."""
    from deploykit.deciding.pipeline import make_plan

    return make_plan(_request(model, target, request))


def check(model: AnyPath, *, target: str, **request: Any) -> tuple[Finding, ...]:
    """Only the findings of a plan; arguments as for ``package``."""
    from deploykit.deciding.pipeline import check as find

    return find(_request(model, target, request))


def verify(package: AnyPath, *, numerics: bool = False) -> VerifyReport:
    """Judge a package on disk, its simulated ``numerics`` included if wanted; PackageError when the folder is none."""
    from deploykit.deciding.pipeline import verify as judge

    return judge(Path(package), numerics=numerics)


def build(package: AnyPath, *, on_line: Callable[[str], None] | None = None) -> BuildReport:
    """Run a package's own build script; raises PackageError when the package is not as it was made."""
    from deploykit.packages.building import build_package

    return build_package(Path(package), on_line=on_line)


def targets(words: str = "") -> tuple[Device, ...]:
    """The devices of all backends whose id, names or facts contain every word."""
    from deploykit.contract.plugins import all_devices
    from deploykit.tables.devices import search_devices

    return search_devices(all_devices(), words)


def compat(*words: str, **filters: str) -> Answer:
    """What the tables of all backends say about ``words``.

    ``filters`` are ``sdk``, ``target``, ``arch``, ``tool`` and ``backend``.
    """
    from deploykit.queries.asking import ask

    return ask(words, **filters)


def diagnose(log: AnyPath, *, model: AnyPath | None = None) -> Diagnosis:
    """Known failures in a vendor's log; ``model`` maps mangled names back to its nodes and tensors."""
    from deploykit.contract.plugins import catalog_of, load_backends
    from deploykit.diagnosis import diagnose as judge
    from deploykit.packages.building import names_of_models

    names = None if model is None else names_of_models([Path(model)])
    with Path(log).open("rb") as stream:
        return judge(stream, catalog_of(load_backends()), names)


def doctor() -> tuple[CheckLine, ...]:
    """What this machine can do: SDKs, wheels, compilers, devices."""
    from deploykit.contract.plugins import load_backends
    from deploykit.queries.machine import examine

    return examine(load_backends())


def evaluate(baseline: AnyPath, candidate: AnyPath, *, data: AnyPath | None = None, **more: Any) -> Evaluation:
    """How close two sets of outputs are, or two models on ``data``; ``more`` as in ``numerics.evaluation.evaluate``."""
    from deploykit.numerics.evaluation import evaluate as judge

    return judge(Path(baseline), Path(candidate), data=None if data is None else Path(data), **more)


def simulate(model: AnyPath, encodings: AnyPath, *, data: AnyPath | None = None, **more: Any) -> Simulation:
    """Quantized inference as the encodings define it, against float; ``more``: ``samples``, ``seed``."""
    from deploykit.numerics.simulation import simulate_files

    return simulate_files(Path(model), Path(encodings), data=None if data is None else Path(data), **more)


def locate(model: AnyPath, candidate: AnyPath | None = None, **more: Any) -> Located:
    """The first operator at which a model and another, or its own simulation (``encodings``), diverge."""
    from deploykit.numerics.probes import locate_files

    paths = {name: Path(path) for name, path in more.items() if name in ("encodings", "data") and path is not None}
    given: dict[str, Any] = {**more, **paths}
    return locate_files(Path(model), None if candidate is None else Path(candidate), **given)


def lpbq(model: AnyPath, out: AnyPath, *, refine: bool = False, force: bool = False) -> LpbqReport:
    """Turn block-quantized int4 weights into LPBQ; the report holds the loss per weight."""
    from deploykit.quantization.lpbq_files import convert_file

    return convert_file(Path(model), Path(out), refined=refine, force=force)


_PATHS = ("encodings", "float_tensors", "calibration")
_NAMES = ("backend", "sdk", "precision", "mixed", "compile")
_LISTS = ("rewrite", "no_rewrite")


def _request(model: AnyPath, target: str, given: Mapping[str, Any]) -> Request:
    rest = dict(given)
    known: dict[str, Any] = {name: Path(rest.pop(name)) for name in _PATHS if rest.get(name) is not None}
    known |= {name: rest.pop(name) for name in _NAMES if name in rest}
    known |= {name: _tuple(rest.pop(name)) for name in _LISTS if name in rest}
    options = rest.pop("options", {})
    pairs = options.items() if isinstance(options, Mapping) else options
    return Request(
        model=Path(model),
        target=target,
        options=tuple((str(key), str(value)) for key, value in pairs),
        adapter_options={name: value for name, value in rest.items() if value is not None},
        **known,
    )


def _tuple(value: str | Iterable[str]) -> tuple[str, ...]:
    return (value,) if isinstance(value, str) else tuple(value)
