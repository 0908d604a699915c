"""The rows of the table: what is done, what it is held against, and what is to be reached. Nothing is printed here."""

from __future__ import annotations

import json
import math
import os
import shutil
import statistics
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from spending import Spent, median, program, spend

__all__ = ["ROWS", "Bench", "Figure"]

_HTP = ("--target", "sm8650", "--backend", "qnn-htp", "--sdk", "2.37")
_ORT = ("--backend", "ort-qnn")


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One number of a row: at most ``limit`` is wanted; ``of`` gives the absolute numbers behind it."""

    what: str
    value: float
    limit: float
    unit: str
    of: str = ""

    @property
    def reached(self) -> bool:
        """True when the number is no larger than its limit."""
        return self.value <= self.limit


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    """Where files are made, and how often each thing is done; models are made once for all rows."""

    folder: Path
    times: int

    def made(self, kind: str, number: int) -> Path:
        """The folder of a generated model or file, made now where it was not."""
        where = self.folder / f"{kind}-{number}"
        if not where.is_dir():
            spend(program("generating.py", kind, where, number))
        return where

    def deploykit(self, *arguments: object) -> Spent:
        """The median cost of one command. What Python compiled is kept, as it is where deploykit is installed."""
        return median(partial(spend, self._command(arguments), environment=self._environment()), self.times)

    def shared(self, *arguments: object) -> tuple[float, float]:
        """The CPU seconds of one command of its own and in the processes it starts; medians."""
        argv = program("sharing.py", *arguments)
        texts = [spend(argv, environment=self._environment()).text for _ in range(self.times)]
        found = [json.loads(text.strip().splitlines()[-1]) for text in texts]
        return statistics.median(row["own"] for row in found), statistics.median(row["others"] for row in found)

    def probe(self, kind: str, where: Path) -> dict[str, float]:
        """The medians of a probe's numbers, each run in a fresh process."""
        texts = [spend(program("probing.py", kind, where), environment=self._environment()) for _ in range(self.times)]
        runs: list[dict[str, float]] = [json.loads(one.text) for one in texts]
        return {name: statistics.median(run[name] for run in runs) for name in runs[0]}

    def out(self) -> Path:
        """An empty place for a package."""
        where = self.folder / "out"
        shutil.rmtree(where, ignore_errors=True)
        return where

    def _command(self, arguments: tuple[object, ...]) -> tuple[str, ...]:
        return (sys.executable, "-m", "deploykit", *map(str, arguments))

    def _environment(self) -> dict[str, str]:
        kept = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
        return {
            **kept,
            "PYTHONPYCACHEPREFIX": str(self.folder / "bytecode"),
            "DEPLOYKIT_CACHE": str(self.folder / "cache"),
        }


Row = Callable[[Bench], Iterator[Figure]]


def light(bench: Bench) -> Iterator[Figure]:
    """`--help`, `compat`, `targets`"""
    for command in (("--help",), ("compat",), ("compat", "lpbq"), ("targets",)):
        bench.deploykit(*command)  # what Python compiles on the very first run
        spent = bench.deploykit(*command)
        yield Figure(what=f"`{' '.join(command)}`", value=spent.cpu, limit=0.15, unit="s CPU")


def check(bench: Bench) -> Iterator[Figure]:
    """`check` of 5,000 nodes with 707 MB of weights and encodings"""
    where = bench.made("chain", 5000)
    command = ("check", where / "model.onnx", *_HTP)
    plain = bench.deploykit(*command)
    full = bench.deploykit(*command, "--encodings", where / "model.encodings")
    of = f"{full.cpu:.1f} s beside {plain.cpu:.1f} s"
    yield Figure(what="CPU beside the same without encodings", value=full.cpu / plain.cpu, limit=5, unit="x", of=of)
    yield Figure(what="peak memory", value=full.peak, limit=300, unit="MB")
    yield Figure(what="peak memory without encodings", value=plain.peak, limit=300, unit="MB")


def _detector(bench: Bench) -> tuple[Path, tuple[object, ...]]:
    where = bench.made("detector", 4)
    model, encodings = where / "model.onnx", where / "w8a16.v1.0.0.encodings"
    options = ("--encodings", encodings, "--calibration", where / "samples.npz", "-o", bench.out(), "--force")
    return where, ("package", model, *options)


def detector(bench: Bench) -> Iterator[Figure]:
    """`package` on `qnn-htp` of a detector (RT-DETRv2, 546 nodes) with encodings and 4 samples"""
    where, command = _detector(bench)
    spent, inference = bench.deploykit(*command, *_HTP), bench.probe("inference", where)["inference"]
    limit = 20 * inference + 2
    of = f"20 float inferences are {20 * inference:.2f} s"
    yield Figure(what="CPU", value=spent.cpu, limit=limit, unit="s CPU", of=of)
    yield Figure(what="peak memory", value=spent.peak, limit=300, unit="MB")


def provider(bench: Bench) -> Iterator[Figure]:
    """`package` on `ort-qnn` of the same detector"""
    command = (*_detector(bench)[1], "--no-cache")
    own, vendor = bench.shared(*command, *_ORT, "--target", "sm8650")
    of = f"{own:.1f} s of its own, {vendor:.1f} s in the vendor's compiler and emulator"
    yield Figure(what="CPU beside the vendor's share", value=(own + vendor) / vendor, limit=1.2, unit="x", of=of)
    both = sum(bench.shared(*command, *_ORT, "--target", "sm8650", "--target", "sm8750"))
    more = (both - own - vendor) / (own + vendor)
    yield Figure(
        what="a second target, of the first's CPU", value=more, limit=0.4, unit="x", of=f"{both:.1f} s for two"
    )


def again(bench: Bench) -> Iterator[Figure]:
    """the same command again, one option changed"""
    command = _detector(bench)[1]
    for backend, options, changed in (
        ("qnn-htp", _HTP, ("--no-compile",)),
        ("ort-qnn", (*_ORT, "--target", "sm8650"), ("--strict-precision",)),
    ):
        shutil.rmtree(bench.folder / "cache", ignore_errors=True)
        first = Bench(folder=bench.folder, times=1).deploykit(*command, *options)
        later = bench.deploykit(*command, *options, *changed)
        of = f"{later.cpu:.1f} s after {first.cpu:.1f} s"
        what = f"CPU on `{backend}` with `{changed[0]}` beside the first"
        yield Figure(what=what, value=later.cpu / first.cpu, limit=0.2, unit="x", of=of)


def stored(bench: Bench) -> Iterator[Figure]:
    """`package` of 1.5 GiB of external data"""
    where = bench.made("stored", 1536)
    once = bench.probe("sha256", where)["pass"]
    spent = bench.deploykit("package", where / "model.onnx", *_HTP, "-o", bench.out(), "--force")
    of = f"{spent.cpu:.1f} s beside {once:.1f} s"
    yield Figure(what="CPU beside one SHA-256 pass", value=spent.cpu / once, limit=1.3, unit="x", of=of)
    yield Figure(what="peak memory", value=spent.peak, limit=300, unit="MB")


def encodings(bench: Bench) -> Iterator[Figure]:
    """encodings with 100,000 entries"""
    where = bench.made("entries", 100_000)
    found = bench.probe("reading", where)
    for version in ("0.6.1", "1.0.0", "2.0.0"):
        for work, beside, limit in (("read", "load", 2.0), ("write", "dump", 1.0)):
            mine, theirs = found[f"{work} {version}"], found[f"{beside} {version}"]
            of = f"{mine:.2f} s beside {theirs:.2f} s"
            what = f"{version}: {work} beside `json.{beside}`"
            yield Figure(what=what, value=mine / theirs, limit=limit, unit="x", of=of)
    room = bench.probe("memory", where)
    of = f"{room['peak']:.0f} MB for {room['file']:.0f} MB"
    yield Figure(what="memory to read beside the file", value=room["peak"] / room["file"], limit=3, unit="x", of=of)


def inserting(bench: Bench) -> Iterator[Figure]:
    """QDQ insertion at 1,000 nodes"""
    found = bench.probe("inserting", bench.made("chain", 1000))
    of = f"{found['insert']:.2f} s beside {found['bare']:.2f} s"
    value = found["insert"] / found["bare"]
    yield Figure(what="CPU beside a bare protobuf pass", value=value, limit=3, unit="x", of=of)


def lpbq(bench: Bench) -> Iterator[Figure]:
    """BQ to LPBQ: seconds for a gigabyte of float weights"""
    found = bench.probe("converting", bench.made("blocks", 8))
    gigabytes = found["bytes"] / 1e9
    of = f"{gigabytes / found['wall']:.1f} GB/s in wall time"
    # Two cores are to convert 1 GB in a second: two CPU seconds.
    yield Figure(what="CPU for 1 GB", value=found["cpu"] / gigabytes, limit=2, unit="s CPU", of=of)


def growth(bench: Bench) -> Iterator[Figure]:
    """growth: the exponent over three sizes"""
    yield _grown("`check` in nodes, without encodings", (1000, 2500, 5000), partial(_checking, bench, False))
    yield _grown("`check` in nodes, with encodings", (1000, 2500, 5000), partial(_checking, bench, True))
    yield _grown("`package` in bytes", (384, 768, 1536), partial(_packaging, bench))
    yield _grown("reading encodings in entries", (25_000, 50_000, 100_000), partial(_reading, bench))


def _checking(bench: Bench, with_encodings: bool, nodes: int) -> float:
    where = bench.made("chain", nodes)
    more = ("--encodings", where / "model.encodings") if with_encodings else ()
    return bench.deploykit("check", where / "model.onnx", *_HTP, *more).cpu


def _packaging(bench: Bench, mebibytes: int) -> float:
    where = bench.made("stored", mebibytes)
    return bench.deploykit("package", where / "model.onnx", *_HTP, "-o", bench.out(), "--force").cpu


def _reading(bench: Bench, count: int) -> float:
    return bench.probe("reading", bench.made("entries", count))["read 1.0.0"]


def _grown(what: str, sizes: tuple[int, ...], cost: Callable[[int], float]) -> Figure:
    """The slope of cost over size in logarithms; a fixed share, like starting Python, makes it smaller."""
    xs, costs = [math.log(size) for size in sizes], [cost(size) for size in sizes]
    slope = statistics.linear_regression(xs, [math.log(value) for value in costs]).slope
    of = ", ".join(f"{size:,}: {value:.1f} s" for size, value in zip(sizes, costs, strict=True))
    return Figure(what=what, value=slope, limit=1.15, unit="exponent", of=of)


ROWS: Mapping[str, Row] = {
    row.__name__: row for row in (light, check, detector, provider, again, stored, encodings, inserting, lpbq, growth)
}
"""Every row by the name that the command line takes."""
