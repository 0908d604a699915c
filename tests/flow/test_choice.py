"""Choosing how to deploy a precision mix, with no option beyond target, SDK and encodings."""

import json
import subprocess
import sys
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from msgspec.structs import replace

import deploykit
from deploykit.accuracy.samples.sizes import PinnedInput
from deploykit.accuracy.simulate.simulation import fit_judge, settled
from deploykit.backend.backend import Request, SharedWork
from deploykit.backend.opinions import Compiler, Opinion, Opinions, OpinionState
from deploykit.backend.requests import Mixed
from deploykit.encodings.formats.aimet import write_encodings
from deploykit.encodings.new_grids import GridKind, affine_for_range
from deploykit.encodings.post_processing import Harm, Hurt, PostProcessing
from deploykit.encodings.read import read_placed
from deploykit.encodings.values import Encoding, EncodingSet
from deploykit.flow.choose import BuiltWays, ChosenWay, choose_way, run_of
from deploykit.flow.plan import decide
from deploykit.flow.read import read_situation
from deploykit.flow.rules import RULES as CHOICE_RULES
from deploykit.model.collect import collect_facts
from deploykit.model.load import load_model
from rule_cases import check_pairs
from tables import each_row
from text_models import text_model

DETR = Path(__file__).parents[1] / "data" / "aimet" / "detr"


@cache
def chosen(encodings: str, mixed: str = "auto", device: str = "sm8650", rewrite: tuple[str, ...] = ()) -> ChosenWay:
    asked: Any = {"model": DETR / "model.onnx", "target": device, "sdk": "2.33", "backend": "qnn-htp"}
    request = Request(encodings=DETR / encodings, mixed=mixed, rewrite=rewrite, **asked)
    backend, situation = read_situation(request)
    return choose_way(backend, situation, SharedWork(), lambda line: None)


def plain(*rewrite: str) -> ChosenWay:
    """A network that no rewrite touches unless it is asked for by name."""
    cnn = DETR.parent / "cnn"
    asked: Any = {"model": cnn / "model.onnx", "target": "sm8650", "sdk": "2.33", "backend": "qnn-htp"}
    request = Request(encodings=cnn / "w8a8.v0.6.1.encodings", rewrite=rewrite, **asked)
    backend, situation = read_situation(request)
    return choose_way(backend, situation, SharedWork(), lambda line: None)


W8A16, OMIT = "w8a16.v0.6.1.encodings", "w8a16-fp16mix-omit.v0.6.1.encodings"
CASES: dict[str, tuple[Callable[[], ChosenWay], Callable[[], ChosenWay]]] = {
    "DK201": (lambda: chosen(W8A16), plain),
    "DK202": (lambda: chosen("w8a8.v0.6.1.encodings"), lambda: chosen(W8A16)),
    "DK203": (lambda: replace(plain(), skipped="too large"), plain),
    "DK205": (lambda: _poor(), lambda: chosen(W8A16)),
    "DK206": (lambda: chosen(OMIT, "segments"), lambda: chosen(W8A16)),
}


def _changed(made: ChosenWay, **winner: Any) -> ChosenWay:
    """The same choice with another winner, or one that is judged otherwise."""
    assert made.explored.winner is not None
    return replace(made, explored=replace(made.explored, winner=replace(made.explored.winner, **winner)))


def _poor() -> ChosenWay:
    """As if the simulation had shown a miss of what is asked."""
    good = chosen(W8A16)
    assert good.explored.winner is not None and good.explored.winner.verdict is not None
    verdict = good.explored.winner.verdict
    missed = tuple(replace(number, value=-1.0, note="") for number in verdict.numbers if number.limit.at_least)
    return _changed(good, verdict=replace(verdict, right=False, numbers=missed))


def _nothing_left() -> ChosenWay:
    good = chosen(OMIT)
    return replace(good, explored=replace(good.explored, choice=replace(good.explored.choice, winner=None)))


def merged(**request: Any) -> ChosenWay:
    """A transposition of six axes, which no device takes before some are merged."""
    body = "p = Reshape (x, six)  t = Transpose <perm = [0, 1, 3, 2, 4, 5]> (p)  y = Reshape (t, flat)"
    path = Path(tempfile.mkdtemp()) / "model.onnx"
    model = text_model("float[1,4,6,8] x", body, "float[6,4,8] y", six=[1, 2, 2, 3, 2, 8], flat=[6, 4, 8])
    onnx.save(model, path)
    backend, situation = read_situation(Request(model=path, target="sm8650", sdk="2.44", backend="qnn-htp", **request))
    return decide(backend, situation, SharedWork(), lambda line: None).chosen


def with_opinion() -> ChosenWay:
    """As if a compiler had been asked about one finding."""
    opinion = Opinion(code="QNN208", subject="n", state=OpinionState.CONFIRMED, why="it is not taken", scope="1 node")
    made = plain()
    opinions = Opinions(compiler=Compiler(name="a compiler", release="1"), opinions=(opinion,))
    return replace(made, situation=replace(made.situation, opinions=opinions))


def with_wider_end() -> ChosenWay:
    """As if the end of the model had got wider grids."""
    hurt = Hurt(node="n", harm=Harm.UNLIKE, parts=())
    end = PostProcessing(nodes=frozenset({3}), heads=frozenset(), starts=("n",), ends=("n",), hurts=(hurt,))
    return _changed(chosen(W8A16), end=end, widened=("t",))


def sized(why: str = "as the samples are") -> ChosenWay:
    """As if an input had been given its sizes here."""
    made = plain()
    size = PinnedInput(name="x", shape=(1, 3, 8, 8), why=why)
    return replace(made, situation=replace(made.situation, sizes=(size,)))


def turned_here(made: ChosenWay) -> ChosenWay:
    """As if its input had been turned to channels last."""
    facts = replace(made.situation.facts, channel_last=frozenset(made.situation.facts.inputs))
    return replace(made, situation=replace(made.situation, facts=facts))


CASES["DK212"] = (sized, lambda: sized("as typed"))
CASES["DK213"] = (lambda: turned_here(plain()), plain)
CASES["DK251"] = (with_wider_end, lambda: chosen(W8A16))
CASES["DK211"] = (with_opinion, plain)
CASES["DK210"] = (merged, lambda: merged(no_rewrite=("merge-axes",)))
CASES["DK208"] = (lambda: plain("fuse-gelu"), lambda: plain("fold-batchnorm"))
CASES["DK204"] = (_nothing_left, lambda: chosen(W8A16))


def test_each_rule_fires_and_stays_silent() -> None:
    check_pairs(CASES, CHOICE_RULES)


def test_what_was_asked_for_and_kept_in_another_way_than_the_chosen_is_told() -> None:
    made = plain("fold-batchnorm")
    assert made.explored.winner is not None
    other = _changed(made, way=replace(made.explored.winner.way, rewrites=()))
    (found,) = CHOICE_RULES["DK208"].run(other)
    assert found.message == "--rewrite fold-batchnorm: the way that was chosen, rewrite, does without it"


def test_a_gap_that_nobody_meant_is_filled(tmp_path: Path) -> None:
    """The file says which tensors are float: what it leaves out besides gets the grid that its neighbours tell."""
    gap = "/backbone/conv0/Conv_output_0"
    told = json.loads((DETR / "w8a16-fp16mix-explicit.v0.6.1.encodings").read_text())
    del told["activation_encodings"][gap]
    (tmp_path / "gap.encodings").write_text(json.dumps(told))
    made = chosen(str(tmp_path / "gap.encodings"))
    assert made.filled is not None and list(made.filled.concluded) == [gap]


@each_row(("encodings", "mixed"), (W8A16, "auto"), ("w8a8.v0.6.1.encodings", "auto"), (OMIT, "segments"))
def test_what_was_chosen_runs_as_it_was_judged(encodings: str, mixed: str) -> None:
    """With what the host runs behind it, and float segments in float16."""
    made = chosen(encodings, mixed)
    assert made.samples is not None and made.explored.winner is not None
    model = load_model(DETR / "model.onnx")
    facts = collect_facts(model)
    judge, _ = fit_judge(model.proto, facts, read_placed(DETR / encodings, facts), made.samples)
    assert settled(judge.compare(run_of(made, judge.feeds)), made.samples.label) == made.explored.winner.verdict


def test_segments_that_cannot_be_made_are_an_error_only_where_insisted_on() -> None:
    for mixed, severity in (("segments", "error"), ("auto", "warning")):
        skipped = replace(chosen(OMIT, mixed), explored=BuiltWays(), skipped="too large")
        (finding,) = CHOICE_RULES["DK203"].run(skipped)
        assert finding.severity == severity


def test_the_packaged_model_and_tail_equal_the_original(tmp_path: Path) -> None:
    """The rewritten model and its host tail, chained in ONNX Runtime, give what the given model gives."""
    import onnxruntime

    made = deploykit.package(
        DETR / "model.onnx", target="sm8650", sdk="2.33", encodings=DETR / "w8a8.v0.6.1.encodings", out=tmp_path / "out"
    )
    assert made.package is not None

    def session(path: Path) -> Any:
        return onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])

    rng = np.random.default_rng(3)
    feed = {"images": rng.uniform(0, 1, (1, 3, 32, 32)).astype("f4"), "orig_target_sizes": np.array([[640, 480]], "f4")}
    (wanted,) = session(DETR / "model.onnx").run(None, feed)
    device = session(made.package / "model" / "model.onnx")
    names = {item.name for item in device.get_inputs()}
    made_there = device.run(None, {name: value for name, value in feed.items() if name in names})
    values = {**feed, **dict(zip([o.name for o in device.get_outputs()], made_there, strict=True))}
    tail = session(made.package / "model" / "tail.onnx")
    (got,) = tail.run(["detections"], {item.name: values[item.name] for item in tail.get_inputs()})
    np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-3)

    # The script that a device run ends with does the same on raw files.
    results, inputs = tmp_path / "results" / "Result_0", tmp_path / "inputs"
    results.mkdir(parents=True)
    inputs.mkdir()
    for name, value in values.items():
        mangled = name.replace("/", "_").replace(".", "_")
        value.astype(np.float32).tofile((inputs if name in feed else results) / f"{mangled}.raw")
    (inputs / "list.txt").write_text(" ".join(f"{name}:={name}.raw" for name in feed) + "\n")
    script = made.package / "scripts" / "run_tail.py"
    done = subprocess.run(
        [sys.executable, str(script), str(results.parent), str(inputs / "list.txt")],
        capture_output=True,
        encoding="utf-8",
        check=False,
    )
    assert done.returncode == 0, done.stderr
    from_script = np.fromfile(results / "detections.raw", np.float32).reshape(wanted.shape)
    np.testing.assert_array_equal(from_script, got)


@pytest.mark.parametrize(("mixed", "good"), [("auto", True), ("fallback", False)])
def test_verify_names_the_first_operator_that_diverges(mixed: Mixed, good: bool, tmp_path: Path) -> None:
    """The rewritten detector is right in simulation; as it was given, its box decoder loses everything."""
    encodings = DETR / "w8a16.v0.6.1.encodings"
    made = deploykit.package(
        DETR / "model.onnx", target="sm8650", sdk="2.33", encodings=encodings, mixed=mixed, out=tmp_path / "out"
    )
    assert made.package is not None and deploykit.verify(made.package).ok
    (check,) = [c for c in deploykit.verify(made.package, numerics=True).checks if c.id == "numerics"]
    assert check.ok is good and "8 derived samples" in check.detail
    if not good:
        assert "first at" in check.detail
        assert "/decoder/" in check.detail  # where the huge anchors do their harm, not a convolution of the backbone


def test_what_a_loop_on_the_host_gives_is_judged_and_not_where_the_model_was_cut(tmp_path: Path) -> None:
    """How often it runs hangs on the values; behind it, nothing is left of what the 8 bits before it lose."""
    body = "(int64 i, bool go, float[1,16] s) => (bool more, float[1,16] t) { t = Mul (s, half) "
    body += "m = ReduceMax <keepdims=0> (t) one = Constant <value_float=1.0> () more = Greater (m, one) }"
    loop = f"n = Constant <value_int=9> () z = Loop <body = b {body}> (n, c, l)"
    text = f"l = MatMul (x, w) {loop} k = ArgMax <axis=1, keepdims=0> (z) y = Cast <to=1> (k)"
    kept: dict[str, Any] = {"c": np.bool_(True), "half": np.float32(0.5), "w": np.eye(16, dtype=np.float32)}
    model = text_model("float[1,16] x", text, "float[1] y", **kept)
    onnx.save(model, tmp_path / "m.onnx")
    kind = GridKind(bits=8, signed=False)
    entries = {n: Encoding(name=n, value=affine_for_range(0.0, 8.0, kind)) for n in ("x", "l")}
    text = write_encodings(EncodingSet(version="1.0.0", entries=entries), "1.0.0")
    (tmp_path / "e.encodings").write_text(text, "utf-8")
    np.savez(
        tmp_path / "d.npz", x=np.random.default_rng(0).permuted(np.arange(80.0) / 10).reshape(5, 1, 16).astype("f")
    )
    given: dict[str, Any] = {"encodings": tmp_path / "e.encodings", "calibration": tmp_path / "d.npz"}
    plan = deploykit.plan(tmp_path / "m.onnx", target="sm8650", sdk="2.44", **given)
    assert {finding.code for finding in plan.findings if finding.handled} >= {"DK003"}, "the loop is the host's"
    assert plan.right.state == "yes" and {number["output"] for number in plan.right.numbers} == {"y"}, plan.right
