"""What stands in the place of a node after a preparation, and what is said of kernels that were wrong before it."""

from __future__ import annotations

from collections.abc import Mapping

import onnx
import pytest

from deploykit.backend.audits import Audit, AuditedKernel
from deploykit.encodings.insert_qdq import insert_qdq
from deploykit.encodings.qdq import extract_qdq
from deploykit.findings import Finding, Severity
from deploykit.model.graph import view_of
from deploykit_ort_qnn.bench.audit import in_place_of, mended
from deploykit_ort_qnn.rules.audit import RULES

PAIRS = "float s = {0.1}, uint8 z = {128}"


def parsed(body: str) -> onnx.ModelProto:
    text = f"g (float[2,4] x) => (float[2,4] y) <{PAIRS}> {{ {body} }}"
    return onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : 17]> {text}')


def pair(name: str, source: str) -> str:
    return f"q{name} = QuantizeLinear ({source}, s, z)  {name} = DequantizeLinear (q{name}, s, z)"


GIVEN = parsed(f"{pair('a', 'x')} [wrong] r = Tanh (a) {pair('b', 'r')} [last] t = Neg (b) {pair('y', 't')}")


def place(made: onnx.ModelProto, name: str = "wrong") -> frozenset[str]:
    return in_place_of(view_of(GIVEN), view_of(made), name)


@pytest.mark.parametrize(
    ("body", "there"),
    [
        (f"{pair('a', 'x')} [other] r = Tanh (a) {pair('b', 'r')} [last] t = Neg (b) {pair('y', 't')}", {"other"}),
        (f"{pair('a', 'x')} [one] u = Abs (a) {pair('v', 'u')} [two] b = Neg (v) [last] y = Neg (b)", {"one", "two"}),
        (f"{pair('a', 'x')} [both] t = Sin (a) {pair('y', 't')}", {"both"}),
        (f"[none] n = Neg (x) {pair('y', 'n')}", {"none"}),
        (pair("y", "x"), set()),
    ],
    ids=["renamed", "several", "fused with what follows", "fused with its pair", "left out"],
)
def test_what_computes_a_tensor_stands_in_the_place_of_what_did(body: str, there: set[str]) -> None:
    assert place(parsed(body)) == there


def test_an_unknown_node_has_no_place() -> None:
    assert place(GIVEN, "another") == set() and place(GIVEN, "last") == {"last"}


def test_pairs_that_are_taken_away_and_put_back_leave_the_place() -> None:
    taken = extract_qdq(GIVEN)
    assert place(insert_qdq(taken.model, taken.encodings, bias="int32").model) == {"wrong"}


def kernel(node: str, verdict: str, *nodes: str) -> AuditedKernel:
    return AuditedKernel(
        node=node, nodes=(node, *nodes), operators=("Tanh",), type="u8", place="alone", verdict=verdict, why="far off"
    )


def said(made: onnx.ModelProto, verdicts: Mapping[str, str], given: onnx.ModelProto = GIVEN) -> list[Finding]:
    nodes = [node.name for node in given.graph.node if node.op_type == "Tanh"]
    first = Audit(level="auto", by="it", kernels=(kernel(nodes[0], "wrong", *nodes[1:]),))
    found = Audit(level="auto", by="it", kernels=tuple(kernel(*one) for one in verdicts.items()))
    return list(mended(RULES.run(first), first, given, found, made))


RENAMED = parsed(f"{pair('a', 'x')} [new] r = Tanh (a) {pair('b', 'r')} [last] t = Neg (b) {pair('y', 't')}")


def test_only_what_was_run_and_is_right_is_called_mended() -> None:
    (told,) = said(RENAMED, {"new": "right", "last": "wrong"})
    assert told.handled and told.handled.endswith("run and is right: new") and told.severity is Severity.ERROR


def test_what_was_merely_renamed_is_told_by_itself() -> None:
    assert said(RENAMED, {"new": "wrong"}) == said(RENAMED, {"new": "narrowed"}) == []


@pytest.mark.parametrize("verdicts", [{}, {"new": "not judged"}, {"last": "right"}])
def test_what_was_not_run_is_not_called_mended(verdicts: dict[str, str]) -> None:
    (told,) = said(RENAMED, verdicts)
    assert told.handled is None and told.severity is Severity.WARNING


def test_what_is_left_out_is_not_called_mended() -> None:
    (told,) = said(parsed(pair("y", "x")), {"last": "right"})
    assert told.handled is None


def test_of_equal_kernels_every_one_must_be_right() -> None:
    """Only the first of them is named in a finding."""
    body = f"{pair('a', 'x')} [one] r = Tanh (a) {pair('b', 'r')} [two] t = Tanh (b) {pair('y', 't')}"
    given = parsed(body)
    assert said(given, {"one": "right", "two": "wrong"}, given) == []
    (told,) = said(given, {"one": "right", "two": "right"}, given)
    assert told.handled
