"""Options as data: name, type, default, and the check of a value.

Command line, environment variables, the Python API and the docs are made from these; this module knows none of them.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass
from os import PathLike
from pathlib import Path
from typing import Literal, TypeAlias

from deploykit.errors import UsageError

__all__ = [
    "ESTIMATE",
    "KERNELS",
    "MAX_SEGMENTS",
    "MAX_TIME",
    "ConfigKeys",
    "OptionGiven",
    "OptionKind",
    "OptionSpec",
    "OptionValue",
    "check_options",
    "check_value",
    "read_value",
]

OptionKind: TypeAlias = Literal["flag", "switch", "integer", "number", "text", "choice", "path", "texts"]
"""``flag``: off unless given. ``switch``: ``--x``, ``--no-x``, or its default. ``texts``: repeatable text."""

OptionValue: TypeAlias = bool | int | float | str | Path | tuple[str, ...] | None
"""A checked value; None if nothing was given and there is no default."""

OptionGiven: TypeAlias = bool | int | float | str | PathLike[str] | Iterable[str] | None
"""A value as a caller may give it; None means not given."""

ConfigKeys: TypeAlias = Mapping[str, object] | Iterable[tuple[str, object]]
"""Documented configuration keys with their values, as for ``--option``."""

_WORDS = {"1": True, "true": True, "yes": True, "on": True, "0": False, "false": False, "no": False, "off": False}
_INTEGER = re.compile(r"[+-]?[0-9]+")


@dataclass(frozen=True, slots=True)
class OptionSpec:
    """One option.

    ``name`` is the keyword of the Python API; the command line uses ``spelling`` if given, else the name with dashes.
    ``low`` and ``high`` are inclusive bounds of numbers. ``since`` is the oldest SDK release with what the option sets,
    "" if unknown; it informs and is not enforced here.
    """

    name: str
    kind: OptionKind
    _: KW_ONLY
    help: str
    default: OptionValue = None
    choices: tuple[str, ...] = ()
    low: float | None = None
    high: float | None = None
    metavar: str = ""
    since: str = ""
    spelling: str = ""

    @property
    def flag(self) -> str:
        """The option as typed on a command line: ``--exclude-node``."""
        return f"--{self.spelling or self.name.replace('_', '-')}"

    @property
    def envvar(self) -> str:
        """The environment variable for the option: ``DEPLOYKIT_EXCLUDE_NODE``."""
        return f"DEPLOYKIT_{self.name.upper()}"

    @property
    def unset(self) -> OptionValue:
        """The value if nothing is given: the default, else False for a flag, () for texts, or None."""
        if self.default is not None:
            return self.default
        return False if self.kind == "flag" else () if self.kind == "texts" else None

    @property
    def default_text(self) -> str:
        """The default as typed; "" without one."""
        if isinstance(self.default, bool):
            return "on" if self.default else "off"
        return "" if self.default is None else str(self.default).removesuffix(".0")

    @property
    def expects(self) -> str:
        """Describes a valid value in words."""
        if self.kind == "choice":
            return f"one of {', '.join(self.choices)}"
        low, high = self.low, self.high
        if low is not None and high is not None:
            return f"{_EXPECTED[self.kind]} from {low:g} to {high:g}"
        least = "" if low is None else f" of at least {low:g}"
        return _EXPECTED[self.kind] + (least if high is None else f" of at most {high:g}")


_EXPECTED: Mapping[OptionKind, str] = {
    "flag": "true or false",
    "switch": "true or false",
    "integer": "a whole number",
    "number": "a number",
    "text": "text",
    "path": "a path",
    "texts": "text, or several",
}

MAX_SEGMENTS = OptionSpec("max_segments", "integer", low=1, metavar="N", help="At most so many parts with segments.")
"""For backends that package segments: the core cuts the graph and reads this option itself."""

KERNELS = OptionSpec(
    "kernels",
    "choice",
    choices=("off", "quick", "auto", "full"),
    default="auto",
    help="Run kernels by themselves over their whole grids: none, those under suspicion (quick), where any is as many "
    "as are soon done (auto), all (full).",
)
"""For backends that run single kernels: the core reads this option when a model is checked."""


ESTIMATE = OptionSpec(
    "estimate",
    "flag",
    help="If the compiler has no cost model of this chip, also compile for the nearest chip that it has one of.",
)
MAX_TIME = OptionSpec(
    "max_time",
    "text",
    metavar="TIME",
    help="5ms, 800us: a package that the compiler estimates to take longer is a no.",
)
"""For backends whose compiler estimates times."""


def check_options(specs: Iterable[OptionSpec], given: Mapping[str, OptionGiven]) -> dict[str, OptionValue]:
    """Every option with its checked value or default; names in ``given`` without a spec are left out."""
    return {spec.name: check_value(spec, given.get(spec.name)) for spec in specs}


def check_value(spec: OptionSpec, value: OptionGiven) -> OptionValue:
    """The value in the option's type. Raises UsageError for another type, a value out of range, or no valid choice."""
    if value is None:
        return spec.unset
    checked: OptionValue = None  # stays None for another type; a boolean is not a number, an integer is
    match spec.kind, value:
        case (("flag" | "switch"), bool()):
            checked = value
        case (("text" | "choice"), str()):
            checked = value
        case "integer", int() if not isinstance(value, bool):
            checked = value
        case "number", int() | float() if not isinstance(value, bool):
            checked = float(value)
        case "path", str() | PathLike():
            checked = Path(value)
        case "texts", str():
            checked = (value,)
        case "texts", Iterable():
            texts = tuple(value)
            checked = texts if all(isinstance(text, str) for text in texts) else None
    fits = checked is not None and (spec.kind != "choice" or checked in spec.choices)
    if fits and isinstance(checked, int | float) and not isinstance(checked, bool):
        low, high = -math.inf if spec.low is None else spec.low, math.inf if spec.high is None else spec.high
        fits = math.isfinite(checked) and low <= checked <= high
    if not fits:
        shown = str(value) if isinstance(value, str | int | float | PathLike) else repr(value)
        raise UsageError(f"{spec.flag} {shown}: {spec.expects} is expected")
    return checked


def read_value(spec: OptionSpec, text: str) -> OptionValue:
    """The value of a text from a command line or an environment variable. Raises UsageError as ``check_value``."""
    value: OptionGiven = text
    if spec.kind in ("flag", "switch"):
        value = _WORDS.get(text.lower(), text)
    elif spec.kind == "integer" and _INTEGER.fullmatch(text):
        value = int(text)
    elif spec.kind == "number":
        with suppress(ValueError):
            value = float(text)
    return check_value(spec, value)
