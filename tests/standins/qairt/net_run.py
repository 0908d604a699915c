"""Plays qnn-net-run and qnn-profile-viewer; see README.md beside it. Not the vendor's software.

A real context binary is run by the HTP emulator of onnxruntime-qnn, one of ``standin.py`` as its ONNX file on the CPU.
"""

from __future__ import annotations

import base64
import os
import shutil
import sys
import time
from collections.abc import Callable, Mapping
from itertools import islice
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import onnxruntime as ort

from deploykit_qualcomm.qnn_types import mangled

PLAYS = "stand-in for "
Feed = Mapping[str, Any]
Inference = Callable[[Feed], Feed]
HEAD = "Msg Timestamp,Message,Time,Unit of Measurement,Timing Source,Event Level,Event Identifier"


def fail(*lines: str, status: int = 1) -> NoReturn:
    print(*lines, sep="\n")
    sys.exit(status)


def on_the_dsp(backend: str) -> None:
    """What the vendor's loader wants: the backend beside the stub, and a skel on ADSP_LIBRARY_PATH."""
    if not Path(backend).is_file():
        fail(f'[ ERROR ] Unable to load backend. dlerror(): dlopen failed: library "{backend}" not found')
    if refused := os.environ.get("STANDIN_DSP"):
        fail(refused)
    folders = [Path(folder) for folder in os.environ.get("ADSP_LIBRARY_PATH", "").split(";")]
    if not any(folder.is_dir() and any(folder.glob("libQnnHtp*Skel.so")) for folder in folders):
        fail(
            "[ ERROR ] <E> DspTransport.openSession qnn_open failed, 0x80000406, prio 100",
            "[ ERROR ] <E> IDspTransport: Unable to load lib 0x80000406",
            "[ ERROR ] <E> DspTransport failed,cannot open session, error 0x00000009",
            "[ ERROR ] Device Creation failure",
        )


def given_as(feed: Feed, name: str) -> Any:
    """The values of one input; a list may leave the name out where there is but one."""
    if name not in feed and "" not in feed:
        fail(f"[ ERROR ] Input list does not name {name}")
    return feed[name if name in feed else ""]


def on_cpu(model: bytes) -> tuple[Inference, Any]:
    """The ONNX file in float32, without graph optimisations."""
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    kinds = {"tensor(float)": np.float32, "tensor(int64)": np.int64}

    def infer(feed: Feed) -> Feed:
        given = {
            item.name: given_as(feed, mangled(item.name)).astype(kinds[item.type]).reshape(item.shape)
            for item in session.get_inputs()
        }
        names = [mangled(item.name) for item in session.get_outputs()]
        return dict(zip(names, session.run(None, given), strict=True))

    return infer, session


def on_emulator(binary: Path, profile: Path, level: str) -> tuple[Inference, Any]:
    """The graph of a context binary through the provider, its inputs and outputs as float32 on their grids."""
    import onnxruntime_qnn as qnn
    from onnx import TensorProto, helper, save

    from deploykit_ort_qnn.compiler.context_reader import read_context_binary

    context = read_context_binary(binary, lambda _: None)
    (graph,) = context["graphs"]
    kinds = {name.lower(): code for name, code in TensorProto.DataType.items()} | {"float32": TensorProto.FLOAT}
    values = {
        side: [helper.make_tensor_value_info(item["name"], kinds[item["dtype"]], item["shape"]) for item in graph[side]]
        for side in ("inputs", "outputs")
    }
    names = {side: [value.name for value in values[side]] for side in values}
    node = helper.make_node("EPContext", names["inputs"], names["outputs"], graph["name"], domain="com.microsoft")
    given = {"embed_mode": 0, "ep_cache_context": binary.name, "main_context": 1, "source": "QNNExecutionProvider"}
    for key, value in {**given, "partition_name": graph["name"]}.items():
        node.attribute.append(helper.make_attribute(key, value))
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    wrapper = binary.with_name(f"{binary.name}.net-run.onnx")
    save(
        helper.make_model(helper.make_graph([node], "run", values["inputs"], values["outputs"]), opset_imports=opsets),
        wrapper,
    )
    options = {"backend_path": qnn.get_qnn_htp_path(), "soc_model": str(context["soc_model"])}
    if level:
        options |= {"profiling_level": level, "profiling_file_path": str(profile)}
    settings = ort.SessionOptions()
    settings.log_severity_level = 3
    ort.register_execution_provider_library(qnn.EP_NAME, qnn.get_library_path())
    devices = [device for device in ort.get_ep_devices() if device.ep_name == qnn.EP_NAME][:1]
    settings.add_provider_for_devices(devices, options)
    session = ort.InferenceSession(str(wrapper), sess_options=settings)
    wrapper.unlink()

    def infer(feed: Feed) -> Feed:
        stored = {}
        for item in graph["inputs"]:
            value = given_as(feed, item["name"]).reshape(item["shape"])
            if item["scale"] is not None:
                ends = np.iinfo(item["dtype"])
                value = np.clip(np.rint(value / item["scale"]) + item["zero_point"], ends.min, ends.max)
            stored[item["name"]] = value.astype(item["dtype"])
        made = dict(zip(names["outputs"], session.run(None, stored), strict=True))
        for item in graph["outputs"]:
            if item["scale"] is not None:
                made[item["name"]] = (made[item["name"]].astype(np.float32) - item["zero_point"]) * item["scale"]
        return made

    return infer, session


def net_run(flags: Mapping[str, list[str]], version: str) -> None:
    """Each line of the list is one sample: files of 32-bit floats in, files of 32-bit floats out."""
    del version
    on_the_dsp(flags["--backend"][0])
    binary, output = Path(flags["--retrieve_context"][0]), Path(flags["--output_dir"][0])
    output.mkdir(parents=True, exist_ok=True)
    level, profile = flags.get("--profiling_level", [""])[0], output / "provider.csv"
    started = time.perf_counter_ns()
    compiled = binary.read_bytes()
    if compiled.startswith(PLAYS.encode()):
        infer, session = on_cpu(base64.b64decode(compiled.removeprefix(PLAYS.encode())))
    else:
        infer, session = on_emulator(binary, profile, level)
    rows = [f"0,INIT,{(time.perf_counter_ns() - started) // 1000},US,NETRUN,ROOT,init"]
    lines = [line for line in Path(flags["--input_list"][0]).read_text("utf-8").splitlines() if line.strip()]
    feeds = []
    for line in lines:
        files = [word.rpartition(":=") for word in line.split()]
        feeds.append({name: np.fromfile(path, np.float32) for name, _, path in files})
    wanted, kept = (int(flags.get(flag, ["0"])[0]) for flag in ("--num_inferences", "--keep_num_outputs"))
    numbers = range(wanted or len(feeds))
    for number in numbers:
        started = time.perf_counter_ns()
        made = infer(feeds[number % len(feeds)])
        rows.append(f"0,EXECUTE,{(time.perf_counter_ns() - started) // 1000},US,NETRUN,ROOT,graph")
        if number < (kept or len(numbers)):
            result = output / f"Result_{number}"
            result.mkdir(exist_ok=True)
            for name, value in made.items():
                np.asarray(value, np.float32).tofile(result / f"{name}.raw")
    del session, infer  # the provider ends its file with its session
    if level:
        counted = profile.read_text("utf-8").splitlines()[1:] if profile.is_file() else []
        (output / "qnn-profiling-data_0.log").write_text(
            "\n".join([PLAYS + "a log", HEAD, *rows, *counted, ""]), "utf-8"
        )
        profile.unlink(missing_ok=True)
    for log in islice(output.glob("*_qnn.log"), 1):
        log.unlink()


def view(flags: Mapping[str, list[str]], version: str) -> None:
    """The log of ``net_run`` as CSV; that of the vendor is binary."""
    del version
    log = Path(flags["--input_log"][0])
    if not log.is_file() or not log.read_text("utf-8", "replace").startswith(PLAYS):
        fail(f"Unable to read log file {log}")
    shutil.copyfile(log, flags["--output"][0])
