#!/usr/bin/env python3
"""Compiles the model of this package for its chip; no SDK is needed.

    python scripts/compile.py

Written by deploykit 0.1.0 for SM8550 and onnxruntime-qnn 2.7.0 (QAIRT 2.51.0 inside).
It runs on Linux x86-64, and needs Python with exactly that wheel.
What came of it is in artifacts/compile_report.json: the state, refused nodes with their reasons, types by tensor, and
hashes. The provider's log is logs/provider.log. An existing context is replaced; a failed attempt leaves the old one alone.
Exit status: 0 compiled; 1 the provider refuses the model; 5 another wheel or machine, or none.
"""

import hashlib
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

PACKAGE = Path(__file__).resolve().parent.parent
MODEL = 'model/model.onnx'
CONTEXT = 'artifacts/model_ctx.onnx'
OPTIONS = 'config/compile_options.json'
REPORT, LOG = "artifacts/compile_report.json", "logs/provider.log"
WHEEL, QAIRT = '2.7.0', '2.51.0'
HTP = "QNNExecutionProvider"
# What the provider is asked for beside the binary: the graph that it hands to the compiler, with the type of every tensor.
SHOWN = {"dump_json_qnn_graph": "1"}
CODES = {
    8: 'int8',
    22: 'int16',
    50: 'int32',
    100: 'int64',
    264: 'uint8',
    278: 'uint16',
    306: 'uint32',
    356: 'uint64',
    534: 'float16',
    562: 'float32',
    1288: 'bool',
    772: 'int4',
    776: 'int8',
    790: 'int16',
    818: 'int32',
    1028: 'uint4',
    1032: 'uint8',
    1046: 'uint16',
    1074: 'uint32',
}
NODE = re.compile(r"\{ name: (.*?), type: (\w+) \}")
ANSWER = re.compile(r"failed for node `([^`]+)` of type `(\w+)` with error code (\d+)")
REASON = re.compile(r"Node name: (.*?) Node index: \d+\s+REASON : \S+ \S+ (.*)")


def fail(message, status):
    print("compile.py: " + message, file=sys.stderr)
    sys.exit(status)


def provider_options(config, folder, backend):
    options = {"backend_path": backend, **config["provider_options"]}
    options.update(SHOWN, json_qnn_graph_dir=folder.as_posix())
    return options


def session_settings(ort, config, folder):
    settings = ort.SessionOptions()
    settings.log_severity_level = 3
    entries = {**config["session_entries"], "ep.context_file_path": str(folder / Path(CONTEXT).name)}
    for key, value in entries.items():
        settings.add_session_config_entry(key, value)
    return settings


def inside(config, folder):
    """In a process of its own, whose log is read: open the model, which compiles it."""
    import onnxruntime as ort
    import onnxruntime_qnn as qnn
    from onnxruntime_qnn import build_and_package_info as info

    if str(info.__version__) != WHEEL:
        fail("onnxruntime-qnn %s is installed; this package is for %s" % (info.__version__, WHEEL), 5)
    ort.register_execution_provider_library(qnn.EP_NAME, qnn.get_library_path())
    devices = [device for device in ort.get_ep_devices() if device.ep_name == qnn.EP_NAME][:1]
    settings = session_settings(ort, config, folder)
    # providers=[...] would give a session on the CPU without a word.
    settings.add_provider_for_devices(devices, provider_options(config, folder, qnn.get_qnn_htp_path()))
    return ort.InferenceSession(MODEL, sess_options=settings, enable_fallback=0)


def compile_inside(folder, open_model=inside):
    config = json.loads(Path(OPTIONS).read_text(encoding="utf-8"))
    try:
        made = open_model(config, folder)
    except ImportError as error:
        fail("%s; install onnxruntime-qnn==%s" % (error, WHEEL), 5)
    except Exception as error:
        lines = str(error).splitlines() or [type(error).__name__]
        fail(lines[0], 1)
    if made.get_providers()[0] != HTP:
        fail("the session is not on the NPU: %s" % made.get_providers(), 1)


def command(folder):
    """The process that compiles, and its environment."""
    return [sys.executable, str(Path(__file__).resolve()), "--inside", str(folder)], dict(os.environ)


def run(folder):
    """Exit status and log of the process that compiles."""
    argv, environment = command(folder)
    done = subprocess.run(
        argv,
        env={**environment, "PYTHONUTF8": "1"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        check=False,
    )
    lines = [said(line) for line in done.stdout.decode("utf-8", errors="replace").splitlines()]
    Path(LOG).parent.mkdir(exist_ok=True)
    Path(LOG).write_text("\n".join(lines) + "\n", encoding="utf-8")
    return done.returncode, lines


def said(line):
    """A line of the log; the runner of a toolchain wraps it in JSON."""
    if not line.startswith('{"event":'):
        return line
    try:
        event = json.loads(line)
    except ValueError:
        return line
    return str(event.get("text") or line)


def refusals(lines):
    """The nodes that the provider names as unsupported, each with the backend's or the provider's reason."""
    kinds, why = {}, {}
    for line in lines:
        if "Unsupported nodes in QNN EP" in line:
            kinds.update({name: kind for name, kind in NODE.findall(line) if name not in kinds})
        answer, reason = ANSWER.search(line), REASON.search(line)
        if answer:
            why[answer.group(1)] = "the backend answers %s to %s" % (answer.group(3), answer.group(2))
        elif reason:
            why.setdefault(reason.group(1), reason.group(2).strip())
    return [{"name": name, "type": kind, "why": why.get(name, "")} for name, kind in kinds.items()]


def types(paths):
    """The type of every tensor of the graphs that were handed to the compiler, fixed-point types by their grid."""
    found = {}
    for path in paths:
        tensors = json.loads(path.read_text(encoding="utf-8"))["graph"]["tensors"]
        found.update({name: CODES.get(tensor["data_type"], hex(tensor["data_type"])) for name, tensor in tensors.items()})
    return dict(sorted(found.items()))


def publish(folder):
    """Move what was made into artifacts/, the context model last: it never points to a binary that is not there."""
    target = Path(CONTEXT).parent
    target.mkdir(parents=True, exist_ok=True)
    graphs = sorted(path for path in folder.glob("*.json") if path.name != "request.json" and "_tensor_log" not in path.name)
    for old in target.glob("qnn_graph_*.json"):
        old.unlink()
    graphs = [path.replace(target / ("qnn_graph_%d.json" % number)) for number, path in enumerate(graphs)]
    stem = Path(CONTEXT).stem
    made = sorted((path for path in folder.iterdir() if path.name.startswith(stem)), key=lambda path: path.suffix == ".onnx")
    return [path.replace(target / path.name) for path in made], graphs


def report(state, message, refused, made=(), graphs=()):
    value = {
        "schema": 1,
        "wheel": WHEEL,
        "qairt": QAIRT,
        "system": sys.platform,
        "machine": platform.machine(),
        "processor": platform.processor(),
        "python": platform.python_version(),
        "state": state,
        "message": message,
        "refused": refused,
        "types": types(graphs),
        "files": {path.as_posix(): hashlib.sha256(path.read_bytes()).hexdigest() for path in (*made, *graphs)},
    }
    Path(REPORT).parent.mkdir(parents=True, exist_ok=True)
    Path(REPORT).write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def main():
    # The provider mixes the model's path into names inside the binary: a relative one gives the same bytes anywhere.
    os.chdir(PACKAGE)
    if sys.argv[1:2] == ["--inside"]:
        return compile_inside(Path(sys.argv[2]))
    folder = Path(os.path.relpath(tempfile.mkdtemp(prefix=".compile-", dir=".")))
    try:
        status, lines = run(folder)
        refused = refusals(lines)
        compiled = status == 0 and (folder / Path(CONTEXT).name).is_file()
        if compiled:
            report("compiled", "", refused, *publish(folder))
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    if compiled:
        print("compiled: %s" % CONTEXT)
        return
    # Beside an own message the last lines of the log tell what happened.
    own = [line for line in lines if line.startswith("compile.py: ")]
    message = (own or [line for line in lines if line.strip()] or ["no word"])[-1].replace("compile.py: ", "", 1)
    for node in refused:
        print("refused: %(name)s (%(type)s) %(why)s" % node, file=sys.stderr)
    report("refused" if refused else "absent" if status == 5 else "failed", message, refused)
    fail("%s; see %s" % (message, LOG), 5 if status == 5 else 1)


if __name__ == "__main__":
    main()
