"""No interval of a feature row is wider than its sources: beyond them the row is an inference and says from what."""

from __future__ import annotations

import re
import tomllib
from itertools import pairwise

from packaging.version import Version

from deploykit.findings import Confidence
from deploykit.tables.sources import extent_of
from deploykit_qualcomm.tables import DATA, tables
from tables import each_row

# Read here on its own, so that the loader is not tested against itself.
SOURCES = tomllib.loads((DATA / "sources.toml").read_text("utf-8"))
EXTENTS = {SOURCES["sources"].get(name, name): (given[0], given[-1]) for name, given in SOURCES["extent"].items()}


def series(version: str) -> tuple[int, ...]:
    return Version(version).release[:2]


def test_no_row_speaks_for_a_release_that_its_sources_do_not_know() -> None:
    wide = []
    chips = {(name.replace("_", "-"), arch) for arch, row in tables().archs.arch.items() for name in row.facts}
    for table in tables().all():
        for row in table.features:
            bounds = [bound for source in row.source for start, bound in EXTENTS.items() if source.startswith(start)]
            bound_to_releases = len(bounds) >= len(row.source) and (row.feature, row.arch) not in chips
            if row.confidence is Confidence.INFERRED or not bound_to_releases:
                continue
            first = min(series(bound[0]) for bound in bounds)
            last = max((series(bound[1]) if bound[1] else (99, 0)) for bound in bounds)
            if not first <= series(table.version) <= last:
                wide.append((table.version, row.feature, row.tool, row.arch, row.source))
    assert wide == []


def test_an_inference_says_from_what() -> None:
    silent = [
        (table.version, row.feature, row.tool, row.arch)
        for table in tables().all()
        for row in table.features
        if row.confidence is Confidence.INFERRED and not (row.note or row.confidence_note or row.contradicts)
    ]
    assert silent == []


def test_a_row_is_raised_again_where_its_source_speaks() -> None:
    """Reported for 2.33: an inference before, a report there."""
    releases = ("2.29.0", "2.32.6", "2.33.0")
    found = [tables().table(release).feature("encodings-2.0.0", tool="qnn-onnx-converter") for release in releases]
    assert [str(row.confidence) for row in found if row is not None] == ["inferred", "inferred", "reported"]


def test_a_state_that_does_not_change_is_one_row() -> None:
    for before, after in pairwise(tables().all()):
        old = {(row.feature, row.tool, row.arch): row for row in before.features}
        for row in after.features:
            kept = old.get((row.feature, row.tool, row.arch))
            if kept is not None and kept is not row:
                assert row.since == after.version, (after.version, row.feature)


def test_every_source_that_names_a_release_is_bound_to_it_or_says_why_not() -> None:
    """A thread number or a tool's release in a source without an extent would let a row speak for every release."""
    free = {
        source
        for table in tables().all()
        for row in table.features
        if not row.extent and row.confidence is not Confidence.INFERRED
        for source in row.source
        if re.search(r"qualcomm/aimet#|QAIRT 2\.\d\d on ", source) and extent_of([source], EXTENTS) is None
    }
    assert free == set()


@each_row(
    ("sources", "expected"),
    [
        (["TOOLS"], None),
        (["qualcomm/aimet#4102"], ("2.33", "2.33")),
        (["qualcomm/aimet#4102 (a comment)", "qualcomm/aimet#4090"], ("2.33", "2.44")),
        (["qualcomm/aimet#4102", "somebody's notes"], None),
        (["onnxruntime/onnxruntime-qnn#476", "qualcomm/aimet#4090"], ("2.41", "")),
        ([], None),
    ],
)
def test_sources_speak_together(sources: list[str], expected: tuple[str, str] | None) -> None:
    assert extent_of(sources, EXTENTS) == expected
