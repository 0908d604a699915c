"""What docs/contributing.md promises: a rule, a rewrite and a backend are added by the files it names alone."""

import ast
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "docs/examples/my_npu"
MLP = ROOT / "tests/data/aimet/mlp/model.onnx"
Run = Callable[..., subprocess.CompletedProcess[str]]


class Answer(NamedTuple):
    """How one command line ended, and what it said."""

    status: int
    out: str
    err: str


DRIVER = """
import contextlib, io, json, sys
from deploykit.cli import cli
from deploykit.cli.frame import run
answers = []
for words in json.loads(sys.argv[1]):
    if isinstance(words, str):
        answers.append((0, str(eval(words)), ""))
        continue
    with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(io.StringIO()) as err:
        status = run(cli, words)
    answers.append((status, out.getvalue(), err.getvalue()))
print(json.dumps(answers))
"""

RULE = '''

@RULES.rule("DK049", "made-up", "warning", sources=("a test",))
def check_made_up(facts: GraphFacts) -> Finds:
    """A made-up rule.

    It shows how one is added.

    Fix: do nothing
    """
    yield Found(kind="model", name=facts.model_name, message="made up")
'''
REWRITE = '''"""A made-up rewrite that never applies."""

from __future__ import annotations

from typing import TYPE_CHECKING

from deploykit.rewrites.contract import MatchResult, ModelLook, Rewritten, Transform

if TYPE_CHECKING:
    from onnx import ModelProto

    from deploykit.encodings.values import EncodingSet

__all__ = ["transform"]


def find(look: ModelLook) -> MatchResult:
    """Nowhere."""
    del look
    return MatchResult(reason="it is made up")


def apply(model: ModelProto, encodings: EncodingSet | None, found: MatchResult) -> Rewritten:
    """The model as it is."""
    del found
    return Rewritten(model=model, encodings=encodings)


transform = Transform(name="made-up", summary="Made up.", find=find, apply=apply)
'''


def runner(*roots: Path) -> Run:
    """Runs Python inside the first of these folders, with all of them in front of the import path."""

    def run(*argv: str) -> subprocess.CompletedProcess[str]:
        env = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, roots))}
        return subprocess.run(
            [sys.executable, *argv], cwd=roots[0], env=env, capture_output=True, encoding="utf-8", check=False
        )

    return run


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the sources and pages, to be extended: each test adds files or lines of its own."""
    copy = tmp_path_factory.mktemp("tree")
    for folder in ("deploykit", "backends", "templates", "docs", "tests/rewrites"):
        shutil.copytree(ROOT / folder, copy / folder, ignore=shutil.ignore_patterns("__pycache__"))
    return copy


@pytest.fixture
def run(tree: Path) -> Run:
    return runner(tree, tree / "backends", tree / "templates")


@pytest.fixture
def outside(tmp_path: Path) -> Run:
    """With the backend of a third party on the path, as an installation would put it there."""
    project = tomllib.loads((EXAMPLE / "pyproject.toml").read_text("utf-8"))["project"]
    group = "deploykit.backends"
    points = [f"{name} = {place}" for name, place in project["entry-points"][group].items()]
    installed = tmp_path / "installed"
    (installed / "my_npu.dist-info").mkdir(parents=True)
    (installed / "my_npu.dist-info/entry_points.txt").write_text("\n".join([f"[{group}]", *points, ""]), "utf-8")
    return runner(installed, EXAMPLE, ROOT, ROOT / "backends", ROOT / "templates")


def without_page_or_test(root: Path) -> list[str]:
    """The files that a rewrite of this tree lacks."""
    files = sorted((root / "tests/rewrites").iterdir())
    tests = "\n".join(path.read_text("utf-8") for path in files if path.suffix in (".py", ".txt"))
    page = (root / "docs/rewrites.md").read_text("utf-8")
    lacking = []
    for path in sorted((root / "deploykit/rewrites").glob("*.py")):
        for name in re.findall(r'\bname="([a-z]+(?:-[a-z]+)+|simplify)"', path.read_text("utf-8")):
            if f"\n## {name}\n" not in page:
                lacking.append(f"a section about {name}")
            if f'"{name}"' not in tests and f"\n? {name}\n" not in tests:
                lacking.append(f"a test of {name}")
    return lacking


def test_every_rewrite_has_its_page_and_its_tests() -> None:
    assert without_page_or_test(ROOT) == []


def answers(run: Run, *command_lines: tuple[str, ...] | str) -> list[Answer]:
    """What deploykit answers to each, or Python to an expression, in one process: starting one takes longer."""
    done = run("-c", DRIVER, json.dumps(command_lines))
    assert done.returncode == 0, done.stderr
    return [Answer(*row) for row in json.loads(done.stdout)]


@pytest.mark.heavy
def test_a_new_rewrite_is_three_files_and_a_new_rule_a_function_and_a_case(tree: Path, run: Run) -> None:
    (tree / "deploykit/rewrites/made_up.py").write_text(REWRITE)
    assert without_page_or_test(tree) == ["a section about made-up", "a test of made-up"]
    with (tree / "docs/rewrites.md").open("a") as file:
        file.write("\n## made-up\n")
    (tree / "tests/rewrites/test_made_up.py").write_text('NAME = "made-up"\n')
    assert without_page_or_test(tree) == []
    with (tree / "deploykit/model/rules.py").open("a") as file:
        file.write(RULE)
    code = "__import__('deploykit.rewrites.contract').rewrites.contract.load_transform('made-up').summary"
    made, told, found = answers(run, code, ("explain", "made-up"), ("check", str(MLP), "--target", "sm8650", "--json"))
    assert made.out == "Made up."
    assert told.out.startswith("# DK049: made-up")
    assert "DK049" in {finding["code"] for finding in json.loads(found.out)["findings"]}


def test_a_backend_of_a_third_party_is_found_with_its_option_to_type(outside: Run, tmp_path: Path) -> None:
    board, out = ("--target", "my-board"), str(tmp_path / "out")
    plan = ("check", "--plan", str(MLP), *board, "--json")
    targets, rule, row, helped, default, asked, wrong, foreign, made, verified, problems, planned = answers(
        outside,
        ("targets", "my-board"),
        ("explain", "NPU001"),
        ("compat", "npu-effort", "--json"),
        ("check", "--help-backend", "my-npu"),
        plan,
        (*plan, "--effort", "7"),
        (*plan, "--effort", "10"),
        ("check", "--plan", str(MLP), "--target", "sm8650", "--effort", "7"),
        ("package", str(MLP), *board, "-o", out),
        ("verify", out),
        "__import__('deploykit.backend.conformance').backend.conformance.backend_problems('my-npu')",
        f"__import__('deploykit').plan({str(MLP)!r}, target='my-board', effort=5).steps[0].argv[2]",
    )
    assert "my-board" in targets.out and "NPU001: too-many-nodes" in rule.out
    assert json.loads(row.out)["rows"][0]["backend"] == "my-npu"
    assert "--effort" in helped.out
    assert json.loads(default.out)["steps"][0]["argv"][:3] == ["npucc", "--effort", "3"]
    assert json.loads(asked.out)["steps"][0]["argv"][2] == "7"
    assert wrong.status == 2 and "from 1 to 9" in wrong.err
    assert foreign.status == 2 and "my-npu" in foreign.err
    assert made.status == 0, made.err
    assert "npucc --effort 3 model/model.onnx " in (tmp_path / "out/scripts/build.sh").read_text("utf-8")
    assert verified.status == 0, verified.err
    assert (problems.out, planned.out) == ("()", "5")


def test_the_guide_shows_the_files_of_the_example() -> None:
    page = (ROOT / "docs/plugins.md").read_text("utf-8")
    blocks = re.finditer(r"`(docs/examples/[^`]+)`; [^\n]*\n```\w+\n(.*?)^```", page, re.DOTALL | re.MULTILINE)
    shown = {block[1]: block[2] for block in blocks}
    files = [path for path in EXAMPLE.rglob("*") if path.is_file() and "__pycache__" not in path.parts]
    real = {path.relative_to(ROOT).as_posix(): path.read_text("utf-8") for path in files}
    left_out = real.keys() - shown.keys()
    assert left_out == {"docs/examples/my_npu/my_npu/__init__.py"}
    assert shown == {name: text for name, text in real.items() if name not in left_out}


def test_the_examples_import_only_what_is_public_for_backends() -> None:
    """What a third party needs is what the policy of versions speaks of."""
    policy = re.search(r"for \[backends\].*?;", (ROOT / "docs/contributing.md").read_text("utf-8"), re.DOTALL)
    assert policy is not None
    public = re.findall(r"`(deploykit[.a-z_]+)`", policy[0])
    imported = {
        f"{node.module}.{name.name}"
        for path in (ROOT / "docs/examples").rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("deploykit.")
        for name in node.names
    }
    assert len(imported) > 10
    assert [name for name in sorted(imported) if not any(f"{name}.".startswith(f"{room}.") for room in public)] == []


def test_deploykit_has_no_word_about_it() -> None:
    words = re.compile(r"openvino.npu|deploykit_openvino|nncf|my.npu", re.IGNORECASE)
    kinds = {".py", ".toml", ".j2"}
    files = [path for room in ("deploykit", "backends", "templates") for path in (ROOT / room).rglob("*")]
    knowing = [path for path in files if path.suffix in kinds and words.search(path.read_text("utf-8"))]
    assert [str(path.relative_to(ROOT)) for path in knowing] == []
