"""What of the rewrites takes more than a graph in a line: an operator with many forms, and the real compiler."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from deploykit.backend.backend import Request
from deploykit.encodings.formats.aimet import write_encodings
from deploykit.encodings.values import Affine, Encoding, EncodingSet
from deploykit.flow.cure import rewrite
from deploykit.flow.pipeline import make_package
from deploykit.rewrites.contract import load_transform
from sample_models.feeds import random_feeds
from text_models import text_model


def test_attention_is_written_out_with_its_sizes_settled_or_refused() -> None:
    find = load_transform("write-out-functions").match
    given_ = "float[1,2,3,4] q, float[1,2,5,4] k, float[1,2,5,4] v"
    model = text_model(given_, "y = Attention (q, k, v)", opset=23)
    made = rewrite(model, None, ["write-out-functions"], random_feeds(model, samples=2))
    assert made.kept and not {"Attention", "Shape", "Range"} & {node.op_type for node in made.model.graph.node}
    masked = text_model(f"{given_}, float[3,5] mask", "y = Attention (q, k, v, mask)", opset=23)
    assert find(masked)
    del masked.graph.input[-1]
    assert "onnx does not write it out" in find(masked).refusals[0].reason


@pytest.mark.heavy
def test_the_compiler_is_given_the_longer_axes(tmp_path: Path) -> None:
    """As it is the kernel gives 13 dB less than nothing; the day it is right, the second half says so."""
    pytest.importorskip("onnxruntime_qnn")
    body = "t = Transpose <perm = [0, 2, 1]> (x)  i = Unsqueeze (t, at)  y = ReduceMean <axes = [-1, -2]> (i)"
    model = text_model("float[1,9,16] x", body, at=[2])
    onnx.save(onnx.shape_inference.infer_shapes(model), tmp_path / "m.onnx")
    grid = Affine(bits=16, signed=False, scale=np.asarray(1e-4), zero_point=np.asarray(32768))
    entries = {name: Encoding(name=name, value=grid, is_param=False) for name in ("x", "t", "i", "y")}
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
            adapter_options={"kernels": "off"},  # else another way is found for it
        )
        return make_package(given, tmp_path / "_".join(("p", *without)))

    assert compiled().exit_status == 0
    spoilt = compiled("longer-axes")
    assert spoilt.exit_status == 1
    assert {"ORT120"} <= {finding.code for finding in spoilt.findings if finding.blocks}
