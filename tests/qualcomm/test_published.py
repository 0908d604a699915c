"""Times that others published are told of the very network that they measured, and of no other."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytest

from deploykit.backend.backend import Situation
from deploykit.findings import Finding
from deploykit_qualcomm.rules import published

STORED = {"w": ("float", (4, 4, 1, 1), 0.1)}


def case(graph: str, **extra: Any) -> dict[str, Any]:
    return {"graph": graph, "stored": STORED, **extra}


SAME = case("g (float[1,4,8,8] x) => (float[1,4,8,8] y) { y = Conv <strides = [1, 1]> (x, w) }")
KNOWN = case("g (float[1,4,8,8] x) => (float[1,4,8,8] y) { a = Conv (x, w) y = Identity (a) }")
OTHER = case("g (float[1,4,8,8] x) => (float[1,4,8,8] y) { y = Conv <dilations = [2, 2]> (x, w) }")
LARGER = case("g (float[1,4,9,8] x) => (float[1,4,9,8] y) { y = Conv (x, w) }")
OPEN = case("g (float[n,4,8,8] x) => (float[n,4,8,8] y) { y = Conv (x, w) }")
CASES = {"QNN330": (SAME, OTHER)}


@pytest.fixture
def one_network(monkeypatch: pytest.MonkeyPatch, situation: Callable[[Any], Situation]) -> None:
    known = situation(KNOWN)
    chip = known.target.device.id
    row = published.PublishedNetwork(
        name="net",
        structure=(published.structure_of(known.facts),),
        times={chip: {"float": {"onnx": 1.8, "dlc": 2.06}, "w8a8": {"onnx": 0.65}}},
    )
    table = published.PublishedTable(
        schema=1, source="who", licence="any", ways={"onnx": "by the one", "dlc": "by the other"}, network=(row,)
    )
    monkeypatch.setattr(published, "published_networks", lambda: table)


@pytest.mark.usefixtures("one_network")
def test_the_same_network_is_told_and_no_other(
    lint: Callable[[Any], dict[str, list[Finding]]], as_expected: Callable[[str, Iterable[Finding]], None]
) -> None:
    found = lint(SAME)["QNN330"]
    as_expected("QNN330", found)
    assert "1.8 ms in float, 0.65 ms in w8a8 by the one; 2.06 ms in float by the other; this is net" in found[0].message
    assert found[0].sources[-1] == "who"
    assert not any("QNN330" in lint(other) for other in (OTHER, LARGER, OPEN))
