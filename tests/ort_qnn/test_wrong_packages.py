"""Packages that are wrong on purpose, compiled and emulated: each is a no with the loss in the words of the task."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

import deploykit_ort_qnn.provider_model as provider
from deploykit.backend.backend import Request
from deploykit.encodings.formats.aimet import write_encodings
from deploykit.encodings.insert_qdq import insert_qdq
from deploykit.encodings.values import EncodingSet
from deploykit.flow.pipeline import make_package
from sample_models.cell_detectors import CELLS, cell_detector, cell_pictures
from sample_models.min_max import min_max_encodings

pytestmark = pytest.mark.heavy

FEEDS = cell_pictures(4)


def stored(name: str, change: Callable[[Any], Any]) -> Callable[[onnx.ModelProto], None]:
    def apply(model: onnx.ModelProto) -> None:
        tensor = next(tensor for tensor in model.graph.initializer if tensor.name == name)
        values = np.asarray(change(numpy_helper.to_array(tensor).copy()), np.float32)
        tensor.CopyFrom(numpy_helper.from_array(values, name))

    return apply


def mask_twice(model: onnx.ModelProto) -> None:
    last = next(node for node in model.graph.node if "scores" in node.output)
    model.graph.node.append(onnx.helper.make_node("Mul", ["scores.once", "seen"], ["scores"], name="twice"))
    last.output[0] = "scores.once"


# That each of a dozen ways to be wrong is a no is asked of the judge; here it judges what was compiled and emulated.
WRONG: dict[str, Callable[[onnx.ModelProto], None]] = {
    "swapped classes": stored("cls.w", lambda w: w[::-1]),
    "a mask applied twice": mask_twice,
    "half the detections lost": stored("hidden", lambda h: h - 8 * (np.arange(CELLS) % 2)[None, :, None]),
    "calibration of another recipe": lambda model: None,
}


@pytest.fixture(scope="module")
def given(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder, model = tmp_path_factory.mktemp("given"), cell_detector()
    onnx.save(model, folder / "model.onnx")
    encodings = min_max_encodings(model, FEEDS, bits=16)
    (folder / "model.encodings").write_text(write_encodings(encodings, "1.0.0"))
    onnx.save(insert_qdq(model, encodings, bias="float").model, folder / "pairs.onnx")
    np.savez(folder / "data.npz", images=np.stack([feed["images"] for feed in FEEDS]))
    return folder


def packaged(given: Path, out: Path, *, pairs: bool = False) -> Any:
    request = Request(
        model=given / ("pairs.onnx" if pairs else "model.onnx"),
        target="sm8650",
        backend="ort-qnn",
        encodings=None if pairs else given / "model.encodings",
        calibration=given / "data.npz",
        no_rewrite=("cut-tail",),  # one compiled graph, so that a fault may lie anywhere in it
        adapter_options={"audit": "off"},  # what kernels do by themselves is not asked here
    )
    return make_package(request, out)


@pytest.mark.parametrize("pairs", [False, True], ids=["encodings", "pairs"])
def test_as_it_was_given_it_is_right(pairs: bool, given: Path, tmp_path: Path) -> None:
    made = packaged(given, tmp_path / "out", pairs=pairs)
    assert made.status.right.state == "yes", made.status.right.why
    assert "detections kept at score 0.25" in made.status.right.why
    assert made.exit_status == 0


@pytest.mark.parametrize("name", [*WRONG, "a wrong file of a model with pairs"])
def test_a_wrong_package_is_a_no(name: str, given: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file of a model with pairs runs alike on the CPU and the emulator: only its own floats tell it is wrong."""
    right, pairs = provider.provider_model, name not in WRONG
    name = "swapped classes" if pairs else name

    def spoilt(model: onnx.ModelProto, encodings: EncodingSet | None, **more: Any) -> Any:
        wrong = cell_detector()
        WRONG[name](wrong)
        feeds = FEEDS
        if name == "calibration of another recipe":  # ranges of pictures that were divided by 255 once more
            feeds = [{key: value / 255 for key, value in feed.items()} for feed in FEEDS]
        entries = min_max_encodings(wrong, feeds, bits=16)
        return right(insert_qdq(wrong, entries, bias="float").model if pairs else wrong, entries, **more)

    monkeypatch.setattr(provider, "provider_model", spoilt)
    made = packaged(given, tmp_path / "out", pairs=pairs)
    assert made.status.right.state == "no", f"{made.status.right}"
    assert made.exit_status == 1
    lost = {"a mask applied twice": "scores are 0.1"}.get(name, "detections kept")
    assert lost in made.status.right.why.partition("(")[0], "the loss comes first"
