"""Every file of an ort-qnn package: the QDQ model, options, intended types and scripts. Bytes and text, no disk."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

from deploykit.contract.backend import BytesFile, JsonFile, PackageFile, Situation, TextFile, copied_model
from deploykit.contract.plans import Plan
from deploykit.errors import DefectError
from deploykit.packages.rendering import render
from deploykit_ort_qnn.commands import CONTEXT, MODEL, TAIL
from deploykit_ort_qnn.configs import COMPILE, RUN, TYPES
from deploykit_ort_qnn.planning import Details

__all__ = ["package_files"]


def package_files(situation: Situation, plan: Plan, templates: Path | None) -> Iterator[PackageFile]:
    """The files of the package."""
    details = plan.details
    if not isinstance(details, Details):
        raise DefectError("a plan of another backend is rendered by ort-qnn")
    prepared = details.draft.prepared
    if prepared is None:
        yield from copied_model(situation, MODEL)
    else:
        yield BytesFile(path=MODEL, data=prepared.model.SerializeToString(deterministic=True))
        if situation.tail is not None:
            yield BytesFile(path=TAIL, data=situation.tail)
    for path, value in plan.configs.items():
        yield JsonFile(path=path, value=value)
    yield JsonFile(path=TYPES, value=_types(plan, details))
    values = {
        "deploykit": version("deploykit"),
        "wheel": details.draft.wheel.version,
        "qairt": details.draft.wheel.sdk,
        "device": situation.target.device.name,
        "model": MODEL,
        "context": CONTEXT,
        "tail": TAIL if situation.tail is not None else "",
        "compile_options": COMPILE,
        "run_options": RUN,
    }
    for script in ("build.sh", "compile.py", "run.py", "run_on_device.sh"):
        text = render(f"ort_qnn/scripts/{script}.j2", values, templates=templates)
        yield TextFile(path=f"scripts/{script}", text=text, executable=True)


def _types(plan: Plan, details: Details) -> dict[str, Any]:
    prepared = details.draft.prepared
    return {
        "schema": 1,
        "types": dict(sorted(plan.precision.intended.items())),
        "stored": {} if prepared is None else dict(sorted(prepared.stored.items())),
        "steps": [] if prepared is None else [step.to_json() for step in prepared.steps],
        "strict": bool(details.draft.options.get("strict_precision")),
    }
