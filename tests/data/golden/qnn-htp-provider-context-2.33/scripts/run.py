#!/usr/bin/env python3
"""Runs the compiled model of this package: on the device, or on the emulator of a Linux x86-64 machine.

    python3 scripts/run.py [INPUTS.npz] [-o OUTPUTS.npz] [--compare MODEL.onnx]

INPUTS.npz holds one array per input name; without it the inputs are random. --compare runs that model on the CPU too
and prints the signal-to-noise ratio per output. Written by deploykit 0.1.0 for SM8650.
No time is printed: on a build machine it would be the emulator's, which says nothing about the device.
"""

import argparse
import json
import os
import sys
import zipfile
from pathlib import Path

try:
    import numpy as np
except ModuleNotFoundError as missing:
    sys.exit(f"error: {missing} ({sys.executable})\n  next: name the Python that has onnxruntime-qnn with PYTHON")

PACKAGE = Path(__file__).resolve().parent.parent
CONTEXT = 'artifacts/model_ctx.onnx'
OPTIONS = 'config/run_options.json'
# The part of the model that stays on the host, "" when there is none.
TAIL = ''
HTP = "QNNExecutionProvider"


def npu_session(config):
    """A session on the NPU: through the plugin of onnxruntime-qnn 2, else through the provider inside an older wheel."""
    import onnxruntime as ort

    settings = ort.SessionOptions()
    settings.log_severity_level = 3
    for key, value in config["session_entries"].items():
        settings.add_session_config_entry(key, value)
    options, providers = config["provider_options"], None
    try:
        import onnxruntime_qnn as qnn
    except ImportError:
        if HTP not in ort.get_available_providers():
            sys.exit("run.py: needs onnxruntime-qnn; this is onnxruntime %s" % ort.__version__)
        library = "QnnHtp.dll" if sys.platform == "win32" else "libQnnHtp.so"
        backend = Path(ort.__file__).parent / "capi" / library
        providers = [(HTP, {"backend_path": str(backend), **options})]
    else:
        ort.register_execution_provider_library(qnn.EP_NAME, qnn.get_library_path())
        devices = [device for device in ort.get_ep_devices() if device.ep_name == qnn.EP_NAME][:1]
        settings.add_provider_for_devices(devices, {"backend_path": qnn.get_qnn_htp_path(), **options})
    session = ort.InferenceSession(CONTEXT, sess_options=settings, providers=providers, enable_fallback=0)
    if session.get_providers()[0] != HTP:
        sys.exit("run.py: the session is not on the NPU: %s" % session.get_providers())
    return session


def inputs_for(wanted, given):
    """Of the arrays given those that are wanted; a missing one is random, the same every time."""
    kinds = {"tensor(float)": "float32", "tensor(float16)": "float16", "tensor(int64)": "int64", "tensor(int32)": "int32"}
    random = np.random.default_rng(0)
    feed = {}
    for value in wanted:
        if value.name in given:
            feed[value.name] = array = given[value.name]
            told = "error: %s is %s %s, the model takes %s %s\n  next: give one sample, one such array for each input"
            kind, shape = kinds.get(value.type, array.dtype.name), list(value.shape)
            if array.dtype.name != kind or (all(isinstance(dim, int) for dim in shape) and list(array.shape) != shape):
                sys.exit(told % (value.name, array.dtype.name, list(array.shape), kind, shape))
        else:
            feed[value.name] = random.normal(size=value.shape).astype(kinds.get(value.type, "float32"))
    return feed


def warn_of_what_is_cut_off(given):
    """Say which values lie outside of what the quantized input holds: they are cut off, whatever the model makes of it."""
    path = PACKAGE / "manifest.json"
    rows = json.loads(path.read_text(encoding="utf-8"))["io"] if path.exists() else []
    for name, (low, high) in ((row["name"], row["range"]) for row in rows if "range" in row and row["name"] in given):
        values = given[name].astype(np.float64)
        beyond = np.maximum(low - values, values - high)
        count = int((beyond > (high - low) / 512).sum())  # half a step of 8 bits is rounded
        if count:
            told = "warning: %s: %d of %d values lie outside of the calibrated %.6g .. %.6g, by up to %.0f %% of it: cut off"
            far = 100 * beyond.max() / (high - low)
            print(told % (name, count, values.size, low, high, far), file=sys.stderr)


def finish(results, given):
    """The model's own outputs, made on the CPU of what the device left and of the model's inputs."""
    import onnxruntime as ort

    session = ort.InferenceSession(TAIL, providers=["CPUExecutionProvider"])
    feed = inputs_for(session.get_inputs(), {**given, **results})
    found = dict(zip([value.name for value in session.get_outputs()], session.run(None, feed)))
    for name, value in found.items():
        print("%s: %s %s (host)" % (name, value.dtype, list(value.shape)))
    return found


def sqnr(wanted, got):
    noise = float(((wanted.astype(np.float64) - got) ** 2).sum())
    signal = float((wanted.astype(np.float64) ** 2).sum())
    return float("inf") if noise == 0 else 10 * np.log10(signal / noise) if signal else float("nan")


def save_arrays(path, arrays):
    """A .npz of arrays under any names: numpy.savez takes some, such as `file`, for its own arguments."""
    with zipfile.ZipFile(path, "w") as archive:
        for name, value in arrays.items():
            with archive.open(name + ".npy", "w", force_zip64=True) as member:
                np.lib.format.write_array(member, np.asanyarray(value), allow_pickle=False)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("inputs", nargs="?", type=Path)
    parser.add_argument("-o", "--outputs", type=Path)
    parser.add_argument("--compare", type=Path, metavar="MODEL")
    args = parser.parse_args()
    given = [None if path is None else path.resolve() for path in (args.inputs, args.outputs)]
    os.chdir(PACKAGE)
    session = npu_session(json.loads(Path(OPTIONS).read_text(encoding="utf-8")))
    arrays = {}
    if given[0] is not None:
        with np.load(given[0]) as data:
            arrays = {name: data[name] for name in data.files}
    warn_of_what_is_cut_off(arrays)
    feed = inputs_for(session.get_inputs(), arrays)
    names = [value.name for value in session.get_outputs()]
    results = dict(zip(names, session.run(None, feed)))
    for name, value in results.items():
        print("%s: %s %s" % (name, value.dtype, list(value.shape)))
    finished = results if not TAIL else finish(results, {**arrays, **feed})
    if given[1] is not None:
        save_arrays(given[1], finished)
    if args.compare is not None:
        import onnxruntime as ort

        reference = ort.InferenceSession(str(args.compare), providers=["CPUExecutionProvider"])
        for name, wanted in zip([v.name for v in reference.get_outputs()], reference.run(None, feed)):
            print("%s: %.1f dB against the CPU" % (name, sqnr(wanted, results[name])))


if __name__ == "__main__":
    main()
