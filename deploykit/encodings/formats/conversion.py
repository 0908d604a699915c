"""Converts encodings between versions and says, tensor by tensor, what that loses.

The outcomes follow one matrix (docs/encodings.md). What cannot be said in the target version is left out of the
result and reported as impossible; nothing is approximated and no axis is guessed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

from deploykit.encodings.formats.float_tensors import with_float_tensors
from deploykit.encodings.formats.losses import Question, loss_of
from deploykit.encodings.formats.signedness import Signedness, restated
from deploykit.encodings.formats.writing import WRITTEN_VERSIONS, write_encodings
from deploykit.encodings.placing import Layout
from deploykit.encodings.values import Encoding, EncodingSet, Float
from deploykit.errors import UsageError

__all__ = ["Conversion", "Outcome", "OutcomeKind", "convert"]


class OutcomeKind(StrEnum):
    """What became of one tensor."""

    LOSSLESS = "lossless"
    LOSSY = "lossy"
    IMPOSSIBLE = "impossible"


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What became of one tensor, and what was lost or why it is not there."""

    name: str
    kind: OutcomeKind
    what: str = ""

    def __str__(self) -> str:
        return f"{self.kind}: {self.what}" if self.what else str(self.kind)

    def to_json(self) -> dict[str, Any]:
        """The published shape."""
        return {"name": self.name, "outcome": str(self.kind), "what": self.what}


@dataclass(frozen=True, slots=True, kw_only=True)
class Conversion:
    """Encodings of another version, with one outcome per tensor of the source, in its order.

    ``encodings`` lacks the impossible ones; its ``float_tensors`` belong into a side file when the version cannot
    hold them. ``notes`` say what the whole file lost, ``warnings`` what it may hide.
    """

    source_version: str
    encodings: EncodingSet
    outcomes: tuple[Outcome, ...]
    notes: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    counts: Mapping[str, int] = field(default_factory=dict)

    @property
    def version(self) -> str:
        """The version converted to."""
        return self.encodings.version

    @property
    def text(self) -> str:
        """The file to write."""
        return write_encodings(self.encodings, self.version)

    @property
    def float_tensors(self) -> frozenset[str]:
        """The tensors that the version has no entry for and that must be named beside the file."""
        return self.encodings.float_tensors

    def of(self, kind: OutcomeKind) -> tuple[Outcome, ...]:
        """The outcomes of one kind."""
        return tuple(outcome for outcome in self.outcomes if outcome.kind is kind)

    def to_json(self) -> dict[str, Any]:
        """The published shape; lossless tensors are only counted."""
        return {
            "from": self.source_version,
            "to": self.version,
            "counts": dict(self.counts),
            "losses": [outcome.to_json() for outcome in self.outcomes if outcome.kind is not OutcomeKind.LOSSLESS],
            "notes": list(self.notes),
            "warnings": list(self.warnings),
            "float_tensors": sorted(self.float_tensors),
        }


def convert(
    encodings: EncodingSet,
    to_version: str,
    *,
    layouts: Mapping[str, Layout] | None = None,
    signedness: Signedness = "as-is",
) -> Conversion:
    """The encodings as ``to_version``; place them on a graph first, and pass its ``layouts``, to lose least.

    ``signedness`` restates activations when going to 2.0.0; the older versions know only symmetric and asymmetric, so
    it is ignored there, as AIMET ignores it. Raises UsageError for a version that is not written.
    """
    if to_version not in WRITTEN_VERSIONS:
        raise UsageError(
            f"encodings cannot be converted to {to_version!r}", next=f"known versions: {', '.join(WRITTEN_VERSIONS)}"
        )
    newest = to_version == "2.0.0"
    with_float_tensors(encodings, encodings.float_tensors)  # refuses names that have an integer entry as well
    source = encodings if newest else _with_float_entries(encodings, layouts or {})
    kept: dict[str, Encoding] = {}
    outcomes = []
    for entry in source:
        changed = restated(entry, signedness) if newest else entry
        loss = loss_of(
            Question(entry=changed, source=encodings.version, target=to_version, layout=(layouts or {}).get(entry.name))
        )
        kind = OutcomeKind.LOSSLESS if loss is None else OutcomeKind(loss.kind)
        outcomes.append(Outcome(name=entry.name, kind=kind, what="" if loss is None else loss.what))
        if kind is not OutcomeKind.IMPOSSIBLE and not (newest and isinstance(changed.value, Float)):
            kept[entry.name] = changed
    return Conversion(
        source_version=encodings.version,
        encodings=replace(
            encodings,
            version=to_version,
            entries=kept,
            quantizer_args=None if newest else encodings.quantizer_args,
            float_tensors=encodings.floats if newest else frozenset(),
        ),
        outcomes=tuple(outcomes),
        notes=tuple(_notes(encodings, newest=newest)),
        warnings=tuple(_warnings(encodings, newest=newest)),
        counts={str(kind): Counter(o.kind for o in outcomes)[kind] for kind in OutcomeKind},
    )


def _with_float_entries(encodings: EncodingSet, layouts: Mapping[str, Layout]) -> EncodingSet:
    """Tensors named as float become float16 entries, which the older versions have."""
    missing = sorted(encodings.float_tensors - encodings.entries.keys())
    added = {
        name: Encoding(name=name, value=Float(dtype="float16"), is_param=name in layouts and layouts[name].is_param)
        for name in missing
    }
    return replace(encodings, entries={**encodings.entries, **added})


def _notes(encodings: EncodingSet, *, newest: bool) -> Iterable[str]:
    """What the file as a whole loses."""
    if not newest:
        return
    if encodings.quantizer_args is not None:
        yield "quantizer_args have no place in 2.0.0; they were defaults of the quantizer, not facts about tensors"
    if any(entry.is_param is not None for entry in encodings) and not encodings.version.startswith("2."):
        yield "2.0.0 does not tell parameters from activations; the model does"


def _warnings(encodings: EncodingSet, *, newest: bool) -> Iterable[str]:
    """What the source cannot have said."""
    if encodings.version.startswith("2.") and not newest and not encodings.float_tensors:
        yield (
            "2.0.0 has no entry for 16-bit float tensors and none were named: a tensor without an entry may be meant "
            "to be float16, fused with a neighbour, or never quantized"
        )
