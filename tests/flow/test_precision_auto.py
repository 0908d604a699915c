"""Which precision is chosen, when it is asked for and when not."""

import json
import zipfile
from functools import partial
from html import unescape
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import pytest
from msgspec.structs import replace

import deploykit
from deploykit.accuracy.samples.gathering import InputSource, Samples
from deploykit.accuracy.samples.inputs import Label
from deploykit.accuracy.simulate.sessions import Session
from deploykit.backend.backend import SharedWork
from deploykit.backend.requests import make_request
from deploykit.encodings.infer import infer_entries
from deploykit.encodings.values import EncodingSet
from deploykit.errors import ToolError, UsageError
from deploykit.flow.quantizing.step import quantized_situation
from deploykit.flow.read import read_situation
from deploykit.flow.samples import evidence_of
from deploykit.model.collect import facts_of
from sample_models.tiny_graphs import TinyGraph

AIMET = Path(__file__).parents[1] / "data" / "aimet"
MLP, DETR = AIMET / "mlp" / "model.onnx", AIMET / "detr" / "model.onnx"


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    rng = np.random.default_rng(5)
    np.savez(tmp_path / "rows.npz", hidden_states=rng.normal(size=(10, 1, 8, 64)).astype(np.float32))
    return tmp_path / "rows.npz"


@pytest.mark.parametrize("chosen", [None, "fp16"])
def test_where_nothing_is_to_be_quantized_it_is_said(
    chosen: str | None, rows: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ladder = SimpleNamespace(chosen=chosen, why="nothing is good", advised="train", to_json=lambda: {"why": "it was"})
    for where in ("flow.quantizing.command", "flow.candidates"):
        monkeypatch.setattr(f"deploykit.{where}.make_best", lambda *_, **__: (None, ladder))
    asked: Any = {"target": "sm8650", "calibration": rows, "precision": "auto", "quantizer": "ort"}
    with pytest.raises(ToolError) as refused:
        deploykit.quantize(MLP, out=tmp_path / "out", **asked)
    what, way_out = "float16 is the answer: there is nothing to quantize", "package with fp16"
    if chosen is None:
        what, way_out = "no precision was chosen: nothing is good", "ask for less with --goal"
    assert (refused.value.what, refused.value.why, refused.value.next) == (what, "train", way_out)
    if chosen:
        backend, given = read_situation(make_request(MLP, **asked))
        half = replace(given, request=replace(given.request, precision="fp16"), ladder={"why": "it was"})
        assert quantized_situation(backend, given, SharedWork(), lambda _: None) == half
        return
    with pytest.raises(UsageError) as usage:
        deploykit.plan(MLP, sdk="2.37", **asked)
    assert (usage.value.what, usage.value.why) == ("--precision auto: nothing is good", "train")
    assert usage.value.next == "see what costs it with 'deploykit accuracy layers', or ask for less with --goal"


def _packaged(rows: Path, out: Path, **asked: Any) -> tuple[dict[str, Any], str]:
    """The manifest and the report of the network of the fixtures, packaged from its float form."""
    made = deploykit.package(MLP, target="sm8650", sdk="2.37", calibration=rows, out=out, quantizer="ort", **asked)
    assert made.package is not None
    return json.loads((out / "manifest.json").read_text()), unescape((out / "report.html").read_text("utf-8"))


def test_the_report_of_a_package_tells_the_ladder_of_its_manifest(rows: Path, tmp_path: Path) -> None:
    manifest, report = _packaged(rows, tmp_path / "out", precision="auto", goal="sqnr>=45")
    ladder = manifest["quantization"]["ladder"]
    story = report.split("How the precision was chosen")[1].split("<h2>")[0]
    steps = [step["candidate"] for step in ladder["steps"]]
    fields = ("precision", "made_by", "runs_here", "meets_goal", "on_npu", "refused", "missing")
    assert [tuple(row[name] for name in fields) for row in (*ladder["candidates"], *steps)] == [
        ("w16a16", "ort", False, True, 1.0, "", ""),
        ("fp16", "casts", True, True, 1.0, "", ""),
        ("w8a16", "ort", True, False, 1.0, "", ""),
        ("w8a8", "ort", True, False, 1.0, "", ""),
        ("w8a16 with 2 layers in float16", "ort", True, True, 1.0, "", ""),
    ]
    for row in (*ladder["candidates"], *steps):
        shown = next(line for line in story.splitlines() if f">{row['precision']} <span" in line and "<tr" in line)
        assert f"{row['sqnr_db']:.1f} dB" in shown
        assert f"{row['cost']['weight_bytes']:,} bytes" in shown
        assert f"{row['cost']['activation_bytes']:,} bytes" in shown
        assert f"{row['cost']['bit_operations']:.3g}" in shown
        assert ('class="chosen"' in shown) == (row["precision"] == ladder["chosen"])
    told = [ladder["goal"], ladder["why"], *(item["says"] for item in ladder["conclusions"])]
    told += [name for step in ladder["steps"] for name in step["raised"]["best"]["layers"]]
    assert [words for words in told if words not in story] == []
    trials = [trial for step in ladder["steps"] for trial in step["raised"]["trials"]]
    candidates = len(ladder["candidates"]) + len(steps)
    assert story.count("<circle") == candidates + len(trials)
    assert story.count('class="bar s-quality"') == 1 + candidates
    assert story.count('class="joins"') >= 1
    assert "<dt>Executed here</dt><dd>quantize" in report


def test_the_users_measure_decides_and_the_cheapest_that_is_good_is_written_with_its_story(
    rows: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """References tell each sample's own outputs: at any other place nothing would come near one."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(
        "import numpy as np\n"
        "def closeness(outputs, references):\n"
        "    pairs = [(a[name], b[name]) for a, b in zip(outputs, references) for name in a]\n"
        "    return 1.0 - max(float(np.abs(one - two).max()) for one, two in pairs)\n"
    )
    session = Session(onnx.load(MLP))
    with np.load(rows) as stored:
        made = [session.run({"hidden_states": row}) for row in stored["hidden_states"]]
    truth: dict[str, Any] = {name: np.stack([row[name] for row in made]) for name in made[0]}
    np.savez(tmp_path / "truth.npz", **truth)
    asked = partial(deploykit.quantize, MLP, target="sm8650", calibration=rows, quantizer="ort", precision="auto")
    done = asked(out=tmp_path / "out", metric="mine:closeness", references=tmp_path / "truth.npz", goal="metric>=0.9")
    record = json.loads((tmp_path / "out" / "report.json").read_text())
    ladder = record["ladder"]
    reached = {row["precision"]: row["metric"] for row in ladder["candidates"]}
    assert set(reached) == {"fp16", "w16a16", "w8a16", "w8a8"}
    assert 0.5 < reached["w8a8"] < reached["w8a16"] < reached["w16a16"] <= 1.0
    assert (ladder["goal"], ladder["chosen"]) == ("metric >= 0.9", record["precision"])
    assert "The candidates" in (tmp_path / "out" / done.files["ladder"]).read_text("utf-8")
    again = deploykit.simulate(tmp_path / "out" / "model.onnx", tmp_path / "out" / "model.encodings", data=rows)
    assert again.sqnr_db >= record["numbers"]["sqnr_db"] - 5


ZOO = Path(__file__).parents[1] / "data" / "zoo"


@pytest.mark.heavy
@pytest.mark.parametrize(("name", "goal"), [("resnet", 45), ("superres", 55), ("vit", 35)])
def test_the_layers_that_are_raised_are_legal(name: str, goal: int, tmp_path: Path) -> None:
    """On QAIRT 2.33: no float16 times 8-bit product, no tensor that has two types."""
    with zipfile.ZipFile(ZOO / f"{name}.zip") as archive:
        archive.extractall(tmp_path)
    model, data, made = tmp_path / "model.onnx", tmp_path / "held_out.npz", tmp_path / "mixed.encodings"
    mixed = deploykit.mix(model, goal=f"sqnr>={goal}", precision="w8a8", data=data, target="sm8650", sdk="2.33")
    assert mixed.raised.met and 0 < mixed.raised.best.count < len(mixed.sensitivity.layers)
    made.write_text(mixed.text)
    found = deploykit.check(model, encodings=made, calibration=data, second_opinion=False, target="sm8650", sdk="2.33")
    assert [finding.code for finding in found if finding.blocks] == []


@pytest.mark.parametrize("label", list(Label))
def test_only_what_the_user_gave_or_said_is_evidence(label: Label) -> None:
    """Input by input: a tensor is looked at where it hangs on meaningful inputs alone."""
    graph = TinyGraph()
    graph.op("Exp", [graph.input("x", (2,))], "ex")
    graph.op("Exp", [graph.input("z", (2,))], "ez")
    graph.op("Add", ["ex", "ez"], "sum")
    model = graph.model("sum")
    sources = {"x": InputSource(label=label, why=""), "z": InputSource(label=Label.ARBITRARY, why="")}
    feeds = ({"x": np.asarray([0, 1], np.float32), "z": np.asarray([0, 9], np.float32)},)
    samples = Samples(feeds=feeds, of_inputs=sources)
    found = infer_entries(
        model,
        facts_of(model),
        EncodingSet(version="1.0.0", entries={}),
        ["ex", "ez", "sum"],
        evidence=evidence_of(model, samples),
    )
    meaningful = label in (Label.GIVEN, Label.RECORDED, Label.DECLARED)
    assert {one.tensor for one in found.open} == ({"ez", "sum"} if meaningful else {"ex", "ez", "sum"})
    if meaningful:
        room = 1 if label is Label.DECLARED else 2  # a declared range holds all that there is
        assert found.concluded["ex"].interval == pytest.approx((1, room * np.e))
    sum_ = next(one for one in found.open if one.tensor == "sum")
    assert sum_.inputs == (("z",) if meaningful else ("x", "z"))
