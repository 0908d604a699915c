#!/usr/bin/env python3
"""Compiles the model of this package for its chip; no device and no SDK are needed.

    python3 scripts/compile.py

Written by deploykit 0.1.0 for SM8550 and onnxruntime-qnn 2.7.0 (QAIRT 2.51.0 inside).
It runs on Linux x86-64.
An existing context is replaced; a failed attempt leaves the old one alone.
"""

import json
import os
import shutil
import sys
import tempfile
from pathlib import Path

PACKAGE = Path(__file__).resolve().parent.parent
MODEL = 'model/model.onnx'
CONTEXT = 'artifacts/model_ctx.onnx'
OPTIONS = 'config/compile_options.json'
WHEEL = '2.7.0'


def fail(message, status):
    print("compile.py: " + message, file=sys.stderr)
    sys.exit(status)


def session(config, target):
    import onnxruntime as ort
    import onnxruntime_qnn as qnn
    from onnxruntime_qnn import build_and_package_info as info

    if str(info.__version__) != WHEEL:
        fail("onnxruntime-qnn %s is installed; this package is for %s" % (info.__version__, WHEEL), 5)
    ort.register_execution_provider_library(qnn.EP_NAME, qnn.get_library_path())
    devices = [device for device in ort.get_ep_devices() if device.ep_name == qnn.EP_NAME][:1]
    settings = ort.SessionOptions()
    settings.log_severity_level = 3
    for key, value in config["session_entries"].items():
        settings.add_session_config_entry(key, value)
    settings.add_session_config_entry("ep.context_file_path", str(target))
    # providers=[...] would give a session on the CPU without a word.
    settings.add_provider_for_devices(devices, {"backend_path": qnn.get_qnn_htp_path(), **config["provider_options"]})
    made = ort.InferenceSession(MODEL, sess_options=settings, enable_fallback=0)
    if made.get_providers()[0] != qnn.EP_NAME:
        fail("the session is not on the NPU: %s" % made.get_providers(), 1)


def main():
    # The provider mixes the model's path into names inside the binary: a relative one gives the same bytes anywhere.
    os.chdir(PACKAGE)
    config = json.loads(Path(OPTIONS).read_text(encoding="utf-8"))
    folder = Path(tempfile.mkdtemp(prefix=".compile-", dir="."))
    try:
        try:
            session(config, folder / Path(CONTEXT).name)
        except ImportError as error:
            fail("%s; install onnxruntime-qnn==%s" % (error, WHEEL), 5)
        except Exception as error:
            fail("%s\n(refused nodes are named in the lines above)" % str(error).splitlines()[0], 1)
        Path(CONTEXT).parent.mkdir(parents=True, exist_ok=True)
        for made in sorted(folder.iterdir(), key=lambda path: path.suffix == ".onnx"):
            os.replace(made, Path(CONTEXT).parent / made.name)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    print("compiled: %s" % CONTEXT)


if __name__ == "__main__":
    main()
