import json
import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from deploykit import api
from deploykit.fleet.pool import work
from deploykit.system.processes import ProgramEnd

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


def _work_here(argv: Sequence[str], *, given: bytes, on_line: Callable[[str], None], **_limits: Any) -> ProgramEnd:
    folder, limit, *first = argv[3:]
    asked: dict[str, Any] = {"fail_fast": bool(first), "tell": lambda news: on_line(json.dumps(news))}
    work(json.loads(given), Path(folder), float(limit), **asked)
    return ProgramEnd(argv=tuple(argv), returncode=0, tail=(), seconds=1.0)


@pytest.fixture
def in_this_process() -> Iterator[None]:
    """Batches are made here and not in processes of their own, each of which imports everything anew."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("deploykit.fleet.pool.run", _work_here)
        yield


@pytest.fixture(scope="session")
def made_once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The results of the whole fleet; not to be changed."""
    folder = tmp_path_factory.mktemp("fleet")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("deploykit.fleet.pool.run", _work_here)
        api.matrix(_written(folder), out=folder / "out", processes=1)
    return folder / "out"


@pytest.fixture
def made(made_once: Path, tmp_path: Path) -> Path:
    """The same, to be changed."""
    return shutil.copytree(made_once, tmp_path / "made")
