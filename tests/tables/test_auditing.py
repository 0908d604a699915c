"""What the audit of the tables finds, and that the shipped tables pass it."""

from __future__ import annotations

from datetime import date
from typing import Any

from deploykit.findings import Confidence
from deploykit.tables.capabilities import CompatRow, Status
from table_audit import audit_tables, contradictions, source_form, stale_sources, unresolved
from tables import each_row


def row(status: str, since: str = "", until: str = "", **more: Any) -> CompatRow:
    fields = {"backend": "b", "tool": "t", "sdk": "", "note": "", "source": ("a/b#1",), "confidence": None, **more}
    return CompatRow(feature="f", status=Status(status), since=since, until=until, **fields)


@each_row(
    ("source", "form"),
    [
        ("qualcomm/aimet#4102 (comment of 2026-06-08)", "thread"),
        ("AIMET repository discussion 3902", "thread"),
        ("docs.qualcomm.com 80-63442-10, general_revision_history (beginning)", "document"),
        ("AMD UG1414, Vitis AI 3.5 user guide", "document"),
        ("12 small graphs for soc_model 57 (HTP v75) on the compiler of QAIRT 2.36.1", "execution"),
        ("onnxruntime-qnn 2.7.0 run on Linux x86-64", "execution"),
        ("pytorch/executorch backends/qualcomm/serialization/qc_schema.py", "repository"),
        ("user lab notes, QAIRT 2.48 on SM8750, public repository", "notes"),
        ("everybody knows", ""),
        ("see above", ""),
        ("qualcomm/aimet 4102", "repository"),
        ("a blog", ""),
    ],
)
def test_what_a_source_names(source: str, form: str) -> None:
    assert source_form(source) == form


def test_a_row_without_a_place_to_look_at_is_named() -> None:
    assert [p.detail for p in unresolved("x", (), Confidence.REPORTED)] == ["no source"]
    assert len(list(unresolved("x", ("everybody knows", "a/b#1"), Confidence.REPORTED))) == 1
    absence = ("no public sighting",)
    assert not list(unresolved("x", absence, Confidence.INFERRED))
    assert list(unresolved("x", absence, Confidence.OBSERVED)), "an absence is nothing that one can observe"
    assert list(unresolved("x", ("the tables of this package",), None))
    assert not list(unresolved("x", ("the tables of this package",), None, computes=True))


def test_a_source_is_old_after_a_year_unless_it_is_marked() -> None:
    dates = {"": "2026-09-30", "a/b#1": "2024-05-01", "a/b#2": "2024-05-01 closed, cannot change"}
    sources = ("a/b#1", "a/b#2", "c/d#3")
    assert [p.subject for p in stale_sources(dates, sources, date(2026, 11, 22))] == ["a/b#1"]
    assert [p.subject for p in stale_sources(dates, sources, date(2027, 10, 1))] == ["a/b#1", "c/d#3"]
    assert [p.detail for p in stale_sources({}, ("c/d#3",), date(2026, 11, 22))] == [
        "no date says when it was compared"
    ]


@each_row(
    ("rows", "count"),
    [
        ([row("supported", "2.29", "2.35"), row("broken", "2.35", "")], 1),
        ([row("supported", "2.29", "2.34"), row("broken", "2.35", "")], 0),
        ([row("supported", "2.9", "2.10"), row("broken", "2.11", "")], 0),
        ([row("supported"), row("broken", "2.35")], 1),
        ([row("supported", sdk="0.11"), row("broken", sdk="0.13")], 0),
        ([row("supported"), row("broken", contradicts="another says otherwise")], 0),
        ([row("supported"), row("supported", "2.35")], 0),
        ([row("supported"), row("broken", arch="v75")], 0),
    ],
)
def test_rows_that_say_the_opposite_of_one_release(rows: list[CompatRow], count: int) -> None:
    assert len(list(contradictions(rows))) == count


def test_the_shipped_tables_are_in_order() -> None:
    """On the day of the newest comparison; ``.ci/run`` asks for the day it runs on."""
    found = audit_tables(date(2026, 11, 22))
    assert [f"{p.kind}: {p.subject}: {p.detail}" for p in found.problems] == []
    assert found.rows > 3000 and found.rules > 150


def test_an_old_comparison_is_told() -> None:
    assert "sources were compared on 2026-09-30" in " ".join(p.detail for p in audit_tables(date(2028, 1, 1)).problems)
