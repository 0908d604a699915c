"""Every file of a qnn-htp package: model, encodings, calibration data, configurations, scripts. Pure text and bytes."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from deploykit.adapter import BytesFile, JsonFile, PackageFile, Situation, TextFile, copied_model
from deploykit.errors import DefectError
from deploykit.plan import Plan
from deploykit.rendering import render
from deploykit_qnn_htp.commands import HOST
from deploykit_qnn_htp.planning import Details

if TYPE_CHECKING:
    from deploykit_qnn_htp.draft import Candidate

__all__ = ["package_files"]


def package_files(situation: Situation, plan: Plan, templates: Path | None) -> Iterator[PackageFile]:
    """The files of the package, one after the other, so that calibration data is never held as a whole."""
    details = plan.details
    if not isinstance(details, Details):
        raise DefectError("a plan of another backend is rendered by qnn-htp")
    paths = details.paths
    yield from copied_model(situation, paths.model)
    if details.conversion is not None:
        yield TextFile(path=paths.encodings, text=details.conversion.text)
        if details.conversion.float_tensors:
            yield JsonFile(
                path="encodings/float_tensors.json",
                value={"schema": 1, "float_tensors": sorted(details.conversion.float_tensors)},
            )
    yield from _calibration(situation, details.candidate)
    for path, value in plan.configs.items():
        yield JsonFile(path=path, value=value)
    yield JsonFile(path=paths.types, value=_intended_types(plan))
    yield from _scripts(situation, plan, details, templates)


def _intended_types(plan: Plan) -> dict[str, Any]:
    """What ``check_types.py`` compares the converter's types with."""
    return {"schema": 1, "types": dict(sorted(plan.precision.expected.items()))}


def _calibration(situation: Situation, candidate: Candidate) -> Iterator[PackageFile]:
    path = situation.request.calibration
    if path is None or not candidate.route.input_list:
        return
    from deploykit.calibration import read_samples

    lines = []
    for index, sample in enumerate(read_samples(path, situation.facts)):
        words = []
        for position, (name, values) in enumerate(sample.items()):
            file = f"calibration/sample_{index:05d}/input_{position}.raw"
            yield BytesFile(path=file, data=values.tobytes())
            words.append(f"{name}:={file}")
        lines.append(" ".join(words))
    yield TextFile(path="calibration/input_list.txt", text="\n".join(lines) + "\n")


def _scripts(situation: Situation, plan: Plan, details: Details, templates: Path | None) -> Iterator[PackageFile]:
    values = _script_values(situation, plan, details)
    for script in ("build.sh", "run_on_device.sh"):
        text = render(f"qnn_htp/scripts/{script}.j2", values, templates=templates)
        yield TextFile(path=f"scripts/{script}", text=text, executable=True)
    for script in ("check_types.py", "run_tail.py") if situation.tail is not None else ("check_types.py",):
        text = render(f"qnn_htp/scripts/{script}.j2", values, templates=templates)
        yield TextFile(path=f"scripts/{script}", text=text, executable=True)


def _script_values(situation: Situation, plan: Plan, details: Details) -> dict[str, Any]:
    device, arch = situation.target.device, details.candidate.draft.arch
    return {
        "deploykit": version("deploykit"),
        "device": device.name,
        "sdk_version": str(plan.sdk["version"]),
        "exact_build": str(plan.sdk["version"]).count(".") >= 3,
        "route": plan.route.id if plan.route is not None else "",
        "steps": [step for step in plan.steps if step.where == "host"],
        "device_steps": [step for step in plan.steps if step.where == "device"],
        "paths": details.paths,
        "host": HOST,
        "arch": arch,
        "arch_number": arch.lstrip("v"),
        "legacy": details.candidate.route.legacy,
        "compares_types": details.candidate.route.legacy and bool(plan.precision.expected),
        "has_tail": situation.tail is not None,
        "has_encodings": details.conversion is not None,
        "has_input_list": details.candidate.route.input_list,
    }
