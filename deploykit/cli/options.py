"""The options that package, plan and check share, and how they become a request."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from deploykit.contract.backend import Request
from deploykit.errors import UsageError

__all__ = ["many_target_options", "request_from", "request_options"]

F = TypeVar("F", bound=Callable[..., Any])

_PATH = click.Path(path_type=Path)

_OPTIONS: tuple[Callable[[Any], Any], ...] = (
    click.argument("model", type=_PATH),
    click.option("--backend", metavar="ID", help="Default: the device's first."),
    click.option("--sdk", metavar="VERSION", help="Series (2.33) or build (2.33.0.250327). Default: the newest."),
    click.option("--encodings", type=_PATH, metavar="FILE", help="AIMET encodings 0.6.1, 1.0.0 or 2.0.0."),
    click.option("--float-tensors", type=_PATH, metavar="FILE", help="Names meant to be float16 (2.0.0 cannot say)."),
    click.option("--precision", metavar="NAME", help="fp32, fp16, bf16, w8a8, w8a16, w4a16, vint8, mixed …"),
    click.option("--calibration", type=_PATH, metavar="DIR|FILE", help="Calibration data: .npz, .npy, a folder."),
    click.option(
        "--mixed",
        type=click.Choice(["auto", "fallback", "segments", "refuse"]),
        default="auto",
        show_default=True,
        help="What to do where float16 tensors stand among integer ones.",
    ),
    click.option("--max-segments", type=click.IntRange(1), metavar="N", help="At most so many parts with segments."),
    click.option("--rewrite", multiple=True, metavar="NAME", help="Apply this graph rewrite; repeatable."),
    click.option("--no-rewrite", multiple=True, metavar="NAME", help="Never apply this graph rewrite; repeatable."),
    click.option("--compile/--no-compile", default=None, help="Run what can be run here. Default: if installed."),
    click.option("--option", "options", multiple=True, metavar="KEY=VALUE", help="A documented configuration key."),
    click.option("--route", metavar="ID", help="Insist on one route of the backend."),
    click.option("--input-list/--no-input-list", default=None, help="Insist on calibration inside the converter."),
    click.option("--exclude-subgraph", multiple=True, metavar="A,B:C", help="Keep START…:END… in float; repeatable."),
    click.option("--exclude-node", multiple=True, metavar="NAME", help="Keep one node in float; repeatable."),
    click.option("--finalization-mode", type=click.IntRange(0, 3), help="The compiler's optimization effort."),
    click.option("--strict-precision", is_flag=True, help="Any change of precision is an error."),
    click.option("--random-data", is_flag=True, help="Calibrate with random data: never for production."),
    click.option("--lpbq", is_flag=True, help="Turn block quantization into LPBQ (lossy)."),
    click.option("--time-limit", type=click.FloatRange(min=1), metavar="SECONDS", help="For what is run here."),
    click.option("--preflight", is_flag=True, help="Ask another backend's compiler for a second opinion."),
)

_TARGET_HELP = "Device id, chip or marketing name."
_SEVERAL_HELP = f"{_TARGET_HELP} Repeatable: one package each, in a folder by its id."

_ADAPTER_OPTIONS = (
    "route",
    "input_list",
    "exclude_subgraph",
    "exclude_node",
    "finalization_mode",
    "max_segments",
    "strict_precision",
    "time_limit",
    "random_data",
    "lpbq",
    "preflight",
)


def request_options(function: F) -> F:
    """Add the shared options to a command that takes one target."""
    return _with(function, click.option("--target", required=True, metavar="DEVICE", help=_TARGET_HELP))


def many_target_options(function: F) -> F:
    """Add the shared options to a command that takes one target or several."""
    option = click.option("--target", "targets", required=True, multiple=True, metavar="DEVICE", help=_SEVERAL_HELP)
    return _with(function, option)


def _with(function: F, target: Callable[[Any], Any]) -> F:
    model, *others = _OPTIONS
    for option in reversed((model, target, *others)):
        function = option(function)
    return function


def request_from(**given: Any) -> Request:
    """The request that the shared options describe."""
    adapter_options = {name: given.pop(name) for name in _ADAPTER_OPTIONS}
    return Request(
        **{name: value for name, value in given.items() if name != "options"},
        options=tuple(_pair(text) for text in given["options"]),
        adapter_options={name: value for name, value in adapter_options.items() if value not in (None, (), False)}
        | ({"input_list": False} if adapter_options["input_list"] is False else {}),
    )


def _pair(text: str) -> tuple[str, str]:
    key, separator, value = text.partition("=")
    if not separator or not key:
        raise UsageError(f"--option {text}: KEY=VALUE is expected")
    return key, value
