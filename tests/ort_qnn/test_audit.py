"""Kernels by themselves: how a model is taken apart, what each is given, how far off is counted, what is said of it."""

import json
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from msgspec.structs import replace

import deploykit
from deploykit.backend.opinions import Audit, AuditedKernel
from deploykit.findings import Finding, Severity, Subject, SubjectKind, settled_findings
from deploykit.model.collect import collect_facts
from deploykit.model.graph import view_of
from deploykit.model.load import wrap_proto
from deploykit_ort_qnn.bench.audit import in_place_of, kernels_within_budget, mended, settled_by, within_reach
from deploykit_ort_qnn.bench.kernels import kernels_of, spared, within_grids
from deploykit_ort_qnn.rules.audit import BACKWARD, BEYOND, RULES, Counted
from deploykit_ort_qnn.rules.audit import COUNT_RULES as COUNTED
from rule_cases import check_pairs
from tables import each_row
from text_models import text_model


def audit_of(verdict: str, place: str = "alone", **more: Any) -> Audit:
    operators = ("Relu",) if place == "alone" else ("Conv", "Relu")
    kernel = AuditedKernel(node="r", operators=operators, type="u16", place=place, verdict=verdict, why="off", **more)
    return Audit(level="full", by="QAIRT 2.51.0", kernels=(kernel,))


CASES: dict[str, tuple[Callable[[], Any], Callable[[], Any]]] = {
    "QNN321": (lambda: audit_of("wrong"), lambda: audit_of("right")),
    "QNN322": (lambda: audit_of("narrowed"), lambda: audit_of("narrowed", "inside")),
    "QNN323": (lambda: audit_of("refused"), lambda: audit_of("right")),
    "QNN324": (lambda: replace(audit_of("right"), left_out=3), lambda: audit_of("right")),
    "QNN326": (
        lambda: audit_of("right", "inside", measured={"most": 9, "span": 248, "file_from_float": 12, "from_float": 7}),
        lambda: audit_of("right", "inside", measured={"most": 9, "span": 248}),
    ),
    "QNN325": (lambda: Counted(audit=audit_of("right")), lambda: Counted(audit=Audit(level="quick", by="nobody"))),
}


def test_each_rule_fires_and_stays_silent() -> None:
    check_pairs(CASES, RULES, COUNTED)


def parsed(text: str, opset: int = 17) -> onnx.ModelProto:
    return onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : {opset}]> {text}')


def quantized(*nodes: str, kind: str = "uint8", stored: str = "") -> onnx.ModelProto:
    """Operators on ``x`` of 1x4x6x6, each result with a pair; names of results are a, b, c."""
    top = {"uint8": 255, "uint16": 65535}[kind]
    grids = f"float s = {{{8 / top}}}, {kind} z = {{{(top + 1) // 2}}}"
    steps = ["qx = QuantizeLinear (x, s, z)  a0 = DequantizeLinear (qx, s, z)"]
    for number, node in enumerate(nodes):
        name, made = f"r{number}", f"a{number + 1}"
        steps.append(f"{name} = {node.format(f'a{number}')}  q{number} = QuantizeLinear ({name}, s, z)")
        steps.append(f"{made} = DequantizeLinear (q{number}, s, z)")
    graph = f"g (float[1,4,6,6] x) => (float[1,4,6,6] a{len(nodes)}) <{grids}{stored}> {{ {' '.join(steps)} }}"
    return parsed(graph, 21)


def test_only_what_is_about_some_nodes_is_taken_apart() -> None:
    model = quantized("Relu ({0})", "Relu ({0})", "Tanh ({0})")
    found = [(kernel.nodes, kernel.operators) for kernel in kernels_of(model, only={"Tanh -> r2"})]
    assert found == [(("Tanh -> r2",), ("Tanh",)), (("Tanh -> r2",), ("Relu", "Tanh"))]


@each_row(
    ("body", "kernels"),
    ("[a] b = Relu (a0) [b] r = Tanh (b)", ["a b"]),
    ("[a] b = Relu (a0) [b] c = Neg (b) [c] d = Abs (c) [d] r = Tanh (d)", ["a", "b", "c", "d"]),  # too many are none
)
def test_what_no_pair_separates_is_one_kernel_of_a_few_operators(body: str, kernels: list[str]) -> None:
    model = paired(f"{pair('a0', 'x')} {body} {pair('y', 'r')}")
    assert [" ".join(one.nodes) for one in kernels_of(model) if one.place == "alone"] == kernels


def test_boxes_are_given_with_their_lesser_corner_first_and_inside_the_map() -> None:
    text = (
        "g (float[1,2,8,8] x, float[3,4] boxes) => (float[3,2,2,2] y) <int64[3] which = {0, 0, 0}>"
        "{ y = RoiAlign <output_height = 2, output_width = 2> (x, boxes, which) }"
    )
    (kernel,) = kernels_of(parsed(text))
    (name,) = (name for name in kernel.samples[0] if name.endswith("boxes"))
    for sample in kernel.samples:
        first, second = sample[name][:, :2], sample[name][:, 2:]
        assert (first <= second).all() and (first >= 0).all()
    assert any((sample[name][:, 2:] > sample[name][:, :2]).all() for sample in kernel.samples)


def test_among_neighbours_nothing_inside_is_cut_off() -> None:
    """A product that leaves its grid is brought back: an operator made of both may cut off later, rightly."""
    (kernel,) = (one for one in kernels_of(quantized("Mul ({0}, {0})", "Tanh ({0})")) if one.place == "inside")
    kept = within_grids(kernel)
    assert not kept.why and len(kept.samples) == len(kernel.samples)
    beyond = [float(np.mean(np.abs(value) > 2.1)) for sample in kept.samples for value in sample.values()]
    assert max(beyond) <= 0.01 < np.mean(np.abs(next(iter(kernel.samples[0].values()))) > 2.1)


def pooled(folder: Path, counted: int) -> Path:
    settings = f"kernel_shape = [2, 2], strides = [2, 2], pads = [1, 1, 1, 1], count_include_pad = {counted}"
    text = f"g (float[1,8,8,8] x) => (float[1,8,5,5] y) {{ h = Relu (x) y = AveragePool <{settings}> (h) }}"
    model = parsed(text)
    for node in model.graph.node:
        node.name = node.op_type
    path = folder / f"counted{counted}.onnx"
    onnx.save(model, path)
    return path


def doubt(code: str, node: str = "r", **evidence: Any) -> Finding:
    subject = Subject(kind=SubjectKind.NODE, name=node)
    return Finding(code=code, slug="s", severity=Severity.WARNING, subject=subject, message="m", evidence=evidence)


def test_only_kernels_that_are_right_in_every_place_settle_what_the_atlas_says() -> None:
    rows = ["a alone right b c", "b inside wrong", "c inside right", "d inside right", "e alone refused"]
    kernels = []
    for node, place, verdict, *more in map(str.split, rows):
        one = AuditedKernel(
            node=node, operators=("Concat",), type="u16", place=place, verdict=verdict, nodes=(node, *more)
        )
        kernels.append(one)
    audit = Audit(level="quick", by="a wheel", kernels=tuple(kernels))
    lint = [doubt("QNN320", name, verdict="wrong") for name in "abcde"]
    settled = settled_by(audit, lint)
    assert set(settled) == {("QNN320", "a"), ("QNN320", "c"), ("QNN320", "e")}
    assert [bool(one.handled) for one in settled_findings(lint, settled)] == [True, False, True, False, True]
    assert settled["QNN320", "e"].endswith("it is refused")


def test_neighbours_that_are_refused_together_are_told_where_each_is_taken() -> None:
    (alone,), (inside,) = audit_of("refused").kernels, audit_of("refused", "inside").kernels
    layer = replace(alone, node="l", operators=("Conv",), verdict="right")

    def told(*kernels: AuditedKernel) -> list[str]:
        return [finding.message for finding in RULES.run(replace(audit_of("right"), kernels=kernels))]

    (together,) = told(layer, replace(alone, verdict="right"), inside)
    assert "refused in u16, as Conv > Relu" in together
    assert len(told(layer, alone, inside)) == 1 and told(layer, alone, inside) == told(layer, alone)
    further = replace(inside, operators=("Cast", "Conv", "Relu"), verdict="right")
    assert told(layer, inside, further) == [] and told(layer, inside, replace(further, operators=("Relu", "Conv")))


def test_what_is_said_of_a_kind_or_a_part_is_settled_where_the_own_kernels_are_right() -> None:
    """That an operator is never taken is said once: there all of its kind must be right."""
    never, right = doubt("QNN284"), audit_of("right")
    assert set(settled_by(right, [never])) == {("QNN284", "r")}
    (kernel,) = right.kernels
    other = replace(right, kernels=(kernel, replace(kernel, node="r2", verdict="refused")))
    assert settled_by(other, [never]) == settled_by(replace(right, left_out=1), [never]) == {}
    told = doubt("QNN320", verdict="wrong")
    assert settled_by(audit_of("wrong"), [told]) == {}
    assert settled_by(audit_of("wrong", shown_by=BEYOND), [told])["QNN320", "r"].endswith("it is right")


def test_places_are_all_legal_ones_and_asked_without_negative_ones_too() -> None:
    text = "g (float[5,7] x, int64[40] i) => (float[40,7] y) { y = Gather <axis = 0> (x, i) }"
    (kernel,) = kernels_of(parsed(text))
    ((what, form),) = spared([kernel])

    def drawn(one: Any) -> set[int]:
        return {int(at) for sample in one.samples for name, v in sample.items() if name.endswith("/i") for at in v}

    assert drawn(kernel) == {*range(-5, 5)} and kernel.type == "float" and drawn(form) == {*range(5)}
    assert form.key != kernel.key and [*spared([form])] == [] and what == BACKWARD


@pytest.mark.parametrize(
    ("only", "severity"), [(BACKWARD, Severity.WARNING), (BEYOND, Severity.INFO), ("", Severity.ERROR)]
)
def test_what_only_inputs_show_that_few_models_are_given_is_no_error(only: str, severity: Severity) -> None:
    (found,) = RULES["QNN321"].run(audit_of("wrong", ways=("in-16-bits (it computes in 16 bits)",), shown_by=only))
    assert found.severity is severity
    often = audit_of("wrong", shown_by=only, measured={"share": 0.2})
    assert [one.severity for one in RULES["QNN321"].run(often)] == [Severity.WARNING if only else Severity.ERROR]
    assert found.hint.startswith(f"with no {only} it is right" if only else "--repair r=in-16-bits (it")


def test_what_is_wrong_among_neighbours_alone_is_told_and_counted() -> None:
    (found,) = RULES["QNN321"].run(audit_of("wrong", "inside", count=2))
    assert found.message == "Relu r, and 1 more of the same: wrong in u16, as Conv > Relu: off"
    kernels = (*audit_of("wrong").kernels, *audit_of("wrong", "inside").kernels)
    told = [one.message for one in RULES["QNN321"].run(replace(audit_of("wrong"), kernels=kernels))]
    assert told == ["Relu r: wrong in u16: off"], "once, where it is wrong by itself"
    (count,) = COUNTED.run(Counted(audit=replace(audit_of("wrong"), left_out=3), otherwise=2))
    assert count.message == "1 kernel run on the emulator: 1 wrong; 2 done in another way; 3 left out (QNN324)"


def test_what_is_right_otherwise_is_the_way_out() -> None:
    def hint(ways: tuple[str, ...] | None) -> str:
        (found,) = RULES["QNN321"].run(audit_of("wrong", ways=ways))
        return str(found.hint)

    told = "--repair r=one-grid (all on one): right, as measured; --repair r=in-float16 (so): right, as measured"
    assert hint(("one-grid (all on one)", "in-float16 (so)")) == told
    assert hint(()).startswith("write it with other operators") and hint(None).startswith("rewrite the operator")


def test_sums_that_run_on_are_asked_beyond_their_grid_and_within_it() -> None:
    """Where a running sum leaves its grid, all that follows depends on where it was cut off: that alone may show it."""
    (kernel,) = kernels_of(quantized("CumSum ({0}, axis)", stored=", int64 axis = {3}"))
    assert within_grids(kernel) == kernel
    ((what, within),) = spared([kernel])
    assert what == BEYOND and within.key != kernel.key
    made = [kernel, within]
    most = [max(float(np.abs(np.cumsum(v, axis=3)).max()) for one in s.samples for v in one.values()) for s in made]
    assert most[0] > 4.1 > most[1] > 0


@pytest.mark.parametrize("stored", [True, False])
def test_what_is_stored_is_moved_once_and_what_is_computed_for_each_set_of_inputs(stored: bool) -> None:
    """Two million numbers of eight bits, stored behind a pair or computed."""
    given: dict[str, Any] = {"w": np.zeros((4, 500_000), np.uint8)} if stored else {}
    body = "v = DequantizeLinear (w, s)  [fc] y = MatMul (x, v)"
    inputs = "float[1,4] x" if stored else "float[1,4] x, uint8[4,500000] w"
    model = text_model(inputs, body, "float[1,500000] y", s=0.1, **given)
    found = within_reach(collect_facts(wrap_proto(model, path=Path("m.onnx"))), frozenset())
    assert found == ((frozenset({"fc"}), 0) if stored else (frozenset(), 1))


def test_what_is_not_affordable_is_left_out_but_no_suspect() -> None:
    """Two kernels fit: the suspect though it is larger, and the cheapest of the others."""
    kernels = list(kernels_of(quantized("Relu ({0})", "Tanh ({0})", "Sigmoid ({0})")))
    suspect = next(kernel for kernel in kernels if kernel.operators == ("Sigmoid",))
    sizes = {"Relu": 1_800_000, "Tanh": 400_000, "Sigmoid": 2_400_000}
    given = [
        replace(kernel, samples=({"x": np.broadcast_to(np.float32(0), sizes[kernel.operators[0]])},))
        for kernel in kernels
        if kernel.place == "alone"
    ]
    chosen = kernels_within_budget(given, frozenset(suspect.nodes))
    assert [kernel.operators[0] for kernel in chosen] == ["Tanh", "Sigmoid"]
    assert kernels_within_budget(kernels, frozenset()) == tuple(kernels)


PAIRS = "float s = {0.1}, uint8 z = {128}"


def paired(body: str) -> onnx.ModelProto:
    return parsed(f"g (float[2,4] x) => (float[2,4] y) <{PAIRS}> {{ {body} }}")


def pair(name: str, source: str) -> str:
    return f"q{name} = QuantizeLinear ({source}, s, z)  {name} = DequantizeLinear (q{name}, s, z)"


GIVEN = paired(f"{pair('a', 'x')} [wrong] r = Tanh (a) {pair('b', 'r')} [last] t = Neg (b) {pair('y', 't')}")


def place(made: onnx.ModelProto, name: str = "wrong") -> frozenset[str]:
    return in_place_of(view_of(GIVEN), view_of(made), name)


@each_row(
    ("body", "there"),
    (f"{pair('a', 'x')} [other] r = Tanh (a) {pair('b', 'r')} [last] t = Neg (b) {pair('y', 't')}", {"other"}),
    (f"{pair('a', 'x')} [one] u = Abs (a) {pair('v', 'u')} [two] b = Neg (v) [last] y = Neg (b)", {"one", "two"}),
    (f"{pair('a', 'x')} [both] t = Sin (a) {pair('y', 't')}", {"both"}),
    (f"[none] n = Neg (x) {pair('y', 'n')}", {"none"}),
    (pair("y", "x"), set()),
    # What is made of stored numbers alone is nobody's kernel.
    (f"{pair('a', 'x')} [stored] k = Neg (s) [scaled] r = Mul (a, k) {pair('b', 'r')} [last] t = Neg (b)", {"scaled"}),
)
def test_what_computes_a_tensor_stands_in_the_place_of_what_did(body: str, there: set[str]) -> None:
    assert place(paired(body)) == there


def test_what_another_node_makes_stands_in_its_own_place() -> None:
    assert place(GIVEN, "last") == {"last"}


def tanh(node: str, verdict: str, *nodes: str) -> AuditedKernel:
    return AuditedKernel(
        node=node, nodes=(node, *nodes), operators=("Tanh",), type="u8", place="alone", verdict=verdict, why="far off"
    )


def said(made: onnx.ModelProto, verdicts: Mapping[str, str], given: onnx.ModelProto = GIVEN) -> list[Finding]:
    nodes = [node.name for node in given.graph.node if node.op_type == "Tanh"]
    first = Audit(level="auto", by="it", kernels=(tanh(nodes[0], "wrong", *nodes[1:]),))
    found = Audit(level="auto", by="it", kernels=tuple(tanh(*one) for one in verdicts.items()))
    return list(mended(first, given, found, made))


RENAMED = paired(f"{pair('a', 'x')} [new] r = Tanh (a) {pair('b', 'r')} [last] t = Neg (b) {pair('y', 't')}")


def test_only_what_was_run_and_is_right_is_called_mended() -> None:
    (told,) = said(RENAMED, {"new": "right", "last": "wrong"})
    assert told.handled and told.handled.endswith("run and is right: new") and told.severity is Severity.ERROR
    assert said(RENAMED, {"new": "wrong"}) == said(RENAMED, {"new": "narrowed"}) == [], "it is told by itself"
    for verdicts in ({}, {"new": "not judged"}, {"last": "right"}):
        (told,) = said(RENAMED, verdicts)
        assert told.handled is None and told.severity is Severity.WARNING
    (told,) = said(paired(pair("y", "x")), {"last": "right"})
    assert told.handled is None, "it is left out"


@pytest.mark.heavy
def test_a_check_runs_kernels_where_it_may(tmp_path: Path, log_model: Path) -> None:
    """QAIRT 2.51 averages over the padding's zeros of a whole line of windows."""
    ask = partial(deploykit.check, pooled(tmp_path, 1), target="sm8650", backend="ort-qnn")
    found = {level: ask(kernels=level) for level in ("off", "auto")}  # type: ignore[call-arg]
    (told,) = (one for one in found["auto"] if one.code == "QNN321")
    assert told.subject.name == "AveragePool" and told.evidence["verdict"] == "wrong" and told.evidence["share"] > 0.1
    assert told.hint.startswith("--repair AveragePool=") and "right, as measured" in told.hint
    (count,) = (one for one in found["auto"] if one.code == "QNN325")
    assert count.message.startswith("3 kernels run on the emulator: ") and count.evidence["wrong"] >= 1
    assert {"QNN321", "QNN325"}.isdisjoint(one.code for one in found["off"])
    assert ask(kernels="auto", compile=False) == ask(second_opinion=False) == found["off"]  # type: ignore[call-arg]
    mended = {one.code: one for one in deploykit.check(log_model, target="sm8650", backend="ort-qnn")}
    assert mended["QNN321"].subject.name == "the_log" and "another form" in str(mended["QNN321"].handled)
    sums = "g (float[1,2,3,4,5] x) => (float[1,2,4,5] y) { y = ReduceLogSumExp <axes = [2], keepdims = 0> (x) }"
    onnx.save(parsed(sums), tmp_path / "sums.onnx")  # nothing is suspected, but it is soon run as a whole
    assert "QNN323" in {one.code for one in deploykit.check(tmp_path / "sums.onnx", target="sm8650", backend="ort-qnn")}


@pytest.mark.heavy
def test_a_package_is_the_same_with_measured_kernels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """But for the context binary: the vendor's compiler leaves open what padding of stored values holds."""
    monkeypatch.setenv("DEPLOYKIT_CACHE", str(tmp_path / "kept"))
    model, told = pooled(tmp_path, 1), []
    for name in ("one", "two"):
        made = deploykit.package(model, target="sm8650", backend="ort-qnn", out=tmp_path / name)
        assert [one.handled is not None for one in made.findings if one.code == "QNN321"] == [True]
        files = json.loads((tmp_path / name / "manifest.json").read_bytes())["files"]
        changed = ("artifacts/model_ctx_qnn.bin", "report.html")
        count = next(one.message for one in made.findings if one.code == "QNN325")
        told.append(({path: one["sha256"] for path, one in files.items() if path not in changed}, count))
    assert told[0] == told[1] and "; 1 done in another way" in told[0][1]
    again = deploykit.audit(model, target="sm8650", kernels="quick")
    assert again.known == len(again.kernels) and [one.code for one in again.findings] == ["QNN321"]
