from __future__ import annotations

import shutil
from pathlib import Path

import pytest

AIMET = Path(__file__).parents[1] / "data" / "aimet"

TOML = """
[defaults]
samples = false

[models.cnn]
path = "cnn.onnx"
encodings = "cnn.encodings"

[models.mlp]
path = "mlp.onnx"
encodings = "mlp.encodings"

[targets.phone]
device = "sm8650"
sdks = ["2.33"]

[targets.old]
device = "sm8550"
sdks = ["2.33"]
"""


@pytest.fixture
def fleet(tmp_path: Path) -> Path:
    """A deploykit.toml of two models that AIMET quantized, for two devices."""
    for name in ("cnn", "mlp"):
        shutil.copy(AIMET / name / "model.onnx", tmp_path / f"{name}.onnx")
        shutil.copy(AIMET / name / "w8a16.v1.0.0.encodings", tmp_path / f"{name}.encodings")
    file = tmp_path / "deploykit.toml"
    file.write_text(TOML, "utf-8")
    return file
