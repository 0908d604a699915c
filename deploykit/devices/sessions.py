"""Runs ONNX Runtime on the remote side, for every backend whose provider works with Python, and for the plain CPU."""

from __future__ import annotations

import io
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from msgspec.structs import fields

from deploykit.backend.on_device import LONGEST_RUN, DeviceFile, DeviceJob, DeviceRequest, DeviceResults, Measuring
from deploykit.devices import runner
from deploykit.devices.profiles import Origins, read_session_profile
from deploykit.errors import ToolError
from deploykit.findings.records import Json, Numbers

__all__ = ["PROVIDER_PROFILE", "session_job", "session_results"]

PROVIDER_PROFILE = "provider_profile.csv"
_OUTPUTS, _RESULT, _PROFILE = "outputs.npz", "result.json", "session_profile.json"


def session_job(
    request: DeviceRequest,
    asked: Json,
    files: Iterable[DeviceFile],
    *,
    distributions: Mapping[str, str] | None = None,
    where: str = "device",
) -> DeviceJob:
    """Make a job that runs a model, one of ``files``, with the runner in the device's Python.

    ``asked`` names the ``model`` and, unless the CPU runs it, the ``provider`` with its ``options``, session
    ``entries``, ``profile_options`` for the profiled run, and the ``plugin`` that brings the provider. A plugin has a
    module, the name of its function that returns the ``library``, the functions that return the ``paths`` of options,
    and those paths for an ONNX Runtime with the provider ``built_in``. ``distributions`` must be installed there in
    exactly these versions. Raises ToolError if the device has no Python.
    """
    place = request.place
    if not place.python:
        raise ToolError(
            f"{place.name}: has no Python that was found",
            why="this package is run by ONNX Runtime's provider in a Python there",
            next="--python PATH, or python = … under the device's name in deploykit.toml",
        )
    measuring = {field.name: getattr(request, field.name) for field in fields(Measuring)}
    job = {**asked, **measuring, "samples": len(request.feeds)}
    inputs = io.BytesIO()
    arrays: dict[str, Any] = {f"{at}:{name}": v for at, feed in enumerate(request.feeds) for name, v in feed.items()}
    np.savez(inputs, **arrays)
    return DeviceJob(
        files=(
            *files,
            DeviceFile("runner.py", Path(runner.__file__)),
            DeviceFile("job.json", json.dumps(job).encode()),
            DeviceFile("inputs.npz", inputs.getvalue()),
        ),
        argv=(place.python, "runner.py"),
        environment={"PYTHONSAFEPATH": "1", "PYTHONDONTWRITEBYTECODE": "1"},
        results=(_OUTPUTS, _RESULT),
        optional=(_PROFILE, PROVIDER_PROFILE) if request.profile else (),
        distributions=distributions or {},
        where=where,
        timeout=LONGEST_RUN + 3 * request.seconds,
    )


def session_results(
    request: DeviceRequest, folder: Path, origins: Origins | None = None, *, npu: str = ""
) -> DeviceResults:
    """Read what the runner wrote. Raises ToolError if it has another format.

    With ``origins`` the kernels are also read from the session's profile, where ``npu`` is the
    provider that counts as the NPU. None skips them.
    """
    outputs = [dict[str, Numbers]() for _ in request.feeds]
    profile = folder / _PROFILE
    known = origins if profile.is_file() else None
    operators = () if known is None else read_session_profile(profile, known, {npu: "NPU"})
    try:
        with np.load(folder / _OUTPUTS, allow_pickle=False) as stored:
            for key in stored.files:
                number, _, name = key.partition(":")
                outputs[int(number)][name] = np.asarray(stored[key])
        told = json.loads((folder / _RESULT).read_text("utf-8"))
        return DeviceResults(
            outputs=tuple(outputs),
            latencies_us=tuple(map(float, told["latencies_us"])),
            init_us=float(told["init_us"]),
            peak_mb=None if told["peak_mb"] is None else float(told["peak_mb"]),
            operators=operators,
            libraries={str(name): str(version) for name, version in told["versions"].items()},
        )
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise ToolError(f"{request.place.name}: sent results that cannot be read", why=repr(error)) from None
