"""Where a package's encodings come from, for a page: who made them, on what, how long that took, what it cost.

Pure: from the published account (``quantization`` of a manifest), so that a page tells nothing that the manifest does
not.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

__all__ = ["QuantizedSection", "quantized_section"]


@dataclass(frozen=True, slots=True, kw_only=True)
class QuantizedSection:
    """What the template shows: labelled words, what happened on the way, and each output's numbers."""

    facts: tuple[tuple[str, str], ...]
    notes: tuple[str, ...]
    seconds: tuple[tuple[str, float], ...]
    outputs: tuple[tuple[str, str, str, str], ...]


def quantized_section(record: Mapping[str, Any]) -> QuantizedSection:
    """The section about an account in its published shape."""
    numbers, calibration = record["numbers"], record["calibration"]
    own, samples = numbers["quantizers_own"], numbers["samples"]
    tool = record["toolchain"] or record["quantizer"]
    versions = ", ".join(f"{name} {version}" for name, version in sorted(record["versions"].items()))
    judged = "held out" if samples["held_out"] else "of the same"
    facts = (
        ("made by", f"{tool} ({versions})" if versions else tool),
        ("precision", record["precision"]),
        ("options", _options(record["options"])),
        ("samples", f"{calibration['seen']} to calibrate, {samples['count']} {judged} to judge"),
        ("took", _duration(sum(record["seconds"].values()))),
        ("signal to noise, of what was written", _decibels(numbers["sqnr_db"])),
        ("in the quantizer's own simulation", _own(own)),
    )
    return QuantizedSection(
        facts=facts,
        notes=tuple(record["notes"]),
        seconds=tuple(record["seconds"].items()),
        outputs=tuple(
            (row["name"], _decibels(row["sqnr_db"]), _number(row["cosine"]), _number(row["max_error"]))
            for row in numbers["outputs"]
        ),
    )


def _duration(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"


def _options(options: Mapping[str, Any]) -> str:
    """Only what says something: a switch that is off, and what is not set, are left out."""
    said = {name: value for name, value in options.items() if value is not None and value is not False}
    told = [name if value is True else f"{name} {value}" for name, value in said.items()]
    return ", ".join(told) or "none"


def _own(own: Mapping[str, Any]) -> str:
    if own["exact"]:
        return f"{_decibels(own['sqnr_db'])}, the same to the bit"
    if own["agreement_db"] is None:
        return "it has none"
    return f"{_decibels(own['sqnr_db'])}; the two agree to {_decibels(own['agreement_db'])}"


def _decibels(value: float | None) -> str:
    """In words; None is what the account has where nothing differs."""
    return "no difference" if value is None else f"{value:.1f} dB"


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.6g}"
