"""The rooms are those of import-linter and of docs/architecture.md."""

import re
import tomllib
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
