"""The known errors of Vitis AI, Ryzen AI and Quark, from data files; wiring them into the backend is not its job."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from deploykit.tables.known_errors import Catalog, load_catalog

__all__ = ["known_errors"]

_FOLDER = Path(__file__).parent / "data" / "known_errors"


@cache
def known_errors() -> Catalog:
    """Every known error of these tools, those without a message included."""
    return load_catalog(sorted(_FOLDER.glob("*.toml")))
