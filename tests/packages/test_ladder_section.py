"""The story of a ladder on a page: what single layers cost is drawn from what the manifest holds, no more."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from deploykit.cli import cli
from deploykit.cli.frame import run
from deploykit.report.ladders import ladder_section

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


def test_the_bars_are_those_of_the_published_numbers(told: dict[str, Any]) -> None:
    step = next(step for step in told["steps"] if step["raised"])
    costs, bars = step["raised"]["sensitivity"], ladder_section(told).costs(step)
    together = [row["loss_db"]["together"] for row in costs]
    assert len(together) > 2 and together == sorted(together), "the worst first"
    assert [bar.label for bar in bars] == [row["layer"] for row in costs]
    for bar, row in zip(bars, costs, strict=True):
        apart = {name: db for name, db in row["loss_db"].items() if name != "together" and db is not None}
        assert {name: words for name, words in bar.words.items() if words != "no difference"} == {
            name: f"{db:.1f} dB" for name, db in apart.items()
        }
    known = [(words, bar.lengths[name]) for bar in bars for name, words in bar.words.items() if words.endswith(" dB")]
    lengths = [length for _, length in sorted(known, key=lambda pair: float(pair[0].split()[0]))]
    assert lengths == sorted(lengths, reverse=True)
    assert lengths[0] > lengths[-1] > 0


def test_quality_lies_against_time_where_a_compiler_was_asked(told: dict[str, Any]) -> None:
    by_bits = ladder_section(told)
    times = {"fp16": 80.0, "w8a16": 90.0, "w8a8": 40.0}
    timed = [{**row, "time_us": times.get(row["precision"])} for row in told["candidates"]]
    by_time = ladder_section({**told, "candidates": timed})
    assert (by_bits.has_times, by_time.has_times) == (False, True)
    assert [point.label for point in by_time.scatter.points] == ["fp16", "w8a16", "w8a8"], "no trial, nothing untimed"
    fp16, w8a16, w8a8 = (point.place for point in by_time.scatter.points)
    assert w8a8.left < fp16.left < w8a16.left
    assert by_time.scatter.front == ((w8a8, fp16),), "w8a16 is slower than fp16, and no better"


def test_what_leaves_nothing_has_the_longest_bar(told: dict[str, Any]) -> None:
    rows = [
        {"layer": "all", "op_type": "Conv", "loss_db": {"together": "nothing left"}},
        {"layer": "some", "op_type": "Conv", "loss_db": {"together": 12.5}},
        {"layer": "none", "op_type": "Conv", "loss_db": {"together": None}},
    ]
    bars = ladder_section(told).costs({"raised": {"sensitivity": rows}})
    assert [bar.words["together"] for bar in bars] == ["nothing left", "12.5 dB", "no difference"]
    assert [bar.lengths["together"] for bar in bars][::2] == [100.0, 0.0]
    assert ladder_section(told).costs({"raised": None}) == ()
