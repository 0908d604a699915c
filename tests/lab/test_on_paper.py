"""The records of what really ran, and that the page's tables follow from them."""

from __future__ import annotations

import importlib.util
import json
import sys
from collections import Counter
from pathlib import Path
from types import ModuleType

import pytest

TESTS = Path(__file__).parents[1]
RECORD = TESTS / "lab" / "evidence" / "three_ways.json"


@pytest.fixture(scope="module")
def on_paper() -> ModuleType:
    spec = importlib.util.spec_from_file_location("on_paper", TESTS / "lab" / "benchmarks" / "on_paper.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def test_the_page_says_what_the_records_say(on_paper: ModuleType) -> None:
    page = (TESTS / "lab" / "evidence" / "scale.md").read_text("utf-8")
    assert on_paper.filled(page) == page, "python tests/lab/benchmarks/on_paper.py --write"


def test_every_way_made_the_same_of_every_cell() -> None:
    record = json.loads(RECORD.read_text("utf-8"))
    assert len(record["cells"]) == 12 * 5 * 2 == len({cell["cell"] for cell in record["cells"]})
    # The vendor's compiler writes some binaries in one of several ways; all else is the same bytes.
    assert all(name.endswith("_qnn.bin") for files in dict(record["different"]).values() for name in files)
    verdicts = Counter(cell["verdict"] for cell in record["cells"])
    for name, way in record["ways"].items():
        assert {word: way[word] for word in verdicts} == dict(verdicts), name
        assert way.get("killed", 1) == 1  # the worker that was to die did


def test_costs_are_added_up_model_by_model(on_paper: ModuleType) -> None:
    seconds = {"a/x-htp": 4.0, "a/x-ort": 6.0, "a/y-htp": 1.0, "a/y-ort": 2.0}
    cells = [{"cell": name, "bytes": 1000, "processor_seconds": {"local": spent}} for name, spent in seconds.items()]
    local = {"processor_seconds": 15.0, "files": 8, "cache_bytes": 10, "matrix.json_bytes": 40, "matrix.html_bytes": 4}
    fleet = on_paper.read_fleet({"ways": {"local": local}, "cells": cells})
    assert (fleet.start, fleet.first, fleet.later) == (2.0, {"htp": 4.0, "ort": 6.0}, {"htp": 1.0, "ort": 2.0})
    assert fleet.shared(models=10, targets=6) == 10 * (2 + 4 + 6 + 2 * (1 + 2))  # three devices, two backends
    assert fleet.alone(models=10, targets=6) == 10 * 3 * (2 + 4 + 2 + 6)
    assert fleet.disk(models=10, targets=6) == 10 * 6 * 1000
