"""The page of one run on a device: the verdicts of device and emulator, times, operators, and the runs before it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from deploykit.accuracy.latency import in_time
from deploykit.backend.status import status_from_json
from deploykit.report.charts import share_of
from deploykit.report.rendering import render

__all__ = ["render_run"]

_DEAREST = 20


def render_run(record: Mapping[str, Any], runs: Sequence[Mapping[str, Any]]) -> str:
    """One self-contained page, from a record as it is published and the entries of all runs of its package."""
    right, latency = record["right"], record["latency"] or {}
    facts = [("right", f"{status_from_json(right).right} ({record['where']})")]
    if record["emulator"] is not None:
        facts.append(("emulator", str(status_from_json(record["emulator"]).right)))
    facts += [("device", " ".join(filter(None, (record["device"][key] for key in ("soc", "system", "release")))))]
    facts += [("power", record["power"]), ("started", record["started"] or "by its shell"), ("times", record["times"])]
    heat = [f"{value:.0f} °C" for value in record["temperature"].values() if value is not None]
    facts += [("temperature", " to ".join(heat))] if heat else []
    facts += [(name, build or "unknown") for name, build in record["libraries"].items()]
    times = [(key, in_time(latency[f"{key}_us"])) for key in ("min", "median", "p90", "p99", "max")] if latency else []
    times += [("start", in_time(record["init_us"]))] if record["init_us"] is not None else []
    whole = {unit: sum(one["value"] for one in record["operators"] if one["unit"] == unit) for unit in ("cycles", "us")}
    dearest = sorted(record["operators"], key=lambda one: -float(one["value"]))[:_DEAREST]
    values = {
        "target": record["target"],
        "state": {"yes": "good", "no": "bad"}.get(right["right"], "open"),
        "word": {"yes": "right", "no": "wrong"}.get(right["right"], "not judged"),
        "facts": facts,
        "outputs": [[row["output"], *(_decibels(row[f"{side}_db"]) for side in _SIDES)] for row in record["outputs"]],
        "times": times,
        "trend": (latency.get("trend") or {}).get("words", ""),
        "operators": [
            (
                one["node"] or one["raw"],
                one["op_type"],
                f"{one['value']:,.0f} {one['unit']}",
                one["on"],
                f"{share_of(one['value'], whole[one['unit']]):.0f} %",
            )
            for one in dearest
        ],
        "runs": [
            (
                run["id"],
                run["device"],
                run["where"],
                run["right"],
                "" if run["p90_us"] is None else in_time(run["p90_us"]),
            )
            for run in reversed(runs)
        ],
    }
    return render("run.html.j2", values)


_SIDES = ("device", "emulator", "beside")


def _decibels(value: float | None) -> str:
    return "–" if value is None else f"{value:.1f} dB"
