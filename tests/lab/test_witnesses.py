"""What others say beside the sweep: the file of differences, the page that shows it, and how two are compared."""

from __future__ import annotations

import importlib
import json
import sys
import tomllib
import zipfile
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from atlas.cases import every_form
from deploykit_qualcomm.atlas.rows import atlas_rows, rows_for

ROOT = Path(__file__).parents[2]
FOUND: dict[str, Any] = tomllib.loads((ROOT / "tests/lab/evidence/witnesses.toml").read_text("utf-8"))
STATED = tomllib.loads((ROOT / "tests/lab/benchmarks/provider_tests.toml").read_text("utf-8"))
OPERATORS = {form.op for form in every_form().values()}
TYPES = {"fp16": "float", "w8a8": "u8", "w8a16": "u16", "w4a16": "u16"}


@pytest.fixture
def program(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """``witnesses`` of the benchmarks, whose modules find each other by their folder."""
    monkeypatch.syspath_prepend(str(ROOT / "tests/lab/benchmarks"))
    yield importlib.import_module("witnesses")
    for name in ("witnesses", "witness_page", "witness_wheel"):
        sys.modules.pop(name, None)


def test_every_difference_has_its_fields_and_a_known_operator() -> None:
    names = {witness["name"] for witness in FOUND["witness"]}
    fields = {"witness", "op", "kind", "about", "says", "measured", "cases"}
    assert [one for one in FOUND["differ"] if set(one) != fields or one["cases"] < 1] == []
    assert {one["witness"] for one in FOUND["differ"]} <= names
    assert {one["op"] for one in FOUND["differ"]} <= OPERATORS
    assert {one["kind"] for one in FOUND["differ"]} <= TYPES.keys()


def test_counts_add_up() -> None:
    for witness in FOUND["witness"]:
        assert witness["agree"] + witness["open"] + witness["differ"] == witness["compared"]
        assert witness["both_refuse"] <= witness["agree"]
        assert sum(one["witness"] == witness["name"] for one in FOUND["differ"]) == witness["differ"]


def test_the_sweep_compared_is_that_of_the_rows() -> None:
    assert FOUND["sweep"] in [{"sdk": row.sdk, "soc": row.soc} for row in atlas_rows()]


def test_what_was_measured_is_what_the_rows_say() -> None:
    """What is taken in every case of a rank is refused by no row that holds for that rank whatever else is so."""
    against = []
    for one in FOUND["differ"]:
        hit, _, cases = one["measured"].removesuffix(" off").partition(" of ")
        if one["about"].startswith("rank ") and hit == cases:
            rank = float(one["about"].removeprefix("rank "))
            rows = rows_for(one["op"], TYPES[one["kind"]])
            against += [
                (one["op"], one["kind"], row.id)
                for row in rows
                if row.verdict == "refused" and row.when.keys() <= {"rank"} and row.holds({"rank": rank})
            ]
        elif one["about"].startswith("rank ") and hit == "0":
            assert rows_for(one["op"], TYPES[one["kind"]]), one
    assert against == []


def test_the_page_shows_what_the_file_says(program: ModuleType, tmp_path: Path) -> None:
    page = tmp_path / "witnesses.md"
    page.write_text((ROOT / "tests/lab/evidence/witnesses.md").read_text("utf-8"), "utf-8")
    program.write_page(page, FOUND)
    assert page.read_text("utf-8") == (ROOT / "tests/lab/evidence/witnesses.md").read_text("utf-8")
    program.write_page(page, {**FOUND, "differ": FOUND["differ"][1:]})
    assert page.read_text("utf-8") != (ROOT / "tests/lab/evidence/witnesses.md").read_text("utf-8")


def test_what_the_page_says_in_words_holds() -> None:
    of_rows = [one for one in FOUND["differ"] if one["witness"].startswith("winml-cli")]
    for one in of_rows:
        hit, _, cases = one["says"].partition(" of ")
        assert hit != cases
    taken = {fact["op"] for fact in STATED["test"] if fact["says"] == "taken"}
    assert {"Reciprocal", "Tan", "ThresholdedRelu"} <= taken & {one["op"] for one in of_rows}


def test_facts_are_about_operators_of_the_sweep() -> None:
    facts = [*STATED["test"], *STATED["history"]]
    assert [fact for fact in facts if fact["op"] not in OPERATORS] == []
    assert {fact["says"] for fact in facts} == {"taken", "refused", "inaccurate"}
    assert len({(fact["name"], fact["op"]) for fact in facts}) == len(facts)


def test_how_two_are_compared(program: ModuleType) -> None:
    assert program.share(0, 3) == "none"
    assert program.share(2, 3) == "some"
    assert program.share(3, 3) == "all"
    assert program.outcome_of("all", "all") == program.outcome_of("none", "none") == "agree"
    assert program.outcome_of("all", "none") == program.outcome_of("none", "all") == "differ"
    assert program.outcome_of("some", "none") == program.outcome_of("none", "some") == "differ"
    assert program.outcome_of("none", "some", is_one_graph=True) == "open"
    assert program.outcome_of("some", "some") == program.outcome_of("all", "some") == "open"


def test_a_fact_is_compared_with_cases_that_fulfil_it(program: ModuleType) -> None:
    sweep = [
        program.Asked(op="Abs", kind="w8a8", is_taken=rank < 6, is_off=False, traits={"rank": float(rank)})
        for rank in (3, 4, 6)
    ]
    facts = [
        {"name": name, "op": "Abs", "kind": "w8a8", "says": says, "when": {"rank": rank}}
        for name, says, rank in (
            ("a", "taken", 4.0),
            ("b", "taken", 6.0),
            ("c", "refused", ">= 4"),
            ("d", "taken", 2.0),
        )
    ]
    outcomes = [told.outcome for told in program.by_facts("w", facts, sweep)]
    assert outcomes == ["agree", "differ", "open", "not measured"]


def test_tables_are_read_from_a_wheel_and_compared_up_to_the_rank_they_name(
    program: ModuleType, tmp_path: Path
) -> None:
    about = "winml/modelkit/analyze/rules/information_rules/"
    said = {
        "ElementWiseAbs": {
            "dtype": {"0": "INT8", "1": "FLOAT16"},
            "compile_run_success": {"0": [True, True], "1": [False, False]},
            "condition": {"0": {"max_input_rank_input_0": 5}, "1": {}},
        }
    }
    wheel = tmp_path / "some.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr(about + "QNNExecutionProvider_NPU_from_doc.json", json.dumps(said))
        mapped = {"mappings": {"Abs": {"qnn_operators": ["ElementWiseAbs"]}}}
        archive.writestr(about + "onnx_to_qnn_mapping.json", json.dumps(mapped))
    tables = program.tables_of(wheel)
    assert tables == {("Abs", "w8a8"): 5, ("Abs", "fp16"): 0}
    sweep = [
        program.Asked(op="Abs", kind=kind, is_taken=True, is_off=False, traits={"rank": rank})
        for kind, rank in (("w8a8", 5.0), ("w8a8", 6.0), ("fp16", 4.0), ("fp16", 6.0))
    ]
    told = {(one.kind, one.about): one.outcome for one in program.by_tables(tables, sweep)}
    assert told == {("w8a8", "rank 5"): "agree", ("w8a8", "rank 6"): "differ", ("fp16", "rank 4"): "differ"}
