"""What is sent to a scheduler and what comes back, on one whose workers are this process."""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from deploykit import api
from deploykit.errors import ToolError, UsageError
from deploykit.fleet.cells import tool_versions
from deploykit.fleet.cluster import address_of
from deploykit.fleet.results import Results

NEEDS = (1 << 30) + 6 * sum(
    (Path(__file__).parents[1] / "data/aimet/cnn" / name).stat().st_size
    for name in ("model.onnx", "w8a16.v1.0.0.encodings")
)
"""Bytes that a worker is asked for by the cells of the smaller model."""


class Scheduler:
    """In the place of the package ``distributed``: ``workers`` by name, with their memory; ``dies`` how often."""

    def __init__(self, workers: dict[str, int]) -> None:
        self.workers, self.dies, self.loop, self.Client = workers, 0, None, self._client
        self.versions: dict[str, Any] = {}
        self.sent: list[bytes] = []
        self.asked: list[tuple[list[str], list[str]]] = []
        self.most = self.waiting = self.cancelled = 0

    def _client(self, address: str, **_: Any) -> "Scheduler":
        if address == "nowhere:1":
            raise OSError("refused")
        return self

    def subscribe_topic(self, _topic: str, handler: Callable[[Any], None]) -> None:
        self._hear = handler

    def run(self, _function: object, *, on_error: str) -> dict[str, Any]:
        assert on_error == "return"
        return {name: self.versions.get(name, tool_versions()) for name in self.workers}

    def scheduler_info(self, _count: int) -> dict[str, Any]:
        return {"workers": {name: {"memory_limit": size, "nthreads": 1} for name, size in self.workers.items()}}

    def scatter(self, data: bytes, **_: Any) -> Any:
        self.sent.append(data)
        return SimpleNamespace(status="finished", data=data)

    def submit(
        self, work: Callable[..., Any], told: Any, names: list[str], contents: list[Any], *more: Any, **how: Any
    ) -> Any:
        self.asked.append((names, how["workers"]))
        self.waiting += 1
        self.most = max(self.most, self.waiting)

        def result() -> Any:
            self.waiting -= 1
            self.dies -= 1
            if self.dies >= 0:
                raise RuntimeError("its worker died")
            return work(told, names, [one.data for one in contents], *more)

        return Task(result)

    def as_completed(self, **_: Any) -> Any:
        return Waiting()

    def get_worker(self) -> Any:
        return SimpleNamespace(log_event=lambda topic, said: self._hear((topic, said)))

    def cancel(self, left: list[Any]) -> None:
        self.cancelled += len(left)

    def close(self) -> None:
        pass


class Task:
    """What becomes of what was sent."""

    def __init__(self, result: Callable[[], Any]) -> None:
        self.result = result


class Waiting(list[Any]):
    """Futures, each given once, also those that come meanwhile."""

    add = list.append

    def __iter__(self) -> Iterator[Any]:
        while self:
            yield self.pop(0)


@pytest.fixture
def scheduler(monkeypatch: pytest.MonkeyPatch) -> Scheduler:
    made = Scheduler({"tcp://a": 0})
    monkeypatch.setitem(sys.modules, "distributed", made)
    return made


def sent_to(file: Path, tmp_path: Path, told: list[str] | None = None, **more: Any) -> Results:
    def tell(cell: str, line: str) -> None:
        if told is not None:
            told.append(f"{cell} {line}")

    return api.matrix(file, out=tmp_path / "out", executor="dask://here:1", progress=tell, **more)


def whys(results: Results) -> dict[str, str]:
    return {cell.cell: " | ".join(filter(None, cell.error.values())) for cell in results.cells}


@pytest.mark.usefixtures("in_this_process")
def test_each_input_is_sent_once_to_the_workers_with_these_versions(
    scheduler: Scheduler, fleet: Path, tmp_path: Path
) -> None:
    scheduler.workers = {"tcp://a": 0, "tcp://b": 0, "tcp://c": 0, "tcp://d": NEEDS - 1}
    scheduler.versions = {"tcp://b": {**tool_versions(), "onnx": "0.1", "numpy": ""}, "tcp://c": OSError("lost")}
    told: list[str] = []
    results = sent_to(fleet, tmp_path, told)
    assert whys(results) == dict.fromkeys(("cnn/phone", "cnn/old", "mlp/phone", "mlp/old"), "")
    assert scheduler.asked == [([f"{name}.encodings", f"{name}.onnx"], ["tcp://a"]) for name in ("cnn", "mlp")]
    assert len(scheduler.sent) == 4 and scheduler.most == 2
    numpy, onnx = (tool_versions()[name] for name in ("numpy", "onnx"))
    assert f"tcp://b not used: numpy missing instead of {numpy}, onnx 0.1 instead of {onnx}" in told
    assert "tcp://c not used: lost" in told
    assert {"cnn/phone started", "mlp/old not judged"} <= set(told)
    for cell in results.cells:
        assert api.verify(tmp_path / "out/cells" / cell.cell / "package", expect_digest=str(cell.outcome["digest"])).ok
    scheduler.workers = {"tcp://d": NEEDS}
    (again,) = sent_to(fleet, tmp_path / "again", only=["cnn/phone"]).cells
    assert again.error == {} and scheduler.asked[-1][1] == ["tcp://d"]


@pytest.mark.usefixtures("in_this_process")
@pytest.mark.parametrize(("dies", "why"), [(2, ""), (3, "the cluster did not make it | RuntimeError: its worker died")])
def test_a_batch_is_begun_three_times(dies: int, why: str, scheduler: Scheduler, fleet: Path, tmp_path: Path) -> None:
    scheduler.dies = dies
    assert whys(sent_to(fleet, tmp_path, only=["cnn/phone"])) == {"cnn/phone": why}
    assert len(scheduler.asked) == 3 and len(scheduler.sent) == 2


@pytest.mark.usefixtures("in_this_process")
def test_after_a_failure_nothing_more_is_begun_where_that_is_asked(
    scheduler: Scheduler, fleet: Path, tmp_path: Path
) -> None:
    scheduler.dies = 9
    results = sent_to(fleet, tmp_path, fail_fast=True)
    assert list(whys(results)) == ["cnn/phone", "cnn/old"] and scheduler.cancelled == 1
    assert results.not_run == ("mlp/phone", "mlp/old")


def test_workers_that_cannot_be_used_are_an_answer(
    scheduler: Scheduler, fleet: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def why() -> str:
        (told,) = whys(sent_to(fleet, tmp_path, only=["cnn/phone"])).values()
        return told

    scheduler.workers = {"tcp://a": NEEDS - 1, "tcp://b": 1 << 29}
    most = "start workers with more memory (--memory-limit), or run it here"
    assert why() == f"no worker has the memory for it | it may take 1.0 GiB; the largest has 1.0 GiB | {most}"
    same = "install the same versions on the workers as here"
    scheduler.versions = {name: {} for name in scheduler.workers}
    assert why().startswith("no worker of the cluster can be used | tcp://a: ") and why().endswith(same)
    scheduler.workers = {}
    assert why() == f"no worker of the cluster can be used | there are none | {same}"
    scheduler.workers, scheduler.versions = {"tcp://a": 0}, {}
    monkeypatch.setattr("deploykit.fleet.cluster._MOST_SENT", 9)
    assert "bytes, more than the 9 that are sent to workers | run this model here" in why()


def test_no_scheduler_and_no_package_of_dask_are_errors(
    scheduler: Scheduler, fleet: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert (address_of("local"), address_of("dask://a:1")) == (None, "a:1")
    with pytest.raises(ToolError, match="nowhere:1: no scheduler answers there"):
        api.matrix(fleet, out=tmp_path / "out", executor="dask://nowhere:1")
    monkeypatch.setitem(sys.modules, "distributed", None)
    with pytest.raises(UsageError, match=r"'distributed' is not installed\n  next: pip install 'deploykit\[dask\]'"):
        sent_to(fleet, tmp_path)
