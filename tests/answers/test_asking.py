from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

import pytest

import deploykit.answers.asking as oracle
from deploykit.backend.targets import find_device
from deploykit.errors import UnknownTargetError, UsageError
from deploykit.findings import Confidence
from deploykit.tables.capabilities import CompatRow, Status
from deploykit.tables.devices import Device, Fact
from stub_backend import StubBackend

BASE = CompatRow(
    feature="",
    backend="",
    tool="",
    sdk="",
    status=Status.SUPPORTED,
    since="1.0",
    until="",
    note="",
    source=("a test",),
    confidence=Confidence.REPORTED,
    family="kit",
)


def device(name: str, *backends: str, arch: str | None) -> Device:
    fact = Fact(value=arch or "", source=("a test",), confidence=Confidence.REPORTED)
    return Device(
        schema=1, id=name, name=name, vendor="V", backends=backends, facts={} if arch is None else {"arch": fact}
    )


class FakeBackend(StubBackend):
    """Answers with a few rows; ``binaries`` says whether it knows anything about binaries."""

    def __init__(self, backend_id: str, *rows: CompatRow) -> None:
        self.id = backend_id
        self.rows = rows

    def compat(self) -> Iterable[CompatRow]:
        return (replace(row, backend=self.id) for row in self.rows)


class BinaryBackend(FakeBackend):
    def binary_rows(self, built_with: str, built_for: str, runtime: str, arch: str) -> Iterator[CompatRow]:
        yield replace(BASE, backend=self.id, feature="binary", note=f"{built_with} {built_for} {runtime} {arch}")


@pytest.fixture(autouse=True)
def backends(monkeypatch: pytest.MonkeyPatch) -> None:
    speed = replace(BASE, feature="speed")
    installed: dict[str, Any] = {
        "one": FakeBackend("one", speed, replace(speed, arch="a1"), replace(speed, arch="a2", since="2.0")),
        "two": BinaryBackend("two", replace(speed, feature="speed-of-two")),
    }
    devices = (device("chip1", "one", arch="a1"), device("chip2", "two", arch=None))
    monkeypatch.setattr(oracle, "load_backends", lambda: tuple(installed.values()))
    monkeypatch.setattr(oracle, "load_backend", installed.__getitem__)
    monkeypatch.setattr(oracle, "device_named", lambda name: find_device(devices, name))


def shown(answer: Any) -> list[tuple[str, str, str]]:
    return [(row.feature, row.backend, row.arch) for row in answer.rows]


def test_all_backends_answer() -> None:
    assert shown(oracle.ask(["speed"])) == [
        ("speed", "one", ""),
        ("speed", "one", "a1"),
        ("speed", "one", "a2"),
        ("speed-of-two", "two", ""),
    ]
    assert shown(oracle.ask(["speed"], backend="two")) == [("speed-of-two", "two", "")]
    assert shown(oracle.ask(["speed"], arch="a2", sdk="1.0")) == [("speed", "one", ""), ("speed-of-two", "two", "")]


def test_a_target_narrows_to_its_backends_and_architecture() -> None:
    assert shown(oracle.ask(["speed"], target="chip1")) == [("speed", "one", ""), ("speed", "one", "a1")]
    assert shown(oracle.ask(["speed"], target="chip2")) == [("speed-of-two", "two", "")]


def test_a_target_without_words_shows_the_device_too() -> None:
    assert ("device chip1 arch", "", "") in shown(oracle.ask(target="chip1"))
    (row,) = [row for row in oracle.ask(target="chip2").rows if row.feature == "device chip2 arch"]
    assert row.status is Status.UNKNOWN


def test_a_device_name_is_an_answer_and_an_unknown_word_none() -> None:
    found = oracle.ask(["chip1"])
    assert shown(found) == [("device chip1 arch", "", "")] and found.near == ()
    assert oracle.ask(["nonsense"]).rows == ()
    for more in ({"target": "chip9"}, {"sdk": "9.0"}):
        with pytest.raises(UnknownTargetError):
            oracle.ask(["speed"], **more)


def test_comparing_two_releases() -> None:
    found = oracle.compare("1.0", "2.0")
    assert [(d.row.feature, d.row.arch) for d in found.differences] == [("speed", "a2")]
    assert found.to_json()["differences"][0]["before"] is None
    assert oracle.compare("1.0", "2.0", target="chip1").differences == ()


def test_binaries_are_asked_of_those_who_know() -> None:
    (row,) = oracle.ask_binary("1.0", "a1", "2.0", target="chip1").rows
    assert (row.backend, row.note) == ("two", "1.0 a1 2.0 a1")
    (unknown,) = oracle.ask_binary("1.0", "a1", "2.0", target="chip2").rows
    assert unknown.note == "1.0 a1 2.0 "
    for runtime, target in (("", "chip1"), ("2.0", "")):
        with pytest.raises(UsageError):
            oracle.ask_binary("1.0", "a1", runtime, target=target)
