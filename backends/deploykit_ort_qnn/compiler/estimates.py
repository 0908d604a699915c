"""Reads the compiler's times: its performance estimate, and the simulated trace of every kernel.

The provider writes both while a graph is finalized, if the compiler has a cost model of the SoC (observed with QAIRT
2.51: soc_model 52, 62, 63, 72 and 77). Nothing is estimated here.
"""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from deploykit.accuracy.latency import Estimate, OperatorTime, TraceEvent, Unit, operator_times
from deploykit.devices.profiles import Origins
from deploykit.errors import InputError
from deploykit.tables.devices import Device
from deploykit_ort_qnn.compiler.graphs import QnnGraph, Schematic
from deploykit_qualcomm.devices import arch_of, qualcomm_devices
from deploykit_qualcomm.profiles import profile_rows

__all__ = ["compiled_origins", "nearest_estimated", "read_estimate"]

# The HTPs that the compiler of QAIRT 2.51 has a cost model for; 62 values of soc_model were tried.
_ESTIMATED = (52, 62, 72, 77)
# A trace of more kernels is summed up and not passed on: no page would show it.
_MOST_EVENTS = 200_000

_ROOT = "Performance Estimates"
_ROWS = {
    "Simulated (Accelerator exec time us)": "time_us",
    "Simulated (Accelerator exec time us (lower estimate))": "lower_us",
    "Simulated (Accelerator exec time us (upper estimate))": "upper_us",
    "Simulated (Accelerator exec cycles)": "cycles",
    # The unit column of this row says US; the value is a count.
    "Missing Ops (Number of Ops with no Costs associated)": "missing_ops",
    "Input Fill": "input_fill",
    "Intermediate Fill": "intermediate_fill",
    "Intermediate Spill": "intermediate_spill",
    "Output Spill": "output_spill",
}
_DDR = ("input_fill", "intermediate_fill", "intermediate_spill", "output_spill")
_ORIGIN = 0xFFFFFFFF  # the low half of an operation's number is the number of the node it was made from
_CLOCK = re.compile(rb'"sim_core_freq"\s*:\s*([0-9.eE+]+)')
# Operators that the matrix unit computes if their types and shapes allow it.
_PRODUCTS = frozenset({"Conv2d", "DepthWiseConv2d", "FullyConnected", "MatMul", "TransposeConv2d"})
# The compiler's own first operations, which its table of names does not list.
_GRAPH_ENDS = {2: "graph input", 3: "graph output"}
_LONGEST_LINE = 1 << 20


class _Moved(msgspec.Struct, frozen=True):
    """Bytes read from and written to DDR."""

    dram_read: int = 0
    dram_write: int = 0


class _TraceArguments(msgspec.Struct, frozen=True):
    """The arguments of an event: ``name`` is that of a thread, the other fields describe a kernel."""

    name: str = ""
    id: str = "0"
    flags: tuple[str, ...] = ()
    bw_info: _Moved = _Moved()


class _TraceRow(msgspec.Struct, frozen=True):
    """One event of a Chrome trace: a thread's name (``M``) or a kernel (``X``)."""

    name: str
    ph: str
    tid: int
    args: _TraceArguments
    ts: float = 0.0
    dur: float = 0.0


_ROWS_OF_TRACE = msgspec.json.Decoder(_TraceRow, strict=False)
_WANTED = re.compile(rb'"ph"\s*:\s*"X"|"name"\s*:\s*"thread_name"')


class _Trace(Struct, frozen=True):
    """The events of one trace file; ``whole`` is False if its end is missing."""

    events: tuple[TraceEvent, ...] = ()
    clock_mhz: float = 0.0
    whole: bool = False


def read_estimate(
    profile: Path,
    graphs: Sequence[QnnGraph],
    schematics: Sequence[Schematic],
    *,
    chip: str,
    nodes: Collection[str] = (),
) -> Estimate | None:
    """The estimate of one compilation, summed over its graphs; None if the compiler has no cost model of this SoC.

    ``profile`` is the CSV; the trace lies beside it. ``nodes`` are the names of the user's operators.
    """
    rows = _estimate_rows(profile)
    if not rows.get("cycles") or not rows.get("time_us"):
        return None
    trace = profile.with_name(f"{profile.stem}_qnn.log")
    note, read, operators = "", _Trace(), tuple[OperatorTime, ...]()
    if len(schematics) != 1 or len(graphs) != 1:
        note = f"the model became {len(graphs)} graphs, and their kernels cannot be told apart"
    elif trace.is_file():
        origins = compiled_origins(graphs, dict.fromkeys(nodes, ""))
        labels = {number: origins.node(name) for number, name in schematics[0].names.items()}
        read = read_trace(trace, _GRAPH_ENDS | labels)
        if read.whole:
            # The reason for an operator's time that a user can act on, if the trace shows one.
            kinds = {origins.node(node.name): node.type for node in graphs[0].nodes}
            for item in operator_times(read.events):
                reason = ""
                if item.node.startswith("layout of "):
                    reason = "a transpose between the model's layout and the chip's channel-last one"
                    reason += " (at a border: --io nhwc)"
                elif item.waiting > item.share / 3:
                    reason = f"waits for {item.ddr_bytes:,} bytes from or to DDR"
                elif kinds.get(item.node) in _PRODUCTS and not item.busy.get("matrix"):
                    reason = "a product that is not on the matrix unit, for its type or its shape"
                operators += (replace(item, reason=reason),)
        else:
            note = "the compiler's trace is cut off"
    return Estimate(
        time_us=rows["time_us"],
        lower_us=rows.get("lower_us", 0.0),
        upper_us=rows.get("upper_us", 0.0),
        cycles=int(rows["cycles"]),
        ddr={name: int(rows.get(name, 0)) for name in _DDR},
        missing_ops=int(rows.get("missing_ops", 0)),
        soc_model=chip,
        clock_mhz=read.clock_mhz,
        operators=operators,
        events=read.events if read.whole and len(read.events) <= _MOST_EVENTS else (),
        note=note,
    )


def nearest_estimated(device: Device) -> Device | None:
    """The nearest chip that the compiler has a cost model for; None if the device's own chip is one of these.

    The nearest has the nearest architecture, then the nearest size of fast
    memory. No factor converts one time to the other.
    """
    if device.fact("soc_model") in _ESTIMATED:
        return None

    def size(one: Device) -> tuple[int, int]:
        memory = one.fact("vtcm_mb")
        return int((arch_of(one) or "v0").removeprefix("v")), memory if isinstance(memory, int) else 0

    own = size(device)
    known = [one for one in qualcomm_devices() if one.fact("soc_model") in _ESTIMATED]
    return min(known, key=lambda one: (*(abs(a - b) for a, b in zip(size(one), own, strict=True)), one.id))


def compiled_origins(graphs: Iterable[QnnGraph], nodes: Mapping[str, str]) -> Origins:
    """The mapping from names in compiled graphs to ``nodes``, the operators of the model with their types.

    A transpose that the provider inserts for its channel-last layout is attributed to the operator that needs it.
    """
    plain = Origins(nodes=nodes)
    layouts = {}
    for graph in graphs if nodes else ():
        for node in graph.nodes:
            if node.type != "Transpose" or plain.node(node.name) in nodes:
                continue
            beside = [reader for name in node.outputs for reader in graph.consumers.get(name, ())]
            beside += [graph.producers[name] for name in node.inputs if name in graph.producers]
            found = next((name for one in beside if (name := plain.node(one.name)) in nodes), None)
            if found is not None:
                layouts[node.name] = f"layout of {found}"
    return Origins(nodes=nodes, layouts=layouts)


def _estimate_rows(profile: Path) -> dict[str, float]:
    """The sums over the blocks of all graphs; empty if there is no block, or the file cannot be read."""
    sums = dict[str, float]()
    inside = False
    try:
        for row in profile_rows(profile):
            if row.level == "ROOT":
                inside = row.name == _ROOT
            elif inside and row.name in _ROWS:
                sums[_ROWS[row.name]] = sums.get(_ROWS[row.name], 0.0) + row.value
    except InputError:
        return {}
    return sums if all(map(math.isfinite, sums.values())) else {}


def read_trace(path: Path, labels: Mapping[int, str]) -> _Trace:
    """Reads the kernels of a trace line by line: a Chrome trace as text inside a binary file of any size."""
    events = []
    threads = dict[int, str]()
    clock, whole = 0.0, False
    with path.open("rb") as stream:
        while line := stream.readline(_LONGEST_LINE):
            if (at := line.find(b'{"name":')) < 0:
                if found := _CLOCK.search(line):
                    # The configuration of the simulation follows the last event.
                    clock, whole = float(found[1]), True
                continue
            if not _WANTED.search(line, at):
                continue  # counters, which are most of a trace
            try:
                row = _ROWS_OF_TRACE.decode(line[at : line.rfind(b"}") + 1])
            except msgspec.DecodeError:
                continue  # the last line of a trace that is cut off
            if row.ph == "M":
                threads[row.tid] = row.args.name.rstrip(": ")
            else:
                thread = threads.get(row.tid, "") or (
                    "FG" if row.tid == 0 else "DMA" if row.tid >= 5 else f"HVX {row.tid}"
                )
                unit: Unit = "scalar"
                if "uses_hmx" in row.args.flags:
                    unit = "matrix"
                elif thread.startswith("DMA") or "_DMA" in thread:
                    unit = "dma"
                elif thread.startswith("HVX"):
                    unit = "vector"
                moved = row.args.bw_info
                events.append(
                    TraceEvent(
                        node=labels.get(int(row.args.id, 16) & _ORIGIN, "(unnamed)"),
                        thread=thread,
                        start=row.ts,
                        duration=row.dur,
                        unit=unit,
                        ddr_bytes=moved.dram_read + moved.dram_write if unit == "dma" else 0,
                        kernel=sys.intern(row.name),
                    )
                )
    return _Trace(events=tuple(events), clock_mhz=clock, whole=whole)
