"""What pages draw and say, as values: each case stands in ``values.json`` with its whole answer.

After a change that is wanted: ``DEPLOYKIT_WRITE_GOLDEN=1 pytest -n 0 tests/report``, then read the difference.
"""

import json
import math
import os
import tempfile
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import onnx
import pytest
from msgspec.structs import replace

from deploykit import api
from deploykit.accuracy.judge.kinds import DetectionSet, OutputKind, Piece
from deploykit.accuracy.latency import Estimate, TraceEvent
from deploykit.backend.opinions import Audit, AuditedKernel
from deploykit.backend.plans import PlannedPrecision
from deploykit.backend.status import Compilation, Compiled, Correctness, PackageStatus, Right
from deploykit.encodings.values import Affine, Encoding, EncodingSet
from deploykit.errors import DefectError
from deploykit.findings import Severity, SubjectKind
from deploykit.fleet.on_devices import DeviceRun
from deploykit.fleet.pages import junit_of, render_matrix, size_text
from deploykit.fleet.results import CellResult, Results
from deploykit.model.collect import collect_facts
from deploykit.model.load import wrap_proto
from deploykit.report import rendering
from deploykit.report.charts import decibels, loss_bars, network_strip, range_chart, share_of, spark, spread, timeline
from deploykit.report.detections import KeptBox, boxes_beside, kept_boxes, picture_in, png
from deploykit.report.explaining import costs_by_output, explained, samples_wanted, shipping
from deploykit.report.for_ci import JUnitCase, junit_text, run_cases, to_sarif
from deploykit.report.ladders import ladder_section, render_sensitivity
from deploykit.report.pages import audit_section, quantized_section
from made_findings import a_finding
from tables import each_row
from text_models import text_model

HERE = Path(__file__).parent
GOLDEN = HERE / "values.json"


def read(name: str) -> Any:
    """What a package's manifest or a command's answer holds, written by hand."""
    return json.loads((HERE / name).read_text("utf-8"))


def grid(name: str, scale: float, zero_point: float = 0, *, bits: int = 8, param: bool = False) -> Encoding:
    value = Affine(bits=bits, signed=False, scale=np.array(scale), zero_point=np.array(zero_point))
    return Encoding(name=name, value=value, is_param=param)


def ranges(*entries: Encoding) -> Any:
    return range_chart(EncodingSet(version="1.0.0", entries={entry.name: entry for entry in entries}))


def strip(body: str, *findings: Any, **more: Any) -> Any:
    facts = collect_facts(wrap_proto(text_model("float[4] x", body, "float[4] y"), path=Path("net.onnx")))
    precision = PlannedPrecision(intended=more.pop("intended", {}), expected=more.pop("expected", {}))
    return network_strip(precision, facts, findings, **more)


def lanes(*events: TraceEvent) -> Any:
    return timeline(Estimate(time_us=500.0, lower_us=0.0, upper_us=0.0, cycles=1000, events=events))


def together() -> Any:
    """Where no more than three stretches may be drawn, those of five kernels."""
    at = {0: 100, 100: 2, 102: 1, 103: 1, 500: 500}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("deploykit.report.charts._MOST_STRETCHES", 3)
        return lanes(*(replace(EVENT, node=f"n{start}", start=start, duration=long) for start, long in at.items()))


KERNELS = (
    AuditedKernel(node="a", nodes=("a",), operators=("Relu",), type="u8", place="alone", verdict="right"),
    *(
        AuditedKernel(node=f"n{at}", nodes=("n",), operators=("Exp",), type="u8", place="alone", verdict="wrong")
        for at in range(201)
    ),
)


def audited() -> Any:
    section = audit_section(Audit(level="full", by="somebody", kernels=KERNELS))
    assert section is not None
    return {name: len(value) if isinstance(value, list) else value for name, value in section.items()}


NUMBER = {"output": "y", "measure": "sqnr", "value": 40.0, "unit": "dB", "threshold": 12.0, "passes": True}
FLOAT, DEVICE = {**NUMBER, "against": "float"}, {**NUMBER, "against": "quantized"}
RIGHT = Correctness(state=Right.YES, label="given", count=8, against="float", numbers=(FLOAT,))
GOOD = PackageStatus(compiled=Compilation(state=Compiled.YES, by="a compiler"), right=RIGHT)
ERROR = a_finding(code="DK001", slug="dynamic-input", message="x has no size", hint="give it one")
LOST = a_finding(slug="lost-by-quantization", hint="widen it", severity=Severity.WARNING)


def ship(*findings: Any, right: Mapping[str, Any] | None = None, where: Path | None = None, **changed: Any) -> Any:
    status = replace(GOOD, **changed)
    return shipping(replace(status, right=replace(status.right, **(right or {}))), findings, where)


def wanted(**right: Any) -> Any:
    return samples_wanted(Correctness(**right))


def drawn(ladder: Any) -> Any:
    """What a template is given, without what it is handed through."""
    section = ladder_section(ladder)
    rows = [{name: value for name, value in row.items() if name != "told"} for row in section["rows"]]
    winner = None if section["winner"] is None else section["rows"].index(section["winner"])
    return {**section, "rows": rows, "winner": winner, "steps": [step["costs"] for step in section["steps"]]}


def given(page: str, make: Callable[[], object]) -> Any:
    """What the template of a page is given."""
    seen: list[Any] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(f"{page}.render", lambda template, values, **_: seen.append([template, values]))
        make()
    return seen


def matrix(*, right: bool = False, not_run: tuple[str, ...] = ("b/q",)) -> Any:
    """The page of a matrix, and the same for servers."""
    number = {"measure": "sqnr", "value": 40.04}
    good = {"status": {"right": "yes", "numbers": [number, {**number, "value": 50}]}, "package": "package"}
    good |= {"estimate": {"time_us": 1500}}
    bad = {"findings": [{"severity": "error", "code": "DK1", "message": "it is odd"}], "package": "package"}
    error = {"what": "it fell", "why": "", "next": "mend it"}
    cells = [CellResult(cell="a/p", key="", exit_status=0, outcome=good, bytes=1536, seconds=1.26)]
    if not right:
        cells += [
            CellResult(cell="a/q", key="", exit_status=1, outcome=bad, bytes=3 << 20, seconds=2.0),
            CellResult(cell="b/p", key="", exit_status=5, error=error),
        ]
    models, targets = (("a",), ("p",)) if right else (("a", "b"), ("p", "q", "r"))
    results = Results(models=models, targets=targets, cells=tuple(cells), not_run=not_run)
    also = {"runs": [JUnitCase(name="a/p", message="right")]}
    junit = junit_of(results, "all", None if right else also).splitlines()
    return [given("deploykit.fleet.pages", lambda: render_matrix(results, "m.toml")), junit, results.exit_status]


def seen_in(feed: Any) -> Any:
    found = picture_in({"n": np.zeros((1, 4)), "x": np.asarray(feed)})
    if found is None:
        return None
    places = [found.pixels[at].tolist() for at in ((0, 0), (10, 20), (-1, -1))]
    return [found.input, found.size, found.is_stretched, found.pixels.shape[2], *places]


def packed(rows: Any, longest: int) -> Any:
    """The parts of a picture in a file, and the rows in it."""
    data = png(np.array(rows, np.uint8), longest=longest)
    head, body = data.index(b"IHDR"), data.index(b"IDAT")
    size = int.from_bytes(data[body - 4 : body], "big")
    return [data[:8].hex(), data[head + 4 : head + 17].hex(), zlib.decompress(data[body + 4 : body + 4 + size]).hex()]


def boxes(*rows: tuple[float, ...], sizes: Any = None, **more: Any) -> Any:
    """The boxes that are kept of rows of corners, score and class, on a picture of 100 by 50."""
    table = np.array(rows, np.float32)
    values: Any = {"b": table[None, :, :4], "s": table[None, :, 4], "c": table[None, :, 5].astype(np.int64)}
    names = {"boxes": ("b", OutputKind.BOXES), "scores": ("s", OutputKind.SCORES), "labels": ("c", OutputKind.LABELS)}
    pieces: dict[str, Any] = {role: Piece(output=name, kind=kind) for role, (name, kind) in names.items()}
    group = DetectionSet(**pieces, sizes="" if sizes is None else "size")
    feed: Any = {} if sizes is None else {"size": np.array(sizes)}
    kept = kept_boxes(group, values, feed, (100, 50), **{"corners": True, **more})
    return [
        [round(float(value), 4) for value in (one.left, one.top, one.right, one.bottom, one.score)] + [one.label]
        for one in kept
    ]


def beside() -> Any:
    """Boxes of two sides that are one thing: the nearest of the class, from half an overlap on, each once."""
    one = KeptBox(left=0.0, top=0.0, right=1.0, bottom=1.0, score=0.9, label=1)
    half, more, less = (replace(one, right=right) for right in (0.5, 0.75, 0.49))
    others = (half, more, less, replace(one, label=2))
    pairs = [
        boxes_beside([one], others),
        boxes_beside([one], [less]),
        boxes_beside([one, one], [half]),
        boxes_beside([], [one]),
    ]
    return [[[None if box is None else (box.right, box.label) for box in pair] for pair in found] for found in pairs]


def layers() -> Any:
    """What a page about layers is given, of a model that is measured now."""
    stored: dict[str, Any] = {"w": [[1.0, 2.0], [3.0, 4.0]]}
    with tempfile.TemporaryDirectory() as name:
        path, data = Path(name) / "m.onnx", Path(name) / "x.npz"
        onnx.save(text_model("float[1,2] x", "a = Relu(x) y = MatMul(a, w)", "float[1,2] y", **stored), path)
        np.savez(data, x=np.array([[1, 2], [-1, 0.3], [0.7, 0.1]], np.float32))
        found = api.sensitivity(path, precision="w8a8", data=data)
    ((template, values),) = given("deploykit.report.ladders", lambda: render_sensitivity(found, "m.onnx"))
    rows = [{key: value for key, value in row.items() if key != "row"} for row in values.pop("tensors")]
    return [template, {key: value for key, value in values.items() if key != "found"}, rows]


def told(name: str) -> Any:
    found = explained(read(name), Path("a folder"))
    return {"title": found.title, **{chapter.title: chapter.lines for chapter in found.chapters}}


NO, OPEN, NOT_RUN = Right.NO, Right.NOT_JUDGED, Compilation()
TENSOR = a_finding(kind=SubjectKind.TENSOR, name="b", severity=Severity.WARNING)
EVENT = TraceEvent(node="conv", thread="HVX 1", start=0, duration=600, unit="vector", kernel="q::conv")
GREY = np.add.outer(np.arange(64.0), np.arange(64.0))
PARTS = ("Relu -> a", "Neg -> b", "Relu -> c", "Neg -> d", "Relu -> e", "Neg -> f", "Abs -> y")
RAMP = np.stack([GREY, 126 - GREY, GREY / 2])[None]
ASIDE = a_finding(evidence={"count": 3}, sources=("s",), kind=SubjectKind.DATA).with_handled("rewritten")
SLOW = tuple(
    CellResult(cell=name, key="", exit_status=0, outcome={"estimate": {"time_us": 5.0, "instead_of": other}})
    for name, other in (("a", ""), ("b", "another"))
)
RUN = {"right": {"right": "yes"}, "where": "device", "latency": {"median_us": 2500, "p90_us": 3000}}


def alone() -> Any:
    """An account whose quantizer has a number of its own, and nobody compared its simulation; of a hundred seconds."""
    record = read("quantized_only.json")
    own = {"sqnr_db": 30.0, "agreement_db": None, "exact": False}
    return {**record, "seconds": {"calibrate": 99.5}, "numbers": {**record["numbers"], "quantizers_own": own}}


def filled() -> Any:
    """A page and a text of the user's: what is put into a page is quoted as a page needs it, and no other is."""
    with tempfile.TemporaryDirectory() as name:
        for template in ("a.html.j2", "a.sh.j2"):
            (Path(name) / template).write_text("{{ x }}\n{{ x|sh }}\n{{ x|md }}\n{{ x|py }}\n{{ x|comment }}")
        made = {
            one.name: rendering.render(one.name, {"x": "<a b>&'\n_"}, templates=Path(name))
            for one in Path(name).iterdir()
        }
    return dict(sorted(made.items()))


CASES: Mapping[str, Callable[[], Any]] = {
    "templates": filled,
    "shares": lambda: [share_of(value, 8.0) for value in (-1.0, 0.0, 1.0, 8.0, 9.0)] + [share_of(1.0, 0.0)],
    "decibels": lambda: list(map(decibels, (40.04, math.nan, math.inf, -math.inf))),
    "bars": lambda: loss_bars([("a", {"weights": 40.0, "all": 20.0}), ("b", {"all": math.inf}), ("c", {})]),
    "bars on an axis": lambda: loss_bars([("a", {"all": 60.0}), ("b", {"all": 0.0}), ("c", {"all": 90.0})], 80.0),
    "bars on an axis that they leave": lambda: loss_bars([("a", {"all": 60.0}), ("b", {"all": -40.0})], 80.0),
    "bars of nothing": lambda: loss_bars([("a", {"all": -math.inf})]),
    "sparks": lambda: [spark(counts) for counts in ((4, 1, 0), (0, 0), ())],
    "points": lambda: spread([(1, 10, "a"), (3, 30, "b"), (math.nan, math.inf, "c"), (2, -math.inf, "d")]),
    "one point": lambda: spread([(1, math.nan, "a")]),
    "ranges": lambda: ranges(
        *(grid("wide", 1e4), grid("low", 0.5, 255), grid("same", 0.5), grid("fine", 1e-9, bits=16)),
        *(grid("weight", 1.0, param=True), grid("nothing", 0.0), grid("huge", 1e20)),
    ),
    "ranges of nothing": lambda: ranges(grid("weight", 1.0, param=True)),
    "60 ranges of more": lambda: {**ranges(*(grid(f"t{at}", 0.1) for at in range(61))), "bars": "60 of them"},
    "kernels": lambda: lanes(
        EVENT, replace(EVENT, start=600, duration=0.1), replace(EVENT, thread="HMX", node="mul", start=500, kernel="")
    ),
    "kernels drawn together": together,
    "the nodes of a plan": lambda: strip(
        "a = Relu(x) b = Neg(a) c = Neg(b) d = Abs(c) y = Abs(d)",
        *(TENSOR, TENSOR.with_handled("done"), replace(TENSOR, code="DK902"), a_finding(name="Relu -> a")),
        a_finding(kind=SubjectKind.TENSOR, name="d", severity=Severity.INFO),
        intended={"a": "uint16", "b": "uint16", "d": "int8"},
        expected={"a": "uint8"},
    ),
    "the nodes by time": lambda: strip(
        "".join(f"t{at} = Relu({f't{at - 1}' if at else 'x'}) " for at in range(11)) + "y = Abs(t10)",
        kind="float16",
        shares={**{f"Relu -> t{at}": 0.02 for at in range(11)}, "Abs -> y": 0.15},
    ),
    "the nodes by other shares of the time": lambda: strip(
        "a = Relu(x) b = Neg(a) c = Relu(b) d = Neg(c) e = Relu(d) f = Neg(e) y = Abs(f)",
        shares=dict(zip(PARTS, (0.004, 0.001, 0.0051, 0.021, 0.051, 0.149, 0.151), strict=True)),
    ),
    "a graph without nodes that compute": lambda: strip("y = Constant <value = float[4] {1, 2, 3, 4}> ()"),
    "an audit": audited,
    "an account of a quantizer": lambda: quantized_section(read("quantized.json")),
    "another account": lambda: quantized_section(read("quantized_otherwise.json")),
    "an account without a simulation": lambda: quantized_section(read("quantized_only.json")),
    "an account of a simulation that nothing agrees with": lambda: quantized_section(alone()),
    "costs": lambda: costs_by_output(
        [
            *(FLOAT, DEVICE, {**DEVICE, "value": 30.0}, {**DEVICE, "value": 50.0}, {**FLOAT, "against": "device"}),
            {"output": "y", "measure": "box-error", "value": 1.5, "unit": "px", "threshold": 0.4, "passes": False},
            {"output": "y", "measure": "gain", "value": 0.5, "threshold": 0.4, "passes": True},
            {"output": "z", "measure": "error", "value": 0.5, "threshold": 0.4, "passes": False, "where": "row 1"},
            {"output": "z", "measure": "error", "value": math.nan, "threshold": 0.4, "passes": False},
            {**FLOAT, "output": "exact", "value": "inf"},
        ]
    ),
    "costs in words": lambda: list(
        map(str, costs_by_output([{**FLOAT, "where": "row 1"}, {**NUMBER, "against": "me"}]))
    ),
    "shipped": ship,
    "shipped after a run": lambda: ship(compiled=NOT_RUN, right={"where": "device"}),
    "judged by several": lambda: ship(right={"against": "quantized", "numbers": (DEVICE, FLOAT), "count": 1}),
    "judged without limits": lambda: ship(right={"numbers": ({**FLOAT, "passes": None},)}),
    "damaged": lambda: ship(intact=False),
    "refused": lambda: ship(ERROR, compiled=Compilation(state=Compiled.REFUSED, by="it", why="no kernel")),
    "refused without a word": lambda: ship(compiled=Compilation(state=Compiled.REFUSED)),
    "wrong": lambda: ship(right={"state": NO, "why": "y: 3 dB"}),
    "wrong with an advice": lambda: ship(ERROR, LOST, right={"state": NO}),
    "open error": lambda: ship(ERROR),
    "handled error": lambda: ship(ERROR.with_handled("it is fixed")),
    "not judged": lambda: ship(right={"state": OPEN, "label": "", "why": "not judged: nothing was run"}),
    "not judged on given samples": lambda: ship(right={"state": OPEN, "why": ""}, where=Path("a folder")),
    "not judged on made-up samples": lambda: ship(right={"state": OPEN, "label": "derived", "why": "who knows"}),
    "not compiled": lambda: ship(compiled=NOT_RUN, where=Path("out")),
    "against the encodings only": lambda: ship(right={"against": "quantized", "numbers": (DEVICE,)}),
    "right on made-up samples": lambda: ship(right={"label": "derived"}),
    "samples wanted": lambda: [
        *(wanted(label="given"), wanted(why="made up"), wanted(why="made-up"), wanted(why="say --calibration")),
        *(wanted(why="nothing ran"), wanted(state=Right.YES, label="given")),
    ],
    "a manifest in words": lambda: told("manifest.json"),
    "a manifest of nothing": lambda: explained({"target": 3, "files": {}, "findings": [{}]}),
    "a ladder": lambda: drawn(read("ladder.json")),
    "a ladder by time": lambda: drawn(read("ladder_timed.json")),
    "a ladder by a measure": lambda: drawn(read("ladder_measured.json")),
    "cells": lambda: [
        [one.verdict, one.compiled, one.worst_db, one.time_us, one.why]
        for one in (
            CellResult(cell="a", key="", exit_status=0),
            CellResult(cell="a", key="", exit_status=0, outcome={"status": {"right": "not judged", "compiled": "yes"}}),
            CellResult(cell="a", key="", exit_status=0, outcome={"status": {"right": "yes", "right_why": "so"}}),
            CellResult(cell="a", key="", exit_status=1, outcome={"status": {"right": "yes", "compiled_why": "c"}}),
            CellResult(cell="a", key="", exit_status=0, error={"what": "x"}),
            CellResult(cell="a", key="", exit_status=2, outcome={"estimate": {"time_us": 5, "instead_of": "b"}}),
        )
    ],
    "cells that are too slow": lambda: [
        [found.too_slow, found.exit_status, found.counts]
        for most in (0.0, 4.0, 5.0, 6.0)
        for found in (Results(models=(), targets=(), cells=SLOW, not_run=(), max_time_us=most),)
    ],
    "SARIF of what is handled": lambda: to_sarif(
        [ASIDE, a_finding(), ERROR, ERROR.with_handled("it is fixed")], (), "models/a b.onnx"
    )["runs"][0]["results"],
    "a page of layers": layers,
    "a matrix": matrix,
    "a matrix that is right": lambda: matrix(right=True, not_run=()),
    "a matrix of which not all ran": lambda: matrix(right=True, not_run=("a/q",)),
    "sizes": lambda: list(
        map(size_text, (0, 1023, 1024, 1536, (1 << 20) - 1, 1 << 20, (1 << 30) - 1, 1 << 30, 1 << 40))
    ),
    "runs on devices": lambda: [
        [run.words, run.case]
        for run in (
            DeviceRun(cell="a/p", device="d", exit_status=0, outcome=RUN),
            DeviceRun(cell="a/p", device="d", exit_status=1, outcome={**RUN, "latency": None, "where": "emulator"}),
            DeviceRun(cell="a/p", device="d", exit_status=5, outcome={"status": 3}),
            DeviceRun(cell="a/p", device="d", exit_status=2, error="it fell\n  why: so"),
        )
    ],
    "pictures": lambda: [
        seen_in(feed)
        for feed in (
            *(RAMP * scale + more for scale, more in ((1.0, 0.0), (1 / 126, 0.0), (1.0, -1.0), (3.0, 0.0), (0.0, 5.0))),
            *(RAMP.transpose(0, 2, 3, 1) + 1, RAMP[:, :1], RAMP[:, :2], RAMP[0], np.concatenate([RAMP, RAMP])),
            *(RAMP[:, :, :31], RAMP[:, :, :32], RAMP[:, :, :, :31], RAMP * np.nan, RAMP > 60, RAMP.astype(str)),
            *(np.tile([[0.0, 200.0], [200.0, 0.0]], (1, 3, 20, 20)), np.zeros((1, 3, 64, 3))),
        )
    ],
    "files of pictures": lambda: [
        packed([[[1], [3]], [[5], [7]]], 2),
        packed([[[1, 2, 3]] * 3, [[3, 2, 1]] * 3, [[0, 0, 0]] * 3], 2),
        packed([[[at] for at in range(4)]] * 4, 2),
    ],
    "boxes": lambda: [
        boxes(
            (10, 5, 30, 25, 0.9, 1),
            (10, 5, 30, 24, 0.8, 1),
            (10, 5, 30, 24, 0.7, 2),
            (40, 5, 60, 25, 0.25, 1),
            (70, 5, 90, 25, 0.249, 1),
        ),
        boxes((0.1, 0.1, 0.3, 0.5, 0.9, 1), (0.5, 0.5, 1.4, 1.5, 0.3, 0)),
        boxes((10, 5, 30, 25, 0.9, 1), (40, 5, 60, 25, 0.5, 0), nothing=0),
        # One row of many may be anywhere: they are fractions all the same.
        boxes((0.1, 0.1, 0.3, 0.5, 0.9, 1), *[(0.5, 0.5, 0.6, 0.6, 0.1, 0)] * 60, (0.5, 0.5, 40, 1.5, 0.1, 0)),
        boxes((20, 15, 20, 20, 0.9, 1), corners=False),
        boxes((32, 32, 64, 64, 0.9, 1), sizes=[64, 64]),
        len(boxes(*((at, 0, at + 1, 1, 0.9, 1) for at in range(45)))),
    ],
    "boxes beside boxes": beside,
    "junit": lambda: junit_text(
        "all\x00",
        {
            "one": [
                JUnitCase(name="good", message="fine\x1b", seconds=0.1234567),
                JUnitCase(name="no", kind="failure", message="bad", text="line"),
                JUnitCase(name="lost", kind="error", message="gone"),
                JUnitCase(name="left", kind="skipped", message=""),
                JUnitCase(name="silent", message=""),
            ]
        },
    ).splitlines(),
    "runs": lambda: [
        run_cases(record)
        for record in (
            {"status": 3, "log": ["a", "b"]},
            {"right": {"right": "yes"}, "where": "device", "latency": None},
            {"right": {"right": "no"}, "where": "emulator", "latency": {"median_us": 10.0, "p90_us": 1500, "count": 3}},
            {
                "right": {},
                "where": "x",
                "latency": {"median_us": 1, "p90_us": 2, "count": 1},
                "budget": {"p90_us": 2, "held": True},
            },
            {"right": {"right": "no"}, "where": "x", "latency": {"median_us": 1, "p90_us": 2, "count": 1}}
            | {"budget": {"p90_us": 1.5, "held": False}},
        )
    ],
}


def plain(value: Any) -> Any:
    """As JSON has it, with numbers that JSON lacks in words."""
    made = msgspec.to_builtins(value, enc_hook=lambda one: one.to_json() if hasattr(one, "to_json") else str(one))
    return json.loads(json.dumps(made), parse_constant=str)


@pytest.mark.parametrize("name", CASES)
def test_values(name: str) -> None:
    known = json.loads(GOLDEN.read_text("utf-8")) if GOLDEN.exists() else {}
    made = plain(CASES[name]())
    if os.environ.get("DEPLOYKIT_WRITE_GOLDEN"):
        known = {one: made if one == name else known.get(one) for one in CASES}
        GOLDEN.write_text(json.dumps(known, indent=1, ensure_ascii=False) + "\n", "utf-8")
    assert made == known[name]


@each_row("key", "status", "decision", "quantization", "target", "findings", "executed", "estimate", "sdk", "inputs")
def test_a_manifest_that_says_nothing_there_is_explained(key: str) -> None:
    """Whoever can write to a package can seal it again."""
    for value in (None, [], "x", 7, {"a": None}, [{"a": None}]):
        assert explained({**read("manifest.json"), key: value}).chapters, value


def test_a_template_of_deploykit_that_fails_is_a_defect_whatever_folder_is_given(tmp_path: Path) -> None:
    with pytest.raises(DefectError, match=r"template report\.html\.j2"):
        rendering.render("report.html.j2", {}, templates=tmp_path)


def test_a_template_is_compiled_once_for_all_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DEPLOYKIT_CACHE", str(tmp_path))
    pages = []
    for environment in (rendering._environment.__wrapped__(None, None, True) for _ in range(2)):
        pages.append(environment.get_template("report.html.j2").root_render_func.__code__)
        monkeypatch.setattr(type(environment), "_compile", None)
    assert pages[0] == pages[1]
