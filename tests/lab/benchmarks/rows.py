"""The rows of the table: what is done, what it is held against, and what is to be reached. Nothing is printed here."""

from __future__ import annotations

import json
import math
import os
import shutil
import statistics
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from spending import Spent, median, program, spend

__all__ = ["ROWS", "Bench", "Figure"]

_HTP = ("--target", "sm8650", "--backend", "qnn-htp", "--sdk", "2.37")
_ORT = ("--backend", "ort-qnn")


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One number of a row: at most ``limit`` is wanted; ``of`` gives the absolute numbers behind it.

    ``id`` is the name by which ``remarks.toml`` speaks of it; ``runs`` says of how many runs it is the median.
    """

    id: str
    what: str
    value: float
    limit: float
    unit: str
    runs: int
    of: str = ""

    @property
    def reached(self) -> bool:
        """True when the number is no larger than its limit."""
        return self.value <= self.limit


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    """Where files are made, and how often each thing is done; models are made, and commands measured, once.

    ``times`` is for what is cheap; what takes ten seconds is done thrice at most, what takes more than that once.
    """

    folder: Path
    times: int
    _spent: dict[tuple[object, ...], Spent] = field(default_factory=dict, init=False, repr=False)

    @property
    def few(self) -> int:
        """How often a dear thing is done."""
        return min(self.times, 3)

    def made(self, kind: str, number: int) -> Path:
        """The folder of a generated model or file, made now where it was not."""
        where = self.folder / f"{kind}-{number}"
        if not where.is_dir():
            spend(program("generating.py", kind, where, number))
        return where

    def deploykit(self, *arguments: object, times: int | None = None) -> Spent:
        """The median cost of one command. What Python compiled is kept, as it is where deploykit is installed."""
        key = (*arguments, times)
        if key not in self._spent:
            run = partial(self._spend, self._command(arguments))
            self._spent[key] = median(run, self.times if times is None else times)
        return self._spent[key]

    def _spend(self, argv: tuple[str, ...]) -> Spent:
        """Without the package of the run before: to replace one is to read it whole, lest it be somebody else's."""
        shutil.rmtree(self.folder / "out", ignore_errors=True)
        return spend(argv, environment=self._environment())

    def shared(self, *arguments: object) -> tuple[float, float]:
        """The CPU seconds of one command of its own and in the processes it starts; medians of few."""
        argv = program("sharing.py", *arguments)
        texts = [self._spend(argv).text for _ in range(self.few)]
        found = [json.loads(text.strip().splitlines()[-1]) for text in texts]
        return statistics.median(row["own"] for row in found), statistics.median(row["others"] for row in found)

    def probe(self, kind: str, where: Path, *, times: int | None = None) -> dict[str, float]:
        """The medians of a probe's numbers, each run in a fresh process."""
        argv, count = program("probing.py", kind, where), self.times if times is None else times
        texts = [spend(argv, environment=self._environment()) for _ in range(count)]
        runs: list[dict[str, float]] = [json.loads(one.text) for one in texts]
        return {name: statistics.median(run[name] for run in runs) for name in runs[0]}

    def out(self) -> Path:
        """An empty place for a package."""
        where = self.folder / "out"
        shutil.rmtree(where, ignore_errors=True)
        return where

    def forget(self) -> None:
        """Empty deploykit's own cache."""
        shutil.rmtree(self.folder / "cache", ignore_errors=True)

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
    """`--help`, `compat`, `targets`, `demo`"""
    for command in (("--help",), ("compat",), ("compat", "lpbq"), ("targets",)):
        bench.deploykit(*command, times=1)  # what Python compiles on the very first run
        cpu, name, what = bench.deploykit(*command).cpu, "-".join(command).strip("-"), f"`{' '.join(command)}`"
        yield Figure(id=f"light-{name}", what=what, value=cpu, limit=0.15, unit="s CPU", runs=bench.times)
    cpu = bench.deploykit("demo", "-o", bench.out()).cpu
    yield Figure(id="light-demo", what="`demo`", value=cpu, limit=1.2, unit="s CPU", runs=bench.times)


def check(bench: Bench) -> Iterator[Figure]:
    """`check` of 5,000 nodes with 707 MB of weights and encodings"""
    plain, full = _checked(bench, 5000, encodings=False), _checked(bench, 5000, encodings=True)
    of = f"{full.cpu:.1f} s beside {plain.cpu:.1f} s"
    what = "CPU beside the same without encodings"
    yield Figure(id="check-cpu", what=what, value=full.cpu / plain.cpu, limit=5, unit="x", runs=1, of=of)
    yield Figure(id="check-peak", what="peak memory", value=full.peak, limit=300, unit="MB", runs=1)
    what = "peak memory without encodings"
    yield Figure(id="check-peak-plain", what=what, value=plain.peak, limit=300, unit="MB", runs=bench.few)


def _checked(bench: Bench, nodes: int, *, encodings: bool) -> Spent:
    where = bench.made("chain", nodes)
    command = ("check", where / "model.onnx", *_HTP)
    if encodings:
        return bench.deploykit(*command, "--encodings", where / "model.encodings", times=1)
    return bench.deploykit(*command, times=bench.few)


def packaged(bench: Bench) -> Iterator[Figure]:
    """`package` of the same for `qnn-htp`, beside one SHA-256 pass over its bytes"""
    where, runs = bench.made("chain", 5000), bench.few
    for name, more in (("plain", ()), ("encoded", ("--encodings", where / "model.encodings"))):
        spent, once = _packaged(bench, where, "--no-cache", *more), bench.probe("sha256", where, times=runs)["pass"]
        of, what = f"{spent.cpu:.1f} s beside {once:.2f} s", f"CPU, with{'' if more else 'out'} encodings"
        yield Figure(id=f"packaged-{name}", what=what, value=spent.cpu / once, limit=4, unit="x", runs=runs, of=of)


def _detector(bench: Bench) -> tuple[Path, tuple[object, ...]]:
    where = bench.made("detector", 4)
    model, encodings = where / "model.onnx", where / "w8a16.v1.0.0.encodings"
    options = ("--encodings", encodings, "--calibration", where / "samples.npz", "-o", bench.out(), "--force")
    return where, ("package", model, *options)


def detector(bench: Bench) -> Iterator[Figure]:
    """`package` on `qnn-htp` of a detector (RT-DETRv2, 546 nodes) with encodings and 4 samples"""
    where, command = _detector(bench)
    spent, inference = bench.deploykit(*command, "--no-cache", *_HTP), bench.probe("inference", where)["inference"]
    of, limit = f"20 float inferences are {20 * inference:.2f} s", 20 * inference + 2
    yield Figure(id="detector-cpu", what="CPU", value=spent.cpu, limit=limit, unit="s CPU", runs=bench.times, of=of)
    yield Figure(id="detector-peak", what="peak memory", value=spent.peak, limit=300, unit="MB", runs=bench.times)


def provider(bench: Bench) -> Iterator[Figure]:
    """`package` on `ort-qnn` of the same detector, nothing kept, without audit"""
    command = (*_detector(bench)[1], "--no-cache", *_ORT, "--kernels", "off", "--target", "sm8650")
    own, vendor = bench.shared(*command)
    of = f"{own:.1f} s of its own, {vendor:.1f} s in the vendor's compiler and emulator"
    what, value = "CPU beside the vendor's share", (own + vendor) / vendor
    yield Figure(id="provider-cpu", what=what, value=value, limit=1.2, unit="x", runs=bench.few, of=of)
    own_2, vendor_2 = bench.shared(*command, "--target", "sm8750")
    one = own + vendor
    of = f"{(own_2 - own) / one:.2f} x its own, {(vendor_2 - vendor) / one:.2f} x the vendor's"
    what, value = "a second target, of the first's CPU", (own_2 + vendor_2 - one) / one
    yield Figure(id="provider-second", what=what, value=value, limit=0.4, unit="x", runs=bench.few, of=of)


def again(bench: Bench) -> Iterator[Figure]:
    """the same command again, one option changed"""
    command = _detector(bench)[1]
    provider = (*_ORT, "--target", "sm8650")
    for number, backend, options, changed in (
        ("again-qnn-htp", "`qnn-htp`", _HTP, "--no-compile"),
        ("again-ort-qnn", "`ort-qnn` without audit", (*provider, "--kernels", "off"), "--strict-precision"),
        ("again-ort-qnn-audit", "`ort-qnn`", provider, "--strict-precision"),
    ):
        bench.forget()
        first = bench.deploykit(*command, *options, times=1)
        later = bench.deploykit(*command, *options, changed, times=bench.few)
        of = f"{later.cpu:.1f} s after {first.cpu:.1f} s"
        what, value = f"CPU on {backend} with `{changed}` beside the first", later.cpu / first.cpu
        yield Figure(id=number, what=what, value=value, limit=0.2, unit="x", runs=bench.few, of=of)
    bench.forget()


def stored(bench: Bench) -> Iterator[Figure]:
    """`package` of 1.5 GiB of external data"""
    where, runs = bench.made("stored", 1536), bench.few
    once = bench.probe("sha256", where, times=runs)
    for id_, name, more in (("stored", "", ()), ("stored-link", " with `--link`", ("--link",))):
        spent = _packaged(bench, where, *more)
        for kind, mine, theirs in (("wall", spent.wall, once["wall"]), ("CPU", spent.cpu, once["pass"])):
            of = f"{mine:.1f} s beside {theirs:.1f} s"
            what = f"{'wall time' if kind == 'wall' else kind}{name} beside one SHA-256 pass"
            number, unit = f"{id_}-{kind.lower()}", "x"
            yield Figure(id=number, what=what, value=mine / theirs, limit=1.3, unit=unit, runs=runs, of=of)
        what = f"peak memory{name}"
        yield Figure(id=f"{id_}-peak", what=what, value=spent.peak, limit=300, unit="MB", runs=runs)


def _packaged(bench: Bench, where: Path, *more: object, times: int | None = None) -> Spent:
    command = ("package", where / "model.onnx", *_HTP, "-o", bench.out(), "--force", *more)
    spent = bench.deploykit(*command, times=times or bench.few)
    bench.out()  # its gigabytes
    return spent


def large(bench: Bench) -> Iterator[Figure]:
    """14 GiB of external data (a file of zeros that takes no disk)"""
    spent = _packaged(bench, bench.made("sparse", 14 << 10), "--link", times=1)
    what = "`package --link`, peak memory"
    of = f"{spent.cpu:.0f} s CPU"
    yield Figure(id="large-peak", what=what, value=spent.peak, limit=300, unit="MB", runs=1, of=of)


def streamed(bench: Bench) -> Iterator[Figure]:
    """`simulate` of 1.5 GiB of weights with `--memory 576M`, as 8 GiB with 3 GiB"""
    where = bench.made("stored", 1536)
    given = ("--encodings", where / "model.encodings", "--data", where / "samples.npz")
    spent = bench.deploykit(
        "accuracy", "simulate", where / "model.onnx", *given, "--memory", "576M", "--no-cache", times=1
    )
    of = f"{spent.cpu:.0f} s CPU"
    yield Figure(id="streamed-peak", what="peak memory", value=spent.peak, limit=604, unit="MB", runs=1, of=of)


def encodings(bench: Bench) -> Iterator[Figure]:
    """encodings with 100,000 entries"""
    where = bench.made("entries", 100_000)
    found = bench.probe("reading", where)
    for version in ("0.6.1", "1.0.0", "2.0.0"):
        for work, beside, limit in (("read", "load", 2.0), ("write", "dump", 1.0)):
            mine, theirs = found[f"{work} {version}"], found[f"{beside} {version}"]
            of, what = f"{mine:.2f} s beside {theirs:.2f} s", f"{version}: {work} beside `json.{beside}`"
            name, value = f"encodings-{work}-{version}", mine / theirs
            yield Figure(id=name, what=what, value=value, limit=limit, unit="x", runs=bench.times, of=of)
    room = bench.probe("memory", where)
    of, value = f"{room['peak']:.0f} MB for {room['file']:.0f} MB", room["peak"] / room["file"]
    what = "memory to read beside the file"
    yield Figure(id="encodings-memory", what=what, value=value, limit=3, unit="x", runs=bench.times, of=of)


def inserting(bench: Bench) -> Iterator[Figure]:
    """QDQ insertion at 1,000 nodes"""
    found = bench.probe("inserting", bench.made("chain", 1000))
    of = f"{found['insert']:.3f} s beside {found['bare']:.3f} s, means of {found['repeats']:.0f}"
    what, value = "CPU beside a bare protobuf pass", found["insert"] / found["bare"]
    yield Figure(id="inserting", what=what, value=value, limit=3, unit="x", runs=bench.times, of=of)


def lpbq(bench: Bench) -> Iterator[Figure]:
    """BQ to LPBQ: seconds for a gigabyte of float weights"""
    found = bench.probe("converting", bench.made("blocks", 8))
    gigabytes = found["bytes"] / 1e9
    of, value = f"{gigabytes / found['wall']:.1f} GB/s in wall time", found["cpu"] / gigabytes
    # Two cores are to convert 1 GB in a second: two CPU seconds.
    yield Figure(id="lpbq", what="CPU for 1 GB", value=value, limit=2, unit="s CPU", runs=bench.times, of=of)


def growth(bench: Bench) -> Iterator[Figure]:
    """growth: the exponent over three sizes"""
    nodes, few = (1000, 2500, 5000), bench.few
    yield _grown("nodes", "`check` in nodes", nodes, few, lambda n: _checked(bench, n, encodings=False).cpu)
    what = "`check` in nodes, with encodings"
    yield _grown("encoded-nodes", what, nodes, 1, lambda n: _checked(bench, n, encodings=True).cpu)
    sizes = (384, 768, 1536)
    yield _grown("bytes", "`package` in MiB", sizes, few, lambda n: _packaged(bench, bench.made("stored", n)).cpu)
    what, sizes = "reading encodings in entries", (25_000, 50_000, 100_000)
    yield _grown("entries", what, sizes, few, lambda n: _read(bench, n)["read 1.0.0"])
    yield _grown("samples", "`simulate` in samples", (256, 512, 1024), few, partial(_simulated, bench))


def _read(bench: Bench, count: int) -> dict[str, float]:
    return bench.probe("reading", bench.made("entries", count), times=bench.few)


def _simulated(bench: Bench, samples: int) -> float:
    where = bench.made("sampled", samples)
    given = ("--encodings", where / "model.encodings", "--data", where / "samples.npz", "--no-cache")
    return bench.deploykit("accuracy", "simulate", where / "model.onnx", *given, times=bench.few).cpu


def _grown(name: str, what: str, sizes: tuple[int, ...], runs: int, cost: Callable[[int], float]) -> Figure:
    """The slope of cost over size in logarithms; a fixed share, like starting Python, makes it smaller."""
    xs, costs = [math.log(size) for size in sizes], [cost(size) for size in sizes]
    slope = statistics.linear_regression(xs, [math.log(value) for value in costs]).slope
    of = ", ".join(f"{size:,}: {value:.2f} s" for size, value in zip(sizes, costs, strict=True))
    return Figure(id=f"growth-{name}", what=what, value=slope, limit=1.15, unit="exponent", runs=runs, of=of)


ROWS: Mapping[str, Row] = {
    row.__name__: row
    for row in (
        *(light, check, packaged, detector, provider, again, stored, large, streamed),
        *(encodings, inserting, lpbq, growth),
    )
}
"""Every row by the name that the command line takes."""
