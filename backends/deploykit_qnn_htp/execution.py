"""Runs a package on a device: the SDK's own program runs the context binaries, with the SDK of the package's release.

Compiling on this machine is done by the compiler of a wheel (``provider``), or by the build script with the user's SDK.
"""

from __future__ import annotations

import json
import os
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
from onnx import helper

from deploykit.backend.on_device import DeviceFile, DeviceJob, DeviceRequest, DeviceResults
from deploykit.errors import InputError, ToolError
from deploykit.findings.records import Json, Record
from deploykit.packages.manifests import read_manifest
from deploykit.system.processes import run
from deploykit.tables.reading import read_json
from deploykit_qualcomm.devices import POWER
from deploykit_qualcomm.probes import ROOT_VARIABLES, version_of_sdk
from deploykit_qualcomm.qnn_types import mangled

if TYPE_CHECKING:
    from deploykit_qualcomm.profiles import CsvProfile

__all__ = ["device_job", "device_results"]

_NET_RUN, _VIEWER = "qnn-net-run", "bin/x86_64-linux-clang/qnn-profile-viewer"
_INNER_CONFIG = "config/htp_run.json"
# The run's own folder comes before the vendor's; folders are separated by ";" only.
_DSP_FOLDERS = ("/vendor/dsp/cdsp", "/vendor/lib/rfsa/adsp", "/system/lib/rfsa/adsp")
_BUILD = re.compile(rb"v?(\d+\.\d+\.\d+\.\d{6}\w*)")
_PROFILED = 3
_LOG = "qnn-profiling-data_0.log"
_NODES = "nodes"
_VIEWER_SECONDS = 300.0


class _Graph(Record):
    """One model of the package, with its names in the program's form: its command line, its inputs, its outputs."""

    model: Path
    argv: tuple[str, ...]
    inputs: Sequence[str]
    outputs: Mapping[str, onnx.ValueInfoProto]

    def word(self, flag: str) -> str:
        """The word after a flag of the command line."""
        return self.argv[self.argv.index(flag) + 1]

    def result(self, number: int, name: str) -> str:
        """The path where the program writes an output of one sample."""
        return f"{self.word('--output_dir')}/Result_{number}/{name}.raw"


def device_job(package: Path, manifest: Json, request: DeviceRequest) -> DeviceJob | None:
    """The job that runs the context binaries with qnn-net-run and the SDK's libraries; None if the machine has no HTP.

    A single model is run twice: for outputs and times, and with a detailed
    profile. A chain is run for its outputs only.
    """
    place = request.place
    if place.machine not in ("aarch64", "arm64"):
        return None
    sdk = _sdk_of(manifest)
    graphs = list(_graphs(package, manifest))
    contexts = dict.fromkeys(graph.word("--retrieve_context") for graph in graphs)
    for context in contexts:
        if not (package / context).is_file():
            raise ToolError(f"{package}: the context binary {context} is not built", next="deploykit build")
    files = [*_runtime(sdk, manifest, place.system), *_inputs(request, graphs)]
    files += [DeviceFile(context, package / context) for context in contexts]
    for path in sorted((package / "config").glob("*run*.json")):
        name, source = path.relative_to(package).as_posix(), path.read_bytes()
        if request.power and name == _INNER_CONFIG:
            config = read_json(path)
            for core in (core for device in config.get("devices", ()) for core in device.get("cores", ())):
                core["perf_profile"] = POWER[request.power]
            source = json.dumps(config).encode()
        files.append(DeviceFile(name, source))
    runs = [(f"./{_NET_RUN}", *graph.argv[1:]) for graph in graphs]
    optional = list[str]()
    if len(graphs) == 1 and request.iterations:
        kept, wanted = str(len(request.feeds)), str(max(len(request.feeds), request.warmup + request.iterations))
        first, output = runs[0], graphs[0].word("--output_dir")
        runs = [(*first, "--num_inferences", wanted, "--keep_num_outputs", kept, "--profiling_level", "basic")]
        optional.append(f"{output}/{_LOG}")
        if request.profile:
            apart = [_NODES if word == output else word for word in first]
            few = ("--num_inferences", str(_PROFILED), "--keep_num_outputs", "1", "--profiling_level", "detailed")
            runs.append((*apart, *few))
            optional.append(f"{_NODES}/{_LOG}")
    numbers = range(len(request.feeds))
    results = [graph.result(number, name) for graph in graphs for number in numbers for name in graph.outputs]
    return DeviceJob(
        files=tuple(files),
        argv=("sh", "-c", " && ".join(map(shlex.join, runs))),
        environment={"LD_LIBRARY_PATH": place.folder, "ADSP_LIBRARY_PATH": ";".join((place.folder, *_DSP_FOLDERS))},
        results=tuple(results),
        optional=tuple(optional),
        started="a program of adb shell, which runs at a lower priority than an app" if place.kind == "adb" else "",
    )


def device_results(package: Path, request: DeviceRequest, folder: Path) -> DeviceResults:
    """The outputs in the model's types and shapes; times and cycles if the SDK's viewer can read the logs here."""
    manifest = read_manifest(package)
    graphs = list(_graphs(package, manifest))
    outputs: list[dict[str, Any]] = [{} for _ in request.feeds]
    for graph in graphs:
        for number, values in enumerate(outputs):
            for name, item in graph.outputs.items():
                stored = np.fromfile(folder / graph.result(number, name), "<f4")
                shape = [dim.dim_value for dim in item.type.tensor_type.shape.dim]
                if stored.size != np.prod(shape, dtype=np.int64):
                    raise ToolError(f"{request.place.name}: {item.name} has {stored.size} values, not {shape}")
                kind = helper.tensor_dtype_to_np_dtype(item.type.tensor_type.elem_type)
                values[item.name] = stored.reshape(shape).astype(kind)
    sdk = _sdk_of(manifest)
    timed = _viewed(sdk, folder / graphs[0].word("--output_dir") / _LOG, graphs[0].model)
    nodes = _viewed(sdk, folder / _NODES / _LOG, graphs[0].model)
    return DeviceResults(
        outputs=tuple(outputs),
        latencies_us=() if timed is None else timed.execute_us[request.warmup :] or timed.execute_us,
        init_us=None if timed is None else timed.init_us,
        operators=() if nodes is None else nodes.operators,
        libraries={file.path: _build_id(file) for file in _runtime(sdk, manifest, request.place.system)},
    )


def _sdk_of(manifest: Json) -> Path:
    """The root of the SDK on this machine. Raises ToolError if there is none, or one of another release."""
    wanted = str((manifest.get("sdk") or {}).get("version", ""))
    root = next((os.environ[name] for name in ROOT_VARIABLES[:2] if os.environ.get(name)), "")
    if not root:
        raise ToolError("the SDK's program and libraries are not here", next=f"export QAIRT_SDK_ROOT=/path/to/{wanted}")
    version = version_of_sdk(Path(root))
    if version is None or not f"{version}.".startswith(f"{wanted}."):
        raise ToolError(
            f"{root}: is version {version or 'unknown'}, the package is for {wanted}",
            why="a runtime of another release may refuse the context binary, or run it otherwise",
            next=f"point QAIRT_SDK_ROOT to {wanted}",
        )
    return Path(root)


def _runtime(sdk: Path, manifest: Json, system: str) -> list[DeviceFile]:
    """The program and its libraries. Raises ToolError if one is missing, or stub and skel are of different builds."""
    abis = sorted(path.name for path in (sdk / "lib").glob("aarch64-*"))
    abi = os.environ.get("DEVICE_ABI") or next((a for a in abis if ("android" in a) == (system == "Android")), "")
    arch = str((manifest.get("target") or {}).get("arch") or "")
    stub, skel = (f"libQnnHtpV{arch.lstrip('v')}{part}.so" for part in ("Stub", "Skel"))
    names = ("libQnnHtp.so", "libQnnSystem.so", "libQnnHtpNetRunExtensions.so", stub)
    files = [DeviceFile(_NET_RUN, sdk / "bin" / abi / _NET_RUN, executable=True)]
    files += [DeviceFile(name, sdk / "lib" / abi / name) for name in names]
    files.append(DeviceFile(skel, sdk / f"lib/hexagon-{arch}/unsigned" / skel))
    missing = [str(file.source) for file in files if not Path(str(file.source)).is_file()]
    if missing:
        raise ToolError(f"{missing[0]}: is missing", next="install the whole SDK; DEVICE_ABI names another folder")
    builds = {file.path: _build_id(file) for file in files if file.path in (stub, skel)}
    if len(set(filter(None, builds.values()))) > 1:
        told = ", ".join(f"{name} of {build}" for name, build in builds.items())
        raise ToolError(f"{sdk}: stub and skel are of two releases: {told}", next="unpack the SDK again")
    return files


def _build_id(file: DeviceFile) -> str:
    """The build that a library names, "" if it names none."""
    found = _BUILD.search(Path(str(file.source)).read_bytes())
    return "" if found is None else found[1].decode("ascii")


def _graphs(package: Path, manifest: Json) -> Iterator[_Graph]:
    """Yields the models that run on the device, in order, each with its step of the manifest."""
    steps = {str(step["id"]): step for step in manifest.get("steps", ())}
    device = [step for step in steps.values() if step.get("where") == "device"]
    models = [path for path in sorted((package / "model").glob("*.onnx")) if path.stem != "tail"]
    for step in device:
        converted = steps.get(f"convert{str(step['id']).removeprefix('net-run')}")
        argv = tuple(map(str, step["argv"]))
        if converted is not None and "--input_network" in converted["argv"]:
            model = package / converted["argv"][converted["argv"].index("--input_network") + 1]
        elif len(device) == 1 and len(models) == 1:
            model = models[0]
        else:
            raise ToolError(f"{package}: several models share a context", next="scripts/run_on_device.sh runs them")
        graph = onnx.load(model, load_external_data=False).graph
        stored = {tensor.name for tensor in graph.initializer}
        yield _Graph(
            model=model,
            argv=argv,
            inputs=[item.name for item in graph.input if item.name not in stored],
            outputs={mangled(item.name): item for item in graph.output},
        )
    if not device:
        raise ToolError(f"{package}: has no step for a device")


def _inputs(request: DeviceRequest, graphs: Sequence[_Graph]) -> Iterator[DeviceFile]:
    """Yields the inputs as raw floats, and each graph's list of inputs, with paths to the results of earlier graphs."""
    made = dict[str, _Graph]()
    names = list(dict.fromkeys(name for graph in graphs for name in graph.inputs))
    for graph in graphs:
        lines = []
        for number in range(len(request.feeds)):
            words = []
            for name in graph.inputs:
                stored = f"inputs/{number}_{names.index(name)}.raw"
                place = made[name].result(number, mangled(name)) if name in made else stored
                words.append(f"{mangled(name)}:={place}")
            lines.append(" ".join(words))
        yield DeviceFile(graph.word("--input_list"), ("\n".join(lines) + "\n").encode())
        made |= {item.name: graph for item in graph.outputs.values()}
    for number, feed in enumerate(request.feeds):
        for index, name in enumerate(names):
            if name not in made:
                yield DeviceFile(f"inputs/{number}_{index}.raw", feed[name].astype("<f4").tobytes())


def _viewed(sdk: Path, log: Path, model: Path) -> CsvProfile | None:
    """A profile as the SDK's viewer reads it; None without a log, or if the viewer does not run here."""
    if not log.is_file() or not (sdk / _VIEWER).is_file():
        return None
    # Packaging reads no profile, so these are loaded for a run on a device only.
    from deploykit.devices.profiles import origins_of
    from deploykit_qualcomm.profiles import read_profile_csv

    table = log.with_suffix(".csv")
    try:
        run([str(sdk / _VIEWER), "--input_log", str(log), "--output", str(table)], timeout=_VIEWER_SECONDS)
        return read_profile_csv(table, origins_of(model))
    except (ToolError, InputError):
        return None
