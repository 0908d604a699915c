"""Running the quantizer as a child: judged by what it leaves. The environment is a stand-in whose script misbehaves.

No Quark is involved: the scripts below only imitate its silent failures. Real Quark runs in test_quark.py.
"""

import json
import textwrap
from pathlib import Path
from typing import Any

import pytest

from deploykit.errors import ToolError
from deploykit.system.environments import Environment
from deploykit.system.installing import install
from deploykit_vitis_ai.runner import RESULT, keep_run, run_key, run_quark, take_run
from lent_pip import lend_pip
from stub_backend import a_toolchain
from tables import each_row

WRITE = f"""
    import json, pathlib, sys
    print("ordinary news")
    def leave(result, model=True):
        pathlib.Path("{RESULT}").write_text(json.dumps(result))
        if model:
            pathlib.Path("artifacts/m.onnx").write_bytes(b"model")
"""


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Environment:
    """A real, nearly empty environment."""
    root = tmp_path_factory.mktemp("tools")
    spec = a_toolchain(name="standin")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DEPLOYKIT_TOOLCHAINS", str(root))
        lend_pip(patch)
        state = install(spec, lambda line: None)
    return Environment(spec=spec, path=state.path)


@pytest.fixture
def package(tmp_path: Path) -> Path:
    for folder in ("scripts", "config", "model", "logs", "artifacts"):
        (tmp_path / folder).mkdir()
    (tmp_path / "config/quantize.json").write_text(json.dumps({"source": "model/x.onnx", "output": "artifacts/m.onnx"}))
    return tmp_path


def run(environment: Environment, package: Path, body: str, timeout: float = 60.0) -> str:
    (package / "scripts/quantize.py").write_text(textwrap.dedent(WRITE) + textwrap.dedent(body))
    news: list[str] = []
    done = run_quark(environment, package, recipe="config/quantize.json", progress=news.append, timeout=timeout)
    assert any("ordinary news" in line for line in news)
    assert "ordinary news" in done.log.read_text()
    return done.output


@pytest.mark.parametrize("end", ["", "; sys.exit(3)", "; print('[QUARK-WARNING]: slow')"])
def test_a_model_with_a_result_is_success_at_any_status(environment: Environment, package: Path, end: str) -> None:
    assert run(environment, package, f"leave({{'ok': True}}){end}") == "artifacts/m.onnx"


@each_row(
    ("body", "told"),
    ("leave({'ok': True}, model=False)", "status 0"),
    ("sys.exit(0)", "left no result"),
    ("leave({'ok': False, 'error': 'ValueError: open subgraph'})", "open subgraph"),
    ("pathlib.Path('artifacts/m.onnx').write_bytes(b'x')", "left no result"),
    (f"pathlib.Path('{RESULT}').write_text('[1, 2')", "left no result"),
    ("import os; os.abort()", "status -6"),
    (
        "print('No data in the input calibration data reader'); "
        "leave({'ok': False, 'error': 'RuntimeError: wrote no model'}, model=False)",
        "other input names or shapes",
    ),
)
def test_an_end_without_a_model_is_a_failure(environment: Environment, package: Path, body: str, told: str) -> None:
    with pytest.raises(ToolError, match="made no model") as failed:
        run(environment, package, body)
    assert told in failed.value.why and str(environment.path / "logs") in failed.value.next


@each_row(
    ("said", "why", "next_"),
    ("ERROR]: Encountered an OSError: no space left", "no space left", "log"),
    ("CRITICAL]: Encountered an OSError: no space left", "no space left", "log"),
    ("ERROR]: Unable to allocate 463. GiB for an array with shape (9,)", "equalization", "include_cle=false"),
    ("ERROR]: array is too big; `arr.size` is larger", "equalization", "include_cle=false"),
    ("ERROR]: list index out of range", "equalization", "include_cle=false"),
    ("ERROR]: axis 3 is out of bounds for array of dimension 3", "equalization", "include_cle=false"),
    ("ERROR]: Maximum allowed size exceeded\x1b[0m", "exceeded)", "include_cle=false"),
)
def test_what_quark_logs_as_an_error_is_one_although_a_model_is_there(
    environment: Environment, package: Path, said: str, why: str, next_: str
) -> None:
    """Fine-tuning that fails is logged, and the model comes without it."""
    with pytest.raises(ToolError, match="made a model and logged an error") as failed:
        run(environment, package, f"""print("2026-11-22 [QUARK-{said}"); leave({{'ok': True}})""")
    assert why in failed.value.why and next_ in failed.value.next


def test_a_result_of_an_earlier_run_does_not_count(environment: Environment, package: Path) -> None:
    run(environment, package, "leave({'ok': True})")
    with pytest.raises(ToolError, match="made no model"):
        run(environment, package, "pass")


def test_a_hung_run_is_ended(environment: Environment, package: Path) -> None:
    with pytest.raises(ToolError, match="longer than its time limit"):
        run(environment, package, "sys.stdout.flush(); import time; time.sleep(600)", timeout=0.3)


TOOL = "quark==0.13"
ASKED: dict[str, Any] = {"output": "m.onnx", "calibration": {"kind": "arrays"}}


@pytest.fixture
def trial(tmp_path: Path) -> Path:
    for name, content in (("model/m.onnx", "model"), ("calibration/a.npy", "data")):
        path = tmp_path / "trial" / name
        path.parent.mkdir(parents=True)
        path.write_text(content)
    return tmp_path / "trial"


@pytest.fixture
def made(tmp_path: Path) -> dict[str, Path]:
    outputs = tmp_path / "outputs"
    (outputs / "baseline").mkdir(parents=True)
    (outputs / "baseline" / "0.npz").write_text("values")
    (tmp_path / "quantized.onnx").write_text("quantized")
    return {"model": tmp_path / "quantized.onnx", "compared": outputs}


def test_the_same_run_takes_it_and_no_other(tmp_path: Path, trial: Path, made: dict[str, Path]) -> None:
    keep_run(run_key(TOOL, trial, ASKED), made)
    wanted = {"model": tmp_path / "here" / "m.onnx", "compared": tmp_path / "there"}
    assert take_run(run_key(TOOL, trial, ASKED), wanted)
    assert wanted["model"].read_text() == "quantized"
    assert (wanted["compared"] / "baseline" / "0.npz").read_text() == "values"
    other = {**ASKED, "precision": "vint8"}
    assert not take_run(run_key(TOOL, trial, other), wanted)
    keep_run(run_key(TOOL, trial, other), {"model": made["model"]})
    assert not take_run(run_key(TOOL, trial, other), wanted), "it wants more than was kept"
    (trial / "calibration" / "a.npy").write_text("other")
    assert not take_run(run_key(TOOL, trial, ASKED), wanted)
    reader = {**ASKED, "calibration": {"kind": "reader"}}  # whose data nobody knows
    keep_run(run_key(TOOL, trial, reader), made)
    assert not take_run(run_key(TOOL, trial, reader), made)
