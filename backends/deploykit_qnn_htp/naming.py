"""Names made safe: for messages, for files of the package, for graphs. The user's own names are never changed."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

__all__ = ["graph_name", "listed"]


def listed(names: Iterable[str], *, most: int = 12) -> str:
    """Names for a message: the first few, and how many more there are."""
    ordered = list(names)
    rest = len(ordered) - most
    return ", ".join(ordered[:most]) + (f" and {rest} more" if rest > 0 else "")


def graph_name(model: Path) -> str:
    """The graph's name: the model's stem with everything but letters, digits and underscores replaced.

    The tools derive C symbols and file names from it, so it starts with a letter.
    """
    name = re.sub(r"[^A-Za-z0-9_]+", "_", model.stem).strip("_")
    return name if name and name[0].isalpha() else f"model_{name}".rstrip("_")
