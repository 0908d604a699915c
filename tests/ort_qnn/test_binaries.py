"""What was compiled, read back: a DLC without a converter, context binaries, and every damage refused."""

import gzip
import json
import shutil
import signal
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx
import pytest
from click.testing import CliRunner
from msgspec.structs import replace
from onnx import helper

import deploykit
from deploykit.cli import cli
from deploykit.errors import InputError, ToolError, UnknownTargetError, UsageError
from deploykit.system.processes import ProgramEnd, run
from deploykit_ort_qnn.compiler import hosts as workers
from deploykit_ort_qnn.compiler.contexts import inspect_context, judged
from deploykit_ort_qnn.compiler.dlc import DLC, Compared, compare_dlc, read_dlc, with_check_sums
from deploykit_ort_qnn.rules.compiled import DLC_RULES as RULES
from deploykit_ort_qnn.rules.compiled import DlcScope
from rule_cases import check_pairs
from tables import each_row
from told import check_told

WRITTEN = DlcScope(qairt="2.51.0", metadata="2.3.0", compared=(Compared(tensor="x", meant="uint16", found="uint16"),))
CASES: dict[str, tuple[Any, Any]] = {"QNN299": (WRITTEN, DlcScope())}


def test_the_rule_fires_and_stays_silent() -> None:
    check_pairs(CASES, RULES)
    for changed, words in (
        ({"why": "the provider refuses it"}, "no DLC was written: the provider refuses it"),
        ({"compared": (*WRITTEN.compared, Compared(tensor="y", meant="uint16", found="uint8"))}, "1 of 2 tensors"),
        ({"compared": (Compared(tensor="y", meant="int8", found="int8", grid=False),)}, "grid: y"),
    ):
        (found,) = RULES["QNN299"].run(replace(WRITTEN, **changed))
        assert found.blocks and words in found.message


def test_the_package_holds_it_and_verifies_it(compiled_package: Path) -> None:
    report = deploykit.verify(compiled_package)
    (check,) = (check for check in report.checks if check.id == "dlc-types")
    assert report.ok and check.detail == "metadata 2.3.0, 23 tensors compared, 0 differ"
    manifest = json.loads((compiled_package / "manifest.json").read_text("utf-8"))
    assert manifest["record"]["dlc"] == {"metadata": "2.3.0", "compared": 23, "wrong": []}
    assert DLC in manifest["files"]


def test_another_type_and_another_grid_are_seen(compiled_package: Path) -> None:
    model, dlc = onnx.load(compiled_package / "model/model.onnx"), read_dlc(compiled_package / DLC)
    tensor = "/relu/Relu_output_0_QuantizeLinear"
    assert all(row.ok for row in compare_dlc(model, dlc))
    narrow = replace(dlc, tensors={**dlc.tensors, tensor: replace(dlc.tensors[tensor], dtype="uint8")})
    (row,) = (row for row in compare_dlc(model, narrow) if not row.ok)
    assert (row.tensor, row.meant, row.found) == (tensor, "uint16", "uint8")
    found = dlc.tensors[tensor]
    signed = replace(found, dtype="int16", zero_points=tuple(zero - 32768 for zero in found.zero_points))
    (row,) = (
        row for row in compare_dlc(model, replace(dlc, tensors={**dlc.tensors, tensor: signed})) if row.tensor == tensor
    )
    assert row.grid, "the same grid, whatever the sign"
    more = replace(found, zero_points=found.zero_points * 2)
    assert not all(row.ok for row in compare_dlc(model, replace(dlc, tensors={**dlc.tensors, tensor: more})))
    close = [replace(found, scales=(found.scales[0] * more,)) for more in (1 + 1.5e-5, 1 + 1.7e-5)]
    near = [compare_dlc(model, replace(dlc, tensors={**dlc.tensors, tensor: one})) for one in close]
    assert [all(row.ok for row in rows) for rows in near] == [True, False], "a step may be rounded"
    moved = replace(dlc.tensors[tensor], zero_points=(7,))
    (row,) = (row for row in compare_dlc(model, replace(dlc, tensors={**dlc.tensors, tensor: moved})) if not row.ok)
    assert (row.tensor, row.found, row.grid) == (tensor, "uint16", False)


def damaged(source: Path, target: Path, change: Callable[[dict[str, bytes]], None]) -> Path:
    with zipfile.ZipFile(source) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    change(members)
    with zipfile.ZipFile(target, "w") as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    return target


@each_row(
    "change",
    lambda members: members.pop("model"),
    lambda members: members.update(model=b"short"),
    lambda members: members.update(model=members["model"].replace(b"NETD", b"DTEN")),
    lambda members: members.update(model=members["model"][:200]),
    lambda members: members.update(model=members["model"][:8] + struct.pack("<I", 1 << 31) + members["model"][12:]),
)
def test_a_damaged_file_is_an_error_and_no_guess(compiled_package: Path, tmp_path: Path, change: Any) -> None:
    with pytest.raises(InputError, match="not a DLC of a known form"):
        read_dlc(damaged(compiled_package / DLC, tmp_path / "m.dlc", change))


def test_names_and_what_is_said_of_the_file_are_read(compiled_package: Path, tmp_path: Path) -> None:
    def change(members: dict[str, bytes]) -> None:
        members["model"] = members["model"].replace(b"/relu/", "/r\u00e9u/".encode())

    dlc, other = read_dlc(compiled_package / DLC), read_dlc(damaged(compiled_package / DLC, tmp_path / "m.dlc", change))
    assert (dlc.metadata, dlc.writer, dlc.graphs) == ("2.3.0", "2.51.0", 1)
    assert dlc.operators[0] == ("input_QuantizeLinear", "Quantize") and dlc.tensors["logits"].dims == (1, 10)
    assert (
        {name.replace("/r\u00e9u/", "/relu/") for name in other.tensors} == dlc.tensors.keys() != other.tensors.keys()
    )
    with_check_sums(compiled_package / DLC, tmp_path / "n.dlc")
    name = next(one for one in zipfile.ZipFile(tmp_path / "n.dlc").namelist() if one.startswith("dlc.metadata"))

    def later(members: dict[str, bytes]) -> None:
        assert b"1980-01-01" in members[name]
        members[name] = members[name].replace(b"1980-01-01", b"2026-02-03")

    with_check_sums(damaged(compiled_package / DLC, tmp_path / "later.dlc", later), tmp_path / "same.dlc")
    assert (tmp_path / "same.dlc").read_bytes() == (tmp_path / "n.dlc").read_bytes(), "whenever it was written"
    assert (tmp_path / "n.dlc").read_bytes() == (compiled_package / DLC).read_bytes(), "they are right already"


def test_what_is_no_zip_is_refused(tmp_path: Path) -> None:
    (tmp_path / "m.dlc").write_bytes(b"PK no zip")
    with pytest.raises(InputError):
        read_dlc(tmp_path / "m.dlc")
    with pytest.raises(InputError):
        with_check_sums(tmp_path / "m.dlc", tmp_path / "n.dlc")


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


def test_a_graph_above_the_limit_names_the_parts() -> None:
    memory = {"spill_fill": 1 << 40, "constants": 5 << 30, "op_data": 1 << 20, "shared_weights": 0}
    graph = judged({"name": "g", "memory": memory}, "v69", None)
    assert graph["fits"]["limit_bytes"] == 2 << 30 and graph["fits"]["parts"] == 3 and not graph["fits"]["ok"]
    assert judged({"name": "g", "memory": memory}, "v69", 5121)["fits"]["ok"], "its own record, just as large, outranks"
    assert judged({"name": "g", "memory": memory}, "", None)["fits"]["ok"] is None
    for use in memory.keys() - {"spill_fill"}:  # where one of them is not told, the sum is not
        told = {name: size for name, size in memory.items() if name != use}
        assert judged({"name": "g", "memory": told}, "v69", None)["fits"] is None, use


def test_binaries_of_older_releases(tmp_path: Path) -> None:
    """Before 2.28 the description has another layout and no chip; the settings inside still name the architecture."""
    told = dict[str, list[str]]()
    for release, status in (("2.25.0", 0), ("2.37.1", 1)):
        binary = tmp_path / "c.bin"
        binary.write_bytes(gzip.decompress((CONTEXTS / f"cnn_bnfold-{release}.bin.gz").read_bytes()))
        told[release] = json.dumps({**inspect_context(binary), "devices": []}, indent=1).splitlines()
        answer = call("compat", "binary", str(binary), "--runtime", "2.36.1", "--target", "sm8650")
        loading = [runtime["release"] for runtime in answer[1]["runtimes"] if runtime["status"] == "supported"]
        assert answer[0] == status and loading[0] == release and "2.51.0" in loading
    check_told(Path(__file__).with_name("binaries.told"), told)


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
