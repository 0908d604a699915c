"""Detections on the samples of a report: both sides, only on pictures, and never too large a page."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import deploykit
from deploykit.accuracy.judge.kinds import DetectionSet, OutputKind, Piece
from deploykit.backend.audits import Audit, AuditedKernel
from deploykit.backend.backend import Seen
from deploykit.errors import InputError
from deploykit.report.detections import draw_detections
from deploykit.report.pages import audit_section
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
    assert drawn is not None and (drawn.by, drawn.corners) == ("the device", True)
    (picture,) = drawn.pictures
    assert picture.uri.startswith("data:image/png;base64,")
    assert [(box.left, box.right) for box in picture.before] == [(0.125, 0.625), (0.6875, 0.9375)]
    assert picture.after[0].left == 0.1875
    assert [one.overlap(two) for one, two in picture.pairs if one and two] == pytest.approx([28 / 36, 1.0])
    assert picture.differences == 0


def test_a_class_that_stands_for_nothing_is_not_drawn() -> None:
    """As SSD has it: most rows are of a first class that no application shows."""
    places = np.array([[8, 8, 40, 40], [44, 44, 60, 60], [2, 2, 20, 20], [30, 4, 50, 20], [4, 30, 20, 60]], float)[None]
    scores = np.array([[[0.1, 0.9], [0.95, 0.05], [0.9, 0.1], [0.9, 0.1], [0.99, 0.01]]])
    values = {"boxes": places, "scores": scores}
    side = Seen(by="float", feeds=({"image": PICTURE},), outputs=(values,))
    drawn = draw_detections(GROUP, side, side)
    assert drawn is not None
    assert [(box.label, box.score) for box in drawn.pictures[0].before] == [(1, 0.9)]


def test_noise_is_no_picture_and_pages_stay_small() -> None:
    noise = np.random.default_rng(0).uniform(size=(1, 3, 64, 64)).astype(np.float32)
    assert draw_detections(GROUP, seen("float", noise, 0), seen("simulation", noise, 0)) is None
    rng = np.random.default_rng(1)
    coarse = np.kron(rng.uniform(size=(1, 3, 160, 160)), np.ones((1, 1, 4, 4)))
    busy = (coarse * 250 + rng.uniform(size=coarse.shape) * 5).astype(np.float32)
    drawn = draw_detections(GROUP, seen("float", busy, 0, count=8), seen("simulation", busy, 0, count=8))
    assert drawn is not None
    assert 1 <= len(drawn.pictures) <= 3
    assert sum(len(picture.uri) for picture in drawn.pictures) < 900_000


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

    def twice(chosen: object) -> object:
        raise InputError("simulated a second time, for the page")

    monkeypatch.setattr("deploykit.flow.render.run_of", twice)
    frames = np.stack([np.roll(PICTURE / 126, 5 * shift, axis=3) for shift in range(8)])
    np.savez(tmp_path / "frames.npz", image=frames.astype(np.float32))
    packaged = deploykit.package(
        small_detector(tmp_path),
        target="sm8650",
        backend="qnn-htp",
        precision="w8a16",
        calibration=tmp_path / "frames.npz",
        samples=kind != "private",
        out=tmp_path / "out",
    )
    assert packaged.package is not None
    page = (packaged.package / "report.html").read_text("utf-8")
    assert ("Detections on the samples" in page) is (kind == "pictures")
    pictures = re.findall(r'<image href="data:image/png;base64,[A-Za-z0-9+/=]+"', page)
    assert len(pictures) == (3 if kind == "pictures" else 0)
    if kind == "pictures":
        assert page.count('<rect class="before"') > 0 and page.count('<rect class="after"') > 0
        assert not re.search(r'(?:href|src)="https?:', page)
        assert len(page) < 2_000_000


AUDIT = Audit(
    level="full",
    by="somebody",
    kernels=(
        AuditedKernel(node="a", nodes=("a", "b"), operators=("Relu",), type="u8", place="alone", verdict="right"),
        AuditedKernel(node="b", nodes=("b",), operators=("Relu", "Tanh"), type="u8", place="inside", verdict="wrong"),
        AuditedKernel(node="c", operators=("Exp",), type="u8", place="alone", verdict="narrowed", why="8 bits"),
    ),
)


def test_an_audit_is_told_worst_first() -> None:
    section = audit_section(AUDIT)
    assert section is not None
    assert [kernel.verdict for kernel in section.open] == ["wrong", "narrowed"]
    assert list(section.counts.items()) == [("wrong", 1), ("narrowed", 1), ("right", 1)]
    assert audit_section(None) is None
