"""The house rules that no linter knows: layout, vendor words, file sizes, what the wheel holds."""

import ast
import importlib
import io
import pkgutil
import re
import subprocess
import sys
import tokenize
import zipfile
from collections import Counter
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
    exempt = {"__init__.py", "__main__.py"}
    missing = [
        str(path.relative_to(ROOT))
        for path in SOURCES
        if path.name not in exempt and not path.name.startswith("_") and "__all__" not in path.read_text("utf-8")
    ]
    assert missing == []


def test_what_a_module_offers_exists() -> None:
    modules = pkgutil.walk_packages(deploykit.__path__, "deploykit.")
    for name in [module.name for module in modules if "__main__" not in module.name]:
        module = importlib.import_module(name)
        assert [offer for offer in getattr(module, "__all__", ()) if not hasattr(module, offer)] == [], name


@pytest.mark.heavy
def test_the_wheel_holds_every_source_and_data_file(tmp_path: Path) -> None:
    """An unanchored ignore line would silently drop template or data folders."""
    subprocess.run(
        [sys.executable, "-m", "build", "--wheel", "--outdir", str(tmp_path), str(ROOT)],
        check=True,
        capture_output=True,
    )
    (wheel,) = tmp_path.glob("*.whl")
    names = set(zipfile.ZipFile(wheel).namelist())
    for root in ("deploykit", "backends", "templates"):
        base = ROOT if root == "deploykit" else ROOT / root
        wanted = {
            path.relative_to(base).as_posix()
            for path in (ROOT / root).rglob("*")
            if path.is_file() and "__pycache__" not in path.parts
        }
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


MOST_TOKENS = 527_840
MOST_FILES = 350
"""What is reached, with a little room; both go down. A change that needs more says what it made unnecessary."""


def test_size_and_shape_stay_within_their_bands() -> None:
    """How much there is, how long functions are, and that a class name is that of one class."""
    lengths, classes, private, calls = list[int](), Counter[str](), list[tuple[str, str, int]](), Counter[str]()
    tokens = 0
    for path in SOURCES:
        text = path.read_text("utf-8")
        tree = ast.parse(text)
        layout = (tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER)
        tokens += sum(token.type not in layout for token in tokenize.generate_tokens(io.StringIO(text).readline))
        for node in ast.walk(tree):
            tokens -= _has_docstring(node)
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
    folders = Counter(path.parent for path in SOURCES)
    assert tokens <= MOST_TOKENS
    assert len(SOURCES) <= MOST_FILES and max(folders.values()) <= 24 and max(lengths) <= 120
    assert len(alone) <= 0.2 * len(lengths), "private helpers with one caller"
    assert sum(length <= 7 for length in alone) <= 0.05 * len(lengths), "of these six lines or fewer"
    assert [name for name, count in classes.items() if count > 1] == []


def _has_docstring(node: ast.AST) -> bool:
    if not isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
        return False
    return ast.get_docstring(node, clean=False) is not None
