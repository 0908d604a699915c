"""The triggering and the clean case of every rule, from the test modules that have them as ``CASES``."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

__all__ = ["cases", "module_at"]
TESTS = Path(__file__).parents[1]
_CODE = re.compile(r"[A-Z]{2,3}\d{3}")


@cache
def module_at(path: str) -> ModuleType:
    """A module of the tests, by its path in their folder."""
    name = "cases_of_" + "_".join(Path(path).with_suffix("").parts)
    spec = importlib.util.spec_from_file_location(name, TESTS / path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@cache
def cases() -> Mapping[str, tuple[Any, Any]]:
    """By rule code: (triggering, clean), in any of the forms in which the modules have them."""
    found: dict[str, tuple[Any, Any]] = {}
    for path in sorted(TESTS.rglob("test_*.py")):
        if re.search(r"^CASES\b", path.read_text("utf-8"), re.MULTILINE):
            mapping = module_at(str(path.relative_to(TESTS))).CASES
            if isinstance(mapping, Mapping):
                found |= {str(code): pair for code, pair in mapping.items() if _CODE.fullmatch(str(code))}
    return found
