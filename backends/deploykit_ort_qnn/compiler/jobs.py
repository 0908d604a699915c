"""Has a worker compile, run or read, and turns every end of it into an outcome. It decides no option.

A refusal, a crash or a time-out of the compiler is an outcome, not an exception. ToolError is raised if the worker
cannot start at all, or cannot run or read a model. Successful work is kept, under a key of all it depends on; a crash
or a refusal is not, as its cause may lie outside of the question.
"""

from __future__ import annotations

import json
import math
import signal
import sys
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from hashlib import sha256
from itertools import takewhile
from pathlib import Path
from typing import Any, Literal

from deploykit.accuracy.latency import Estimate
from deploykit.errors import InputError, ToolError, UsageError
from deploykit.findings.records import Arrays, Json, Names, Record, Tell, replace, silent
from deploykit.packages.manifests import hash_file
from deploykit.system.files import with_folder
from deploykit.system.folders import scratch
from deploykit.system.limits import memory_budget, time_left
from deploykit.system.processes import ProgramEnd
from deploykit.system.store import Store, code_digest, is_off
from deploykit_ort_qnn.compiler.dlc import with_check_sums
from deploykit_ort_qnn.compiler.estimates import read_estimate
from deploykit_ort_qnn.compiler.graphs import QnnGraph, Schematic, read_graph, read_schematic
from deploykit_ort_qnn.compiler.hosts import HERE, Host, Work, Worker, who_compiles
from deploykit_qualcomm.hosted import RefusedNode, read_refusals

__all__ = [
    "LATE",
    "CompileJob",
    "CompileOutcome",
    "compile_model",
    "execute_both",
    "read_context",
    "write_dlc",
]

_ANSWER = "answer.json"
_PROFILE = "profile.csv"


def known_work(
    kind: str,
    asked: Json,
    inputs: Iterable[Path],
    scratch: Path,
    run: Callable[[], Work],
    *,
    host: Host | None = None,
    tell: Tell,
) -> Work:
    """The result of ``run``, or the kept one for the same question; in both cases the files are in ``scratch``.

    ``asked`` is the question without any path of this machine, ``inputs`` are the files and folders it depends on. A
    folder means all files directly in it.
    """
    if is_off():
        return run()
    who = who_compiles(host)
    rest = {"python": sys.version, "code": code_digest(Path(__file__).parent)}
    digest = sha256(json.dumps([kind, asked, who, rest], sort_keys=True).encode())
    for given in inputs:
        for path in sorted(given.iterdir()) if given.is_dir() else [given]:
            if path.is_file():
                size, content = hash_file(path)
                digest.update(f"{path.name} {size} {content}\n".encode())
        digest.update(b"\n")
    store, key = Store(kind), digest.hexdigest()
    if store.take(key, scratch):
        kept = json.loads((scratch / _ANSWER).read_text("utf-8"))
        tell("done before with the same files, options and tools: taken from what is kept")
        return ProgramEnd((), 0, tail=(), seconds=0.0), kept["answer"], tuple(kept["log"])
    before = set(_files(scratch))
    done, answer, log = run()
    if answer is not None and answer.get("ok"):
        (scratch / _ANSWER).write_text(json.dumps({"answer": answer, "log": log}), "utf-8")
        store.keep(key, scratch, sorted(set(_files(scratch)) - before - {"request.json", "result.json"}))
    return done, answer, log


def _files(folder: Path) -> list[str]:
    return [path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()]


Status = Literal["compiled", "refused", "failed", "crashed", "timed-out"]


class CompileJob(Record, kw_only=False):
    """One compilation. ``model`` and ``context`` are paths relative to ``root``, the worker's working folder.

    ``options`` are provider options, ``entries`` session configuration entries. ``timeout`` is in seconds. ``host``
    runs the compiler; None means the provider installed beside this
    Python. ``operators`` are the user's names of nodes.
    """

    root: Path
    model: str
    context: str
    options: Mapping[str, str]
    entries: Mapping[str, str] = {}
    embed: bool = False
    allow_cpu: bool = False
    trace: bool = True
    timeout: float = 600.0
    host: Host | None = None
    operators: frozenset[str] = frozenset()


class CompileOutcome(Record, kw_only=False):
    """How a compilation ended, with everything that was seen.

    ``files`` are the context model and its binary, relative to the root. ``seconds`` and ``peak_rss_mb`` describe the
    build machine and say nothing about the device; ``grown`` is True if the process was stopped for the memory it took.
    ``culprit`` are the operators that alone end a compilation in the same way, if they were looked for and found.
    """

    status: Status
    message: str = ""
    refused: tuple[RefusedNode, ...] = ()
    cpu_nodes: tuple[RefusedNode, ...] = ()
    files: Names = ()
    seconds: float = 0.0
    peak_rss_mb: float | None = None
    log: tuple[str, ...] = ()
    graphs: tuple[QnnGraph, ...] = ()
    schematics: tuple[Schematic, ...] = ()
    culprit: tuple[RefusedNode, ...] = ()
    grown: bool = False
    estimate: Estimate | None = None

    @property
    def ok(self) -> bool:
        """True if there is a compiled model."""
        return self.status == "compiled"


def compile_model(job: CompileJob, progress: Tell = silent) -> CompileOutcome:
    """Compiles in a child process; the target files appear together at the end, or not at all."""
    target = job.root / job.context
    for path in (target, target.with_name(f"{target.stem}_qnn.bin")):
        if path.exists():
            raise UsageError(f"{path}: exists already", next="remove it")
    with tempfile.TemporaryDirectory(prefix=".compile-", dir=job.root, ignore_cleanup_errors=True) as folder:
        scratch = Path(folder)
        graphs, out = scratch / "graphs", scratch / "out"
        for made in (graphs, out, scratch / "traces"):
            made.mkdir()
        here = scratch.name
        options = {**job.options, "dump_json_qnn_graph": "1", "json_qnn_graph_dir": f"{here}/graphs"}
        if job.trace:
            options |= {"profiling_level": "optrace", "profiling_file_path": f"{here}/{_PROFILE}"}
        request = {
            "action": "compile",
            "model": job.model,
            "context": f"{here}/out/{Path(job.context).name}",
            "embed": job.embed,
            "allow_cpu": job.allow_cpu,
            "options": options,
            "entries": dict(job.entries),
        }
        compile_ = HERE.work if job.host is None else job.host.compile

        def run() -> Work:
            work = compile_(request, job.root, scratch, job.timeout, progress)
            # The provider writes its schematics into the working folder, whatever the profile's path is.
            for path in job.root.glob("QNNExecutionProvider_*_schematic.bin"):
                path.replace(scratch / "traces" / path.name)
            return work

        # The compilation as a question without the paths of this machine.
        names = [Path(job.model).name, Path(job.context).name]
        how = [job.embed, job.allow_cpu, job.trace]
        asked = {"names": names, "how": how, "options": dict(job.options), "entries": dict(job.entries)}
        about = [(job.root / job.model).parent]
        done, answer, log = known_work("compiled", asked, about, scratch, run, host=job.host, tell=progress)
        outcome = _outcome(job, done, answer, log, scratch)
        return _publish(outcome, scratch / "out", target, job.root) if outcome.ok else outcome


def write_dlc(job: CompileJob, target: Path, progress: Tell = silent) -> str:
    """Has the installed provider write one whole graph as DLC to ``target``. Returns why this failed, else ""."""
    with tempfile.TemporaryDirectory(prefix=".dlc-", dir=job.root) as folder:
        scratch = Path(folder)
        made = scratch / "made"
        made.mkdir()
        request = {
            "action": "dlc",
            "model": job.model,
            "folder": f"{scratch.name}/made",
            "options": dict(job.options),
            "entries": dict(job.entries),
        }
        done, answer, _ = HERE.work(request, job.root, scratch, job.timeout, progress)
        if answer is None or not answer["ok"]:
            return str(answer["error"]) if answer else _end_reason(done, job.timeout)
        files = sorted(made.glob("*.dlc"))
        if len(files) != 1:
            return f"the provider wrote {len(files)} files, where one whole graph is one"
        with_check_sums(files[0], with_folder(target))
    return ""


def execute_both(
    root: Path,
    qdq: str,
    context: str,
    sets: Sequence[Arrays],
    *,
    options: Mapping[str, str],
    timeout: float = 600.0,
    progress: Tell = silent,
    host: Host | None = None,
) -> tuple[list[Arrays], list[Arrays]]:
    """The outputs of a model on the CPU and of its compiled form on an emulator. Raises ToolError.

    They cover all input sets, or the first ones that fit into ``timeout`` seconds.

    The emulator is that of the host, if it has one, else the one installed here.
    """
    reference, emulated = ("cpu", qdq, dict[str, str]()), ("npu", context, dict(options))
    emulator = None if host is None else host.emulator
    if emulator is None:
        cpu, npu = execute(HERE, root, (reference, emulated), sets, timeout, progress)
    else:
        (cpu,) = execute(HERE, root, (reference,), sets, timeout, progress)
        (npu,) = execute(emulator, root, (emulated,), sets, timeout, progress)
    return cpu[: len(npu)], npu[: len(cpu)]


# The share of the time limit for running; the rest is for opening models and for an input that takes longer.
_FOR_RUNNING = 0.8


def execute(
    worker: Worker,
    root: Path,
    runs: Sequence[tuple[str, str, dict[str, str]]],
    sets: Sequence[Arrays],
    timeout: float,
    progress: Tell,
) -> list[list[Arrays]]:
    """The outputs of each run (provider, model, options) for the input sets the time allows. Raises ToolError."""
    import numpy as np

    with tempfile.TemporaryDirectory(prefix=".run-", dir=root) as folder:
        scratch = Path(folder)
        inputs = scratch / "inputs.npz"
        feeds: dict[str, Any] = {
            f"{number}:{name}": value for number, one in enumerate(sets) for name, value in one.items()
        }
        np.savez(inputs, **feeds)
        requests = [
            {
                "model": model,
                "provider": provider,
                "options": options,
                "inputs": str(inputs.resolve()),
                "outputs": str((scratch / f"{provider}.npz").resolve()),
                "seconds": timeout * _FOR_RUNNING,
                "memory": memory_budget(),
            }
            for provider, model, options in runs
        ]
        asked = {"runs": runs, "seconds": timeout, "worker": [worker.python, dict(worker.environment)]}
        about = [*((root / model).parent for _, model, _ in runs), inputs]
        work = partial(worker.work, {"action": "run-both", "runs": requests}, root, scratch, timeout, progress)
        done, answer, log = known_work("emulated", asked, about, scratch, work, tell=progress)
        if answer is None or not answer["ok"]:
            why = answer["error"] if answer else _end_reason(done, timeout)
            where = answer["provider"] if answer else "/".join(provider for provider, _, _ in runs)
            named = ", ".join(model for _, model, _ in runs)
            raise ToolError(f"{named}: cannot be run ({where})", why=why, next="\n".join(log[-3:]))
        results = []
        for request in requests:
            made: list[Any] = [{} for _ in sets]
            with np.load(str(request["outputs"])) as data:
                for key in data.files:
                    number, _, name = key.partition(":")
                    made[int(number)][name] = data[key]
            results.append([*takewhile(bool, made)])
        return results


def read_context(path: Path) -> Json:
    """The metadata of a context binary, or why it cannot be read, as the
    worker answers; within the caller's time limit.

    The vendor's library sometimes crashes on a file that it reads the next time, so one crash is tried again. Raises
    ToolError with the step that failed, if it crashes twice or does not end.
    """
    request = {"action": "context", "path": str(path.resolve())}
    left = time_left()
    timeout = _READING_SECONDS if left is None else math.ceil(left)
    for _ in range(2):
        parts = ["starting the process"]
        with scratch() as folder:
            done, answer, _ = HERE.work(request, folder, folder, timeout, parts.append)
        if answer is not None:
            return answer
        if done.timed_out:
            break
    again = "" if done.timed_out else ", and so it did when it was tried again"
    raise ToolError(
        f"{path}: the vendor's library did not read it",
        why=f"{_end_reason(done, timeout, 'the reading process')} while {parts[-1]}{again}",
        next="copy the file again if it may be cut off; else compile it again, or read it with another wheel",
    )


_READING_SECONDS = 120.0
"""The time limit for reading a binary, if the caller has set none (``limited_time``)."""


def _outcome(
    job: CompileJob, done: ProgramEnd, answer: Json | None, log: tuple[str, ...], scratch: Path
) -> CompileOutcome:
    refused = read_refusals(log)
    common: Json = {"seconds": round(done.seconds, 3), "peak_rss_mb": done.peak_rss_mb, "log": log}
    if answer is None:
        status: Status = "timed-out" if done.timed_out else "crashed"
        return CompileOutcome(status, _end_reason(done, job.timeout), refused=refused, grown=done.grown, **common)
    if not answer["ok"]:
        status = "refused" if refused else "failed"
        return CompileOutcome(status, answer["error"], refused=refused, **common)
    import onnx

    # The nodes of the context model that stayed outside the compiled graphs.
    nodes = onnx.load(scratch / "out" / Path(job.context).name, load_external_data=False).graph.node
    cpu = tuple(RefusedNode(node.name, node.op_type) for node in nodes if node.op_type != "EPContext")
    if cpu and not job.allow_cpu:
        message = f"{len(cpu)} nodes stayed outside of the compiled graph"
        return CompileOutcome("refused", message, refused=cpu, **common)
    asked = sorted(path for path in (scratch / "graphs").glob("*.json") if not path.stem.endswith("_tensor_log"))
    found = []
    for path in sorted((scratch / "traces").glob("*_schematic.bin")):
        try:
            found.append(read_schematic(path))
        except InputError:
            # In an unknown form the types after optimization are unknown; the caller sees this and says so.
            continue
    graphs, schematics = tuple(map(read_graph, asked)), tuple(found)
    chip = job.options.get("soc_model", "")
    return CompileOutcome(
        "compiled",
        refused=refused,
        cpu_nodes=cpu,
        graphs=graphs,
        schematics=schematics,
        estimate=read_estimate(scratch / _PROFILE, graphs, schematics, chip=chip, nodes=job.operators),
        **common,
    )


def _publish(outcome: CompileOutcome, made: Path, target: Path, root: Path) -> CompileOutcome:
    files = list[str]()
    # The binary is moved first: a context model never points to a missing binary.
    for path in sorted(made.iterdir(), key=lambda path: path.suffix == ".onnx"):
        files.append(path.replace(with_folder(target.with_name(path.name))).relative_to(root).as_posix())
    return replace(outcome, files=tuple(sorted(files)))


LATE = "the time limit"
"""The end of the reason if a time limit is all that went wrong."""


def _end_reason(done: ProgramEnd, timeout: float, who: str = "the compiler's process") -> str:
    if done.timed_out:
        return f"not finished after {timeout:g} s, {LATE}"
    if done.grown:
        return f"{who} took more memory than a model of this size may take ({done.peak_rss_mb or 0:,.0f} MiB)"
    if done.returncode < 0:
        return f"{who} died of {signal.Signals(-done.returncode).name}"
    return f"{who} ended with status {done.returncode}"
