"""What ``mix`` raises is legal for the target: packaged again, its encodings break no rule, and they reach the goal."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest

import deploykit

ZOO = Path(__file__).parents[1] / "data" / "zoo"


@pytest.mark.heavy
@pytest.mark.parametrize(("name", "goal"), [("resnet", 45), ("superres", 55), ("vit", 35)])
def test_the_layers_that_are_raised_are_legal(name: str, goal: int, tmp_path: Path) -> None:
    """On QAIRT 2.33: no float16 times 8-bit product, no tensor that has two types."""
    with zipfile.ZipFile(ZOO / f"{name}.zip") as archive:
        archive.extractall(tmp_path)
    model, data, made = tmp_path / "model.onnx", tmp_path / "held_out.npz", tmp_path / "mixed.encodings"
    mixed = deploykit.mix(model, goal=f"sqnr>={goal}", precision="w8a8", data=data, target="sm8650", sdk="2.33")
    assert mixed.raised.met
    assert 0 < mixed.raised.best.count < len(mixed.sensitivity.layers)
    made.write_text(mixed.text)
    found = deploykit.check(model, encodings=made, calibration=data, second_opinion=False, target="sm8650", sdk="2.33")
    assert [finding.code for finding in found if finding.blocks] == []
