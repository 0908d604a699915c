"""Turns numbers into shapes for the pages: bars, points, small histograms, ranges on one axis, in percent.

Also the kernels of an estimate on their threads, and the network as a strip of its nodes. It is arithmetic on plain
values; templates draw the shapes.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import TYPE_CHECKING

from deploykit.accuracy.latency import Estimate, TraceEvent, in_time
from deploykit.encodings.values import Affine, EncodingSet
from deploykit.findings import Finding, Severity
from deploykit.findings.records import Json

if TYPE_CHECKING:
    from deploykit.backend.plans import PlannedPrecision
    from deploykit.model.facts import GraphFacts

__all__ = [
    "decibels",
    "loss_bars",
    "network_strip",
    "range_chart",
    "share_of",
    "spark",
    "spread",
    "timeline",
]

_ROOM_DB = 10.0
"""The axis begins this far above the best value, so that the best bar still shows."""


def share_of(value: float, most: float) -> float:
    """``value`` in percent of the longest bar, 0 to 100."""
    return round(100 * min(max(value / most, 0.0), 1.0), 2) if most > 0 else 0.0


def decibels(value: float) -> str:
    """A signal-to-noise ratio for people."""
    if math.isnan(value):
        return "–"
    return f"{value:.1f} dB" if math.isfinite(value) else ("no difference" if value > 0 else "nothing left")


def loss_bars(rows: Sequence[tuple[str, Mapping[str, float]]], clean: float | None = None) -> list[Json]:
    """Bars for signal-to-noise ratios in dB: a label, and per series the length in percent and the number in words.

    A longer bar is worse. An output without any difference has length 0. ``clean`` is the value with length 0, and 0 dB
    fills the bar; without it the axis spans the given values.
    """
    known = [db for _, series in rows for db in series.values() if math.isfinite(db)]
    best = max(known, default=0.0) + _ROOM_DB if clean is None else clean
    span = max(best - min(known, default=0.0), 1.0) if clean is None else clean
    return [
        {
            "label": label,
            "lengths": {name: share_of(best - db, span) for name, db in series.items()},
            "words": {name: decibels(db) for name, db in series.items()},
        }
        for label, series in rows
    ]


def spark(counts: Sequence[int]) -> tuple[float, ...]:
    """The heights of a small histogram in percent, as square roots, so that rare values can be seen."""
    peak = max(counts, default=0)
    return tuple(round(100 * math.sqrt(count / peak), 1) if peak else 0.0 for count in counts)


def spread(points: Sequence[tuple[float, float, str]]) -> list[Json]:
    """Points by (x, y, title), in percent from left and top; infinite values are at the nearer edge, NaN in
    the middle.
    """

    def shares(values: Sequence[float]) -> list[float]:
        known = [value for value in values if math.isfinite(value)]
        low, high = (min(known), max(known)) if known else (0.0, 1.0)
        return [
            50.0 if math.isnan(value) or high == low else 4 + 92 * (min(max(value, low), high) - low) / (high - low)
            for value in values
        ]

    across, upwards = shares([x for x, _, _ in points]), shares([y for _, y, _ in points])
    return [
        {"left": round(x, 2), "top": round(100 - y, 2), "title": title}
        for x, y, (_, _, title) in zip(across, upwards, points, strict=True)
    ]


_MOST_BARS = 60
_FLOAT16 = (("smallest normal float16", 2.0**-14), ("largest float16", 65504.0))
_LEAST, _MOST = 1e-12, 1e12
"""The axis never goes further: masks of 1e30 would press everything else together."""


def range_chart(encodings: EncodingSet) -> Json | None:
    """The 60 activations of largest magnitude, with a grid of one step each; None without any.

    A bar has, in percent of the axis, the size of one step in 16 and in 8 bits, and its largest value; ``ticks`` and
    float16's ``limits`` are (words, percent).
    """
    rows = []
    for entry in encodings:
        value = entry.value
        if isinstance(value, Affine) and not entry.is_param and value.granularity == "per-tensor":
            low, high = value.ends
            if reach := max(abs(low), abs(high)):
                rows.append((reach, entry.name, entry.dtype, low, high))
    if not rows:
        return None
    shown = sorted(rows, key=lambda row: (-row[0], row[1]))[:_MOST_BARS]
    steps = [max((high - low) / 65535, _LEAST) for *_, low, high in shown]
    first = math.floor(math.log10(max(min(*steps, _FLOAT16[0][1]), _LEAST)))
    last = math.ceil(math.log10(min(max(shown[0][0], _FLOAT16[1][1]), _MOST)))

    def place(value: float) -> float:
        # In percent from the left; a value beyond the axis is at its end.
        return share_of(math.log10(min(max(value, _LEAST), _MOST)) - first, last - first)

    return {
        "bars": [
            {
                "name": name,
                "dtype": dtype,
                "low": low,
                "high": high,
                "sixteen": place((high - low) / 65535),
                "eight": place((high - low) / 255),
                "end": place(reach),
                "beyond": reach > _FLOAT16[1][1],
            }
            for reach, name, dtype, low, high in shown
        ],
        "ticks": [
            (f"1e{power}", place(10.0**power)) for power in range(first, last + 1, max(1, round((last - first) / 8)))
        ],
        "limits": [(words, place(value)) for words, value in _FLOAT16],
        "total": len(rows),
    }


_MOST_STRETCHES = 1500  # each is about 150 characters of the page
_TICKS = 4


def timeline(estimate: Estimate) -> Json | None:
    """The kernels of an estimate on their threads; None if no trace was read.

    Kernels too short to be seen apart are merged into one stretch; ``merged`` is
    the time below which this happens, "" for none.
    """
    scale, events = estimate.us_per_cycle, sorted(estimate.events, key=lambda event: (event.thread, event.start))
    end = max((event.start + event.duration for event in events), default=0.0)
    if not end or not scale:
        return None
    threads = {name: list(group) for name, group in groupby(events, key=lambda event: event.thread)}

    def drawn(run: Sequence[TraceEvent]) -> Json:
        longest = max(run, key=lambda event: event.duration)
        first, last = run[0].start, max(event.start + event.duration for event in run)
        busy = in_time(sum(event.duration for event in run) * scale)
        others = f", with {len(run) - 1} shorter ones" if len(run) > 1 else f" {longest.kernel}".rstrip()
        words = f"{longest.node}\n{busy} at {in_time(first * scale)}{others}"
        width = max(round(100 * (last - first) / end, 3), 0.05)
        return {"left": round(100 * first / end, 3), "width": width, "unit": longest.unit, "words": words}

    def runs(row: Sequence[TraceEvent], step: float) -> Iterator[list[TraceEvent]]:
        run = list[TraceEvent]()
        for event in row:
            if run and event.start + event.duration - run[0].start > step:
                yield run
                run = []
            run.append(event)
        yield run

    # Half a pixel of a wide screen, or more until there are few enough stretches.
    step = end / 2000 if len(events) > _MOST_STRETCHES else 0.0
    while step and sum(1 for row in threads.values() for _ in runs(row, step)) > _MOST_STRETCHES:
        step *= 2
    return {
        "lanes": [
            {
                "name": name,
                "busy": in_time(sum(event.duration for event in row) * scale),
                "stretches": list(map(drawn, runs(row, step))),
            }
            for name, row in threads.items()
        ],
        "ticks": [(in_time(end * scale * at / _TICKS), 100 * at / _TICKS) for at in range(_TICKS + 1)],
        "merged": in_time(step * scale) if step else "",
    }


# A page of more nodes would be slow to open.
_MOST_NODES = 2500
# The share of the time from which a node has a heat colour; among a thousand nodes a median one has 0.1 %.
_HEAT = ((0.15, "h-4"), (0.05, "h-3"), (0.02, "h-2"), (0.005, "h-1"), (0.0, "h-0"))


def network_strip(
    precision: PlannedPrecision,
    facts: GraphFacts,
    findings: Iterable[Finding],
    *,
    shares: Mapping[str, float] | None = None,
    kind: str = "",
) -> Json | None:
    """The graph's first computing nodes, by type and by share of the time; None if there are none.

    Neighbours with the same type, or the same heat, form one run; ``noted`` marks open findings. ``shares`` are those
    of the time, by node label. ``kind`` is the type of all nodes if the plan states none.
    """
    codes = dict[str, dict[str, None]]()
    for finding in findings:
        if finding.handled is None and finding.severity is not Severity.INFO:
            codes.setdefault(finding.subject.name, {})[f"{finding.code} {finding.slug}"] = None

    def first(types: Mapping[str, str], names: Sequence[str]) -> str:
        return next((types[name] for name in names if name in types), "" if types else kind)

    computing = [node for node in facts.nodes if any(node.inputs)]
    # For each node its name, its expected or else intended type, its open findings, and its share.
    nodes = [
        (
            node.label,
            first(precision.expected, node.outputs) or first(precision.intended, node.outputs),
            [code for name in dict.fromkeys((node.label, *node.outputs)) for code in codes.get(name, ())],
            (shares or {}).get(node.label, 0.0),
        )
        for node in computing[:_MOST_NODES]
    ]
    runs, heat = [], []
    for (type_name, noted), alike in groupby(nodes, key=lambda node: (node[1], bool(node[2]))):
        same = list(alike)
        where = same[0][0] if len(same) == 1 else f"{len(same)} nodes, {same[0][0]} to {same[-1][0]}"
        told = dict.fromkeys(code for node in same for code in node[2])
        words = "\n".join([type_name or "no type of its own", where, *told])
        runs.append({"kind": type_name, "count": len(same), "noted": noted, "words": words})
    timed = nodes if any(node[3] for node in nodes) else []
    for colour, alike in groupby(timed, key=lambda node: next(heat for least, heat in _HEAT if node[3] >= least)):
        same = list(alike)
        names = [f"{label}: {share:.1%}" for label, _, _, share in same[:10]]
        more = [f"and {len(same) - 10} more nodes"] if len(same) > 10 else []
        whole = f"{sum(node[3] for node in same):.1%} of the time"
        heat.append({"kind": colour, "count": len(same), "noted": False, "words": "\n".join([whole, *names, *more])})
    if not nodes:
        return None
    return {
        "runs": runs,
        "heat": heat,
        "kinds": sorted({run["kind"] for run in runs} - {""}),
        "heat_key": [(heat, f"from {least:.1%}" if least else "less") for least, heat in reversed(_HEAT)],
        "count": len(nodes),
        "total": len(computing),
    }
