"""The fleet on a real Dask cluster of worker processes on this machine."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from deploykit import api
from deploykit.fleet.results import CellVerdict, Results

pytestmark = pytest.mark.heavy


@pytest.fixture(scope="module")
def distributed() -> Any:
    """Imported when it is needed: all that collect these tests would wait for it."""
    return pytest.importorskip("distributed")


def digests(results: Results) -> dict[str, Any]:
    return {cell.cell: cell.outcome.get("digest") for cell in results.cells}


@pytest.fixture(scope="module")
def cluster(distributed: Any) -> Iterator[Any]:
    """Two workers of one thread each, and a third that has too little memory for any model."""
    with distributed.LocalCluster(
        n_workers=2, threads_per_worker=1, processes=True, memory_limit="4GiB", dashboard_address="127.0.0.1:0"
    ) as made:
        yield made


def test_a_killed_worker_and_one_with_too_little_memory_cost_nothing(
    distributed: Any, cluster: Any, fleet: Path, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    address = str(cluster.scheduler_address).removeprefix("tcp://")
    with distributed.Client(cluster.scheduler_address, set_as_default=False) as client:
        pids = client.run(os.getpid)
        argv = [sys.executable, "-m", "distributed.cli.dask_worker", str(cluster.scheduler_address), "--nthreads", "1"]
        small = subprocess.Popen([*argv, "--memory-limit", "200MiB", "--no-dashboard"], stderr=subprocess.DEVNULL)
        request.addfinalizer(small.wait)
        request.addfinalizer(small.kill)
        client.wait_for_workers(3, timeout=120)
        (little,) = {name for name in client.scheduler_info(-1)["workers"] if name not in pids}
        victim = min(pids.values())
        begun = threading.Event()
        killed: list[int] = []

        def kill_one() -> None:
            begun.wait(300)
            time.sleep(1)
            os.kill(victim, signal.SIGKILL)
            killed.append(victim)

        killer = threading.Thread(target=kill_one)
        killer.start()
        used: set[str] = set()

        def tell(cell: str, line: str) -> None:
            used.add(f"{cell} {line}")
            if line == "started":
                begun.set()

        results = api.matrix(fleet, out=tmp_path / "there", executor=f"dask://{address}", progress=tell)
        killer.join()
        ran_on_little = client.run(_cells_made, workers=[little])
    assert killed == [victim]
    assert {cell.cell: cell.error for cell in results.cells} == {cell: {} for cell in digests(results)}
    assert {cell.verdict for cell in results.cells} == {CellVerdict.NOT_JUDGED}
    assert ran_on_little == {little: 0}
    here = api.matrix(fleet, out=tmp_path / "here", processes=1)
    assert digests(results) == digests(here)
    for cell in results.cells:
        assert api.verify(tmp_path / "there" / "cells" / cell.cell / "package").ok
    assert [path.name for path in (tmp_path / "there" / "cells" / "cnn").iterdir() if "deploykit-" in path.name] == []


def _cells_made(dask_worker: Any) -> int:
    """How many tasks of ours a worker has done; Dask gives the worker to an argument of this name."""
    return sum("make_on_worker" in str(key) for key in dask_worker.state.tasks)
