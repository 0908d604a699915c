"""Rules about quantized models, executions and compiler summaries: real models of Quark, and small changes to them."""

from pathlib import Path
from typing import Any

from msgspec.structs import replace

from deploykit.model.collect import collect_facts
from deploykit.model.load import load_model
from deploykit_vitis_ai.inspection import InspectedModel, inspect_quantized
from deploykit_vitis_ai.rules.execution import RULES as OUTCOME_RULES
from deploykit_vitis_ai.rules.execution import QuarkOutcome, QuarkTrial
from deploykit_vitis_ai.rules.quantized import RULES as QUANTIZED_RULES
from deploykit_vitis_ai.rules.summary import RULES as SUMMARY_RULES
from deploykit_vitis_ai.rules.summary import CompileSummary
from rule_cases import check_pairs
from tables import each_row

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
