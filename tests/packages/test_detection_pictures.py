"""Pictures in a report: detections, and the graph."""

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import onnx.parser
import pytest

import deploykit
from deploykit.accuracy.judge.kinds import DetectionSet, OutputKind, Piece
from deploykit.accuracy.samples.gathering import InputSource, Samples
from deploykit.accuracy.samples.inputs import Label
from deploykit.accuracy.simulate.sessions import Session
from deploykit.backend.backend import Execution, Seen
from deploykit.flow.choose import BuiltWays
from deploykit.flow.render import drawn_detections
from deploykit.model.collect import collect_facts
from deploykit.model.load import load_model
from deploykit.model.weights import lean_weights
from deploykit.report.detections import draw_detections
from tables import each_row
from text_models import text_model

GROUP = DetectionSet(
    boxes=Piece(output="boxes", kind=OutputKind.BOXES), scores=Piece(output="scores", kind=OutputKind.SCORES)
)
RAMP = np.add.outer(np.arange(64.0), np.arange(64.0))
PICTURE = np.stack([RAMP, RAMP, RAMP])[None].astype(np.float32)


def seen(by: str, feed: np.ndarray, shift: float, count: int = 1) -> Seen:
    boxes = np.array([[[8 + shift, 8, 40 + shift, 40], [44, 44, 60, 60]]])
    outputs = {"boxes": boxes, "scores": np.array([[[0.9], [0.4]]])}
    return Seen(by=by, feeds=({"image": feed},) * count, outputs=(outputs,) * count)


def test_both_sides_are_drawn_on_the_picture() -> None:
    drawn = draw_detections(GROUP, seen("float", PICTURE, 0), seen("the device", PICTURE, 4))
    assert drawn is not None and (drawn["by"], drawn["corners"]) == ("the device", True)
    (picture,) = drawn["pictures"]
    assert picture["uri"].startswith("data:image/png;base64,")
    assert [(box.left, box.right) for box in picture["before"]] == [(0.125, 0.625), (0.6875, 0.9375)]
    assert picture["after"][0].left == 0.1875
    assert [one.overlap(two) for one, two in picture["pairs"] if one and two] == pytest.approx([28 / 36, 1.0])
    assert picture["differences"] == 0


PLACES = np.array([[[at, at, at + 10, at + 10] for at in (4, 20, 36, 50)]])
LOW, FIRST, LAST = ([0.1] * 4, [0.9, 0.1, 0.1, 0.1], [0.1, 0.1, 0.1, 0.9])


@each_row(
    ("before", "after", "counted"),
    (FIRST, FIRST, (1, 1, 0)),
    (FIRST, LAST, (1, 1, 2)),  # neither has a partner
    (LOW, LAST, (0, 1, 1)),
    (FIRST, LOW, (1, 0, 1)),
    (LOW, LOW, None),
    ([[0.9, 0.1]] * 3 + [[0.1, 0.9]], [[0.9, 0.1]] * 4, (1, 0, 1)),  # what most rows are is no object
    ([[0.1, 0.9]] * 3 + [[0.9, 0.1]], [[0.9, 0.1]] * 4, (1, 4, 3)),
)
def test_boxes_of_one_side_alone_are_counted(before: Any, after: Any, counted: Any) -> None:
    def of(scores: Any) -> Seen:
        made = {"boxes": PLACES, "scores": np.array(scores).reshape(1, 4, -1)}
        return Seen(by="it", feeds=({"image": PICTURE},), outputs=(made,))

    drawn = draw_detections(GROUP, of(before), of(after))
    (picture,) = drawn["pictures"] if drawn else (None,)
    assert (picture and (len(picture["before"]), len(picture["after"]), picture["differences"])) == counted


def test_noise_is_no_picture_and_pages_stay_small() -> None:
    noise = np.random.default_rng(0).uniform(size=(1, 3, 64, 64)).astype(np.float32)
    assert draw_detections(GROUP, seen("float", noise, 0), seen("simulation", noise, 0)) is None
    rng = np.random.default_rng(1)
    coarse = np.kron(rng.uniform(size=(1, 3, 160, 160)), np.ones((1, 1, 4, 4)))
    busy = (coarse * 250 + rng.uniform(size=coarse.shape) * 5).astype(np.float32)
    drawn = draw_detections(GROUP, seen("float", busy, 0, count=8), seen("simulation", busy, 0, count=8))
    assert drawn is not None and 1 <= len(drawn["pictures"]) <= 3
    assert sum(len(picture["uri"]) for picture in drawn["pictures"]) < 900_000


def small_detector(folder: Path) -> Path:
    """Boxes and scores by two convolutions over a 64 x 64 picture: four numbers and one score for each of 64 places."""
    rng = np.random.default_rng(7)
    body = """
        c = Conv <kernel_shape = [8, 8], strides = [8, 8]> (image, w)  r = Relu (c)
        b = Conv (r, wb, bb)  s0 = Conv (r, ws)  s = Sigmoid (s0)
        fb = Reshape (b, flat_b)  fs = Reshape (s, flat_s)  found = Concat <axis = 1> (fb, fs)
    """
    drawn = {"w": rng.normal(size=(8, 3, 8, 8)) / 40, "wb": rng.uniform(size=(4, 8, 1, 1))}
    drawn |= {"bb": np.array([20.0, 20, 10, 10]), "ws": rng.normal(size=(1, 8, 1, 1))}
    stored: dict[str, Any] = {name: array.astype(np.float32) for name, array in drawn.items()}
    shapes: dict[str, Any] = {"flat_b": [1, 4, 64], "flat_s": [1, 1, 64]}
    onnx.save(text_model("float[1,3,64,64] image", body, "float[1,5,64] found", **stored, **shapes), folder / "d.onnx")
    return folder / "d.onnx"


@pytest.mark.parametrize("kind", ["pictures", "private"])
def test_the_report_of_a_detector_shows_its_boxes_where_samples_are_pictures(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DEPLOYKIT_TOOLCHAINS", str(tmp_path / "toolchains"))
    frames = np.stack([np.roll(PICTURE / 126, 5 * shift, axis=3) for shift in range(8)])
    np.savez(tmp_path / "frames.npz", image=frames.astype(np.float32))
    asked: Any = {"target": "sm8650", "backend": "qnn-htp", "precision": "w8a16", "samples": kind != "private"}
    data, out = tmp_path / "frames.npz", tmp_path / "out"
    packaged = deploykit.package(small_detector(tmp_path), calibration=data, out=out, **asked)
    assert packaged.package is not None
    page = (packaged.package / "report.html").read_text("utf-8")
    assert ("Detections on the samples" in page) is (kind == "pictures")
    pictures = re.findall(r'<image href="data:image/png;base64,[A-Za-z0-9+/=]+"', page)
    assert len(pictures) == (3 if kind == "pictures" else 0)
    if kind == "pictures":
        assert page.count('<rect class="before"') > 0 and page.count('<rect class="after"') > 0
        assert not re.search(r'(?:href|src)="https?:', page) and len(page) < 2_000_000


def test_what_ran_is_drawn_on_the_sample_that_it_was_given(tmp_path: Path) -> None:
    model = load_model(small_detector(tmp_path))
    feeds = tuple({"image": np.roll(PICTURE / 126, 5 * shift, axis=3)} for shift in range(5))
    session = Session(lean_weights(model))
    ran = Seen(by="the emulator", feeds=feeds, outputs=tuple(session.run(feed) for feed in feeds))
    samples = Samples(feeds=feeds, of_inputs={"image": InputSource(label=Label.GIVEN, why="given")})
    asked = SimpleNamespace(model=model, facts=collect_facts(model), request=SimpleNamespace(keep_samples=True))
    plan: Any = SimpleNamespace(chosen=SimpleNamespace(samples=samples, explored=BuiltWays()), given=asked)
    drawn = drawn_detections(plan, Execution(seen=ran))
    assert drawn is not None and len(drawn["pictures"]) == 3
    assert all(picture["before"] == picture["after"] != [] for picture in drawn["pictures"])
