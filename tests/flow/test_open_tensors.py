"""The size of the image that a detector multiplies its boxes by: found, asked for, or left float, and never made up."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable
from functools import cache
from pathlib import Path

import numpy as np
import onnx
import pytest

from deploykit.backend.backend import Request, SharedWork
from deploykit.encodings.formats.aimet import write_encodings
from deploykit.encodings.new_grids import GridKind, affine_for_range
from deploykit.encodings.values import Affine, Encoding, EncodingSet
from deploykit.findings import Finding, Severity
from deploykit.flow.choose import ChosenWay, choose_way
from deploykit.flow.read import read_situation
from deploykit.flow.rules import RULES as CHOICE_RULES
from sample_models.tiny_graphs import TinyGraph

SIZES = {"cast", "row", "scale"}


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
    request = Request(
        model=folder / "m.onnx",
        target="sm8650",
        sdk="2.33",
        backend="qnn-htp",
        encodings=folder / "m.encodings",
        mixed=mixed,
        inputs=inputs,
    )
    backend, situation = read_situation(request)
    return choose_way(backend, situation, SharedWork(), lambda line: None)


CASES: dict[str, tuple[Callable[[], ChosenWay], Callable[[], ChosenWay]]] = {
    "DK207": (lambda: chosen(result=False, mixed="refuse"), lambda: chosen(result=True, mixed="refuse")),
    "DK209": (lambda: chosen(result=True, mixed="refuse"), lambda: chosen(result=False, mixed="refuse")),
}


@pytest.mark.parametrize("code", CASES)
def test_each_rule_fires_and_stays_silent(code: str, as_expected: Callable[[str, Iterable[Finding]], None]) -> None:
    triggering, clean = CASES[code]
    as_expected(code, CHOICE_RULES[code].run(triggering()))
    assert not list(CHOICE_RULES[code].run(clean()))


def _reach(made: ChosenWay, name: str) -> float:
    assert made.situation.encodings is not None
    value = made.situation.encodings.entries[name].value
    assert isinstance(value, Affine)
    return float(value.maximum)


def test_the_grids_tell_the_size() -> None:
    made = chosen(result=True, mixed="refuse")
    assert made.prepared is not None
    assert made.prepared.way.kind == "integer"
    assert [_reach(made, name) for name in SIZES] == pytest.approx([640] * 3, rel=1e-3)
    (found,) = CHOICE_RULES["DK209"].run(made)
    assert "640 times" in found.message


def test_without_them_it_is_an_error_that_names_the_input_and_the_ways_out() -> None:
    made = chosen(result=False, mixed="refuse")
    assert made.prepared is None
    found = {finding.subject.name: finding for finding in CHOICE_RULES["DK207"].run(made)}
    assert found.keys() >= SIZES
    assert all(finding.severity is Severity.ERROR and finding.handled is None for finding in found.values())
    assert "sizes" in found["cast"].message
    assert found["cast"].hint == "give --calibration DATA or --input sizes=VALUE"


def test_the_way_out_works() -> None:
    made = chosen(result=False, mixed="refuse", inputs=("sizes=640,480",))
    assert made.prepared is not None
    assert not list(CHOICE_RULES["DK207"].run(made))
    assert _reach(made, "cast") == pytest.approx(640, rel=1e-3)
    assert _reach(made, "pixels") == pytest.approx(640, rel=1e-3)


def test_where_the_backend_can_it_stays_float_and_nothing_is_made_up() -> None:
    made = chosen(result=False)
    assert made.prepared is not None
    assert made.prepared.way.kind != "integer"
    assert made.situation.encodings is not None
    assert not SIZES & made.situation.encodings.entries.keys()
    assert all(finding.handled for finding in CHOICE_RULES["DK207"].run(made))
