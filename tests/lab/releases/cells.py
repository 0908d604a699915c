"""One cell of the table: a model through one release's compiler and an emulator; and the cells that are recorded."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import deploykit
from deploykit.errors import ToolError
from deploykit_ort_qnn.compiler.hosts import Host, installed_wheel, toolchain_host
from deploykit_ort_qnn.compiler.jobs import CompileJob, CompileOutcome, compile_model, execute_both
from deploykit_ort_qnn.prepare import wheel_for
from releases.subjects import Asked
from zoo_subjects import distances, stacked

__all__ = ["RELEASES", "Cell", "at_hand", "cell", "keep", "recorded"]

DATA = Path(__file__).with_name("data")
DEVICE = "sm8650"
RELEASES = ("2.36.1", "2.47.0", "2.48.40", "2.49.40", "2.50.40", "2.51.0")
LONGEST = 240.0
"""Seconds for a compilation, and for a run on the emulator."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """``answer`` is the compiler's (compiled, refused, failed, crashed, timed-out), or ``declined`` where deploykit
    does not ask it. ``refused`` are (node, type, why). ``decibels`` are per output, against the same file on the CPU.
    """

    subject: str
    release: str
    answer: str
    why: str = ""
    refused: tuple[tuple[str, str, str], ...] = ()
    decibels: Mapping[str, float] = field(default_factory=dict)
    not_run: str = ""

    @property
    def worst(self) -> float | None:
        """dB (or percent of rows) of the worst output; None where nothing ran."""
        return min(self.decibels.values(), default=None)


def at_hand(release: str) -> tuple[bool, Host | None]:
    """Whether a release can be asked here, and by which toolchain: None is the wheel beside this Python."""
    host, installed = toolchain_host(wheel_for(release)), installed_wheel()
    return host is not None or (installed is not None and installed["qairt"] == release), host


def cell(name: str, release: str, one: Asked, host: Host | None, folder: Path) -> Cell:
    """Prepare as the package for that release would be, compile, and run."""
    made = deploykit.package(
        one.model, target=DEVICE, backend="ort-qnn", sdk=release, compile=False, out=folder / "p", **one.given
    )
    about: dict[str, Any] = {"subject": name, "release": release}
    if made.package is None or made.exit_status:
        codes = sorted({finding.code for finding in made.findings if finding.blocks})
        return Cell(**about, answer="declined", why=", ".join(codes))
    options = json.loads((folder / "p/config/compile_options.json").read_text("utf-8"))["provider_options"]
    job = CompileJob(
        root=folder / "p",
        model="model/model.onnx",
        context="c.onnx",
        options=options,
        trace=False,
        timeout=LONGEST,
        host=host,
    )
    outcome = compile_model(job)
    if not outcome.ok:
        return Cell(**about, answer=outcome.status, why=_told(outcome), refused=_refused(outcome))
    sets = _sets(folder / "p/model/model.onnx", one)
    soc = {"soc_model": options["soc_model"]}
    try:
        sides = execute_both(job.root, job.model, job.context, sets, options=soc, timeout=LONGEST, host=host)
    except ToolError as error:
        return Cell(**about, answer="compiled", not_run=error.why)
    cpu, npu = (stacked([dict(one) for one in side]) for side in sides)
    return Cell(**about, answer="compiled", decibels=distances(cpu, npu))


def _told(outcome: CompileOutcome) -> str:
    """The compiler's own words, without the path and the clock that differ with each run."""
    return outcome.message if not outcome.refused else ""


def _refused(outcome: CompileOutcome) -> tuple[tuple[str, str, str], ...]:
    return tuple(sorted((node.name, node.type, node.why) for node in outcome.refused))


def _sets(model: Path, one: Asked) -> list[dict[str, Any]]:
    """The samples, of the inputs that the prepared file still has."""
    import onnx

    wanted = {value.name for value in onnx.load(model, load_external_data=False).graph.input}
    return [{name: value for name, value in sample.items() if name in wanted} for sample in one.samples]


def recorded() -> list[Cell]:
    """Every recorded cell, by subject and release."""
    rows = [json.loads(line) for path in DATA.glob("*.jsonl") for line in path.read_text("utf-8").splitlines()]
    cells = [Cell(**{**row, "refused": tuple(map(tuple, row["refused"]))}) for row in rows]
    return sorted(cells, key=lambda one: (one.subject, RELEASES.index(one.release)))


def keep(new: Iterable[Cell], release: str) -> None:
    """Put cells of one release in the place of those that were recorded of the same subjects."""
    cells = {one.subject: one for one in (*recorded(), *new) if one.release == release}
    cells |= {one.subject: one for one in new}
    lines = [json.dumps(asdict(one), ensure_ascii=False) for _, one in sorted(cells.items())]
    (DATA / f"{release}.jsonl").write_text("\n".join(lines) + "\n", "utf-8")
