from collections.abc import Callable
from pathlib import Path

import onnx
import pytest

from deploykit.graph import load_model, wrap_proto
from deploykit.graph.collect import collect_facts
from deploykit.graph.facts import GraphFacts

AIMET = Path(__file__).parent / "data" / "aimet"


@pytest.fixture(scope="session")
def graph_of() -> Callable[[str], GraphFacts]:
    """The facts of a model of the AIMET fixtures, by its folder's name."""
    known: dict[str, GraphFacts] = {}

    def get(name: str) -> GraphFacts:
        if name not in known:
            known[name] = collect_facts(load_model(AIMET / name / "model.onnx"))
        return known[name]

    return get


@pytest.fixture(scope="session")
def collect() -> Callable[[onnx.ModelProto], GraphFacts]:
    """Facts of any model."""
    return lambda model: collect_facts(wrap_proto(model, path=Path("model.onnx")))
