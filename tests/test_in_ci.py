"""What docs/howto/in-ci.md gives other programs is held against their schemas, and its shell lines are run."""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from check_jsonschema import main as check_jsonschema
from click.testing import CliRunner
from ruamel.yaml import YAML

from documents import Block, blocks_of

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs/howto/in-ci.md").read_text("utf-8")
CNN = ROOT / "tests/data/aimet/cnn"
MLP = ROOT / "tests/data/aimet/mlp"
ASKED = "--target sm8650 --sdk 2.37"


def block_with(text: str) -> Block:
    """The one block of the page that holds this."""
    (found,) = [block for block in blocks_of(PAGE) if text in block.text and block.reason]
    return found


def read(block: Block) -> Any:
    return YAML(typ="safe").load(block.text)


def programs(folder: Path, **scripts: str) -> dict[str, str]:
    """An environment whose PATH begins with these programs, and has this deploykit."""
    scripts = {"deploykit": f'exec "{sys.executable}" -m deploykit "$@"', **scripts}
    folder.mkdir(exist_ok=True)
    for name, text in scripts.items():
        (folder / name).write_text(f"#!/bin/sh\n{text}\n", "utf-8")
        (folder / name).chmod(0o755)
    return {**os.environ, "PATH": f"{folder}{os.pathsep}{os.environ['PATH']}"}


@pytest.mark.parametrize(
    ("text", "schema", "file"),
    [
        ("runs:\n  using: composite", "vendor.github-actions", "action.yml"),
        ("image: python:", "vendor.gitlab-ci", ".gitlab-ci.yml"),
    ],
    ids=["action", "gitlab"],
)
def test_its_hosts_schema_takes_it_and_refuses_another_key(text: str, schema: str, file: str, tmp_path: Path) -> None:
    path = tmp_path / file
    argv = ["--builtin-schema", schema, str(path)]
    path.write_text(block_with(text).text, "utf-8")
    done = CliRunner().invoke(check_jsonschema, argv)
    assert done.exit_code == 0, done.output
    path.write_text(block_with(text).text.replace("script:", "skript:").replace("using:", "usin:"), "utf-8")
    assert CliRunner().invoke(check_jsonschema, argv).exit_code == 1


def filled(text: str, known: Mapping[str, str]) -> str:
    """With what the runner puts in the place of an expression."""
    return re.sub(r"\$\{\{ (.+?) \}\}", lambda found: known[found[1]], text)


def run_action(folder: Path, model: Path, encodings: Path) -> tuple[list[int], dict[str, str]]:
    """Every shell step of the action as a runner starts it; their statuses, and what was put out."""
    env = programs(folder / "deploykit/bin")
    output = folder / "output"
    output.touch()
    env |= {"RUNNER_TEMP": str(folder), "GITHUB_OUTPUT": str(output)}
    given = {"model": str(model), "target": "sm8650", "sdk": "2.37", "encodings": str(encodings)}
    statuses: list[int] = []
    put: dict[str, str] = {}
    for step in read(block_with("using: composite"))["runs"]["steps"][1:]:
        if "run" not in step:
            continue
        known = {f"inputs.{name}": value for name, value in given.items()}
        known |= {f"steps.check.outputs.{name}": value for name, value in put.items()}
        extra = {key: filled(value, known) for key, value in step.get("env", {}).items()}
        argv = ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", step["run"]]
        done = subprocess.run(argv, cwd=folder, env={**env, **extra}, check=False)
        statuses.append(done.returncode)
        put = dict(line.split("=", 1) for line in output.read_text("utf-8").splitlines())
    return statuses, put


@pytest.mark.heavy
def test_the_steps_of_the_action_write_sarif_and_end_as_the_check_does(tmp_path: Path) -> None:
    for status, model, encodings in (
        (0, CNN / "model.onnx", CNN / "w8a16.v1.0.0.encodings"),
        (1, MLP / "model.onnx", MLP / "bq-w4a16.v1.0.0.encodings"),
        (3, MLP / "absent.onnx", MLP / "bq-w4a16.v1.0.0.encodings"),
    ):
        folder = tmp_path / str(status)
        folder.mkdir()
        (folder / "deploykit").mkdir()
        assert run_action(folder, model, encodings) == ([0, status], {"status": str(status)})
        if status < 2:
            assert json.loads((folder / "deploykit.sarif").read_text("utf-8"))["version"] == "2.1.0"


def test_the_action_installs_what_it_then_runs_and_uploads_only_what_was_written(tmp_path: Path) -> None:
    steps = read(block_with("using: composite"))["runs"]["steps"]
    log = tmp_path / "log"
    env = programs(tmp_path / "bin", python3=f'echo "$@" >> {log}; mkdir -p "$3/bin"; cp "$0" "$3/bin/pip"')
    subprocess.run(
        ["bash", "-eo", "pipefail", "-c", steps[0]["run"]], env={**env, "RUNNER_TEMP": str(tmp_path)}, check=True
    )
    assert log.read_text("utf-8").splitlines() == [f"-m venv {tmp_path}/deploykit", "install deploykit"]
    upload = next(step for step in steps if "uses" in step)
    assert upload["if"] == "${{ steps.check.outputs.status == '0' || steps.check.outputs.status == '1' }}"


def checkout(folder: Path) -> Path:
    """A repository of somebody with a model, its encodings, and what was known about it when the gate was set up."""
    folder.mkdir()
    shutil.copy(MLP / "model.onnx", folder / "model.onnx")
    shutil.copy(MLP / "bq-w4a16.v1.0.0.encodings", folder / "model.encodings")
    words = f"check model.onnx --encodings model.encodings {ASKED} --write-baseline known.json"
    argv = [sys.executable, "-m", "deploykit", *words.split()]
    assert subprocess.run(argv, cwd=folder, capture_output=True, check=False).returncode == 1
    return folder


@pytest.mark.heavy
@pytest.mark.parametrize("gate", ["image: python:", "repo: local"], ids=["gitlab", "pre-commit"])
def test_a_gate_lets_known_findings_pass_and_no_others(gate: str, tmp_path: Path) -> None:
    here, found = checkout(tmp_path / "repository"), read(block_with(gate))
    if "repos" in found:
        (hook,) = found["repos"][0]["hooks"]
        assert re.search(hook["files"], "model.encodings") and not re.search(hook["files"], "notes.txt")
    check = hook["entry"] if "repos" in found else found["deploykit"]["script"][1]
    env = programs(tmp_path / "bin")
    assert subprocess.run(["bash", "-c", check], cwd=here, env=env, capture_output=True, check=False).returncode == 0
    known = json.loads((here / "known.json").read_text("utf-8"))
    assert known["accepted"]
    (here / "known.json").write_text(json.dumps({**known, "accepted": []}), "utf-8")
    assert subprocess.run(["bash", "-c", check], cwd=here, env=env, capture_output=True, check=False).returncode == 1


def test_the_container_is_built_of_what_there_is() -> None:
    text = block_with("FROM python").text
    lines = [line.split(" ", 1) for line in text.splitlines()]
    assert [word for word, _ in lines] == ["FROM", "RUN", "RUN", "WORKDIR", "ENTRYPOINT"]
    assert lines[1][1].endswith("libatomic1")  # deploykit_qualcomm.probes says why
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    *pip, wanted = shlex.split(lines[2][1])
    assert pip == ["pip", "install", "--no-cache-dir"]
    name, extra = re.fullmatch(r"([a-z]+)\[([a-z-]+)\]", wanted).groups()  # type: ignore[union-attr]
    assert name == project["name"] and extra in project["optional-dependencies"]
    assert json.loads(lines[4][1])[0] in project["scripts"]
