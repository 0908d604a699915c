"""The backends of docs/examples as their users have them: wheels beside deploykit's own, in a fresh environment.

Only what deploykit depends on is lent by the Python that runs the tests, so that nothing is fetched.
"""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest

from text_models import text_model
from wheels import Installed, installed_wheels

ROOT = Path(__file__).parents[2]
EXAMPLES = [ROOT / "docs/examples" / name for name in ("my_npu", "openvino_npu")]
MLP = ROOT / "tests/data/aimet/mlp/model.onnx"
CNN = ROOT / "tests/data/aimet/cnn/model.onnx"
QDQ = ROOT / "tests/data/aimet/cnn/w8a8.qdq.onnx"
pytestmark = pytest.mark.heavy


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Installed:
    return installed_wheels([ROOT, *EXAMPLES], tmp_path_factory.mktemp("wheels"))


@pytest.fixture
def npucc(installed: Installed) -> Callable[[str], None]:
    """Puts a program called npucc onto the PATH of the environment, gone after the test."""
    path = installed.root / "bin/npucc"

    def write(script: str) -> None:
        path.write_text(f"#!/bin/sh\n{script}\n", "utf-8")
        path.chmod(0o755)

    return write


@pytest.fixture(autouse=True)
def without_npucc(installed: Installed) -> None:
    (installed.root / "bin/npucc").unlink(missing_ok=True)


def test_what_runs_is_what_was_installed(installed: Installed) -> None:
    places = installed.python(
        "import deploykit, my_npu; print(deploykit.__file__); print(my_npu.__file__)"
    ).splitlines()
    assert [place for place in places if not place.startswith(str(installed.root))] == []


def test_its_rule_speaks(installed: Installed, tmp_path: Path) -> None:
    for count, codes, status in ((64, set(), 0), (65, {"NPU001"}, 1)):
        path = tmp_path / f"{count}.onnx"
        chain = " ".join(f"t{at + 1} = Relu (t{at})" for at in range(count))
        onnx.save(text_model("float[4] t0", chain, f"float[4] t{count}"), path)
        found = json.loads(installed.ask("check", str(path), "--target", "my-board", "--json", status=status))
        assert {finding["code"] for finding in found["findings"] if finding["severity"] == "error"} == codes


def test_its_template_is_used_and_a_users_own_wins(installed: Installed, tmp_path: Path) -> None:
    made = ("package", str(MLP), "--target", "my-board", "--effort", "7")
    installed.ask(*made, "-o", str(tmp_path / "own"))
    assert "npucc --effort 7 model/model.onnx" in (tmp_path / "own/scripts/build.sh").read_text("utf-8")
    template = tmp_path / "templates/my_npu/scripts/build.sh.j2"
    template.parent.mkdir(parents=True)
    template.write_text("#!/bin/sh\necho {{ device | sh }}\n", "utf-8")
    installed.ask(*made, "-o", str(tmp_path / "user"), "--templates", str(tmp_path / "templates"))
    assert (tmp_path / "user/scripts/build.sh").read_text("utf-8") == "#!/bin/sh\necho 'My Board'\n"
    assert "script" in installed.ask("verify", str(tmp_path / "user"), "-v")


def test_its_known_error_is_found_in_a_log(installed: Installed, npucc: Callable[[str], None], tmp_path: Path) -> None:
    log = tmp_path / "npucc.log"
    log.write_text("npucc: reading\nnpucc: out of scratch memory in layer 3\n", "utf-8")
    assert "my-npu-scratch-memory" in installed.ask("diagnose", str(log), status=1)
    installed.ask("package", str(MLP), "--target", "my-board", "-o", str(tmp_path / "out"))
    npucc("echo 'npucc: out of scratch memory in layer 3'; exit 1")
    told = json.loads(installed.ask("build", str(tmp_path / "out"), "--json", status=5))
    assert [cause["id"] for cause in told["diagnosis"]["causes"]] == ["my-npu-scratch-memory"]
    npucc('touch "$5"')
    assert json.loads(installed.ask("build", str(tmp_path / "out"), "--json"))["done"] == ["compile"]
    installed.ask("verify", str(tmp_path / "out"))


def test_its_probe_is_asked_by_the_doctor(installed: Installed, npucc: Callable[[str], None]) -> None:
    def line() -> tuple[str, str]:
        # What else this machine lacks is no concern here.
        lines = json.loads(installed.run("deploykit", "doctor", "--json").stdout)["lines"]
        return next((entry["state"], entry["detail"]) for entry in lines if entry["id"] == "npucc")

    assert line() == ("absent", "not on the PATH")
    npucc("echo 1.2")
    state, detail = line()
    assert (state, detail.endswith("npucc: 1.2")) == ("ok", True)


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
