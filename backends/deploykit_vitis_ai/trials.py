"""Measures another request for the same model in a copy of the package: whether it would be better is seen before.

It decides nothing and leaves the package alone.
"""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from deploykit.backend.backend import Progress, Request
from deploykit.errors import ToolError
from deploykit.system.folders import scratch
from deploykit_vitis_ai import configs
from deploykit_vitis_ai.draft import Draft, make_draft
from deploykit_vitis_ai.measuring import Measured, measure
from deploykit_vitis_ai.prepare import Prepared

if TYPE_CHECKING:
    from deploykit.system.environments import Environment

__all__ = ["tried"]


def tried(
    environment: Environment, package: Path, details: Prepared, request: Request, progress: Progress
) -> Measured | None:
    """What the request's recipe makes of the package's data; None where the quantizer gave up."""
    draft = make_draft(replace(details.draft.situation, request=request))
    recipe = _recipe(draft, details, json.loads((package / configs.RECIPE).read_text("utf-8"))["calibration"])
    with scratch() as folder:
        copy = folder / "package"
        shutil.copytree(package, copy, ignore=shutil.ignore_patterns("artifacts", "logs"))
        (copy / configs.RECIPE).write_text(json.dumps(recipe), "utf-8")
        try:
            # A model that only validates is never asked for again, and must not push out one that is.
            return measure(environment, copy, draft, progress, trial=draft.needs_quark)
        except ToolError as error:
            progress(f"not tried: {error.what}")
            return None


def _recipe(draft: Draft, details: Prepared, calibration: dict[str, Any]) -> dict[str, Any]:
    """How the quantizer makes the model, or imitates what the compiler will make of it."""
    if draft.needs_quark:
        return configs.quantize_recipe(draft, calibration, details.inputs)
    return configs.validation_recipe(draft, details.inputs, calibration)
