"""Packages from beginning to end, really compiled and run on the emulator; every trap of the issue is caught."""

import hashlib
import json
import os
import shutil
import subprocess
import sys
from functools import partial
from operator import itemgetter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import pytest
from msgspec.structs import replace
from onnx import numpy_helper

import deploykit
import deploykit_ort_qnn.provider_model as provider
from deploykit.accuracy.judge.judge import Judge
from deploykit.accuracy.samples.inputs import Label
from deploykit.accuracy.simulate.sessions import Session
from deploykit.accuracy.simulate.simulation import Original
from deploykit.backend.backend import Request, SharedWork
from deploykit.backend.on_device import DeviceRequest, Place
from deploykit.encodings.formats.aimet import write_encodings
from deploykit.encodings.insert_qdq import insert_qdq
from deploykit.encodings.lpbq_files import convert_file
from deploykit.encodings.values import EncodingSet
from deploykit.errors import ToolError
from deploykit.flow.pipeline import make_package, make_packages
from deploykit.model.collect import facts_of
from deploykit.packages.building import build_package
from deploykit.packages.manifests import sealed
from deploykit.packages.verifying import verify_package as verify
from deploykit_ort_qnn import backend, execution
from deploykit_ort_qnn.compiler.emulation import EmulationJob, _both_sides, compare
from deploykit_ort_qnn.compiler.hosts import Worker
from deploykit_ort_qnn.compiler.jobs import CompileOutcome
from deploykit_ort_qnn.provider_model import provider_model
from sample_models.cell_detectors import cell_detector, cell_pictures
from sample_models.min_max import min_max_encodings
from text_models import text_model

AIMET = Path(__file__).parents[1] / "data" / "aimet"
ALONE = {"kernels": "off"}
"""Nothing wrong is done in another way."""


def request(model: Path | str, target: str = "sm8550", **more: Any) -> Request:
    path = AIMET / model if isinstance(model, str) else model
    return Request(model=path, target=target, backend="ort-qnn", **more)


def without_pair(model: onnx.ModelProto, node_name: str) -> onnx.ModelProto:
    """The QDQ model with the pair behind one node removed."""
    graph = model.graph
    node = next(n for n in graph.node if n.name == node_name)
    quantize = next(n for n in graph.node if n.op_type == "QuantizeLinear" and n.input[0] == node.output[0])
    dequantize = next(n for n in graph.node if n.op_type == "DequantizeLinear" and n.input[0] == quantize.output[0])
    for reader in graph.node:
        for position, name in enumerate(reader.input):
            if name == dequantize.output[0]:
                reader.input[position] = node.output[0]
    graph.node.remove(quantize)
    graph.node.remove(dequantize)
    return model


def test_a_model_with_encodings_is_compiled_typed_and_emulated(compiled_package: Path) -> None:
    report = verify(compiled_package).to_json()
    assert report["ok"] and report["precision"]["mismatches"] == [] and report["precision"]["actual"]
    manifest = json.loads((compiled_package / "manifest.json").read_text())
    assert manifest["executed"] == ["compile", "emulate"] and manifest["generated"] == ["run"]
    wheel = {name: str(manifest["record"]["compile"][name]) for name in ("wheel", "qairt", "onnxruntime")}
    modes = {"status": "compiled", "finalization_mode": "default", "schematic": True}
    counts = {"soc_model": 57, "graphs": 1, "nodes_on_cpu": 0}
    assert manifest["record"]["compile"] == {**wheel, **modes, **counts}
    numbers = json.loads((compiled_package / "artifacts/numbers.json").read_text())
    assert numbers["agreement_db"]["logits"] > 60
    words = json.dumps([manifest["record"], manifest["steps"]])
    assert not any(word in words for word in ("seconds", "cycles", "_ms")), "emulated time is no latency"


@pytest.mark.heavy
def test_a_removed_pair_is_a_float_island(tmp_path: Path) -> None:
    model = without_pair(onnx.load(AIMET / "vit/w8a8.qdq.onnx"), "/blocks/blocks.0/attn/Softmax")
    onnx.save(model, tmp_path / "m.onnx")
    packaged = make_package(request(tmp_path / "m.onnx"), tmp_path / "p")
    found = [finding for finding in packaged.findings if finding.code == "ORT101"]
    assert {"/blocks/blocks.0/attn/Softmax", "/blocks/blocks.0/attn/MatMul_1"} <= {f.subject.name for f in found}
    assert packaged.exit_status == 0
    strict = make_package(request(tmp_path / "m.onnx", adapter_options={"strict_precision": True}), tmp_path / "s")
    assert strict.exit_status == 1


def test_a_device_is_asked_for_the_context_in_its_own_python(
    compiled_package: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = Place(kind="ssh", system="Windows", machine="aarch64", folder="/f", python="/py", soc="SM8650")
    asked, manifest = DeviceRequest(feeds=[{"input": np.zeros(2)}], place=place), {"sdk": {"version": "2.7.0"}}
    job = backend.device_job(compiled_package, manifest, replace(asked, power="saver"))
    named = {file.path: file.source for file in job.files}
    told = json.loads(bytes(named["job.json"]))
    contexts = ["artifacts/model_ctx.onnx", "artifacts/model_ctx_qnn.bin"]
    assert [*named] == [*contexts, "runner.py", "job.json", "inputs.npz"] and job.where == "device"
    assert job.distributions == {"onnxruntime-qnn": "2.7.0"} and told["model"] == contexts[0]
    assert told["options"] == {"htp_performance_mode": "power_saver"} and told["provider"] == "QNNExecutionProvider"
    assert told["entries"] == {"session.disable_cpu_ep_fallback": "1"} and told["plugin"]["module"] == "onnxruntime_qnn"
    assert told["profile_options"] == {"profiling_level": "detailed", "profiling_file_path": "provider_profile.csv"}
    here = backend.device_job(compiled_package, {}, replace(asked, place=replace(place, machine="x86_64")))
    assert (here.where, here.distributions) == ("emulator", {"onnxruntime-qnn": ""})
    monkeypatch.setattr(
        execution, "toolchain_host", lambda wheel: SimpleNamespace(emulator=Worker(python=f"/{wheel.version}"))
    )
    for python, runs in ((sys.executable, "/2.7.0"), ("/named", "/named")):
        local = replace(asked, place=replace(place, kind="local", python=python))
        assert backend.device_job(compiled_package, manifest, local).argv[0] == runs, "a toolchain has the wheel"
    for package, kind, what in ((compiled_package, "adb", "is not run through"), (tmp_path, "ssh", "is not compiled")):
        with pytest.raises(ToolError, match=what):
            backend.device_job(package, manifest, replace(asked, place=replace(place, kind=kind)))
    made: dict[str, Any] = {"0:y": np.ones(2)}
    np.savez(tmp_path / "outputs.npz", **made)
    timed = {"latencies_us": [3, 1], "init_us": 9, "peak_mb": None, "versions": {"onnxruntime": "1"}}
    (tmp_path / "result.json").write_text(json.dumps(timed))
    shutil.copy(AIMET.with_name("profiles") / "session.json", tmp_path / "session_profile.json")
    assert {one.on for one in backend.device_results(compiled_package, asked, tmp_path).operators} == {"CPU", "NPU"}
    shutil.copy(AIMET.with_name("profiles") / "context.csv", tmp_path / "provider_profile.csv")
    found = backend.device_results(compiled_package, asked, tmp_path)
    ends = [(one.node, one.unit, one.on) for one in (found.operators[0], found.operators[-1])]
    assert ends == [("/layer1/0/conv2/Conv", "cycles", "NPU"), (ends[1][0], "us", "CPU")]
    assert found.latencies_us == (3, 1) and any(one.node.startswith("layout of ") for one in found.operators)


def test_an_unset_chip_and_options_that_nobody_knows_are_found(tmp_path: Path) -> None:
    make_package(request("mlp/w8a8.qdq.onnx", compile=False), tmp_path / "p")
    for name, options in (("compile", {"vtcm": "8"}), ("run", {"fast": "1"})):
        (tmp_path / f"p/config/{name}_options.json").write_text(json.dumps({"provider_options": options}))
    report = backend.verify(tmp_path / "p", json.loads((tmp_path / "p/manifest.json").read_text()))
    detail = "soc_model is not set; vtcm: the provider has no such option; fast: the provider has no such option"
    assert [(check.id, check.detail) for check in report.checks if not check.ok] == [("provider-options", detail)]


def test_a_package_tells_the_loss_that_the_lpbq_command_tells(tmp_path: Path) -> None:
    """The command works on packed integers, the package on the weights: two ways to the same numbers."""
    prepared = provider_model(onnx.load(AIMET / "mlp/bq-w4a16.qdq.onnx"), None, lpbq=True, int16_matmul=True)
    told = next(step.to_json()["losses"] for step in prepared.steps if step.id == "lpbq")
    report = convert_file(AIMET / "mlp/bq-w4a16.qdq.onnx", tmp_path / "out.onnx", refined=True)
    asked = [weight.loss.to_json() for weight in report.weights if weight.loss is not None]
    assert len(told) == len(asked) > 1
    order = itemgetter("sqnr_db")
    for mine, other in zip(sorted(told.values(), key=order), sorted(asked, key=order), strict=True):
        assert mine == pytest.approx(other, rel=1e-3, abs=1e-4)


def script(package: Path, *argv: str) -> subprocess.CompletedProcess[str]:
    around = {**os.environ, "PYTHON": sys.executable}
    done = subprocess.run(argv, cwd=package, env=around, capture_output=True, encoding="utf-8", check=False)
    assert done.returncode == 0, done.stderr + done.stdout
    return done


@pytest.mark.heavy
def test_chips_for_which_the_same_is_compiled_are_emulated_once(tmp_path: Path) -> None:
    """Of another architecture two of four samples are run, and what is said of all four is what they give there."""
    values = np.random.default_rng(0).normal(size=(4, 1, 3, 16, 16)).astype("f4")
    np.savez(tmp_path / "data.npz", input=values)
    entries = {"encodings": AIMET / "cnn/w8a16.v1.0.0.encodings", "adapter_options": ALONE}
    entries["calibration"] = tmp_path / "data.npz"
    asked = [request("cnn/model.onnx", target, **entries) for target in ("sm8650", "sa8620", "sm8550")]
    make_packages(asked, tmp_path / "all")
    told = []
    for one in asked:
        make_package(one, tmp_path / one.target)
        folders = tmp_path / "all" / one.target, tmp_path / one.target
        manifests = [json.loads((folder / "manifest.json").read_text()) for folder in folders]
        told.append(["emulated_for" in manifest["record"]["numbers"] for manifest in manifests])
        numbers = [(folder / "artifacts/numbers.json").read_bytes() for folder in folders]
        assert numbers[0] == numbers[1]
    assert told == [[False, False], [True, False], [True, False]]
    reason = json.loads((tmp_path / "all/sm8550/manifest.json").read_text())["record"]["numbers"]["emulated_for"]
    assert reason.endswith("which gave the same bits for 2 samples")


@pytest.mark.heavy
def test_the_scripts_of_the_package_do_the_same(tmp_path: Path) -> None:
    make_package(request("cnn/w8a8.qdq.onnx"), tmp_path / "p")
    binary = tmp_path / "p/artifacts/model_ctx_qnn.bin"
    before = binary.read_bytes()
    binary.unlink()
    script(tmp_path / "p", sys.executable, "scripts/compile.py")
    done = script(tmp_path / "p", sys.executable, "scripts/run.py", "--compare", "model/model.onnx")
    assert binary.read_bytes() == before and "dB against the CPU" in done.stdout
    assert "logits" in script(tmp_path / "p", "bash", "scripts/run_on_device.sh").stdout
    for factor, told in ((0.5, False), (1000, True)):  # what lies outside of the input's grid is said
        np.savez(tmp_path / "x.npz", input=np.full((1, 3, 16, 16), factor, np.float32))
        done = script(tmp_path / "p", sys.executable, "scripts/run.py", str(tmp_path / "x.npz"))
        assert ("768 of 768 values lie outside of the calibrated" in done.stderr) == told
    np.savez(tmp_path / "x.npz", input=np.zeros((2, 1, 3, 16, 16), np.float32))
    many = [sys.executable, "scripts/run.py", str(tmp_path / "x.npz")]
    done = subprocess.run(many, cwd=tmp_path / "p", capture_output=True, encoding="utf-8", check=False)
    assert (done.returncode, done.stderr.splitlines()[-1]) == (
        1,
        "  next: give one sample, one such array for each input",
    )


@pytest.mark.heavy
@pytest.mark.usefixtures("every_compilation_runs")
def test_as_many_samples_are_emulated_as_there_is_time_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("deploykit_ort_qnn.compiler.jobs._FOR_RUNNING", 1e-9)
    np.savez(tmp_path / "data.npz", hidden_states=np.random.default_rng(0).normal(size=(4, 1, 8, 64)).astype("f4"))
    packaged = make_package(
        request("mlp/model.onnx", calibration=tmp_path / "data.npz", precision="fp16"), tmp_path / "p"
    )
    right = packaged.status.right
    assert (str(right.state), right.count) == ("yes", 1), right
    assert "1 of 4 samples, as many as --option time_limit=" in right.why
    assert verify(tmp_path / "p", numerics=True).ok


OF_JOB: dict[str, Any] = {"options": {}, "tail": "", "allow_cpu": False, "timeout": 60.0, "host": None, "keep": False}
OF_JOB |= {"shared": SharedWork(), "kernels": ()}


@pytest.mark.parametrize(("gives", "asked"), [(1.0, [4, 2]), (-1.0, [4, 2, 2])])
def test_another_architecture_is_emulated_for_all_samples_where_two_differ(gives: float, asked: list[int]) -> None:
    counts, shared, signs = list[int](), SharedWork(), iter((1.0, gives, gives))

    def run(feeds: Any) -> tuple[list[Any], list[Any]]:
        counts.append(len(feeds))
        sign = next(signs)
        return [{"y": one["x"]} for one in feeds], [{"y": sign * one["x"]} for one in feeds]

    feeds, made = [{"x": np.full(2, value)} for value in (1.0, 2.0, 3.0, 4.0)], list[Any]()
    for arch in ("v75", "v79", "v79", "v75"):
        job: Any = SimpleNamespace(shared=shared, kernels=(arch, "model"))
        made.append(_both_sides(job, feeds, run))
    assert counts == asked and [bool(why) for _, why in made] == [False, gives > 0, True, True]
    assert [[one["y"][0] for one in sides[1]] for sides, _ in made] == [
        [sign * value for value in (1, 2, 3, 4)] for sign in (1, gives, gives, 1)
    ]


def test_what_only_the_device_loses_names_a_wider_type(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three of 120 classes, where the encodings lose none: the kernels are to blame, and the yes says what keeps it."""
    model = text_model("float[1,10] x", "y = Softmax (x)", "float[1,10] y")
    onnx.save(model, tmp_path / "m.onnx")
    feeds = [{"x": 9 * np.eye(10, dtype=np.float32)[i % 10][None]} for i in range(120)]
    judge = Judge(model, facts_of(model), feeds, label="given")
    right = [dict(one) for one in judge.reference]
    made = [{"y": np.roll(one["y"], 1)} if number < 3 else one for number, one in enumerate(right)]
    monkeypatch.setattr("deploykit_ort_qnn.compiler.emulation.execute_both", lambda *_args, **_more: (right, made))
    job = partial(EmulationJob, root=tmp_path, qdq="m.onnx", facts=facts_of(model), context="c.onnx", **OF_JOB)
    job = partial(job, inputs=tuple(feeds), label=Label.GIVEN, bits=16)
    original = Original(judge=judge, quantization=judge.compare(right), wider=lambda: "float16 keeps it")
    device = compare(job(original=original)).device
    assert device is not None and device.right and device.cost.endswith("120 of 120 classes equal; float16 keeps it")
    made[:] = right
    same = compare(job(original=original)).device
    assert same is not None and same.right and "float16" not in same.cost


def test_the_first_tensor_that_is_lost_is_found_and_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On the worse of two samples; a tensor that is 20 dB near is not lost, and inputs are not looked at.

    Of many tensors some are asked for first, and then those before the first wrong one.
    """
    steps = ["{0} = Neg (a0)", "[near] {0} = Abs (a1)", "[lost] {0} = Tanh (a2)", "[behind] {0} = Neg (a3)"]
    body = " ".join(
        f"{step.format(f'r{at}')} q{at} = QuantizeLinear (r{at}, s, z) a{at + 1} = DequantizeLinear (q{at}, s, z)"
        for at, step in enumerate(steps)
    ).replace("r0 = Neg (a0) q0 = QuantizeLinear (r0,", "q0 = QuantizeLinear (a0,")
    grid = "<float s = {0.01}, uint8 z = {128}>"
    text = f'<ir_version: 8, opset_import: ["": 17]> g (float[1,4] a0) => (float[1,4] a4) {grid} {{ {body} }}'
    model = onnx.parser.parse_model(text)
    onnx.save(model, tmp_path / "m.onnx")
    off, asked = {"a1": 9.0, "a2": 0.09, "a3": 0.11, "a4": 1.0}, list[list[str]]()

    def execute_both(root: Path, name: str, context: str, sets: Any, **_: Any) -> Any:
        session = Session(onnx.load(root / name))
        asked.append([*session.outputs])
        made = [session.run(one) for one in sets]
        worse = [fed["a0"].max() > 0.7 for fed in sets]
        return made, [{n: v * (1 + off[n] * far) for n, v in one.items()} for far, one in zip(worse, made, strict=True)]

    monkeypatch.setattr("deploykit_ort_qnn.compiler.emulation.execute_both", execute_both)
    given: dict[str, Any] = {"inputs": tuple({"a0": np.full((1, 4), value, np.float32)} for value in (0.5, 1.0))}
    given |= {"qdq": "m.onnx", "context": "c", "label": Label.GIVEN, "bits": 8, "original": None, **OF_JOB}
    job = EmulationJob(root=tmp_path, facts=facts_of(model), **given)
    for status, first in (("failed", ("", "")), ("compiled", ("lost", "Tanh"))):
        outcome = CompileOutcome(status=status)  # type: ignore[arg-type]
        monkeypatch.setattr("deploykit_ort_qnn.compiler.emulation.compile_model", lambda job, tell, made=outcome: made)
        scope = compare(job)
        assert (scope.first, scope.first_type) == first and scope.device is not None and scope.device.right is False
        assert scope.first_db == (pytest.approx(19.17, abs=0.01) if first[0] else None)
        assert scope.agreement == {"a4": pytest.approx(0.5, abs=1.5)} and scope.quantization is None
    assert asked == [["a4"], ["a4"], ["a4", "a2", "a3"]]
    monkeypatch.setattr("deploykit_ort_qnn.compiler.emulation._SHOWN", 2)
    assert compare(job).first == "lost" and asked[3:] == [["a4"], ["a4", "a3"], ["a4", "a2", "a3"]]
    assert scope.seen is not None and len(scope.seen.outputs) == 2


@pytest.mark.heavy
def test_a_package_that_was_not_compiled_is_built_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_package(request("cnn_bnfold/w8a8.qdq.onnx", compile=False), tmp_path / "p")
    assert not (tmp_path / "p/artifacts/model_ctx.onnx").exists()
    monkeypatch.setenv("PYTHON", sys.executable)
    report = build_package(tmp_path / "p")
    assert report.exit_status == 0 and report.done == ("compile",)
    assert (tmp_path / "p/artifacts/model_ctx_qnn.bin").exists() and verify(tmp_path / "p").ok


@pytest.mark.heavy
@pytest.mark.parametrize("wrong", [False, True])
@pytest.mark.parametrize("pairs", [False, True], ids=["encodings", "pairs"])
def test_swapped_classes_in_what_was_compiled_are_a_no(
    pairs: bool, wrong: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file of a model with pairs runs alike on the CPU and the emulator: only its own floats tell it is wrong."""
    model, feeds, right = cell_detector(), cell_pictures(4), provider.provider_model
    encodings = min_max_encodings(model, feeds, bits=16)
    (tmp_path / "model.encodings").write_text(write_encodings(encodings, "1.0.0"))
    onnx.save(insert_qdq(model, encodings, bias="float").model if pairs else model, tmp_path / "model.onnx")
    np.savez(tmp_path / "data.npz", images=np.stack([feed["images"] for feed in feeds]))

    def spoilt(given: onnx.ModelProto, encodings: EncodingSet | None, **more: Any) -> Any:
        (weights,) = (tensor for tensor in model.graph.initializer if tensor.name == "cls.w")
        weights.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(weights)[::-1].copy(), "cls.w"))
        entries = min_max_encodings(model, feeds, bits=16)
        return right(insert_qdq(model, entries, bias="float").model if pairs else model, entries, **more)

    if wrong:
        monkeypatch.setattr(provider, "provider_model", spoilt)
    asked: dict[str, Any] = {"calibration": tmp_path / "data.npz", "adapter_options": ALONE}
    asked |= {} if pairs else {"encodings": tmp_path / "model.encodings"}
    # One compiled graph, so that the fault lies in it.
    made = make_package(request(tmp_path / "model.onnx", "sm8650", no_rewrite=("cut-tail",), **asked), tmp_path / "out")
    assert (made.status.right.state, made.exit_status) == (("no", 1) if wrong else ("yes", 0)), made.status.right
    assert "detections kept" in made.status.right.why.partition("(")[0] or not wrong, "the loss comes first"
    if wrong:
        return
    again = [check.id for check in deploykit.verify(tmp_path / "out", numerics=True).checks]
    assert again[-2:] == ["numerics", "context-numbers"]
    monkeypatch.setattr(provider, "provider_model", spoilt)
    make_package(request(tmp_path / "model.onnx", "sm8650", no_rewrite=("cut-tail",), **asked), tmp_path / "wrong")
    manifest = json.loads((tmp_path / "out/manifest.json").read_text("utf-8"))
    for path in (tmp_path / "wrong/artifacts").glob("model_ctx*"):
        shutil.copy(path, tmp_path / "out/artifacts")
        digest = {"sha256": hashlib.sha256(path.read_bytes()).hexdigest(), "bytes": path.stat().st_size}
        manifest["files"][f"artifacts/{path.name}"] |= digest
    (tmp_path / "out/manifest.json").write_text(sealed(manifest)[0], "utf-8")
    report = deploykit.verify(tmp_path / "out", numerics=True)
    assert report.exit_status == 1 and "labels of" in report.status.right.why
