"""The values that go from stage to stage: what they say in words, as JSON, and of each other."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import onnx.printer
from msgspec.structs import replace
from onnx import numpy_helper

from deploykit.backend.backend import Instead
from deploykit.backend.demo_model import FLOAT_TENSORS, write_demo
from deploykit.backend.opinions import Audit, AuditedKernel
from deploykit.backend.plans import Plan, PlannedPrecision, Route
from deploykit.backend.requests import Request, bits_of
from deploykit.backend.status import (
    Compilation,
    Compiled,
    Correctness,
    PackageStatus,
    Right,
    status_from_json,
    status_of,
)
from deploykit.backend.targets import Target, find_device
from deploykit.errors import UnknownTargetError
from deploykit.findings import Confidence, Severity, settled_findings
from deploykit.flow.candidates import wide_types
from deploykit.tables.devices import Device
from made_findings import a_finding
from tables import each_row
from written import assert_as_written

YES = Correctness(
    state=Right.YES, label="given", count=8, against="float", where="emulator", numbers=({"value": 40.0},)
)
BUILT = Compilation(state=Compiled.YES, by="QAIRT 2.36")
GOOD = PackageStatus(compiled=BUILT, right=YES)
A, B = a_finding(code="DK901", name="a"), a_finding(code="DK902", name="b")
NOTE = a_finding(code="DK903", name="c", severity=Severity.INFO)


@each_row(
    ("fact", "words"),
    (Compilation(), "not run"),
    (Compilation(why="no compiler is here"), "not run: no compiler is here"),
    (BUILT, "yes, by QAIRT 2.36"),
    (Compilation(state=Compiled.YES), "yes"),
    (Compilation(state=Compiled.REFUSED, by="QAIRT 2.36", why="no kernel"), "refused by QAIRT 2.36: no kernel"),
    (Correctness(), "not judged"),
    (Correctness(against="float", why="no samples"), "not judged: no samples"),
    (Correctness(why="not judged: no samples"), "not judged: no samples"),
    (YES, "yes, on 8 given samples against float"),
    (replace(YES, count=1, against=""), "yes, on 1 given sample"),
    (replace(YES, state=Right.NO, count=0, why="y is lost"), "no, on 0 given samples against float: y is lost"),
)
def test_a_fact_in_words(fact: Compilation | Correctness, words: str) -> None:
    assert str(fact) == words


@each_row(
    ("status", "good"),
    (GOOD, True),
    (PackageStatus(), True),
    (replace(GOOD, intact=False), False),
    (replace(GOOD, compiled=replace(BUILT, state=Compiled.REFUSED)), False),
    (replace(GOOD, right=replace(YES, state=Right.NO)), False),
    (replace(GOOD, right=replace(YES, state=Right.NOT_JUDGED)), True),
    (replace(GOOD, right=Correctness(broken=True)), False),
)
def test_the_facts_say_whether_one_may_go_on_and_survive_a_manifest(status: PackageStatus, good: bool) -> None:
    assert status.good is good
    assert status_from_json(status.to_json()) == status


def test_a_damaged_package_says_nothing_of_what_was_judged() -> None:
    why = "its files are not those that were judged"
    assert GOOD.damaged() == PackageStatus(intact=False, compiled=BUILT, right=Correctness(why=why))
    assert GOOD.damaged().lines() == (
        ("intact", "no"),
        ("compiled", "yes, by QAIRT 2.36"),
        ("right", f"not judged: {why}"),
    )
    assert GOOD.lines()[0] == ("intact", "yes: every file has its recorded hash")


def test_what_a_manifest_does_not_hold_or_holds_wrongly_is_not_run_and_not_judged() -> None:
    odd = {"intact": 1, "compiled": "maybe", "right": None, "samples": [8], "numbers": "many", "right_broken": "yes"}
    for value in ({}, odd, {"samples": {"count": "8"}, "numbers": None}):
        assert status_from_json(value) == PackageStatus()
    assert status_from_json({"numbers": [{"value": 1.0}, 2]}).right.numbers == ({"value": 1.0},)


def test_the_last_run_on_a_device_that_was_judged_outranks_what_is_older() -> None:
    def run(state: Right, **more: Any) -> dict[str, Any]:
        right = replace(YES, state=state, where="device", broken=more.pop("broken", False))
        return {**right.to_json(), "content": "now", **more}

    def told(*runs: dict[str, Any]) -> PackageStatus:
        return status_of({"status": GOOD.to_json(), "runs": runs}, "now")

    assert status_of({"status": "good", "runs": None}, "now") == PackageStatus()
    assert told() == GOOD
    assert told(run(Right.YES), run(Right.NO)) == replace(GOOD, right=replace(YES, state=Right.NO, where="device"))
    assert told(run(Right.YES), run(Right.NOT_JUDGED)).right == replace(YES, where="device")
    assert told(run(Right.NO), run(Right.NOT_JUDGED, broken=True)).right.broken
    for other in ({"content": "before"}, {"where": "simulated"}):
        assert told(run(Right.NO, **other)) == GOOD


@each_row(
    ("name", "bits"),
    *(("w8a16", (8, 16)), ("w4a8", (4, 8)), ("fp16", None), ("w8", None), ("xw8a8", None), ("w8a8x", None), ("", None)),
)
def test_the_widths_that_a_name_says(name: str, bits: tuple[int, int] | None) -> None:
    assert bits_of(name) == bits


def test_a_plan_goes_where_there_is_a_route_and_no_error() -> None:
    route = Route(id="r", why="it is the only one", confidence=Confidence.REPORTED)
    plan: Plan[None] = Plan(backend="b", target={}, sdk={}, route=route, findings=(NOTE, A.with_handled("it is")))
    assert plan.feasible and not replace(plan, route=None).feasible and not replace(plan, findings=(A,)).feasible
    told = replace(plan, right=YES, findings=(NOTE, B, A)).to_json()
    assert [finding["code"] for finding in told["findings"]] == ["DK901", "DK902", "DK903"]
    assert told["right"] == {"state": "yes", "words": "yes, on 8 given samples against float"}
    assert told["schema"] == 1 and "details" not in told


def test_types_that_are_not_as_intended_are_told_by_name() -> None:
    intended = {"x": "uint8", "y": "float16", "w": "int8", "only intended": "int8"}
    expected = {"x": "uint8", "y": "uint16", "w": "float16", "b": "bfloat16", "only expected": "int32"}
    assert PlannedPrecision(intended=intended, expected=expected).to_json() == {
        "intended": {"float16": 1, "int8": 2, "uint8": 1},
        "expected": {"bfloat16": 1, "float16": 1, "int32": 1, "uint16": 1, "uint8": 1},
        "float": ["b", "w"],
        "differences": [
            {"tensor": "w", "intended": "int8", "expected": "float16"},
            {"tensor": "y", "intended": "float16", "expected": "uint16"},
        ],
    }


def test_what_another_request_gets_over_is_handled_unless_it_is_found_again() -> None:
    instead = Instead(
        request=Request(model=Path("m"), target="t"), how="in another form", handles={("DK903", "c"): "left out"}
    )
    over = instead.over((A, replace(B, severity=Severity.WARNING), NOTE, replace(NOTE, code="DK904")))
    assert over == (A.with_handled("in another form"), NOTE.with_handled("left out"))
    assert settled_findings((A, B), {("DK901", "a"): "seen to be right"}) == (A.with_handled("seen to be right"), B)


def test_an_audit_says_the_same_whether_it_was_measured_now_or_before() -> None:
    kernel = AuditedKernel(
        node="n", operators=("Conv",), type="w8a16", place="alone", verdict="right", nodes=("n", "m")
    )
    audit = Audit(level="quick", by="QAIRT", kernels=(kernel, replace(kernel, verdict="wrong"), kernel), left_out=2)
    assert audit.counts == {"right": 2, "wrong": 1}
    told = audit.to_json()
    assert told == replace(audit, known=3, settled={("DK901", "a"): "right"}).to_json()
    assert told["summary"] == {"right": 2, "wrong": 1} and "nodes" not in told["kernels"][0]
    assert (told["level"], told["by"], told["left_out"], told["findings"]) == ("quick", "QAIRT", 2, [])


ABOUT: dict[str, Any] = {"schema": 1, "vendor": "", "backends": ("b",), "facts": {}}
DEVICES = (
    Device(
        id="sm8650",
        name="SM8650",
        aliases=("Pineapple Board", "the other one"),
        marketing="Snapdragon 8 Gen 3",
        **ABOUT,
    ),
    Device(id="sm8550", name="SM8550", **ABOUT),
    Device(id="sm8505", name="Kailua", **ABOUT),
    Device(id="sm8450", name="Waipio", **ABOUT),
)


@each_row(
    ("name", "found"),
    *((name, "sm8650") for name in ("sm8650", "SM-8650", "pineapple board", "The Other-One", "snapdragon 8gen3")),
    ("kailua", "sm8505"),
    ("sm8560", "unknown target 'sm8560': did you mean sm8650, sm8550, sm8505? 'deploykit targets' lists all"),
    ("pineaple", "unknown target 'pineaple': did you mean sm8650? 'deploykit targets' lists all"),
    ("", "unknown target '': 'deploykit targets' lists all"),
    ("zzzz", "unknown target 'zzzz': 'deploykit targets' lists all"),
)
def test_a_device_by_any_of_its_names_or_the_nearest_ones(name: str, found: str) -> None:
    try:
        assert find_device(DEVICES, name).id == found
    except UnknownTargetError as error:
        assert f"{error.what}: {error.next}" == found


@each_row(
    ("requested", "version", "exact"), ("", "2.33.0", True), ("2.33.0", "2.33.0", True), ("2.33", "2.33", False),
    ("2.33.0.250327", "2.33.0.250327", True), ("2.33.0.250328", "2.33.0.250328", False),
)  # fmt: skip
def test_the_release_of_a_target(requested: str, version: str, exact: bool) -> None:
    table: Any = SimpleNamespace(sdk="qairt", version="2.33.0", builds=("2.33.0.250327",))
    target = Target(device=DEVICES[0], backend="b", requested=requested, sdk=table)
    told = {"name": "qairt", "version": version, "requested": requested, "table": "2.33.0", "exact": exact}
    assert target.sdk_json() == told
    without = {"name": "", "version": requested, "requested": requested, "table": ""}
    assert replace(target, sdk=None).sdk_json() == without


@each_row(
    ("target", "wides"),
    *((None, ("float16", "int16")), ("sm8650", ("float16", "int16")), ("qcm6490", ("int16",)), ("vek385", ())),
)
def test_the_wider_types_that_a_target_mixes_with_integers(target: str | None, wides: tuple[str, ...]) -> None:
    assert wide_types(target, None, Path("m.onnx")) == wides


def test_the_example_is_the_same_everywhere(tmp_path: Path) -> None:
    model, told = (path.read_bytes() for path in write_demo(tmp_path))
    graph, encodings = onnx.load_from_string(model).graph, json.loads(told)
    lines = [onnx.printer.to_text(node).strip() for node in graph.node]
    for tensor in graph.initializer:
        value = numpy_helper.to_array(tensor)
        lines.append(f"{tensor.name} {list(value.shape)} {value.min():.4g} {value.max():.4g} {value.mean():.4g}")
    for kind in ("activation_encodings", "param_encodings"):
        for name, entries in encodings.pop(kind).items():
            said = {key: value if isinstance(value, str) else f"{value:.3g}" for key, value in entries[0].items()}
            lines.append(f"{name} {len(entries)}: {said}")
    lines += [json.dumps(encodings), ", ".join(sorted(FLOAT_TENSORS))]
    assert_as_written(Path(__file__).with_name("demo.txt"), lines)
