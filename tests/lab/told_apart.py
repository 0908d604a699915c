"""Which small faults of the code would be told apart while tests run: the guide by which the wide net grows.

    pytest -p told_apart -n 0 -q -m "" tests/wide       # what is told apart is kept beside the cache of pytest
    python tests/lab/told_apart.py                      # rooms: goals, told apart, not
    python tests/lab/told_apart.py deploykit/model      # lines of a room where some fault is not told apart

Every comparison, clause, condition, operator, case, function and keyword of the product is a site with goals. A goal
is reached when a value goes by for which the code and the code with that fault differ: both outcomes; for ``<`` equal
values, and where one side is a constant a value for which its neighbour decides otherwise; for a clause of ``and`` and
``or`` an evaluation that another way goes without it. That is weak mutation: necessary for a test to fail, not enough.
"""

from __future__ import annotations

import ast
import builtins
import importlib.machinery
import importlib.util
import marshal
import operator
import os
import pickle
import sys
import time
import zlib
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import deepcopy
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any, NamedTuple

import numpy as np
import pytest

ROOT = Path(__file__).parents[2]
KEPT = Path(os.environ.get("GROWING", ROOT / ".pytest_cache" / "growing"))
BASES = (ROOT / "deploykit", ROOT / "backends")
WORDS = {"what", "why", "fix", "sources", "message", "hint", "next", "note"}
IMPURE = {"next", "pop", "add", "append", "read", "write", "setdefault", "send", "wait", "run", "update", "remove"}
ORDER: Mapping[type[ast.cmpop], str] = {ast.Lt: "lt", ast.LtE: "le", ast.Gt: "gt", ast.GtE: "ge"}
OTHER: Mapping[type[ast.cmpop], str] = {
    ast.Eq: "eq", ast.NotEq: "ne", ast.Is: "is", ast.IsNot: "isnot", ast.In: "in", ast.NotIn: "notin",
}  # fmt: skip
COMPUTED: Mapping[type[ast.operator], str] = {
    ast.Add: "add", ast.Sub: "sub", ast.Mult: "mul", ast.Div: "truediv", ast.FloorDiv: "floordiv",
    ast.BitAnd: "and_", ast.BitOr: "or_",
}  # fmt: skip
SWAPPED = {
    "add": operator.sub, "sub": operator.add, "mul": operator.truediv, "truediv": operator.mul,
    "floordiv": operator.mul, "and_": operator.or_, "or_": operator.and_,
}  # fmt: skip


class Site(NamedTuple):
    """A place of the code; ``goals`` are the bits of its mask in their order."""

    path: str
    line: int
    function: str
    kind: str
    goals: tuple[str, ...]


class _Rewriter(ast.NodeTransformer):
    """Puts calls around what decides something."""

    def __init__(self, path: str, sites: list[Site], defaults: Mapping[str, Mapping[str, ast.Constant | None]]) -> None:
        self.path, self.sites, self.defaults = path, sites, defaults
        self.within: list[str] = []
        self.in_class = True  # lambdas do not see the names of a class; outside of functions nothing is a question

    def _site(self, node: ast.AST, kind: str, goals: Sequence[str], *given: ast.expr) -> ast.Call:
        line = getattr(node, "lineno", 0)
        self.sites.append(Site(self.path, line, ".".join(self.within), kind, tuple(goals[:8])))
        numbered = ast.Constant(len(self.sites) - 1)
        return ast.Call(ast.Name(f"_told_{kind}", ast.Load()), [numbered, *given], [])

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST:
        node.value = self.visit(node.value) if node.value else None
        return node

    def visit_JoinedStr(self, node: ast.JoinedStr) -> ast.AST:
        return node

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.AST:
        outer, self.in_class = self.in_class, True
        self.within.append(node.name)
        node.body = [self.visit(one) for one in node.body]
        self.within.pop()
        self.in_class = outer
        return node

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        outer, self.in_class = self.in_class, False
        self.within.append(node.name)
        first = int(ast.get_docstring(node, clean=False) is not None)
        reached = ast.Expr(self._site(node, "here", ["reached"]))
        node.body = [*node.body[:first], reached, *(self.visit(one) for one in node.body[first:])]
        self.within.pop()
        self.in_class = outer
        return node

    def visit_ExceptHandler(self, node: ast.ExceptHandler) -> ast.AST:
        node.body = [ast.Expr(self._site(node, "here", ["reached"])), *(self.visit(one) for one in node.body)]
        return node

    def visit_match_case(self, node: ast.match_case) -> ast.AST:
        node.guard = self._test(node.guard) if node.guard else None
        reached = ast.Expr(self._site(node.pattern, "here", ["reached"]))
        node.body = [reached, *(self.visit(one) for one in node.body)]
        return node

    def _test(self, test: ast.expr) -> ast.expr:
        inner = test.operand if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not) else test
        known = isinstance(inner, ast.Compare) or (isinstance(inner, ast.Name) and inner.id == "TYPE_CHECKING")
        seen: ast.expr = self.visit(test)
        return seen if known else self._site(test, "if", "TF", seen)

    def visit_If(self, node: ast.If) -> ast.AST:
        node.test = self._test(node.test)
        node.body, node.orelse = [[self.visit(one) for one in part] for part in (node.body, node.orelse)]
        return node

    def visit_While(self, node: ast.While) -> ast.AST:
        node.test = self._test(node.test)
        node.body = [self.visit(one) for one in node.body]
        return node

    def visit_IfExp(self, node: ast.IfExp) -> ast.AST:
        node.test, node.body, node.orelse = self._test(node.test), self.visit(node.body), self.visit(node.orelse)
        return node

    def visit_comprehension(self, node: ast.comprehension) -> ast.AST:
        node.iter, node.ifs = self.visit(node.iter), [self._test(one) for one in node.ifs]
        return node

    def visit_Compare(self, node: ast.Compare) -> ast.AST:
        if len(node.ops) > 1 and not any(isinstance(one, ast.Call) for one in ast.walk(node.comparators[0])):
            pairs = zip([node.left, *node.comparators], node.ops, node.comparators, strict=False)
            parts = [ast.Compare(deepcopy(a), [op], [deepcopy(b)]) for a, op, b in pairs]
            joined: ast.AST = self.visit(
                ast.copy_location(ast.BoolOp(ast.And(), [ast.copy_location(p, node) for p in parts]), node)
            )
            return joined
        constant = any(map(_is_constant, (node.left, *node.comparators)))
        self.generic_visit(node)
        if len(node.ops) > 1:
            return self._site(node, "if", "TF", node)
        (op,), (right,) = node.ops, node.comparators
        if type(op) in ORDER:
            return self._site(node, ORDER[type(op)], "TF=+-" if constant else "TF=", node.left, right)
        return self._site(node, OTHER[type(op)], "TF", node.left, right)

    def visit_BoolOp(self, node: ast.BoolOp) -> ast.AST:
        if self.in_class:
            return node
        name, rests = "and" if isinstance(node.op, ast.And) else "or", deepcopy(node.values)
        values = [self.visit(one) for one in node.values]
        whole = self._site(node, name, [f"without {n + 1}" for n in range(len(values))])
        for n, value in enumerate(values[:8]):
            rest = rests[n + 1 :]
            after: ast.expr = ast.Constant(None)
            if rest and not any(map(_has_effects, rest)):
                joined = ast.BoolOp(node.op, rest) if len(rest) > 1 else rest[0]
                after = ast.Lambda(ast.arguments([], [], None, [], [], None, []), joined)
            last = ast.Constant(not rest)
            node.values[n] = ast.Call(whole.func, [whole.args[0], ast.Constant(1 << n), value, after, last], [])
        return node

    def visit_BinOp(self, node: ast.BinOp) -> ast.AST:
        self.generic_visit(node)
        if self.in_class or type(node.op) not in COMPUTED or isinstance(node.left, ast.JoinedStr):
            return node
        return self._site(node, COMPUTED[type(node.op)], ["swapped"], node.left, node.right)

    def visit_Call(self, node: ast.Call) -> ast.AST:
        called = node.func.id if isinstance(node.func, ast.Name) else getattr(node.func, "attr", "")
        defaults = self.defaults.get(called, {})
        node.func, node.args = self.visit(node.func), [self.visit(one) for one in node.args]
        for given in node.keywords:
            if given.arg in WORDS:
                continue
            given.value = self.visit(given.value)
            default = defaults.get(given.arg or "")
            if default is not None and not self.in_class:
                given.value = self._site(given.value, "given", ["not the default"], given.value, deepcopy(default))
        plain = len(node.args) > 1 and not any(isinstance(one, ast.Starred) for one in node.args)
        if called in ("min", "max") and isinstance(node.func, ast.Name) and plain and not node.keywords:
            return self._site(node, called, ["swapped"], *node.args)
        return node


def _is_constant(node: ast.expr) -> bool:
    if isinstance(node, ast.UnaryOp):
        return _is_constant(node.operand)
    name = node.id if isinstance(node, ast.Name) else getattr(node, "attr", "")
    return (isinstance(node, ast.Constant) and isinstance(node.value, int | float)) or str(name).isupper()


def _has_effects(node: ast.expr) -> bool:
    for one in ast.walk(node):
        called = one.func if isinstance(one, ast.Call) else None
        if isinstance(one, ast.NamedExpr | ast.Await | ast.Yield | ast.YieldFrom):
            return True
        if called is not None and (getattr(called, "id", "") or getattr(called, "attr", "")) in IMPURE:
            return True
    return False


def _defaults(trees: Sequence[ast.Module]) -> dict[str, dict[str, ast.Constant | None]]:
    """Of every function and class by its name, the constants that its arguments and fields are without being given."""
    found: dict[str, dict[str, ast.Constant | None]] = defaultdict(dict)
    for node in (node for tree in trees for node in ast.walk(tree)):
        pairs: list[tuple[str, ast.expr | None]] = []
        if isinstance(node, ast.FunctionDef):
            several = node.args.args[len(node.args.args) - len(node.args.defaults) :]
            pairs = [(arg.arg, value) for arg, value in zip(several, node.args.defaults, strict=True)]
            pairs += [(arg.arg, value) for arg, value in zip(node.args.kwonlyargs, node.args.kw_defaults, strict=True)]
        elif isinstance(node, ast.ClassDef):
            fields = [one for one in node.body if isinstance(one, ast.AnnAssign) and isinstance(one.target, ast.Name)]
            pairs = [(one.target.id, one.value) for one in fields if isinstance(one.target, ast.Name)]
        for name, value in pairs:
            known = found[node.name].get(name, value)  # type: ignore[attr-defined]
            same = isinstance(value, ast.Constant) and isinstance(known, ast.Constant) and known.value == value.value
            found[node.name][name] = value if same and isinstance(value, ast.Constant) else None  # type: ignore[attr-defined]
    return found


def instrumented() -> tuple[list[Site], dict[str, bytes]]:
    """Every site of the product, and the code of every file by its path."""
    paths = sorted(path for base in BASES for path in base.rglob("*.py") if "runner" not in path.parts)
    texts = {str(path): path.read_text("utf-8") for path in paths}
    kept = KEPT / f"{zlib.crc32(repr((texts, Path(__file__).read_text('utf-8'))).encode()):08x}.code"
    if kept.exists():
        rows, found = pickle.loads(kept.read_bytes())
        return [Site(*row) for row in rows], found
    trees = {path: ast.parse(text) for path, text in texts.items()}
    defaults, sites, codes = _defaults([*trees.values()]), list[Site](), dict[str, bytes]()
    for path, tree in trees.items():
        made = _Rewriter(str(Path(path).relative_to(ROOT)), sites, defaults).visit(tree)
        codes[path] = marshal.dumps(compile(ast.fix_missing_locations(made), path, "exec"))
    KEPT.mkdir(parents=True, exist_ok=True)
    kept.write_bytes(pickle.dumps(([tuple(site) for site in sites], codes)))
    return sites, codes


class Watch:
    """What was told apart since it was last emptied: a mask for each site."""

    def __init__(self) -> None:
        self.sites, self._codes = instrumented()
        self.full = bytes((1 << len(site.goals)) - 1 for site in self.sites)
        self.seen = bytearray(len(self.sites))

    def install(self) -> None:
        """From now on the product is imported with its sites."""
        for name, function in self._functions():
            setattr(builtins, f"_told_{name}", function)
        codes = self._codes

        class Loader(importlib.machinery.SourceFileLoader):
            def get_code(self, fullname: str) -> CodeType | None:
                found = codes.get(self.path)
                return marshal.loads(found) if found else super().get_code(fullname)

        class Finder:
            @staticmethod
            def find_spec(name: str, path: Any = None, target: ModuleType | None = None) -> Any:
                spec = importlib.machinery.PathFinder.find_spec(name, path) if name.startswith("deploykit") else None
                if spec and spec.origin in codes:
                    spec.loader = Loader(name, spec.origin)
                    return spec
                return None

        sys.meta_path.insert(0, Finder)

    def _functions(self) -> Iterator[tuple[str, Callable[..., Any]]]:
        yield from ((name, self._compared(getattr(operator, name))) for name in (*ORDER.values(), "eq", "ne"))
        yield from (("is", self._compared(operator.is_)), ("isnot", self._compared(operator.is_not)))
        yield "in", self._compared(lambda a, b: a in b)
        yield "notin", self._compared(lambda a, b: a not in b)
        yield from ((name, self._chosen(getattr(operator, name), SWAPPED[name])) for name in COMPUTED.values())
        yield from (("min", self._chosen(min, max)), ("max", self._chosen(max, min)))
        yield from (("and", self._clause(ends=False)), ("or", self._clause(ends=True)))
        seen = self.seen

        def condition(n: int, value: Any) -> Any:
            if seen[n] != 3:
                seen[n] |= 1 if value else 2
            return value

        def here(n: int) -> None:
            seen[n] = 1

        def given(n: int, value: Any, default: Any) -> Any:
            if not seen[n]:
                seen[n] = _differs(lambda: value, default)
            return value

        yield from (("if", condition), ("here", here), ("given", given))

    def _compared(self, decide: Callable[[Any, Any], Any]) -> Callable[[int, Any, Any], Any]:
        seen, full = self.seen, self.full

        def told(n: int, a: Any, b: Any) -> Any:
            result = decide(a, b)
            if seen[n] != full[n]:
                seen[n] |= _outcomes(result)
                if full[n] > 3:
                    seen[n] |= _neighbours(decide, a, b, result) & full[n]
            return result

        return told

    def _clause(self, *, ends: bool) -> Callable[..., Any]:
        """``ends``: the truth of a clause after which no further one is asked."""
        seen = self.seen

        def told(n: int, bit: int, value: Any, rest: Callable[[], Any] | None, last: bool) -> Any:
            if not seen[n] & bit and _holds(value) == ends:
                other = last or (rest and _differs(lambda: _truth(rest(), value), _truth(value, value)))
                seen[n] |= bit if other else 0
            return value

        return told

    def _chosen(self, choose: Callable[..., Any], other: Callable[..., Any]) -> Callable[..., Any]:
        seen = self.seen

        def told(n: int, *given: Any) -> Any:
            result = choose(*given)
            if not seen[n]:
                seen[n] = _differs(lambda: other(*given), result)
            return result

        return told


def _holds(value: Any) -> bool:
    try:
        return bool(value)
    except ValueError:  # an array
        return True


def _outcomes(result: Any) -> int:
    if result is True or result is False:
        return 1 if result else 2
    try:
        return bool(np.any(result)) | (not np.all(result)) << 1
    except Exception:
        return 0


def _neighbours(decide: Callable[[Any, Any], Any], a: Any, b: Any, result: Any) -> int:
    """Are both equal; would a greater and a smaller constant decide otherwise."""
    try:
        mask = bool(np.any(a == b)) << 2
        whole = isinstance(b, int | np.integer) and abs(int(b)) < 1000
        greater, smaller = (b + 1, b - 1) if whole else (b * 2, b / 2)
    except Exception:
        return 24  # no number
    for bit, other in ((8, greater), (16, smaller)):
        try:
            mask |= bit * bool(np.any(decide(a, other) != result))
        except Exception:
            mask |= bit
    return mask


def _truth(value: Any, like: Any) -> Any:
    return bool(value) if isinstance(like, bool | np.bool_) or value is None or not value else value


def _differs(other: Callable[[], Any], result: Any) -> int:
    try:
        with np.errstate(all="ignore"):
            found = other()
            return int(found is not result and bool(np.any(found != result)))
    except Exception:
        return 1


WATCH: list[Watch] = []


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests() -> None:
    """Before anything of the product is imported."""
    WATCH.append(Watch())
    WATCH[0].install()


BY_TEST: dict[str, tuple[float, bytes]] = {}


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    """Of each test of the wide net on its own, so that it is known which one notices what."""
    if "/wide/" not in item.nodeid:
        return (yield)
    watch, before, began = WATCH[0], bytes(WATCH[0].seen), time.process_time()
    watch.seen[:] = bytes(len(before))
    try:
        return (yield)
    finally:
        BY_TEST[item.nodeid] = time.process_time() - began, zlib.compress(bytes(watch.seen), 1)
        watch.seen[:] = bytes(a | b for a, b in zip(before, watch.seen, strict=True))


def pytest_unconfigure() -> None:
    """Keeps what this process saw."""
    KEPT.mkdir(parents=True, exist_ok=True)
    (KEPT / f"{os.getpid()}.seen").write_bytes(pickle.dumps((len(WATCH[0].sites), bytes(WATCH[0].seen), BY_TEST)))


def kept(folder: Path, sites: Sequence[Site]) -> tuple[bytes, dict[str, tuple[float, bytes]]]:
    """What all the processes saw, and each test on its own, with its seconds."""
    whole, single = np.zeros(len(sites), np.uint8), dict[str, tuple[float, bytes]]()
    for path in sorted(folder.glob("*.seen")):
        count, seen, by_test = pickle.loads(path.read_bytes())
        if count != len(sites):
            sys.exit(f"{path} was seen on other code: remove it, and run the tests under told_apart again")
        whole |= np.frombuffer(seen, np.uint8)
        single |= by_test
    return whole.tobytes(), single


def main() -> None:
    """Prints goals, told apart and not by room; of a room that is asked for, where they are not."""
    sites, _ = instrumented()
    seen, _ = kept(KEPT, sites)
    if only := sys.argv[1:]:
        for site, mask in zip(sites, seen, strict=True):
            missed = [goal for n, goal in enumerate(site.goals) if not mask >> n & 1]
            if missed and site.path.startswith(tuple(only)):
                print(f"{site.path}:{site.line} {site.function} {site.kind} {len(site.goals)}: {', '.join(missed)}")
        return
    goals, told = Counter[str](), Counter[str]()
    for site, mask in zip(sites, seen, strict=True):
        for room in ("/".join(site.path.split("/")[:2]), "all"):
            goals[room] += len(site.goals)
            told[room] += mask.bit_count()
    for room, count in goals.items():
        print(f"{room:32} {count:6} {told[room]:6} {count - told[room]:6} {100 * told[room] / count:5.1f} %")


if __name__ == "__main__":
    main()
