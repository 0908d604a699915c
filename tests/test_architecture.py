"""The picture in docs/architecture.md is drawn from the real imports; the rooms and files are as the page says.

After a change that is wanted: ``DEPLOYKIT_WRITE_DOCS=1 pytest tests/test_architecture.py``.
"""

from __future__ import annotations

import ast
import os
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

from deploykit.contract import optional

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "architecture.md"
START, END = "<!-- drawn from the imports -->\n", "<!-- end of the drawing -->\n"
ADAPTERS = ("deploykit_qualcomm", "deploykit_qnn_htp", "deploykit_ort_qnn", "deploykit_vitis_ai")
MOST_ROOMS = 16


def rooms() -> list[str]:
    """The rooms of the core from the top floor down, as import-linter has them."""
    config = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    contract = config["tool"]["importlinter"]["contracts"][0]
    return [name.strip() for layer in contract["layers"] for name in layer.split("|") if "__" not in name]


def room_of(module: str) -> str:
    """The room of a module of the core, the package of one of an adapter, "" for anything else."""
    first, _, rest = module.partition(".")
    if first in ADAPTERS:
        return first
    return rest.partition(".")[0] if first == "deploykit" else ""


def imports() -> dict[str, set[str]]:
    """Which room imports from which others, anywhere in its files."""
    found: dict[str, set[str]] = {}
    for base in (ROOT / "deploykit", *(ROOT / "backends" / name for name in ADAPTERS)):
        for path in sorted(base.rglob("*.py")):
            parts = path.relative_to(base.parent).with_suffix("").parts
            room = room_of(".".join(parts))
            for module in imported(path):
                other = room_of(module)
                if room and other and other != room:
                    found.setdefault(room, set()).add(other)
    known = {*rooms(), *ADAPTERS}
    return {room: others & known for room, others in found.items() if room in known}


def imported(path: Path) -> Iterator[str]:
    """The modules that a file imports; of a package, the names taken from it may be modules too."""
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module:
            yield from (f"{node.module}.{name.name}" for name in node.names)
        elif isinstance(node, ast.Import):
            yield from (name.name for name in node.names)


def drawing() -> str:
    """The rooms with an arrow for each import that no longer way explains."""
    direct = imports()
    below: dict[str, set[str]] = {}

    def reach(room: str) -> set[str]:
        if room not in below:
            below[room] = set()
            for other in direct.get(room, ()):
                below[room] |= {other} | reach(other)
        return below[room]

    order = [*ADAPTERS[1:], ADAPTERS[0], *rooms()]
    lines = ["```mermaid", "flowchart TD"]
    for room in order:
        others = direct.get(room, set())
        plain = [other for other in order if other in others and not any(other in reach(o) for o in others - {other})]
        lines += [f"    {room} --> {other}" for other in plain]
    return "\n".join([*lines, "```", ""])


def test_the_picture_shows_the_imports() -> None:
    text = PAGE.read_text("utf-8")
    before, rest = text.split(START)
    _, after = rest.split(END)
    wanted = before + START + drawing() + END + after
    if os.environ.get("DEPLOYKIT_WRITE_DOCS"):
        PAGE.write_text(wanted, "utf-8")
    assert PAGE.read_text("utf-8") == wanted, "run: DEPLOYKIT_WRITE_DOCS=1 pytest tests/test_architecture.py"


def test_no_arrow_goes_up() -> None:
    order = rooms()
    up = [
        (room, other)
        for room, others in imports().items()
        for other in others
        if room in order and (other not in order or order.index(other) < order.index(room))
    ]
    assert up == []


def test_there_are_few_rooms_and_the_page_names_each() -> None:
    exempt = {"__init__.py", "__main__.py", "py.typed", "__pycache__"}
    entries = [path for path in (ROOT / "deploykit").iterdir() if path.name not in exempt]
    present = sorted(path.name.removesuffix(".py") for path in entries)
    # The ground is one row of the plan: what was found, and errors, which is a file and no room.
    assert len({*present} - {"errors"}) <= MOST_ROOMS
    assert present == sorted(rooms())
    text = PAGE.read_text("utf-8")
    assert [room for room in present if f"`{room}" not in text] == []


def test_no_files_import_each_other_in_a_circle() -> None:
    """Within a room as well: a module that needs another that needs it is one module, or three."""
    files = product_files()
    graph = {
        name: {target for m in at_top(path) if (target := known(m, files)) != name} for name, path in files.items()
    }
    assert list(circles(graph)) == []


def at_top(path: Path) -> Iterator[str]:
    """Imports that run when the module is imported: not those in functions or for type checking."""
    for node in ast.parse(path.read_text("utf-8")).body:
        if isinstance(node, ast.ImportFrom) and node.module:
            yield from (f"{node.module}.{name.name}" for name in node.names)
        elif isinstance(node, ast.Import):
            yield from (name.name for name in node.names)


def known(module: str, files: dict[str, Path]) -> str:
    return module if module in files else module.rpartition(".")[0]


def circles(graph: dict[str, set[str]]) -> Iterator[list[str]]:
    """Every way back to where a walk came from."""
    done: set[str] = set()

    def walk(name: str, trail: list[str]) -> Iterator[list[str]]:
        if name in trail:
            yield trail[trail.index(name) :]
        elif name not in done:
            for other in sorted(graph.get(name, ())):
                yield from walk(other, [*trail, name])
            done.add(name)

    for name in sorted(graph):
        yield from walk(name, [])


HEAVY = {"numpy", "onnx", "onnxruntime", "onnxruntime_qnn", "google"}
LAZY = re.compile(r"deploykit|deploykit\.api(\.\w+)?|deploykit\.cli(\.\w+)?|deploykit_\w+\.backend")
"""The places whose imports are late by design: see docs/architecture.md."""
LATE_ELSEWHERE = {
    ("deploykit.contract.plugins", "deploykit.contract.known_errors"): "a query asks for no known error",
    ("deploykit.contract.requests", "deploykit.contract.backend"): "help of a command makes no request",
    ("deploykit.contract.targets", "difflib"): "only an unknown name pays for it",
    ("deploykit.fleet.cluster", "distributed"): "an extra of the installation",
    ("deploykit.packages.sbom", "cyclonedx.model"): "an extra of the installation",
    ("deploykit.packages.sbom", "cyclonedx.model.bom"): "an extra of the installation",
    ("deploykit.packages.sbom", "cyclonedx.model.component"): "an extra of the installation",
    ("deploykit.packages.sbom", "cyclonedx.output.json"): "an extra of the installation",
    ("deploykit.packages.sbom", "packageurl"): "an extra of the installation",
    ("deploykit.queries.capability_answers", "difflib"): "only an unknown name pays for it",
    ("deploykit.queries.kept_rows", "deploykit.system.remembered"): "only what is written down again needs it",
    ("deploykit.system.platforms", "subprocess"): "only Windows ends programs by another one",
    ("deploykit.tables.reading", "tomllib"): "plain tables are read without it",
    ("deploykit.numerics.reference", "onnx.reference"): "only models before operator set 7 are run by it",
    ("deploykit.deciding.quantizing.child", "decoding"): "only a job with images needs it",
    ("deploykit.numerics.samples.decoding", "PIL"): "an extra of the installation",
    ("deploykit.system.platforms", "ctypes"): "only a child that is to end with its parent needs it",
    ("deploykit.system.tabular", "pandas"): "only who asks for a table has it",
    ("deploykit_ort_qnn.context_reader", "onnxruntime_qnn"): "an extra of the installation",
    ("deploykit_ort_qnn.session", "onnxruntime_qnn"): "an extra of the installation",
    ("deploykit_ort_qnn.worker", "onnx"): "a worker that runs or reads what was compiled loads no model itself",
}
"""Whose import of what is late, and why."""


def test_an_import_is_late_for_a_reason() -> None:
    """Outside of the lazy places only what brings NumPy or ONNX is late, and only where light modules need it."""
    files = product_files()
    graph = {name: {known(module, files) or module for module in at_top(path)} for name, path in files.items()}
    heavy = {name for name in files if HEAVY & {module.partition(".")[0] for module in reached(name, graph)}}
    late = {(name, module) for name, path in files.items() if not LAZY.fullmatch(name) for module in in_functions(path)}
    unexplained = [
        (name, module)
        for name, module in sorted(late - {*LATE_ELSEWHERE})
        if module.partition(".")[0] != "importlib"  # importlib.metadata: see deploykit.contract.entrypoints
        and (name in heavy or not (module.partition(".")[0] in HEAVY or known(module, files) in heavy))
    ]
    assert not unexplained, "\n".join(map(str, unexplained))
    assert {*LATE_ELSEWHERE} <= late, "an explanation that nothing needs any more"


def product_files() -> dict[str, Path]:
    return {
        ".".join(path.relative_to(base).with_suffix("").parts).removesuffix(".__init__"): path
        for base in (ROOT, ROOT / "backends")
        for path in base.glob("deploykit*/**/*.py")
    }


def reached(name: str, graph: dict[str, set[str]]) -> set[str]:
    """Every module that importing one brings, the packages above each included."""
    found: set[str] = set()
    waiting = [name]
    while waiting:
        module = waiting.pop()
        if module not in found:
            found.add(module)
            above = module.rpartition(".")[0]
            waiting += [*graph.get(module, ()), *([above] if module in graph and above else ())]
    return found


def in_functions(path: Path) -> Iterator[str]:
    """What is imported when a function is called."""
    functions = ast.FunctionDef | ast.AsyncFunctionDef
    for function in (node for node in ast.walk(ast.parse(path.read_text("utf-8"))) if isinstance(node, functions)):
        for node in ast.walk(function):
            if isinstance(node, ast.ImportFrom) and node.module:
                yield node.module
            elif isinstance(node, ast.Import):
                yield from (name.name for name in node.names)


def test_the_page_lists_what_a_backend_may_offer() -> None:
    rows = re.findall(r"^\| `(\w+)` \| `(\w+)` \|", PAGE.read_text("utf-8"), re.MULTILINE)
    offered = {
        (method, name)
        for name in optional.__all__
        for method in vars(getattr(optional, name))
        if not method.startswith("_") and method != "devices"
    }
    assert offered == set(rows)
