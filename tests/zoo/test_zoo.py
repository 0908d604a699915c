"""The zoo is still as it was recorded: each model is packaged and run again, in W8A16.

With ``DEPLOYKIT_WHOLE=1`` in every column of the page. After a change that is wanted: ``DEPLOYKIT_WRITE_DOCS=1 pytest
-m "" tests/zoo``, with ``-k NAME`` for one model, and then ``tests/lab/zoo_page.py``.
"""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from seeds import WHOLE

from .records import archives, exceptions, keep, recorded
from .rows import SETTINGS, Row

WRITES = bool(os.environ.get("DEPLOYKIT_WRITE_DOCS"))
HOW = "run: DEPLOYKIT_WRITE_DOCS=1 pytest -m '' tests/zoo"
Runs: TypeAlias = dict[str, Future[list[Row]]]
NAMES = [archive.stem for archive in archives()]
ASKED = [one.name for one in SETTINGS if WRITES or WHOLE or one.name in ("qnn-htp 2.33 w8a16", "ort-qnn w8a16")]
SPREAD = 1.5
"""Decibels by which a result may move without the page being wrong: another processor rounds float32 another way."""


def run_all(archive: Path, folder: Path) -> list[Row]:
    command = [sys.executable, "-m", "zoo", str(archive), str(folder), *ASKED]
    environment = {
        **os.environ,
        # No compiler of another release is asked for an opinion: the table is that of the installed one.
        "DEPLOYKIT_TOOLCHAINS": str(folder / "toolchains"),
        "PYTHONPATH": os.pathsep.join([str(Path(__file__).parents[1]), *filter(None, sys.path)]),
    }
    done = subprocess.run(command, env=environment, capture_output=True, encoding="utf-8", check=False)
    assert done.returncode == 0, f"{archive.stem}: {done.stderr[-2000:]}"
    return [Row(**row) for row in json.loads(done.stdout)]


@pytest.fixture(scope="module")
def runs(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runs]:
    """The rows of every model that is asked for, two models at a time; whoever wants one waits for that one only."""
    folder = tmp_path_factory.mktemp("zoo")
    asking = [item for item in request.session.items if isinstance(item, pytest.Function)]
    asked = {item.callspec.params["name"] for item in asking if "runs" in item.fixturenames}
    with ThreadPoolExecutor(2) as pool:
        chosen = [archive for archive in archives() if archive.stem in asked]
        yield {archive.stem: pool.submit(run_all, archive, folder / archive.stem) for archive in chosen}
        pool.shutdown(cancel_futures=True)


@pytest.mark.heavy
@pytest.mark.parametrize("name", NAMES)
def test_every_row_is_as_recorded(name: str, runs: Runs) -> None:
    rows = runs[name].result()
    if WRITES:
        keep([*(row for row in recorded() if row.model != name), *rows])
    for row, was in zip(rows, [row for row in recorded() if row.model == name and row.setting in ASKED], strict=True):
        assert outcome(row) == outcome(was), HOW
        assert dict(row.decibels) == pytest.approx(dict(was.decibels), abs=SPREAD), HOW
        assert dict(row.aimet) == pytest.approx(dict(was.aimet), abs=SPREAD), HOW


def outcome(row: Row) -> tuple[Any, ...]:
    """What must not change with the machine: the answer, its codes and subjects, the route, what was compiled."""
    blocking = sorted(text.split(":")[0] for text in row.blocking)
    return row.model, row.setting, row.packaged, blocking, row.route, row.wholly, row.right


def test_there_is_one_row_for_each_model_and_setting() -> None:
    assert [(row.model, row.setting) for row in recorded()] == [(n, s.name) for n in NAMES for s in SETTINGS]


def test_each_row_that_is_short_of_what_it_should_be_has_its_reason() -> None:
    explained = {(one.model, setting) for one in exceptions() for setting in one.settings}
    assert {(row.model, row.setting) for row in recorded() if not row.good} == explained


def test_most_architectures_go_through_everywhere() -> None:
    """What the project promises of real models: 22 of 25 at least."""
    good = [name for name in NAMES if all(row.good for row in recorded() if row.model == name)]
    assert len(good) * 25 >= len(NAMES) * 22
