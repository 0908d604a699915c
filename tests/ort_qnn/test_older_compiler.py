"""Packages for QAIRT 2.36: planned everywhere, and compiled by that very release where Wine and its toolchain are."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path

import pytest

from deploykit.backend.backend import Request
from deploykit.backend.status import Compiled, Right
from deploykit.errors import UsageError
from deploykit.flow.pipeline import make_package
from deploykit.packages.verifying import verify_package as verify
from deploykit.system.environments import environment_of
from deploykit.system.installing import install
from deploykit_ort_qnn.compiler.hosts import ToolchainHost, toolchain_host
from deploykit_ort_qnn.compiler.jobs import CompileJob, compile_model
from deploykit_ort_qnn.prepare import wheel_for
from deploykit_qualcomm.carriers import host_toolchain
from deploykit_qualcomm.hosted import ask_runner

AIMET = Path(__file__).parents[1] / "data" / "aimet"
ZOO = AIMET.with_name("zoo")
TAKEN = {
    "cnn/w8a16": 60.0,
    "cnn/w8a8": 35.0,
    "cnn_bnfold/w8a16": 60.0,
    "mlp/w8a16": 60.0,
    "detr/w8a16": 60.0,
    "detr/w8a16-fp16mix-explicit": 40.0,
    "vit/w8a16": 40.0,
    "vit/w8a8": 25.0,
}
"""Models that 2.36.1 takes wholly, and dB of the first output below which something has changed."""
REFUSED = {"mlp/w4a8": "ORT110", "detr/fp16": "ORT111"}


def request(name: str, **more: object) -> Request:
    folder = AIMET / name.split("/")[0]
    values: dict[str, object] = {"encodings": AIMET / f"{name}.v2.0.0.encodings"}
    values |= {"target": "sm8650", "backend": "ort-qnn", "sdk": "2.36", **more}
    return Request(model=folder / "model.onnx", **values)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def host() -> ToolchainHost:
    """The compiler of 2.36.1, installed by its own toolchain if it is not yet."""
    spec = host_toolchain("2.36.1")
    assert spec is not None
    if any(need.find() is None for need in spec.needs):
        pytest.skip(f"Wine is not installed: {spec.needs[0].install}")
    if environment_of(spec).state(with_size=False).state != "ready":
        install(spec, print)
    found = toolchain_host(wheel_for("2.36"))
    assert isinstance(found, ToolchainHost)
    return found


def test_without_the_toolchain_the_plan_says_how_to_get_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DEPLOYKIT_TOOLCHAINS", str(tmp_path / "none"))
    packaged = make_package(request("vit/w8a16"), tmp_path / "p")
    (finding,) = [finding for finding in packaged.findings if finding.code == "ORT141"]
    assert finding.hint == "deploykit toolchain install htp-2.36.1 (needs Wine)"
    assert packaged.executed == ()
    assert packaged.plan.sdk["version"] == "1.22.2" and packaged.plan.sdk["qairt"] == "2.36.1"


def test_the_preparation_is_the_one_that_this_provider_takes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DEPLOYKIT_TOOLCHAINS", str(tmp_path / "none"))
    steps = {}
    for sdk in ("2.36", "2.51"):
        make_package(request("vit/w8a16", sdk=sdk, compile=False), tmp_path / sdk)
        types = json.loads((tmp_path / sdk / "config/intended_types.json").read_text("utf-8"))
        steps[sdk] = {step["id"] for step in types["steps"]}
    assert "int16-matmul" in steps["2.51"] - steps["2.36"]


@pytest.mark.parametrize("option", ["htp_bf16_enable", "enable_block_quant_weight_optimization"])
def test_an_option_that_the_old_provider_lacks_is_refused(tmp_path: Path, option: str) -> None:
    with pytest.raises(UsageError, match=r"not in onnxruntime-qnn 1\.22\.2"):
        make_package(request("cnn/w8a16", options=((option, "1"),)), tmp_path / "p")


@pytest.mark.parametrize("name", ["mlp/lpbq-w4a16", "mlp/bq-w4a16"])
def test_blocks_are_refused_before_anything_is_compiled(tmp_path: Path, name: str) -> None:
    packaged = make_package(request(name), tmp_path / "p")
    assert packaged.exit_status == 1 and packaged.executed == ()
    assert {finding.code for finding in packaged.findings if finding.blocks} == {"ORT019"}


@pytest.mark.heavy
def test_its_own_emulator_agrees_where_it_ends(host: ToolchainHost, tmp_path: Path) -> None:
    """Outputs by .npy through the runner: 2.36.1 on itself against ONNX Runtime on the CPU."""
    import numpy as np
    import onnxruntime as ort

    make_package(request("cnn/w8a16"), tmp_path / "p")
    image = np.random.default_rng(0).random((1, 3, 16, 16)).astype(np.float32)
    np.save(tmp_path / "p/input.npy", image)
    asked = {
        "model": "artifacts/model_ctx.onnx",
        "provider_options": {"backend_path": "QnnHtp.dll", "soc_model": "57"},
        "runs": [{"inputs": {"input": "input.npy"}, "outputs": "out_"}],
    }
    answer = ask_runner(host.spec, asked, cwd=tmp_path / "p", place=tmp_path / "p", timeout=120.0)
    assert answer.ok, answer.error
    made = np.load(tmp_path / "p/out_0.npy")
    (wanted,) = ort.InferenceSession(str(tmp_path / "p/model/model.onnx")).run(None, {"input": image})
    assert made.dtype == wanted.dtype and made.shape == wanted.shape
    assert float(((made - wanted) ** 2).sum()) < 1e-5 * float((wanted**2).sum())


@pytest.mark.heavy
@pytest.mark.parametrize("name", TAKEN)
def test_it_compiles_emulates_and_judges(host: ToolchainHost, tmp_path: Path, name: str) -> None:
    packaged = make_package(request(name), tmp_path / "p")
    assert packaged.exit_status == 0, [finding.message for finding in packaged.findings if finding.blocks]
    assert packaged.executed == ("compile", "emulate")
    manifest = json.loads((tmp_path / "p/manifest.json").read_text("utf-8"))
    record = manifest["record"]
    assert record["compile"]["qairt"] == "2.36.1" and record["compile"]["nodes_on_cpu"] == 0
    assert next(iter(record["numbers"]["outputs"].values())) >= TAKEN[name]
    types = json.loads((tmp_path / "p/artifacts/compiled_types.json").read_text("utf-8"))
    assert types["asked"] and types["asked"][0]["tensors"]
    assert "ORT143" in {finding.code for finding in packaged.findings}
    assert verify(tmp_path / "p").ok


@pytest.mark.heavy
def test_a_detector_is_taken_wholly_and_is_right(host: ToolchainHost, tmp_path: Path) -> None:
    """RT-DETRv2 with all its operators; forms without which 2.36.1 refuses it, or makes code that dies, are in."""
    with zipfile.ZipFile(ZOO / "rt_detr_v2.zip") as archive:
        archive.extractall(tmp_path)
    (model,) = tmp_path.rglob("model.onnx")
    asked = Request(
        model=model,
        encodings=model.with_name("w8a16.v1.0.0.encodings"),
        calibration=model.with_name("calibration.npz"),
        target="sm8650",
        backend="ort-qnn",
        sdk="2.36",
    )
    packaged = make_package(asked, tmp_path / "p")
    assert packaged.exit_status == 0, [finding.message for finding in packaged.findings if finding.blocks]
    assert packaged.status.compiled.state is Compiled.YES
    assert packaged.status.right.state is Right.YES, packaged.status.right
    assert "QNN001" not in {finding.code for finding in packaged.findings}
    record = json.loads((tmp_path / "p/manifest.json").read_text("utf-8"))["record"]
    assert record["compile"]["qairt"] == "2.36.1" and record["compile"]["nodes_on_cpu"] == 0
    steps = json.loads((tmp_path / "p/config/intended_types.json").read_text("utf-8"))["steps"]
    assert {"without-mod", "without-sigmoid-before-linear"} <= {step["id"] for step in steps}
    assert verify(tmp_path / "p").ok


@pytest.mark.heavy
def test_floats_whose_width_nobody_tells_are_no_mismatch(host: ToolchainHost, tmp_path: Path) -> None:
    """Encodings 1.0.0 name float16 tensors; this provider writes no schematic that would tell what became of them."""
    encodings = AIMET / "detr/w8a16-fp16mix-explicit.v1.0.0.encodings"
    packaged = make_package(request("detr/w8a16", encodings=encodings), tmp_path / "p")
    assert packaged.exit_status == 0
    judged = verify(tmp_path / "p")
    assert judged.ok and any("does not tell which float" in check.detail for check in judged.checks)


@pytest.mark.heavy
@pytest.mark.parametrize("name", REFUSED)
def test_a_refusal_is_told(host: ToolchainHost, tmp_path: Path, name: str) -> None:
    packaged = make_package(request(name), tmp_path / "p")
    assert packaged.exit_status == 1
    assert REFUSED[name] in {finding.code for finding in packaged.findings}
    assert (tmp_path / "p/logs/compile.log").read_text("utf-8")


@pytest.mark.heavy
def test_the_form_for_a_later_release_is_refused_with_the_answer_of_the_backend(
    host: ToolchainHost, tmp_path: Path
) -> None:
    """Why the preparation differs: with symmetric int16 operands 2.36.1 refuses the conversions."""
    make_package(request("vit/w8a16", sdk="2.51", compile=False), tmp_path / "p")
    job = CompileJob(
        root=tmp_path / "p", model="model/model.onnx", context="c.onnx", options={"soc_model": "57"}, host=host
    )
    outcome = compile_model(job)
    assert outcome.status == "refused"
    assert {node.type for node in outcome.refused} == {"DequantizeLinear"}
    assert any("3110" in node.why for node in outcome.refused), outcome.log


@pytest.mark.heavy
def test_a_deadline_is_kept_and_leaves_nothing(host: ToolchainHost, tmp_path: Path) -> None:
    make_package(request("detr/w8a16", compile=False), tmp_path / "p")
    job = CompileJob(
        root=tmp_path / "p",
        model="model/model.onnx",
        context="c.onnx",
        options={"soc_model": "57"},
        host=host,
        timeout=0.5,
    )
    outcome = compile_model(job)
    assert outcome.status == "timed-out" and outcome.files == ()
    assert not [path.name for path in (tmp_path / "p").iterdir() if path.name.startswith((".compile", "c"))][1:]
