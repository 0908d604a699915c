"""The child process that compiles, runs and reads context binaries: a crash of vendor code ends only this process.

Only deploykit starts it, also in a Python without deploykit, so it imports nothing of the core. Every path is relative
to the working folder, since the provider mixes the model's path into the names inside the binary. Lines on standard
error that begin with ``PROGRESS`` are news for the parent. Only ``add_provider_for_devices`` puts a model on the
provider: ``providers=[...]`` silently gives a CPU session.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

from deploykit_ort_qnn.compiler.context_reader import ContextReadError, read_context_binary

__all__ = ["main"]

EP_NAME = "QNNExecutionProvider"


class NotOnProviderError(Exception):
    """The session exists, but not on the QNN provider."""


def npu_session(model: str, *, options: Mapping[str, str], entries: Mapping[str, str]) -> Any:
    """A session whose first provider is QNN. Raises ONNX Runtime's own errors, or NotOnProviderError."""
    import onnxruntime as ort
    import onnxruntime_qnn as qnn

    ort.register_execution_provider_library(qnn.EP_NAME, qnn.get_library_path())
    # On a build machine the provider's only device is the CPU, so none is looked for by the type NPU.
    devices = [device for device in ort.get_ep_devices() if device.ep_name == qnn.EP_NAME][:1]
    if not devices:
        raise NotOnProviderError("the registered library offers no device")
    settings = _settings()
    for key, value in entries.items():
        settings.add_session_config_entry(key, value)
    settings.add_provider_for_devices(devices, {"backend_path": qnn.get_qnn_htp_path(), **options})
    # Without this the Python wrapper answers a provider's error by silently opening the model on the CPU.
    session = ort.InferenceSession(model, sess_options=settings, enable_fallback=0)
    providers = session.get_providers()
    if not providers or providers[0] != EP_NAME:
        raise NotOnProviderError(f"the session's providers are {', '.join(providers) or 'none'}")
    return session


def _settings() -> Any:
    """Session settings: no log, and no threads that spin while they wait for the compiler or the emulator."""
    import onnxruntime as ort

    settings = ort.SessionOptions()
    settings.log_severity_level = 3
    settings.add_session_config_entry("session.intra_op.allow_spinning", "0")
    return settings


PROGRESS = "deploykit-progress: "
NOTHING_TAKEN = "the provider took no node"
"""The same text as in ``hosts``, which cannot be imported here: this module also runs without deploykit."""


def compile_context(request: Mapping[str, Any]) -> dict[str, Any]:
    """Compiles a model: opens it with context generation on, which writes the files."""
    context = Path(request["context"])
    entries = {
        "ep.context_enable": "1",
        "ep.context_file_path": str(context),
        "ep.context_embed_mode": "1" if request["embed"] else "0",
        **request["entries"],
    }
    if not request["allow_cpu"]:
        entries["session.disable_cpu_ep_fallback"] = "1"
    _say(f"compiling {request['model']}")
    npu_session(request["model"], options=request["options"], entries=entries)
    if not context.exists():
        return {"ok": False, "error": NOTHING_TAKEN}
    return {}


def write_dlc(request: Mapping[str, Any]) -> dict[str, Any]:
    """Writes a model as DLC: opens it with the IR backend, which writes a file into the folder during compilation."""
    import onnxruntime_qnn as qnn

    # The backend inside the wheel that writes a graph down instead of compiling it.
    writer = str(Path(qnn.LIB_DIR_FULL_PATH) / "libQnnIr.so")
    options = {"dump_qnn_ir_dlc": "1", "dump_qnn_ir_dlc_dir": request["folder"], "qnn_ir_backend_path": writer}
    entries = {"session.disable_cpu_ep_fallback": "1", **request["entries"]}
    _say(f"writing {request['model']} as DLC")
    npu_session(request["model"], options={**request["options"], **options}, entries=entries)
    return {}


def run_both(request: Mapping[str, Any]) -> dict[str, Any]:
    """Several runs, one after the other, in one process; the first failure is the answer.

    Each run takes the input sets of an npz file and writes the outputs to another: as many as end within ``seconds``,
    at least one. Keys are ``<set>:<name>``. With provider ``npu`` the emulator executes a compiled model.
    """
    import numpy as np

    for run in request["runs"]:
        provider, feeds, results = run["provider"], dict[str, dict[str, Any]](), dict[str, Any]()
        with np.load(run["inputs"]) as data:
            for key in data.files:
                index, name = key.split(":", 1)
                feeds.setdefault(index, {})[name] = data[key]
        try:
            if provider == "npu":
                session = npu_session(run["model"], options=run["options"], entries={})
            else:
                import onnxruntime as ort

                settings = _settings()
                settings.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
                session = ort.InferenceSession(run["model"], sess_options=settings, providers=["CPUExecutionProvider"])
            names, started = [output.name for output in session.get_outputs()], time.monotonic()
            for number, (index, feed) in enumerate(sorted(feeds.items(), key=lambda item: int(item[0])), 1):
                _say(f"running input {number} of {len(feeds)} on {provider}")
                for name, value in zip(names, session.run(None, feed), strict=True):
                    results[f"{index}:{name}"] = value
                if (time.monotonic() - started) * (number + 1) > run["seconds"] * number:
                    break  # the next one would end later
        except Exception as error:  # that the model refuses an input is an answer, too
            return {"ok": False, "error": _first_line(error), "provider": provider}
        with Path(run["outputs"]).open("wb") as file:
            np.savez(file, **results)
    return {}


def read_context(request: Mapping[str, Any]) -> dict[str, Any]:
    """Reads the metadata of a context binary with the vendor's library."""
    return {"context": read_context_binary(Path(request["path"]), _say)}


# Each action with the errors that count as an answer: the native library raises each error as a class of its own.
_ACTIONS: Mapping[str, tuple[Callable[[Mapping[str, Any]], dict[str, Any]], type[Exception]]] = {
    "compile": (compile_context, Exception),
    "dlc": (write_dlc, Exception),
    "run-both": (run_both, NotOnProviderError),
    "context": (read_context, ContextReadError),
}


def main(arguments: list[str]) -> int:
    """Handles one request; the result file exists only if the request was handled to its end."""
    request_path, result_path = arguments
    request = json.loads(Path(request_path).read_text("utf-8"))
    if request["action"] != "context":  # a context needs the vendor's library only, and importing takes half its time
        import_module("onnxruntime")  # a missing module says nothing about the model, so it is not caught
    action, errors = _ACTIONS[request["action"]]
    try:
        result = {"ok": True, **action(request)}
    except errors as error:
        result = {"ok": False, "error": _first_line(error)}
    Path(result_path).write_text(json.dumps(result), "utf-8")
    return 0


def _say(line: str) -> None:
    print(PROGRESS + line, file=sys.stderr, flush=True)


def _first_line(error: Exception) -> str:
    if isinstance(error, NotOnProviderError):
        return f"not on the NPU: {error}"
    return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
