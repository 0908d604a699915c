"""The sweep on the workers of a cluster: what is measured there is what is measured here."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

import atlas.commands as commands
from atlas.commands import measure_more
from atlas.measuring import Point, points_of
from atlas.spreading import spread_over
from deploykit.errors import ToolError, UnknownTargetError

distributed = pytest.importorskip("distributed")


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with distributed.LocalCluster(
        n_workers=2, threads_per_worker=1, memory_limit="2GiB", dashboard_address="127.0.0.1:0"
    ) as made:
        yield made.scheduler_address.removeprefix("tcp://")


def _told(cell: str, line: str) -> None:
    del cell, line


def test_parts_are_sent_and_points_written_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every case once, however the parts come back, and none that the file has already."""
    sent: list[Sequence[str]] = []

    def spread(work: Callable[[Any], Any], parts: Sequence[Any]) -> Iterator[Any]:
        sent.extend(parts)
        return map(work, reversed(parts))

    monkeypatch.setattr(commands, "host_of", lambda release: None)
    monkeypatch.setattr(
        commands, "measure", lambda cases, **_: [Point(case=case.id, answer="refused") for case in cases]
    )
    file = tmp_path / "points.jsonl"
    for most in (100, 60):
        measure_more(file, release="2.51", soc=69, most=most, progress=lambda line: None, spread=spread)
    found = [point.case for point in points_of(file)]
    assert [len(part) for part in sent] == [80, 20, 60]
    assert len(found) == len(set(found)) == 160


def test_a_chip_of_no_table_is_refused_before_anything_is_measured(tmp_path: Path) -> None:
    """The compiler takes any number, and then no kernel."""
    with pytest.raises(UnknownTargetError, match="no device has soc_model 12345"):
        measure_more(tmp_path / "points.jsonl", release="2.51", soc=12345, most=1, progress=lambda line: None)
    assert not [*tmp_path.iterdir()]


@pytest.mark.heavy
def test_two_workers_measure_what_is_measured_here(tmp_path: Path, address: str) -> None:
    here, there = tmp_path / "here.jsonl", tmp_path / "there.jsonl"
    measure_more(here, release="2.51", most=12, progress=lambda line: None)
    with spread_over(address, _told) as spread:
        measure_more(there, release="2.51", most=12, progress=lambda line: None, spread=spread)
    assert {point.case: point for point in points_of(there)} == {point.case: point for point in points_of(here)}


@pytest.mark.heavy
def test_what_a_worker_cannot_do_is_said(address: str) -> None:
    with spread_over(address, _told) as spread, pytest.raises(ToolError, match="did not do its part"):
        list(spread(int, ["no number"]))
