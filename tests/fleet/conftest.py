import shutil
from pathlib import Path

import pytest

from deploykit import api

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


def _written(folder: Path) -> Path:
    for name in ("cnn", "mlp"):
        shutil.copy(AIMET / name / "model.onnx", folder / f"{name}.onnx")
        shutil.copy(AIMET / name / "w8a16.v1.0.0.encodings", folder / f"{name}.encodings")
    file = folder / "deploykit.toml"
    file.write_text(TOML, "utf-8")
    return file


@pytest.fixture
def fleet(tmp_path: Path) -> Path:
    """A deploykit.toml of two models that AIMET quantized, for two devices."""
    return _written(tmp_path)


@pytest.fixture(scope="session")
def made_once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The results of the whole fleet; not to be changed."""
    folder = tmp_path_factory.mktemp("fleet")
    api.matrix(_written(folder), out=folder / "out", processes=1)
    return folder / "out"


@pytest.fixture
def made(made_once: Path, tmp_path: Path) -> Path:
    """The same, to be changed."""
    return shutil.copytree(made_once, tmp_path / "made")
