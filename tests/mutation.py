"""A mutation tester: changes one place of the code at a time and says which changes no test notices.

    python tests/mutation.py --count 150 --seed 1

Each mutant is made in a copy of the tree; the tests that the table below names for its file run until one fails. It is
no part of the suite: mutmut and cosmic-ray run every test for every mutant, which takes days on a small machine.
"""

from __future__ import annotations

import argparse
import ast
import os
import random
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

ROOT = Path(__file__).parents[1]
QUALCOMM = "backends/deploykit_qualcomm"
LINT = "tests/qualcomm/test_lint_graph_rules.py tests/qualcomm/test_lint_provider_rules.py"
TABLES = "tests/qualcomm/test_new_files.py tests/qualcomm/test_resolving.py tests/qualcomm/test_tables.py"
TESTS_OF: Mapping[str, str] = {
    "deploykit/findings": "tests/test_findings.py tests/test_rules.py",
    "deploykit/tables": f"tests/tables {TABLES} tests/qualcomm/test_devices.py",
    "deploykit/encodings": "tests/encodings tests/quantization/test_encoding_rules.py",
    "deploykit/graph": "tests/graph tests/rewrites",
    "deploykit/quantization": "tests/quantization",
    "deploykit/numerics/rules.py": "tests/numerics/test_comparison.py",
    "deploykit/numerics/samples/guidelines.py": "tests/numerics/samples/test_guidelines.py",
    "deploykit/deciding/ranking.py": "tests/deciding/test_ranking.py",
    "deploykit/deciding/entry_values.py": "tests/deciding/test_entry_values.py",
    f"{QUALCOMM}/archs.py": "tests/qualcomm/test_devices.py",
    f"{QUALCOMM}/devices.py": "tests/qualcomm/test_devices.py tests/qualcomm/test_new_files.py",
    f"{QUALCOMM}/tables.py": TABLES,
    f"{QUALCOMM}/resolving.py": TABLES,
    f"{QUALCOMM}/rules/sdk.py": "tests/qualcomm/test_target_rules.py tests/qualcomm/test_resolving.py",
    f"{QUALCOMM}/rules/target.py": "tests/qualcomm/test_target_rules.py",
    f"{QUALCOMM}/rules/float16.py": "tests/qnn_htp/test_rules.py tests/ort_qnn/test_rules.py",
    f"{QUALCOMM}/rules": f"{LINT} tests/qualcomm/test_lint_quantization_rules.py tests/qualcomm/test_constraints.py",
    "backends/deploykit_qnn_htp/rules": "tests/qnn_htp/test_rules.py tests/qnn_htp/test_second_opinion.py",
    "backends/deploykit_ort_qnn/rules": "tests/ort_qnn/test_rules.py",
    "backends/deploykit_vitis_ai/rules": "tests/vitis_ai/test_draft_rules.py tests/vitis_ai/test_quantized.py",
    "backends/deploykit_vitis_ai/products.py": "tests/vitis_ai/test_tables.py tests/vitis_ai/test_draft_rules.py",
    "backends/deploykit_vitis_ai/routes.py": "tests/vitis_ai/test_tables.py tests/vitis_ai/test_draft_rules.py",
}
"""The tests of a file or folder; the first entry that fits counts."""

_COMPARED: Mapping[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
}
_COMPUTED: Mapping[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
}
_TEXTS = {"what", "why", "fix", "sources", "message", "hint", "next", "note"}
"""Keywords whose values are words for people: a change there changes no decision."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutant:
    """One change: the file, the line, what it is in words, and the whole new text."""

    path: str
    line: int
    change: str
    text: str


def count_of(path: str) -> int:
    """How many mutants a file has."""
    tree = ast.parse((ROOT / path).read_text("utf-8"))
    return sum(1 for node in _code(tree) for _ in _changes(node))


def mutant_of(path: str, number: int) -> Mutant:
    """One of them, by its number in the order of the code."""
    tree = ast.parse((ROOT / path).read_text("utf-8"))
    places = [(node, change, apply) for node in _code(tree) for change, apply in _changes(node)]
    node, change, apply = places[number]
    apply()
    return Mutant(path=path, line=getattr(node, "lineno", 0), change=change, text=ast.unparse(tree))


def _code(node: ast.AST) -> Iterator[ast.AST]:
    """The nodes that decide something."""
    if _is_no_code(node):
        return
    yield node
    for name, value in ast.iter_fields(node):
        if name in ("annotation", "returns", "args", "format_spec") and not isinstance(node, ast.Call):
            continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST):
                yield from _code(child)


def _is_no_code(node: ast.AST) -> bool:
    """Words, types, names of what is exported, imports under a guard, and how a dataclass is made."""
    match node:
        case ast.JoinedStr() | ast.AnnAssign(value=None) | ast.Assign(targets=[ast.Name(id="__all__")]):
            return True
        case ast.If(test=ast.Name(id="TYPE_CHECKING")) | ast.Subscript(value=ast.Name(id="Literal")):
            return True
        case ast.Call(func=ast.Name(id="dataclass")):
            return True
        case ast.keyword(arg=name):
            return name in _TEXTS
    return False


def _changes(node: ast.AST) -> Iterator[tuple[str, Callable[[], None]]]:
    yield from _operators(node)
    match node:
        case ast.Constant(value=bool() as value):
            yield f"{value} -> {not value}", lambda: setattr(node, "value", not value)
        case ast.Constant(value=int() | float() as number):
            changed = number * 10 if isinstance(number, float) and number else number + 1
            yield f"{number} -> {changed}", lambda: setattr(node, "value", changed)
        case ast.Set(elts=elements) | ast.Tuple(elts=elements, ctx=ast.Load()) if _is_table(elements):
            for index, element in enumerate(elements):
                rest = elements[:index] + elements[index + 1 :]
                yield f"without {ast.unparse(element)}", partial(setattr, node, "elts", rest)
        case ast.If(test=test) | ast.IfExp(test=test):
            yield "condition -> not", lambda: setattr(node, "test", ast.UnaryOp(op=ast.Not(), operand=test))
        case ast.Return(value=ast.Call() | ast.Name() | ast.Attribute()):
            yield "returns None", lambda: setattr(node, "value", ast.Constant(value=None))


def _operators(node: ast.AST) -> Iterator[tuple[str, Callable[[], None]]]:
    match node:
        case ast.Compare(ops=[op]) if type(op) in _COMPARED:
            other = _COMPARED[type(op)]
            yield f"{type(op).__name__} -> {other.__name__}", lambda: setattr(node, "ops", [other()])
        case ast.BinOp(op=op, left=left) if type(op) in _COMPUTED and not isinstance(left, ast.JoinedStr):
            swapped = _COMPUTED[type(op)]
            yield f"{type(op).__name__} -> {swapped.__name__}", lambda: setattr(node, "op", swapped())
        case ast.BoolOp(op=op):
            joined = ast.Or if isinstance(op, ast.And) else ast.And
            yield f"{type(op).__name__} -> {joined.__name__}", lambda: setattr(node, "op", joined())


def _is_table(elements: list[ast.expr]) -> bool:
    return len(elements) > 1 and all(isinstance(element, ast.Constant) for element in elements)


def tests_of(path: str) -> list[str]:
    """The tests that run for a file: those that import it, wherever they are, then those of its row in the table."""
    module = path.removeprefix("backends/").removesuffix(".py").replace("/", ".")
    importing = [
        str(file.relative_to(ROOT))
        for file in sorted((ROOT / "tests").rglob("test_*.py"))
        if f"from {module} import" in file.read_text("utf-8")
    ]
    named = next(tests.split() for prefix, tests in TESTS_OF.items() if path.startswith(prefix))
    return list(dict.fromkeys([*importing, *named]))


def sample(count: int, seed: int, only: str) -> list[Mutant]:
    """So many mutants of all of them, the same for the same seed and code."""
    paths = {
        str(path.relative_to(ROOT))
        for prefix in TESTS_OF
        for path in ([ROOT / prefix] if prefix.endswith(".py") else (ROOT / prefix).rglob("*.py"))
    }
    found = [(path, n) for path in sorted(paths) if path.startswith(only) for n in range(count_of(path))]
    print(f"{len(found)} mutants", flush=True)
    return [mutant_of(*one) for one in random.Random(seed).sample(found, min(count, len(found)))]


def verdict(mutant: Mutant, tree: Path, time_limit: float) -> str:
    """``killed``, ``survived``, or ``killed (time)`` where the tests no longer end."""
    target = tree / mutant.path
    before = target.read_text("utf-8")
    target.write_text(mutant.text, "utf-8")
    roots = (tree, tree / "backends", tree / "templates")
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, roots)), "PYTHONDONTWRITEBYTECODE": "1"}
    argv = [sys.executable, "-m", "pytest", "-q", "-x", "-n", "0", "-p", "no:cacheprovider", *tests_of(mutant.path)]
    try:
        done = subprocess.run(argv, cwd=tree, env=env, capture_output=True, timeout=time_limit, check=False)
    except subprocess.TimeoutExpired:
        return "killed (time)"
    finally:
        target.write_text(before, "utf-8")
    return "survived" if done.returncode == 0 else "killed"


def main() -> int:
    """Status 1 when a mutant survives."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=150)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", default="", help="files that begin with this")
    parser.add_argument("--time-limit", type=float, default=300.0, help="seconds for the tests of one mutant")
    given = parser.parse_args()
    survived = 0
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder) / "tree"
        shutil.copytree(ROOT, tree, ignore=shutil.ignore_patterns(".git", ".venv", "__pycache__", ".*_cache"))
        chosen = sample(given.count, given.seed, given.only)
        for number, mutant in enumerate(chosen, 1):
            said = verdict(mutant, tree, given.time_limit)
            survived += said == "survived"
            print(f"{number}/{len(chosen)} {said}: {mutant.path}:{mutant.line} {mutant.change}", flush=True)
    print(f"{len(chosen) - survived} of {len(chosen)} killed, {100 * (1 - survived / len(chosen)):.0f} %")
    return int(survived > 0)


if __name__ == "__main__":
    sys.exit(main())
