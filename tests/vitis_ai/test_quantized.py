"""Rules about quantized models, executions and compiler summaries: real models of Quark, and small changes to them."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from deploykit.model.collect import collect_facts
from deploykit.model.facts import GraphFacts
from deploykit.model.load import load_model
from deploykit_vitis_ai.inspection import InspectedModel, inspect_quantized
from deploykit_vitis_ai.rules.execution import RULES as OUTCOME_RULES
from deploykit_vitis_ai.rules.execution import QuarkOutcome, QuarkTrial
from deploykit_vitis_ai.rules.quantized import RULES as QUANTIZED_RULES
from deploykit_vitis_ai.rules.summary import RULES as SUMMARY_RULES
from deploykit_vitis_ai.rules.summary import CompileSummary
from rule_cases import check_pairs
from tables import each_row
from text_models import text_model

DATA = Path(__file__).parents[1] / "data" / "quark"
FLOAT = collect_facts(load_model(DATA / "fp32.onnx"))
POST = frozenset(f"/post/{n}" for n in ("Slice", "Slice_1", "Sub", "Add", "Add_1", "Mul", "Sub_1", "Concat", "Mul_1"))
POST |= {"/post/Sigmoid", "/post/Concat_1"}


def look(name: str, precision: str, excluded: frozenset[str] = frozenset()) -> InspectedModel:
    return inspect_quantized(DATA / f"{name}.onnx", precision=precision, excluded=excluded, source=FLOAT, last_opset=22)


VINT8 = look("vint8", "vint8")
MIXED = look("vint8_mixed", "mixed", POST)


def with_grid(**changes: Any) -> InspectedModel:
    """VINT8 with the grid of one activation changed."""
    at = next(i for i, grid in enumerate(VINT8.grids) if "QuantizeLinear" in grid.node and "Dequ" not in grid.node)
    grids = list(VINT8.grids)
    grids[at] = replace(grids[at], **changes)
    return replace(VINT8, grids=tuple(grids))


def reshaped(shape: tuple[Any, ...]) -> InspectedModel:
    tensors = dict(VINT8.facts.tensors)
    tensors["images"] = replace(tensors["images"], shape=shape)
    return replace(VINT8, facts=replace(VINT8.facts, tensors=tensors))


GOOD = CompileSummary(offloaded=493, gops_percent=100.0, subgraphs=1, failed_subgraphs=0)


def tried(*, kept: bool, wider: bool = False) -> QuarkOutcome:
    given = QuarkTrial(words="vint8", outcome="wrong", chosen=not kept and not wider)
    known: Any = {"part": "2 nodes", "nodes": ("a", "b"), "of_nodes": 0.1, "of_values": 0.01}
    part = QuarkTrial(words="vint8 with 2 nodes in float", outcome="right", chosen=kept, **known)
    more = (QuarkTrial(words="bf16", outcome="right", chosen=True),) if wider else ()
    return QuarkOutcome(toolchain="quark==0.13", state="ready", trials=(given, part, *more))


BF16 = QuarkTrial(words="bf16", outcome="wrong, 9.0 dB", chosen=True)
TRIALS = (QuarkTrial(words="vint8", outcome="wrong, 3.0 dB"), BF16)
CHOSEN = QuarkOutcome(toolchain="quark==0.13", state="ready", trials=TRIALS, asked="are right", reached=False)

CASES: dict[str, tuple[Any, Any]] = {
    "VAI201": (replace(VINT8, refusal="Load model failed"), VINT8),
    "VAI202": (with_grid(scales=(0.3,)), VINT8),
    "VAI203": (with_grid(zero_points=(1,)), VINT8),
    "VAI204": (with_grid(dtype="uint8"), VINT8),
    "VAI205": (look("vint8_mixed", "vint8"), MIXED),
    "VAI206": (look("vint8", "mixed", POST), MIXED),
    "VAI207": (reshaped((1, 3, 32, 32)), VINT8),
    "VAI208": (reshaped(("n", 3, 64, 64)), VINT8),
    "VAI209": (replace(VINT8, last_opset=13), VINT8),
    "VAI210": (look("fp32", "vint8"), VINT8),
    "VAI280": (tried(kept=True), tried(kept=False)),
    "VAI281": (tried(kept=False), tried(kept=False, wider=True)),
    "VAI283": (CHOSEN, tried(kept=True)),
    "VAI301": (
        QuarkOutcome(toolchain="quark==0.13", state="absent"),
        QuarkOutcome(toolchain="quark==0.13", state="ready"),
    ),
    "VAI302": (
        QuarkOutcome(toolchain="quark==0.13", state="ready", skipped=(("a.jpg", "cannot be decoded"),), samples=3),
        QuarkOutcome(toolchain="quark==0.13", state="ready", samples=4),
    ),
    "VAI303": (
        QuarkOutcome(toolchain="quark==0.13", state="ready", endless="array is too big"),
        QuarkOutcome(toolchain="quark==0.13", state="ready"),
    ),
    "VAI401": (CompileSummary(offloaded=0), GOOD),
    "VAI402": (replace(GOOD, failed_subgraphs=2), GOOD),
    "VAI403": (replace(GOOD, gops_percent=80.0, subgraphs=3), GOOD),
}
RULES = {rule.code: rule for registry in (QUANTIZED_RULES, OUTCOME_RULES, SUMMARY_RULES) for rule in registry}


def test_each_rule_fires_and_stays_silent() -> None:
    check_pairs(CASES, RULES.values())


def inspected(tmp_path: Path, body: str, given: str, **asked: Any) -> InspectedModel:
    """A model of this body on one grid; its operators are named after what they make."""
    w, s, z, factor = np.ones(4, np.int8), np.array(0.5, np.float32), np.array(0, np.int8), np.array(1.5, np.float32)
    model = text_model(given, body, w=w, s=s, z=z, factor=factor)
    for node in model.graph.node:
        node.name = f"n_{node.output[0]}"
    onnx.save(model, tmp_path / "m.onnx")
    return inspect_quantized(tmp_path / "m.onnx", source=None, **asked)


@pytest.mark.parametrize(("factor", "found"), [("factor", []), ("other", ["n_y"])])
def test_the_factor_of_a_pooling_is_no_float_operator(factor: str, found: list[str], tmp_path: Path) -> None:
    """A stored one, as Quark leaves it; another input is no such factor."""
    body = (
        f"q = QuantizeLinear (x, s, z) d = DequantizeLinear (q, s, z) p = GlobalAveragePool (d) y = Mul (p, {factor})"
    )
    made = inspected(tmp_path, body, "float[1,3,4,4] x, float[1,3,4,4] other", precision="vint8")
    assert [finding.subject.name for finding in QUANTIZED_RULES["VAI205"].run(made)] == found


@pytest.mark.parametrize(("source", "made", "changed"), [("float16", "float", 0), ("float16", "int8", 1)])
def test_a_float16_source_comes_back_as_float(source: str, made: str, changed: int) -> None:
    def typed(dtype: str) -> GraphFacts:
        return replace(FLOAT, tensors={**FLOAT.tensors, "images": replace(FLOAT.tensors["images"], dtype=dtype)})

    quantized = replace(VINT8, source=typed(source), facts=typed(made), float16_source=True)
    assert len(list(QUANTIZED_RULES["VAI207"].run(quantized))) == changed
    assert list(QUANTIZED_RULES["VAI207"].run(replace(quantized, float16_source=False)))


def odd(precision: str) -> InspectedModel:
    """A model that no format would make: an odd scale, an odd zero point, another type, and float operators."""
    grid = with_grid(scales=(0.3,), zero_points=(7,), dtype="uint16")
    return replace(look("vint8_mixed", precision), grids=grid.grids)


@each_row(
    ("precision", "found"),
    ("vint8", {"VAI202", "VAI203", "VAI204", "VAI205"}),
    ("a8w8", {"VAI203", "VAI204"}),
    ("bf16", set()),
    ("as-is", set()),
    ("no such format", set()),
)
def test_a_format_asks_only_what_its_row_says(precision: str, found: set[str]) -> None:
    asked = {"VAI202", "VAI203", "VAI204", "VAI205"}
    assert {finding.code for finding in QUANTIZED_RULES.run(odd(precision))} & asked == found


@pytest.mark.parametrize(
    ("excluded", "stored", "found"), [("n_a", False, True), ("n_other", False, False), ("n_other", True, True)]
)
def test_what_is_quantized_within_what_was_excluded(excluded: str, stored: bool, found: bool, tmp_path: Path) -> None:
    """A pair between two excluded nodes, or on a weight of one; the pair at the border of the region is wanted."""
    pair = "d = DequantizeLinear (w, s, z)" if stored else "q = QuantizeLinear (a, s, z) d = DequantizeLinear (q, s, z)"
    body = f"a = Relu (x) {pair} y = Add (a, d)"
    made = inspected(tmp_path, body, "float[4] x", precision="mixed", excluded=frozenset({excluded, "n_y"}))
    told = [finding.message for finding in QUANTIZED_RULES["VAI206"].run(made)]
    assert told == (["excluded and still quantized: n_y"] if found else [])


@each_row(
    ("op_type", "output", "gone"),
    ("Conv", "lost", True),
    ("Identity", "lost", False),
    ("BatchNormalization", "lost", False),
    ("Conv", "act2", False),
    ("Conv", "/post/Mul", False),
)
def test_an_excluded_node_that_was_merged_is_not_missed(op_type: str, output: str, gone: bool) -> None:
    """What has no effect of its own may go; so may a name, while another node makes the tensor or is named after it."""
    node = replace(FLOAT.nodes[0], name="extra", op_type=op_type, outputs=(output,))
    source = replace(FLOAT, nodes=(*FLOAT.nodes, node))
    quantized = replace(VINT8, source=source, excluded=frozenset({"extra"}))
    told = [finding.message for finding in QUANTIZED_RULES["VAI206"].run(quantized)]
    assert told == (["excluded, and no longer in the model under that name: extra"] if gone else [])
    assert not list(QUANTIZED_RULES["VAI206"].run(replace(quantized, excluded=frozenset({"another"}))))
