"""The rooms are those of import-linter and of docs/architecture.md, and no file imports another in a circle."""

import ast
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "architecture.md"


def rooms() -> list[str]:
    """The rooms of the core from the top floor down, as import-linter has them."""
    config = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    contract = config["tool"]["importlinter"]["contracts"][0]
    return [name.strip() for layer in contract["layers"] for name in layer.split("|") if "__" not in name]


def test_there_are_few_rooms_and_the_page_names_each() -> None:
    exempt = {"__init__.py", "__main__.py", "py.typed", "__pycache__"}
    entries = [path for path in (ROOT / "deploykit").iterdir() if path.name not in exempt]
    present = sorted(path.name.removesuffix(".py") for path in entries)
    assert present == sorted(rooms())
    text = PAGE.read_text("utf-8")
    assert [room for room in present if f"`{room}" not in text] == []


def test_every_file_and_folder_the_page_names_exists() -> None:
    named = re.findall(r"`((?:deploykit|backends|tests)/[\w/.]+)`", PAGE.read_text("utf-8"))
    assert len(named) > 10 and [name for name in named if not (ROOT / name).exists()] == []


def test_no_files_import_each_other_in_a_circle() -> None:
    """Within a room as well: a module that needs another that needs it is one module, or three."""
    files = product_files()
    graph = {
        name: {target for m in at_top(path) if (target := m if m in files else m.rpartition(".")[0]) != name}
        for name, path in files.items()
    }
    assert list(circles(graph)) == []


def at_top(path: Path) -> Iterator[str]:
    """Imports that run when the module is imported: not those in functions or for type checking."""
    for node in ast.parse(path.read_text("utf-8")).body:
        if isinstance(node, ast.ImportFrom) and node.module:
            yield from (f"{node.module}.{name.name}" for name in node.names)
        elif isinstance(node, ast.Import):
            yield from (name.name for name in node.names)


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


def product_files() -> dict[str, Path]:
    return {
        ".".join(path.relative_to(base).with_suffix("").parts).removesuffix(".__init__"): path
        for base in (ROOT, ROOT / "backends")
        for path in base.glob("deploykit*/**/*.py")
    }
