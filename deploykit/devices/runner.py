"""Runs a model on given samples on the machine it was pushed to, and measures: reads job.json, writes result.json.

It is self-contained, for a Python with numpy and ONNX Runtime: it imports nothing of deploykit and knows no provider.
"""

from __future__ import annotations

import importlib
import json
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort

__all__ = ["main"]

_PROFILED_RUNS = 2


def open_session(job: Mapping[str, Any], *, profile: str = "") -> Any:
    """Open a session on the provider of the job and on no other; ``profile`` is the file name prefix of a profile.

    Exits the process if the provider is not used. "" measures no profile.
    """
    settings = ort.SessionOptions()
    settings.log_severity_level = 3
    if profile:
        settings.enable_profiling = True
        settings.profile_file_prefix = profile
    for key, value in job.get("entries", {}).items():
        settings.add_session_config_entry(key, value)
    wanted, plugin, module = job.get("provider", ""), job.get("plugin"), plugin_module(job)
    options = {**job.get("options", {}), **(job.get("profile_options", {}) if profile else {})}
    providers: list[Any] | None = [(wanted, options)] if wanted else ["CPUExecutionProvider"]
    if plugin is not None and module is not None:
        with suppress(Exception):  # already registered by an earlier session of this process
            ort.register_execution_provider_library(wanted, getattr(module, plugin["library"])())
        devices = [device for device in ort.get_ep_devices() if device.ep_name == wanted][:1]
        if not devices:
            sys.exit(f"the registered library of {wanted} offers no device")
        found = {key: getattr(module, name)() for key, name in plugin["paths"].items()}
        settings.add_provider_for_devices(devices, {**found, **options})
        providers = None
    elif plugin is not None:
        beside = {key: str(Path(ort.__file__).parent / path) for key, path in plugin["built_in"].items()}
        providers = [(wanted, {**beside, **options})]
    session = ort.InferenceSession(job["model"], sess_options=settings, providers=providers, enable_fallback=0)
    if wanted and session.get_providers()[0] != wanted:
        sys.exit(f"the session is on {session.get_providers()}, not on {wanted}")
    return session


def plugin_module(job: Mapping[str, Any]) -> Any:
    """Return the module that brings the provider; None if none is named or the provider is built in."""
    with suppress(ImportError, LookupError):
        return importlib.import_module(job["plugin"]["module"])
    return None


def measured(session: Any, feed: Mapping[str, Any], job: Mapping[str, Any]) -> list[float]:
    """Return the microseconds of each inference after the warm-up, within the job's limits of count and seconds.

    The clock is monotonic, so setting the system clock does not affect it.
    """
    until = time.monotonic() + job["seconds"]
    for _ in range(job["warmup"]):
        if time.monotonic() >= until:
            break
        session.run(None, feed)
    until, taken = time.monotonic() + job["seconds"], list[float]()
    while len(taken) < job["iterations"] and (not taken or time.monotonic() < until):
        start = time.perf_counter_ns()
        session.run(None, feed)
        taken.append((time.perf_counter_ns() - start) / 1000)
    return taken


def peak_mb() -> float | None:
    """The peak resident set size of this process in MiB, None if the system does not report it."""
    try:
        import resource
    except ImportError:
        return None
    return round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, 1)


def main() -> None:
    """Run the samples, measure repeated inferences of the first, and profile in a separate session."""
    job = json.loads(Path("job.json").read_text("utf-8"))
    versions = {"onnxruntime": ort.__version__, "python": sys.version.split()[0]}
    if (module := plugin_module(job)) is not None:
        versions[module.__name__] = str(getattr(module, "__version__", ""))
    start = time.perf_counter_ns()
    session = open_session(job)
    init = (time.perf_counter_ns() - start) / 1000
    read, made = [value.name for value in session.get_inputs()], [value.name for value in session.get_outputs()]
    with np.load("inputs.npz") as stored:
        feeds = [{name: stored[f"{number}:{name}"] for name in read} for number in range(job["samples"])]
    outputs = {
        f"{number}:{name}": value
        for number, feed in enumerate(feeds)
        for name, value in zip(made, session.run(None, feed), strict=True)
    }
    np.savez("outputs.npz", **outputs)
    result = {
        "init_us": init,
        "latencies_us": measured(session, feeds[0], job) if job["iterations"] else [],
        "peak_mb": peak_mb(),
        "versions": versions,
    }
    # Written last and atomically: whoever finds it also finds all other files.
    part = Path("result.json.part")
    part.write_text(json.dumps(result), "utf-8")
    part.replace("result.json")
    if job["profile"]:
        del session
        profiled = open_session(job, profile="session_profile")
        for _ in range(_PROFILED_RUNS):
            profiled.run(None, feeds[0])
        Path(profiled.end_profiling()).replace("session_profile.json")


if __name__ == "__main__":
    main()
