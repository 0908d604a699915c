"""The stages one after another, rewrites that are asked for, and releases that are searched."""

import json
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import onnx.parser
import pytest
from msgspec.structs import replace

from deploykit.accuracy.judge.measures import sqnr_db
from deploykit.accuracy.samples.gathering import gather
from deploykit.accuracy.simulate.sessions import Session
from deploykit.accuracy.simulate.simulation import Original
from deploykit.backend.backend import Aids, Execution, Instead, Request, SharedWork, Situation
from deploykit.backend.opinions import Audit
from deploykit.backend.options import ESTIMATE, KERNELS
from deploykit.backend.plans import Plan
from deploykit.backend.quantizers import QuantizedModel
from deploykit.backend.status import Compilation, Compiled, Correctness, PackageStatus, Right
from deploykit.cli import cli
from deploykit.cli.frame import run
from deploykit.encodings.insert_qdq import insert_qdq
from deploykit.encodings.qdq import extract_qdq
from deploykit.encodings.values import Affine, Encoding, EncodingSet
from deploykit.errors import UsageError
from deploykit.findings import Finding, Severity, Subject, SubjectKind
from deploykit.flow import choose, cure, seal
from deploykit.flow.cure import rewrite_quantized
from deploykit.flow.pipeline import check, estimate, make_package, make_packages, make_plan
from deploykit.flow.plan import decide
from deploykit.flow.read import read_situation
from deploykit.flow.releases import SdkTrial, try_compilers
from deploykit.flow.run import execute, with_kernels
from deploykit.flow.seal import RanPackage
from deploykit.flow.ways import ChainProof
from deploykit.model.collect import facts_of
from made_findings import a_finding
from sample_models.feeds import random_feeds
from sample_models.tiny_graphs import TinyGraph
from stub_backend import StubBackend
from tables import each_row
from text_models import text_model

CNN = Path(__file__).parents[1] / "data" / "aimet" / "cnn"


def package(out: Path, *targets: str) -> int:
    words = [word for target in targets for word in ("--target", target)]
    encodings = str(CNN / "w8a8.v0.6.1.encodings")
    return run(cli, ["package", str(CNN / "model.onnx"), *words, "--encodings", encodings, "-o", str(out), "--json"])


def test_what_ends_a_tool_and_what_is_wrong_then_are_both_gone_around(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    subject, asked = Subject(kind=SubjectKind.MODEL, name="m"), list[Request]()

    def refusing(backend: Any, decision: Any, *_: Any) -> Execution:
        asked.append(decision.given.request)
        one = Finding(code="X", slug="x", severity=Severity.ERROR, subject=subject, message=str(len(asked)))
        instead = Instead(request=asked[-1], how=f"way {len(asked)}")
        return Execution(findings=(one,), instead=instead) if len(asked) < 3 else Execution()

    monkeypatch.setattr("deploykit.flow.pipeline.execute", refusing)
    request = Request(model=CNN / "model.onnx", target="sm8650", encodings=CNN / "w8a8.v0.6.1.encodings")
    found = make_package(request, tmp_path / "out").findings
    assert [(f.message, f.handled) for f in found if f.code == "X"] == [("1", "way 1"), ("2", "way 2")]


def test_what_does_not_depend_on_the_chip_is_done_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[str] = []
    for module, name in ((choose, "explore"), (cure, "EncodingsOnGraph")):
        real = getattr(module, name)

        def noted(*args: Any, name: str = name, real: Any = real, **more: Any) -> Any:
            done.append(name)
            return real(*args, **more)

        monkeypatch.setattr(module, name, noted)
    assert package(tmp_path / "one", "sm8650") == 0
    alone = Counter(done)
    assert alone["explore"] == 1
    done.clear()
    assert package(tmp_path / "both", "sm8550", "sm8650") == 0
    assert Counter(done) == alone
    assert contents(tmp_path / "both" / "sm8650") == contents(tmp_path / "one")


def contents(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_what_is_done_is_told_while_it_is_done(tmp_path: Path) -> None:
    request = Request(model=CNN / "model.onnx", target="sm8650", backend="qnn-htp", sdk="2.33", compile=False)
    news = list[str]()
    make_plan(replace(request, encodings=CNN / "w8a8.v0.6.1.encodings"), progress=news.append)
    check(request, progress=news.append)
    decided = ["[1/1] deciding", "simulating the encodings as they are", "trying as-is", "planning"]
    assert news == [*decided, "[1/2] deciding", "planning", "[2/2] running each kernel by itself"]
    first, news = "reading the model and its encodings", list[str]()
    make_package(request, tmp_path / "one", progress=news.append)
    steps = ["[1/3] deciding", "planning", "[2/3] writing", "[3/3] verifying"]
    assert news == [first, *steps]
    news.clear()
    make_packages([request, replace(request, target="sm8550")], tmp_path / "two", progress=news.append)
    assert news == [f"sm8650: {line}" for line in (first, *steps)] + [f"sm8550: {line}" for line in steps]


class Recorder(StubBackend):
    """Notes how many inputs it is given to run."""

    ran = 0
    original: Original | None = None

    def execute(self, package: Path, prepared: Situation, plan: Plan[None], aids: Aids) -> Execution:
        self.ran, self.original = len(aids.samples().feeds), aids.original()
        return super().execute(package, prepared, plan, aids)


@each_row(("given", "count"), ((), 1), (("input=0..1",), 8))
def test_of_made_up_inputs_one_is_run(given: tuple[str, ...], count: int, tmp_path: Path) -> None:
    """An emulator takes minutes for one of some models, and nothing made up judges."""
    backend = Recorder()
    _, situation = read_situation(Request(model=CNN / "model.onnx", target="sm8650", inputs=given))
    execute(backend, decide(backend, situation, SharedWork(), lambda _: None), tmp_path, SharedWork(), lambda _: None)
    assert backend.ran == count


@each_row(
    ("model", "encodings", "inputs", "lost"),
    ("model.onnx", None, "input=0..1", False),
    ("model.onnx", None, "", False),
    ("model.onnx", "w8a8.v0.6.1.encodings", "input=0..1", True),
    ("model.onnx", "w8a8.v0.6.1.encodings", "", True),
    ("w8a8.qdq.onnx", None, "input=0..1", True),
)
def test_a_package_is_judged_by_the_model_as_it_was_handed_in(
    model: str, encodings: str | None, inputs: str, lost: bool, tmp_path: Path
) -> None:
    """In float, beside what its encodings or its own pairs lose; of the very same graph more is asked."""
    backend, shared = Recorder(), SharedWork()
    named = None if encodings is None else CNN / encodings
    request = Request(model=CNN / model, target="sm8650", encodings=named, inputs=tuple(filter(None, [inputs])))
    _, situation = read_situation(request)
    decision = decide(backend, situation, shared, lambda _: None)
    execute(backend, decision, tmp_path, shared, lambda _: None)
    made = backend.original
    assert made is not None and (made.quantization is not None) is lost
    names = made.judge.names
    exact = made.judge.compare([{name: row[name] for name in names} for row in made.judge.reference])
    assert {number.limit.value for number in exact.numbers if number.limit.unit == "dB"} == {12.0 if lost else 30.0}
    assert exact.overall_db == np.inf and (made.quantization is None or 10 < made.quantization.overall_db < 60)
    unasked = replace(decision, given=replace(situation, request=replace(request, compile=False)))
    assert execute(backend, unasked, tmp_path, shared, lambda _: None) == Execution()


def test_what_a_package_was_made_from_is_told_by_name_and_hash(tmp_path: Path) -> None:
    model = onnx.load(CNN / "model.onnx")
    onnx.save(model, tmp_path / "m.onnx", save_as_external_data=True, location="w.bin", size_threshold=0)
    (tmp_path / "floats.txt").write_text("logits\n")
    (tmp_path / "list.txt").write_text("a.raw\n")
    request = Request(model=tmp_path / "m.onnx", target="sm8650", encodings=CNN / "w8a8.v0.6.1.encodings")
    _, situation = read_situation(request)
    own = {"own_list": tmp_path / "list.txt", "folder": tmp_path, "number": 3}
    request = replace(request, float_tensors=tmp_path / "floats.txt", adapter_options=own)
    quantized = QuantizedModel(model=CNN / "model.onnx", calibration=tmp_path, record={})
    writer: Any = SimpleNamespace(witnessed=SimpleNamespace(hash=lambda path: (len(path.name), f"hash of {path.name}")))
    rows = seal._inputs(replace(situation, request=request, quantized=quantized), writer)
    roles = ["float-model", "model", "external-data", "encodings", "float-tensors", "own-list"]
    names = ["model.onnx", "m.onnx", "w.bin", "w8a8.v0.6.1.encodings", "floats.txt", "list.txt"]
    told = zip(roles, names, strict=True)
    assert rows == [
        {"role": role, "name": name, "bytes": len(name), "sha256": f"hash of {name}"} for role, name in told
    ]


AIMET = Path(__file__).parents[1] / "data" / "aimet"
BACKENDS = [("qnn-htp", "sm8650"), ("ort-qnn", "sm8650"), ("vitis-ai", "strix")]


@pytest.mark.parametrize(("backend", "target"), BACKENDS)
@each_row(("model", "name", "made"), ("mlp", "linear-to-conv", "Conv"), ("vit", "fuse-gelu", "Gelu"))
def test_it_is_done_on_a_quantized_model(backend: str, target: str, model: str, name: str, made: str) -> None:
    given = AIMET / model / "w8a16.qdq.onnx"
    request = Request(model=given, target=target, backend=backend, rewrite=(name,), compile=False)
    found, situation = read_situation(request)
    decision = decide(found, situation, SharedWork(), lambda line: None)
    assert not [finding for finding in decision.plan.findings if finding.code == "DK208"]
    (said,) = [finding for finding in decision.plan.findings if finding.code == "DK201"]
    assert said.evidence["rewrites"] == [name]
    rewritten = decision.chosen.situation.model.proto
    assert made in {node.op_type for node in rewritten.graph.node}
    before, after = (extract_qdq(proto) for proto in (onnx.load(given), rewritten))
    assert not after.kept and len(after.encodings) >= len(before.encodings) - 8
    feed = random_feeds(rewritten)[0]
    for name, wanted in Session(onnx.load(given)).run(feed).items():
        assert sqnr_db(wanted, Session(rewritten).run(feed)[name]) > 40


def test_it_is_undone_where_the_grids_would_be_lost() -> None:
    """A tail that moves to the host is no longer in the model that was quantized."""
    graph = TinyGraph()
    graph.op("Mul", [graph.op("Relu", [graph.input("x", (1, 4))], "r"), graph.stored("k", 640.0)], "y")
    model = graph.model("y")
    grid = Affine(bits=8, signed=False, scale=np.asarray(0.1), zero_point=np.asarray(0.0))
    wide = replace(grid, scale=np.asarray(64.0))
    entries = {n: Encoding(name=n, value=wide if n == "y" else grid) for n in ("x", "r", "y")}
    quantized = insert_qdq(model, EncodingSet(version="2.0.0", entries=entries)).model
    done = rewrite_quantized(quantized, ["scale-last"], gather(quantized, facts_of(quantized)))
    assert done.model is quantized and not done.kept
    assert "its outputs change" in done.steps[0].reason or done.steps[0].refusals


@pytest.mark.parametrize("backend", ["qnn-htp", "ort-qnn"])
def test_infinity_is_no_defect(backend: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Minus infinity and NaN as constants, a division by zero, and the logarithm of what comes out."""
    body = "q = Div (x, zero)  a = Add (q, low)  s = Sub (a, nan)  y = Log (s)"
    model = text_model("float[1,16] x", body, "y, a", zero=[0.0] * 16, low=[-np.inf] * 16, nan=[np.nan] * 16)
    onnx.save(onnx.shape_inference.infer_shapes(model), tmp_path / "odd.onnx")
    kind = {"enc_type": "PER_TENSOR", "dtype": "INT", "bw": 16, "is_sym": False, "scale": [1 / 65535], "offset": [0]}
    rows = [{"name": name, **kind} for name in "xqasy"]
    (tmp_path / "e.encodings").write_text(
        json.dumps({"version": "1.0.0", "activation_encodings": rows, "param_encodings": []})
    )
    asked = ["package", str(tmp_path / "odd.onnx"), "--target", "sm8650", "--backend", backend, "--input", "x=-1..1"]
    for given in ([], ["--encodings", str(tmp_path / "e.encodings")]):
        status = run(cli, [*asked, *given, "--no-compile", "--json", "-o", str(tmp_path / "package"), "--force"])
        answer = json.loads(capsys.readouterr().out, parse_constant=pytest.fail)
        assert status in (0, 1) and "DK008" in {finding["code"] for finding in answer["findings"]}


def finding_of(code: str, severity: Severity = Severity.ERROR, **more: Any) -> Finding:
    return a_finding(code=code, severity=severity, **more)


@each_row(
    ("findings", "state", "blocking", "open_"),
    ((), "ok", (), ()),
    ((finding_of("B"), finding_of("A"), finding_of("B", name="m")), "no", ("A", "B"), ()),
    ((finding_of("A", handled="it is"), finding_of("B", Severity.WARNING)), "ok", (), ()),
    ((finding_of("A", Severity.WARNING, evidence={"status": "unknown"}),), "unknown", (), ("A",)),
    ((finding_of("A", Severity.INFO, evidence={"status": "supported"}),), "ok", (), ()),
    ((finding_of("A", handled="it is", evidence={"status": "unknown"}),), "ok", (), ()),
    ((finding_of("A", evidence={"status": "broken"}),), "no", ("A",), ()),
)
def test_what_a_release_says_of_a_model(
    findings: tuple[Finding, ...], state: str, blocking: tuple[str, ...], open_: tuple[str, ...]
) -> None:
    trial = SdkTrial(sdk="2.33", findings=findings)
    told = {"sdk": "2.33", "ok": state == "ok", "state": state, "blocking": [*blocking], "open": [*open_]}
    assert trial.to_json() == told


class Auditing(StubBackend):
    """A backend that runs kernels by themselves, and finds one thing and settles another."""

    def audit(self, prepared: Situation, *, level: str, progress: Any, given: Any = None) -> Audit:
        return Audit(level=level, by=str(given), findings=(finding_of("K"),), settled={("A", "n"): f"seen by {level}"})


@each_row(
    ("backend", "asked", "settled"),
    (Auditing(), {"adapter_options": {"kernels": "auto"}}, "seen by auto"),
    (Auditing(), {"adapter_options": {"kernels": "full"}, "second_opinion": False}, "seen by full"),
    (Auditing(), {"adapter_options": {"kernels": "auto"}, "second_opinion": False}, None),  # no compiler is asked
    (Auditing(), {"adapter_options": {"kernels": "full"}, "compile": False}, None),
    (Auditing(), {"adapter_options": {"kernels": "off"}}, None),
    (Auditing(), {}, None),
    (StubBackend(), {"adapter_options": {"kernels": "full"}}, None),
)
def test_when_kernels_are_run_by_themselves(backend: StubBackend, asked: dict[str, Any], settled: str | None) -> None:
    given = SimpleNamespace(request=Request(model=Path("m"), target="t", **asked))
    plan: Plan[None] = Plan(backend="stub", target={}, sdk={}, route=None, findings=(finding_of("A"), finding_of("B")))
    decision: Any = SimpleNamespace(given=given, plan=plan, prepared=None)
    found = [(finding.code, finding.handled) for finding in with_kernels(backend, decision, lambda _: None)]
    assert sorted(found) == [("A", settled), ("B", None), *([] if settled is None else [("K", None)])]


YES = Correctness(state=Right.YES, why="40 dB")
REFUSED = Execution(compiled=Compilation(state=Compiled.REFUSED))


@each_row(
    ("execution", "tried", "simulated", "right"),
    (Execution(right=YES), replace(YES, why="tried"), Correctness(), YES),
    (Execution(), replace(YES, why="tried"), Correctness(), replace(YES, why="tried")),
    (Execution(), None, replace(YES, why="simulated"), replace(YES, why="simulated")),
    (REFUSED, None, YES, replace(YES, state=Right.NOT_JUDGED, why="nothing runs; simulated by itself, 40 dB")),
    (REFUSED, None, replace(YES, state=Right.NO), replace(YES, state=Right.NO)),
)
def test_whose_word_says_whether_a_package_is_right(
    execution: Execution, tried: Correctness | None, simulated: Correctness, right: Correctness
) -> None:
    """What ran, else a trial before it, else the simulation; and what an earlier try failed at is handled."""
    decision: Any = SimpleNamespace(plan=SimpleNamespace(findings=(finding_of("A"),), right=simulated))
    request = Request(model=Path("m"), target="t")
    instead = Instead(request=request, how="in another form", right=tried, findings=(finding_of("N", Severity.INFO),))
    second = RanPackage(
        decision=decision,
        writer=Any,  # type: ignore[arg-type]
        execution=replace(execution, findings=(finding_of("Y"),), settled={("A", "n"): "seen"}),
        asked_by=instead,
        avoided=instead.over((finding_of("X"), finding_of("Y"))),
    )
    assert second.right == right
    told = [("A", "seen"), ("N", None), ("X", "in another form"), ("Y", None)]
    assert sorted((f.code, f.handled) for f in second.findings) == told


def test_every_compiler_that_runs_here_is_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    asked, told, options = list[Request](), list[str](), lambda: (KERNELS, ESTIMATE)
    two = SimpleNamespace(id="both", options=options, releases_here=lambda: ("2.33", "2.36"))

    def made(request: Request, out: Path, *, progress: Any) -> Any:
        asked.append(request)
        findings = (finding_of("B"), finding_of("A"), finding_of("C", Severity.WARNING))
        status = PackageStatus(compiled=Compilation(state=Compiled.YES if request.sdk == "2.36" else Compiled.REFUSED))
        return SimpleNamespace(findings=findings, status=status, estimate=None)

    for file in ("pipeline", "releases"):
        monkeypatch.setattr(f"deploykit.flow.{file}.make_package", made)
    monkeypatch.setattr("deploykit.flow.releases.load_backends", lambda: (StubBackend(), two))
    request = Request(model=Path("m"), target="t", adapter_options={"route": "x"})
    trials = try_compilers(request, told.append)
    assert [(one.sdk, one.is_compiled) for one in trials] == [("2.33", False), ("2.36", True)]
    assert {one.blocking for one in trials} == {("A", "B")}
    own = {"route": "x", "kernels": "off", "estimate": True}
    wanted = replace(request, backend="both", compile=True, adapter_options=own)
    assert asked == [replace(wanted, sdk="2.33"), replace(wanted, sdk="2.36")]
    assert told == ["asking both 2.33", "asking both 2.36"]
    quiet = replace(request, adapter_options={**request.adapter_options, "kernels": "off"})
    assert estimate(request) is None and asked.pop() == quiet
    with pytest.raises(UsageError) as refused:
        try_compilers(replace(request, backend="stub"), told.append)
    assert refused.value.what == "no compiler of stub runs here"


@each_row(("equal", "steps", "holds"), (True, 0.0, True), (True, 1.0, True), (True, 1.01, False), (False, 0.0, False))
def test_a_chain_is_proven_in_float_and_within_a_step(equal: bool, steps: float, holds: bool) -> None:
    assert ChainProof(float_equal=equal, steps=steps).holds is holds
