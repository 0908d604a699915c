"""Binaries and LPBQ from the command line."""

import gzip
import json
import shutil
import signal
from pathlib import Path
from typing import Any

import onnx
import pytest
from click.testing import CliRunner
from onnx import helper

from deploykit.answers.binaries import BinaryReport, Runtime
from deploykit.cli import cli, frame
from deploykit.cli.frame import run as run_command
from deploykit.errors import InputError, ToolError, UnknownTargetError, UsageError
from deploykit.system.processes import ProgramEnd, run
from deploykit.tables.capabilities import Status
from deploykit_ort_qnn.compiler import hosts as workers
from deploykit_ort_qnn.compiler.contexts import inspect_context, judged
from tables import each_row

CONTEXTS = Path(__file__).parents[1] / "data" / "contexts"


@pytest.fixture(scope="module")
def compiled(compiled_package: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A context model with its binary beside it, and one with the binary inside."""
    root = tmp_path_factory.mktemp("compiled")
    for path in (compiled_package / "artifacts").glob("model_ctx*"):
        shutil.copy(path, root)
    shutil.copy(compiled_package / "model" / "model.onnx", root)
    model = onnx.load(root / "model_ctx.onnx")
    (node,) = model.graph.node
    settings = {"embed_mode": 1, "ep_cache_context": (root / "model_ctx_qnn.bin").read_bytes()}
    kept = [one for one in node.attribute if one.name not in settings]
    del node.attribute[:]
    node.attribute.extend([*kept, *(helper.make_attribute(*setting) for setting in settings.items())])
    onnx.save(model, root / "inside.onnx")
    return root


def call(*arguments: str) -> tuple[int, Any]:
    result = CliRunner().invoke(cli, [*arguments, "--json"], standalone_mode=False)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return int(result.return_value or 0), json.loads(result.stdout)


@pytest.mark.parametrize("file", ["model_ctx_qnn.bin", "model_ctx.onnx", "inside.onnx"])
def test_a_context_tells_its_maker_and_chip(compiled: Path, file: str) -> None:
    status, info = call("explain", str(compiled / file))
    assert status == 0 and info["release"] == "2.51.0" and info["soc_model"] == 57 and info["arch"] == "v75"
    assert info["carrier"] == "onnxruntime-qnn 2.7.0"
    assert "sm8650" in info["devices"] and info["graph_count"] == 1
    (graph,) = info["graphs"]
    assert [(t["name"], t["dtype"], t["shape"]) for t in graph["inputs"]] == [("input", "float32", [1, 3, 16, 16])]
    assert [t["name"] for t in graph["outputs"]] == ["logits"]
    if file.endswith(".onnx"):
        assert info["onnx"]["embedded"] == (file == "inside.onnx")


def test_whether_it_loads_is_answered_with_a_confidence(compiled: Path) -> None:
    told = CliRunner().invoke(cli, ["explain", str(compiled / "model_ctx_qnn.bin")]).stdout
    assert "one graph may have" in told and "split it" not in told
    status, info = call("explain", str(compiled / "model_ctx.onnx"), "--sdk", "2.51.0", "--target", "sm8650")
    assert status == 0 and info["loads"][0]["status"] == "supported" and info["loads"][0]["confidence"]
    status, info = call("explain", str(compiled / "model_ctx.onnx"), "--sdk", "2.48.40", "--target", "sm8650")
    assert status == 1 and info["loads"][0]["status"] == "unsupported"


def test_a_graph_above_the_limit_names_the_parts_and_fails(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    memory = {"spill_fill": 1 << 40, "constants": 5 << 30, "op_data": 1 << 20, "shared_weights": 0}
    graph = judged({"name": "g", "memory": memory}, "v69", None)
    assert graph["fits"]["limit_bytes"] == 2 << 30 and graph["fits"]["parts"] == 3 and not graph["fits"]["ok"]
    assert judged({"name": "g", "memory": memory}, "v69", 8192)["fits"]["ok"], "the binary's own record outranks"
    assert judged({"name": "g", "memory": memory}, "", None)["fits"]["ok"] is None
    assert judged({"name": "g", "memory": {"spill_fill": 0}}, "v69", None)["fits"] is None
    told = {"file": "c.bin", "maker": "QAIRT", "release": "2.1", "build": "b", "soc_model": None, "graph_count": 1}
    told |= dict.fromkeys(("core_api", "backend_api", "blob_version"), "1.0")
    info = {**told, "graphs": [{**graph, "inputs": [], "outputs": []}]}
    report = BinaryReport(info=info, loads=(), runtimes=(Runtime(release="2.1", status=Status.UNSUPPORTED),))
    monkeypatch.setattr("deploykit.answers.binaries.report_binary", lambda *_, **__: report)
    assert report.refused and run_command(cli, ["compat", "binary", "c.bin"]) == 1
    said = capsys.readouterr().out
    assert "a chip that it does not name" in said and "split it into 3 graphs or more" in said
    assert said.rstrip().endswith("none of the releases in the tables loads it")


@each_row(("release", "blob", "soc_model", "arch"), ("2.25.0", "3.2.0", None, "v73"), ("2.37.1", "3.3.3", 60, "v73"))
def test_binaries_of_older_releases(tmp_path: Path, release: str, blob: str, soc_model: int | None, arch: str) -> None:
    """Before 2.28 the description has another layout and no chip; the settings inside still name the architecture."""
    binary = tmp_path / "c.bin"
    binary.write_bytes(gzip.decompress((CONTEXTS / f"cnn_bnfold-{release}.bin.gz").read_bytes()))
    status, info = call("compat", "binary", str(binary), "--runtime", "2.36.1", "--target", "sm8650")
    assert (info["release"], info["blob_version"]) == (release, blob)
    assert (info["soc_model"], info["arch"]) == (soc_model, arch)
    (graph,) = info["graphs"]
    assert [(t["name"], t["shape"]) for t in graph["inputs"]] == [("input", [1, 3, 16, 16])]
    assert status == int(release == "2.37.1")
    loading = [runtime["release"] for runtime in info["runtimes"] if runtime["status"] == "supported"]
    assert loading[0] == release and "2.51.0" in loading


def test_a_package_names_the_release_inside(compiled: Path) -> None:
    binary = str(compiled / "model_ctx_qnn.bin")
    assert call("compat", "binary", binary, "--runtime", "onnxruntime-qnn 2.7.0")[0] == 0
    assert call("compat", "binary", binary, "--runtime", "onnxruntime-qnn 2.5.0")[0] == 1
    with pytest.raises(UnknownTargetError, match="onnxruntime-qnn 9"):
        call("compat", "binary", binary, "--runtime", "onnxruntime-qnn 9")
    with pytest.raises(UsageError, match="which binary"):
        call("compat", "binary", "--runtime", "2.33")


def test_what_is_no_context_is_an_input_error(compiled: Path, tmp_path: Path) -> None:
    (tmp_path / "x.bin").write_bytes(b"\x02" * 5000)
    with pytest.raises(InputError, match="not readable as a context binary"):
        inspect_context(tmp_path / "x.bin")
    cut = tmp_path / "cut.bin"
    cut.write_bytes((compiled / "model_ctx_qnn.bin").read_bytes()[:20000])
    with pytest.raises(InputError, match="not readable as a context binary"):
        inspect_context(cut)
    with pytest.raises(InputError, match="holds no EPContext"):
        inspect_context(compiled / "model.onnx")
    shutil.copy(compiled / "model_ctx.onnx", tmp_path / "alone.onnx")
    with pytest.raises(InputError, match="is not beside it"):
        inspect_context(tmp_path / "alone.onnx")
    with pytest.raises(InputError, match="no such file"):
        inspect_context(tmp_path / "nothing.bin")


class Deaths:
    """A worker that dies of a signal the first times it is started, in the middle of its work."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, times: int, *, timed_out: bool = False) -> None:
        self.left, self.started, self.timed_out = times, 0, timed_out
        monkeypatch.setattr(workers, "run", self.run)

    def run(self, argv: Any, *, on_line: Any, **given: Any) -> ProgramEnd:
        self.started += 1
        if self.left <= 0:
            return run(argv, on_line=on_line, **given)
        self.left -= 1
        on_line("deploykit-progress: loading the library")
        on_line("deploykit-progress: having the library read the binary")
        code = -signal.SIGKILL if self.timed_out else -signal.SIGSEGV
        return ProgramEnd(argv=tuple(argv), returncode=code, tail=(), seconds=1.0, timed_out=self.timed_out)


@pytest.mark.usefixtures("every_compilation_runs")
def test_a_crash_is_tried_again_and_two_blame_no_file(compiled: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    deaths = Deaths(monkeypatch, 1)
    assert inspect_context(compiled / "model_ctx_qnn.bin")["soc_model"] == 57 and deaths.started == 2
    told = "while having the library read the binary"
    for timed_out, started, why in (
        (False, 2, f"the reading process died of SIGSEGV {told}, and so it did when it was tried again"),
        (True, 1, f"not finished after 120 s, the time limit {told}"),
    ):
        deaths = Deaths(monkeypatch, 9, timed_out=timed_out)
        with pytest.raises(ToolError) as caught:
            inspect_context(compiled / "model_ctx_qnn.bin")
        assert (deaths.started, caught.value.why) == (started, why)
        assert "not readable as a context binary" not in str(caught.value)


@pytest.mark.heavy
@pytest.mark.usefixtures("every_compilation_runs")
@pytest.mark.parametrize(
    ("does", "said"),
    [
        ("import time; time.sleep(600)", "not finished after 5 s, the time limit while"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", "died of SIGSEGV while reading the description"),
    ],
)
def test_a_library_that_hangs_or_dies_ends_the_command_and_is_told(
    compiled: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], does: str, said: str
) -> None:
    """The worker process itself, in the middle of reading."""
    program = f"""
import sys
from deploykit_ort_qnn.compiler import context_reader, worker
def _info(address):
    {does}
context_reader._info = _info
sys.exit(worker.main(sys.argv[1:]))
"""
    monkeypatch.setattr(workers, "run", lambda argv, **given: run((argv[0], "-c", program, *argv[3:]), **given))
    assert frame.run(cli, ["explain", str(compiled / "model_ctx_qnn.bin"), "--time-limit", "5"]) == 5
    assert said in capsys.readouterr().err
