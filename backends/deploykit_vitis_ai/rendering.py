"""The files of a package: the model, calibration data, configurations, and scripts that run without deploykit."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path

from deploykit.backend.backend import CopiedFile, JsonFile, PackageFile, TextFile, copied_model
from deploykit.backend.plans import Plan
from deploykit.report.rendering import render
from deploykit_vitis_ai import configs
from deploykit_vitis_ai.prepare import QuarkPrepared

__all__ = ["render_package"]


def render_package(details: QuarkPrepared, plan: Plan[None], templates: Path | None) -> Iterator[PackageFile]:
    """Yields every file of the package, in a fixed order."""
    draft = details.draft
    yield from copied_model(draft.situation, configs.float_model(draft))
    uses_data = draft.needs_quark or draft.precision == "bf16"
    if uses_data:
        yield from (CopiedFile(path, source) for path, source in details.files)
    reader = details.calibration.reader_file if details.calibration is not None else None
    if reader is not None and uses_data:
        yield CopiedFile(f"calibration/{reader.name}", reader)
    for path, value in plan.configs.items():
        yield JsonFile(path, value)
    release = draft.release
    values = {
        "deploykit": version("deploykit"),
        "device": draft.situation.target.device.name,
        "sdk": f"{release.name} {release.version}" if release is not None else "",
        "route": plan.route.id if plan.route is not None else "",
        "quark": draft.toolchain,
        "needs_quark": draft.needs_quark,
        "compiled_ahead": draft.product.compiled_ahead,
        "needs": draft.product.needs,
        "compiled": configs.compiled_model(draft),
        "random_data": draft.random_data and draft.needs_quark,
    }
    scripts = ["compile.py", "run.py", "build.sh", "run_on_device.sh"]
    if uses_data:
        scripts.insert(0, "quantize.py")
    if draft.product.windows:
        scripts.append("build.ps1")
    for script in scripts:
        text = render(f"vitis_ai/scripts/{script}.j2", values, templates=templates)
        yield TextFile(f"scripts/{script}", text, executable=script != "build.ps1")
