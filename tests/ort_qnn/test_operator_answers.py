"""What is answered about operators from what each release was measured to make of them."""

from __future__ import annotations

from typing import Any

from deploykit.accuracy.judge.verdict import Measure, limit_for
from deploykit.answers.asking import ask
from deploykit.findings import Confidence
from deploykit.tables.capabilities import Status
from deploykit_ort_qnn.compat import LIMITS, KernelCell, operator_rows
from deploykit_ort_qnn.compiler import hosts, worker


def test_no_kernel_is_called_right_that_the_core_would_call_wrong() -> None:
    """A whole model may lose more than one kernel alone."""
    for kind, keys in (("fp16", ("same/float",)), ("w8a16", ("same",)), ("w8a8", ("same",))):
        assert LIMITS[kind] >= limit_for(Measure.SQNR, *keys).value


def test_a_worker_and_a_host_say_the_same_of_a_graph_of_which_nothing_is_taken() -> None:
    assert worker.NOTHING_TAKEN == hosts.NOTHING_TAKEN


def row(**more: Any) -> KernelCell:
    return KernelCell(
        **{"op": "Add", "form": "rank 3", "type": "w8a16", "release": "2.36.1", "answer": "taken", **more}
    )


def test_a_release_that_does_not_run_is_answered_by_the_nearest_one_that_does() -> None:
    cells = [
        row(answer="refused", why="Add"),
        row(release="2.47.0", decibels=90.0),
        row(release="2.51.0", decibels=9.0),
    ]
    rows = {found.since: found for found in operator_rows(cells)}
    assert rows["2.36.1"].confidence is Confidence.OBSERVED and rows["2.36.1"].status is Status.UNSUPPORTED
    assert rows["2.33.0"].confidence is Confidence.INFERRED and "2.36.1: refused (observed, build 2.36.1.25" in (
        rows["2.33.0"].note
    )
    assert rows["2.42.0"].status is Status.SUPPORTED and rows["2.42.0"].confidence is Confidence.INFERRED
    assert rows["2.47.0"].until == "2.50.99" and rows["2.51.0"].status is Status.BROKEN


def test_compat_answers_from_the_table() -> None:
    found = ask(("op", "LessOrEqual"), sdk="2.33")
    (answered,) = found.rows
    assert answered.status is Status.UNSUPPORTED and answered.confidence is Confidence.INFERRED
    assert "2.36.1: refused (observed" in answered.note and "inferred from it" in answered.note
    assert ask(("op", "LessOrEqual"), sdk="2.36").rows[0].confidence is Confidence.OBSERVED
