"""Every file of an ort-qnn package: the QDQ model, options, intended types and scripts. Bytes and text, no disk."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

from deploykit.contract.backend import BytesFile, JsonFile, PackageFile, TextFile, copied_model
from deploykit.contract.plans import Plan
from deploykit.packages.rendering import render
from deploykit_ort_qnn.commands import CONTEXT, MODEL, TAIL
from deploykit_ort_qnn.configs import COMPILE, RUN, TYPES
from deploykit_ort_qnn.prepare import Draft
from deploykit_qualcomm.hosts import LINUX, host_toolchain

__all__ = ["package_files"]


def package_files(draft: Draft, plan: Plan[None], templates: Path | None) -> Iterator[PackageFile]:
    """The files of the package."""
    situation, prepared = draft.situation, draft.prepared
    if prepared is None:
        yield from copied_model(situation, MODEL)
    else:
        yield BytesFile(path=MODEL, data=prepared.model.SerializeToString(deterministic=True))
        if situation.tail is not None:
            yield BytesFile(path=TAIL, data=situation.tail)
    for path, value in plan.configs.items():
        yield JsonFile(path=path, value=value)
    yield JsonFile(path=TYPES, value=_types(plan, draft))
    values = {
        "deploykit": version("deploykit"),
        "wheel": draft.wheel.version,
        "qairt": draft.wheel.sdk,
        "device": situation.target.device.name,
        "model": MODEL,
        "context": CONTEXT,
        "tail": TAIL if situation.tail is not None else "",
        "compile_options": COMPILE,
        "run_options": RUN,
        "toolchain": _toolchain(draft),
        "other_python": _other_python(draft),
    }
    for script in ("build.sh", "compile.py", "run.py", "run_on_device.sh"):
        text = render(f"ort_qnn/scripts/{script}.j2", values, templates=templates)
        yield TextFile(path=f"scripts/{script}", text=text, executable=True)


def _types(plan: Plan[None], draft: Draft) -> dict[str, Any]:
    prepared = draft.prepared
    return {
        "schema": 1,
        "types": dict(sorted(plan.precision.intended.items())),
        "stored": {} if prepared is None else dict(sorted(prepared.stored.items())),
        "steps": [] if prepared is None else [step.to_json() for step in prepared.steps],
        "strict": bool(draft.options.get("strict_precision")),
    }


def _toolchain(draft: Draft) -> dict[str, Any] | None:
    """What compile.py needs to know of the toolchain that runs this wheel, None where the wheel runs by itself."""
    spec = host_toolchain(draft.wheel.sdk)
    if spec is None or draft.wheel.runs_on(LINUX) is not None:
        return None
    programs = [program for need in spec.needs for program in need.programs]
    folder = f"{spec.name}-{spec.version}"
    return {"folder": folder, "programs": programs, "environment": dict(spec.environment)}


def _other_python(draft: Draft) -> str:
    """The folder of the toolchain that has this wheel in a Python of its own, "" without one."""
    spec = host_toolchain(draft.wheel.sdk)
    return "" if spec is None or draft.wheel.runs_on(LINUX) is None else f"{spec.name}-{spec.version}"
