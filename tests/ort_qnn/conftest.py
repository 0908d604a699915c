"""A small model that shows a trap of the provider's compiler."""

from pathlib import Path

import onnx
import pytest

from deploykit.encodings.insert_qdq import insert_qdq
from deploykit.encodings.new_grids import GridKind, affine_for_range
from deploykit.encodings.values import Encoding, EncodingSet
from text_models import text_model


@pytest.fixture
def log_model(tmp_path: Path) -> Path:
    """Log with a 16-bit output range of 3: every value becomes the minimum on the emulator."""
    model = text_model("float[1,64] x", "[the_log] y = Log (x)", "float[1,64] y")
    kind, path = GridKind(bits=16, signed=False), tmp_path / "log.onnx"
    ends = {"x": (0.0, 1.0), "y": (-3.0, 0.0)}
    entries = {name: Encoding(name=name, value=affine_for_range(*both, kind)) for name, both in ends.items()}
    onnx.save(insert_qdq(model, EncodingSet(version="2", entries=entries)).model, path)
    return path
