"""The backends of docs/examples as their users have them: wheels beside deploykit's own, in a fresh environment.

Only what deploykit depends on is lent by the Python that runs the tests, so that nothing is fetched.
"""

import json
import os
import subprocess
import sys
import sysconfig
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).parents[2]
EXAMPLES = [ROOT / "docs/examples" / name for name in ("my_npu", "openvino_npu")]
CNN = ROOT / "tests/data/aimet/cnn/model.onnx"
QDQ = ROOT / "tests/data/aimet/cnn/w8a8.qdq.onnx"
pytestmark = pytest.mark.heavy


@dataclass(frozen=True, slots=True, kw_only=True)
class Installed:
    """An environment with wheels in it, whose programs run away from the checkout."""

    root: Path

    def run(self, program: str, *argv: str) -> subprocess.CompletedProcess[str]:
        env = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
        env["PATH"] = f"{self.root / 'bin'}{os.pathsep}{env['PATH']}"
        command = [str(self.root / "bin" / program), *argv]
        return subprocess.run(command, cwd=self.root, env=env, capture_output=True, encoding="utf-8", check=False)

    def ask(self, *argv: str, status: int = 0) -> str:
        """What deploykit answers, which must end so."""
        done = self.run("deploykit", *argv)
        assert done.returncode == status, done.stderr + done.stdout
        return done.stdout

    def python(self, code: str) -> str:
        """What a program prints that must end well."""
        done = self.run("python", "-c", code)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Installed:
    """Wheels by the build backend at hand where there is one; what they depend on is lent by this Python."""
    folder = tmp_path_factory.mktemp("wheels")
    root, isolation = folder / "environment", ["--no-isolation"] if find_spec("hatchling") else []
    for source in (ROOT, *EXAMPLES):
        command = [sys.executable, "-m", "build", "--wheel", *isolation, "--outdir", str(folder), str(source)]
        built = subprocess.run(command, capture_output=True, encoding="utf-8", check=False)
        assert built.returncode == 0, built.stdout + built.stderr
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(root)], check=True)
    pip = [sys.executable, "-m", "pip", "--python", str(root / "bin/python")]
    install = ["install", "-q", "--no-deps", "--no-index", *map(str, folder.glob("*.whl"))]
    subprocess.run([*pip, *install], check=True, env={**os.environ, "PIP_DISABLE_PIP_VERSION_CHECK": "1"})
    (own,) = root.glob("lib/python*/site-packages")
    (own / "lent.pth").write_text(sysconfig.get_path("purelib") + "\n", "utf-8")
    return Installed(root=root)


def test_what_runs_is_what_was_installed(installed: Installed) -> None:
    places = installed.python(
        "import deploykit, my_npu; print(deploykit.__file__); print(my_npu.__file__)"
    ).splitlines()
    assert [place for place in places if not place.startswith(str(installed.root))] == []


@pytest.mark.parametrize(
    ("backend", "target", "precision"), [("my-npu", "my-board", None), ("openvino-npu", "lunar-lake", "w8a8")]
)
def test_it_passes_conformance(
    backend: str, target: str, precision: str | None, installed: Installed, calibration: Path, tmp_path: Path
) -> None:
    asked = {"target": target} | ({"precision": precision, "calibration": str(calibration)} if precision else {})
    code = f"""
from functools import partial
from pathlib import Path
import deploykit
from deploykit.backend.conformance import backend_problems, package_problems
make = partial(deploykit.package, {str(CNN)!r}, **{asked!r})
print(backend_problems({backend!r}), package_problems(make, deploykit.verify, Path({str(tmp_path)!r})))
"""
    assert installed.python(code) == "() ()"


@pytest.fixture(scope="module")
def calibration(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("samples") / "images.npz"
    np.savez(path, input=np.random.default_rng(1).normal(size=(16, 3, 16, 16)).astype(np.float32))
    return path


def test_the_rules_of_openvinos_backend_say_no(installed: Installed) -> None:
    encodings = ("--encodings", str(CNN.with_name("w8a8.v1.0.0.encodings")))
    asked = {
        "OVN001": (str(CNN), "--precision", "w4a16"),
        "OVN002": (str(CNN), "--precision", "w8a8"),
        "OVN003": (str(CNN), *encodings),
    }
    for code, words in asked.items():
        told = installed.run("deploykit", "check", "--plan", *words, "--target", "mtl", "--json")
        assert (told.returncode, json.loads(told.stdout)["rejected"][0]["because"]) == (1, [code]), told.stderr


def test_openvinos_toolchain_quantizes_and_compiles_for_the_cpu_and_claims_no_more(
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
