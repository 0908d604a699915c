"""A run by ONNX Runtime on the far side, for every backend whose provider has a Python there, and for the plain CPU."""

from __future__ import annotations

import io
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from deploykit.backend.on_device import LONGEST_RUN, DeviceFile, DeviceJob, DeviceRequest, DeviceResults
from deploykit.devices import runner
from deploykit.errors import ToolError

if TYPE_CHECKING:
    import numpy.typing as npt

__all__ = ["OUTPUTS", "PROVIDER_PROFILE", "SESSION_PROFILE", "session_job", "session_results"]

OUTPUTS, _RESULT, _INPUTS = "outputs.npz", "result.json", "inputs.npz"
SESSION_PROFILE, PROVIDER_PROFILE = "session_profile.json", "provider_profile.csv"


def session_job(
    request: DeviceRequest,
    *,
    model: str,
    files: Iterable[DeviceFile],
    provider: str = "",
    options: Mapping[str, str] | None = None,
    entries: Mapping[str, str] | None = None,
    plugin: Mapping[str, Any] | None = None,
    profile_options: Mapping[str, str] | None = None,
    distributions: Mapping[str, str] | None = None,
    where: str = "device",
) -> DeviceJob:
    """Run ``model``, one of ``files``, by the runner in the device's Python. ToolError where the device has none.

    ``plugin`` names the module that brings the ``provider``: its function that gives the ``library``, by option those
    that give ``paths``, and where these lie in an ONNX Runtime that has the provider ``built_in``. ``distributions``
    must be installed there in these very versions.
    """
    place = request.place
    if not place.python:
        raise ToolError(
            f"{place.name}: has no Python that was found",
            why="this package is run by ONNX Runtime's provider in a Python there",
            next="--python PATH, or python = … under the device's name in deploykit.toml",
        )
    job = {
        "model": model,
        "provider": provider,
        "options": dict(options or {}),
        "entries": dict(entries or {}),
        "plugin": plugin,
        "samples": len(request.feeds),
        "iterations": request.iterations,
        "warmup": request.warmup,
        "seconds": request.seconds,
        "profile": request.profile,
        "profile_options": dict(profile_options or {}),
    }
    inputs = io.BytesIO()
    arrays: dict[str, Any] = {f"{at}:{name}": v for at, feed in enumerate(request.feeds) for name, v in feed.items()}
    np.savez(inputs, **arrays)
    return DeviceJob(
        files=(
            *files,
            DeviceFile(path="runner.py", source=Path(runner.__file__)),
            DeviceFile(path="job.json", source=json.dumps(job).encode()),
            DeviceFile(path=_INPUTS, source=inputs.getvalue()),
        ),
        argv=(place.python, "runner.py"),
        environment={"PYTHONSAFEPATH": "1", "PYTHONDONTWRITEBYTECODE": "1"},
        results=(OUTPUTS, _RESULT),
        optional=(SESSION_PROFILE, PROVIDER_PROFILE) if request.profile else (),
        distributions=dict(distributions or {}),
        where=where,
        timeout=LONGEST_RUN + 3 * request.seconds,
    )


def session_results(request: DeviceRequest, folder: Path) -> DeviceResults:
    """What the runner left, without what a profile says; ToolError for what is not of its shape."""
    outputs = [dict[str, "npt.NDArray[Any]"]() for _ in request.feeds]
    try:
        with np.load(folder / OUTPUTS, allow_pickle=False) as stored:
            for key in stored.files:
                number, _, name = key.partition(":")
                outputs[int(number)][name] = np.asarray(stored[key])
        told = json.loads((folder / _RESULT).read_text("utf-8"))
        results = DeviceResults(
            outputs=tuple(outputs),
            latencies_us=tuple(float(value) for value in told["latencies_us"]),
            init_us=float(told["init_us"]),
            peak_mb=None if told["peak_mb"] is None else float(told["peak_mb"]),
            libraries={str(name): str(version) for name, version in told["versions"].items()},
        )
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise ToolError(f"{request.place.name}: sent results that cannot be read", why=repr(error)) from None
    if any(value <= 0 for value in results.latencies_us):
        raise ToolError(f"{request.place.name}: measured times that are none", why="its clock jumps")
    return results
