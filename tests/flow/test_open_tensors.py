"""Tensors without an entry, and what data says about the others."""

import json
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import pytest

import deploykit
from deploykit.accuracy.samples.calibration import load_calibration
from deploykit.accuracy.samples.inputs import input_specs
from deploykit.backend.backend import Request, SharedWork
from deploykit.encodings.formats.aimet import write_encodings
from deploykit.encodings.new_grids import GridKind, affine_for_range
from deploykit.encodings.values import Affine, Encoding, EncodingSet
from deploykit.findings import Finding, Severity
from deploykit.flow.choose import ChosenWay, choose_way
from deploykit.flow.read import read_situation
from deploykit.flow.rules import RULES as CHOICE_RULES
from deploykit.flow.samples import about_samples, observed_ranges
from deploykit.model.collect import collect_facts
from deploykit.model.load import load_model
from rule_cases import check_pairs
from sample_models.tiny_graphs import TinyGraph
from text_models import text_model

SIZES = {"cast", "row", "scale"}


def test_ranges_are_of_what_is_finite_over_all_samples() -> None:
    model = text_model("float[2] x", "a = Log (x) b = Log (a) y = Neg (x)", "float[2] y")
    feeds = [{"x": np.array(one, np.float32)} for one in ([0, 1], [4, 0.5], [2, 0.25])]
    seen = observed_ranges(model, ["a", "b", "y"], feeds)
    assert {name: [round(end, 2) for end in ends] for name, ends in seen.items()} == {
        "a": [-1.39, 1.39],
        "b": [-0.37, 0.33],
        "y": [-4.0, 0.0],
    }
    assert observed_ranges(model, [], feeds) == {}


def _model() -> onnx.ModelProto:
    """A convolution, boxes in 0..1, times int64 sizes."""
    graph = TinyGraph()
    graph.input("image", (1, 3, 8, 8))
    graph.input("sizes", (1, 2), "int64")
    for name, value in (("flat", [1, 4, 64]), ("second", [1]), ("times", [1, 1, 32])):
        graph.stored(name, value, "int64")
    graph.stored("w", np.random.default_rng(0).normal(size=(4, 3, 1, 1)))
    graph.op("Sigmoid", [graph.op("Conv", ["image", "w"], "logits")], "s")
    graph.op("Reshape", ["s", "flat"], "boxes")
    graph.op(
        "Tile", [graph.op("Unsqueeze", [graph.op("Cast", ["sizes"], "cast", to=1), "second"], "row"), "times"], "scale"
    )
    graph.op("Mul", ["boxes", "scale"], "pixels")
    return graph.model("pixels")


@cache
def chosen(*, result: bool, mixed: str = "auto", inputs: tuple[str, ...] = ()) -> ChosenWay:
    """The choice for a file of 16 bits without the sizes; ``result``: with the entry of the boxes in pixels."""
    kind, eight = GridKind(bits=16, signed=False), GridKind(bits=8, signed=True, symmetric=True)
    ranges = {"image": (0.0, 1.0), "logits": (-4.0, 4.0), "s": (0.0, 1.0), "boxes": (0.0, 1.0)}
    ranges |= {"pixels": (0.0, 640.0)} if result else {}
    made = {name: Encoding(name=name, value=affine_for_range(*ends, kind)) for name, ends in ranges.items()}
    made["w"] = Encoding(name="w", value=affine_for_range(-2, 2, eight), is_param=True)
    folder = Path(tempfile.mkdtemp())
    onnx.save(_model(), folder / "m.onnx")
    text = write_encodings(EncodingSet(version="0.6.1", entries=made), "0.6.1")
    (folder / "m.encodings").write_text(text, "utf-8")
    asked: Any = {"model": folder / "m.onnx", "target": "sm8650", "sdk": "2.33", "backend": "qnn-htp"}
    request = Request(encodings=folder / "m.encodings", mixed=mixed, inputs=inputs, **asked)
    backend, situation = read_situation(request)
    return choose_way(backend, situation, SharedWork(), lambda line: None)


CASES: dict[str, tuple[Callable[[], ChosenWay], Callable[[], ChosenWay]]] = {
    "DK207": (lambda: chosen(result=False, mixed="refuse"), lambda: chosen(result=True, mixed="refuse")),
    "DK209": (lambda: chosen(result=True, mixed="refuse"), lambda: chosen(result=False, mixed="refuse")),
}


def test_each_rule_fires_and_stays_silent() -> None:
    check_pairs(CASES, CHOICE_RULES)


def _reach(made: ChosenWay, name: str) -> float:
    assert made.situation.encodings is not None
    value = made.situation.encodings.entries[name].value
    assert isinstance(value, Affine)
    return float(value.maximum)


def test_the_grids_tell_the_size() -> None:
    made = chosen(result=True, mixed="refuse")
    assert made.explored.winner is not None and made.explored.winner.way.kind == "integer"
    assert [_reach(made, name) for name in SIZES] == pytest.approx([640] * 3, rel=1e-3)


def test_without_them_it_is_an_error_that_names_the_input_and_the_ways_out() -> None:
    assert chosen(result=False, mixed="refuse").explored.winner is None
    followed = chosen(result=False, mixed="refuse", inputs=("sizes=640,480",))
    assert followed.explored.winner is not None and not list(CHOICE_RULES["DK207"].run(followed))
    assert [_reach(followed, name) for name in ("cast", "pixels")] == pytest.approx([640] * 2, rel=1e-3)


def test_where_the_backend_can_it_stays_float_and_nothing_is_made_up() -> None:
    made = chosen(result=False)
    assert made.explored.winner is not None and made.explored.winner.way.kind != "integer"
    assert made.situation.encodings is not None and not SIZES & made.situation.encodings.entries.keys()
    found = list(CHOICE_RULES["DK207"].run(made))
    (told,) = {(one.severity, one.handled) for one in found}
    assert told == (Severity.INFO, f"left float: {made.explored.winner.way.id}")


ABOUT_DATA = {f"DK{number}" for number in (*range(230, 236), 252, *range(621, 629))}


@pytest.fixture(autouse=True)
def nothing_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DEPLOYKIT_TOOLCHAINS", str(tmp_path / "toolchains"))


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A small classifier as exporters leave it: no BatchNormalization is left to tell how its data was prepared."""
    rng = np.random.default_rng(3)
    graph = TinyGraph()
    x = graph.input("x", (1, 3, 16, 16))
    y = graph.op("Conv", [x, graph.stored("w", rng.normal(size=(8, 3, 3, 3)) / 5)], "c", pads=[1, 1, 1, 1])
    y = graph.op("Relu", [y], "r")
    y = graph.op("Conv", [y, graph.stored("v", rng.normal(size=(4, 8, 3, 3)) / 8)], "d", pads=[1, 1, 1, 1])
    onnx.save(graph.model(graph.op("GlobalAveragePool", [y], "y")), tmp_path / "model.onnx")
    return tmp_path / "model.onnx"


def pictures(count: int) -> npt.NDArray[np.float32]:
    """Large patches of every colour with some noise, normalised."""
    rng = np.random.default_rng(11)
    patches = np.kron(rng.normal(size=(count, 1, 3, 4, 4)), np.ones((1, 1, 1, 4, 4)))
    return np.clip(patches + rng.normal(scale=0.1, size=patches.shape), -2.1, 2.6).astype(np.float32)


def in_folders(folder: Path, values: npt.NDArray[Any], rare: int) -> Path:
    """One file each, the first ``rare`` of them of another class."""
    for place, value in enumerate(values):
        home = folder / ("rare" if place < rare else "often")
        home.mkdir(parents=True, exist_ok=True)
        np.save(home / f"s{place:03}.npy", value)
    return folder


def test_ranges_are_looked_at_where_all_samples_were_read(model: Path, tmp_path: Path) -> None:
    """Each of eight samples reaches twice as far as the one before it."""
    grown = pictures(8) * np.float32(2) ** np.arange(8, dtype=np.float32).reshape(-1, 1, 1, 1, 1)
    folder = in_folders(tmp_path / "data", grown, rare=4)
    read = load_model(model)
    facts = collect_facts(read)
    data = load_calibration(folder, input_specs(facts))
    feeds = [{"x": np.load(file)} for file in data.files]
    for available, gives_ranges, wanted in ((8, True, {"DK234"}), (9, True, {"DK621"}), (8, False, set())):
        found = about_samples(read, facts, data, feeds, available=available, gives_ranges=gives_ranges)
        assert {one.code for one in found} & {"DK234", "DK621"} == wanted


def codes(findings: tuple[Finding, ...]) -> set[str]:
    return {one.code for one in findings if one.severity is not Severity.INFO} & ABOUT_DATA


def test_every_command_says_what_is_wrong_with_them(model: Path, tmp_path: Path) -> None:
    """Bytes where normalised colours belong, seven of one class for one of the other."""
    wrong = np.round((pictures(32) + 2.1) / 4.7 * 255).astype(np.float32)
    asked: dict[str, Any] = {
        "target": "sm8650",
        "sdk": "2.37",
        "precision": "w8a8",
        "calibration": in_folders(tmp_path / "data", wrong, rare=4),
    }
    wanted = {"DK235", "DK252"}
    assert codes(deploykit.check(model, **asked)) == wanted
    assert codes(deploykit.plan(model, **asked).findings) == wanted
    assert codes(deploykit.package(model, out=tmp_path / "package", **asked).findings) == wanted
    assert codes(deploykit.quantize(model, out=tmp_path / "quantized", **asked).findings) == wanted
    told = json.loads((tmp_path / "quantized" / "report.json").read_text("utf-8"))["findings"]
    assert wanted <= {row["code"] for row in told}
    # In float16 no range comes from them: their scale still matters to whoever judges on them, their number does not.
    assert codes(deploykit.check(model, **{**asked, "precision": "fp16"})) == {"DK252"}
