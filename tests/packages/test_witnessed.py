"""What a report says of witnesses, of ladders and of quantizers."""

import hashlib
import json
import os
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from deploykit.backend.backend import CopiedFile
from deploykit.cli import cli
from deploykit.cli.frame import run
from deploykit.packages import manifests as module
from deploykit.packages.manifests import Look, Witnessed
from deploykit.packages.verifying import verify_package
from deploykit.packages.writing import PackageWriter
from deploykit.report.ladders import ladder_section, layer_bars
from deploykit.report.pages import quantized_section
from tables import each_row

LIE = (4, "not the digest")
"""A remembered answer that reading the file would never give."""


@pytest.fixture(autouse=True)
def _small_is_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_LARGE", 4)


def old(path: Path, content: bytes = b"abcd") -> Path:
    path.write_bytes(content)
    os.utime(path, ns=(1, 1))
    return path


def later(monkeypatch: pytest.MonkeyPatch, seconds: float = 10) -> None:
    """The clock is that much ahead and stands; the file system's is not."""
    now = time.time_ns() + int(seconds * 1e9)
    monkeypatch.setattr(time, "time_ns", lambda: now)


def test_an_untouched_file_is_not_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, seen = old(tmp_path / "a"), Witnessed()
    later(monkeypatch)
    seen.note_read(Look.at(path.stat()), path.stat(), *LIE)
    assert seen.hash(path) == LIE


def test_a_file_written_to_is_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, seen = old(tmp_path / "a"), Witnessed()
    later(monkeypatch)
    seen.note_read(Look.at(path.stat()), path.stat(), *LIE)
    old(path, b"efgh")  # the same size, and the time of the last write as before
    assert seen.hash(path) == (4, hashlib.sha256(b"efgh").hexdigest())


def test_a_file_written_to_a_moment_ago_is_not_remembered(tmp_path: Path) -> None:
    path, seen = old(tmp_path / "a"), Witnessed()
    seen.note_read(Look.at(path.stat()), path.stat(), *LIE)
    assert seen.hash(path) != LIE


@each_row(
    ("before", "linked", "size", "known"),
    ({}, False, 4, True),
    ({"st_ctime_ns": 1}, True, 4, True),  # another name changes the last time of a file, and nothing else
    ({"st_ctime_ns": 1}, False, 4, False),
    ({"st_mtime_ns": 2}, True, 4, False),
    ({}, False, 5, False),
)
def test_only_what_was_the_same_all_the_while_is_remembered(
    before: dict[str, int], linked: bool, size: int, known: bool, tmp_path: Path
) -> None:
    path, seen = old(tmp_path / "a"), Witnessed()
    names = ("st_dev", "st_ino", "st_size", "st_mtime_ns", "st_ctime_ns")
    status = SimpleNamespace(**{name: getattr(path.stat(), name) for name in names} | before)
    look = Look(status=cast("os.stat_result", status), settled=True)
    seen.note_read(look, path.stat(), size, LIE[1], linked=linked)
    assert (seen.hash(path) == LIE) is known and seen.hash(path, size=9) != LIE


def test_times_of_whole_seconds_are_trusted_later(monkeypatch: pytest.MonkeyPatch) -> None:
    second = 1_700_000_000
    times = SimpleNamespace(st_mtime_ns=second * 10**9, st_ctime_ns=second * 10**9)
    status = cast("os.stat_result", times)
    monkeypatch.setattr(time, "time_ns", lambda: (second + 1) * 10**9)
    assert not Look.at(status).settled
    monkeypatch.setattr(time, "time_ns", lambda: (second + 3) * 10**9)
    assert Look.at(status).settled


def test_a_package_tampered_with_before_it_is_checked_does_not_verify(tmp_path: Path) -> None:
    source = old(tmp_path / "weights", b"0123456789")
    with PackageWriter(tmp_path / "out") as writer:
        writer.add([CopiedFile(path="model/weights", source=source)])
        writer.seal({"schema": 1, "deploykit": "0.1.0", "backend": "qnn-htp"})
        (writer.folder / "model/weights").write_bytes(b"9876543210")
        report = verify_package(writer.folder, witnessed=writer.witnessed)
        assert [check.id for check in report.checks if not check.ok] == ["files-unchanged"]
        writer.publish()


MLP = Path(__file__).parents[1] / "data" / "aimet" / "mlp" / "model.onnx"


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    place = tmp_path_factory.mktemp("ladder")
    rows = np.random.default_rng(5).normal(size=(6, 1, 8, 64)).astype(np.float32)
    np.savez(place / "rows.npz", hidden_states=rows)
    asked = ["accuracy", "ladder", str(MLP), "--data", str(place / "rows.npz"), "--goal", "sqnr>=45", "--json"]
    with (place / "told.json").open("w") as file, pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.stdout", file)
        assert run(cli, asked) == 0
    found: dict[str, Any] = json.loads((place / "told.json").read_text())
    return found


def test_quality_lies_against_time_where_a_compiler_was_asked(told: dict[str, Any]) -> None:
    by_bits = ladder_section(told)
    times = {"fp16": 80.0, "w8a16": 90.0, "w8a8": 40.0}
    timed = [{**row, "time_us": times.get(row["precision"])} for row in told["candidates"]]
    by_time = ladder_section({**told, "candidates": timed})
    assert (by_bits["has_times"], by_time["has_times"]) == (False, True)
    points = by_time["scatter"]["points"]
    assert [point["label"] for point in points] == ["fp16", "w8a16", "w8a8"], "no trial, nothing untimed"
    fp16, w8a16, w8a8 = (point["place"] for point in points)
    assert w8a8["left"] < fp16["left"] < w8a16["left"]
    assert by_time["scatter"]["front"] == [(w8a8, fp16)], "w8a16 is slower than fp16, and no better"


def test_what_leaves_nothing_has_the_longest_bar() -> None:
    rows = [
        {"layer": "all", "op_type": "Conv", "loss_db": {"together": "nothing left"}},
        {"layer": "some", "op_type": "Conv", "loss_db": {"together": 12.5}},
        {"layer": "none", "op_type": "Conv", "loss_db": {"together": None}},
    ]
    bars = layer_bars({"raised": {"sensitivity": rows}})
    assert [bar["words"]["together"] for bar in bars] == ["nothing left", "12.5 dB", "no difference"]
    assert [bar["lengths"]["together"] for bar in bars][::2] == [100.0, 0.0]
    assert layer_bars({"raised": None}) == []


ACCOUNT: dict[str, Any] = {
    "quantizer": "aimet",
    "toolchain": "aimet==2.42.0",
    "versions": {"torch": "2.13", "aimet-onnx": "2.42.0"},
    "precision": "w8a8",
    "options": {"scheme": "min_max", "cle": True, "lpbq": False, "configuration": None, "candidates": 0},
    "notes": ["4 BatchNormalizations folded"],
    "seconds": {"start": 1.25, "calibrate": 9.0},
    "calibration": {"seen": 8},
    "numbers": {
        "sqnr_db": 35.04,
        "quantizers_own": {"sqnr_db": 35.04, "agreement_db": None, "exact": True},
        "samples": {"count": 2, "held_out": True},
        "outputs": [{"name": "y", "sqnr_db": None, "cosine": 1.0, "max_error": 0.0}],
    },
}


def shown(**changes: Any) -> dict[str, str]:
    return dict(quantized_section({**ACCOUNT, **changes})["facts"])


def test_the_account_is_told_in_words() -> None:
    told = shown()
    assert told["made by"] == "aimet==2.42.0 (aimet-onnx 2.42.0, torch 2.13)"
    assert told["options"] == "scheme min_max, cle, candidates 0"
    assert told["samples"] == "8 to calibrate, 2 held out to judge" and told["took"] == "10 s"
    assert told["in the quantizer's own simulation"] == "35.0 dB, the same to the bit"
    none = {"sqnr_db": None, "agreement_db": None, "exact": False}
    without = shown(numbers={**ACCOUNT["numbers"], "quantizers_own": none})
    assert without["in the quantizer's own simulation"] == "it has none"
    section = quantized_section(ACCOUNT)
    assert section["notes"] == ACCOUNT["notes"]
    assert section["outputs"] == [("y", "no difference", "1", "0")]
