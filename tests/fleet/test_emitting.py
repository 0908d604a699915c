"""What other engines are given of a fleet, and cells that run on devices."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from check_jsonschema import main as check_jsonschema
from click.testing import CliRunner

from deploykit import api
from deploykit.errors import UsageError
from deploykit.fleet.results import read_results


@pytest.mark.parametrize(
    ("engine", "schema"), [("github-actions", "vendor.github-workflows"), ("gitlab", "vendor.gitlab-ci")]
)
def test_the_engine_takes_it(fleet: Path, tmp_path: Path, engine: str, schema: str) -> None:
    path = tmp_path / "emitted.yml"
    path.write_text(api.matrix_emit(engine, fleet), "utf-8")
    done = CliRunner().invoke(check_jsonschema, ["--builtin-schema", schema, str(path)])
    assert done.exit_code == 0, done.output
    assert "mlp/old" in path.read_text("utf-8")


def test_more_cells_than_an_engine_takes_are_refused(fleet: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from deploykit.fleet.running import emit, select

    many = select(fleet) * 65
    assert emit("github-actions", fleet, many[:256])
    with pytest.raises(UsageError) as caught:
        emit("github-actions", fleet, many[:257])
    assert "257 cells are more than the 256 jobs" in caught.value.what
    with pytest.raises(UsageError):
        emit("jenkins", fleet, many)


@pytest.mark.heavy
def test_snakemake_runs_the_emitted_file_and_the_results_are_the_same(fleet: Path, tmp_path: Path) -> None:
    place = tmp_path / "snakemake"
    subprocess.run([sys.executable, "-m", "venv", str(place)], check=True)
    subprocess.run([place / "bin" / "pip", "install", "-q", "snakemake>=9,<10"], check=True)
    (tmp_path / "Snakefile").write_text(api.matrix_emit("snakemake", fleet), "utf-8")
    argv = [str(place / "bin" / "snakemake"), "--cores", "2", "--config", "out=elsewhere"]
    argv.append(f"deploykit={sys.executable} -m deploykit")
    done = subprocess.run(argv, cwd=tmp_path, capture_output=True, text=True, check=False, env={**os.environ})
    assert done.returncode == 0, done.stderr[-2000:]

    here = api.matrix(fleet, out=tmp_path / "here", processes=1)
    there = read_results(tmp_path / "elsewhere")
    assert [(cell.cell, cell.outcome["digest"]) for cell in there.cells] == [
        (cell.cell, cell.outcome["digest"]) for cell in here.cells
    ]
    assert there.kept == {cell.cell for cell in there.cells}  # the last job made none anew
    again = subprocess.run([*argv, "--dry-run"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert "Nothing to be done" in again.stdout + again.stderr
    assert json.loads((tmp_path / "elsewhere" / "matrix.json").read_text("utf-8"))["summary"]["not judged"] == 4
