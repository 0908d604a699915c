"""10,000 models on 40 targets from what was measured on few: ``python tests/lab/benchmarks/on_paper.py [--write]``.

It reads the records of the fleet and of the language model, multiplies, and puts the tables into ``evidence/scale.md``.
Nothing is measured here and no figure is typed in.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

ROOT = Path(__file__).parents[3]
EVIDENCE = ROOT / "tests" / "lab" / "evidence"
PAGE = EVIDENCE / "scale.md"
MODELS, TARGETS = 10_000, 40
MACHINE_CORES, MACHINE_HOURS = 64, 24

__all__ = ["Fleet", "blocks", "filled", "read_fleet"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Fleet:
    """Unit costs. Seconds are of a processor and a mean over models; bytes and files are per package."""

    models: int
    cells: int
    first: Mapping[str, float]
    later: Mapping[str, float]
    bytes: Mapping[str, float]
    start: float
    files: float
    cache: float
    json: float
    html: float

    @property
    def backends(self) -> int:
        """How many backends a device is packaged under."""
        return len(self.first)

    def shared(self, models: int, targets: int) -> float:
        """Processor seconds where the targets of a model share a process."""
        devices = targets / self.backends
        return models * (self.start + sum(self.first[b] + (devices - 1) * self.later[b] for b in self.first))

    def alone(self, models: int, targets: int) -> float:
        """The same where each cell is a process of its own, and nothing is shared or kept."""
        devices = targets / self.backends
        return models * devices * sum(self.start + self.first[b] for b in self.first)

    def disk(self, models: int, targets: int) -> float:
        """Bytes of all packages."""
        return models * targets / self.backends * sum(self.bytes.values())


def read_fleet(record: Mapping[str, Any]) -> Fleet:
    """The unit costs of a run of ``tests/lab/benchmarks/three_ways.py`` on the local pool."""
    local = record["ways"]["local"]
    rows = [(*_named(cell["cell"]), cell) for cell in record["cells"]]
    models = {model for model, _, _, _ in rows}
    backends = list(dict.fromkeys(backend for _, _, backend, _ in rows))
    first_device = rows[0][1]
    seconds = {(m, d, b): cell["processor_seconds"]["local"] for m, d, b, cell in rows}
    return Fleet(
        models=len(models),
        cells=len(rows),
        first={b: fmean(s for (_, d, of), s in seconds.items() if (d, of) == (first_device, b)) for b in backends},
        later={b: fmean(s for (_, d, of), s in seconds.items() if of == b and d != first_device) for b in backends},
        bytes={b: fmean(cell["bytes"] for _, _, of, cell in rows if of == b) for b in backends},
        start=max(0.0, local["processor_seconds"] - sum(seconds.values())) / len(models),
        files=local["files"] / len(rows),
        cache=local["cache_bytes"] / len(models),
        json=local["matrix.json_bytes"] / len(rows),
        html=local["matrix.html_bytes"] / len(rows),
    )


def _named(cell: str) -> tuple[str, str, str]:
    model, _, target = cell.partition("/")
    device, _, backend = target.partition("-")
    return model, device, backend


def blocks() -> Iterator[tuple[str, str]]:
    """The tables of the page, by the name of their place."""
    record = json.loads((EVIDENCE / "three_ways.json").read_text("utf-8"))
    fleet = read_fleet(record)
    yield "ways", _table(("way", "wall s", "CPU s", "yes", "no", "not judged", "failed"), _ways(record))
    yield "units", _table(("what", "measured"), _units(fleet))
    yield "total", _table(("what", "for all"), _total(fleet))
    model = json.loads((EVIDENCE / "language_model.json").read_text("utf-8"))
    yield "language", _table(("step", "CPU s", "wall s", "peak MB", "GB written"), _language(model))


def _ways(record: Mapping[str, Any]) -> Iterator[tuple[str, ...]]:
    for name, way in record["ways"].items():
        words = ("wall_seconds", "processor_seconds", "yes", "no", "not judged", "failed")
        killed = ", one of two workers killed" if way.get("killed") else ""
        yield (f"{name}{killed}", *(f"{way[word]:,.0f}" for word in words))


def _units(fleet: Fleet) -> Iterator[tuple[str, ...]]:
    yield "a process for one model", f"{fleet.start:.2f} CPU s"
    for backend in fleet.first:
        yield f"`{backend}`, first device of a model", f"{fleet.first[backend]:.2f} CPU s"
        yield f"`{backend}`, each further device", f"{fleet.later[backend]:.2f} CPU s"
        yield f"`{backend}`, a package", f"{fleet.bytes[backend] / 1e3:,.0f} kB"
    yield "files of a cell", f"{fleet.files:.0f}"
    yield "kept between runs, per model", f"{fleet.cache / 1e6:.1f} MB"
    yield "a cell in `matrix.json`, in `matrix.html`", f"{fleet.json / 1e3:.1f} kB, {fleet.html / 1e3:.2f} kB"


def _total(fleet: Fleet) -> Iterator[tuple[str, ...]]:
    cells, shared, alone = MODELS * TARGETS, fleet.shared(MODELS, TARGETS), fleet.alone(MODELS, TARGETS)
    capacity = MACHINE_CORES * MACHINE_HOURS * 3600
    yield "cells", f"{cells:,}"
    yield "CPU hours, targets of a model in one process (pool, Dask)", f"{shared / 3600:,.0f}"
    yield "CPU hours, a process for each cell (Snakemake, CI), nothing kept", f"{alone / 3600:,.0f}"
    yield (
        f"machines of {MACHINE_CORES} cores for {MACHINE_HOURS} hours",
        f"{shared / capacity:.1f} to {alone / capacity:.1f}",
    )
    yield "packages", f"{fleet.disk(MODELS, TARGETS) / 1e9:,.0f} GB in {fleet.files * cells / 1e6:,.1f} million files"
    yield "cache for all models", f"{fleet.cache * MODELS / 1e9:,.0f} GB (2 GiB unless `DEPLOYKIT_CACHE_LIMIT` is set)"
    yield "`matrix.json`", f"{fleet.json * cells / 1e9:.1f} GB, held in memory as a whole"
    yield "`matrix.html`", f"{fleet.html * cells / 1e6:,.0f} MB"


def _language(record: Mapping[str, Any]) -> Iterator[tuple[str, ...]]:
    for row in record["steps"]:
        size = "" if row["bytes"] is None else f"{row['bytes'] / 1e9:.2f}"
        yield row["step"], f"{row['cpu_seconds']:,.1f}", f"{row['wall_seconds']:,.0f}", f"{row['peak_mb']:,}", size


def _table(head: tuple[str, ...], rows: Iterator[tuple[str, ...]]) -> str:
    lines = [head, tuple("---" for _ in head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def filled(page: str) -> str:
    """The page with every table computed again."""
    for name, text in blocks():
        start, end = f"<!-- {name} -->\n", f"\n<!-- end of {name} -->"
        before, _, rest = page.partition(start)
        _, _, after = rest.partition(end)
        page = f"{before}{start}{text}{end}{after}"
    return page


if __name__ == "__main__":
    if "--write" in sys.argv[1:]:
        PAGE.write_text(filled(PAGE.read_text("utf-8")), "utf-8")
    else:
        for name, text in blocks():
            print(f"{name}\n{text}\n")
