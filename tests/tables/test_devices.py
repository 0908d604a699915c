"""A device as it is published: plain values, and of every fact what is known about it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from deploykit.errors import InputError
from deploykit.findings import Confidence
from deploykit.tables.devices import Device, Fact, load_device, load_devices, search_devices

PLAIN = Fact(value=8, source=("a page",), confidence=Confidence.DOCUMENTED)
FULL = Fact(
    value=("a", "b"),
    source=("a page",),
    confidence=Confidence.DOCUMENTED,
    note="as sold",
    alternatives=(1, 2),
    contradicts="another page",
)
DEVICE = Device(schema=1, id="one", name="One", vendor="v", backends=("x",), facts={"memory": PLAIN, "units": FULL})


def test_a_device_is_published_with_what_is_said_of_each_fact() -> None:
    row = DEVICE.to_json()
    assert (row["memory"], row["units"]) == (8, ["a", "b"])
    assert row["facts"]["memory"] == {"value": 8, "source": ["a page"], "confidence": "documented"}
    more = {"note": "as sold", "alternatives": [1, 2], "contradicts": "another page"}
    assert row["facts"]["units"] == {"value": ["a", "b"], "source": ["a page"], "confidence": "documented", **more}
    assert "note" not in row
    assert replace(DEVICE, note="rare").to_json()["note"] == "rare"


def test_an_unknown_fact_is_none() -> None:
    assert (DEVICE.fact("memory"), DEVICE.fact("weight")) == (8, None)


@pytest.mark.parametrize(
    ("words", "found"), [("One  gen", ["b"]), ("gen one", ["a", "b"]), ("GEN", ["a", "b"]), ("two", ["c"]), ("no", [])]
)
def test_words_side_by_side_come_first(words: str, found: list[str]) -> None:
    names = {"a": "gen 2 one", "b": "one gen", "c": "two"}
    devices = [replace(DEVICE, id=key, name="", marketing=name) for key, name in names.items()]
    assert [device.id for device in search_devices(devices, words)] == found


def test_a_file_is_named_as_its_device(tmp_path: Path) -> None:
    text = 'schema = 1\nid = "one"\nname = "One"\nvendor = "v"\nbackends = ["x"]\n'
    (tmp_path / "one.toml").write_text(text, "utf-8")
    assert [device.id for device in load_devices(tmp_path)] == ["one"]
    (tmp_path / "two.toml").write_text(text, "utf-8")
    with pytest.raises(InputError, match="differs from the file name"):
        load_device(tmp_path / "two.toml")
