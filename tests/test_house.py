"""The house rules that no linter knows: layout, rooms, vendor words, file sizes, what the wheel holds."""

import ast
import importlib
import pkgutil
import re
import subprocess
import sys
import tomllib
import zipfile
from collections import Counter
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

import deploykit

ROOT = Path(__file__).parents[1]
SOURCES = [path for folder in ("deploykit", "backends", "templates") for path in (ROOT / folder).rglob("*.py")]
VENDORS = re.compile(r"\b(qualcomm|qnn|htp|qairt|snapdragon|hexagon|amd|quark|vitis|ryzen|versal)\b", re.IGNORECASE)


def test_the_core_holds_no_vendor_word() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()}"
        for path in (ROOT / "deploykit").rglob("*.py")
        for number, line in enumerate(path.read_text("utf-8").splitlines(), 1)
        if VENDORS.search(line)
    ]
    # Names of issue threads and packages that a fact is known from, and the help text's examples, are sources.
    marks = ("qualcomm/aimet#", "onnxruntime-qnn", "amd-quark")
    assert [line for line in found if not any(mark in line for mark in marks)] == []


def test_what_the_core_knows_of_failures_cites_no_vendor() -> None:
    """A vendor's tracker is a source in its adapter's own data (``[[witness]]``), never in the core's."""
    paths = sorted((ROOT / "deploykit" / "tables" / "data").rglob("*.toml"))
    assert paths and [path.name for path in paths if VENDORS.search(path.read_text("utf-8"))] == []


def test_the_product_imports_nothing_of_the_laboratory() -> None:
    rooms = {path.stem for path in (ROOT / "tests" / "lab").iterdir() if path.is_dir() or path.suffix == ".py"}
    lab = re.compile(rf"^\s*(?:from|import) (?:{'|'.join(map(re.escape, sorted(rooms)))})\b", re.MULTILINE)
    assert "atlas" in rooms
    assert [str(path) for path in SOURCES if lab.search(path.read_text("utf-8"))] == []


def test_every_public_module_says_what_it_offers() -> None:
    public = [path for path in SOURCES if not path.name.startswith("_")]
    assert [str(path) for path in public if "__all__" not in path.read_text("utf-8")] == []


def test_what_a_module_offers_exists() -> None:
    modules = pkgutil.walk_packages(deploykit.__path__, "deploykit.")
    for name in [module.name for module in modules if "__main__" not in module.name]:
        module = importlib.import_module(name)
        assert [offer for offer in getattr(module, "__all__", ()) if not hasattr(module, offer)] == [], name


def test_what_the_second_tier_names_exists() -> None:
    for line in (ROOT / "tests" / "second_tier.txt").read_text("utf-8").splitlines()[1:]:
        path, _, name = line.partition("::")
        assert f"def {name}(" in (ROOT / path).read_text("utf-8"), line


@pytest.mark.heavy
def test_the_wheel_holds_every_source_and_data_file(tmp_path: Path) -> None:
    """An unanchored ignore line would silently drop template or data folders."""
    command = [sys.executable, "-m", "build", "--wheel", "--outdir", str(tmp_path), str(ROOT)]
    subprocess.run(command, check=True, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    names = set(zipfile.ZipFile(wheel).namelist())
    for root in ("deploykit", "backends", "templates"):
        base = ROOT if root == "deploykit" else ROOT / root
        found = (path for path in (ROOT / root).rglob("*") if path.is_file() and "__pycache__" not in path.parts)
        wanted = {path.relative_to(base).as_posix() for path in found}
        assert wanted <= names, sorted(wanted - names)


def test_the_top_level_holds_nothing_else() -> None:
    """What is downloaded or built beside the sources is not taken in with them."""
    if not (ROOT / ".git").exists():
        pytest.skip("no checkout: what is tracked is not known")
    done = subprocess.run(["git", "-C", str(ROOT), "ls-files"], capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"git does not tell: {done.stderr.strip()}")  # somebody else's checkout, or no git
    kept = {".ci", ".gitignore", "LICENSE", "README.md", "backends", "deploykit", "docs", "pyproject.toml", "templates"}
    assert {line.partition("/")[0] for line in done.stdout.splitlines()} == kept | {"tests"}


MOST_TOKENS = 516_500
MOST_FILES = 350
"""What is reached, with room for a few rules and rewrites of those who extend it; both go down.

Any other change that needs more says what it replaces.
"""
TOKEN = re.compile(
    r"""(?s:\w{0,2}(\"{3}|'{3})(?:\\.|(?!\1).)*\1)|\w{0,2}(?:"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*')"""  # strings
    r"""|(?P<comment>\#.*)|(?:\d[\w.]*(?:(?<=[eE])[+-]\d+)?|\.\d\w*)|\w+"""
    r"""|->|:=|\.{3}|!=|(?:\*\*|//|>>|<<|[-+*/%&|^=<>@])=?|[^\s\w\\]"""
)
"""As ``tokenize`` of Python 3.11 has them, in a third of its time."""
DOCSTRING = re.compile(r"""(?:\A|:(?:[ \t]*\#.*)?\n)\s*[rR]?(?:\"{3}|'{3}|"(?!"))""")


def test_size_stays_within_its_band() -> None:
    texts = [path.read_text("utf-8") for path in SOURCES]
    tokens = sum(not found["comment"] for text in texts for found in TOKEN.finditer(text))
    assert tokens - sum(len(DOCSTRING.findall(text)) for text in texts) <= MOST_TOKENS
    folders = Counter(path.parent for path in SOURCES)
    assert len(SOURCES) <= MOST_FILES and max(folders.values()) <= 24


@pytest.mark.heavy
def test_functions_and_classes_stay_within_their_bands() -> None:
    """How long functions are, and that a class name is that of one class."""
    lengths, classes, private, calls = list[int](), Counter[str](), list[tuple[str, str, int]](), Counter[str]()
    for path in SOURCES:
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                length = (node.end_lineno or node.lineno) - node.lineno + 1
                lengths.append(length)
                if node.name.startswith("_") and not node.name.startswith("__"):
                    private.append((str(path), node.name, length))
            elif isinstance(node, ast.ClassDef):
                classes[node.name] += 1
            elif isinstance(node, ast.Name | ast.Attribute):
                calls[f"{path} {node.id if isinstance(node, ast.Name) else node.attr}"] += 1
    alone = [length for path, name, length in private if calls[f"{path} {name}"] == 1]
    assert max(lengths) <= 120
    assert len(alone) <= 0.2 * len(lengths), "private helpers with one caller"
    assert sum(length <= 7 for length in alone) <= 0.05 * len(lengths), "of these six lines or fewer"
    assert [name for name, count in classes.items() if count > 1] == []


def test_no_files_import_each_other_in_a_circle() -> None:
    """Within a room as well: a module that needs another that needs it is one module, or three."""
    files = {
        ".".join(path.relative_to(base).with_suffix("").parts).removesuffix(".__init__"): path
        for base in (ROOT, ROOT / "backends")
        for path in base.glob("deploykit*/**/*.py")
    }
    graph = {
        name: {target for m in at_top(path) if (target := m if m in files else m.rpartition(".")[0]) != name}
        for name, path in files.items()
    }
    TopologicalSorter(graph).prepare()  # raises an error that names the circle


def at_top(path: Path) -> Iterator[str]:
    """Imports that run when the module is imported: not those in functions or for type checking."""
    lines = re.findall(r"(?m)^(?:from|import) [^(\n]*(?:\([^)]*\))?", path.read_text("utf-8"))
    for node in ast.parse("\n".join(lines)).body:
        if isinstance(node, ast.ImportFrom) and node.module:
            yield from (f"{node.module}.{name.name}" for name in node.names)
        elif isinstance(node, ast.Import):
            yield from (name.name for name in node.names)


def test_there_are_few_rooms_and_the_page_names_each() -> None:
    """They are those of import-linter, from the top floor down."""
    config = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["importlinter"]["contracts"][0]
    rooms = [name.strip() for layer in config["layers"] for name in layer.split("|") if "__" not in name]
    exempt = {"__init__.py", "__main__.py", "py.typed", "__pycache__"}
    entries = [path for path in (ROOT / "deploykit").iterdir() if path.name not in exempt]
    assert sorted(path.name.removesuffix(".py") for path in entries) == sorted(rooms)
    text = (ROOT / "docs" / "architecture.md").read_text("utf-8")
    assert [room for room in rooms if f"`{room}" not in text] == []
    named = re.findall(r"`((?:deploykit|backends|tests)/[\w/.]+)`", text)
    assert len(named) > 10 and [name for name in named if not (ROOT / name).exists()] == []
