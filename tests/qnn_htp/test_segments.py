"""A model that is cut: one conversion and one context per segment, what the plan says of it, and how it won."""

import os
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

import deploykit
from deploykit.backend.backend import Request, SharedWork, Situation
from deploykit.encodings.values import EncodingSet
from deploykit.flow.choose import choose_way
from deploykit.flow.pipeline import Packaged
from deploykit.flow.read import read_situation
from deploykit_qnn_htp.planning import make_plan
from deploykit_qnn_htp.prepare import prepare

DETR = Path(__file__).parents[1] / "data" / "aimet" / "detr"
NAMES = ("segment_0_quantized", "segment_1_float", "segment_2_quantized")


def made(style: str, out: Path, **more: Any) -> Packaged:
    """One style of the mix, packaged in another way than into segments."""
    encodings = DETR / f"w8a16-fp16mix-{style}.v0.6.1.encodings"
    return deploykit.package(
        DETR / "model.onnx", target="sm8650", encodings=encodings, out=out, **{"sdk": "2.33", **more}
    )


@cache
def cut() -> Situation:
    asked: Any = {"model": DETR / "model.onnx", "target": "sm8650", "sdk": "2.33", "backend": "qnn-htp"}
    request = Request(encodings=DETR / "w8a16-fp16mix-explicit.v0.6.1.encodings", mixed="segments", **asked)
    backend, situation = read_situation(request)
    return choose_way(backend, situation, SharedWork(), lambda line: None).situation


def test_the_three_ways_are_compared(cut_packages: dict[str, Packaged], tmp_path: Path) -> None:
    """Segments that were insisted on are all that is built; left to itself another way wins, and loses no less."""
    style = "omit"
    ways = {way["id"]: way for way in cut_packages[style].plan.candidates}
    assert ways["segments"]["won"] and ways["segments"]["segments"] == 3
    assert ways["segments"]["overall_db"] >= 60
    assert all(ways[n]["overall_db"] is None and "not asked for" in ways[n]["why"] for n in ("rewrite", "fallback"))
    automatic = made(style, tmp_path / "auto", mixed="auto")
    (won,) = [way for way in automatic.plan.candidates if way["won"]]
    assert won["id"].startswith("rewrite") and won["float16_tensors"] == 0
    assert won["overall_db"] >= 60
    fallback = made(style, tmp_path / "fallback", mixed="fallback")
    assert fallback.plan.route is not None and fallback.plan.route.id == "legacy-float-fallback"


@pytest.mark.heavy
def test_the_same_inputs_give_the_same_bytes(cut_packages: dict[str, Packaged], tmp_path: Path) -> None:
    """In a process whose sets are ordered differently."""
    encodings, one = DETR / "w8a16-fp16mix-explicit.v0.6.1.encodings", cut_packages["explicit"].package
    words = f"package {DETR / 'model.onnx'} --target sm8650 --sdk 2.33 --mixed segments --encodings {encodings} -o"
    command = [sys.executable, "-m", "deploykit", *words.split(), str(tmp_path / "again")]
    # It finds the templates where this process does: an installed package elsewhere may be another state of them.
    around = {**os.environ, "PYTHONHASHSEED": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(command, env=around, capture_output=True, check=False)
    assert done.returncode == 0 and one is not None, done.stderr
    first, second = ({p.relative_to(f): p for p in f.rglob("*") if p.is_file()} for f in (one, tmp_path / "again"))
    assert first.keys() == second.keys()
    assert [name for name in first if first[name].read_bytes() != second[name].read_bytes()] == []


def without(situation: Situation, name: str) -> Situation:
    """The same cut under encodings that lack an entry."""

    def lacking(encodings: EncodingSet | None) -> EncodingSet | None:
        kept = {} if encodings is None else {key: e for key, e in encodings.entries.items() if key != name}
        return None if encodings is None else replace(encodings, entries=kept)

    segments = tuple(replace(segment, encodings=lacking(segment.encodings)) for segment in situation.segments)
    return replace(situation, encodings=lacking(situation.encodings), segments=segments)


def test_a_segment_without_a_route_makes_the_plan_infeasible() -> None:
    assert make_plan(prepare(cut(), SharedWork())).feasible
    plan = make_plan(prepare(without(cut(), "/backbone/act0/Mul_output_0"), SharedWork()))
    (gap,) = [finding for finding in plan.findings if finding.code == "QNN105"]
    assert gap.blocks
    # Without a grid of its input, a bias has none either.
    assert gap.evidence["tensors"] == ["/backbone/act0/Mul_output_0", "backbone.conv1.bias"]
    assert plan.route is None and plan.steps == ()
    assert not plan.feasible and {row.id.partition(":")[0] for row in plan.rejected} == {NAMES[0]}


def test_the_float_segment_is_of_the_float_type_that_is_asked_for() -> None:
    asked = replace(cut(), request=replace(cut().request, precision="fp32"))
    steps = {step.id: step.argv for step in make_plan(prepare(asked, SharedWork())).steps}
    argv = steps["convert-1"]
    assert argv[argv.index("--float_bitwidth") + 1] == "32" and "--quantization_overrides" not in argv
