"""Run the compiled model of this package on the device, or the same model on a CPU, and save its outputs.

    python scripts/run.py --data FOLDER --out artifacts/outputs [--cpu] [--model FILE.onnx]

FOLDER holds .npz files (an array per input) or .npy files (models with one input); every file gives one .npz of the same
name. Compare with `deploykit accuracy compare --baseline CPU_FOLDER --candidate NPU_FOLDER`. Nothing of deploykit is needed.
"""

import argparse
import sys
import time
import zipfile
from pathlib import Path

try:
    import numpy as np
except ModuleNotFoundError as missing:
    sys.exit(f"error: {missing} ({sys.executable})\n  next: run this in the vendor's environment")

sys.path.insert(0, str(Path(__file__).resolve().parent))
from compile import ROOT, load_session, provider_version, stop  # noqa: E402

TYPES = {"tensor(float)": np.float32, "tensor(float16)": np.float16, "tensor(double)": np.float64}


def check_cache(session):
    """A wrong path or key makes the provider run on the CPU without a message: so look first."""
    cache, key = Path(session["provider_options"]["cache_dir"]), session["provider_options"]["cache_key"]
    if not (cache / key).exists() and not (cache / f"{key}.rai").exists():
        stop(5, f"{cache / key} is not there: compile first, and copy artifacts/cache with the package")


def open_session(arguments):
    """The NPU session of this package, or a plain CPU session."""
    import onnxruntime

    session = load_session() if not arguments.cpu else {}
    if arguments.cpu:
        model = arguments.model or ROOT / load_model_name()
        return onnxruntime.InferenceSession(str(model), providers=["CPUExecutionProvider"])
    provider_version()
    check_cache(session)
    return onnxruntime.InferenceSession(
        str(arguments.model or ROOT / session["model"]),
        providers=session["providers"],
        provider_options=[session["provider_options"]],
    )


def load_model_name():
    import json

    return json.loads((ROOT / "config/session.json").read_text(encoding="utf-8"))["model"]


def feed(session, path):
    """One file as {input: array}, floats in the width the model wants."""
    loaded = np.load(path, allow_pickle=False)
    inputs = session.get_inputs()
    values = {inputs[0].name: loaded} if isinstance(loaded, np.ndarray) else {i.name: loaded[i.name] for i in inputs}
    return {i.name: values[i.name].astype(TYPES.get(i.type, values[i.name].dtype)) for i in inputs}


def save_arrays(path, arrays):
    """A .npz of arrays under any names: numpy.savez takes some, such as `file`, for its own arguments."""
    with zipfile.ZipFile(path, "w") as archive:
        for name, value in arrays.items():
            with archive.open(name + ".npy", "w", force_zip64=True) as member:
                np.lib.format.write_array(member, np.asanyarray(value), allow_pickle=False)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, default=ROOT / "artifacts/outputs")
    parser.add_argument("--cpu", action="store_true", help="run on the CPU instead")
    parser.add_argument("--model", type=Path, help="another model, for instance the float one with --cpu")
    arguments = parser.parse_args()
    files = sorted(arguments.data.glob("*.np[yz]")) if arguments.data.is_dir() else [arguments.data]
    if not files:
        stop(2, f"{arguments.data} holds no .npy and no .npz file")
    session = open_session(arguments)
    names = [output.name for output in session.get_outputs()]
    arguments.out.mkdir(parents=True, exist_ok=True)
    seconds = []
    for path in files:
        values = feed(session, path)
        started = time.perf_counter()
        results = session.run(None, values)
        seconds.append(time.perf_counter() - started)
        save_arrays(arguments.out / f"{path.stem}.npz", dict(zip(names, results)))
    print(f"{len(files)} samples, median {sorted(seconds)[len(seconds) // 2] * 1000:.2f} ms, outputs in {arguments.out}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
