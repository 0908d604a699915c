"""The child process that compiles, runs and reads context binaries: a crash of vendor code ends only this process.

Only deploykit starts it, also in a Python without deploykit, so it imports nothing of the core. Every path is relative
to the working folder, since the provider mixes the model's path into the names inside the binary. Lines on standard
error that begin with ``PROGRESS`` are news for the parent. Only ``add_provider_for_devices`` puts a model on the
provider: ``providers=[...]`` silently gives a CPU session.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

from deploykit_ort_qnn.compiler.context_reader import ContextReadError, Json, read_context_binary

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


def compile_context(request: Json) -> Json:
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


def write_dlc(request: Json) -> Json:
    """Writes a model as DLC: opens it with the IR backend, which writes a file into the folder during compilation."""
    import onnxruntime_qnn as qnn

    # The backend inside the wheel that writes a graph down instead of compiling it.
    writer = str(Path(qnn.LIB_DIR_FULL_PATH) / "libQnnIr.so")
    options = {"dump_qnn_ir_dlc": "1", "dump_qnn_ir_dlc_dir": request["folder"], "qnn_ir_backend_path": writer}
    entries = {"session.disable_cpu_ep_fallback": "1", **request["entries"]}
    _say(f"writing {request['model']} as DLC")
    npu_session(request["model"], options={**request["options"], **options}, entries=entries)
    return {}


_WORTH = 4.0
"""Seconds of work that are worth sharing: a second process takes some tenths of a second to open the model."""


class _Helper:
    """A second process that waits for inputs to run, since the emulator computes on one processor.

    It is forked before there are any threads, and it ends when this process ends.
    """

    def __init__(self, run: Json, feeds: Json) -> None:
        self.inputs, self._made = list[str](), f"{run['outputs']}.more.npz"
        waits, self._sends = os.pipe()
        self.number = os.fork()
        if self.number:
            return
        import numpy as np

        try:
            os.close(self._sends)
            ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # the signal it gets when this process ends
            if sent := os.read(waits, 1 << 16):
                seconds, inputs = json.loads(sent)
                np.savez(self._made, **_outputs({**run, "seconds": seconds}, feeds, inputs))
                os._exit(0)
        finally:
            os._exit(1)

    def shares(self, inputs: list[str], mean: float, seconds: float, memory: int) -> None:
        """Takes every other input that is left, once, if the work is worth it and a processor and memory are free."""
        if self.inputs or mean * len(inputs) < _WORTH:
            return
        import resource

        running = int(Path("/proc/loadavg").read_text("ascii").split()[3].partition("/")[0])
        taken = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10
        if running < len(os.sched_getaffinity(0)) and 2 * taken < memory:
            self.inputs = inputs[::2]
            del inputs[::2]
            os.write(self._sends, json.dumps([seconds, self.inputs]).encode())

    def results(self) -> Json:
        """Waits for its end and returns what it made, nothing if it failed."""
        import numpy as np

        os.close(self._sends)
        if os.waitpid(self.number, 0)[1]:
            return {}
        with np.load(self._made) as data:
            Path(self._made).unlink()
            return dict(data)


def run_both(request: Json) -> Json:
    """Several runs on the same inputs, one after the other; the first failure is the answer.

    Each run takes the input sets of an npz file and writes the outputs to another: as many as end within ``seconds``,
    at least one. Keys are ``<set>:<name>``. With provider ``npu`` the emulator executes a compiled model, in a second
    process as well if that saves time.
    """
    import numpy as np

    runs, feeds = request["runs"], dict[str, Json]()
    with np.load(runs[0]["inputs"]) as data:
        for key in data.files:
            index, name = key.split(":", 1)
            feeds.setdefault(index, {})[name] = data[key]
    helper = _Helper(runs[-1], feeds) if runs[-1]["provider"] == "npu" and sys.platform == "linux" else None
    import_module("onnxruntime")
    for run in runs:
        try:
            made = _outputs(run, feeds, sorted(feeds, key=int), helper if run is runs[-1] else None)
            np.savez(run["outputs"], **made)
        except Exception as error:  # that the model refuses an input is an answer, too
            return {"ok": False, "error": _first_line(error), "provider": run["provider"]}
    return {}


def _outputs(run: Json, feeds: Json, inputs: list[str], helper: _Helper | None = None) -> Json:
    if run["provider"] == "npu":
        session = npu_session(run["model"], options=run["options"], entries={})
    else:
        import onnxruntime as ort

        settings = _settings()
        settings.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
        session = ort.InferenceSession(run["model"], sess_options=settings, providers=["CPUExecutionProvider"])
    names, started, results = [output.name for output in session.get_outputs()], time.monotonic(), Json()

    def run_all(inputs: list[str]) -> None:
        while inputs:
            index = inputs.pop(0)
            _say(f"running input {int(index) + 1} of {len(feeds)} on {run['provider']}")
            for name, value in zip(names, session.run(None, feeds[index]), strict=True):
                results[f"{index}:{name}"] = value
            used = time.monotonic() - started
            mean, left = used * len(names) / len(results), run["seconds"] - used
            if mean > left:
                break  # the next one would end later
            if helper is not None:
                helper.shares(inputs, mean, left, run["memory"])

    run_all(inputs)
    if helper is not None:
        made = helper.results()
        results |= made
        if not made:
            run_all(helper.inputs)
    return results


def read_context(request: Json) -> Json:
    """Reads the metadata of a context binary with the vendor's library."""
    return {"context": read_context_binary(Path(request["path"]), _say)}


# Each action with the errors that count as an answer: the native library raises each error as a class of its own.
_ACTIONS: Mapping[str, tuple[Callable[[Json], Json], type[Exception]]] = {
    "compile": (compile_context, Exception),
    "dlc": (write_dlc, Exception),
    "run-both": (run_both, NotOnProviderError),
    "context": (read_context, ContextReadError),
}


def main(arguments: list[str]) -> int:
    """Handles one request; the result file exists only if the request was handled to its end."""
    os.environ["OPENBLAS_NUM_THREADS"] = "1"  # NumPy only carries arrays here, and its threads spin as they begin
    request_path, result_path = arguments
    request = json.loads(Path(request_path).read_text("utf-8"))
    if request["action"] in ("compile", "dlc"):  # a context needs the vendor's library only, and runs fork before that
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
    return (str(error).strip() or type(error).__name__).splitlines()[0]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
