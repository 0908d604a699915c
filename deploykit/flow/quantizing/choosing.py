"""Picks the quantizer that makes the encodings of a request: the requested one, else the best that is installed.

The embedded one is always there: ONNX Runtime's static quantization, which deploykit needs anyway. Nothing runs here: a
quantizer's script does, ``ort_static`` for the embedded one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from deploykit.backend.backend import AnyBackend
from deploykit.backend.options import OptionSpec, OptionValue, check_options, read_value
from deploykit.backend.plugins import load_backends
from deploykit.backend.quantizers import Quantizer, QuantizerAsked, QuantizerJob
from deploykit.backend.requests import bits_of
from deploykit.backend.targets import Target, nearest_names
from deploykit.errors import DefectError, UsageError
from deploykit.findings.records import Names, Record
from deploykit.flow.ladder import Learning
from deploykit.system.environments import Environment, environment_of
from deploykit.system.specs import select

__all__ = ["SECONDS", "Picked", "learning_with", "options_of", "pick", "quantizers_for"]

_TYPES = {8: "QUInt8", 16: "QUInt16"}
_WEIGHTS = {8: "QInt8", 16: "QInt16"}
_METHODS = {"minmax": "MinMax", "entropy": "Entropy", "percentile": "Percentile"}


class _OrtStatic(Quantizer):
    id = "ort"
    summary = "ONNX Runtime's static quantization: needs no installation, knows no device"
    whole_ranges = ("method", "minmax")

    def precisions(self, target: Target) -> Names:
        """Integers of 8 and 16 bits, for any target."""
        del target
        return ("w8a16", "w8a8", "w16a16")

    def options(self) -> tuple[OptionSpec, ...]:
        """The options for finding ranges."""
        return (
            OptionSpec(
                "method",
                "choice",
                choices=tuple(_METHODS),
                default="minmax",
                help="How the range of an activation is found.",
            ),
            OptionSpec("per_channel", "switch", default=True, help="One weight scale per output channel."),
        )

    def plan(self, asked: QuantizerAsked) -> QuantizerJob:
        """The arguments of ``quantize_static``; weights are symmetric, biases int32."""
        widths = bits_of(asked.precision)
        assert widths is not None
        weight, activation = widths
        wide = max(widths) > 8
        return QuantizerJob(
            script=Path(__file__).with_name("ort_static.py"),
            settings={
                "activation": _TYPES[activation],
                "weight": _WEIGHTS[weight],
                "per_channel": asked.options["per_channel"],
                "method": _METHODS[str(asked.options["method"])],
                # 16-bit Q/DQ in the default domain needs opset 21; the runtime's own domain has them for every model.
                "extra_options": {"WeightSymmetric": True, "UseQDQContribOps": wide},
            },
            rewrites=("raise-opset", "fold-batchnorm"),
        )


EMBEDDED: Quantizer = _OrtStatic()
"""The quantizer that is always there."""


class Picked(Record):
    """The quantizer to run, its environment (None: this interpreter), and a better one that is not installed."""

    quantizer: Quantizer
    environment: Environment | None
    better: Environment | None = None


def quantizers_for(backend: AnyBackend, target: Target) -> tuple[Quantizer, ...]:
    """The quantizers for a target, the best first, the embedded one last; empty if the backend takes no encodings."""
    return (*backend.quantizers(target), EMBEDDED) if backend.offers("quantizers") else ()


def pick(backend: AnyBackend, target: Target, asked: str | None, precision: str | None) -> Picked:
    """The quantizer of that name, or the best installed one that makes the precision.

    Raises UsageError for an unknown name or a precision that none makes, ToolError if the one to take is not installed.
    """
    known = quantizers_for(backend, target)
    named = tuple(one for one in known if asked in (None, one.id))
    if not named:
        names = [backend.quantizer] if backend.quantizer else [one.id for one in known]
        if not names:
            raise UsageError(f"--with {asked or ''}: {backend.id} takes no encodings", next="leave it out")
        raise UsageError(f"--with {asked or ''}: not a quantizer for {backend.id}", next=f"one of {', '.join(names)}")
    fitting = tuple(one for one in named if precision is None or precision in one.precisions(target))
    if not fitting:
        made = "; ".join(f"{one.id} makes {', '.join(one.precisions(target))}" for one in named)
        raise UsageError(f"--precision {precision}: made by no quantizer for {target.device.id}", next=made)
    better = None
    for one in fitting:
        environment = environment_for(one)
        if environment is None or environment.state(with_size=False).state == "ready":
            return Picked(quantizer=one, environment=environment, better=better)
        better = better or environment
    assert better is not None
    better.require()
    raise DefectError(f"{better.spec.id} became ready while it was looked at")


def environment_for(quantizer: Quantizer) -> Environment | None:
    """The environment that a quantizer runs in; None if it runs in deploykit's own."""
    if not quantizer.toolchain:
        return None
    return environment_of(select([spec for one in load_backends() for spec in one.toolchains()], quantizer.toolchain))


def options_of(quantizer: Quantizer, given: Iterable[tuple[str, str]]) -> Mapping[str, OptionValue]:
    """The quantizer's own options, checked and with their defaults. Raises UsageError for an unknown name."""
    specs = {spec.name: spec for spec in quantizer.options()}
    values = dict[str, OptionValue]()
    for key, text in given:
        name = key.replace("-", "_")
        if name not in specs:
            near = ", ".join(nearest_names(name, specs)) or ", ".join(specs)
            raise UsageError(f"--option {key}: not an option of {quantizer.id}", next=f"it has {near}")
        try:
            values[name] = read_value(specs[name], text)
        except UsageError:
            raise UsageError(f"--option {key}={text}: {specs[name].expects} is expected") from None
    return check_options(specs.values(), values)


SECONDS = 900.0
"""The seconds for all methods together: none is begun after them, and a single one is ended then."""

_PRECISION = "w8a16"


def learning_with(picked: Picked, taken: Iterable[str] = ()) -> Learning:
    """The methods of a quantizer; if it has none and a better quantizer does, what to install.

    Empty if the user set one of the methods' options himself: ``taken`` are the options he set.
    """
    methods = picked.quantizer.weight_methods(_PRECISION)
    if methods:
        if {name for one in methods for name in one.options} & {name.replace("-", "_") for name in taken}:
            return Learning()
        return Learning(methods=tuple(one.name for one in methods), seconds=SECONDS)
    if picked.better is None:
        return Learning()
    spec = picked.better.spec
    return Learning(
        missing=f"{picked.quantizer.id} has no method for it, and {spec.id} ({spec.disk_mb} MiB) is not installed",
        install=f"deploykit toolchain install {spec.name}",
    )
