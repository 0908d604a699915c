"""A precision asked for by name: spelt as people spell it, known to the backend, and what the encodings say."""

from __future__ import annotations

from pathlib import Path

import pytest

import deploykit
from deploykit.errors import UsageError
from tables import each_row

DATA = Path(__file__).parents[1] / "data" / "aimet"
CNN = DATA / "cnn" / "model.onnx"
W8A16 = DATA / "cnn" / "w8a16.v1.0.0.encodings"


@pytest.mark.parametrize("backend", ["qnn-htp", "ort-qnn"])
@each_row("asked", ["nonsense", "int8", "w8", "bf16"])
def test_a_name_that_the_backend_does_not_have_is_refused(backend: str, asked: str) -> None:
    with pytest.raises(UsageError, match=f"--precision {asked}: not a precision of {backend}"):
        deploykit.plan(CNN, target="sm8650", backend=backend, precision=asked)


@pytest.mark.parametrize("spelling", ["float16", "FP16", "Float16"])
@each_row("backend", ["qnn-htp", "ort-qnn"])
def test_a_precision_may_be_spelt_by_its_element_type(backend: str, spelling: str) -> None:
    plain = deploykit.plan(CNN, target="sm8650", backend=backend, precision="fp16")
    assert deploykit.plan(CNN, target="sm8650", backend=backend, precision=spelling).route == plain.route


@pytest.mark.parametrize("backend", ["qnn-htp", "ort-qnn"])
@each_row("asked", ["fp16", "float16", "w8a8", "w4a16", "w16a16"])
def test_a_precision_that_the_encodings_do_not_hold_is_refused(backend: str, asked: str) -> None:
    with pytest.raises(UsageError, match="not what the encodings say") as refused:
        deploykit.plan(CNN, target="sm8650", backend=backend, encodings=W8A16, precision=asked)
    assert "16-bit activations, 8-bit weights" in refused.value.why


@pytest.mark.parametrize("backend", ["qnn-htp", "ort-qnn"])
def test_the_precision_of_the_encodings_may_be_said(backend: str) -> None:
    plan = deploykit.plan(CNN, target="sm8650", backend=backend, encodings=W8A16, precision="w8a16")
    assert plan.route == deploykit.plan(CNN, target="sm8650", backend=backend, encodings=W8A16).route


def test_float16_is_not_asked_of_a_quantized_model() -> None:
    with pytest.raises(UsageError, match="holds Q/DQ nodes"):
        deploykit.plan(DATA / "cnn" / "w8a16.qdq.onnx", target="sm8650", backend="ort-qnn", precision="fp16")
