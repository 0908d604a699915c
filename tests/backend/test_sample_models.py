"""The small models that third parties get: valid, runnable, the same every time, and with the property they promise."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime
import pytest

from deploykit.model import load_model
from sample_models import networks as models

BUILDERS: list[Callable[[], onnx.ModelProto]] = [
    models.attention_net,
    models.conv_net,
    models.dynamic_net,
    models.huge_constant_net,
    models.linear3d_net,
]


def run(source: bytes | str) -> npt.NDArray[np.float32]:
    session = onnxruntime.InferenceSession(source)
    feed = {}
    for item in session.get_inputs():
        shape = [size if isinstance(size, int) else 2 for size in item.shape]
        feed[item.name] = np.random.default_rng(0).normal(size=shape).astype(np.float32)
    return np.asarray(session.run(None, feed)[0])


@pytest.mark.parametrize("build", BUILDERS, ids=lambda build: build.__name__)
def test_models_are_valid_and_the_same_every_time(build: Callable[[], onnx.ModelProto]) -> None:
    model = build()
    onnx.checker.check_model(model, full_check=True)
    assert build().SerializeToString(deterministic=True) == model.SerializeToString(deterministic=True)
    assert np.isfinite(run(model.SerializeToString())).all()


@pytest.mark.parametrize("build", BUILDERS, ids=lambda build: build.__name__)
def test_external_data_changes_nothing_for_onnxruntime(build: Callable[[], onnx.ModelProto], tmp_path: Path) -> None:
    model = build()
    path = models.save_with_external_data(model, tmp_path / "m.onnx", location="data.bin")
    assert model.SerializeToString() == build().SerializeToString()
    np.testing.assert_array_equal(run(str(path)), run(model.SerializeToString()))
    assert [file.location for file in load_model(path).external] == ["data.bin"]


def test_the_huge_constant_is_beyond_float16() -> None:
    assert any(
        np.abs(onnx.numpy_helper.to_array(t)).max() > 65504 for t in models.huge_constant_net().graph.initializer
    )
