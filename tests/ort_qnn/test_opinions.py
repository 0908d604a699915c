"""The compiler inside the wheel is asked about findings that are not sure; questions of about a second each."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import deploykit
from deploykit.backend.plans import Plan
from deploykit.cli import cli
from deploykit.cli.frame import run
from deploykit.encodings.formats.aimet import write_encodings
from deploykit.encodings.values import Affine, Encoding, EncodingSet
from deploykit.findings import Confidence, Finding, Severity, Subject, SubjectKind
from deploykit.findings.rules import Registry
from deploykit_ort_qnn.bench import ask, opinions
from deploykit_ort_qnn.compiler.jobs import CompileJob, CompileOutcome, RefusedNode, compile_model
from deploykit_qualcomm.devices import qualcomm_device
from tables import each_row

pytest.importorskip("onnxruntime_qnn")

FLOAT = TensorProto.FLOAT


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("DEPLOYKIT_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "asked"


def save(path: Path, nodes: list[Any], inputs: dict[str, list[int]], output: list[int], **stored: Any) -> Path:
    ends = [helper.make_tensor_value_info(name, FLOAT, shape) for name, shape in inputs.items()]
    made = [helper.make_tensor_value_info("y", FLOAT, output)]
    tensors = [numpy_helper.from_array(np.asarray(array), name) for name, array in stored.items()]
    graph = helper.make_graph(nodes, "g", ends, made, tensors)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 16)], ir_version=8), path)
    return path


@pytest.fixture
def roi(tmp_path: Path) -> Path:
    """RoiAlign with half-pixel coordinates, which published code refuses and the compiler of 2.51 takes."""
    size: dict[str, Any] = {"output_height": 3, "output_width": 3, "sampling_ratio": 2}
    node = helper.make_node("RoiAlign", ["x", "rois", "index"], ["y"], "roi", **size)
    inputs = {"x": [1, 8, 16, 16], "rois": [3, 4]}
    return save(tmp_path / "roi.onnx", [node], inputs, [3, 8, 3, 3], index=np.zeros(3, np.int64))


@pytest.fixture
def norms(tmp_path: Path) -> Path:
    """Two response norms over volumes between other layers: the compiler takes neither."""
    kinds = ["Relu", "LRN", "Sigmoid", "LRN", "Relu"]
    nodes = []
    for index, kind in enumerate(kinds):
        settings: dict[str, Any] = {"size": 3} if kind == "LRN" else {}
        made = "y" if index == 4 else f"t{index + 1}"
        nodes.append(helper.make_node(kind, [f"t{index}"], [made], f"{kind}_{index}", **settings))
    return save(tmp_path / "norms.onnx", nodes, {"t0": [1, 4, 2, 4, 4]}, [1, 4, 2, 4, 4])


def of_code(plan: Plan[Any], code: str) -> list[Finding]:
    return [finding for finding in plan.findings if finding.code == code]


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """What was compiled: the operators of each question."""
    seen: list[str] = []
    real = compile_model

    def note(job: CompileJob, progress: Any) -> CompileOutcome:
        model = onnx.load(job.root / job.model)
        seen.append(" ".join(node.op_type for node in model.graph.node))
        return real(job, progress)

    monkeypatch.setattr(ask, "compile_model", note)
    yield seen


@pytest.mark.heavy
def test_a_refuted_no_becomes_a_note(roi: Path, tmp_path: Path) -> None:
    plan = deploykit.plan(roi, target="sm8650", backend="ort-qnn")
    (found,) = of_code(plan, "QNN211")
    assert found.severity == "info" and "refuted by QAIRT 2.51's compiler for soc 57" in found.message
    assert plan.feasible and plan.route is not None and plan.steps
    made = deploykit.package(roi, target="sm8650", backend="ort-qnn", out=tmp_path / "out")
    assert made.exit_status == 0 and made.status.compiled.state == "yes"
    assert of_code(made.plan, "QNN211") == [found]
    (other,) = of_code(deploykit.plan(roi, target="sm8650", sdk="2.33"), "QNN211")
    assert other.severity == "warning"
    assert other.message.endswith("refuted by QAIRT 2.51's compiler for soc 57; qairt 2.33 itself was not asked")


def test_a_confirmed_no_is_observed(norms: Path, compiled: list[str]) -> None:
    plan = deploykit.plan(norms, target="sm8650", sdk="2.33")
    found = of_code(plan, "QNN207")
    assert [finding.subject.name for finding in found] == ["LRN_1", "LRN_3"]
    assert all(finding.blocks and finding.to_json()["confidence"] == "observed" for finding in found)
    assert compiled == ["LRN", "Relu LRN Sigmoid LRN Relu"], "the second is the first under other names"
    assert {opinion["scope"] for opinion in of_code(plan, "DK211")[0].evidence["opinions"]} == {"1 operator"}


@pytest.mark.heavy
def test_operators_keep_the_types_and_pairs_of_the_model(norms: Path, tmp_path: Path, compiled: list[str]) -> None:
    grid = Affine(bits=16, signed=False, scale=np.asarray(2.0**-10), zero_point=np.asarray(32768.0))
    names = ["t0", "t1", "t2", "t3", "t4", "y"]
    entries = {name: Encoding(name=name, value=grid) for name in names}
    path = tmp_path / "norms.encodings"
    path.write_text(write_encodings(EncodingSet(version="0.6.1", entries=entries), "0.6.1"), "utf-8")
    deploykit.plan(norms, target="sm8650", backend="ort-qnn", encodings=path, mixed="refuse")
    pair = "QuantizeLinear DequantizeLinear"
    assert compiled[0] == f"{pair} LRN {pair}"


@pytest.mark.heavy
def test_the_second_time_nothing_is_compiled(norms: Path, compiled: list[str], own_cache: Path) -> None:
    first = deploykit.plan(norms, target="sm8650", sdk="2.33")
    asked = len(compiled)
    assert asked and len(list(own_cache.iterdir())) == asked
    again = deploykit.plan(norms, target="sm8650", sdk="2.33")
    assert len(compiled) == asked and again.to_json() == first.to_json()
    deploykit.plan(norms, target="sm8750", sdk="2.33")
    assert len(compiled) == 2 * asked, "another chip is another question"
    for path in own_cache.iterdir():
        path.write_text('{"status": 1, "message": 2, "refused": 3}', "utf-8")
    assert deploykit.plan(norms, target="sm8650", sdk="2.33").to_json() == first.to_json()


def test_without_the_wheel_the_answer_is_todays_and_says_so(roi: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(opinions, "installed_wheel", lambda: None)
    plan = deploykit.plan(roi, target="sm8650", sdk="2.33")
    assert of_code(plan, "QNN211")[0].blocks
    (said,) = of_code(plan, "DK211")
    assert "no compiler was asked about QNN211 roi: onnxruntime-qnn is not installed" in said.message
    assert "pip install" in said.hint


def test_time_that_is_over_leaves_it_open_and_keeps_nothing(
    roi: Path, monkeypatch: pytest.MonkeyPatch, own_cache: Path
) -> None:
    monkeypatch.setattr("deploykit.flow.plan.SECONDS", 0.0)
    plan = deploykit.plan(roi, target="sm8650", sdk="2.33")
    assert of_code(plan, "QNN211")[0].blocks and not own_cache.exists()
    assert "open QNN211 roi" in of_code(plan, "DK211")[0].message
    assert "the time for questions is over" in of_code(plan, "QNN211")[0].evidence["second_opinion"]["why"]


@pytest.mark.parametrize(
    ("outcome", "state"),
    [
        (CompileOutcome(status="timed-out", message="not finished after 60 s"), "open"),
        (CompileOutcome(status="crashed", message="the compiler's process died of SIGABRT"), "confirmed"),
        (CompileOutcome(status="failed", message="1 : FAIL : the model is not valid"), "open"),
        (CompileOutcome(status="failed", message="11 : EP_FAIL : Failed to finalize QNN graph."), "confirmed"),
        (CompileOutcome(status="refused", refused=(RefusedNode(name="a", type="DequantizeLinear"),)), "open"),
        (CompileOutcome(status="refused", refused=(RefusedNode(name="roi", type="RoiAlign"),)), "confirmed"),
        (CompileOutcome(status="compiled"), "refuted"),
    ],
)
def test_what_each_outcome_says(
    roi: Path, monkeypatch: pytest.MonkeyPatch, outcome: CompileOutcome, state: str, own_cache: Path
) -> None:
    monkeypatch.setattr(ask, "compile_model", lambda job, progress: outcome)
    plan = deploykit.plan(roi, target="sm8650", sdk="2.33")
    assert of_code(plan, "DK211")[0].evidence["opinions"][0]["state"] == state
    assert own_cache.exists() == (outcome.status != "timed-out")


def test_what_is_taken_in_another_type_is_not_taken(roi: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    registry: Registry[Any] = Registry("x")
    subject = Subject(kind=SubjectKind.NODE, name="roi")
    changed = Finding(code="ORT104", slug="x", severity=Severity.WARNING, subject=subject, message="")
    monkeypatch.setattr(registry, "run", lambda scope: (changed,))
    monkeypatch.setattr(opinions, "PRECISION_RULES", registry)
    plan = deploykit.plan(roi, target="sm8650", sdk="2.33")
    (found,) = of_code(plan, "QNN211")
    assert found.blocks and found.evidence["second_opinion"]["why"] == "it is taken, but in another type (ORT104)"


def test_switched_off_nobody_is_asked(
    roi: Path, compiled: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = deploykit.plan(roi, target="sm8650", sdk="2.33", second_opinion=False)
    assert of_code(plan, "QNN211")[0].blocks and not compiled
    command = ["check", str(roi), "--target", "sm8650", "--sdk", "2.33", "--json"]
    assert run(cli, [*command, "--no-second-opinion"]) == 1
    by_option = json.loads(capsys.readouterr().out)
    monkeypatch.setenv("DEPLOYKIT_SECOND_OPINION", "0")
    assert run(cli, command) == 1
    assert json.loads(capsys.readouterr().out) == by_option and not compiled
    assert "switched off" in next(f["message"] for f in by_option["findings"] if f["code"] == "DK211")


def test_numbers_and_sizes_that_values_decide_are_not_asked_about(tmp_path: Path, compiled: list[str]) -> None:
    nodes = [helper.make_node("Mul", ["x", "big"], ["t"], "m"), helper.make_node("Relu", ["t"], ["y"], "r")]
    path = save(tmp_path / "m.onnx", nodes, {"x": [1, 4]}, [1, 4], big=np.full(4, 1e9, np.float32))
    plan = deploykit.plan(path, target="sm8650", sdk="2.33")
    assert of_code(plan, "QNN127") and not compiled and not of_code(plan, "DK211")
    nodes = [helper.make_node("NonZero", ["x"], ["n"], "where"), helper.make_node("Cast", ["n"], ["y"], "c", to=FLOAT)]
    path = save(tmp_path / "n.onnx", nodes, {"x": [2, 2]}, [2, 3])
    plan = deploykit.plan(path, target="sm8650", backend="ort-qnn")
    assert of_code(plan, "DK002")[0].blocks and not compiled


@pytest.mark.heavy
def test_rows_that_were_measured_with_this_release_are_not_asked(tmp_path: Path, compiled: list[str]) -> None:
    for kind, asked in (("Softmax", False), ("LogSoftmax", True)):
        node = helper.make_node(kind, ["x"], ["y"], "long", axis=-1)
        path = save(tmp_path / f"{kind}.onnx", [node], {"x": [1, 2_200_000]}, [1, 2_200_000])
        (found,) = of_code(deploykit.plan(path, target="sm8650", backend="ort-qnn"), "QNN204")
        assert found.blocks and bool(compiled) == asked
        assert found.claim is not None and found.claim.confidence is Confidence.OBSERVED


@each_row(
    ("sdk", "releases"),
    [
        ("2.33.0", ["2.36.1", "2.51.0"]),
        ("2.36.1", ["2.36.1"]),
        ("2.41", ["2.36.1", "2.51.0"]),
        ("2.42.0", ["2.48.40", "2.51.0"]),
        ("2.50.0", ["2.51.0"]),
        ("", ["2.51.0"]),
    ],
)
def test_the_nearest_release_that_runs_speaks_first(
    sdk: str, releases: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With toolchains of 2.36.1 and 2.48.40 beside the wheel of 2.51."""
    monkeypatch.setattr(opinions, "toolchain_host", lambda wheel: wheel if wheel.sdk in ("2.36.1", "2.48.40") else None)
    found = opinions.compilers_for(qualcomm_device("sm8650"), sdk)
    assert [compiler.release for compiler in found] == releases
