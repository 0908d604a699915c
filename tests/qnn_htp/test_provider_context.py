"""The route without a converter: planned beside the others, packaged whole, run for real where it can be."""

import ast
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from check_jsonschema import main as check_jsonschema
from click.testing import CliRunner

import deploykit
from deploykit.backend.plugins import load_backend
from deploykit.flow.pipeline import Packaged
from deploykit.model.load import load_model
from deploykit.system.environments import environment_of
from deploykit_qualcomm.carriers import host_toolchain

ROUTE = "provider-context"


def asked(aimet: Path, name: str = "detr/w8a16-fp16mix-explicit.v0.6.1", **more: Any) -> dict[str, Any]:
    """A detector with five float16 tensors, locked to 2.33."""
    values = {"target": "sm8650", "sdk": "2.33", "backend": "qnn-htp", **more}
    model, encodings = aimet / name.split("/")[0] / "model.onnx", aimet / f"{name}.encodings"
    return {"model": model, "encodings": encodings, **values}


def package(aimet: Path, out: Path, *name: str, **more: Any) -> Packaged:
    return deploykit.package(**asked(aimet, *name, **more), out=out)


def float_operand(aimet: Path, folder: Path) -> Path:
    """Encodings in which an attention product reads one operand as float16 and the other as uint8 (QNN109)."""
    value = json.loads((aimet / "vit/w8a8.v1.0.0.encodings").read_text("utf-8"))
    nodes = load_model(aimet / "vit/model.onnx").proto.graph.node
    first, second = next(node.input for node in nodes if "attn/MatMul_1" in node.name)
    entries = {entry["name"]: entry for entry in value["activation_encodings"]}
    grid = {"bw": 8, "dtype": "INT", "enc_type": "PER_TENSOR", "is_sym": False, "offset": [-128.0], "scale": [0.05]}
    float16 = {"bw": 16, "dtype": "FLOAT", "enc_type": "PER_TENSOR"}
    kept = [entry for name, entry in entries.items() if name not in (first, second)]
    value["activation_encodings"] = [*kept, {"name": first, **float16}, {"name": second, **grid}]
    path = folder / "mixed.encodings"
    path.write_text(json.dumps(value), "utf-8")
    return path


@pytest.mark.parametrize(("target", "taken"), [("sc8380xp", True), ("sm8650", False)])
def test_it_is_taken_by_itself_where_nothing_else_is_left_and_the_chip_is_right(
    aimet: Path, tmp_path: Path, target: str, taken: bool
) -> None:
    path = float_operand(aimet, tmp_path)
    made = deploykit.plan(
        aimet / "vit/model.onnx", target=target, sdk="2.33", backend="qnn-htp", encodings=path, mixed="fallback"
    )
    rejected = {row.id: row.because for row in made.rejected}
    assert "QNN109" in rejected["legacy-float-fallback"] and "QNN109" in rejected["qairt-overrides"]
    assert (made.route is not None) is taken
    if made.route is not None:
        assert made.route.id == ROUTE and made.feasible
        assert any(finding.code == "QNN109" and finding.handled for finding in made.findings)
    else:
        assert rejected[ROUTE] == ("QNN295",)
        codes = {finding.code for finding in made.findings}
        assert "QNN109" in codes and "QNN295" not in codes, "those of the route that is best"


@pytest.fixture(scope="module")
def for_arm(aimet: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The package for 2.33, whose compiler is ARM64 code for Windows."""
    made = package(aimet, tmp_path_factory.mktemp("arm") / "p", route=ROUTE, emit="github-actions")
    assert made.package is not None
    return made.package


def test_the_package_holds_everything_for_a_windows_machine(for_arm: Path) -> None:
    files = {path.relative_to(for_arm).as_posix() for path in for_arm.rglob("*") if path.is_file()}
    assert {
        *("model/model.onnx", "config/compile_options.json", "config/intended_types.json"),
        *("config/run_config.json", "config/htp_run.json", "scripts/compile.py", "scripts/build.ps1"),
        *("scripts/build.sh", "scripts/run_on_device.sh", "scripts/github-actions/compile.yml"),
    } <= files
    prepared = ("encodings/", "calibration/", "config/backend_config", "config/htp_prepare")
    assert not any(file.startswith(prepared) for file in files)
    assert "onnxruntime-qnn 1.22.0" in (for_arm / "scripts/compile.py").read_text("utf-8")
    assert "--retrieve_context artifacts/model_ctx_qnn.bin" in (for_arm / "scripts/run_on_device.sh").read_text("utf-8")


def test_the_package_verifies_and_says_that_nothing_was_compiled(for_arm: Path) -> None:
    report = deploykit.verify(for_arm)
    assert report.ok, [check for check in report.checks if not check.ok]
    assert {"flags-listed", "config-keys"} < {check.id for check in report.checks}
    manifest = json.loads((for_arm / "manifest.json").read_text("utf-8"))
    assert manifest["executed"] == [] and manifest["generated"] == ["compile", "emulate", "net-run"]
    assert manifest["status"]["compiled"] == "not run"
    for name in ("compile.py", "run.py"):  # the wheels' Python is 3.8 for the oldest ones
        ast.parse((for_arm / "scripts" / name).read_text("utf-8"), feature_version=(3, 8))


def test_the_workflow_is_one_that_github_reads(aimet: Path, for_arm: Path, tmp_path: Path) -> None:
    packages = {"2.33": for_arm}
    for sdk in ("2.36", "2.51"):
        given = {"sdk": sdk, "route": ROUTE, "emit": "github-actions", "compile": False}
        packages[sdk] = package(aimet, tmp_path / sdk, "cnn/w8a8.v1.0.0", **given).package or tmp_path
    paths = {sdk: place / "scripts/github-actions/compile.yml" for sdk, place in packages.items()}
    argv = ["--builtin-schema", "vendor.github-workflows", *map(str, paths.values())]
    done = CliRunner().invoke(check_jsonschema, argv)
    assert done.exit_code == 0, done.output
    for sdk, machine, wheel in (
        ("2.33", "windows-11-arm", "1.22.0"),
        ("2.36", "windows-2022", "1.22.2"),
        ("2.51", "ubuntu", "2.7.0"),
    ):
        text = paths[sdk].read_text("utf-8")
        assert f"runs-on: {machine}" in text and f"onnxruntime-qnn=={wheel}" in text
        assert ("--require-hashes" in text) is machine.startswith("windows")
        used = re.findall(r"uses: (.*)", text)
        assert len(used) == 3 and all(re.fullmatch(r"actions/[a-z-]+@[0-9a-f]{40} # v[0-9.]+", name) for name in used)
        assert ("Not tried on this runner" in text) is (sdk == "2.33")


@pytest.fixture(scope="module")
def compiled(aimet: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A package of the newest release, whose compiler runs here."""
    made = package(aimet, tmp_path_factory.mktemp("compiled") / "p", "cnn/w8a16.v2.0.0", sdk="2.51.0", route=ROUTE)
    assert made.package is not None and made.executed == ("compile", "emulate")
    return made.package


def test_the_newest_binary_is_compiled_typed_and_judged_here(compiled: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    report = deploykit.verify(compiled)
    checks = {check.id: check for check in report.checks}
    assert report.ok and not report.mismatches and report.intended
    assert "soc_model 57" in checks["context-loads"].detail and checks["context-loads"].ok
    assert "one graph" in checks["context-whole"].detail and checks["context-whole"].ok
    backend = load_backend("ort-qnn")
    told = backend.inspect(next((compiled / "artifacts").glob("*.bin")))
    for change, failed in (
        ({"graph_count": 2}, "context-whole"),
        ({"arch": "v69"}, ""),  # of an older architecture, which this one runs
        ({"arch": "v79"}, "context-loads"),
        ({"release": "2.99.0"}, "context-loads"),
    ):
        monkeypatch.setattr(type(backend), "inspect", lambda self, path, change=change: {**told, **change})
        bad = [check for check in deploykit.verify(compiled).checks if not check.ok]
        assert [check.id for check in bad] == failed.split(), change


@pytest.mark.heavy
def test_2_36_1_compiles_the_detector_with_its_float16_tensors(aimet: Path, tmp_path: Path) -> None:
    spec = host_toolchain("2.36.1")
    assert spec is not None
    if any(need.find() is None for need in spec.needs) or environment_of(spec).state(with_size=False).state != "ready":
        pytest.skip("the toolchain htp-2.36.1 is not installed")
    made = package(aimet, tmp_path / "p", sdk="2.36.1", route=ROUTE)
    assert made.package is not None and made.executed == ("compile", "emulate")
    assert str(made.status.right.state) == "not judged" and "no damage" in made.status.right.why
    report = deploykit.verify(made.package)
    checks = {check.id: check for check in report.checks}
    assert report.ok and not report.mismatches
    assert "soc_model 57, QNN API 2.27.0" in checks["context-loads"].detail
    # The same by its own script, without deploykit.
    place = shutil.copytree(made.package, tmp_path / "copy")
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run([sys.executable, "scripts/compile.py"], cwd=place, env=environment, check=False)
    told = json.loads((place / "artifacts/compile_report.json").read_text("utf-8"))
    assert done.returncode == 0 and told["state"] == "compiled" and not told["refused"]
    # Float tensors are handed over as float32; in which float they are computed is the compiler's choice.
    assert {"uint16", "int8", "float32"} <= set(told["types"].values())


DLC_ROUTE = "provider-dlc"


@pytest.fixture(scope="module")
def with_dlc(aimet: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = package(aimet, tmp_path_factory.mktemp("dlc") / "p", "cnn/w8a16.v2.0.0", sdk="2.51.0", route=DLC_ROUTE)
    assert made.package is not None and made.executed == ("compile", "emulate")
    return made.package


@pytest.mark.heavy
def test_the_dlc_is_written_compared_and_left_to_the_sdks_generator(with_dlc: Path) -> None:
    manifest = json.loads((with_dlc / "manifest.json").read_text("utf-8"))
    steps = {step["id"]: step for step in manifest["steps"]}
    argv = steps["context-binary"]["argv"]
    assert argv[argv.index("--dlc_path") + 1] == "artifacts/model.dlc" in steps["compile"]["outputs"]
    assert manifest["generated"] == ["context-binary", "net-run"]
    inner = json.loads((with_dlc / "config/htp_prepare.json").read_text("utf-8"))
    assert inner["devices"][0]["soc_model"] == 57 and "graphs" not in inner
    report = deploykit.verify(with_dlc)
    assert report.ok
    assert any(check.id == "dlc-types" and "0 differ" in check.detail for check in report.checks)
