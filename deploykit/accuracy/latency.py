"""How long a compiled model takes by its compiler's own cost model, as a whole and per operator; nothing is measured.

An estimate is the accelerator's time alone: transport and the host come on top. It knows no vendor and reads no file.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from itertools import groupby
from typing import Literal, TypeAlias

from msgspec import Struct

from deploykit.errors import UsageError
from deploykit.findings.records import Json, Published, Record, published, replace

__all__ = [
    "Estimate",
    "OperatorTime",
    "TraceEvent",
    "Unit",
    "chrome_trace",
    "in_time",
    "operator_times",
    "read_time",
]

Unit: TypeAlias = Literal["matrix", "vector", "scalar", "dma"]
"""What a kernel keeps busy: the matrix unit, a vector thread, the foreground thread, or a transfer from or to DDR."""


class TraceEvent(Struct, frozen=True):
    """One kernel on one thread, in cycles from the start of the run. ``node`` is the operator it was made from."""

    node: str
    thread: str
    start: float
    duration: float
    unit: Unit
    ddr_bytes: int = 0
    kernel: str = ""


class OperatorTime(Record):
    """The time of one operator, in cycles.

    ``share`` is its part of the whole time: where kernels of several operators run at once they share the moment, and a
    moment in which nothing computes belongs to the operator that waits, counted in ``waiting`` as well. All shares add
    up to the whole. ``busy`` adds up threads of each unit, so it may exceed the share. ``reason`` says why the operator
    takes long, where the trace shows it.
    """

    node: str
    share: float
    waiting: float
    busy: Mapping[Unit, float]
    ddr_bytes: int
    reason: str = ""

    def to_json(self, us_per_cycle: float) -> Json:
        """Times in microseconds."""
        return {
            "node": self.node,
            "time_us": round(self.share * us_per_cycle, 3),
            "waiting_us": round(self.waiting * us_per_cycle, 3),
            "busy_us": {unit: round(cycles * us_per_cycle, 3) for unit, cycles in sorted(self.busy.items())},
            "ddr_bytes": self.ddr_bytes,
            "reason": self.reason,
        }


class Estimate(Published):
    """The compiler's estimate for one chip; times are in microseconds.

    ``ddr`` is in bytes by kind of traffic, ``clock_mhz`` the accelerator's (0 where it is not known). ``missing_ops``
    counts operators without a cost: the time is then a lower bound. ``operators`` are the dearest first, ``events`` all
    kernels of the trace; both are empty, with ``note`` saying why, where no whole trace could be read. ``soc_model`` is
    the compiler's number of the chip, ``chip`` its name. ``instead_of`` is the chip that was asked for, where the
    compiler has no model of that chip: the time is not that chip's. ``timeline`` is where a package holds the trace.
    """

    time_us: float
    lower_us: float
    upper_us: float
    cycles: int
    ddr: Mapping[str, int] = {}
    missing_ops: int = 0
    compiler: str = ""
    soc_model: str = ""
    clock_mhz: float = 0.0
    operators: tuple[OperatorTime, ...] = ()
    events: tuple[TraceEvent, ...] = ()
    note: str = ""
    chip: str = ""
    instead_of: str = ""
    timeline: str = ""

    @property
    def us_per_cycle(self) -> float:
        """Microseconds per cycle of the simulated accelerator, 0 where no cycles are known."""
        return self.time_us / self.cycles if self.cycles else 0.0

    @property
    def described(self) -> str:
        """One line for people, with the compiler's own bounds and what it leaves out."""
        least = "at least " if self.missing_ops else "about "
        line = f"{least}{in_time(self.time_us)} on the accelerator"
        line += f" ({in_time(self.lower_us)} to {in_time(self.upper_us)}), by the compiler's own model for "
        line += self.chip or self.soc_model
        if self.instead_of:
            line = f"no estimate for {self.instead_of}; {line}, the nearest chip that it has a model of"
        if self.missing_ops:
            line += f"; {self.missing_ops} operators have no cost in it"
        waiting = sum(1 for item in self.operators if item.waiting > 0.05 * item.share and item.share > 0)
        verb = "operator waits" if waiting == 1 else "operators wait"
        return f"{line}; {waiting} {verb} for DDR" if waiting else line

    def as_published(self) -> Json:
        """The published fields with the ten dearest operators, and no kernels."""
        dearest = [item.to_json(self.us_per_cycle) for item in self.operators[:10]]
        return published(self, without=("operators", "events")) | {"dearest": dearest}


def in_time(us: float) -> str:
    """A time in microseconds as a text for people, in ms or us."""
    if us >= 1000:
        return f"{us / 1000:.2f} ms"
    return f"{us:.0f} us" if us >= 100 or us == 0 else f"{us:.2g} us"


_UNITS = {"s": 1e6, "ms": 1e3, "us": 1.0}


def read_time(text: str, option: str = "--max-time") -> float:
    """The microseconds in ``5ms``, ``800us`` or ``0.2 s``; a number alone is milliseconds, an empty text is 0.

    Raises UsageError for any other text, and names ``option``.
    """
    found = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)\s*(s|ms|us)?", text.strip())
    if not text:
        return 0.0
    if found is None or not float(found[1]):
        raise UsageError(f"{option} {text}: no time", next="5ms, 800us or 0.2s")
    return float(found[1]) * _UNITS[found[2] or "ms"]


def chrome_trace(estimate: Estimate) -> Json:
    """The kernels of an estimate as a trace that Perfetto and Chrome open: a row per thread, times in microseconds."""
    threads = {name: number for number, name in enumerate(sorted({event.thread for event in estimate.events}))}
    rows = [
        {"ph": "M", "name": "thread_name", "pid": 1, "tid": number, "args": {"name": name}}
        for name, number in threads.items()
    ]
    scale = estimate.us_per_cycle
    rows += [
        {
            "ph": "X",
            "name": event.node,
            "cat": event.unit,
            "pid": 1,
            "tid": threads[event.thread],
            "ts": round(event.start * scale, 4),
            "dur": round(event.duration * scale, 4),
            "args": {"kernel": event.kernel, "ddr_bytes": event.ddr_bytes},
        }
        for event in sorted(estimate.events, key=lambda event: (threads[event.thread], event.start))
    ]
    return {"displayTimeUnit": "ns", "otherData": {"what": estimate.described}, "traceEvents": rows}


def operator_times(events: Iterable[TraceEvent]) -> tuple[OperatorTime, ...]:
    """The time of each operator, the dearest first. ``events`` come in any order; one pass over them sorted by start.

    Transfers run beside the computing and count for their operator only while nothing computes: that is a wait.
    """
    ordered = sorted(events, key=lambda event: (event.start, event.node, event.thread))
    totals = dict[str, OperatorTime]()
    for node, group in groupby(sorted(ordered, key=lambda event: event.node), key=lambda event: event.node):
        busy: dict[Unit, float] = defaultdict(float)
        moved = 0
        for event in group:
            busy[event.unit] += event.duration
            moved += event.ddr_bytes
        totals[node] = OperatorTime(node=node, share=0.0, waiting=0.0, busy=dict(busy), ddr_bytes=moved)
    shares, waits = _shares(ordered)
    found = (replace(item, share=shares.get(node, 0.0), waiting=waits.get(node, 0.0)) for node, item in totals.items())
    return tuple(sorted(found, key=lambda item: (-item.share, item.node)))


def _shares(ordered: list[TraceEvent]) -> tuple[dict[str, float], dict[str, float]]:
    """The share of each operator in the whole time, and the part of the share in which it only waits, in cycles."""
    shares: dict[str, float] = defaultdict(float)
    waits: dict[str, float] = defaultdict(float)
    # The number of kernels of each operator that run at the moment.
    computing = dict[str, int]()
    moving = dict[str, int]()
    starts = [(event.start, 1, place) for place, event in enumerate(ordered)]
    ends = [(event.start + event.duration, -1, place) for place, event in enumerate(ordered) if event.duration > 0]
    now = ordered[0].start if ordered else 0.0
    for moment, change, place in sorted([*starts, *ends]):
        event = ordered[place]
        if moment > now:  # where nothing runs, the operator that comes next has waited
            nodes = computing or moving or (event.node,)
            for node in nodes:
                shares[node] += (moment - now) / len(nodes)
                waits[node] += 0.0 if computing else (moment - now) / len(nodes)
            now = moment
        if event.duration > 0:
            running = moving if event.unit == "dma" else computing
            running[event.node] = running.get(event.node, 0) + change
            if not running[event.node]:
                del running[event.node]
    return shares, waits
