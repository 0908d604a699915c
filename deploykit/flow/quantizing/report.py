"""The account of one quantization as a page of Markdown; everything in it stands in ``report.json`` as well."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from deploykit.findings import Finding

__all__ = ["page", "recipe_page"]


def recipe_page(record: Mapping[str, Any], findings: Iterable[Finding], files: Iterable[str]) -> str:
    """The account of a backend's own recipe: what ran, and the quality that it measured per output."""
    told = record["record"]
    lines = [
        f"# Quantized for {record['target']}, by {record['quantizer']}",
        "",
        f"* **Quantizer**: {record['quantizer']} {told.get(record['quantizer']) or ''}".rstrip(),
        f"* **SDK**: {record['sdk'] or 'none'}",
        f"* **Samples**: {told.get('samples')}",
        "",
        *(f"* {name}: {_named(values)}" for name, values in told.get("quality", {}).items()),
        *[f"* {finding.severity} {finding.code}: {finding.message}" for finding in findings],
        "",
        f"Files: {', '.join(files)}.",
    ]
    return "\n".join(lines) + "\n"


def page(record: Mapping[str, Any], findings: Iterable[Finding], files: Iterable[str]) -> str:
    """What ran, on what, what it cost, and what is in the folder."""
    numbers, own = record["numbers"], record["numbers"]["quantizers_own"]
    calibration, samples = record["calibration"], record["numbers"]["samples"]
    judged = "held out" if samples["held_out"] else "of those it was calibrated on"
    lines = [
        f"# {record['precision']} for {record['target']}, by {record['quantizer']}",
        "",
        f"* **Quantizer**: {record['toolchain'] or record['quantizer']}"
        f" ({', '.join(f'{name} {version}' for name, version in sorted(record['versions'].items()))})",
        f"* **SDK**: {record['sdk'] or 'none'}",
        f"* **Options**: {_named(record['options'])}",
        f"* **Calibration**: {calibration['seen']} samples ({calibration['kind']});"
        f" judged on {samples['count']} {judged}",
        f"* **Seconds**: {_named(record['seconds'])}",
        *(f"* {note}" for note in record["notes"]),
        "",
        "## Signal to noise against the model as it was given",
        "",
        f"* deploykit's simulation: **{_db(numbers['sqnr_db'])}**",
        f"* the quantizer's own: {_db(own['sqnr_db']) if _has_own(own) else 'none'}"
        f"; the two agree to {'the bit' if own['exact'] else _db(own['agreement_db'])}",
        "",
        "| output | SQNR | cosine | largest error |",
        "|---|---|---|---|",
        *(
            f"| {row['name']} | {_db(row['sqnr_db'])} | {_number(row['cosine'])} | {_number(row['max_error'])} |"
            for row in numbers["outputs"]
        ),
        "",
        *[f"* {finding.severity} {finding.code}: {finding.message}" for finding in findings],
        "",
        f"Files: {', '.join(files)}.",
    ]
    return "\n".join(lines) + "\n"


def _has_own(own: Mapping[str, Any]) -> bool:
    return bool(own["exact"]) or own["agreement_db"] is not None


def _named(values: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {value}" for name, value in values.items() if value is not None) or "none"


def _db(value: float | None) -> str:
    return "no difference" if value is None else f"{value:.2f} dB"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.6g}"
