"""The compiler inside the wheel is asked about findings that are not sure; questions of about a second each."""

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.parser
import pytest
from msgspec.structs import replace

import deploykit
from deploykit.backend.backend import Request, SharedWork
from deploykit.backend.plans import Plan
from deploykit.cli import cli
from deploykit.cli.frame import run
from deploykit.encodings.formats.aimet import write_encodings
from deploykit.encodings.values import Affine, Encoding, EncodingSet
from deploykit.findings import Finding, Severity, Subject, SubjectKind
from deploykit.findings.rules import Registry
from deploykit.flow.pipeline import Packaged, make_package
from deploykit.flow.read import read_situation
from deploykit.rewrites import CURES
from deploykit_ort_qnn.bench import ask, opinions
from deploykit_ort_qnn.bench.ask import TimedBench
from deploykit_ort_qnn.bench.repair import find_culprit, rescue
from deploykit_ort_qnn.compiler.jobs import CompileJob, CompileOutcome, compile_model
from deploykit_qualcomm.devices import qualcomm_device
from deploykit_qualcomm.hosted import RefusedNode
from made_findings import a_finding
from sample_models.tiny_graphs import TinyGraph
from tables import each_row
from text_models import text_model

pytest.importorskip("onnxruntime_qnn")


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("DEPLOYKIT_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "asked"


def save(path: Path, given: str, body: str, made: str, **stored: Any) -> Path:
    onnx.save(text_model(given, body, made, opset=16, **stored), path)
    return path


@pytest.fixture
def roi(tmp_path: Path) -> Path:
    """RoiAlign with half-pixel coordinates, which published code refuses and the compiler of 2.51 takes."""
    body = "[roi] y = RoiAlign <output_height = 3, output_width = 3, sampling_ratio = 2> (x, rois, index)"
    given = "float[1,8,16,16] x, float[3,4] rois"
    return save(tmp_path / "roi.onnx", given, body, "float[3,8,3,3] y", index=np.zeros(3, np.int64))


@pytest.fixture
def norms(tmp_path: Path) -> Path:
    """Two response norms over volumes between other layers: the compiler takes neither."""
    body = """[Relu_0] t1 = Relu (t0) [LRN_1] t2 = LRN <size = 3> (t1) [Sigmoid_2] t3 = Sigmoid (t2)
      [LRN_3] t4 = LRN <size = 3> (t3) [Relu_4] y = Relu (t4)"""
    return save(tmp_path / "norms.onnx", "float[1,4,2,4,4] t0", body, "float[1,4,2,4,4] y")


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


def test_without_the_wheel_the_answer_is_todays_and_says_so(roi: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(opinions, "installed_wheel", lambda: None)
    plan = deploykit.plan(roi, target="sm8650", sdk="2.33")
    assert of_code(plan, "QNN211")[0].blocks
    (said,) = of_code(plan, "DK211")
    assert "no compiler was asked about QNN211 roi: onnxruntime-qnn is not installed" in said.message
    assert "pip install" in said.hint


def test_time_that_is_over_leaves_it_open(roi: Path, monkeypatch: pytest.MonkeyPatch, own_cache: Path) -> None:
    monkeypatch.setattr("deploykit.flow.plan.SECONDS", 0.0)
    plan = deploykit.plan(roi, target="sm8650", sdk="2.33")
    assert of_code(plan, "QNN211")[0].blocks and not own_cache.exists()
    assert "open QNN211 roi" in of_code(plan, "DK211")[0].message
    assert "the time for questions is over" in of_code(plan, "QNN211")[0].evidence["second_opinion"]["why"]


ERF, HALF, ROI = (
    RefusedNode(name=n, type=kind) for n, kind in (("e", "Erf"), ("a", "DequantizeLinear"), ("roi", "RoiAlign"))
)
OTHERS, PART = "the model: it is not taken for other reasons", "its operators cannot be compiled on their own"


@pytest.mark.parametrize(
    ("status", "message", "refused", "told"),
    [
        ("timed-out", "late", (), "open: late; the model: late (the model)"),
        ("crashed", "SIGABRT", (), "confirmed: SIGABRT (1 operator)"),
        ("failed", "1 : FAIL : no", (), f"open: 1 : FAIL : no; {OTHERS} (the model)"),
        ("failed", "11 : EP_FAIL : Failed.", (), "confirmed: Failed. (1 operator)"),
        ("refused", "m", (HALF,), f"open: m; {OTHERS} (the model)"),
        ("refused", "m", (HALF, ERF), "confirmed: it is not taken (1 operator)"),
        ("refused", "m", (ROI,), "confirmed: it is not taken (1 operator)"),
        ("compiled", "", (), "refuted: it is taken (1 operator)"),
        # Where its operators cannot be cut out the whole model is asked; what it takes it takes in its parts.
        ("compiled", "whole", (), "refuted: it is taken (the model)"),
        ("refused", "whole", (ROI,), "confirmed: it is not taken (the model)"),
        ("refused", "whole", (ERF,), f"open: {PART}; {OTHERS} (the model)"),
        ("crashed", "whole", (), f"open: {PART}; the model: whole (the model)"),
    ],
)
def test_what_each_outcome_says(
    roi: Path, monkeypatch: pytest.MonkeyPatch, status: Any, message: str, refused: Any, told: str, own_cache: Path
) -> None:
    asked = list[CompileJob]()

    def answer(job: CompileJob, progress: Any) -> CompileOutcome:
        asked.append(job)
        return CompileOutcome(status=status, message=message, refused=refused)

    monkeypatch.setattr(ask, "compile_model", answer)
    if message == "whole":
        monkeypatch.setattr("deploykit_ort_qnn.bench.pieces.Pieces.cut", lambda *_: None)
    plan = deploykit.plan(roi, target="sm8650", sdk="2.33")
    (opinion,) = of_code(plan, "DK211")[0].evidence["opinions"]
    assert f"{opinion['state']}: {opinion['why']} ({opinion['scope']})" == told
    assert own_cache.exists() == (status != "timed-out")
    assert {(job.timeout, job.options["soc_model"], job.allow_cpu) for job in asked} == {(60.0, "57", False)}


PAIRS = """<ir_version: 10, opset_import: ["": 17]> g (float[1,8] x) => (float[1,8] y, int64[1,2] at)
<float s = {0.01}, uint8 z = {128}, int64[1] k = {2}> {
  q = QuantizeLinear (x, s, z) a = DequantizeLinear (q, s, z) [sum] b = Add (a, a) qb = QuantizeLinear (b, s, z)
  c = DequantizeLinear (qb, s, z) [root] d = Tanh (c) qd = QuantizeLinear (d, s, z)
  e = DequantizeLinear (qd, s, z) [last] f = Relu (e) qf = QuantizeLinear (f, s, z) y = DequantizeLinear (qf, s, z)
  [top] most, at = TopK (c, k)
}"""


@each_row(
    ("name", "evidence", "asked"),
    ("sum", {}, "Add"),
    ("root", {"nodes": ["sum"]}, "Add Tanh"),
    ("c", {}, "Tanh TopK"),  # of a tensor, whoever reads it; the pair itself computes nothing
    ("nothing", {"tensors": ["d"]}, "Tanh"),
    ("top", {}, "TopK"),  # by the first of its results
    ("nothing", {}, ""),
)
def test_what_is_compiled_for_a_finding(
    name: str, evidence: Any, asked: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    onnx.save(onnx.parser.parse_model(PAIRS), tmp_path / "m.onnx")
    _, situation = read_situation(Request(model=tmp_path / "m.onnx", target="sm8650", backend="ort-qnn"))
    seen = list[str]()

    def note(job: CompileJob, progress: Any) -> CompileOutcome:
        kinds = {node.op_type for node in onnx.load(job.root / job.model).graph.node}
        seen.append(" ".join(sorted(kind for kind in kinds if "Linear" not in kind)))
        return CompileOutcome(status="compiled")

    monkeypatch.setattr(ask, "compile_model", note)
    monkeypatch.setenv("DEPLOYKIT_CACHE", str(tmp_path))
    found = a_finding(name=name, evidence=evidence)
    how: Any = {"release": "2.51.0", "shared": SharedWork(), "seconds": 60.0, "progress": lambda line: None}
    (opinion,) = opinions.settle(situation, [found], **how)
    whole = "Add Relu Tanh TopK"  # where nothing can be cut out
    assert (seen, opinion.state) == ([asked or whole], "refuted")


def test_what_is_taken_in_another_type_is_not_taken(roi: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    registry: Registry[Any] = Registry("x")
    subject = Subject(kind=SubjectKind.NODE, name="roi")
    changed = Finding(code="ORT104", slug="x", severity=Severity.WARNING, subject=subject, message="")
    monkeypatch.setattr(registry, "run", lambda scope: (changed,))
    monkeypatch.setattr(opinions, "PRECISION_RULES", registry)
    monkeypatch.setattr(ask, "compile_model", lambda job, progress: CompileOutcome(status="compiled"))
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


@each_row(
    ("sdk", "releases"),
    ("2.33.0", ["2.36.1", "2.51.0"]),
    ("2.36.1", ["2.36.1"]),
    ("2.41", ["2.36.1", "2.51.0"]),
    ("2.42.0", ["2.48.40", "2.51.0"]),
    ("2.50.0", ["2.51.0"]),
    ("", ["2.51.0"]),
)
def test_the_nearest_that_runs_speaks_first(sdk: str, releases: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """With toolchains of 2.36.1 and 2.48.40 beside the wheel of 2.51."""
    monkeypatch.setattr(opinions, "toolchain_host", lambda wheel: wheel if wheel.sdk in ("2.36.1", "2.48.40") else None)
    found = opinions.compilers_for(qualcomm_device("sm8650"), sdk)
    assert [compiler.release for compiler in found] == releases
    assert found[0].name == f"QAIRT {releases[0].rpartition('.')[0]}'s compiler for soc 57"
    (nobody,) = opinions.compilers_for(replace(qualcomm_device("sm8650"), facts={}), sdk)
    assert (nobody.missing, nobody.release) == ("the soc_model of sm8650 is not known", "")


KILLING = ["Transpose:turned", "Reshape:list", "Gather:taken", "Transpose:back"]


def killing() -> onnx.ModelProto:
    """Layers, a Gather by a shaped index between transpositions, and layers; its operators are called as in KILLING."""
    graph = TinyGraph(18)
    graph.op("Sigmoid", [graph.input("x", (1, 1, 1, 48))], "first")
    graph.op("Tanh", ["first"], "second")
    graph.op("Transpose", ["second"], "turned", perm=[0, 3, 1, 2])
    graph.op("Reshape", ["turned", graph.stored("shape", [48], "int64")], "list")
    index = graph.stored("index", np.arange(48)[::-1].reshape(1, 48, 1, 1), "int64")
    graph.op("Gather", ["list", index], "taken")
    graph.op("Transpose", ["taken"], "back", perm=[0, 2, 3, 1])
    graph.op("Sigmoid", ["back"], "third")
    graph.op("Tanh", ["third"], "y")
    return graph.model("y")


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "model.onnx"
    onnx.save(killing(), path)
    return path


@pytest.fixture
def unknown_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if no rule had ever heard of it: the repair is not tried before the compiler dies."""
    known = tuple(name for name in CURES if name != "flat-index")
    monkeypatch.setattr("deploykit.flow.cure.CURES", known)


def package(model: Path, **given: Any) -> Packaged:
    np.savez(model.with_name("data.npz"), x=np.random.default_rng(0).normal(size=(4, 1, 1, 1, 48)).astype(np.float32))
    request = Request(model=model, target="sm8650", backend="ort-qnn", calibration=model.with_name("data.npz"), **given)
    return make_package(request, model.with_name("out"), force=True)


def encodings(model: Path) -> Path:
    names = [name for node in onnx.load(model).graph.node for name in node.output]
    value = Affine(bits=16, signed=False, scale=np.asarray(2.0**-12), zero_point=np.asarray(32768.0))
    entries = {name: Encoding(name=name, value=value) for name in ["x", *names]}
    path = model.with_name("model.encodings")
    path.write_text(write_encodings(EncodingSet(version="0.6.1", entries=entries), "0.6.1"), "utf-8")
    return path


@pytest.mark.heavy
@pytest.mark.usefixtures("unknown_fault")
@pytest.mark.parametrize("integers", [False, True])
def test_an_unknown_one_is_found_and_got_over(model: Path, integers: bool) -> None:
    made = package(model, encodings=encodings(model) if integers else None)
    assert made.exit_status == 0 and made.status.compiled.state == "yes" and made.status.right.state == "yes"
    (died,) = [finding for finding in made.findings if finding.code == "ORT112"]
    assert died.handled is not None and died.handled.startswith("the graph is rewritten (flat-index)")
    assert died.evidence["nodes"] == KILLING and "SIGABRT" in died.message
    assert made.package is not None and not (made.package / "logs" / "compile.log").exists()


@pytest.mark.heavy
def test_what_nothing_helps_against_is_named(model: Path) -> None:
    made = package(model, encodings=encodings(model), no_rewrite=("flat-index",))
    assert made.exit_status == 1 and made.status.compiled.state == "refused"
    assert made.status.right.state == "not judged" and "simulated" in made.status.right.why
    (died,) = [finding for finding in made.findings if finding.code == "ORT112"]
    assert died.blocks and died.evidence["nodes"] == KILLING
    assert "4 operators do it alone: Transpose Transpose:turned" in died.message


def trial(**given: Any) -> TimedBench:
    job = {"options": {"soc_model": "57"}, "deadline": time.monotonic() + 60, "longest": 30.0}
    return TimedBench(progress=lambda line: None, **{**job, **given})


def test_without_time_or_where_no_part_does_it_again_nothing_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    assert find_culprit(killing(), "crashed", trial(deadline=time.monotonic())) is None
    monkeypatch.setattr(ask, "compile_model", lambda job, progress: CompileOutcome(status="compiled"))
    assert find_culprit(killing(), "crashed", trial()) is None


def hanging_on(kind: str, *, unless_mode: str) -> Any:
    """A compiler that never ends on operators of one type, but in one finalization mode."""

    def compile_model(job: CompileJob, progress: Any = None) -> CompileOutcome:
        mode = job.options.get("htp_graph_finalization_optimization_mode")
        kinds = {node.op_type for node in onnx.load(job.root / job.model).graph.node}
        if kind in kinds and mode != unless_mode:
            return CompileOutcome(status="timed-out", message="not finished after 30 s, the time limit")
        return CompileOutcome(status="compiled")

    return compile_model


def test_what_never_ends_is_found_and_compiled_in_another_mode(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ask, "compile_model", hanging_on("Gather", unless_mode="1"))
    job = CompileJob(root=model.parent, model=model.name, context="c.onnx", options={"soc_model": "57"})
    request = Request(model=model, target="sm8650", no_rewrite=("flat-index",))
    outcome = CompileOutcome(status="timed-out", message="not finished after 600 s, the time limit")
    told, instead = rescue(job, outcome, request, lambda line: None)
    assert [(node.name, node.type) for node in told.culprit] == [("Gather:taken", "Gather")]
    assert instead is not None and instead.request.adapter_options == {"finalization_mode": 1}
    assert instead.how.startswith("it is compiled with finalization mode 1; as it was")
    asked = replace(request, adapter_options={"finalization_mode": 2})
    assert rescue(job, outcome, asked, lambda line: None) == (told, None)
    compiled = CompileOutcome(status="compiled")
    assert rescue(job, compiled, request, lambda line: None) == (compiled, None)
