"""The Python API: every command as one function with keyword arguments, heavy modules loaded on the call.

It turns arguments into a request and calls the stage that does it; it adds nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from deploykit.adapter import Request

if TYPE_CHECKING:
    from deploykit.build import BuildReport
    from deploykit.devices import Device
    from deploykit.findings import Finding
    from deploykit.pipeline import Packaged
    from deploykit.plan import Plan
    from deploykit.verify import VerifyReport

__all__ = ["build", "check", "package", "plan", "targets", "verify"]

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
    from deploykit.pipeline import make_package

    made = _request(model, target, request)
    folder = None if templates is None else Path(templates)
    return make_package(made, Path(out), force=force, templates=folder, progress=progress)


def plan(model: AnyPath, *, target: str, **request: Any) -> Plan:
    """The decision for one model and target, nothing written; arguments as for ``package``."""
    from deploykit.pipeline import make_plan

    return make_plan(_request(model, target, request))


def check(model: AnyPath, *, target: str, **request: Any) -> tuple[Finding, ...]:
    """Only the findings of a plan; arguments as for ``package``."""
    from deploykit.pipeline import check as find

    return find(_request(model, target, request))


def verify(package: AnyPath) -> VerifyReport:
    """Judge a package on disk; raises PackageError when the folder is none."""
    from deploykit.pipeline import verify as judge

    return judge(Path(package))


def build(package: AnyPath, *, on_line: Callable[[str], None] | None = None) -> BuildReport:
    """Run a package's own build script; raises PackageError when the package is not as it was made."""
    from deploykit.build import build_package

    return build_package(Path(package), on_line=on_line)


def targets(words: str = "") -> tuple[Device, ...]:
    """The devices of all backends whose id, names or facts contain every word."""
    from deploykit.devices import search_devices
    from deploykit.plugins import all_devices

    return search_devices(all_devices(), words)


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
