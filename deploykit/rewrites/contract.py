"""What a graph transform is: it finds sites, says why others do not qualify, rewrites a copy, and proves nothing.

A transform is a module of this package that exposes ``transform``; its name with ``-`` for ``_`` is the name users
type. Modules here import onnx on use only, so that listing the transforms is cheap.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from pkgutil import iter_modules
from typing import TYPE_CHECKING, Any

from deploykit.errors import UsageError

if TYPE_CHECKING:
    from onnx import ModelProto

    from deploykit.encodings.values import EncodingSet

__all__ = [
    "MatchResult",
    "NoMatchError",
    "Refusal",
    "Rewritten",
    "Site",
    "Transform",
    "load_transform",
    "transform_names",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """One place where the transform applies: its nodes (labels), the tensors it speaks about, and what it found.

    ``data`` is the transform's own, read back by its ``apply`` only.
    """

    nodes: tuple[str, ...]
    tensors: tuple[str, ...]
    why: str
    data: Any = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """A place that looks like a site but is none, and the reason: the rewrite would change the result there."""

    nodes: tuple[str, ...]
    reason: str


class NoMatchError(Exception):
    """Raised within a transform's ``match`` where what looked like a site is none; ``node`` is where that showed."""

    def __init__(self, reason: str, *, node: str = "") -> None:
        super().__init__(reason)
        self.reason = reason
        self.node = node


@dataclass(frozen=True, slots=True, kw_only=True)
class MatchResult:
    """Every site and every near miss of one transform on one graph; ``reason`` says why there is no site at all."""

    sites: tuple[Site, ...] = ()
    refusals: tuple[Refusal, ...] = ()
    reason: str = ""

    def __bool__(self) -> bool:
        return bool(self.sites)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rewritten:
    """The new model and what must become of its encodings.

    ``encodings`` has the entries of vanished tensors dropped and those that were carried over adapted; it is None when
    none were given. ``touched`` are tensors of the new model that are new or whose values changed and that still need
    an encoding; ``ranges`` holds proven bounds (lowest, highest real value) for some of them, the others need
    calibration. ``tail`` restores the original outputs from the new ones on the host, None where the outputs did not
    change; original inputs that it needs keep their names.
    """

    model: ModelProto
    encodings: EncodingSet | None
    touched: frozenset[str] = frozenset()
    ranges: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    tail: ModelProto | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Transform:
    """One transform. ``match`` and ``apply`` never change the model they are given.

    ``ulps`` is the stated factor of the proof: before and after, outputs may differ by that many float32 roundings of
    the output's largest magnitude for each site; 0 means bit for bit, None means that the transform changes values on
    purpose.
    """

    name: str
    summary: str
    match: Callable[[ModelProto], MatchResult]
    apply: Callable[[ModelProto, EncodingSet | None, MatchResult], Rewritten]
    ulps: float | None = 0.0


@cache
def _modules() -> Mapping[str, Transform]:
    package = __name__.rpartition(".")[0]
    found = {}
    for info in iter_modules(import_module(package).__path__):
        transform = getattr(import_module(f"{package}.{info.name}"), "transform", None)
        if isinstance(transform, Transform):
            found[transform.name] = transform
    return dict(sorted(found.items()))


def transform_names() -> tuple[str, ...]:
    """The names of all transforms, sorted."""
    return tuple(_modules())


def load_transform(name: str) -> Transform:
    """The transform of that name; UsageError when there is none."""
    try:
        return _modules()[name]
    except KeyError:
        raise UsageError(
            f"no rewrite is called {name!r}",
            why="known are: " + ", ".join(transform_names()),
            next="check the spelling",
        ) from None
