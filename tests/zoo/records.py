"""What is recorded of the zoo: models, rows, and the rows that are not as they should be, each with its reason."""

import json
import tomllib
import zipfile
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from .rows import Row

DATA = Path(__file__).parents[1] / "data" / "zoo"
ROWS, EXCEPTIONS = DATA / "rows.json", DATA / "exceptions.toml"


@dataclass(frozen=True, slots=True, kw_only=True)
class Short:
    """Rows that are not good: in what, what they should be, and why they are not."""

    model: str
    settings: tuple[str, ...]
    should: str
    reason: str


def archives() -> list[Path]:
    return sorted(DATA.glob("*.zip"))


def info(archive: Path) -> Mapping[str, Any]:
    with zipfile.ZipFile(archive) as packed:
        found: Mapping[str, Any] = json.loads(packed.read("info.json"))
    return found


def recorded() -> list[Row]:
    return [Row(**row) for row in json.loads(ROWS.read_text("utf-8"))]


def keep(rows: Iterable[Row]) -> None:
    """In the order of the models' names, each one's rows in the order of the columns."""
    lines = ",\n".join(json.dumps(asdict(row)) for row in sorted(rows, key=lambda row: row.model))
    ROWS.write_text(f"[\n{lines}\n]\n", encoding="utf-8")


def exceptions() -> list[Short]:
    found = tomllib.loads(EXCEPTIONS.read_text("utf-8"))["short"]
    return [Short(**{**row, "settings": tuple(row["settings"])}) for row in found]
