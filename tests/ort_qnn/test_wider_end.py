"""8-bit detectors whose ends got 16-bit grids, on the real compiler and emulator: they see what the float ones see."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from deploykit.accuracy.simulate.sessions import Session
from deploykit.backend.backend import Request
from deploykit.backend.status import Compiled, Right
from deploykit.encodings.formats.aimet import write_encodings
from deploykit.flow.pipeline import Packaged, make_package
from sample_models.finished_detectors import DETECTORS, count_kept, scenes
from sample_models.min_max import min_max_encodings

pytest.importorskip("onnxruntime_qnn")
pytestmark = pytest.mark.heavy

SOC = {"soc_model": "57"}
"""An HTP of architecture v75, that of the sm8650."""

COUNT = 32
Values = Mapping[str, np.ndarray[Any, Any]]


def packaged(name: str, folder: Path) -> Packaged:
    model, data = DETECTORS[name](), folder / "scenes"
    data.mkdir()
    for index, feed in enumerate(scenes(COUNT)):
        np.save(data / f"{index:02}.npy", feed["images"])
    onnx.save(model, folder / f"{name}.onnx")
    (folder / f"{name}.encodings").write_text(write_encodings(min_max_encodings(model, scenes(COUNT)), "1.0.0"))
    request = Request(
        model=folder / f"{name}.onnx",
        encodings=folder / f"{name}.encodings",
        calibration=data,
        target="sm8650",
        backend="ort-qnn",
        compile=True,
    )
    return make_package(request, folder / "out")


def emulated(package: Path, feeds: Sequence[Values], folder: Path) -> list[Values]:
    """What the compiled context of a package gives on the emulator."""
    from emulator import execute_model

    (context,) = package.rglob("*_ctx.onnx")
    np.savez(folder / "inputs.npz", **{f"{index}:images": feed["images"] for index, feed in enumerate(feeds)})  # type: ignore[arg-type]
    made = execute_model(context.parent, context.name, folder / "inputs.npz", provider="npu", options=SOC)
    return [
        {key.split(":", 1)[1]: value for key, value in made.items() if key.startswith(f"{index}:")}
        for index in range(len(feeds))
    ]


@pytest.mark.parametrize(("name", "code"), [("yolo", {"DK251"}), ("ssd", {"DK251"}), ("detr", set())])
def test_the_emulator_keeps_the_detections(name: str, code: set[str], tmp_path: Path) -> None:
    made = packaged(name, tmp_path)
    assert made.status.compiled.state is Compiled.YES
    assert made.status.right.state is Right.YES
    assert {finding.code for finding in made.findings} & {"DK202", "DK251"} == code
    assert made.package is not None
    fresh = scenes(COUNT, seed=1)
    reference = [Session(DETECTORS[name]()).run(feed) for feed in fresh]
    kept, every = count_kept(reference, emulated(made.package, fresh, tmp_path))
    assert every > 200
    assert kept >= 0.95 * every, f"{kept} of {every}"
