"""What a package keeps of its samples: how many, how large, the same bytes each time, or hashes alone."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from deploykit.accuracy.samples import InputSpec, gathering
from deploykit.accuracy.samples.gathering import InputSource, Samples, read_recorded, record
from deploykit.accuracy.samples.inputs import Label
from deploykit.errors import InputError

SPECS = (
    InputSpec(name="a/b", dtype="float32", shape=(1, 3)),
    InputSpec(name="ids", dtype="int64", shape=(1, 2)),
)


def _samples(count: int, label: Label = Label.GIVEN, ids: Label = Label.GIVEN) -> Samples:
    feeds = tuple({"a/b": np.full((1, 3), n, np.float32), "ids": np.array([[n, -n]])} for n in range(count))
    sources = {"a/b": InputSource(label=label, why="a"), "ids": InputSource(label=ids, why="b")}
    return Samples(feeds=feeds, of_inputs=sources, available=count)


def _numbers(data: bytes | None, tmp_path: Path) -> list[int]:
    assert data is not None
    (tmp_path / "s.npz").write_bytes(data)
    return [int(feed["a/b"][0, 0]) for feed in read_recorded(tmp_path / "s.npz", SPECS)]


def test_at_most_eight_spread_over_all(tmp_path: Path) -> None:
    kept = record(_samples(50))
    numbers = _numbers(kept.data, tmp_path)
    assert (len(numbers), numbers[0], numbers[-1]) == (8, 0, 49)
    assert kept.to_json()["recorded"] == 8
    assert len(set(kept.hashes)) == 8


def test_fewer_where_they_are_large(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one = 3 * 4 + 2 * 8
    monkeypatch.setattr(gathering, "_MOST_BYTES", 3 * one)
    assert _numbers(record(_samples(50)).data, tmp_path) == [0, 24, 49]
    monkeypatch.setattr(gathering, "_MOST_BYTES", one - 1)
    none = record(_samples(50))
    assert none.data is None
    assert "one sample has" in none.why_not
    assert len(none.hashes) == 8


def test_the_same_samples_give_the_same_bytes() -> None:
    first, again = record(_samples(5)), record(_samples(5))
    assert first.data == again.data
    assert first.hashes == again.hashes
    assert record(_samples(4)).data != first.data


def test_of_private_samples_only_the_hashes_are_kept() -> None:
    kept, private = record(_samples(5)), record(_samples(5), keep=False)
    assert private.data is None
    assert private.hashes == kept.hashes
    assert private.to_json()["recorded"] == 0
    assert "private" in private.to_json()["why_not"]


def test_only_what_was_given_or_declared_is_kept(tmp_path: Path) -> None:
    kept = record(_samples(3, ids=Label.ARBITRARY))
    assert kept.data is not None
    (tmp_path / "s.npz").write_bytes(kept.data)
    assert [set(feed) for feed in read_recorded(tmp_path / "s.npz", SPECS)] == [{"a/b"}] * 3
    nothing = record(_samples(3, Label.DERIVED, Label.ARBITRARY))
    assert (nothing.data, nothing.hashes) == (None, ())
    assert "made again" in nothing.why_not


def test_samples_of_another_model_are_refused(tmp_path: Path) -> None:
    (tmp_path / "s.npz").write_bytes(record(_samples(3)).data or b"")
    with pytest.raises(InputError, match="does not fit"):
        read_recorded(tmp_path / "s.npz", (InputSpec(name="ids", dtype="int64", shape=(1, 5)),))
    with pytest.raises(InputError, match="no sample for this model"):
        read_recorded(tmp_path / "s.npz", (InputSpec(name="other", dtype="int64", shape=(1, 5)),))
