"""A float model quantized in a child process: divided data, jobs that are done once, numbers, and the package."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import pytest
from msgspec import Struct
from msgspec.structs import replace

import deploykit
from deploykit.accuracy.judge.verdict import Verdict
from deploykit.accuracy.simulate.simulation import simulate_files
from deploykit.backend.backend import Request
from deploykit.backend.quantizers import QuantizerAsked, QuantizerJob, WeightMethod
from deploykit.backend.requests import make_request
from deploykit.encodings.read import read_placed
from deploykit.encodings.values import Affine
from deploykit.errors import InputError, ToolError, UsageError
from deploykit.flow import pipeline
from deploykit.flow.pipeline import make_packages
from deploykit.flow.quantizing import choosing, command, making
from deploykit.flow.quantizing.choosing import EMBEDDED, Picked, environment_for, pick
from deploykit.flow.quantizing.making import Made, Making, Numbers, divide
from deploykit.flow.read import read_situation, resolve_target
from deploykit.flow.rules import QUANTIZED_RULES
from deploykit.model.collect import collect_facts
from deploykit.model.load import load_model
from deploykit.system.environments import Environment
from made_findings import a_finding
from rule_cases import check_pairs
from stub_backend import StubBackend
from tables import each_row
from text_models import text_model
from written import assert_as_written

DATA = Path(__file__).parents[1] / "data" / "aimet"
CNN = DATA / "cnn" / "model.onnx"


@pytest.fixture(autouse=True)
def nothing_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever is installed on this machine, the embedded quantizer is the only one here."""
    monkeypatch.setenv("DEPLOYKIT_TOOLCHAINS", str(tmp_path / "toolchains"))


@pytest.fixture
def frames(tmp_path: Path) -> Path:
    """Sixteen samples for the small network."""
    rng = np.random.default_rng(0)
    np.savez(tmp_path / "frames.npz", input=rng.normal(size=(16, 1, 3, 16, 16)).astype(np.float32))
    return tmp_path / "frames.npz"


def facts_of(path: Path) -> Any:
    return collect_facts(load_model(path))


def test_the_quantizer_asked_for_is_taken_or_refused_by_name() -> None:
    backend, target = resolve_target(Request(model=CNN, target="sm8650"))
    assert pick(backend, target, "ort", None).quantizer is EMBEDDED
    with pytest.raises(ToolError, match="is absent") as absent:
        pick(backend, target, "aimet", None)
    assert "toolchain install aimet" in absent.value.next
    with pytest.raises(ToolError, match="is absent"):
        pick(backend, target, None, "w4a16")  # the embedded one has no such weights, and must not stand in
    default = pick(backend, target, None, "w8a16")
    assert default.quantizer is EMBEDDED
    assert default.better is not None and default.better.spec.name == "aimet"


def test_the_best_that_is_installed_is_taken_and_the_first_that_is_not_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    made = {"one": ("w8a8", "w8a16"), "two": ("w8a16",), "three": ("w8a8", "w8a16"), "own": ("w8a8", "w8a16")}
    known: Any = [SimpleNamespace(id=name, precisions=lambda _, of=of: of) for name, of in made.items()]
    states = {"one": "absent", "two": "broken", "three": "ready"}

    def environment(one: Any) -> Any:
        told = SimpleNamespace(state=states.get(one.id))
        return told.state and SimpleNamespace(id=one.id, state=lambda with_size: told)

    monkeypatch.setattr(choosing, "quantizers_for", lambda *_: known)
    monkeypatch.setattr(choosing, "environment_for", environment)
    for asked, precision, taken, better in (
        (None, "w8a16", "three", "one"),
        (None, None, "three", "one"),
        ("own", "w8a8", "own", None),
        ("three", "w8a8", "three", None),
    ):
        picked: Any = pick(SimpleNamespace(quantizer=""), None, asked, precision)  # type: ignore[arg-type]
        assert (picked.quantizer.id, picked.better and picked.better.id) == (taken, better)
        assert (picked.environment and picked.environment.id) == (None if taken == "own" else taken)


# ---- the command -------------------------------------------------------------------------------------------------


def test_quantize_writes_what_simulate_confirms(frames: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DEPLOYKIT_CACHE", str(tmp_path / "cache"))  # whatever other tests have kept
    news: list[str] = []
    model = onnx.load(CNN)  # as published, with an open batch
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "N"
    onnx.save(model, tmp_path / "model.onnx")
    asked: Any = {"target": "sm8650", "calibration": frames, "precision": "w8a16", "out": tmp_path / "out"}
    done = deploykit.quantize(tmp_path / "model.onnx", progress=news.append, **asked)
    assert sorted(path.name for path in done.folder.iterdir()) == [
        *("model.encodings", "model.onnx", "model.qdq.onnx", "report.json", "report.md")
    ]
    told = json.loads((done.folder / "report.json").read_text("utf-8"))
    assert (told["quantizer"], told["precision"], told["target"]) == ("ort", "w8a16", "sm8650")
    assert told["numbers"]["samples"] == {"count": 3, "held_out": True}
    assert any(line.startswith("ort: calibrating ") and "/" in line for line in news)
    assert "BatchNormalization" not in {node.op_type for node in onnx.load(done.folder / "model.onnx").graph.node}
    # The held-out samples again, through the public simulation of the files that were written.
    division = divide(frames, facts_of(CNN))
    with np.load(frames) as arrays:
        held = arrays["input"][[place.index for place in division.held_out]]
    np.savez(tmp_path / "held.npz", input=held)
    again = simulate_files(done.folder / "model.onnx", done.folder / "model.encodings", data=tmp_path / "held.npz")
    assert again.sqnr_db == pytest.approx(told["numbers"]["sqnr_db"], abs=0.5)
    assert told["numbers"]["quantizers_own"]["agreement_db"] > 60
    codes = {finding.code for finding in done.findings}
    assert codes == {"DK212", "DK220", "DK221"}
    page = re.sub(r"-?\d+\.\d+(\.\d+)?(e-\d+)?", "N", (done.folder / "report.md").read_text("utf-8"))
    assert_as_written(Path(__file__).with_name("quantized.md"), page.splitlines())


def test_the_second_run_finds_the_firsts_work(frames: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DEPLOYKIT_CACHE", str(tmp_path / "cache"))  # whatever other tests have kept

    def make(name: str, **changes: Any) -> list[str]:
        news: list[str] = []
        given = {"target": "sm8650", "calibration": frames, "precision": "w8a8", "options": [("method", "percentile")]}
        deploykit.quantize(CNN, out=tmp_path / name, progress=news.append, **{**given, **changes})
        return news

    assert not any("done before" in line for line in make("first"))
    assert any("done before" in line for line in make("second"))
    assert (tmp_path / "first/model.encodings").read_bytes() == (tmp_path / "second/model.encodings").read_bytes()
    assert not any("done before" in line for line in make("third", options=[("method", "minmax")]))


def older_conv(folder: Path) -> Path:
    """Convolutions of one bias, of operator set 12, which knows no scale per channel; names as of a grid's parts."""
    weight = np.linspace(-1, 1, 4 * 3, dtype=np.float32).reshape(4, 3, 1, 1)
    stored: dict[str, Any] = {"weight": weight, "weight_scale": weight[::-1], "bias": np.arange(4, dtype=np.float32)}
    body = """
        conv = Conv (input, weight, bias)  conv_scale = Conv (input, weight_scale, bias)  out = Add (conv, conv_scale)
    """
    model = text_model("float[1,3,16,16] input", body, "float[1,4,16,16] out", opset=12, **stored)
    model.ir_version = 7
    onnx.save(model, folder / "older.onnx")
    return folder / "older.onnx"


@pytest.mark.heavy
def test_scales_per_channel_of_an_operator_set_that_has_no_axis(frames: Path, tmp_path: Path) -> None:
    given = {"target": "sm8650", "calibration": frames, "precision": "w8a8", "quantizer": "ort"}
    done = deploykit.quantize(older_conv(tmp_path), out=tmp_path / "out", **given)  # type: ignore[arg-type]
    entries = json.loads((done.folder / "model.encodings").read_text("utf-8"))["param_encodings"]
    scales = {entry["name"]: len(entry["scale"]) for entry in entries}
    assert scales["weight"] == scales["weight_scale"] == 4
    assert "conv_scale" in (done.folder / "model.encodings").read_text("utf-8")
    assert onnx.load(done.folder / "model.onnx").opset_import[0].version == 13
    assert done.record["numbers"]["sqnr_db"] > 25


def test_outputs_whose_size_the_values_decide_are_told(tmp_path: Path) -> None:
    body, weight = "m = MatMul (x, weight) r = Relu (m) y = NonZero (r)", np.eye(40, dtype=np.float32)
    onnx.save(text_model("float[1,40] x", body, "int64[2,n] y", weight=weight), tmp_path / "m.onnx")
    rows = np.random.default_rng(0).normal(size=(16, 1, 40)).astype(np.float32) ** 5
    np.savez(tmp_path / "rows.npz", x=rows)
    with pytest.raises(InputError, match="changes its size with the values"):
        asked: Any = {"target": "sm8650", "calibration": tmp_path / "rows.npz", "precision": "w8a8"}
        deploykit.quantize(tmp_path / "m.onnx", out=tmp_path / "o", **asked)
    np.savez(tmp_path / "rows.npz", x=np.concatenate([rows[:3], np.eye(40, dtype=np.float32)[:13, None]]))
    told = deploykit.quantize(tmp_path / "m.onnx", out=tmp_path / "o", **asked).record["numbers"]
    assert (told["sqnr_db"], told["samples"]) == (None, {"count": 3, "held_out": True})


def test_what_no_grid_holds_stays_in_float_and_a_left_operand_has_one_grid(tmp_path: Path) -> None:
    left = np.random.default_rng(0).normal(size=(8, 8)).astype(np.float32)
    """An input that is named as what a quantizer makes beside a tensor keeps its name."""
    body = "h = MatMul (left, h_scale) c = Greater (h, zero) m = Where (c, h, endless) r = Relu (m) y = Add (r, h)"
    model = text_model("float[8,8] h_scale", body, "float[8,8] y", left=left, zero=0.0, endless=-np.inf)
    onnx.save(model, tmp_path / "m.onnx")
    np.savez(tmp_path / "x.npz", h_scale=np.random.default_rng(1).normal(size=(16, 8, 8)).astype(np.float32))
    given = {"target": "sm8650", "calibration": tmp_path / "x.npz", "precision": "w8a16"}
    done = deploykit.quantize(tmp_path / "m.onnx", out=tmp_path / "out", **given)  # type: ignore[arg-type]
    told = json.loads((done.folder / "model.encodings").read_text("utf-8"))
    scales = {one["name"]: len(one["scale"]) for kind in ("param", "activation") for one in told[f"{kind}_encodings"]}
    assert scales["left"] == scales["h"] == 1 and not {"endless", "m"} & set(scales)
    assert done.record["numbers"]["sqnr_db"] > 25


def test_where_eight_bits_lose_what_is_asked_the_fewest_layers_have_sixteen_and_it_is_said(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    weight = rng.normal(size=(8, 5)).astype(np.float32)
    body = "s = Mul (x, x) l = Log (s) y = MatMul (l, w) p = Softmax (y)"
    onnx.save(text_model("float[1,8] x", body, "float[1,5] p", w=weight), tmp_path / "m.onnx")
    np.savez(tmp_path / "x.npz", x=np.exp(rng.normal(0, 0.8, size=(40, 1, 8))).astype(np.float32))
    given: Any = {"target": "sm8650", "sdk": "2.44", "calibration": tmp_path / "x.npz", "precision": "w8a8"}
    widths = []
    for refused in ((), "layers-in-int16"):
        done = deploykit.package(tmp_path / "m.onnx", out=tmp_path / "o", force=True, no_rewrite=refused, **given)
        told = [finding.message for finding in done.findings if finding.code == "DK224"]
        entries = read_placed(next((tmp_path / "o/encodings").iterdir()), facts_of(tmp_path / "m.onnx")).entries
        widths.append([name for name in "slyp" if getattr(entries[name].value, "bits", 0) == 16])
        assert len(told) == (not refused) and all("1 of 4 layers have 16-bit activations" in one for one in told)
    assert widths == [["s"], []]


def test_what_makes_no_sense_is_refused_before_anything_runs(tmp_path: Path) -> None:
    for words, asked in (
        ("takes none", {"target": "sm8650", "encodings": DATA / "cnn/w8a8.v1.0.0.encodings"}),
        ("a quantizer needs data", {"target": "sm8650", "quantizer": "ort"}),
    ):
        with pytest.raises(UsageError, match=words):
            deploykit.quantize(CNN, out=tmp_path / "other", **asked)


class Recipe(StubBackend):
    """A backend that quantizes while it packages."""

    quantizer = "mill"

    def quantized(self, package: Path, manifest: Any) -> Path | None:
        return package / "q.onnx" if manifest["executed"] else None


def test_a_recipe_of_the_backends_own_is_run_in_a_package_and_its_model_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    quality = {"y": {"sqnr_db": 33.5, "cosine": None, "top": 0.9}, "z": {}}
    record = {"mill": "1.2", "samples": 7, "quality": quality}
    manifest: dict[str, Any] = {"target": {}, "sdk": {"version": "5.1"}, "inputs": [], "record": record, "status": {}}
    found = (a_finding(code="DK901", message="it is odd", hint="mend it"), a_finding(code="DK902", message="so"))

    def made(request: Request, out: Path, *, progress: Any) -> Any:
        assert request.compile is True
        out.mkdir()
        (out / "q.onnx").write_text("quantized")
        return SimpleNamespace(package=None if request.sdk else out, findings=found)

    monkeypatch.setattr(command, "resolve_target", lambda _: (Recipe(), None))
    monkeypatch.setattr(command, "make_package", made)
    monkeypatch.setattr(command, "read_manifest", lambda _: manifest)
    manifest["executed"] = ["mill"]
    asked = Request(model=CNN, target="t", quantizer="mill")
    done = command.quantize(asked, tmp_path / "out")
    told = {"quantizer": "mill", "target": "t", "sdk": "5.1"}
    told |= {name: manifest[name] for name in ("inputs", "executed", "record", "status")}
    assert (done.files, done.record, done.findings, done.exit_status) == ({"qdq": "model.qdq.onnx"}, told, found, 1)
    assert (tmp_path / "out/model.qdq.onnx").read_text() == "quantized"
    assert (tmp_path / "out/report.md").read_text("utf-8") == (
        "# Quantized for t, by mill\n\n* **Quantizer**: mill 1.2\n* **SDK**: 5.1\n* **Samples**: 7\n\n"
        "* y: sqnr_db 33.5, top 0.9\n* z: none\n* error DK901: it is odd\n* error DK902: so\n\nFiles: model.qdq.onnx.\n"
    )
    for nothing in (replace(asked, sdk="5.1"), asked):
        manifest["executed"] = []
        with pytest.raises(ToolError) as failed:
            command.quantize(nothing, tmp_path / "other")
        assert (failed.value.what, failed.value.next) == ("mill quantized nothing", "mend it")
        assert failed.value.why == "DK901 it is odd; DK902 so"


LEAVES_NO_ENCODINGS = """
import sys, child
def work(job):
    (job.out / 'model.onnx').write_bytes(job.model.read_bytes())
sys.exit(child.main(work))
"""
LOGS_ITS_FAILURE = LEAVES_NO_ENCODINGS.replace("import sys", "import logging, sys").replace(
    "    (job.out",
    "    own = logging.getLogger('vendor.area')\n"
    "    own.propagate = False\n"
    "    own.error('no encodings were computed')\n"
    "    (job.out",
)


@each_row(
    ("script", "timeout", "says"),
    ("import time; time.sleep(60)", 0.5, "took longer"),
    (LOGS_ITS_FAILURE, 120.0, r"vendor\.area: no encodings were computed"),
    (LEAVES_NO_ENCODINGS, 120.0, r"left no out/model\.encodings"),
)
def test_a_failed_quantizer_is_an_error(script: str, timeout: float, says: str, frames: Path, tmp_path: Path) -> None:
    """An error that is only logged is one, loggers that keep their records to themselves included."""
    (tmp_path / "bad.py").write_text(script)
    job, picked = QuantizerJob(script=tmp_path / "bad.py", settings={}), Picked(quantizer=EMBEDDED, environment=None)
    division = divide(frames, facts_of(CNN))
    with pytest.raises(ToolError, match=says):
        making.run_quantizer(picked, job, load_model(CNN), division, progress=lambda _: None, timeout=timeout)


class Told(Struct, frozen=True):
    """What was asked of a quantizer."""

    precision: str | None
    options: tuple[tuple[str, str], ...]
    timeout: float | None


@each_row(("timeout", "limit"), (None, 900.0), (10.0, 10.0), (2000.0, 900.0))
def test_a_method_is_an_option_with_a_time_limit(timeout: float | None, limit: float) -> None:
    request = Request(model=CNN, target="sm8650", quantizer="ort")
    backend, given = read_situation(request)
    options = (("per_channel", "false"),)
    making_: Any = Making(backend=backend, given=given, progress=print, options=options, timeout=timeout)
    methods = (WeightMethod(name="Guess", options={"method": "guess"}), WeightMethod(name="P", options={"method": "p"}))

    def encodings(self: Making, precision: str | None) -> Told:
        if ("method", "guess") in self.options:
            raise UsageError("--option method=guess: no", why="it is none", next="name one")
        return Told(precision, self.options, self.timeout)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(EMBEDDED), "weight_methods", lambda self, precision: methods)
        patch.setattr(Making, "encodings", encodings)
        assert making_.candidate("w8a16") == Told("w8a16", making_.options, timeout)
        assert making_.candidate("w8a16+P") == Told("w8a16+P", (*making_.options, ("method", "p")), limit)
        with pytest.raises(ToolError) as failed:
            making_.candidate("w8a16+Guess")
    assert (failed.value.what, failed.value.why) == ("--option method=guess: no", "it is none")


# ---- as a step of packaging --------------------------------------------------------------------------------------


def test_package_quantizes_first_and_goes_on(frames: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[Any] = []
    real = making.run_quantizer

    def noted(*some: Any, **more: Any) -> Any:
        ran.append(some)
        return real(*some, **more)

    monkeypatch.setattr(making, "run_quantizer", noted)
    asked = [
        make_request(CNN, target, backend="qnn-htp", precision="w8a16", calibration=frames)
        for target in ("sm8550", "sm8650")
    ]
    other, made = make_packages(asked, tmp_path / "p")
    assert len(ran) == 1, "two targets asked the same of the quantizer"
    assert made.package is not None and other.manifest is not None
    assert json.loads(other.manifest.read_text("utf-8"))["quantization"]["target"] == "sm8550"
    assert made.executed[0] == "quantize"
    manifest = json.loads((made.package / "manifest.json").read_text("utf-8"))
    assert manifest["steps"][0]["id"] == "quantize"
    assert [row["role"] for row in manifest["inputs"]] == ["float-model", "model", "encodings"]
    assert manifest["inputs"][0]["sha256"] == manifest["quantization"]["inputs"][0]["sha256"]
    assert manifest["inputs"][1]["sha256"] != manifest["inputs"][0]["sha256"], "BatchNormalization was folded"
    assert manifest["precision"]["intended"], "the encodings were not taken up"
    assert {"DK220", "DK221"} <= {finding.code for finding in made.findings}
    assert deploykit.verify(made.package).ok


def test_a_loop_that_no_quantizer_reaches_into_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """How often it runs hangs on the values, so that nothing takes it out before."""
    body = "(int64 i, bool go, float[2] s) => (bool more, float[2] t) { t = Sin (s) m = ReduceMax <keepdims=0> (t) "
    body += "half = Constant <value_float=0.5> () more = Greater (m, half) }"
    loop = f"n = Constant <value_int=9> () t = Constant <value = bool {{1}}> () y = Loop <body = b {body}> (n, t, x)"
    onnx.save(text_model("float[2] x", loop, "float[2] y"), tmp_path / "m.onnx")
    np.savez(tmp_path / "d.npz", x=np.ones((8, 2), np.float32))

    def fails(*_some: Any, **_more: Any) -> Any:
        raise ToolError("aimet: failed", why="shared parameters")

    monkeypatch.setattr(making, "run_quantizer", fails)
    asked = make_request(
        tmp_path / "m.onnx", "sm8650", backend="qnn-htp", precision="w8a16", calibration=tmp_path / "d.npz"
    )
    (refused,) = make_packages([asked], tmp_path / "p")  # before the quantizer is asked
    assert {finding.code for finding in refused.findings if finding.blocks} == {"DK003"}
    monkeypatch.setattr(pipeline, "_hopeless", lambda *_: None)
    with pytest.raises(ToolError, match=r"Loop .*runs another graph") as raised:
        make_packages([asked], tmp_path / "p")
    assert "shared parameters" in raised.value.why and "--precision fp16" in raised.value.next


def test_the_quantizer_s_options_and_the_backend_s_are_told_apart(frames: Path) -> None:
    asked: Any = {"target": "sm8650", "backend": "qnn-htp", "precision": "w8a8", "calibration": frames}
    plan = deploykit.plan(CNN, options=[("ort.method", "percentile")], **asked)
    assert {"DK221"} <= {finding.code for finding in plan.findings}


# ---- rules -------------------------------------------------------------------------------------------------------


def not_installed() -> Environment:
    """The environment of the quantizer that belongs to a target; the rule reads its spec only."""
    backend, target = resolve_target(Request(model=CNN, target="sm8650"))
    environment = environment_for(backend.quantizers(target)[0])
    assert environment is not None
    return environment


def quantized(**changes: Any) -> Made:
    told: Any = {"sqnr_db": 40.0, "quantizer_db": 40.0, "agreement_db": float("inf"), "largest_difference": 0.0}
    numbers = Numbers(**told, outputs=(), verdict=Verdict(right=True), samples=3, seen=False)
    picked = Picked(quantizer=EMBEDDED, environment=None, better=changes.pop("better", None))
    rest: Any = dict.fromkeys(("options", "division", "ran", "target"))
    numbers = replace(numbers, **changes)
    return Made(precision="w8a16", picked=picked, model=load_model(CNN), numbers=numbers, **rest)


CASES: dict[str, tuple[Callable[[], Made], Callable[[], Made] | None]] = {
    "DK220": (lambda: quantized(better=not_installed()), quantized),
    "DK221": (quantized, None),
    "DK222": (lambda: quantized(agreement_db=59.9), lambda: quantized(agreement_db=60.0)),
    "DK223": (lambda: quantized(seen=True), quantized),
    "DK224": (lambda: replace(quantized(), widened="2 of 4 layers have 16-bit activations"), quantized),
}


def test_rules() -> None:
    check_pairs(CASES, run=lambda _, case: QUANTIZED_RULES.run(case))
    (exact,) = QUANTIZED_RULES["DK221"].run(quantized(sqnr_db=float("inf"), seen=True, agreement_db=None))
    assert exact.message == "quantized to w8a16 by ort: no difference on 3 samples"
    assert exact.evidence == {"quantizer": "ort", "sqnr_db": None, "samples": 3}


@each_row(
    ("count", "held"),
    (4, []),
    (5, [2]),
    (9, [4]),
    (10, [2, 8]),
    (16, [3, 8, 13]),
    (100, [6, 19, 31, 44, 56, 69, 81, 94]),
)
def test_one_sample_in_five_is_held_out_and_none_is_seen_twice(tmp_path: Path, count: int, held: list[int]) -> None:
    np.savez(tmp_path / "d.npz", input=np.zeros((count, 1, 3, 16, 16), np.float32))
    division = divide(tmp_path / "d.npz", facts_of(CNN))
    assert [place.index for place in division.held_out] == held
    assert [place.index for place in division.seen] == [at for at in range(count) if at not in held]
    assert division.judged == (division.held_out or division.seen)
    assert division.judged_at == (tuple(held or range(count)), count)
    told = division.to_json()
    assert (told["kind"], list(told["files"]), told["recipe"]) == ("arrays", ["d.npz"], None)
    assert (told["seen"], told["held_out"]) == (count - len(held), len(held)) and division.images() is None


@each_row(
    ("precision", "types", "wide"),
    ("w8a16", ("QUInt16", "QInt8"), True),
    ("w16a16", ("QUInt16", "QInt16"), True),
    ("w8a8", ("QUInt8", "QInt8"), False),
)
def test_what_the_embedded_quantizer_is_told(precision: str, types: tuple[str, str], wide: bool) -> None:
    """16-bit pairs are of ONNX Runtime's own domain, which models of every operator set may have."""
    _, target = resolve_target(Request(model=CNN, target="sm8650"))
    options: dict[str, Any] = {"method": "percentile", "per_channel": False}
    job = EMBEDDED.plan(QuantizerAsked(precision=precision, target=target, options=options))
    told = {"activation": types[0], "weight": types[1], "per_channel": False, "method": "Percentile"}
    extra = {"WeightSymmetric": True, "UseQDQContribOps": wide}
    rewrites = ("raise-opset", "fold-batchnorm")
    script = Path(making.__file__).with_name("ort_static.py")
    assert job == QuantizerJob(script=script, settings={**told, "extra_options": extra}, rewrites=rewrites)


@each_row(("precision", "ends"), ("w8a16", (5, 1)), ("w8a8", (4, 1)))
def test_the_embedded_quantizer_leaves_room_in_sixteen_bits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, precision: str, ends: tuple[int, int]
) -> None:
    """One half of the samples ends at 3, the other at 4; what is cut off at 1 has one end in both."""
    monkeypatch.setenv("DEPLOYKIT_CACHE", str(tmp_path / "cache"))
    body = "y = Add (x, x)\n z = Clip (x, low, high)\n u = Mul (y, z)"
    model = text_model("float[1,2] x", body, "float[1,2] u", low=np.float32(0), high=np.float32(1))
    onnx.save(model, tmp_path / "m.onnx")
    np.savez(tmp_path / "d.npz", x=np.array([[[0, at]] for at in (1, 2, 3, 4)], np.float32))
    given: dict[str, Any] = {"target": "sm8650", "calibration": tmp_path / "d.npz", "out": tmp_path / "out"}
    done = deploykit.quantize(tmp_path / "m.onnx", precision=precision, **given)
    placed = read_placed(done.folder / "model.encodings", facts_of(done.folder / "model.onnx"))
    found = {one.name: one.value.ends[1] for one in placed if isinstance(one.value, Affine)}
    assert (found["x"], found["z"]) == pytest.approx(ends, abs=0.05)
