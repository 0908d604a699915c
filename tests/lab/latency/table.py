"""Holds the compiler's estimates against published measurements: errors by family and precision, bands, ranks.

The constants are fitted on one half of the networks and shown on the other; a band is what held for nine in ten of
networks that were left out. No number here comes from the product's own code.
"""

from __future__ import annotations

import json
import math
import statistics
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any

__all__ = ["print_table"]

# Beyond it estimates were up to ten times off; between 1.6 and 1.7 one of two held.
WIDEST = 1.6
# Rows of the provider come first: the estimate is of its graph. The others went through the vendor's converter.
_ENDS = {"QuantizeLinear", "DequantizeLinear"}  # what the host does with an integer graph's inputs and outputs
_RUNTIMES = ("onnx", "precompiled_qnn_onnx", "qnn_dlc", "qnn_context_binary")


@dataclass(frozen=True, slots=True)
class _Pair:
    """What the compiler estimates and what was published, in milliseconds."""

    name: str
    precision: str
    family: str
    runtime: str
    estimate: float
    measured: float
    spill: int
    missing: int
    release: str
    spread: float  # upper bound of the compiler by its lower one


def print_table(estimates: Path, checkout: Path, device: str) -> None:
    """Markdown on standard output."""
    rows = json.loads(estimates.read_text())
    networks = json.loads((estimates.parent / "networks.json").read_text())
    pairs: list[_Pair] = []
    apart: list[tuple[str, str]] = []
    for key, row in sorted(rows.items()):
        name, precision = key.split()
        family, component, of = networks[name]
        if "error" in row:
            apart.append((key, row["error"].strip().splitlines()[-1][-120:] if row["error"].strip() else "died"))
        elif row["contexts"] != 1 or not _ENDS.issuperset(row["cpu"]):
            apart.append((key, f"{row['contexts']} graphs, on the CPU: {', '.join(sorted(set(row['cpu'])))}"))
        else:
            found = _published(checkout, of, component, precision, device)
            if found is None:
                apart.append((key, "no published row that is wholly on the NPU"))
                continue
            runtime, measured, release = found
            time, missing, spread = row["time_us"] / 1000, row["missing_ops"], row["upper_us"] / row["lower_us"]
            spill = row["ddr"]["intermediate_spill"]
            pairs.append(_Pair(name, precision, family, runtime, time, measured, spill, missing, release, spread))
    print(
        "| network | precision | family | estimate ms | published ms | runtime, QAIRT | spill MB | without a cost |\n|"
        + "---|" * 8
    )
    for pair in sorted(pairs, key=lambda pair: pair.measured):
        print(
            f"| {pair.name} | {pair.precision} | {pair.family} | {pair.estimate:.2f} | {pair.measured:.2f} |"
            f" {pair.runtime}, {pair.release} | {pair.spill / 1e6:.1f} | {pair.missing} |"
        )
    # Where operators have no cost, or its own two bounds lie far apart, the compiler says that it does not know.
    unsure = [pair for pair in pairs if pair.missing or pair.spread > WIDEST]
    pairs = [pair for pair in pairs if pair not in unsure]
    told = ", ".join(f"{p.name} ({p.missing} without a cost, bounds {p.spread:.1f} apart)" for p in unsure)
    print(f"\nNot in what follows: {told}.")
    groups = sorted({(pair.family, pair.precision) for pair in pairs})
    print(
        "\n| family | precision | networks | raw error | constant ms | factor | error of the other half |"
        " nine in ten (left out) | pairs in order |\n|" + "---|" * 9
    )
    for family, precision in groups:
        _print_group(f"| {family} | {precision}", [p for p in pairs if (p.family, p.precision) == (family, precision)])
    for family in sorted({pair.family for pair in pairs}):
        _print_group(f"| {family} | all", [pair for pair in pairs if pair.family == family])
    _print_group("| all | all", pairs)
    print("\nNot in the table:\n")
    for key, why in apart:
        print(f"* {key}: {why}")


def _published(checkout: Path, name: str, component: str, precision: str, device: str) -> tuple[str, float, str] | None:
    import yaml

    command = ["git", "-C", str(checkout), "show", f"HEAD:qai_hub_models/models/{name}/perf.yaml"]
    text = subprocess.run(command, capture_output=True, text=True, check=False).stdout
    told: dict[str, Any] = yaml.load(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader)) or {}
    parts: dict[str, Any] = (told.get("precisions", {}).get(precision) or {}).get("components") or {}
    part: dict[str, Any] = (parts.get(component) if component else next(iter(parts.values()), {})) or {}
    measured = (part.get("performance_metrics") or {}).get(device) or {}
    for runtime in _RUNTIMES:
        row = measured.get(runtime) or {}
        time = row.get("inference_time_milliseconds")
        if time and row.get("primary_compute_unit") == "NPU":
            tools = ((part.get("universal_assets") or {}).get(runtime) or {}).get("tool_versions") or {}
            tools = row.get("tool_versions") or tools
            return runtime, float(time), ".".join(str(tools.get("qairt", "?")).split(".")[:2])
    return None


def _fit(pairs: Sequence[_Pair]) -> tuple[float, float]:
    """The constant and the factor with the least sum of absolute logarithmic errors, by a search over a grid."""

    def loss(fit: tuple[float, float]) -> float:
        return sum(abs(math.log((fit[0] + fit[1] * pair.estimate) / pair.measured)) for pair in pairs)

    return min(((c / 50, f / 50) for c in range(31) for f in range(25, 151)), key=loss)


def _print_group(head: str, pairs: Sequence[_Pair]) -> None:
    if len(pairs) < 6:
        print(f"{head} | {len(pairs)} | too few |  |  |  |  |  |")
        return
    raw = statistics.median(abs(pair.estimate / pair.measured - 1) for pair in pairs)
    ordered = sorted(pairs, key=lambda pair: (pair.measured, pair.name))
    constant, factor = _fit(ordered[::2])
    errors = sorted(abs((constant + factor * pair.estimate) / pair.measured - 1) for pair in ordered[1::2])
    ratios = []
    for name in sorted({pair.name for pair in pairs}):
        c, f = _fit([pair for pair in pairs if pair.name != name])
        ratios += [pair.measured / (c + f * pair.estimate) for pair in pairs if pair.name == name]
    ratios.sort()
    cut = max(int(len(ratios) * 0.05), 0)
    low, high = ratios[cut], ratios[-1 - cut]
    two = list(combinations(pairs, 2))
    right = sum((a.estimate - b.estimate) * (a.measured - b.measured) > 0 for a, b in two)
    print(
        f"{head} | {len(pairs)} | {raw:.0%} | {constant:.2f} | {factor:.2f} | median {statistics.median(errors):.0%},"
        f" worst {errors[-1]:.0%} | {low:.2f} to {high:.2f} ({high / low:.2f}) | {right} of {len(two)} |"
    )
