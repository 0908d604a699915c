"""Makes one matrix three ways and compares: ``python tests/lab/benchmarks/three_ways.py FOLDER [--write]``.

12 models of the zoo, 5 devices, 2 backends: on the local pool, on a Dask cluster one of whose workers is killed, and as
an emitted Snakefile that Snakemake (from the package index, in an environment of its own) runs. It goes on where it was
broken off. ``--write`` records what came out beside the other test data. It judges no package.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import signal
import subprocess
import sys
import threading
import time
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import date
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from deploykit import api
from deploykit.fleet.results import Results, read_results

__all__ = ["DEVICES", "MODELS", "RECORD", "WAYS", "write_fleet"]

DATA = Path(__file__).parents[2] / "data"
RECORD = Path(__file__).parents[1] / "evidence" / "three_ways.json"

MODELS = (
    *("efficientnet", "mobilenet_v3", "resnet", "ssd", "superres", "vit"),
    *("distilbert", "gpt2_step", "qwen2_step", "streaming_conv", "t5_encoder", "tracker"),
)
DEVICES = ("sm8550", "sm8650", "sm8750", "sc8380xp", "qcs6490")
BACKENDS = ("qnn-htp", "ort-qnn")

SAMPLES = 4
KILLED_AFTER = 12
"""Cells that are done when a worker of the cluster is killed: the middle of its second or third batch."""
SNAKEMAKE = "snakemake>=9,<10"


def write_fleet(folder: Path) -> Path:
    """The models with encodings and samples, and the ``deploykit.toml`` of all."""
    lines = [f"[models.{name}]\n{_unpacked(folder, name)}" for name in MODELS]
    lines += [_target(device, backend) for device in DEVICES for backend in BACKENDS]
    file = folder / "deploykit.toml"
    file.write_text("\n".join(lines), "utf-8")
    return file


def _target(device: str, backend: str) -> str:
    """One device by one backend. Kernels are looked at where a row of the atlas speaks of them: the rest is not new."""
    own = 'own = { audit = "quick" }\n' if backend == "ort-qnn" else ""
    return f'[targets.{device}-{backend}]\ndevice = "{device}"\nbackends = ["{backend}"]\n{own}'


def _unpacked(folder: Path, name: str) -> str:
    with zipfile.ZipFile(DATA / "zoo" / f"{name}.zip") as archive:
        archive.extractall(folder / name)
    with np.load(folder / name / "calibration.npz") as calibration:
        np.savez(folder / name / "samples.npz", **{key: calibration[key][:SAMPLES] for key in calibration.files})
    rows = {"path": "model.onnx", "encodings": "w8a16.v1.0.0.encodings", "calibration": "samples.npz"}
    return "".join(f'{key} = "{name}/{value}"\n' for key, value in rows.items())


def local(file: Path, out: Path) -> Mapping[str, Any]:
    """On the local pool."""
    api.matrix(file, out=out, on_result=_told)
    return {}


def dask(file: Path, out: Path) -> Mapping[str, Any]:
    """On two worker processes, one of which is killed in the middle of its work."""
    from distributed import Client, LocalCluster

    with LocalCluster(n_workers=2, threads_per_worker=1, memory_limit="4GiB", dashboard_address="127.0.0.1:0") as made:
        with Client(made.scheduler_address, set_as_default=False) as client:
            pids = client.run(os.getpid)
        victim, count, killed = min(pids.values()), threading.Semaphore(0), threading.Event()

        def kill() -> None:
            for _ in range(KILLED_AFTER):
                count.acquire()
            os.kill(victim, signal.SIGKILL)
            killed.set()

        threading.Thread(target=kill, daemon=True).start()

        def tell(cell: str, line: str) -> None:
            if line in ("yes", "no", "not judged", "failed"):  # a worker's news that a cell is done
                count.release()

        api.matrix(
            file,
            out=out,
            executor=f"dask://{made.scheduler_address.removeprefix('tcp://')}",
            progress=tell,
            on_result=_told,
        )
    return {"workers": 2, "killed": int(killed.is_set()), "killed_after_cells": KILLED_AFTER}


def snakemake(file: Path, out: Path) -> Mapping[str, Any]:
    """By Snakemake, one job a cell, from the emitted Snakefile as it is."""
    place = out.parent / "snakemake-environment"
    if not place.is_dir():
        subprocess.run([sys.executable, "-m", "venv", str(place)], check=True)
        subprocess.run([place / "bin" / "pip", "install", "-q", SNAKEMAKE], check=True)
    (file.parent / "Snakefile").write_text(api.matrix_emit("snakemake", file), "utf-8")
    argv = [str(place / "bin" / "snakemake"), "--cores", "2", "--quiet", "rules", "--rerun-incomplete", "--keep-going"]
    argv += ["--config", f"out={out.name}", f"deploykit={sys.executable} -m deploykit"]
    subprocess.run(argv, cwd=file.parent, check=True)
    done = subprocess.run([place / "bin" / "snakemake", "--version"], check=True, capture_output=True, text=True)
    return {"snakemake": done.stdout.strip()}


WAYS: Mapping[str, Callable[[Path, Path], Mapping[str, Any]]] = {"local": local, "dask": dask, "snakemake": snakemake}


def _told(result: Any) -> None:
    print(f"  {result.cell}: {result.verdict}, {result.processor_seconds:.1f} s", flush=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """What one way made, and what it took."""

    folder: Path
    results: Results
    facts: Mapping[str, Any]

    @property
    def sizes(self) -> dict[str, int]:
        """Bytes of the pages for all cells, of what is kept between runs, and how many files there are."""
        cache = self.folder.with_name(f"{self.folder.name}-cache")
        return {
            **{f"{name}_bytes": (self.folder / name).stat().st_size for name in ("matrix.json", "matrix.html")},
            "cache_bytes": sum(file.stat().st_size for file in cache.rglob("*") if file.is_file()),
            "files": sum(file.is_file() for file in (self.folder / "cells").rglob("*")),
        }

    def digests(self) -> dict[str, Any]:
        """The digest of every package by cell; None where none was written."""
        return {cell.cell: cell.outcome.get("digest") for cell in self.results.cells}


def run(name: str, file: Path, folder: Path) -> Way:
    """Run one way, with nothing kept from another; a way that ended before is read."""
    out, said = folder / name, folder / f"{name}.json"
    if not said.is_file():
        os.environ["DEPLOYKIT_CACHE"] = str(folder / f"{name}-cache")
        began, used = time.monotonic(), _processor_seconds()
        more = WAYS[name](file, out)
        spent = {"wall_seconds": time.monotonic() - began, "processor_seconds": _processor_seconds() - used}
        said.write_text(json.dumps({**{key: round(value, 1) for key, value in spent.items()}, **more}), "utf-8")
    return Way(folder=out, results=read_results(out), facts=json.loads(said.read_text("utf-8")))


def _processor_seconds() -> float:
    kinds = (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    return sum(used.ru_utime + used.ru_stime for used in map(resource.getrusage, kinds))


def record(ways: Mapping[str, Way]) -> dict[str, Any]:
    """What is kept: who measured, what each way took, and every cell with what the ways say of it."""
    first = next(iter(ways.values()))
    tools = ("deploykit", "onnx", "onnxruntime", "onnxruntime-qnn", "distributed", "numpy")
    return {
        "schema": 1,
        "provenance": {
            "command": "python tests/lab/benchmarks/three_ways.py FOLDER --write",
            "date": date.today().isoformat(),
            "machine": f"{platform.system()} {platform.machine()}, {os.cpu_count()} processors, shared with other work",
            "python": platform.python_version(),
            "versions": {name: version(name) for name in tools},
        },
        "samples": SAMPLES,
        "ways": {name: {**way.facts, **way.results.counts, **way.sizes} for name, way in ways.items()},
        "different": {cell: _unlike_files(cell, ways) for cell in sorted(first.digests()) if not _is_same(cell, ways)},
        "cells": [
            {
                "cell": cell.cell,
                "verdict": str(cell.verdict),
                "digest": cell.outcome.get("digest"),
                "bytes": cell.bytes,
                "processor_seconds": {name: _seconds(way, cell.cell) for name, way in ways.items()},
            }
            for cell in first.results.cells
        ],
    }


def _is_same(cell: str, ways: Mapping[str, Way]) -> bool:
    return len({(way.digests().get(cell), _verdict(way, cell)) for way in ways.values()}) == 1


def _unlike_files(cell: str, ways: Mapping[str, Way]) -> list[str]:
    """The files of the packages that differ; the report quotes the others, so it is named only where it is alone."""
    manifests = [way.folder / "cells" / cell / "package" / "manifest.json" for way in ways.values()]
    files = [json.loads(path.read_text("utf-8"))["files"] if path.is_file() else {} for path in manifests]
    names = sorted({name for rows in files for name in rows})
    unlike = [name for name in names if len({rows.get(name, {}).get("sha256") for rows in files}) > 1]
    return [name for name in unlike if name != "report.html"] or unlike


def _is_the_compilers(files: list[str]) -> bool:
    """The vendor's compiler writes some binaries in one of several ways, whoever calls it."""
    return bool(files) and all(name.endswith("_qnn.bin") for name in files)


def _verdict(way: Way, name: str) -> str:
    return next((str(cell.verdict) for cell in way.results.cells if cell.cell == name), "")


def _seconds(way: Way, name: str) -> float:
    return next((round(cell.processor_seconds, 2) for cell in way.results.cells if cell.cell == name), 0.0)


def main() -> int:
    """Run all ways; 1 where a cell differs between them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--way", action="append", choices=tuple(WAYS), help="only this one; may be repeated")
    parser.add_argument("--write", action="store_true", help=f"record it in {RECORD.name}")
    given = parser.parse_args()
    given.folder.mkdir(parents=True, exist_ok=True)
    file, ways = write_fleet(given.folder), {}
    for name in given.way or WAYS:
        print(f"{name}:", flush=True)
        ways[name] = run(name, file, given.folder.resolve())
        print(json.dumps({**ways[name].facts, **ways[name].results.counts}), flush=True)
    found = record(ways)
    unlike = found["different"]
    print(f"{len(found['cells'])} cells, {len(unlike)} different", *map(str, unlike.items()), sep="\n  ")
    if given.write:
        RECORD.parent.mkdir(exist_ok=True)
        RECORD.write_text(json.dumps(found, indent=1) + "\n", "utf-8")
    return int(not all(map(_is_the_compilers, unlike.values())))


if __name__ == "__main__":
    sys.exit(main())
