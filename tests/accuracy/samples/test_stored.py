"""Samples by their files' shapes and names, from headers alone; and files that must not be read."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from deploykit.accuracy.samples import InputSpec, arrays, read_arrays
from deploykit.accuracy.samples.arrays import read_headers, write_arrays
from deploykit.accuracy.samples.calibration import places_in, read_places, samples_of
from deploykit.errors import InputError
from tables import each_row

A = InputSpec(name="a", dtype="float32", shape=(1, 3))
B = InputSpec(name="b", dtype="int64", shape=(1, 3))


@pytest.mark.parametrize("batch", [1, 2])
def test_longer_arrays_are_several_samples(tmp_path: Path, batch: int) -> None:
    spec = InputSpec(name="a", dtype="float32", shape=(batch, 3))
    np.save(tmp_path / "x.npy", np.arange(12).reshape(4, 3))
    samples = [sample["a"].ravel().tolist() for sample in samples_of(tmp_path / "x.npy", (spec,))]
    assert samples == np.arange(12).reshape(4 // batch, 3 * batch).tolist()


def test_numbered_names_are_samples_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    numbered: dict[str, Any] = {f"{n}:{name}": np.full((1, 3), n) for n in (10, 2) for name in ("a", "b")}
    np.savez(tmp_path / "x.npz", **numbered)
    assert [sample["b"][0, 0] for sample in samples_of(tmp_path / "x.npz", (A, B))] == [2, 10]


def test_a_single_value_is_fed_to_all_samples(tmp_path: Path) -> None:
    np.savez(tmp_path / "x.npz", a=np.ones((4, 3)), b=np.full((1, 3), 640))
    assert [sample["b"].tolist() for sample in samples_of(tmp_path / "x.npz", (A, B))] == [[[640] * 3]] * 4
    np.savez(tmp_path / "y.npz", a=np.ones((4, 3)), b=np.full((3, 3), 640))
    with pytest.raises(InputError, match="different numbers of samples"):
        places_in(tmp_path / "y.npz", (A, B))


def test_a_missing_input_is_named_unless_it_may_be_missing(tmp_path: Path) -> None:
    np.savez(tmp_path / "x.npz", a=np.ones((1, 3)))
    with pytest.raises(InputError, match="'b'"):
        places_in(tmp_path / "x.npz", (A, B))
    (sample,) = read_places(places_in(tmp_path / "x.npz", (A, B), optional={"b"}))
    assert set(sample) == {"a"}


def test_integers_that_do_not_fit_are_refused_and_not_wrapped(tmp_path: Path) -> None:
    small = InputSpec(name="a", dtype="uint8", shape=(1, 3))
    np.save(tmp_path / "x.npy", np.array([[0, 255, 256]]))
    with pytest.raises(InputError, match="does not hold"):
        list(samples_of(tmp_path / "x.npy", (small,)))
    np.save(tmp_path / "x.npy", np.array([[0, 255, 1]]))
    assert [s["a"].tolist() for s in samples_of(tmp_path / "x.npy", (small,))] == [[[0, 255, 1]]]


def _npz(path: Path, name: str, content: bytes) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(name, content)
    return path


def _npy(shape: tuple[int, ...], content: bytes = b"") -> bytes:
    stream = io.BytesIO()
    np.lib.format.write_array_header_1_0(stream, {"descr": "<f4", "fortran_order": False, "shape": shape})
    return stream.getvalue() + content


@pytest.mark.parametrize("suffix", [".npy", ".npz"])
def test_a_header_that_claims_more_than_there_is_is_refused_before_anything_is_allocated(
    tmp_path: Path, suffix: str
) -> None:
    claim = _npy((1 << 40, 1 << 10), b"1234")
    path = tmp_path / f"x{suffix}"
    path.write_bytes(claim) if suffix == ".npy" else _npz(path, "a.npy", claim)
    with pytest.raises(InputError, match="cut off or damaged") as caught:
        read_arrays(path)
    assert "4,503,599,627,370,496 bytes, there are 4" in caught.value.why


def test_an_archive_that_unpacks_to_too_much_is_refused_by_its_headers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(arrays, "_LARGEST", 1 << 20)
    path = tmp_path / "x.npz"
    np.savez_compressed(path, a=np.zeros(100_000, np.float32), b=np.zeros(100_000, np.float32))
    assert set(read_headers(path)) == {"a", "b"}
    np.savez_compressed(path, a=np.zeros(200_000, np.float32), b=np.zeros(200_000, np.float32))
    assert path.stat().st_size < 10_000
    with pytest.raises(InputError, match="too large"):
        read_headers(path)


def test_pickles_and_absurd_headers_are_refused_without_advice_to_trust_them(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.array([{"a": 1}], dtype=object), allow_pickle=True)
    long = f"{{'descr': '<f4', 'fortran_order': False, 'shape': ({'1,' * 9000})}}".encode()
    (tmp_path / "y.npy").write_bytes(b"\x93NUMPY\x01\x00" + len(long).to_bytes(2, "little") + long)
    for name in ("x.npy", "y.npy"):
        with pytest.raises(InputError, match=name) as caught:
            read_arrays(tmp_path / name)
        assert "allow_pickle" not in str(caught.value)


@pytest.mark.parametrize(("name", "what"), [("notes.txt", "no array"), ("../a.npy", "")])
def test_what_else_lies_in_an_archive(tmp_path: Path, name: str, what: str) -> None:
    path = _npz(tmp_path / "x.npz", name, _npy((1,), b"1234"))
    if what:
        with pytest.raises(InputError, match=what):
            read_arrays(path)
    else:
        assert set(read_arrays(path)) == {"../a"}  # a name like any other: nothing is unpacked to disk


@each_row("name", ["file", "allow_pickle", "args", "x.npy", "a/b", "../up", "é", "a" * 5000, ""])
def test_any_name_is_kept(name: str, tmp_path: Path) -> None:
    """``numpy.savez(path, file=…)`` is an error, and quantizing a model with such an input was one."""
    values: dict[str, Any] = {name: np.arange(6, dtype=np.float32).reshape(2, 3), "other": np.ones((), np.int64)}
    write_arrays(tmp_path / "a.npz", values)
    for read in (read_arrays(tmp_path / "a.npz"), dict(np.load(tmp_path / "a.npz"))):
        assert read.keys() == values.keys()
        np.testing.assert_array_equal(read[name], values[name])
    assert [path.name for path in tmp_path.iterdir()] == ["a.npz"]
