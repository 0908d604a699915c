"""Reads how long a profiler says single operators took, under the names that the user knows. It runs nothing.

This module reads ONNX Runtime's own profile; an adapter reads its vendor's profile and uses the names from here. Cycles
are not converted to time: operators run in parallel, so their cycles do not add up to a duration.
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
from deploykit.backend.on_device import MeasuredOperator
from deploykit.errors import InputError
from deploykit.findings.records import Json, Published, Record
from deploykit.model.operators import QUANTIZERS
from deploykit.system.files import open_regular
from deploykit.system.jobs import json_object
from deploykit.tables.reading import read_json

__all__ = ["EstimateRow", "Origins", "beside_estimate", "origins_of", "read_session_profile", "units_of"]

_GRAPH_ENDS = {"input": "graph input", "output": "graph output"}
# What ONNX Runtime and providers append to reused or fused names. The prefix of a fused name is removed in ``node``.
_SUFFIX = re.compile(r"_token_\d+$|_\d+$|/duplicated$|\.nchw$|\.nhwc$|/\w+Fusion/?$|_new_reshape$")
_KERNEL = re.compile(r"(.*)_kernel_time$", re.DOTALL)
_LARGEST, _LONGEST_LINE = 1 << 30, 1 << 20


class Origins(Record, dict=True):
    """Maps names in a profile back to the operators of the packaged model. ``nodes`` maps names to operator types.

    ``layouts`` maps the transposes that a compiler inserts to the names of what they are inserted for.
    """

    nodes: Mapping[str, str]
    layouts: Mapping[str, str] = {}

    @cached_property
    def _spelled(self) -> dict[str, str]:
        """Maps each name, and its spelling by converters, to the name; if two
        share a spelling, the first in the model wins.
        """
        from deploykit.answers.diagnosis.names import mangle

        return {mangle(name): name for name in reversed(list(self.nodes))} | {name: name for name in self.nodes}

    def node(self, raw: str) -> str:
        """Return the user's operator, graph end or layout that a raw name
        stands for, or the name itself if there is none.
        """
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
        """Return one operator per raw name, with the median over its runs; the most expensive first."""
        found = []
        for raw, values in rows.items():
            node, where = self.node(raw), on(raw)
            kind = self.nodes.get(node, "")
            found.append(MeasuredOperator(node=node, raw=raw, value=median(values), unit=unit, op_type=kind, on=where))
        return tuple(sorted(found, key=lambda one: (-one.value, one.raw)))


def origins_of(model: Path) -> Origins:
    """Return the operators of one ONNX file. An operator without a name uses its first output, as in ONNX Runtime."""
    import onnx

    graph = onnx.load(model, load_external_data=False).graph
    return Origins(nodes={node.name or next(iter(node.output), ""): node.op_type for node in graph.node})


def units_of(operators: Iterable[MeasuredOperator]) -> dict[str, int]:
    """Count how many operators of the model ran on each unit; one with parts on several units counts for the first.

    The order of units is NPU, GPU, CPU. Conversions between types are not counted.
    """
    where = dict[str, str]()
    for unit in ("NPU", "GPU", "CPU"):
        for one in operators:
            if one.on == unit and one.op_type not in ("", *QUANTIZERS):
                where.setdefault(one.node, unit)
    return dict(Counter(where.values()))


def read_session_profile(path: Path, origins: Origins, units: Mapping[str, str]) -> tuple[MeasuredOperator, ...]:
    """Read the microseconds of each kernel from a profile that ONNX Runtime wrote; the most expensive first.

    ``units`` maps each provider to its unit (``NPU``). A truncated file is read up to its
    end. Raises InputError if it contains no run.
    """
    times: dict[str, list[float]] = defaultdict(list)
    where = dict[str, str]()
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
    """Yield the events. ONNX Runtime writes one per line, so in a truncated file only the last one is missing."""
    with open_regular(path, limit=_LARGEST) as stream:
        while line := stream.readline(_LONGEST_LINE):
            if event := json_object(line.strip().rstrip(b",")):
                yield event


class EstimateRow(Published):
    """Compares one operator on the device with the compiler's estimate, in cycles and as a share of all operators.

    A value is None if that side does not know the operator: a fused operator has no cost of its own.
    """

    node: str
    cycles: float | None
    share: float | None
    estimated_cycles: float | None
    estimated_share: float | None


def beside_estimate(package: Path, manifest: Json, operators: Iterable[MeasuredOperator]) -> tuple[EstimateRow, ...]:
    """Compare measured cycles with the estimate of a package, the most expensive on the device first.

    Returns () if the package has no estimate. The operators come from the trace in the package.
    Raises InputError if that has another format.
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
        events = [  # the kernels, in microseconds
            TraceEvent(row["name"], str(row["tid"]), float(row["ts"]), float(row["dur"]), row["cat"])
            for row in read_json(timeline)["traceEvents"]
            if row["ph"] == "X"
        ]
        guessed = {one.node: one.share * cycles_per_us for one in operator_times(events)}
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
