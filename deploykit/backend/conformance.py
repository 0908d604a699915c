"""Checks that every backend must pass, for third parties to run: ``assert not backend_problems("mine")``.

They judge a backend by ``deploykit.backend.backend`` and by its packages on disk. The functions that make and verify a
package are passed in: ``partial(deploykit.package, "model.onnx", target="mine")``, ``deploykit.verify``.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from deploykit.backend.backend import AnyBackend
from deploykit.backend.options import check_value
from deploykit.backend.plugins import all_options, load_backend
from deploykit.backend.requests import RESERVED_NAMES
from deploykit.errors import UsageError

__all__ = ["backend_problems", "package_problems"]

_HEAVY = ("onnx", "onnxruntime", "numpy", "torch")


def backend_problems(backend_id: str) -> tuple[str, ...]:
    """The faults of a backend that show without a model; empty if there are none."""
    backend = load_backend(backend_id)
    found = [problem for check in (_itself, _devices, _options, _rules) for problem in check(backend)]
    wrong = () if backend.id == backend_id else (f"id {backend.id!r} is not the entry point's name",)
    return (*wrong, *found, *_import(backend_id))


def _itself(backend: AnyBackend) -> Iterator[str]:
    if not backend.summary:
        yield "no summary"
    for row in backend.compat():
        if row.status != "unknown" and not (row.source and row.confidence):
            yield f"compat row {row.feature} {row.tool}: no source or confidence"


def _devices(backend: AnyBackend) -> Iterator[str]:
    devices = backend.devices()
    if not devices:
        yield "no devices"
    yield from _twice("device", [device.id for device in devices])
    for device in devices:
        if device.id != device.id.lower():
            yield f"device {device.id}: not lower case"
        if backend.id not in device.backends:
            yield f"device {device.id}: does not name this backend"
        for name, fact in device.facts.items():
            if not fact.source:
                yield f"device {device.id}: {name} has no source"
        # A compiler for second opinions has a name and a release, or a reason why it cannot be asked.
        compilers = backend.compilers(device, "") if backend.offers("compilers") else None
        if compilers is not None and not compilers:
            yield f"compilers for {device.id}: none, and not why"
        for compiler in compilers or ():
            if bool(compiler.missing) == bool(compiler.name and compiler.release):
                yield f"compiler for {device.id}: a name and a release are needed, or why there is none"


def _options(backend: AnyBackend) -> Iterator[str]:
    specs = backend.options()
    yield from _twice("option", [spec.name for spec in specs])
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
        if not rule.what:
            yield f"rule {rule.code}: what, why, fix and sources are all needed"
    yield from _twice("rule", [rule.code for rule in rules])


def _twice(kind: str, names: Sequence[str]) -> Iterator[str]:
    return (f"{kind} {name}: twice" for name, count in sorted(Counter(names).items()) if count > 1)


def _import(backend_id: str) -> Iterator[str]:
    """Yields a fault if importing the backend is not cheap: queries import all backends."""
    code = (
        "import sys; from deploykit.backend.plugins import load_backend\n"
        f"load_backend({backend_id!r}); print(*(name for name in {_HEAVY!r} if name in sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, encoding="utf-8", check=False)
    if done.returncode:
        yield "cannot be imported on its own: " + re.split(r"\n(?=\S)", done.stderr.strip())[-1]
    elif done.stdout.strip():
        yield f"importing it imports {done.stdout.strip()}"


def package_problems(make: Callable[..., Any], verify: Callable[[Path], Any], scratch: Path) -> tuple[str, ...]:
    """The faults of the packages that ``make(out=folder, compile=False)`` writes; two are made in ``scratch``.

    ``make`` is ``deploykit.package`` with a model and a target, ``verify`` is ``deploykit.verify``; ``scratch`` is an
    empty folder.
    """
    first, second = (make(out=scratch / name, compile=False) for name in ("first", "second"))
    return tuple(_differences(first, second, verify))


def _differences(first: Any, second: Any, verify: Callable[[Path], Any]) -> Iterator[str]:
    plan = first.plan
    if plan.to_json() != second.plan.to_json():
        yield "two plans of one request differ"
    for step in plan.steps:
        if step.where not in ("host", "device") or not step.argv or not step.tool:
            yield f"step {step.id}: host or device, a tool and an argv are needed"
        yield from (f"step {step.id}: absolute path {word}" for word in step.argv if word.startswith("/"))
    if plan.route is None and not any(finding.blocks for finding in plan.findings):
        yield "no route, and no finding says why"
    if first.package is None or second.package is None:
        if first.exit_status != 1:
            yield "no package and no exit status 1"
        return
    contents = [
        {path.relative_to(folder).as_posix(): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}
        for folder in (first.package, second.package)
    ]
    if contents[0].keys() != contents[1].keys():
        yield "two packages of one request have other files"
    for name, data in contents[0].items():
        if contents[1].get(name, data) != data:
            yield f"{name}: two packages of one request differ"
    yield from (f"verify: {check.id}: {check.detail}" for check in verify(first.package).checks if not check.ok)
    yield from (f"{wanted} is missing" for wanted in ("README.md", "report.html") if wanted not in contents[0])
