"""What each output lost, to quantization (against the float model) and to the device (against the quantized one).

From judged numbers in their published shape. It measures nothing.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from deploykit.system.published import Published

__all__ = ["OutputCost", "costs_by_output"]

_BLAMED = {"float": "quantization and all that follows", "quantized": "the device", "device": "another device"}


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputCost(Published):
    """One output, or a ``part`` of it that is judged by itself, such as the scores beside boxes in pixels.

    ``decibels`` are the signal to noise by what it was compared with; ``worst`` are the other judged numbers that do
    not pass, in words.
    """

    output: str
    part: str = ""
    decibels: Mapping[str, float] = field(default_factory=dict)
    worst: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """The output and its part, in words."""
        return f"{self.output}, {self.part}" if self.part else self.output

    def __str__(self) -> str:
        told = [f"{value:.1f} dB left by {_BLAMED.get(name, name)}" for name, value in self.decibels.items()]
        return f"{self.name}: {', '.join([*told, *self.worst]) or 'as asked'}."


def costs_by_output(numbers: Iterable[Mapping[str, Any]]) -> tuple[OutputCost, ...]:
    """Each output once, or each of its parts, in the order of the numbers; of equal numbers the lowest stands.

    What is said of no part that has decibels of its own is said of the first one.
    """
    told = list(numbers)
    decibels: dict[tuple[str, str], dict[str, float]] = {}
    for number in told:
        if number.get("measure") == "sqnr" and _is_finite(number.get("value")):
            held = decibels.setdefault(_place(number), {})
            against = str(number.get("against", ""))
            held[against] = min(held.get(against, math.inf), float(number["value"]))
    first = {output: (output, part) for output, part in reversed(decibels)}
    worst: dict[tuple[str, str], list[str]] = {}
    for number in told:
        place = _place(number)
        place = place if place in decibels else first.setdefault(place[0], (place[0], ""))
        decibels.setdefault(place, {})
        if number.get("passes") is False and _is_finite(number.get("value")):
            worst.setdefault(place, []).append(_words(number))
    return tuple(
        OutputCost(output=place[0], part=place[1], decibels=db, worst=tuple(worst.get(place, ())))
        for place, db in decibels.items()
    )


def _is_finite(value: object) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)


def _place(number: Mapping[str, Any]) -> tuple[str, str]:
    return str(number.get("output", "")), str(number.get("where", ""))


def _words(number: Mapping[str, Any]) -> str:
    where = f" of {number['where']}" if number.get("where") else ""
    unit = f" {number['unit']}" if number.get("unit") else ""
    return f"{number.get('measure')}{where} {number['value']:g}{unit} where {number.get('threshold')}{unit} is asked"
