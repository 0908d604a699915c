"""Packages for a release whose Linux wheel is not the one beside this Python: its toolchain compiles and emulates."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from deploykit.backend.backend import Request
from deploykit.errors import ToolError
from deploykit.flow.pipeline import make_package
from deploykit.system.environments import environment_of
from deploykit.system.installing import install
from deploykit_ort_qnn.compiler.contexts import inspect_context
from deploykit_ort_qnn.compiler.hosts import LinuxHost, Worker, installed_wheel, toolchain_host
from deploykit_ort_qnn.prepare import wheel_for
from deploykit_qualcomm.carriers import host_toolchain

CNN = Path(__file__).parents[1] / "data" / "aimet" / "cnn"


@pytest.fixture(scope="module")
def host() -> LinuxHost:
    """The compiler of 2.48, installed by its own toolchain if it is not yet: one wheel, and no more."""
    spec = host_toolchain("2.48.40")
    assert spec is not None
    if environment_of(spec).state(with_size=False).state != "ready":
        install(spec, print)
    found = toolchain_host(wheel_for("2.48"))
    assert isinstance(found, LinuxHost)
    return found


@pytest.mark.heavy
@pytest.mark.parametrize("precision", ["w8a16", "fp16"])
def test_exactly_that_release_compiles_and_emulates(host: LinuxHost, tmp_path: Path, precision: str) -> None:
    encodings = None if precision == "fp16" else CNN / f"{precision}.v2.0.0.encodings"
    request = Request(model=CNN / "model.onnx", encodings=encodings, target="sm8650", backend="ort-qnn", sdk="2.48")
    packaged = make_package(request, tmp_path / "p")
    assert packaged.exit_status == 0 and packaged.executed == ("compile", "emulate")
    record = json.loads((tmp_path / "p/manifest.json").read_text("utf-8"))["record"]
    assert record["compile"]["qairt"] == "2.48.40" and record["compile"]["onnxruntime"] == "1.31.1"
    assert record["compile"]["schematic"] and record["compile"]["nodes_on_cpu"] == 0
    assert next(iter(record["numbers"]["outputs"].values())) > 50
    assert inspect_context(tmp_path / "p/artifacts/model_ctx_qnn.bin")["release"] == "2.48.40"
    assert not {finding.code for finding in packaged.findings} & {"ORT141", "ORT142", "ORT143"}


def test_the_installed_wheel_needs_no_toolchain() -> None:
    installed = installed_wheel()
    assert installed is not None
    assert toolchain_host(wheel_for(installed["wheel"])) is None


def test_a_toolchain_that_is_not_ready_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DEPLOYKIT_TOOLCHAINS", str(tmp_path))
    assert toolchain_host(wheel_for("2.48")) is None


def test_a_worker_abroad_sees_no_other_module_of_deploykit(tmp_path: Path) -> None:
    """The Python of a toolchain has the wheel and nothing of deploykit; a bad request ends it with its name."""
    worker = Worker(python=sys.executable, environment={"PYTHONPATH": ""}, abroad=True)
    done, answer, log = worker.work({"action": "nothing"}, tmp_path, tmp_path, 60.0, None)
    assert answer is None and done.returncode != 0
    assert "KeyError: 'nothing'" in log[-1]


def test_a_python_without_the_wheel_is_told(tmp_path: Path) -> None:
    import venv

    venv.create(tmp_path / "v")
    worker = Worker(python=str(tmp_path / "v/bin/python"), environment={"PYTHONPATH": ""}, abroad=True)
    with pytest.raises(ToolError, match="cannot be used here"):
        worker.work({"action": "compile"}, tmp_path, tmp_path, 60.0, None)
