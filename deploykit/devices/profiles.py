"""What a profiler says that single operators took, by the names that the user knows them by; it runs nothing.

Read here is ONNX Runtime's own profile; a vendor's is read by its adapter, with the names from here. Cycles stay
cycles: operators run in parallel, so that they add up to no time.
"""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cached_property
from pathlib import Path
from statistics import median

from deploykit.accuracy.latency import TraceEvent, operator_times
from deploykit.answers.diagnosis.names import mangle
from deploykit.backend.on_device import MeasuredOperator
from deploykit.errors import InputError
from deploykit.findings.records import Json, Published, Record
from deploykit.model.operators import QUANTIZERS
from deploykit.system.files import open_regular
from deploykit.system.jobs import json_object
from deploykit.tables.reading import read_json

__all__ = ["EstimateRow", "Origins", "beside_estimate", "origins_of", "read_session_profile", "units_of"]

_GRAPH_ENDS = {"input": "graph input", "output": "graph output"}
# What ONNX Runtime and providers append to a name that they use again or fuse, and put before one that they fuse.
_SUFFIX = re.compile(r"_token_\d+$|_\d+$|/duplicated$|\.nchw$|\.nhwc$|/\w+Fusion/?$|_new_reshape$")
_KERNEL = re.compile(r"(.*)_kernel_time$", re.DOTALL)
_LARGEST, _LONGEST_LINE = 1 << 30, 1 << 20


class Origins(Record, dict=True):
    """The operators of the packaged model by name, each with its type, to which names in a profile lead back.

    ``layouts`` are transposes that a compiler puts in, each with the name of what it is for.
    """

    nodes: Mapping[str, str]
    layouts: Mapping[str, str] = {}

    @cached_property
    def _spelled(self) -> dict[str, str]:
        """Each name as it is and as converters write it; where two become one, the first in the model is told."""
        spelled = {mangle(name): name for name in reversed(list(self.nodes))}
        return spelled | {name: name for name in self.nodes}

    def node(self, raw: str) -> str:
        """The user's operator, the end of the graph or the layout that a name stands for; the name where it is none."""
        shorter = raw.removeprefix("fused ")
        if raw in self.layouts:
            return self.layouts[raw]
        while shorter not in self._spelled:
            cut = _SUFFIX.sub("", shorter)
            if cut == shorter:
                return _GRAPH_ENDS.get(raw.lower(), raw)
            shorter = cut
        return self._spelled[shorter]

    def measured(
        self, rows: Mapping[str, Iterable[float]], *, unit: str = "cycles", on: Callable[[str], str] = lambda _: "NPU"
    ) -> tuple[MeasuredOperator, ...]:
        """One operator for each raw name, with the median over its runs; the dearest first."""
        found = []
        for raw, values in rows.items():
            node, where = self.node(raw), on(raw)
            kind = self.nodes.get(node, "")
            found.append(MeasuredOperator(node=node, raw=raw, value=median(values), unit=unit, op_type=kind, on=where))
        return tuple(sorted(found, key=lambda one: (-one.value, one.raw)))


def origins_of(model: Path) -> Origins:
    """The operators of one ONNX file; what has no name goes by its first output, as ONNX Runtime tells of it."""
    import onnx

    graph = onnx.load(model, load_external_data=False).graph
    return Origins(nodes={node.name or next(iter(node.output), ""): node.op_type for node in graph.node})


def units_of(operators: Iterable[MeasuredOperator]) -> dict[str, int]:
    """How many operators of the model ran on which unit; one whose parts are on two counts for the first.

    Conversions between types belong to the operators beside them and are not counted.
    """
    where: dict[str, str] = {}
    for unit in ("NPU", "GPU", "CPU"):
        for one in operators:
            if one.on == unit and one.op_type not in ("", *QUANTIZERS):
                where.setdefault(one.node, unit)
    return dict(Counter(where.values()))


def read_session_profile(path: Path, origins: Origins, units: Mapping[str, str]) -> tuple[MeasuredOperator, ...]:
    """Microseconds of each kernel, from the file that ``enable_profiling`` of ONNX Runtime leaves; the dearest first.

    ``units`` says what each provider stands for (``NPU``). A file that is cut off is read as far as it goes. Raises
    InputError where it holds no run.
    """
    times: dict[str, list[float]] = defaultdict(list)
    where: dict[str, str] = {}
    runs = 0
    for event in _events(path):
        name, took = event.get("name"), event.get("dur")
        if not isinstance(name, str) or not isinstance(took, int | float) or not 0 <= took < math.inf:
            continue
        if event.get("cat") == "Session":
            runs += name == "model_run"
        elif (kernel := _KERNEL.match(name)) is not None:
            given = event.get("args")
            provider = str(given.get("provider", "")) if isinstance(given, dict) else ""
            times[kernel[1]].append(float(took))
            where[kernel[1]] = "CPU" if provider == "CPUExecutionProvider" else units.get(provider, "")
    if not runs:
        raise InputError(
            f"{path}: not a profile of ONNX Runtime", why="it tells of no run", next="run once more with --profile"
        )
    return origins.measured(times, unit="us", on=where.__getitem__)


def _events(path: Path) -> Iterator[Json]:
    """The events one by one: ONNX Runtime writes each in a line of its own, so the last one may lack."""
    with open_regular(path, limit=_LARGEST) as stream:
        while line := stream.readline(_LONGEST_LINE):
            if event := json_object(line.strip().rstrip(b",")):
                yield event


class EstimateRow(Published):
    """One operator on the device beside the compiler's estimate, in cycles and as part of all operators of its side.

    None where one of both does not know it: an operator that is fused into another has no cost of its own there.
    """

    node: str
    cycles: float | None
    share: float | None
    estimated_cycles: float | None
    estimated_share: float | None


def beside_estimate(package: Path, manifest: Json, operators: Iterable[MeasuredOperator]) -> tuple[EstimateRow, ...]:
    """Measured cycles beside the estimate of a package, the dearest on the device first; () where it has none.

    Single operators are known by the trace that the package holds. Raises InputError for one of another shape.
    """
    estimate = manifest.get("estimate") or {}
    measured: dict[str, float] = defaultdict(float)
    for one in operators:
        if one.unit == "cycles":
            measured[one.node or one.raw] += one.value
    timeline = package / str(estimate.get("timeline") or "artifacts/timeline.json")
    if not measured or not estimate.get("time_us") or not timeline.is_file():
        return ()
    try:
        cycles_per_us = estimate["cycles"] / estimate["time_us"]
        guessed = {one.node: one.share * cycles_per_us for one in operator_times(_trace(read_json(timeline)))}
    except (LookupError, TypeError, ValueError) as error:
        raise InputError(f"{timeline}: not the trace of an estimate", why=repr(error)) from None
    sides = []
    for side in (measured, guessed):
        whole = sum(side.values()) or math.inf
        sides.append({node: (value, value / whole) for node, value in side.items()})
    found = []
    for node in {**measured, **guessed}:
        (cycles, share), (wanted, part) = (side.get(node, (None, None)) for side in sides)
        found.append(EstimateRow(node=node, cycles=cycles, share=share, estimated_cycles=wanted, estimated_share=part))
    return tuple(sorted(found, key=lambda row: (-(row.cycles or 0.0), -(row.estimated_cycles or 0.0), row.node)))


def _trace(timeline: Json) -> Iterator[TraceEvent]:
    """The kernels of a trace that a package keeps, in microseconds."""
    for row in timeline["traceEvents"]:
        if row["ph"] == "X":
            start, took = float(row["ts"]), float(row["dur"])
            yield TraceEvent(node=row["name"], thread=str(row["tid"]), start=start, duration=took, unit=row["cat"])
