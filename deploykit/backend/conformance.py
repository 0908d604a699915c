"""What every backend must hold, as checks that a third party runs on its own: ``assert not backend_problems("mine")``.

It judges a backend by ``deploykit.backend.backend`` and by what its packages are on disk. How a package
is made and verified is handed to it: ``partial(deploykit.package, "model.onnx", target="mine")``, ``deploykit.verify``.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from deploykit.backend.backend import AnyBackend
from deploykit.backend.options import check_value
from deploykit.backend.plans import Plan
from deploykit.backend.plugins import all_options, load_backend
from deploykit.backend.requests import RESERVED_NAMES
from deploykit.errors import UsageError

__all__ = ["backend_problems", "package_problems"]

_HEAVY = ("onnx", "onnxruntime", "numpy", "torch")


def backend_problems(backend_id: str) -> tuple[str, ...]:
    """What is wrong with a backend before it has seen a model; empty when nothing is."""
    backend = load_backend(backend_id)
    checks: tuple[Callable[[AnyBackend], Iterator[str]], ...] = (
        *(_identity, _devices, _options, _rules, _compat, _compilers),
    )
    return tuple(problem for check in checks for problem in check(backend)) + tuple(_import(backend_id))


def _identity(backend: AnyBackend) -> Iterator[str]:
    if load_backend(backend.id) is not backend:
        yield f"id {backend.id!r} is not the entry point's name"
    if not backend.summary:
        yield "no summary"


def _devices(backend: AnyBackend) -> Iterator[str]:
    devices = backend.devices()
    if not devices:
        yield "no devices"
    ids = [device.id for device in devices]
    yield from (f"device {name}: twice" for name in sorted({name for name in ids if ids.count(name) > 1}))
    yield from (f"device {device.id}: not lower case" for device in devices if device.id != device.id.lower())
    yield from (
        f"device {device.id}: does not name this backend" for device in devices if backend.id not in device.backends
    )
    for device in devices:
        yield from (
            f"device {device.id}: {name} has no source" for name, fact in device.facts.items() if not fact.source
        )


def _options(backend: AnyBackend) -> Iterator[str]:
    specs = backend.options()
    names = [spec.name for spec in specs]
    yield from (f"option {name}: twice" for name in sorted({name for name in names if names.count(name) > 1}))
    kinds = {spec.name: spec.kind for spec, owners in all_options().items() if owners != (backend.id,)}
    for spec in specs:
        if not re.fullmatch(r"(?!no_)[a-z][a-z0-9_]*", spec.name) or spec.name in RESERVED_NAMES:
            yield f"option {spec.name}: lower case with underscores, without no_, and no name of the core's"
        if not spec.help or (spec.kind == "choice") != bool(spec.choices):
            yield f"option {spec.name}: a help text is needed, and choices for a choice only"
        if kinds.get(spec.name, spec.kind) != spec.kind:
            yield f"option {spec.name}: another backend has it as {kinds[spec.name]}; take another name"
        try:
            check_value(spec, spec.default)
        except UsageError as error:
            yield f"option {spec.name}: the default is wrong: {error.what}"


def _rules(backend: AnyBackend) -> Iterator[str]:
    rules = [rule for registry in backend.registries() for rule in registry]
    for rule in rules:
        if not (rule.what and rule.why and rule.fix and rule.sources):
            yield f"rule {rule.code}: what, why, fix and sources are all needed"
    codes = [rule.code for rule in rules]
    yield from (f"rule {code}: twice" for code in sorted({code for code in codes if codes.count(code) > 1}))


def _compat(backend: AnyBackend) -> Iterator[str]:
    for row in backend.compat():
        if row.status != "unknown" and not (row.source and row.confidence):
            yield f"compat row {row.feature} {row.tool}: no source or confidence"


def _compilers(backend: AnyBackend) -> Iterator[str]:
    """Who can be asked for a second opinion has a name and a release, or there is a reason why nobody can be."""
    if not backend.offers("compilers"):
        return
    for device in backend.devices():
        compilers = backend.compilers(device, "")
        if not compilers:
            yield f"compilers for {device.id}: none, and not why"
        for compiler in compilers:
            if bool(compiler.missing) == bool(compiler.name and compiler.release):
                yield f"compiler for {device.id}: a name and a release are needed, or why there is none"


def _import(backend_id: str) -> Iterator[str]:
    """Importing the backend must stay cheap, because queries import all of them."""
    code = (
        "import sys; from deploykit.backend.plugins import load_backend\n"
        f"load_backend({backend_id!r}); print(*(name for name in {_HEAVY!r} if name in sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, encoding="utf-8", check=False)
    if done.returncode:
        yield f"cannot be imported on its own: {done.stderr.strip().splitlines()[-1]}"
    elif done.stdout.strip():
        yield f"importing it imports {done.stdout.strip()}"


def package_problems(make: Callable[..., Any], verify: Callable[[Path], Any], scratch: Path) -> tuple[str, ...]:
    """What is wrong with the packages that ``make(out=folder, compile=False)`` writes; two are made in ``scratch``.

    ``make`` is ``deploykit.package`` with a model and a target, ``verify`` is ``deploykit.verify``; ``scratch`` is an
    empty folder of the caller's.
    """
    first, second = (make(out=scratch / name, compile=False) for name in ("first", "second"))
    return (*_plans(first.plan, second.plan), *_packages(first, second, verify))


def _plans(first: Plan[Any], second: Plan[Any]) -> Iterator[str]:
    if first.to_json() != second.to_json():
        yield "two plans of one request differ"
    for step in first.steps:
        if step.where not in ("host", "device") or not step.argv or not step.tool:
            yield f"step {step.id}: host or device, a tool and an argv are needed"
        yield from (f"step {step.id}: absolute path {word}" for word in step.argv if word.startswith("/"))
    if first.route is None and not any(finding.blocks for finding in first.findings):
        yield "no route, and no finding says why"


def _packages(first: Any, second: Any, verify: Callable[[Path], Any]) -> Iterator[str]:
    if first.package is None or second.package is None:
        if first.exit_status != 1:
            yield "no package and no exit status 1"
        return
    names = [_files(first.package), _files(second.package)]
    if names[0] != names[1]:
        yield "two packages of one request have other files"
    for name in names[0]:
        if (first.package / name).read_bytes() != (second.package / name).read_bytes():
            yield f"{name}: two packages of one request differ"
    yield from (f"verify: {check.id}: {check.detail}" for check in verify(first.package).checks if not check.ok)
    for wanted in ("README.md", "report.html"):
        if wanted not in names[0]:
            yield f"{wanted} is missing"


def _files(folder: Path) -> list[str]:
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())
