"""How a third party declares a backend's options: checked by mypy and pyright, never run."""

from __future__ import annotations

from typing import assert_type

from deploykit.backend.options import OptionSpec, OptionValue, check_value

TILES = OptionSpec(name="tiles", kind="integer", low=1, high=64, default=8, help="How many tiles.", since="9.1")
MODES = OptionSpec(name="mode", kind="choice", choices=("fast", "small"), default="fast", help="What to prefer.")
OPTIONS: tuple[OptionSpec, ...] = (TILES, MODES)

assert_type(TILES.default, OptionValue)
assert_type(check_value(MODES, "small"), OptionValue)

OptionSpec(name="tiles", kind="int", help="x")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
OptionSpec(name="tiles", kind="flag")  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
OptionSpec("tiles", "flag", "x")  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
TILES.low = 2  # type: ignore[misc]  # pyright: ignore[reportAttributeAccessIssue]
