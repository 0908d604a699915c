"""The network as a strip of its nodes, kernels on their threads, ranges on their axis."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import onnx.parser
import pytest

from deploykit.accuracy.latency import Estimate, TraceEvent
from deploykit.backend.plans import PlannedPrecision
from deploykit.encodings.formats.aimet import read_encodings
from deploykit.findings import Finding, Severity, Subject, SubjectKind
from deploykit.model import wrap_proto
from deploykit.model.collect import collect_facts
from deploykit.model.facts import GraphFacts
from deploykit.report.charts import network_strip, range_chart, timeline

AIMET = Path(__file__).parents[1] / "data" / "aimet"


def facts(body: str) -> GraphFacts:
    head = '<ir_version: 8, opset_import: ["" : 17]> net (float[4] x) => (float[4] y)'
    return collect_facts(wrap_proto(onnx.parser.parse_model(f"{head} {{ {body} }}"), path=Path("net.onnx")))


def test_the_strip_shows_types_as_expected_and_what_is_open() -> None:
    graph = facts("a = Relu(x) b = Neg(a) y = Abs(b)")
    open_one = Finding(
        code="DK001",
        slug="made-up",
        severity=Severity.WARNING,
        subject=Subject(kind=SubjectKind.TENSOR, name="b"),
        message="",
    )
    precision = PlannedPrecision(intended={"a": "uint16", "b": "uint16"}, expected={"a": "uint8", "b": "uint16"})
    shown = network_strip(precision, graph, [open_one, open_one.with_handled("done")])
    assert shown is not None and (shown.count, shown.total) == (3, 3)
    assert [(run.kind, run.noted) for run in shown.runs] == [("uint8", False), ("uint16", True), ("", False)]
    assert "DK001 made-up" in shown.runs[1].words
    assert shown.kinds == ("uint16", "uint8")
    handled = network_strip(precision, graph, [open_one.with_handled("done")])
    assert handled is not None and not any(run.noted for run in handled.runs)


def test_ranges_stand_where_their_steps_and_ends_are() -> None:
    chart = range_chart(read_encodings(AIMET / "cnn" / "w8a16.v1.0.0.encodings"))
    assert chart is not None
    assert chart.limits[0][1] < chart.limits[1][1]
    ends = [bar.end for bar in chart.bars]
    assert ends == sorted(ends, reverse=True)
    for bar in chart.bars:
        # A step of 8 bits is 257 of 16 bits: the same distance on a logarithmic axis, wherever the bar stands.
        assert bar.eight - bar.sixteen == pytest.approx(chart.bars[0].eight - chart.bars[0].sixteen, abs=0.02)
        assert bar.eight < bar.end
        assert not bar.beyond


def test_short_kernels_are_drawn_together_and_none_is_lost() -> None:
    events = [
        TraceEvent(f"n{at % 90}", f"HVX {lane}", 10.0 * at, 9.0, "vector") for lane in range(4) for at in range(20_000)
    ]
    estimate = Estimate(time_us=1000.0, lower_us=0.0, upper_us=0.0, cycles=200_000, events=tuple(events))
    line = timeline(estimate)
    assert line is not None and line.merged
    assert [lane.name for lane in line.lanes] == ["HVX 0", "HVX 1", "HVX 2", "HVX 3"]
    assert sum(len(lane.stretches) for lane in line.lanes) <= 1500
    for lane in line.lanes:
        assert lane.busy == "900 us"
        assert sum(one.width for one in lane.stretches) == pytest.approx(100, abs=5)
    few = timeline(replace(estimate, events=tuple(events[:3])))
    assert few is not None
    assert [one.words for one in few.lanes[0].stretches] == [
        f"n{at}\n0.045 us at {0.05 * at:.2g} us" for at in range(3)
    ]
    assert timeline(replace(estimate, events=())) is None


def test_the_strip_is_coloured_by_time() -> None:
    graph = facts("a = Relu(x) b = Neg(a) c = Relu(b) d = Neg(c) e = Relu(d) f = Neg(e) y = Abs(f)")
    parts = (0.004, 0.001, 0.0051, 0.021, 0.051, 0.149, 0.151)
    shares = {node.label: share for node, share in zip(graph.nodes, parts, strict=True)}
    shown = network_strip(PlannedPrecision(), graph, [], shares=shares, kind="float16")
    assert shown is not None and shown.kinds == ("float16",)
    heat = [(run.kind, run.count) for run in shown.heat]
    assert heat == [("h-0", 2), ("h-1", 1), ("h-2", 1), ("h-3", 2), ("h-4", 1)]
    assert "15.1% of the time" in shown.heat[-1].words
