"""Models that run one after the other: segments and host tails, built by stand-ins, chained on host and device."""

import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import deploykit
from deploykit.backend.on_device import DeviceJob, DeviceRequest, Place
from deploykit.errors import ToolError
from deploykit.flow.pipeline import Packaged
from deploykit.packages.manifests import read_manifest
from deploykit_qnn_htp import backend

MakeSdk = Callable[..., Path]
RunScript = Callable[..., "subprocess.CompletedProcess[str]"]
Arrays = dict[str, npt.NDArray[Any]]
DETR = Path(__file__).parents[1] / "data" / "aimet" / "detr"
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


def test_a_job_hands_tensors_on_and_leaves_out_the_tail(
    built: Path,
    with_tail: Path,
    device: dict[str, str],
    samples: list[Arrays],
    make_sdk: MakeSdk,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("QAIRT_SDK_ROOT", device["QAIRT_SDK_ROOT"])
    place = Place(kind="adb", system="Android", machine="aarch64", folder="/data/x")
    request = DeviceRequest(feeds=samples, place=place, warmup=3, iterations=9)

    def job_of(package: Path) -> DeviceJob:
        job = backend.device_job(package, read_manifest(package), request)
        assert job is not None
        return job

    job = job_of(built)
    files = {file.path: file.source for file in job.files}
    lists = [bytes(files[f"input_list-{number}.txt"]).decode().splitlines() for number in range(3)]
    assert lists[0][1] == "images:=inputs/1_0.raw orig_target_sizes:=inputs/1_1.raw"
    crossing = "_postprocessor_Sigmoid_output_0"
    assert lists[2][1].endswith(f" {crossing}:=output-0/Result_1/{crossing}.raw"), "made two segments before"
    assert job.argv[2].count("./qnn-net-run ") == 3 and "--profiling_level" not in job.argv[2]
    assert job.results[-2:] == ("output-2/Result_0/detections.raw", "output-2/Result_1/detections.raw")
    package = Path(shutil.copytree(with_tail, tmp_path / "package", ignore=shutil.ignore_patterns("artifacts")))
    with pytest.raises(ToolError, match="is not built"):
        job_of(package)
    (package / "artifacts").mkdir(exist_ok=True)
    (package / "artifacts/model_ctx.bin").write_bytes(b"context")
    assert "--num_inferences 12 --keep_num_outputs 2 --profiling_level basic" in job_of(package).argv[2]
    monkeypatch.setenv("QAIRT_SDK_ROOT", str(make_sdk("2.37.0.250724", "2.37.0")))
    with pytest.raises(ToolError, match=r"is version 2\.37\.0.*, the package is for 2\.33"):
        job_of(package)


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
