"""Models that run one after the other: segments and host tails, built by stand-ins, chained on host and device."""

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import pytest
from msgspec.structs import replace

import deploykit
from deploykit.backend.on_device import DeviceJob, DeviceRequest, Place
from deploykit.devices.profiles import origins_of
from deploykit.errors import ToolError
from deploykit.flow.pipeline import Packaged
from deploykit.packages.manifests import read_manifest
from deploykit_qnn_htp import backend
from deploykit_qualcomm.profiles import read_profile_csv
from qairt_folder import with_device_parts
from text_models import text_model

MakeSdk = Callable[..., Path]
RunScript = Callable[..., "subprocess.CompletedProcess[str]"]
Arrays = dict[str, npt.NDArray[Any]]
DETR = Path(__file__).parents[1] / "data" / "aimet" / "detr"
PROFILES = DETR.parents[1] / "profiles"
NAMES = ("segment_0_quantized", "segment_1_float", "segment_2_quantized")
INNER = "/decoder/enc_bbox_head/layers/0/Add_output_0"
"""Made by the first segment, read by the float one."""


@pytest.fixture
def package(cut_packages: dict[str, Packaged], tmp_path: Path) -> Path:
    """A copy that a test may build in."""
    source = cut_packages["omit"].package
    assert source is not None
    return Path(shutil.copytree(source, tmp_path / "package"))


@pytest.fixture(scope="module")
def built(
    cut_packages: dict[str, Packaged], make_sdk_in: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """The package with everything built."""
    source, folder = cut_packages["omit"].package, tmp_path_factory.mktemp("built")
    assert source is not None
    place = Path(shutil.copytree(source, folder / "package"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("QAIRT_SDK_ROOT", str(make_sdk_in(folder)))
        report = deploykit.build(place)
    assert report.exit_status == 0 and len(report.done) == 9
    return place


def test_build_compares_the_types_of_every_segment(built: Path) -> None:
    assert (built / "logs/build.log").read_text().count(", 0 differ") == 3
    assert all((built / f"artifacts/model_{name}_ctx.bin").exists() for name in NAMES)
    verified = deploykit.verify(built)
    assert verified.ok
    (types,) = [check for check in verified.checks if check.id == "converter-types"]
    assert "0 differ" in types.detail
    assert verified.actual["/decoder/Div_output_0"] == "float16"
    assert verified.actual["detections"] == "uint16"


@pytest.mark.heavy
def test_a_lost_segment_fails_the_build(built: Path, tmp_path: Path, make_sdk: MakeSdk, run_script: RunScript) -> None:
    package = Path(shutil.copytree(built, tmp_path / "package"))
    encodings = package / f"encodings/model_{NAMES[2]}.json"
    data = json.loads(encodings.read_text())
    data["activation_encodings"].pop("detections")
    encodings.write_text(json.dumps(data))
    done = run_script(package / "scripts/build.sh", QAIRT_SDK_ROOT=str(make_sdk()))
    assert done.returncode == 1 and "detections is float16, intended uint16" in done.stderr
    assert "[convert-2]" in done.stderr and "[context-binary-1] done before, kept" in done.stderr
    assert (package / f"artifacts/model_{NAMES[1]}_ctx.bin").exists()


def test_verification_sees_a_wrong_type_on_one_side_of_a_cut(built: Path, package: Path) -> None:
    """A tensor that crosses is uint16 before the cut and float16 behind it; each side is held to its own type."""
    # Under the manifest of before, in which no hash of an artifact stands.
    shutil.copytree(built / "artifacts", package / "artifacts")
    net = package / f"artifacts/model_{NAMES[1]}_net.json"
    data = json.loads(net.read_text())
    data["graph"]["tensors"]["_decoder_enc_bbox_head_layers_0_Add_output_0"]["data_type"] = 0x416
    net.write_text(json.dumps(data))
    verified = deploykit.verify(package)
    assert not verified.ok
    assert (verified.intended[INNER], verified.actual[INNER]) == ("float16", "uint16")


def on_host(package: Path, out: Path, *samples: Path) -> subprocess.CompletedProcess[str]:
    command: list[str | Path] = [sys.executable, package / "scripts/run_host.py", out, *samples]
    return subprocess.run(command, check=False, capture_output=True, encoding="utf-8")


def test_the_chain_on_the_host_equals_the_whole_bit_for_bit(
    package: Path, tmp_path: Path, samples: list[Arrays], detections: list[npt.NDArray[Any]]
) -> None:
    files = [tmp_path / f"{index}.npz" for index in range(len(samples))]
    for file, sample in zip(files, samples, strict=True):
        np.savez(file, **sample)  # type: ignore[arg-type]
    assert on_host(package, tmp_path / "out", *files).returncode == 0
    for index, expected in enumerate(detections):
        with np.load(tmp_path / "out" / f"{index}.npz") as results:
            assert results.files == ["detections"]
            np.testing.assert_array_equal(results["detections"], expected)
    np.savez(files[0], images=samples[0]["images"])
    done = on_host(package, tmp_path / "out", files[0])
    assert done.returncode == 1
    assert "orig_target_sizes" in done.stderr and "Traceback" not in done.stderr


def listed(folder: Path, given: Sequence[Arrays]) -> Path:
    """An input list with names as they stand in the model, and a blank line at the end."""
    folder.mkdir()
    lines = []
    for index, sample in enumerate(given):
        for name, value in sample.items():
            value.astype(np.float32).tofile(folder / f"{name}_{index}.raw")
        lines.append(" ".join(f"{name}:={name}_{index}.raw" for name in reversed(sample)))
    (folder / "list.txt").write_text("\n".join(lines) + "\n\n")
    return folder / "list.txt"


def test_the_chain_on_a_device_hands_every_tensor_on(
    built: Path,
    device: dict[str, str],
    run_script: RunScript,
    tmp_path: Path,
    samples: list[Arrays],
    detections: list[npt.NDArray[Any]],
) -> None:
    """On a stand-in for the device that computes in float32: every sample ends as the whole model has it."""
    inputs = listed(tmp_path / "inputs", samples)
    done = run_script(built / "scripts/run_on_device.sh", str(inputs), str(tmp_path / "out"), **device)
    assert done.returncode == 0, done.stderr
    for index, expected in enumerate(detections):
        result = np.fromfile(tmp_path / "out" / f"Result_{index}" / "detections.raw", np.float32)
        np.testing.assert_array_equal(result.reshape(expected.shape), expected)
    lacking = listed(tmp_path / "lacking", [{"images": samples[0]["images"]}])
    done = run_script(built / "scripts/run_on_device.sh", str(lacking), **device)
    assert done.returncode == 2 and "orig_target_sizes" in done.stderr


def test_a_job_hands_tensors_on(built: Path, samples: list[Arrays], sdk: Path) -> None:
    job = job_of(built, feeds=samples)
    files = {file.path: file.source for file in job.files}
    lists = [bytes(files[f"input_list-{number}.txt"]).decode().splitlines() for number in range(3)]
    assert lists[0][1] == "images:=inputs/1_0.raw orig_target_sizes:=inputs/1_1.raw"
    crossing = "_postprocessor_Sigmoid_output_0"
    assert lists[2][1].endswith(f" {crossing}:=output-0/Result_1/{crossing}.raw"), "made two segments before"
    assert job.argv[2].count("./qnn-net-run ") == 3 and "--profiling_level" not in job.argv[2]
    assert job.results[-2:] == ("output-2/Result_0/detections.raw", "output-2/Result_1/detections.raw")


def test_a_route_through_dlcs_serves_both_kinds(tmp_path: Path) -> None:
    done = deploykit.package(  # type: ignore[call-arg]
        DETR / "model.onnx",
        target="sm8650",
        sdk="2.41",
        encodings=DETR / "w8a16-fp16mix-explicit.v0.6.1.encodings",
        mixed="segments",
        route="qairt-overrides",
        options={"finalize_config": '{"P": 3}'},  # the keys inside of an object stand in no table
        out=tmp_path / "out",
    )
    assert done.package is not None, [finding.message for finding in done.findings if finding.blocks]
    assert done.plan.route is not None and "segment_1_float by qairt-float" in done.plan.route.why
    assert deploykit.verify(done.package).ok


@pytest.fixture(scope="module")
def with_tail(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A package whose end was cut off and runs on the host."""
    encodings, out = DETR / "w8a8.v0.6.1.encodings", tmp_path_factory.mktemp("tail") / "out"
    folder = deploykit.package(DETR / "model.onnx", target="sm8650", sdk="2.33", encodings=encodings, out=out).package
    assert folder is not None and (folder / "model/tail.onnx").exists()
    return folder


@pytest.mark.heavy
def test_a_tail_is_chained_after_the_device(
    with_tail: Path,
    device: dict[str, str],
    run_script: RunScript,
    tmp_path: Path,
    samples: list[Arrays],
    detections: list[npt.NDArray[Any]],
) -> None:
    assert run_script(with_tail / "scripts/build.sh", **device).returncode == 0
    for given in (samples, samples[:1]):  # the second run must not find results of the first
        folder = tmp_path / f"inputs-{len(given)}"
        out = tmp_path / f"out-{len(given)}"
        ran = run_script(with_tail / "scripts/run_on_device.sh", str(listed(folder, given)), str(out), **device)
        assert ran.returncode == 0, ran.stderr
        assert len(list(out.glob("Result_*"))) == len(given)
        for index in range(len(given)):
            result = np.fromfile(out / f"Result_{index}/detections.raw", np.float32)
            np.testing.assert_allclose(result, detections[index].ravel(), rtol=1e-5, atol=1e-3)


@pytest.fixture
def sdk(make_sdk: MakeSdk, monkeypatch: pytest.MonkeyPatch) -> Path:
    found = with_device_parts(make_sdk())
    monkeypatch.setenv("QAIRT_SDK_ROOT", str(found))
    return found


@pytest.fixture
def one_graph(tmp_path: Path) -> Path:
    """The package of one graph that is built."""
    model = text_model("float[1,4] x", "y = Relu (x)", "float[1,4] y")
    model.graph.input[0].name = model.graph.node[0].input[0] = "a.b"  # which the tools write otherwise
    onnx.save(model, tmp_path / "m.onnx")
    asked: Any = {"target": "sm8650", "sdk": "2.33", "backend": "qnn-htp", "precision": "fp16", "compile": False}
    deploykit.package(tmp_path / "m.onnx", out=tmp_path / "package", **asked)
    (tmp_path / "package/artifacts").mkdir()
    (tmp_path / "package/artifacts/m_ctx.bin").write_bytes(b"context")
    return tmp_path / "package"


HERE = Place(kind="adb", system="Android", machine="aarch64", folder="/data/x")
FEEDS: Any = [{"a.b": np.array([[1.0, 2, 3, 4]]) * number} for number in (1, 2)]
RUN = (
    "./qnn-net-run --backend libQnnHtp.so --retrieve_context artifacts/m_ctx.bin --input_list input_list.txt "
    "--output_dir {} --config_file config/run_config.json"
)


def job_of(package: Path, **asked: Any) -> DeviceJob:
    given = DeviceRequest(**{"feeds": FEEDS, "place": HERE, "warmup": 3, "iterations": 9, **asked})
    job = backend.device_job(package, read_manifest(package), given)
    assert job is not None
    return job


def test_one_graph_is_run_for_its_times_and_for_its_profile(one_graph: Path, sdk: Path) -> None:
    job = job_of(one_graph, power="saver", profile=True)
    files = {file.path: file.source for file in job.files}
    libraries = ["libQnnHtp.so", "libQnnSystem.so", "libQnnHtpNetRunExtensions.so", "libQnnHtpV75Stub.so"]
    given = ["input_list.txt", "inputs/0_0.raw", "inputs/1_0.raw", "artifacts/m_ctx.bin"]
    config = ["config/htp_run.json", "config/run_config.json"]
    assert list(files) == ["qnn-net-run", *libraries, "libQnnHtpV75Skel.so", *given, *config]
    assert [file.path for file in job.files if file.executable] == ["qnn-net-run"]
    assert files["input_list.txt"] == b"a_b:=inputs/0_0.raw\na_b:=inputs/1_0.raw\n"
    assert files["inputs/1_0.raw"] == np.array([2, 4, 6, 8], np.float32).tobytes()
    assert json.loads(bytes(files["config/htp_run.json"]))["devices"][0]["cores"] == [{"perf_profile": "power_saver"}]
    assert bytes(files["config/run_config.json"]) == (one_graph / "config/run_config.json").read_bytes()
    timed = f"{RUN.format('output')} --num_inferences 12 --keep_num_outputs 2 --profiling_level basic"
    detailed = f"{RUN.format('nodes')} --num_inferences 3 --keep_num_outputs 1 --profiling_level detailed"
    assert job.argv == ("sh", "-c", f"{timed} && {detailed}")
    vendor = "/data/x;/vendor/dsp/cdsp;/vendor/lib/rfsa/adsp;/system/lib/rfsa/adsp"
    assert job.environment == {"LD_LIBRARY_PATH": "/data/x", "ADSP_LIBRARY_PATH": vendor}
    assert job.results == ("output/Result_0/y.raw", "output/Result_1/y.raw")
    assert job.optional == ("output/qnn-profiling-data_0.log", "nodes/qnn-profiling-data_0.log")
    assert job.started == "a program of adb shell, which runs at a lower priority than an app"
    with_device_parts(sdk, abi="aarch64-oe-linux-gcc11.2")
    for system, folder in (("Linux", "oe-linux-gcc11.2"), ("Android", "android")):
        found = {
            Path(str(file.source)).parent.name
            for file in job_of(one_graph, place=replace(HERE, system=system)).files[:5]
        }
        assert found == {f"aarch64-{folder}"}


def test_what_is_not_measured_is_run_once(one_graph: Path, sdk: Path) -> None:
    plain = job_of(one_graph, iterations=0, place=replace(HERE, kind="ssh"))
    assert (plain.argv, plain.optional, plain.started) == (("sh", "-c", RUN.format("output")), (), "")
    assert job_of(one_graph, place=replace(HERE, machine="arm64")).results == plain.results
    few = job_of(one_graph, warmup=0, iterations=1, profile=False)
    told = f"{RUN.format('output')} --num_inferences 2 --keep_num_outputs 2 --profiling_level basic"
    assert (few.argv[2], few.optional) == (told, ("output/qnn-profiling-data_0.log",))
    other = DeviceRequest(feeds=FEEDS, place=replace(HERE, machine="x86_64"))
    assert backend.device_job(one_graph, read_manifest(one_graph), other) is None


def test_the_outputs_of_a_run_are_those_of_the_model(one_graph: Path, sdk: Path, tmp_path: Path) -> None:
    for number in (0, 1):
        (tmp_path / f"ran/output/Result_{number}").mkdir(parents=True)
        (np.arange(4, dtype=np.float32) + number).tofile(tmp_path / f"ran/output/Result_{number}/y.raw")
    (sdk / "lib/aarch64-android/libQnnHtp.so").write_bytes(b"of no build")
    request = DeviceRequest(feeds=FEEDS, place=HERE)
    made = backend.device_results(one_graph, request, tmp_path / "ran")
    assert [{name: value.tolist() for name, value in out.items()} for out in made.outputs] == [
        {"y": [[0, 1, 2, 3]]},
        {"y": [[1, 2, 3, 4]]},
    ]
    assert (made.latencies_us, made.init_us, made.operators) == ((), None, ())
    viewer = sdk / "bin/x86_64-linux-clang/qnn-profile-viewer"
    viewer.write_text(f'#!/bin/sh\ncp {PROFILES}/context.csv "$4"\n')
    viewer.chmod(0o755)
    for folder in ("output", "nodes"):
        (tmp_path / "ran" / folder).mkdir(exist_ok=True)
        (tmp_path / "ran" / folder / "qnn-profiling-data_0.log").write_bytes(b"log")
    seen = read_profile_csv(PROFILES / "context.csv", origins_of(one_graph / "model/m.onnx"))
    for warmup, times in ((1, seen.execute_us[1:]), (9, seen.execute_us)):
        timed = backend.device_results(one_graph, replace(request, warmup=warmup), tmp_path / "ran")
        assert (timed.latencies_us, timed.init_us, timed.operators) == (times, seen.init_us, seen.operators)
    told = [f"libQnn{name}.so" for name in ("System", "HtpNetRunExtensions", "HtpV75Stub", "HtpV75Skel")]
    none = dict.fromkeys(("qnn-net-run", "libQnnHtp.so"), "")
    assert made.libraries == none | dict.fromkeys(told, "2.33.0.250327")
    np.zeros(3, np.float32).tofile(tmp_path / "ran/output/Result_1/y.raw")
    with pytest.raises(ToolError, match=re.escape("y has 3 values, not [1, 4]")):
        backend.device_results(one_graph, request, tmp_path / "ran")


def test_what_of_the_sdk_is_not_here_is_named(
    one_graph: Path, sdk: Path, make_sdk: MakeSdk, monkeypatch: pytest.MonkeyPatch
) -> None:
    stub, skel = sdk / "lib/aarch64-android/libQnnHtpV75Stub.so", sdk / "lib/hexagon-v75/unsigned/libQnnHtpV75Skel.so"

    def refused() -> tuple[str, str]:
        with pytest.raises(ToolError) as error:
            job_of(one_graph)
        return error.value.what, error.value.next

    skel.write_bytes(b"of no build")
    assert job_of(one_graph).files, "where one has no build there is nothing to compare"
    stub.write_bytes(b"v2.33.0.250327")
    skel.write_bytes(b"2.34.0.250424")
    told = f"{sdk}: stub and skel are of two releases: libQnnHtpV75Stub.so of 2.33.0.250327, "
    assert refused() == (f"{told}libQnnHtpV75Skel.so of 2.34.0.250424", "unpack the SDK again")
    skel.unlink()
    assert refused() == (f"{skel}: is missing", "install the whole SDK; DEVICE_ABI names another folder")
    monkeypatch.setenv("DEVICE_ABI", "own")
    assert refused()[0] == f"{sdk / 'bin/own/qnn-net-run'}: is missing"
    (one_graph / "artifacts/m_ctx.bin").unlink()
    assert refused() == (f"{one_graph}: the context binary artifacts/m_ctx.bin is not built", "deploykit build")
    for version in ("2.37.0.250724", "2.331.0.250724"):
        newer = make_sdk(version, "2.33.0")
        monkeypatch.setenv("QAIRT_SDK_ROOT", str(newer))
        told = f"{newer}: is version {version}, the package is for 2.33"
        assert refused() == (told, "point QAIRT_SDK_ROOT to 2.33")
    for name in ("QAIRT_SDK_ROOT", "QNN_SDK_ROOT"):
        monkeypatch.delenv(name, raising=False)
    told = "the SDK's program and libraries are not here"
    assert refused() == (told, "export QAIRT_SDK_ROOT=/path/to/2.33")
