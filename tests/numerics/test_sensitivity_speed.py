"""A sensitivity analysis shares work: the ratio to one whole run per tensor, measured side by side."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest


@pytest.mark.heavy
def test_a_thousand_operators_are_analysed_five_times_faster_than_by_whole_runs() -> None:
    """On a chain, where everything is behind everything before it: other graphs gain more."""
    spec = importlib.util.spec_from_file_location("benchmark", Path(__file__).with_name("benchmark_sensitivity.py"))
    assert spec is not None
    assert spec.loader is not None
    benchmark = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(benchmark)
    found = benchmark.measure(1000, every=10, sampled=4)
    assert found.alone >= 5
    assert found.without >= 5
