"""The core's own options, and the request made from them. It reads no file and knows no backend.

To add an option to the core, add it to ``RequestOptions``, ``Request`` and ``CORE_OPTIONS``, all in this file.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from os import PathLike
from pathlib import Path
from typing import Any, Literal, TypeAlias, TypedDict, Unpack

from deploykit.backend.options import ConfigKeys, OptionSpec, check_options
from deploykit.errors import UsageError
from deploykit.findings.records import Json, Names, Pairs, Record, field

__all__ = [
    "CORE_OPTIONS",
    "FLOATS",
    "RESERVED_NAMES",
    "AnyPath",
    "Mixed",
    "Request",
    "RequestOptions",
    "bits_of",
    "make_request",
]

AnyPath: TypeAlias = str | PathLike[str]
Mixed: TypeAlias = Literal["auto", "fallback", "segments", "refuse"]


_WIDTHS = re.compile(r"w(\d+)a(\d+)")


def bits_of(precision: str) -> tuple[int, int] | None:
    """The widths of weights and activations in a name like ``w8a16``; None for a name without widths."""
    found = _WIDTHS.fullmatch(precision)
    return None if found is None else (int(found[1]), int(found[2]))


class RequestOptions(TypedDict, total=False):
    """The options of the core as keywords of the Python API; what each means is in ``CORE_OPTIONS``.

    A backend's own options are keywords as well. A type checker does not know them: give them as ``**own``, a
    ``dict[str, Any]``.
    """

    backend: str | None
    sdk: str | None
    encodings: AnyPath | None
    float_tensors: AnyPath | None
    precision: str | None
    calibration: AnyPath | None
    quantizer: str | None
    goal: str | None
    metric: str | None
    references: AnyPath | None
    inputs: str | Iterable[str]
    io: str | Iterable[str]
    mixed: Mixed
    rewrite: str | Iterable[str]
    no_rewrite: str | Iterable[str]
    compile: bool | None
    second_opinion: bool
    samples: bool
    options: ConfigKeys


class Request(Record):
    """The user's request as typed; ``options`` are ``--option KEY=VALUE`` pairs in order."""

    model: Path
    target: str
    backend: str | None = None
    sdk: str | None = None
    encodings: Path | None = None
    float_tensors: Path | None = None
    precision: str | None = None
    calibration: Path | None = None
    quantizer: str | None = None
    """The quantizer for a float model; "none" leaves quantization to the target's own tools."""
    goal: str | None = None
    """The goal for a precision chosen here; the next two are the user's own measure and its references."""
    metric: str | None = None
    references: Path | None = None
    mixed: str = "auto"
    rewrite: Names = ()
    no_rewrite: Names = ()
    compile: bool | None = None
    second_opinion: bool = True
    """True if an installed compiler is asked about a refusal that is not certain."""
    inputs: Names = ()
    """``NAME=VALUE``, ``NAME=LOW..HIGH`` or ``NAME=FILE.npy``: the values of inputs when numbers are judged."""
    io: Names = ()
    """``nhwc`` or ``NAME=nhwc``: inputs and outputs that have their channels last in the package."""
    keep_samples: bool = True
    """True if the samples that numbers were judged on become part of the package."""
    options: Pairs = ()
    adapter_options: Json = field(default_factory=dict)
    """The backend's own options by name. In a situation they are checked, with defaults filled in."""


CORE_OPTIONS = (
    OptionSpec("backend", "text", metavar="ID", help="Default: the device's first."),
    OptionSpec(
        "sdk",
        "text",
        metavar="VERSION",
        help="Series (2.33) or build (2.33.0.250327). Default: the newest.",
    ),
    OptionSpec("encodings", "path", metavar="FILE", help="AIMET encodings 0.6.1, 1.0.0 or 2.0.0."),
    OptionSpec("float_tensors", "path", metavar="FILE", help="Names meant to be float16 (2.0.0 cannot say)."),
    OptionSpec("precision", "text", metavar="NAME", help="fp32, fp16, bf16, w8a8, w8a16, w4a16, vint8, mixed, auto …"),
    OptionSpec("calibration", "path", metavar="DIR|FILE", help="Calibration data: .npz, .npy, a folder."),
    OptionSpec(
        name="quantizer",
        spelling="with",
        kind="text",
        metavar="ID",
        help="Who quantizes a float model: aimet, ort …; none: the target's own tools. Default: the best installed.",
    ),
    OptionSpec(
        "goal",
        "text",
        metavar="GOAL",
        help="What --precision auto must reach: right (the default), kept>=95%, sqnr>=30, drop<=1% …",
    ),
    OptionSpec(
        "metric",
        "text",
        metavar="MODULE:FUNCTION",
        help="With --precision auto: your own measure (docs/quantize.md).",
    ),
    OptionSpec(
        "references",
        "path",
        metavar="FILE|DIR",
        help="For the measure, instead of the float outputs; one for each sample of --calibration.",
    ),
    OptionSpec(
        name="inputs",
        spelling="input",
        kind="texts",
        metavar="NAME=VALUE|LOW..HIGH|FILE.npy",
        help="What to feed an input with when numbers are judged; repeatable.",
    ),
    OptionSpec(
        "io",
        "texts",
        metavar="nhwc|NAME=nhwc",
        help="Channels last: all inputs and outputs of four axes, or those named; repeatable.",
    ),
    OptionSpec(
        "mixed",
        "choice",
        choices=("auto", "fallback", "segments", "refuse"),
        default="auto",
        help="How to run float16 tensors among integer ones.",
    ),
    OptionSpec("rewrite", "texts", metavar="NAME", help="Apply this graph rewrite; repeatable."),
    OptionSpec("no_rewrite", "texts", metavar="NAME", help="Never apply this graph rewrite; repeatable."),
    OptionSpec("compile", "switch", help="Run what can be run here. Default: if installed."),
    OptionSpec(
        "second_opinion",
        "switch",
        default=True,
        help="Ask the installed compiler where a refusal is only reported or inferred. Default: on.",
    ),
    OptionSpec("samples", "switch", default=True, help="Keep the samples that numbers were judged on. Default: kept."),
    OptionSpec(
        name="options",
        spelling="option",
        kind="texts",
        metavar="KEY=VALUE",
        help="A documented configuration key; repeatable.",
    ),
)
"""The options that every backend understands, by the keywords of the Python API."""

RESERVED_NAMES = frozenset(spec.name for spec in CORE_OPTIONS) | {
    *("model", "target", "targets", "out", "force", "templates", "sbom", "progress", "input", "option", "help", "json"),
    *("verbose", "quiet", "no_color", "format", "baseline", "write_baseline", "severity", "memory"),
}
"""Names that a backend's option may not have, as a command or an API function uses them already."""

# Precisions by the names of their element types.
_SPELLINGS = {"float32": "fp32", "float16": "fp16", "bfloat16": "bf16"}
FLOATS = frozenset(_SPELLINGS.values())
"""The precisions without integers."""


def make_request(model: AnyPath, target: str, **given: Unpack[RequestOptions]) -> Request:
    """Makes a request from the core's options by name; all other keywords are a backend's own and are not checked here.

    Raises UsageError for a core option with a value of the wrong type or no valid choice.
    """
    own: dict[str, Any] = dict(given)
    pairs = own.pop("options", ())
    pairs = tuple(pairs.items() if isinstance(pairs, Mapping) else pairs)
    if len(dict(pairs)) < len(pairs):
        raise UsageError("--option: a key is given twice", next="give each key once")
    specs = [spec for spec in CORE_OPTIONS if spec.name != "options"]
    core: dict[str, Any] = check_options(specs, {spec.name: own.pop(spec.name, None) for spec in specs})
    if core["precision"] is not None:
        core["precision"] = _SPELLINGS.get(core["precision"].lower(), core["precision"].lower())
    return Request(
        model=Path(model),
        target=target,
        keep_samples=core.pop("samples"),
        options=tuple((key, str(value)) for key, value in pairs),
        adapter_options=own,
        **core,
    )
