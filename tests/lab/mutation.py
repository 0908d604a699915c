"""A mutation tester: changes one place of the code at a time and says which changes no test notices.

    python tests/lab/mutation.py                             # 300 mutants, or as many as fit into a quarter of an hour
    python tests/lab/mutation.py --record                    # anew: which test calls which function
    python tests/lab/mutation.py --record tests/changed.py   # again, for some files of tests

Each mutant is made in a copy of the tree. Of the recorded tests those run that call its function, or, where it stands
outside of any, the functions that read what it is a part of; the quickest first, until one fails. It is no part of the
suite: mutmut and cosmic-ray run every test for every mutant, which takes days on a small machine.
"""

from __future__ import annotations

import argparse
import ast
import compileall
import json
import multiprocessing
import os
import py_compile
import random
import re
import shutil
import signal
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, NoReturn

import numpy as numpy  # slow to import: here once, not in every fork
import onnx as onnx
import onnxruntime as onnxruntime
import pytest

ROOT = Path(__file__).parents[2]
RECORD = ROOT / ".pytest_cache" / "calls.json"
SOURCES = ("deploykit", "backends")
QUALCOMM = "backends/deploykit_qualcomm"
AREAS: Mapping[str, Sequence[str]] = {
    "encodings": ("deploykit/encodings",),
    "model": ("deploykit/model",),
    "accuracy": ("deploykit/accuracy",),
    "flow": ("deploykit/flow",),
    "tables": ("deploykit/tables", "deploykit/findings", f"{QUALCOMM}/tables.py"),
    "rules": tuple(f"backends/deploykit_{name}/rules" for name in ("qualcomm", "qnn_htp", "ort_qnn", "vitis_ai")),
}
"""What is mutated: every area gets the same share of a sample, so that a small one is not forgotten."""

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
    """One change: the file, the function (``""`` outside of any), the line, what it is in words, the whole new text."""

    path: str
    function: str
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
    line = getattr(node, "lineno", 0)
    function = next((name for name, one in _functions(tree) if one.lineno <= line <= (one.end_lineno or 0)), "")
    apply()
    return Mutant(path=path, function=function, line=line, change=change, text=ast.unparse(tree))


def _functions(node: ast.AST, within: str = "") -> Iterator[tuple[str, ast.FunctionDef]]:
    """Functions and methods by name, not those inside a function."""
    for child in ast.iter_child_nodes(node):
        match child:
            case ast.FunctionDef(name=name):
                yield within + name, child
            case ast.ClassDef(name=name):
                yield from _functions(child, f"{within}{name}.")


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


class Recorder:
    """A pytest plugin that notes which functions of the code each test calls, and how long the test takes.

    What a cached function did for an earlier test counts for that test only: hence the wider circles of `tests_for`.
    """

    def __init__(self, known: Calls) -> None:
        self.seconds = dict(known.seconds)
        self.callers = {function: list(tests) for function, tests in known.callers.items()}
        self._called: dict[int, CodeType] = {}

    def _note(self, frame: FrameType, event: str, arg: object) -> None:
        self._called.setdefault(id(frame.f_code), frame.f_code)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        """Traces calls, not lines, so that the suite is little slower than without."""
        self._called.clear()
        started = time.perf_counter()
        threading.settrace(self._note)
        sys.settrace(self._note)
        try:
            return (yield)
        finally:
            sys.settrace(None)
            threading.settrace(None)
            self.seconds[item.nodeid] = round(time.perf_counter() - started, 3)
            for function in {name for code in self._called.values() if (name := _name_of(code))}:
                self.callers.setdefault(function, []).append(item.nodeid)

    def save(self) -> None:
        """Into `RECORD`, with numbers instead of names of tests."""
        numbers = {test: number for number, test in enumerate(self.seconds)}
        callers = {function: [numbers[test] for test in tests] for function, tests in sorted(self.callers.items())}
        RECORD.parent.mkdir(exist_ok=True)
        RECORD.write_text(json.dumps({"tests": list(self.seconds.items()), "callers": callers}), "utf-8")


def _name_of(code: CodeType) -> str | None:
    """``path::function`` of what belongs to the code under test; what is inside a function belongs to it."""
    path = Path(code.co_filename)
    if code.co_name == "<module>" or not any(path.is_relative_to(ROOT / source) for source in SOURCES):
        return None
    return f"{path.relative_to(ROOT)}::{code.co_qualname.split('.<locals>')[0]}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Calls:
    """What was recorded: seconds by test, tests by function."""

    seconds: Mapping[str, float]
    callers: Mapping[str, Sequence[str]]

    @classmethod
    def load(cls) -> Calls:
        """From `RECORD`."""
        found: dict[str, Any] = json.loads(RECORD.read_text("utf-8"))
        names = [name for name, _ in found["tests"]]
        callers = {function: [names[n] for n in numbers] for function, numbers in found["callers"].items()}
        return cls(seconds=dict(found["tests"]), callers=callers)

    def without(self, files: Collection[str]) -> Calls:
        """What is left when some files of tests are forgotten."""
        seconds = {test: spent for test, spent in self.seconds.items() if test.split("::")[0] not in files}
        callers = {function: [one for one in tests if one in seconds] for function, tests in self.callers.items()}
        return Calls(seconds=seconds, callers=callers)

    def of_files(self, paths: Iterable[str]) -> set[str]:
        """Every test that calls something in one of the files."""
        wanted = set(paths)
        return {test for name, tests in self.callers.items() if name.split("::")[0] in wanted for test in tests}

    def tests_for(self, mutant: Mutant, budget: float) -> list[str]:
        """Tests in three circles: of the function or readers, of its file, of the files that import it; as many as fit.

        Within a circle the quickest come first; ``budget`` is in recorded seconds.
        """
        near = {f"{mutant.path}::{mutant.function}"} if mutant.function else _readers(mutant.path, mutant.line)
        function = {test for name in near for test in self.callers.get(name, ())}
        circles = (function, self.of_files([mutant.path]), self.of_files(_importing(mutant.path)))
        tests = dict.fromkeys(test for circle in circles for test in sorted(circle, key=self.seconds.__getitem__))
        chosen: list[str] = []
        for test in tests:
            budget -= self.seconds[test]
            if chosen and budget < 0:
                break
            chosen.append(test)
        return chosen


def _readers(path: str, line: int) -> set[str]:
    """The functions that read what a statement outside of any gives: a constant, a field; one whose decorator it is."""
    trees = {file: ast.parse((ROOT / file).read_text("utf-8")) for file in (path, *_importing(path))}
    outside = [*_outside(trees[path])]
    names = {name for node in outside if _first(node) <= line <= (node.end_lineno or 0) for name in _given(node)}
    for node in outside * 2:  # constants that are made of constants
        names |= _given(node) if not isinstance(node, ast.ClassDef) and names & _read(node) else set()
    functions = ((file, name, node) for file, tree in trees.items() for name, node in _functions(tree))
    return {f"{file}::{name}" for file, name, node in functions if names & (_read(node) | {node.name})}


def _outside(node: ast.AST) -> Iterator[ast.stmt]:
    """The statements of a module and of its classes."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.stmt):
            yield child
        if isinstance(child, ast.ClassDef):
            yield from _outside(child)


def _first(node: ast.stmt) -> int:
    decorators = node.decorator_list if isinstance(node, ast.FunctionDef | ast.ClassDef) else []
    return min([node.lineno, *(one.lineno for one in decorators)])


def _given(node: ast.stmt) -> set[str]:
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        return {node.name}
    return {one.id for one in ast.walk(node) if isinstance(one, ast.Name) and isinstance(one.ctx, ast.Store)}


def _read(node: ast.AST) -> set[str]:
    read = {one.id for one in ast.walk(node) if isinstance(one, ast.Name) and isinstance(one.ctx, ast.Load)}
    return read | {one.attr for one in ast.walk(node) if isinstance(one, ast.Attribute)}


@cache
def _importing(path: str) -> list[str]:
    """The files that import a module by its name."""
    module = re.escape(path.removeprefix("backends/").removesuffix(".py").removesuffix("/__init__").replace("/", "."))
    package, _, name = module.rpartition(r"\.")
    imports = re.compile(rf"^ *from (?:{module} import|{package} import .*\b{name}\b)", re.MULTILINE)
    files = (file for source in SOURCES for file in sorted((ROOT / source).rglob("*.py")))
    return [str(file.relative_to(ROOT)) for file in files if imports.search(file.read_text("utf-8"))]


def sample(count: int, seed: int, only: str) -> list[Mutant]:
    """So many mutants, spread evenly over the areas; the same for the same seed and code."""
    chance = random.Random(seed)
    drawn: list[list[tuple[str, int]]] = []
    for area, prefixes in AREAS.items():
        files = sorted({str(path.relative_to(ROOT)) for prefix in prefixes for path in _files(ROOT / prefix)})
        found = [(path, n) for path in files if path.startswith(only) for n in range(count_of(path))]
        print(f"{len(found)} mutants of {area}", flush=True)
        drawn.append(chance.sample(found, min(count, len(found))))
    turns = [one[turn] for turn in range(count) for one in drawn if turn < len(one)]
    return [mutant_of(*place) for place in turns[:count]]


def _files(path: Path) -> Iterable[Path]:
    return [path] if path.suffix == ".py" else path.rglob("*.py")


_NO_RUN = 99
"""The status of a child in which pytest itself did not work."""


def copied(folder: Path) -> Path:
    """A copy of the tree, compiled such that only a file that really changed is compiled again."""
    tree = folder / "tree"
    shutil.copytree(ROOT, tree, ignore=shutil.ignore_patterns(".git", ".venv", "__pycache__", ".*_cache"))
    mode = py_compile.PycInvalidationMode.CHECKED_HASH
    for source in SOURCES:
        compileall.compile_dir(tree / source, quiet=2, invalidation_mode=mode)
    return tree


def run_tests(tree: Path, tests: Sequence[str], time_limit: float) -> list[str] | None:
    """The tests that failed until the first one did, ``["time"]`` where they no longer end; None if all pass.

    They run in a fork of this process, which has the slow imports behind it but nothing of the code under test.
    """
    (tree / "tests.txt").write_text("\n".join(tests), "utf-8")
    report = tree / "report.txt"
    child = os.fork()
    if child == 0:
        _run_as_child(tree, report)
    ends = time.monotonic() + time_limit
    while True:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            break
        if time.monotonic() > ends:
            os.killpg(child, signal.SIGKILL)
            os.waitpid(child, 0)
            return ["time"]
        time.sleep(0.05)
    text = report.read_text("utf-8", errors="replace")
    if "ERROR: not found:" in text or os.waitstatus_to_exitcode(status) == _NO_RUN:
        raise SystemExit(f"these tests cannot be run (if some are gone, record again)\n{text}")
    return re.findall(r"^(?:FAILED|ERROR) (.+?)(?: - |$)", text, re.MULTILINE) if status else None


def _run_as_child(tree: Path, report: Path) -> NoReturn:
    os.setsid()
    with report.open("wb") as file:
        for stream in (1, 2):
            os.dup2(file.fileno(), stream)
    os.chdir(tree)
    roots = [str(root) for root in (tree, tree / "backends", tree / "templates")]
    os.environ["PYTHONPATH"] = os.pathsep.join(roots)
    sys.path[:0] = roots
    argv = ["-q", "-x", "-n", "0", "-rfE", "--tb=no", "-p", "no:cacheprovider", "--rootdir", str(tree), "@tests.txt"]
    status = _NO_RUN
    try:
        status = int(pytest.main(argv))
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        os._exit(status)


def verdict(mutant: Mutant, tree: Path, calls: Calls, budget: float) -> list[str] | None:
    """As `run_tests` of the mutant's tests, with the mutant in place of its file."""
    target = tree / mutant.path
    before = target.read_text("utf-8")
    target.write_text(mutant.text, "utf-8")
    tests = calls.tests_for(mutant, budget)
    try:
        if not tests:
            return None
        return run_tests(tree, tests, 60 + 5 * sum(calls.seconds[test] for test in tests))
    finally:
        target.write_text(before, "utf-8")


def record(files: Sequence[str]) -> int:
    """Runs the suite in this process, or some files of it, and keeps who called what; the rest stays known."""
    known = Calls.load().without(files) if files and RECORD.exists() else Calls(seconds={}, callers={})
    recorder = Recorder(known)
    status = pytest.main(["-q", "-n", "0", "--rootdir", str(ROOT), *(files or ["tests"])], plugins=[recorder])
    recorder.save()
    return int(status)


def judged(mutants: Sequence[Mutant], calls: Calls, budget: float, ends: float) -> list[tuple[str, list[str] | None]]:
    """What became of each mutant, as told and the tests that failed, in a tree of its own; fewer when time is up."""
    found: list[tuple[str, list[str] | None]] = []
    with tempfile.TemporaryDirectory() as folder:
        tree = copied(Path(folder))
        for mutant in mutants:
            if time.monotonic() > ends:
                break
            failed = verdict(mutant, tree, calls, budget)
            said = "survived" if failed is None else f"killed by {' '.join(failed) or 'a crash'}"
            found.append((f"{mutant.path}:{mutant.line} {mutant.change}: {said}", failed))
            print(found[-1][0], flush=True)
        killers = {test for _, failed in found for test in failed or () if test in calls.seconds}
        if wrong := run_tests(tree, sorted(killers), 3600) if killers else None:
            raise SystemExit(f"these fail without any mutant, so the score says nothing: {wrong}")
    return found


def main() -> int:
    """Status 1 when a mutant survives."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--record", nargs="*", metavar="FILE", help="run all tests, or those of files, and note calls")
    parser.add_argument("--count", type=int, default=300)
    parser.add_argument("--minutes", type=float, default=15.0, help="after which no further mutant is begun")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", default="", help="files that begin with this")
    parser.add_argument("--budget", type=float, default=20.0, help="seconds of tests for one mutant")
    given = parser.parse_args()
    if given.record is not None or not RECORD.exists():
        status = record(given.record or [])
        if given.record is not None or status:
            return status
    chosen = sample(given.count, given.seed, given.only)
    ends = time.monotonic() + 60 * given.minutes
    # Forked, not started anew: the slow imports are behind this process, the code under test is not.
    with ProcessPoolExecutor(given.jobs, mp_context=multiprocessing.get_context("fork")) as pool:
        shares = [chosen[first :: given.jobs] for first in range(given.jobs)]
        tried = [pool.submit(judged, share, Calls.load(), given.budget, ends) for share in shares]
        rows = [row for one in tried for row in one.result()]
    survived = [said for said, failed in rows if failed is None]
    print(f"\n{len(rows) - len(survived)} of {len(rows)} killed, {100 * (1 - len(survived) / max(len(rows), 1)):.0f} %")
    print("\n".join(survived))
    return int(bool(survived))


if __name__ == "__main__":
    sys.exit(main())
