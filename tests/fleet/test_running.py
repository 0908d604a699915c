import json
import sys
from pathlib import Path
from unittest.mock import Mock
from xml.etree import ElementTree

import pytest

from deploykit import api
from deploykit.cli import cli
from deploykit.cli.frame import run
from deploykit.errors import InputError
from deploykit.fleet.cluster import packed, unpack
from deploykit.fleet.pool import batches_of, run_batch
from deploykit.fleet.results import CellVerdict, Results, read_result, read_results
from deploykit.fleet.running import select
from deploykit.model.load import load_model


def verdicts(results: Results) -> dict[str, CellVerdict]:
    return {cell.cell: cell.verdict for cell in results.cells}


@pytest.mark.usefixtures("in_this_process")
def test_a_fleet_is_packaged_and_what_is_the_same_is_kept(
    fleet: Path, made: Path, made_once: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    read = Mock(wraps=load_model)
    monkeypatch.setattr("deploykit.fleet.cells.load_model", read)
    out, first = made, read_results(made)
    assert set(verdicts(first)) == {"cnn/phone", "cnn/old", "mlp/phone", "mlp/old"}
    assert set(verdicts(first).values()) == {CellVerdict.NOT_JUDGED} and first.kept == frozenset()
    for cell in first.cells:
        package = out / "cells" / cell.cell / "package"
        assert api.verify(package, expect_digest=str(cell.outcome["digest"])).ok
        assert cell.bytes > 1000
    # Counted in ticks of the system, of which a small cell that shares its work may take none.
    assert sum(cell.processor_seconds for cell in first.cells) > 0

    # One that is damaged and one whose input changed are made again, the others are not.
    (out / "cells" / "cnn" / "old" / "package" / "manifest.json").write_text("{}", "utf-8")
    fleet.write_text(fleet.read_text("utf-8") + '\n[targets.old.options]\nvtcm_mb = "4"\n', "utf-8")
    assert run(cli, ["matrix", str(fleet), "-o", str(out), "--processes", "1"]) == 1
    assert read.call_count == 2  # once for all cells of each
    shown, third = capsys.readouterr(), read_results(out)
    assert "cnn/phone  not judged" in shown.out and "cnn/old" in shown.err
    assert third.kept == {"cnn/phone", "mlp/phone"}
    # What stands there is no package of ours: it is not replaced.
    assert verdicts(third)["cnn/old"] is CellVerdict.FAILED
    assert "not everything in it was written by deploykit" in third.cells[1].why
    assert third.exit_status == 1
    assert run(cli, ["matrix", str(fleet), "--diff", str(made_once), "-o", str(out), "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["same"] == 3
    suites = ElementTree.parse(out / "junit.xml").getroot()
    assert [(suite.get("name"), suite.get("errors")) for suite in suites] == [("cnn", "1"), ("mlp", "0")]
    page = (out / "matrix.html").read_text("utf-8")
    assert 'href="cells/cnn/phone/package/report.html"' in page


@pytest.mark.usefixtures("in_this_process")
def test_a_cell_that_another_run_made_meanwhile_is_taken(fleet: Path, made: Path) -> None:
    known, manifest = read_result(made, "cnn/phone"), made / "cells/cnn/phone/package/manifest.json"
    assert known is not None
    before = manifest.stat().st_mtime_ns
    (batch,) = batches_of((cell, known.key) for cell in select(fleet, only=["cnn/phone"]))
    assert list(run_batch(batch, made, limit=600.0, tell=lambda _cell, _line: None)) == [known]
    assert manifest.stat().st_mtime_ns == before


def test_a_broken_model_and_an_unknown_device_cost_their_own_cells_only(fleet: Path, tmp_path: Path) -> None:
    (fleet.parent / "broken.onnx").write_bytes(b"\xff" * 100)
    text = fleet.read_text("utf-8")
    text += '[models.broken]\npath = "broken.onnx"\n'
    text += '[targets.moon]\ndevice = "moonbase-9"\n[[matrix.exclude]]\nmodel = "mlp"\n'
    fleet.write_text(text, "utf-8")
    results = api.matrix(fleet, out=tmp_path / "out", processes=2, only=["cnn/moon", "*/phone"])
    found = verdicts(results)
    assert found == {
        "cnn/phone": CellVerdict.NOT_JUDGED,
        "cnn/moon": CellVerdict.FAILED,
        "broken/phone": CellVerdict.FAILED,
    }
    errors = {cell.cell: cell.exit_status for cell in results.cells if cell.error}
    assert errors == {"cnn/moon": 4, "broken/phone": 3}
    assert results.exit_status == 1


def test_a_process_that_dies_or_hangs_costs_the_cell_it_was_at(
    fleet: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first cell breaks its process; the next one is made in a new process and takes longer than it may."""
    stand_in = tmp_path / "python"
    stand_in.write_text(
        f"""#!{sys.executable}
import json, os, sys
cells = json.load(sys.stdin)
if cells[0]["id"] == "cnn/phone":
    print(json.dumps({{"cell": cells[0]["id"], "state": "started"}}), flush=True)
    print("about to break", flush=True)
    os.abort()
import subprocess
sys.exit(subprocess.run([{sys.executable!r}, *sys.argv[1:]], input=json.dumps(cells).encode()).returncode)
""",
        "utf-8",
    )
    stand_in.chmod(0o755)
    monkeypatch.setattr("deploykit.fleet.pool.sys.executable", str(stand_in))
    (batch,) = batches_of((cell, "key") for cell in select(fleet, only=["cnn"]))
    made = list(run_batch(batch, tmp_path / "out", limit=0.001, tell=lambda _cell, _line: None))
    assert [result.verdict for result in made] == [CellVerdict.FAILED] * 2
    assert "signal 6" in made[0].why and made[0].error["why"] == "about to break"
    assert "took longer than 0.001 seconds" in made[1].why
    kept = read_result(tmp_path / "out", "cnn/phone")
    assert kept is not None and kept.error == made[0].error


def test_only_what_differs_in_its_target_shares_a_process(fleet: Path) -> None:
    cells = select(fleet)
    assert [len(batch) for batch in batches_of((cell, "") for cell in cells)] == [2, 2]


def test_what_a_worker_sends_is_checked(made_once: Path, tmp_path: Path) -> None:
    data, first = packed(made_once, "cnn/phone"), read_result(made_once, "cnn/phone")
    unpack(data, tmp_path / "b", "cnn/phone")
    assert api.verify(tmp_path / "b" / "cells" / "cnn" / "phone" / "package").ok
    assert unpack(data, tmp_path / "b", "cnn/phone").outcome["digest"] == (first and first.outcome["digest"])
    with pytest.raises(InputError):
        unpack(data, tmp_path / "c", "cnn/old")
    with pytest.raises(InputError):
        unpack(data[: len(data) // 2], tmp_path / "c", "cnn/phone")
    assert not (tmp_path / "c" / "cells" / "cnn" / "old" / "package").exists()
