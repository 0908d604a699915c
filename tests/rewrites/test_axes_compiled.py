"""A mean over one long axis: right with the axes that the rewrite makes, and wrong as it is (QAIRT 2.51)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from deploykit.backend.backend import Request
from deploykit.encodings.formats.aimet import write_encodings
from deploykit.encodings.values import Affine, Encoding, EncodingSet
from deploykit.flow.pipeline import make_package
from text_models import text_model

A = Affine(bits=16, signed=False, scale=np.asarray(1e-4), zero_point=np.asarray(32768.0))


def over(op: str = "ReduceMean", axes: Any = (-1, -2), keepdims: int = 1, opset: int = 17) -> onnx.ModelProto:
    """Nine tokens of 16 channels, turned to [1, 16, 1, 9] and pooled."""
    listed = opset >= 18 or op == "ReduceSum"
    call = f"<keepdims = {keepdims}> (i, axes)" if listed else f"<keepdims = {keepdims}, axes = {list(axes)}> (i)"
    body = f"t = Transpose <perm = [0, 2, 1]> (x)  i = Unsqueeze (t, at)  y = {op} {call}"
    stored: dict[str, Any] = {"axes": list(axes)} if listed else {}
    return text_model("float[1,9,16] x", body, opset=opset, at=[2], **stored)


@pytest.mark.heavy
def test_the_compiler_is_given_the_longer_axes(tmp_path: Path) -> None:
    """As it is the kernel gives 13 dB less than nothing; the day it is right, the second half says so."""
    pytest.importorskip("onnxruntime_qnn")
    onnx.save(onnx.shape_inference.infer_shapes(over()), tmp_path / "m.onnx")
    entries = {name: Encoding(name=name, value=A, is_param=False) for name in ("x", "t", "i", "y")}
    text = write_encodings(EncodingSet(version="1.0.0", entries=entries), "1.0.0")
    (tmp_path / "m.encodings").write_text(text)
    data = np.random.default_rng(0).uniform(-2, 3, (4, 1, 9, 16)).astype(np.float32)
    np.savez(tmp_path / "data.npz", x=data)

    def compiled(*without: str) -> Any:
        given = Request(
            model=tmp_path / "m.onnx",
            encodings=tmp_path / "m.encodings",
            calibration=tmp_path / "data.npz",
            target="sm8650",
            backend="ort-qnn",
            no_rewrite=without,
            adapter_options={"audit": "off"},  # else another way is found for it
        )
        return make_package(given, tmp_path / "_".join(("p", *without)))

    assert compiled().exit_status == 0
    spoilt = compiled("longer-axes")
    assert spoilt.exit_status == 1
    assert {"ORT120"} <= {finding.code for finding in spoilt.findings if finding.blocks}
