"""Detectors that decode boxes inside, quantized with real Quark: their ends stay in float without being named."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from deploykit.accuracy.simulate.sessions import Session
from deploykit.backend.backend import Request
from deploykit.backend.status import Right
from deploykit.cli import cli
from deploykit.cli.frame import run as command
from deploykit.findings import Severity
from deploykit.flow.pipeline import Packaged, make_package
from deploykit.packages.verifying import verify_package as verify
from deploykit_vitis_ai.runner import quark_environment, run_quark
from sample_models.finished_detectors import DETECTORS, Numbers, Values, count_kept, detections_of, scenes

pytestmark = pytest.mark.xdist_group("quark")

Make = Callable[..., Packaged]


@pytest.fixture(scope="module", autouse=True)
def quark() -> None:
    """The Quark that belongs to the newest Vitis AI."""
    assert command(cli, ["toolchain", "install", "quark==0.12.post1"]) == 0


@pytest.fixture
def make(tmp_path: Path) -> Make:
    data = tmp_path / "scenes"
    data.mkdir()
    for index, feed in enumerate(scenes(32)):
        np.save(data / f"{index:02}.npy", feed["images"])

    def package(name: str, **options: Any) -> Packaged:
        path = tmp_path / f"{name}.onnx"
        onnx.save(DETECTORS[name](), path)
        values: dict[str, Any] = {"calibration": data, "compile": True, "precision": "vint8"} | options
        return make_package(Request(model=path, target="vek385", **values), tmp_path / f"out_{name}")

    return package


def kept(name: str, packaged: Packaged) -> tuple[int, int]:
    """Detections of the float model that the packaged one has, run in ONNX Runtime on other scenes."""
    assert packaged.package is not None
    (model,) = (packaged.package / "artifacts").glob("*.onnx")
    fresh = scenes(32, seed=1)
    sides = [Session(made) for made in (DETECTORS[name](), onnx.load(model))]
    return count_kept(*([side.run(feed) for feed in fresh] for side in sides))


def findings(packaged: Packaged) -> Mapping[str, Any]:
    return {finding.code: finding for finding in packaged.findings}


@pytest.mark.parametrize("name", ["yolo", "ssd"])
def test_an_end_that_integers_destroy_stays_in_float(make: Make, name: str) -> None:
    packaged = make(name)
    found, every = kept(name, packaged)
    assert every > 200
    assert found >= 0.9 * every, f"{found} of {every}"
    assert packaged.exit_status == 0
    assert packaged.status.right.state is Right.YES
    told = findings(packaged)
    assert told["DK601"].handled is not None, "what integers made of it stays said"
    assert "stay in float" in told["VAI280"].message
    assert {"VAI206", "VAI281"}.isdisjoint(told)
    assert packaged.package is not None
    recipe = json.loads((packaged.package / "config/quantize.json").read_text())
    assert set(told["VAI280"].evidence["nodes"]) <= set(recipe["attributes"]["nodes_to_exclude"])
    assert verify(packaged.package).ok


def test_told_to_leave_nothing_out_it_keeps_nothing(make: Make) -> None:
    packaged = make("yolo", adapter_options={"exclude_nothing": True})
    found, every = kept("yolo", packaged)
    assert found == 0 < every
    assert packaged.exit_status == 1
    assert packaged.status.right.state is Right.NO
    assert findings(packaged)["DK601"].severity is Severity.ERROR
    assert "VAI280" not in findings(packaged)


def test_an_end_that_survives_integers_is_quantized_with_the_rest(make: Make) -> None:
    """Boxes and scores of this one leave by doors of their own: nothing is wrong, and nothing is tried."""
    packaged = make("detr")
    found, every = kept("detr", packaged)
    assert found >= 0.9 * every > 180, f"{found} of {every}"
    assert packaged.status.right.state is Right.YES
    assert {"VAI280", "VAI281"}.isdisjoint(findings(packaged))
    assert packaged.plan.route is not None
    assert packaged.plan.route.id == "quark-vint8"


def test_auto_goes_on_to_the_format_that_keeps_nearly_all_detections(make: Make) -> None:
    """In int8 the judge is content with the decoding in float, and every tenth detection falls below 0.25."""
    packaged = make("yolo", precision="auto")
    assert packaged.exit_status == 0
    assert packaged.status.right.state is Right.YES
    rungs = findings(packaged)["VAI283"].evidence["rungs"]
    assert [rung["chosen"] for rung in rungs] == [False, False, False, True]
    assert [rung["outcome"].split(",")[0] for rung in rungs] == ["wrong", "right", "right", "right"]
    assert packaged.plan.route is not None
    assert packaged.plan.route.id == "compiler-bf16"
    assert packaged.package is not None
    assert counted("yolo", packaged.package) >= 0.95


def counted(name: str, package: Path) -> float:
    """The share of detections that the package's imitation of bfloat16 keeps on scenes that nobody saw, by overlap."""
    environment = quark_environment("quark==0.12.post1")
    done = run_quark(environment, package, recipe="config/validation_only_bf16.json", progress=lambda line: None)
    sides = [Session(made) for made in (DETECTORS[name](), onnx.load(package / done.output))]
    kept, every = count_overlapping(*([side.run(feed) for feed in scenes(32, seed=1)] for side in sides))
    assert every > 200
    return kept / every


def test_auto_measures_bfloat16_and_packages_it_with_what_was_seen(make: Make, tmp_path: Path) -> None:
    """No integers are good enough for this goal; nothing runs in the package that the compiler gets."""
    few = tmp_path / "few"
    few.mkdir()
    for index, feed in enumerate(scenes(4)):
        np.save(few / f"{index}.npy", feed["images"])
    whole = {"exclude_nothing": True}
    packaged = make("yolo", precision="auto", goal="sqnr>=1000", calibration=few, adapter_options=whole)
    rungs = findings(packaged)["VAI283"].evidence["rungs"]
    assert [(rung["tried"], rung["chosen"]) for rung in rungs] == [("vint8", False), ("bf16", True)]
    assert packaged.plan.route is not None
    assert packaged.plan.route.id == "compiler-bf16"
    assert packaged.status.right.state is Right.YES
    assert packaged.status.right.count == 4
    assert packaged.package is not None
    assert verify(packaged.package).ok
    assert "none of them reach sqnr >= 1000 dB" in findings(packaged)["VAI283"].message


def test_mixed_without_a_word_about_what_stays_in_float_finds_it(make: Make) -> None:
    packaged = make("yolo", precision="mixed")
    found, every = kept("yolo", packaged)
    assert found >= 0.9 * every, f"{found} of {every}"
    assert "VAI282" in findings(packaged)
    assert packaged.exit_status == 0


def count_overlapping(reference: Sequence[Values], others: Sequence[Values]) -> tuple[int, int]:
    """(kept, all) as by hand: one to one, of one class, over 0.25 on both sides, boxes that overlap by half or more."""
    kept = every = 0
    for one, two in zip(reference, others, strict=True):
        (boxes, labels), (others_boxes, others_labels) = detections_of(one), detections_of(two)
        free = set(range(len(others_boxes)))
        for box, label in zip(boxes, labels, strict=True):
            near = [(_overlap(box, others_boxes[j]), j) for j in free if others_labels[j] == label]
            overlap, place = max(near, default=(0.0, -1))
            if overlap >= 0.5:
                free.remove(place)
                kept += 1
        every += len(boxes)
    return kept, every


def _overlap(one: Numbers, two: Numbers) -> float:
    """Intersection over union of two boxes given by centre and size."""
    width, height = (
        min(one[i] + one[i + 2] / 2, two[i] + two[i + 2] / 2) - max(one[i] - one[i + 2] / 2, two[i] - two[i + 2] / 2)
        for i in (0, 1)
    )
    both = max(width, 0.0) * max(height, 0.0)
    return float(both / max(one[2] * one[3] + two[2] * two[3] - both, 1e-9))
