"""A real backend that deploykit knows nothing of: Intel NPUs, as a wheel, with OpenVINO in a toolchain of its own."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from wheels import Installed, installed_wheels

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "docs/examples/openvino_npu"
CNN = ROOT / "tests/data/aimet/cnn/model.onnx"
QDQ = ROOT / "tests/data/aimet/cnn/w8a8.qdq.onnx"


def test_deploykit_has_no_word_about_it() -> None:
    words = re.compile(r"openvino.npu|deploykit_openvino|nncf|my.npu", re.IGNORECASE)
    kinds = {".py", ".toml", ".j2"}
    files = [path for room in ("deploykit", "backends", "templates") for path in (ROOT / room).rglob("*")]
    knowing = [path for path in files if path.suffix in kinds and words.search(path.read_text("utf-8"))]
    assert [str(path.relative_to(ROOT)) for path in knowing] == []


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Installed:
    return installed_wheels([ROOT, EXAMPLE], tmp_path_factory.mktemp("wheels"))


@pytest.fixture(scope="module")
def calibration(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("samples") / "images.npz"
    np.savez(path, input=np.random.default_rng(1).normal(size=(16, 3, 16, 16)).astype(np.float32))
    return path


@pytest.mark.heavy
def test_it_passes_conformance(installed: Installed, calibration: Path, tmp_path: Path) -> None:
    code = f"""
from functools import partial
from pathlib import Path
import deploykit
from deploykit.backend.conformance import backend_problems, package_problems
wanted = dict(target="lunar-lake", precision="w8a8", calibration={str(calibration)!r})
make = partial(deploykit.package, {str(CNN)!r}, **wanted)
print(backend_problems("openvino-npu"), package_problems(make, deploykit.verify, Path({str(tmp_path)!r})))
"""
    assert installed.python(code) == "() ()"


@pytest.mark.heavy
def test_its_rules_say_no(installed: Installed) -> None:
    encodings = ("--encodings", str(CNN.with_name("w8a8.v1.0.0.encodings")))
    asked = {
        "OVN001": (str(CNN), "--precision", "w4a16"),
        "OVN002": (str(CNN), "--precision", "w8a8"),
        "OVN003": (str(CNN), *encodings),
    }
    for code, words in asked.items():
        told = installed.run("deploykit", "check", "--plan", *words, "--target", "mtl", "--json")
        assert (told.returncode, json.loads(told.stdout)["rejected"][0]["because"]) == (1, [code]), told.stderr


@pytest.mark.heavy
def test_the_toolchain_quantizes_and_compiles_for_the_cpu_and_claims_no_more(
    installed: Installed, calibration: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    index = subprocess.run(
        [sys.executable, "-m", "pip", "index", "versions", "openvino"], capture_output=True, check=False
    )
    if index.returncode:
        pytest.skip("no package index can be reached, and openvino comes from one")
    monkeypatch.setenv("DEPLOYKIT_TOOLCHAINS", str(tmp_path / "toolchains"))
    installed.ask("toolchain", "install", "openvino")
    asked = ("--target", "panther-lake", "--compile", "--json")
    data = ("--precision", "w8a8", "--calibration", str(calibration))
    made = json.loads(installed.ask("package", str(CNN), *asked, *data, "-o", str(tmp_path / "int8")))
    assert made["executed"] == ["convert-for-cpu"]
    status = made["status"]
    assert (status["compiled"], status["right"]) == ("not run", "not judged")
    assert status["right_why"].startswith("the CPU, which stands in")
    assert "FakeQuantize" in (tmp_path / "int8/artifacts/model.xml").read_text("utf-8")
    stand_in = json.loads((tmp_path / "int8/manifest.json").read_text("utf-8"))["record"]["stand_in"]
    # What eight bits cost this network; all of it would be lost, or nothing, if the samples went astray.
    assert 12 < stand_in["sqnr_db"]["logits"] < 60
    installed.ask("package", str(CNN), *asked, "-o", str(tmp_path / "float"))
    stand_in = json.loads((tmp_path / "float/manifest.json").read_text("utf-8"))["record"]["stand_in"]
    assert stand_in["sqnr_db"]["logits"] > 80
    python = tmp_path / "toolchains/openvino-2026.4.1/venv/bin/python"
    monkeypatch.setenv("PYTHON", str(python))
    installed.ask("package", str(QDQ), "--target", "panther-lake", "--no-compile", "-o", str(tmp_path / "qdq"))
    no_npu = json.loads(installed.ask("build", str(tmp_path / "qdq"), "--json", status=5))
    assert no_npu["diagnosis"]["causes"][0]["id"] == "openvino-npu-absent"
    monkeypatch.setenv("DEVICE", "CPU")
    assert json.loads(installed.ask("build", str(tmp_path / "qdq"), "--json"))["done"] == ["convert"]
