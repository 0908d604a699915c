"""The attack itself: its judge takes rounding for no fault, and most of its files get behind the first look."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest
from onnx import parser

from attacks.in_double import outputs_in_double
from attacks.kinds import KINDS, Ground
from attacks.many import run_many
from attacks.parts import as_near_to_the_truth

CANCELLING = """
<ir_version: 10, opset_import: ["": 21]>
cancelling (float[8] x, bool c) => (float[8] y)
<float big = {10000.0}>
{
    one = Constant <value_float = 1.0> ()
    scaled = Mul (x, one)
    y = If (c) <then_branch = then () => (float[8] t) { up = Add (scaled, big)  t = Sub (up, big) },
                else_branch = other () => (float[8] e) { e = Cast <to = 1> (scaled) }>
}
"""


@pytest.fixture
def feed() -> dict[str, np.ndarray]:
    return {"x": np.linspace(0.1, 0.8, 8, dtype=np.float32), "c": np.array(True)}


def test_float64_is_nearer_to_the_truth(feed: dict[str, np.ndarray]) -> None:
    got = outputs_in_double(parser.parse_model(CANCELLING), feed)
    assert got["y"].dtype == np.float64
    np.testing.assert_allclose(got["y"], feed["x"], rtol=1e-10)


@pytest.mark.parametrize(("factor", "fine"), [(1.0, True), (1.00001, True), (1.01, False), (np.nan, False)])
def test_what_lies_as_near_as_the_original_is_no_fault(feed: dict[str, np.ndarray], factor: float, fine: bool) -> None:
    model = parser.parse_model(CANCELLING)
    wanted = {"y": (feed["x"] + np.float32(1e4)) - np.float32(1e4)}
    got = {"y": feed["x"] * np.float32(factor)}
    assert as_near_to_the_truth(model, feed, wanted, got, allowed=64.0) is fine


@pytest.fixture(scope="module")
def ground(tmp_path_factory: pytest.TempPathFactory) -> Ground:
    return Ground(tmp_path_factory.mktemp("ground"))


def _folder(parent: Path, number: int) -> Path:
    folder = parent / str(number)
    folder.mkdir()
    return folder


def test_most_bad_files_get_behind_the_first_look(ground: Ground, tmp_path: Path) -> None:
    """A harness whose every file is refused at the door tests the door only."""
    chance = random.Random(0)
    kinds = [kind for kind in KINDS if kind.id.startswith(("check of", "rewrites of", "verify a forged"))]
    endings = run_many([kind.arrange(chance, _folder(tmp_path, n), ground) for n, kind in enumerate(kinds)])
    assert sum(ending.status in (0, 1) for ending in endings) >= len(endings) // 4
    assert not [ending for ending in endings if ending.status == 2]
