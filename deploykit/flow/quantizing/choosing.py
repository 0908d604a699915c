"""Which quantizer makes the encodings of one request: the one asked for, else the best that is installed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from deploykit.backend.backend import AnyBackend
from deploykit.backend.options import OptionValue, check_options, read_value
from deploykit.backend.plugins import load_backends
from deploykit.backend.quantizers import Quantizer
from deploykit.backend.targets import Target, nearest_names
from deploykit.errors import DefectError, UsageError
from deploykit.flow.quantizing.embedded import EMBEDDED
from deploykit.system.environments import Environment, environment_of
from deploykit.system.specs import select

__all__ = ["Picked", "environment_for", "options_of", "pick", "quantizers_for"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Picked:
    """The quantizer that runs, its environment (None: this interpreter), and a better one that is not installed."""

    quantizer: Quantizer
    environment: Environment | None
    better: Environment | None = None


def quantizers_for(backend: AnyBackend, target: Target) -> tuple[Quantizer, ...]:
    """Who makes encodings for a target, the best first, the embedded one last; none where the backend takes none."""
    return (*backend.quantizers(target), EMBEDDED) if backend.offers("quantizers") else ()


def pick(backend: AnyBackend, target: Target, asked: str | None, precision: str | None) -> Picked:
    """The quantizer of that name, or the best that is installed and makes the precision.

    Raises UsageError for a name or a precision that nobody here has, ToolError where the one to take is not installed.
    """
    known = quantizers_for(backend, target)
    named = tuple(one for one in known if asked in (None, one.id))
    if not named:
        raise _unknown(asked or "", backend, known)
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
    """The environment that a quantizer runs in; None where it runs in deploykit's own."""
    if not quantizer.toolchain:
        return None
    specs = [spec for one in load_backends() for spec in one.toolchains()]
    return environment_of(select(specs, quantizer.toolchain))


def _unknown(asked: str, backend: AnyBackend, known: Iterable[Quantizer]) -> UsageError:
    names = [one.id for one in known]
    if backend.quantizer:
        names = [backend.quantizer]
    if not names:
        return UsageError(f"--with {asked}: {backend.id} takes no encodings", next="leave it out")
    return UsageError(f"--with {asked}: not a quantizer for {backend.id}", next=f"one of {', '.join(names)}")


def options_of(quantizer: Quantizer, given: Iterable[tuple[str, str]]) -> Mapping[str, OptionValue]:
    """The quantizer's own options, checked, with their defaults; UsageError for a name that it does not have."""
    specs = {spec.name: spec for spec in quantizer.options()}
    values: dict[str, OptionValue] = {}
    for key, text in given:
        name = key.replace("-", "_")
        if name not in specs:
            near = ", ".join(nearest_names(name, specs)) or ", ".join(specs)
            raise UsageError(f"--option {key}: not an option of {quantizer.id}", next=f"it has {near}")
        values[name] = read_value(specs[name], text)
    return check_options(specs.values(), values)
