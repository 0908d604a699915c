"""Kernels of common models that the atlas was not made from: what is delivered wrong, and what ``check`` tells.

    PYTHONPATH=tests/lab python tests/lab/benchmarks/common_kernels.py --seed S [--count 100] [--sdk 2.48] -o FOLDER

Each model is drawn, quantized and judged by code of its own (``common_drawn.py``): the truth is a plain session on
the provider, without the CPU, against the float model and against the model as given on the CPU. What ``check`` and
``package`` say is held against that, and what the package's own script gives. FOLDER keeps every model and answer.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from common_drawn import EDGED, Drawn, drawn

_WORSE, _ENOUGH = 6.0, 30.0
"""Decibels: wrong is what loses so much more than the simulation, and is below the other."""
_OTHERS = 0.05
"""Of values with edges so many more may be elsewhere."""
_SECONDS = 240
_SAID = ("wrong", "narrowed", "refused")

# Opens a plain session on the provider and runs every input; a crash ends only this process.
_PLAIN = """
import sys, numpy, onnxruntime, onnxruntime_qnn
onnxruntime.register_execution_provider_library(onnxruntime_qnn.EP_NAME, onnxruntime_qnn.get_library_path())
devices = [one for one in onnxruntime.get_ep_devices() if one.ep_name == onnxruntime_qnn.EP_NAME][:1]
settings = onnxruntime.SessionOptions()
settings.log_severity_level = 3
settings.add_session_config_entry("session.disable_cpu_ep_fallback", "1")
options = {"backend_path": onnxruntime_qnn.get_qnn_htp_path(), "soc_model": sys.argv[4]}
settings.add_provider_for_devices(devices, options)
session = onnxruntime.InferenceSession(sys.argv[1], sess_options=settings, enable_fallback=0)
names = [value.name for value in session.get_outputs()]
with numpy.load(sys.argv[2]) as data:
    count = 1 + max(int(key.partition(":")[0]) for key in data.files)
    feeds = [{} for _ in range(count)]
    for key in data.files:
        feeds[int(key.partition(":")[0])][key.partition(":")[2]] = data[key]
made = [session.run(None, feed) for feed in feeds]
numpy.savez(sys.argv[3], **{f"{at}:{name}": value for at, one in enumerate(made) for name, value in zip(names, one)})
"""

# The package's own script once per input, with one session for all of them.
_PACKAGE = """
import runpy, sys
script, *pairs = sys.argv[1:]
names, sessions = runpy.run_path(script), []
run, opened = names["main"], names["npu_session"]
run.__globals__["npu_session"] = lambda config: (sessions or sessions.append(opened(config)) or sessions)[0]
for given, made in zip(pairs[::2], pairs[1::2]):
    sys.argv = [script, given, "-o", made]
    run()
"""


def main() -> None:
    """Draws, asks, measures; prints a line for each model, and the counts."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--only", type=int, nargs="*", help="numbers of models")
    parser.add_argument(
        "--sdk", default="", help="a release whose toolchain is installed; default: that of this Python"
    )
    parser.add_argument("--python", default=sys.executable, help="the Python of that release's provider")
    parser.add_argument("--target", default="sm8650")
    parser.add_argument("--soc", default="57")
    parser.add_argument("-o", "--out", type=Path, required=True)
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    kept = given.out / "answers.jsonl"
    before = [json.loads(line) for line in kept.read_text("utf-8").splitlines()] if kept.exists() else []
    answers = {one["number"]: one for one in before}
    number, wanted = 0, given.only or None
    while len(wanted or ()) > 0 if wanted else len(answers) < given.count:
        at = wanted.pop(0) if wanted else number
        number += 1
        if at in answers and not given.only:
            continue
        try:
            one = drawn(given.seed, at, on_cpu)
            on_cpu(one.model, one.truth[:1])
        except Exception as error:  # sizes that do not fit, a form that is none
            print(f"{given.seed}-{at:03}: no model: {str(error).splitlines()[0][:90]}", flush=True)
            continue
        answers[at] = {"number": at, **answer(one, given.out / one.name.split()[0], given)}
        print(line_of(answers[at]), flush=True)
        kept.write_text("".join(json.dumps(one) + "\n" for one in answers.values()), "utf-8")
    print("\n".join(counts(list(answers.values()))))


def on_cpu(model: onnx.ModelProto, feeds: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Outputs of a model on the CPU, without optimisations."""
    import onnxruntime

    settings = onnxruntime.SessionOptions()
    settings.log_severity_level = 4
    settings.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), sess_options=settings, providers=["CPUExecutionProvider"]
    )
    names = [value.name for value in session.get_outputs()]
    return [dict(zip(names, session.run(None, dict(feed)), strict=True)) for feed in feeds]


def in_halves(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model with every float tensor rounded to float16 where it is made: what float16 costs at the least."""
    from onnx import TensorProto, helper

    half = onnx.ModelProto()
    half.CopyFrom(model)
    inferred = onnx.shape_inference.infer_shapes(model)
    kinds = {v.name: v.type.tensor_type.elem_type for v in (*inferred.graph.value_info, *inferred.graph.output)}
    kinds |= {v.name: v.type.tensor_type.elem_type for v in inferred.graph.input}
    kinds |= {tensor.name: tensor.data_type for tensor in inferred.graph.initializer}
    outputs, nodes, now = {value.name for value in model.graph.output}, [], dict[str, str]()

    def rounded(name: str, made: str) -> None:
        nodes.append(helper.make_node("Cast", [name], [f"{made}_half"], to=TensorProto.FLOAT16))
        nodes.append(helper.make_node("Cast", [f"{made}_half"], [made], to=TensorProto.FLOAT))

    for name in (*(value.name for value in model.graph.input), *(t.name for t in model.graph.initializer)):
        if kinds.get(name) == TensorProto.FLOAT:
            now[name] = f"{name}_r"
            rounded(name, now[name])
    for node in model.graph.node:
        node = onnx.NodeProto.FromString(node.SerializeToString())
        node.input[:] = [now.get(name, name) for name in node.input]
        for place, name in enumerate(node.output):
            if kinds.get(name) == TensorProto.FLOAT:
                now[name], node.output[place] = name if name in outputs else f"{name}_r", f"{name}_raw"
        nodes.append(node)
        for name in node.output:
            if name.endswith("_raw"):
                rounded(name, now[name.removesuffix("_raw")])
    del half.graph.node[:]
    half.graph.node.extend(nodes)
    return half


def answer(one: Drawn, folder: Path, given: argparse.Namespace) -> dict[str, Any]:
    """What one model is, what is said of it, and what is delivered."""
    folder.mkdir(exist_ok=True)
    started = time.monotonic()
    onnx.save(one.model, folder / "model.onnx")
    onnx.save(one.float_model, folder / "float.onnx")
    (folder / "calibration").mkdir(exist_ok=True)
    for at, feed in enumerate(one.calibration):
        np.savez(folder / "calibration" / f"{at:03}.npz", **feed)
    np.savez(folder / "truth.npz", **{f"{at}:{n}": v for at, feed in enumerate(one.truth) for n, v in feed.items()})
    float_run = on_cpu(one.float_model, one.truth)
    simulated = on_cpu(in_halves(one.model) if one.kind == "fp16" else one.model, one.truth)
    edged = any(op in EDGED for op in one.nodes)
    plain = plain_run(folder, given)
    truth = plain if isinstance(plain, str) else judged(float_run, simulated, plain, edged)
    said = asked("check", folder, given)
    packaged = asked("package", folder, given)
    delivered = "none"
    if (folder / "out" / "artifacts").is_dir() and packaged.get("status", {}).get("compiled") != "refused":
        got = package_run(folder, one.truth, given)
        delivered = got if isinstance(got, str) else judged(float_run, simulated, got, edged)
    status = packaged.get("status", {})
    return {
        "name": one.name,
        "nodes": list(one.nodes),
        "form": form_of(one),
        "plain": truth,
        "check": told(said),
        "check_exit": said.get("exit"),
        "package_exit": packaged.get("exit"),
        "package_said": told(packaged),
        "compiled": status.get("compiled"),
        "right": status.get("right"),
        "right_why": str(status.get("right_why", packaged.get("error", "")))[:300],
        "delivered": delivered,
        "seconds": round(time.monotonic() - started, 1),
    }


def form_of(one: Drawn) -> str:
    """Shapes and settings, in a line."""
    from onnx import helper

    parts = [str([d.dim_value for d in v.type.tensor_type.shape.dim]) for v in one.float_model.graph.input]
    for node in one.float_model.graph.node:
        settings = {a.name: helper.get_attribute_value(a) for a in node.attribute}
        parts.append(f"{node.op_type}{settings or ''}")
    small = [t for t in one.float_model.graph.initializer if t.data_type == 7]
    parts += [f"{t.name}={onnx.numpy_helper.to_array(t).ravel()[:12].tolist()}" for t in small]
    return " ".join(parts)[:500]


def plain_run(folder: Path, given: argparse.Namespace) -> list[dict[str, Any]] | str:
    """Outputs of a plain session on the provider; else "refused: why"."""
    made = folder / "plain.npz"
    made.unlink(missing_ok=True)
    arguments = [
        given.python,
        "-c",
        _PLAIN,
        str(folder / "model.onnx"),
        str(folder / "truth.npz"),
        str(made),
        given.soc,
    ]
    try:
        done = subprocess.run(arguments, capture_output=True, encoding="utf-8", errors="replace", timeout=_SECONDS)
    except subprocess.TimeoutExpired:
        return "refused: no end"
    if not made.exists():
        return f"refused: {(done.stderr.strip().splitlines() or [str(done.returncode)])[-1][-200:]}"
    with np.load(made) as data:
        keys = [key.partition(":") for key in data.files]
        count = 1 + max(int(at) for at, _, _ in keys)
        return [{name: data[f"{at}:{name}"] for where, _, name in keys if int(where) == at} for at in range(count)]


def package_run(folder: Path, truth: Sequence[Mapping[str, Any]], given: argparse.Namespace) -> Any:
    """Outputs of the package's own script."""
    (folder / "runs").mkdir(exist_ok=True)
    pairs = [(folder / "runs" / f"in{at}.npz", folder / "runs" / f"out{at}.npz") for at in range(len(truth))]
    for (path, made), feed in zip(pairs, truth, strict=True):
        made.unlink(missing_ok=True)
        np.savez(path, **feed)
    arguments = [given.python, "-c", _PACKAGE, str((folder / "out" / "scripts" / "run.py").resolve())]
    arguments += [str(path.resolve()) for pair in pairs for path in pair]
    try:
        done = subprocess.run(arguments, capture_output=True, encoding="utf-8", errors="replace", timeout=_SECONDS)
    except subprocess.TimeoutExpired:
        return "no run: no end"
    if not all(made.exists() for _, made in pairs):
        return f"no run: {(done.stderr.strip().splitlines() or ['?'])[-1][-200:]}"
    return [dict(np.load(made)) for _, made in pairs]


def judged(
    float_run: Sequence[Mapping[str, Any]],
    simulated: Sequence[Mapping[str, Any]],
    got: Sequence[Mapping[str, Any]],
    edged: bool,
) -> str:
    """``right`` or ``wrong``, with decibels against float of the device and of the simulation: the worst output."""
    worst = ("right", "")
    for name in float_run[0]:
        if name not in got[0]:
            return f"wrong: no output {name}"
        f, s, g = (np.concatenate([np.ravel(one[name]) for one in runs]) for runs in (float_run, simulated, got))
        if f.shape != g.shape:
            return f"wrong: shape of {name}"
        f, s, g = (values.astype(np.float64) for values in (f, s, g))
        known = np.isfinite(f) & np.isfinite(s)
        if not np.isfinite(g[known]).all():
            return f"wrong: {name} is not finite"
        f, s, g = f[known], s[known], g[known]
        device, simulation = decibels(f, g), decibels(f, s)
        is_wrong = device < _ENOUGH and simulation - device >= _WORSE
        if edged:
            far = 0.02 * max(np.ptp(f), 1e-9)
            is_wrong &= np.mean(np.abs(g - s) > far) > _OTHERS + np.mean(np.abs(f - s) > far)
        word = "wrong" if is_wrong else "right"
        if not worst[1] or (word == "wrong" and worst[0] == "right"):
            worst = (word, f"{device:.1f} dB, simulated {simulation:.1f}")
    return f"{worst[0]}: {worst[1]}"


def decibels(wanted: Any, got: Any) -> float:
    """Signal to noise, the signal without its mean unless it is constant."""
    signal = np.var(wanted) or np.mean(wanted**2)
    noise = np.mean((wanted - got) ** 2)
    return (
        120.0 if noise == 0 or not len(wanted) else float(np.clip(10 * np.log10(max(signal, 1e-30) / noise), -99, 120))
    )


def asked(command: str, folder: Path, given: argparse.Namespace) -> dict[str, Any]:
    """What a command says, as JSON, with its exit status."""
    arguments = [sys.executable, "-m", "deploykit", command, str(folder / "model.onnx"), "--target", given.target]
    arguments += ["--backend", "ort-qnn", "--json", *(["--sdk", given.sdk] if given.sdk else [])]
    arguments += ["--calibration", str(folder / "calibration")]
    arguments += ["-o", str(folder / "out"), "--force"] if command == "package" else []
    done = subprocess.run(arguments, capture_output=True, encoding="utf-8", errors="replace", check=False)
    (folder / f"{command}.json").write_text(done.stdout, "utf-8")
    (folder / f"{command}.txt").write_text(done.stderr, "utf-8")
    try:
        return {**json.loads(done.stdout), "exit": done.returncode}
    except ValueError:
        return {"error": (done.stderr.strip().splitlines() or ["?"])[0], "exit": done.returncode}


def told(said: Mapping[str, Any]) -> list[str]:
    """Warnings and errors about nodes: "wrong QNN320 Softmax_t1: …", those that are handled with "handled" in front."""
    lines = []
    for one in said.get("findings", ()):
        handled = bool(one["handled"])
        if one["severity"] == "info" and not handled:
            continue
        verdict = str(one["evidence"].get("verdict", "")) or one["severity"]
        lines.append(
            f"{'handled ' if handled else ''}{verdict} {one['code']} {one['subject']['name']}: {one['message'][:150]}"
        )
    return lines


def line_of(one: Mapping[str, Any]) -> str:
    """One model in a line."""
    alarms = [line[:60] for line in one["check"]]
    package = f"exit {one['package_exit']} {one['compiled']} right={one['right']} -> {one['delivered']}"
    return f"{one['name']}: plain {one['plain'][:70]} | {package} | {alarms} {one['seconds']}s"


def counts(answers: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """The figures. Told is what names a node, or the model where nothing is taken; handled or not."""
    ends = Counter[str]()
    of = dict[str, list[Mapping[str, Any]]](right=[], wrong=[], refused=[])
    for one in answers:
        truth = one["plain"].partition(":")[0]
        of[truth].append(one)
        ends[f"plain {truth}, package exit {one['package_exit']}, delivered {one['delivered'].partition(':')[0]}"] += 1
    bad = [one for one in answers if one["delivered"].startswith(("wrong", "no run")) and one["package_exit"] == 0]
    silent = [one["name"] for one in bad if not any(map(_is_open, one["package_said"]))]
    told = {word: [one for one in of[word] if any(map(_is_told, one["check"]))] for word in ("wrong", "refused")}
    missed = {word: [one["name"] for one in of[word] if one not in told[word]] for word in told}
    alarms = [one["name"] for one in of["right"] if any(map(_is_open, one["check"]))]
    true = sum(any(map(_is_open, one["check"])) for word in told for one in of[word])
    yield f"{len(answers)} models: {', '.join(f'{len(some)} {word}' for word, some in of.items())} as they are"
    yield f"delivered wrong with exit status 0: {len(bad)}, of these without a word: {len(silent)} {silent}"
    for word, some in told.items():
        yield f"{word}, and told by check: {len(some)} of {len(of[word])}; not told: {missed[word]}"
    yield f"right, and alarmed by check: {len(alarms)} of {len(of['right'])} {alarms}"
    yield f"models with an open finding: {true + len(alarms)}, of these wrong or refused: {true}"
    yield from (f"  {count:4} {words}" for words, count in ends.most_common())


def _is_told(line: str) -> bool:
    """About a kernel; what is said of an input's type or of float islands is not."""
    return not any(code in line for code in ("QNN205", "QNN253", "ORT101", "ORT121"))


def _is_open(line: str) -> bool:
    return _is_told(line) and not line.startswith("handled")


if __name__ == "__main__":
    main()
