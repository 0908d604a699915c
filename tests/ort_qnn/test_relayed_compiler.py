"""Packages for QAIRT 2.22: the provider of a later wheel asks that very compiler, through the toolchain's relay."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from deploykit.backend.backend import Request
from deploykit.flow.pipeline import make_package
from deploykit.packages.verifying import verify_package as verify
from deploykit.system.environments import environment_of
from deploykit.system.installing import install
from deploykit_ort_qnn.compiler.hosts import ToolchainHost, toolchain_host
from deploykit_ort_qnn.compiler.jobs import CompileJob, compile_model
from deploykit_ort_qnn.prepare import wheel_for
from deploykit_qualcomm.carriers import host_toolchain

AIMET = Path(__file__).parents[1] / "data" / "aimet"
TAKEN = {"cnn/w8a16": 60.0, "mlp/w8a16": 60.0, "vit/w8a16": 40.0}
"""Models that 2.22.10 takes wholly, and dB of the first output below which something has changed."""


def request(name: str, **more: object) -> Request:
    folder = AIMET / name.split("/")[0]
    encodings = AIMET / f"{name}.v2.0.0.encodings"
    values: dict[str, object] = {"target": "sm8650", "backend": "ort-qnn", "sdk": "2.22", **more}
    return Request(model=folder / "model.onnx", encodings=encodings, **values)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def host() -> ToolchainHost:
    """The compiler of 2.22.10, installed by its own toolchain if it is not yet."""
    spec = host_toolchain("2.22.10")
    assert spec is not None
    if any(need.find() is None for need in spec.needs):
        pytest.skip(f"Wine is not installed: {spec.needs[0].install}")
    if environment_of(spec).state(with_size=False).state != "ready":
        install(spec, print)
    found = toolchain_host(wheel_for("2.22"))
    assert isinstance(found, ToolchainHost)
    return found


def test_the_plan_names_the_wheel_that_carries_the_release(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DEPLOYKIT_TOOLCHAINS", str(tmp_path / "none"))
    packaged = make_package(request("cnn/w8a16"), tmp_path / "p")
    assert packaged.plan.sdk["version"] == "1.18.1" and packaged.plan.sdk["qairt"] == "2.22.10"
    hints = {finding.code: finding.hint for finding in packaged.findings}
    assert hints["ORT141"] == "deploykit toolchain install htp-2.22.10 (needs Wine)"
    assert "QNN005" in hints, "no table of that release is there"


def test_a_softmax_keeps_the_grid_that_2_22_computes_rightly_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DEPLOYKIT_TOOLCHAINS", str(tmp_path / "none"))
    for sdk, centred in (("2.22", False), ("2.36", True)):
        make_package(request("vit/w8a16", sdk=sdk, compile=False), tmp_path / sdk)
        types = json.loads((tmp_path / sdk / "config/intended_types.json").read_text("utf-8"))
        assert ("softmax-rounding" in {step["id"] for step in types["steps"]}) == centred


def test_layers_with_a_bias_per_channel_become_convs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DEPLOYKIT_TOOLCHAINS", str(tmp_path / "none"))
    for sdk, wanted in (("2.22", True), ("2.36", False)):
        make_package(request("mlp/w8a16", sdk=sdk, compile=False), tmp_path / sdk)
        types = json.loads((tmp_path / sdk / "config/intended_types.json").read_text("utf-8"))
        steps = {step["id"]: step["names"] for step in types["steps"]}
        assert ("without-channel-bias" in steps) == wanted


@pytest.mark.heavy
@pytest.mark.parametrize("name", TAKEN)
def test_it_compiles_emulates_and_judges(host: ToolchainHost, tmp_path: Path, name: str) -> None:
    packaged = make_package(request(name), tmp_path / "p")
    assert packaged.exit_status == 0, [finding.message for finding in packaged.findings if finding.blocks]
    assert packaged.executed == ("compile", "emulate")
    record = json.loads((tmp_path / "p/manifest.json").read_text("utf-8"))["record"]
    assert record["compile"]["qairt"] == "2.22.10" and record["compile"]["nodes_on_cpu"] == 0
    assert next(iter(record["numbers"]["outputs"].values())) >= TAKEN[name]
    types = json.loads((tmp_path / "p/artifacts/compiled_types.json").read_text("utf-8"))
    assert types["asked"] and types["asked"][0]["tensors"]
    assert b"v2.22.10.240618" in (tmp_path / "p/artifacts/model_ctx_qnn.bin").read_bytes()
    assert verify(tmp_path / "p").ok


@pytest.mark.heavy
def test_a_refusal_comes_with_the_words_of_the_backend(host: ToolchainHost, tmp_path: Path) -> None:
    """Of the form for 2.36, in which a layer keeps its bias."""
    make_package(request("cnn/w8a16", sdk="2.36", compile=False), tmp_path / "p")
    job = CompileJob(
        root=tmp_path / "p", model="model/model.onnx", context="c.onnx", options={"soc_model": "57"}, host=host
    )
    outcome = compile_model(job)
    assert outcome.status == "refused" and outcome.files == ()
    (node,) = outcome.refused
    assert (node.name, node.type) == ("/fc/Gemm", "Gemm")
    assert (
        node.why == "the backend answers 3110 to FullyConnected: Input[2] has incorrect Value 10, expected equal to 0."
    )
