"""A process that may have a gigabyte, for models that would take more."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

LIMITED = """
import resource, sys
from pathlib import Path
resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30))
from deploykit.errors import InputError
from deploykit.model.collect import collect_facts
from deploykit.model.load import load_model
for path in sys.argv[1:]:
    try:
        facts = collect_facts(load_model(Path(path)))
    except InputError as error:
        print("refused:", error.what)
    else:
        print(facts.tensors[facts.outputs[0]].shape, facts.inference_problem)
"""


@pytest.fixture
def within_a_gigabyte(tmp_path: Path) -> Callable[..., list[str]]:
    """What one process of a gigabyte says of each model: its refusal, or the shape of the first output."""

    def run(*models: bytes) -> list[str]:
        paths = [tmp_path / f"m{number}.onnx" for number in range(len(models))]
        for path, model in zip(paths, models, strict=True):
            path.write_bytes(model)
        argv = [sys.executable, "-c", LIMITED, *map(str, paths)]
        done = subprocess.run(argv, capture_output=True, encoding="utf-8", check=False, timeout=240)
        assert done.returncode == 0, done.stderr
        return done.stdout.splitlines()

    return run
