"""``deploykit inspect`` and ``deploykit lpbq`` from the command line."""

from __future__ import annotations

import json
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from deploykit.cli import cli
from deploykit.errors import InputError, ToolError
from deploykit.system.processes import Completed, run
from deploykit_ort_qnn import workers
from deploykit_ort_qnn.compiler import CompileJob, compile_model
from deploykit_ort_qnn.inspection import inspect_context

AIMET = Path(__file__).parents[1] / "data" / "aimet"


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("compiled")
    shutil.copy(AIMET / "cnn_bnfold/w8a8.qdq.onnx", root / "model.onnx")
    for name, embed in (("beside", False), ("inside", True)):
        job = CompileJob(
            root=root, model="model.onnx", context=f"{name}.onnx", options={"soc_model": "57"}, embed=embed
        )
        assert compile_model(job).ok
    return root


def call(*arguments: str) -> tuple[int, Any]:
    result = CliRunner().invoke(cli, [*arguments, "--json"], standalone_mode=False)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return int(result.return_value or 0), json.loads(result.stdout)


@pytest.mark.parametrize("file", ["beside_qnn.bin", "beside.onnx", "inside.onnx"])
def test_a_context_tells_its_maker_and_chip(compiled: Path, file: str) -> None:
    status, info = call("inspect", str(compiled / file))
    assert status == 0 and info["release"] == "2.51.0" and info["soc_model"] == 57 and info["arch"] == "v75"
    assert info["carrier"] == "onnxruntime-qnn 2.7.0"
    assert "sm8650" in info["devices"] and info["graph_count"] == 1
    (graph,) = info["graphs"]
    assert [(t["name"], t["dtype"], t["shape"]) for t in graph["inputs"]] == [("input", "float32", [1, 3, 16, 16])]
    assert [t["name"] for t in graph["outputs"]] == ["logits"]
    if file.endswith(".onnx"):
        assert info["onnx"]["embedded"] == (file == "inside.onnx")


def test_whether_it_loads_is_answered_with_a_confidence(compiled: Path) -> None:
    status, info = call("inspect", str(compiled / "beside.onnx"), "--sdk", "2.51.0", "--target", "sm8650")
    assert status == 0 and info["loads"][0]["status"] == "supported" and info["loads"][0]["confidence"]
    status, info = call("inspect", str(compiled / "beside.onnx"), "--sdk", "2.48.40", "--target", "sm8650")
    assert status == 1 and info["loads"][0]["status"] == "unsupported"


def test_what_is_no_context_is_an_input_error(compiled: Path, tmp_path: Path) -> None:
    (tmp_path / "x.bin").write_bytes(b"\x02" * 5000)
    with pytest.raises(InputError, match="not readable as a context binary"):
        inspect_context(tmp_path / "x.bin")
    cut = tmp_path / "cut.bin"
    cut.write_bytes((compiled / "beside_qnn.bin").read_bytes()[:20000])
    with pytest.raises(InputError, match="not readable as a context binary"):
        inspect_context(cut)
    with pytest.raises(InputError, match="holds no EPContext"):
        inspect_context(compiled / "model.onnx")
    shutil.copy(compiled / "beside.onnx", tmp_path / "alone.onnx")
    with pytest.raises(InputError, match="is not beside it"):
        inspect_context(tmp_path / "alone.onnx")
    with pytest.raises(InputError, match="no such file"):
        inspect_context(tmp_path / "nothing.bin")


class Deaths:
    """A worker that dies of a signal the first times it is started, in the middle of its work."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, times: int, *, timed_out: bool = False) -> None:
        self.left, self.started, self.timed_out = times, 0, timed_out
        monkeypatch.setattr(workers, "run", self.run)

    def run(self, argv: Any, *, on_line: Any, **given: Any) -> Completed:
        self.started += 1
        if self.left <= 0:
            return run(argv, on_line=on_line, **given)
        self.left -= 1
        on_line("deploykit-progress: loading the library")
        on_line("deploykit-progress: having the library read the binary")
        code = -signal.SIGKILL if self.timed_out else -signal.SIGSEGV
        return Completed(argv=tuple(argv), returncode=code, tail=(), seconds=1.0, timed_out=self.timed_out)


def test_a_crash_is_tried_once_again(compiled: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    deaths = Deaths(monkeypatch, 1)
    assert inspect_context(compiled / "beside_qnn.bin").soc_model == 57
    assert deaths.started == 2


def test_two_crashes_name_the_part_and_do_not_blame_the_file(compiled: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    deaths = Deaths(monkeypatch, 9)
    with pytest.raises(ToolError) as caught:
        inspect_context(compiled / "beside_qnn.bin")
    assert deaths.started == 2 and "not readable as a context binary" not in str(caught.value)
    assert caught.value.why == (
        "the reading process died of SIGSEGV while having the library read the binary, and so it did when it was tried "
        "again"
    )


def test_what_does_not_end_is_not_tried_again(compiled: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    deaths = Deaths(monkeypatch, 9, timed_out=True)
    with pytest.raises(ToolError) as caught:
        inspect_context(compiled / "beside_qnn.bin")
    assert deaths.started == 1 and caught.value.why.startswith("not finished after 120 s, the time limit while having")


def test_a_library_that_really_dies_says_in_which_part(compiled: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The worker process itself, killed by a signal in the middle of reading."""
    dying = (
        "import os, signal, sys; from deploykit_ort_qnn import context_reader, worker; "
        "context_reader._info = lambda address: os.kill(os.getpid(), signal.SIGSEGV); "
        "sys.exit(worker.main(sys.argv[1:]))"
    )

    def die(argv: Any, **given: Any) -> Completed:
        return run((argv[0], "-c", dying, *argv[3:]), **given)

    monkeypatch.setattr(workers, "run", die)
    with pytest.raises(ToolError) as caught:
        inspect_context(compiled / "beside_qnn.bin")
    assert "died of SIGSEGV while reading the description that the library gave" in str(caught.value.why)


@pytest.mark.parametrize("option", ["--refine", "--lpbq-refine"])
def test_lpbq_reports_loss_and_path_per_weight(tmp_path: Path, option: str) -> None:
    status, report = call("lpbq", str(AIMET / "mlp/bq-w4a16.qdq.onnx"), "-o", str(tmp_path / "out.onnx"), option)
    assert status == 0 and report["converted"] == 5
    for weight in report["weights"]:
        assert weight["loss"]["refined_sqnr_db"] >= weight["loss"]["sqnr_db"] and weight["path"]
    assert any("bias dropped" in weight["path"] for weight in report["weights"])


def test_lpbq_weights_are_left_alone(tmp_path: Path) -> None:
    _, report = call("lpbq", str(AIMET / "mlp/lpbq-w4a16.qdq.onnx"), "-o", str(tmp_path / "out.onnx"))
    assert {weight["reason"] for weight in report["weights"]} == {"it is LPBQ already"}
