"""What the atlas says of the prepared model: asked about the nodes that matter alone, and once for all chips."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from pathlib import Path

import onnx
import pytest

from deploykit.backend.backend import Request, SharedWork
from deploykit.findings import Finding, Severity, Subject, SubjectKind
from deploykit.flow.read import read_situation
from deploykit_ort_qnn import prepare as preparing
from deploykit_ort_qnn.prepare import prepared_model, wheel_for
from deploykit_qualcomm.rules.atlas import suspects_in

MODEL = Path(__file__).parents[1] / "data" / "aimet" / "mlp" / "w8a16.qdq.onnx"
POOL = "AveragePool <kernel_shape = [2, 2], pads = [1, 1, 1, 1], count_include_pad = 1>"
POOLS = f"""<ir_version: 8, opset_import: ["": 17]>
g (float[1,8,8,8] x) => (float[1,8,10,10] y) {{ [first] a = {POOL} (x) [second] y = {POOL} (a) }}"""


def test_of_all_nodes_or_of_those_that_are_asked_about() -> None:
    model = onnx.parser.parse_model(POOLS)
    found = suspects_in(model, "2.51.0", verdicts=("wrong",))
    assert found == {"first", "second"}
    assert suspects_in(model, "2.51.0", verdicts=("wrong",), only={"second", "third"}) == {"second"}
    assert suspects_in(model, "2.51.0", verdicts=("refused",)) == frozenset()


def test_a_model_that_was_changed_is_read_again() -> None:
    model = onnx.parser.parse_model(POOLS)
    assert suspects_in(model, "2.51.0", verdicts=("wrong",)) == {"first", "second"}
    model.graph.node[1].attribute[1].ints[:] = [0, 0, 0, 0]
    model.graph.node[1].attribute[2].i = 0
    assert suspects_in(model, "2.51.0", verdicts=("wrong",)) == {"first"}


def test_nodes_that_are_cleared_are_looked_for_once(monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[Collection[str]] = []

    def suspects(
        model: onnx.ModelProto, release: str, *, verdicts: Collection[str], only: Collection[str]
    ) -> frozenset[str]:
        looked.append(only)
        return frozenset(only) - {"first"}

    _, situation = read_situation(Request(model=MODEL, target="sm8650", backend="ort-qnn"))
    model = onnx.ModelProto()
    model.graph.node.extend(onnx.helper.make_node("Relu", [], [], name=name) for name in ("first", "second", "third"))
    prepared, wheel, shared = (
        replace(prepared_model(situation, SharedWork()), model=model),
        wheel_for(None),
        SharedWork(),
    )
    about = [
        finding(code, name)
        for code, name in (("QNN320", "first"), ("QNN320", "second"), ("QNN320", "gone"), ("QNN201", "third"))
    ]
    monkeypatch.setattr("deploykit_qualcomm.rules.atlas.suspects_in", suspects)
    for _ in range(2):
        assert preparing._cleared(about, prepared, wheel, shared) == {"first"}
    assert looked == [{"first", "second"}], "what a row was about, as far as it is left"
    assert preparing._cleared(about[3:], prepared, wheel, shared) == frozenset() and len(looked) == 1


def finding(code: str, name: str) -> Finding:
    subject = Subject(kind=SubjectKind.NODE, name=name)
    return Finding(code=code, slug="slug", severity=Severity.INFO, subject=subject, message="m", hint="h")
