"""Answers of slow tools that are kept between runs, by a hash of what was asked; losing them costs time and no more.

It knows no tool. A damaged or foreign file is no answer.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import Any

__all__ = ["Remembered", "cache_folder", "key_of"]


def cache_folder() -> Path:
    """Where they live: ``DEPLOYKIT_CACHE``, else the user's cache folder (``XDG_CACHE_HOME`` honoured)."""
    given = os.environ.get("DEPLOYKIT_CACHE")
    if given:
        return Path(given)
    cache = os.environ.get("XDG_CACHE_HOME")
    return (Path(cache) if cache else Path.home() / ".cache") / "deploykit"


def key_of(content: bytes, asked: Mapping[str, Any]) -> str:
    """The name of an answer: what was looked at, and everything else that the answer depends on, as JSON values."""
    digest = sha256(json.dumps(asked, sort_keys=True).encode())
    digest.update(content)
    return digest.hexdigest()


class Remembered:
    """The answers of one kind, each a JSON object in a file of its own below ``cache_folder()``."""

    def __init__(self, kind: str) -> None:
        self.folder = cache_folder() / kind

    def get(self, key: str) -> dict[str, Any] | None:
        """The answer under a key, None where there is none that can be read."""
        try:
            found = json.loads((self.folder / f"{key}.json").read_text("utf-8"))
        except (OSError, ValueError, RecursionError):
            return None
        return found if isinstance(found, dict) else None

    def put(self, key: str, answer: Mapping[str, Any]) -> None:
        """Keep an answer, whole or not at all; a folder that cannot be written to keeps none."""
        with suppress(OSError):
            self.folder.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(dir=self.folder) as place:
                fresh = Path(place, "answer")
                fresh.write_text(json.dumps(answer), "utf-8")
                fresh.replace(self.folder / f"{key}.json")
