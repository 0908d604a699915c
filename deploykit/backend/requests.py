"""The options of the core itself, and a request made of them. It reads no file and knows no backend.

Whoever adds an option of the core adds it to ``RequestOptions``, ``Request`` and ``CORE_OPTIONS``, all in this file.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from os import PathLike
from pathlib import Path
from typing import Any, Literal, TypeAlias, TypedDict, Unpack

from deploykit.backend.options import ConfigKeys, OptionSpec, check_options
from deploykit.errors import UsageError
from deploykit.findings.records import Json, Names, Record, field

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
    """The widths of weights and activations that a name like ``w8a16`` says; None for a name that says none."""
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
    """What the user asked for, as typed; ``options`` are ``--option KEY=VALUE`` pairs in order."""

    model: Path
    target: str
    backend: str | None = None
    sdk: str | None = None
    encodings: Path | None = None
    float_tensors: Path | None = None
    precision: str | None = None
    calibration: Path | None = None
    quantizer: str | None = None
    """Who makes the encodings of a float model; "none" leaves it to the target's own tools."""
    goal: str | None = None
    """What a precision that is chosen here must reach; the next two say by which measure, where it is the user's."""
    metric: str | None = None
    references: Path | None = None
    mixed: str = "auto"
    rewrite: Names = ()
    no_rewrite: Names = ()
    compile: bool | None = None
    second_opinion: bool = True
    """Whether the compiler that is installed here is asked about a no that is not sure."""
    inputs: Names = ()
    """``NAME=VALUE``, ``NAME=LOW..HIGH`` or ``NAME=FILE.npy``: what inputs are fed with where numbers are judged."""
    io: Names = ()
    """``nhwc`` or ``NAME=nhwc``: inputs and outputs that the package has with the channels last."""
    keep_samples: bool = True
    """Whether the samples that the numbers were judged on become part of the package."""
    options: tuple[tuple[str, str], ...] = ()
    adapter_options: Json = field(default_factory=dict)
    """Options of the backend's own by name. In a situation they are checked, and the defaults are filled in."""


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
"""What every backend understands, by the keywords of the Python API."""

RESERVED_NAMES = frozenset(spec.name for spec in CORE_OPTIONS) | {
    *("model", "target", "targets", "out", "force", "templates", "sbom", "progress", "input", "option", "help", "json"),
    *("verbose", "quiet", "no_color", "format", "baseline", "write_baseline", "severity", "memory"),
}
"""Names that no backend's option may have, because a command or a function of the API has them already."""

# Precisions by the name of their element type.
_SPELLINGS = {"float32": "fp32", "float16": "fp16", "bfloat16": "bf16"}
FLOATS = frozenset(_SPELLINGS.values())
"""The precisions that no integers belong to."""


def make_request(model: AnyPath, target: str, **given: Unpack[RequestOptions]) -> Request:
    """A request of the core's options by name; every other keyword is a backend's own and is not checked here.

    Raises UsageError for a value of a core option that is of the wrong type or no choice.
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
