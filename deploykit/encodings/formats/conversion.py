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

from deploykit.encodings.formats import grids
from deploykit.encodings.formats.aimet import WRITTEN_VERSIONS, write_encodings
from deploykit.encodings.formats.differences import Signedness, restated
from deploykit.encodings.place import Layout
from deploykit.encodings.read import with_float_tensors
from deploykit.encodings.values import Affine, Encoding, EncodingSet, Float, Float8, Lpbq
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
    newest, known = to_version == "2.0.0", layouts or {}
    with_float_tensors(encodings, encodings.float_tensors)  # refuses names that have an integer entry as well
    source = encodings
    if not newest:  # tensors named as float become float16 entries, which the older versions have
        source = encodings.with_entries(
            Encoding(name=name, value=Float(dtype="float16"), is_param=name in known and known[name].is_param)
            for name in sorted(encodings.float_tensors - encodings.entries.keys())
        )
    kept: dict[str, Encoding] = {}
    outcomes = []
    for entry in source:
        changed = restated(entry, signedness) if newest else entry
        outcome = _Question(changed, encodings.version, to_version, known.get(entry.name)).outcome()
        outcomes.append(outcome)
        if outcome.kind is not OutcomeKind.IMPOSSIBLE and not (newest and isinstance(changed.value, Float)):
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
        notes=tuple(_notes(encodings)) if newest else (),
        warnings=() if newest else tuple(_warnings(encodings)),
        counts={str(kind): Counter(o.kind for o in outcomes)[kind] for kind in OutcomeKind},
    )


def _notes(encodings: EncodingSet) -> Iterable[str]:
    """What the file as a whole loses on its way to 2.0.0."""
    if encodings.quantizer_args is not None:
        yield "quantizer_args have no place in 2.0.0; they were defaults of the quantizer, not facts about tensors"
    if any(entry.is_param is not None for entry in encodings) and not encodings.version.startswith("2."):
        yield "2.0.0 does not tell parameters from activations; the model does"


def _warnings(encodings: EncodingSet) -> Iterable[str]:
    """What the source cannot have said."""
    if encodings.version.startswith("2.") and not encodings.float_tensors:
        yield (
            "2.0.0 has no entry for 16-bit float tensors and none were named: a tensor without an entry may be meant "
            "to be float16, fused with a neighbour, or never quantized"
        )


@dataclass(frozen=True, slots=True)
class _Question:
    """One entry, as it would be written, between two versions; ``layout`` is what the graph says, where it is known.

    The methods answer with what becomes of the entry, None where they find nothing that is lost.
    """

    entry: Encoding
    source: str
    target: str
    layout: Layout | None

    def outcome(self) -> Outcome:
        """What becomes of the entry."""
        value, found = self.entry.value, None
        newest = self.target == "2.0.0"
        if not newest and self.entry.is_param is None:
            found = self._impossible("activation or parameter: 2.0.0 does not say, the model does")
        elif isinstance(value, Float):
            if newest:
                found = self._lossy(f"{value.dtype} has no entry in 2.0.0; the tensor must be named beside the file")
            elif value.dtype != "float16":
                found = self._impossible(f"{self.target} knows no {value.dtype}")
        elif isinstance(value, Float8):
            found = None if newest else self._impossible(f"{self.target} has no float8 entries")
        elif isinstance(value, Lpbq):
            found = self._of_lpbq(value)
        else:
            found = self._of_layout(value) if value.placed else self._of_unplaced(value)
            found = found or self._of_symmetry(value)
        return found or Outcome(name=self.entry.name, kind=OutcomeKind.LOSSLESS)

    def _lossy(self, what: str) -> Outcome:
        return Outcome(name=self.entry.name, kind=OutcomeKind.LOSSY, what=what)

    def _impossible(self, why: str) -> Outcome:
        return Outcome(name=self.entry.name, kind=OutcomeKind.IMPOSSIBLE, what=why)

    def _of_lpbq(self, value: Lpbq) -> Outcome | None:
        if self.target == "0.6.1":
            return self._impossible("0.6.1 has no LPBQ entries")
        if self.target == "1.0.0":
            return self._of_block_axes(value) if value.placed else None
        if not value.placed:
            return self._impossible(self._why_unplaced())
        if value.decompressed_bits != 2 * value.bits:
            return self._impossible(
                f"2.0.0 implies decompression to {2 * value.bits} bits, but this weight is decompressed to "
                f"{value.decompressed_bits}"
            )
        return None

    def _of_layout(self, value: Affine) -> Outcome | None:
        """Older versions state no axis: nothing is lost only where every reader will find the same one."""
        if self.target == "2.0.0" or value.granularity == "per-tensor":
            return None
        if value.block_size is not None:
            if self.target == "1.0.0":
                return self._of_block_axes(value)
            what = f"0.6.1 states neither the block size {value.block_size} nor the axis; no reader can place the list"
            return self._lossy(what)
        if self._from_older or (value.bits == grids.WIDEST and value.axis == 0):
            return None
        expected, layout = None, self.layout
        if layout is not None and layout.shape is not None:
            fitting = [axis for axis, length in enumerate(layout.shape) if length == value.scale.size]
            expected = fitting[0] if layout.channel_axis is None and len(fitting) == 1 else layout.channel_axis
        if expected is None:
            return self._lossy(f"{self.target} does not state the axis {value.axis}")
        if expected != value.axis:
            why = f"{self.target} states no axis, and readers would take axis {expected}, not {value.axis}"
            return self._impossible(why)
        return None

    @property
    def _from_older(self) -> bool:
        """True when the source file stated no axes either."""
        return self.source.startswith(("0.6", "1."))

    def _of_block_axes(self, value: Affine | Lpbq) -> Outcome | None:
        layout = self.layout
        if self._from_older:
            return None
        if layout is None or layout.channel_axis is None or value.axis is None:
            return self._lossy(f"1.0.0 states neither the block axis {value.block_axis} nor the channel axis")
        if (layout.channel_axis, layout.block_axis) != (value.axis, value.block_axis):
            return self._impossible(
                f"1.0.0 states no axes, and readers would take channels along {layout.channel_axis} and blocks along "
                f"{layout.block_axis}, not {value.axis} and {value.block_axis}"
            )
        return None

    def _of_unplaced(self, value: Affine) -> Outcome | None:
        if self.target == "2.0.0":
            return self._impossible(self._why_unplaced())
        if self.target == "0.6.1":
            order = "0.6.1 lists blocks in the tensor's own order, which only the model tells"
            return None if value.block_size is None else self._impossible(order)
        if not self.source.startswith("0.6"):
            return None
        if self.layout is None or self.layout.shape is None:
            return self._lossy("taken as per-channel; only the model tells a list of channels from a list of blocks")
        return None if self.layout.channel_axis is None else self._impossible(self._why_unplaced())

    def _why_unplaced(self) -> str:
        """Why a value has no axes."""
        if self.layout is None:
            return f"{self.source} states no axis, and no model was given that has this tensor"
        if self.layout.shape is None:
            return f"{self.source} states no axis, and the shape of the tensor is not known"
        if self.layout.channel_axis is None:
            return f"{self.source} states no axis, and several axes of the tensor would fit"
        return f"the list is longer than the channel axis: blocks, whose size {self.source} does not state"

    def _of_symmetry(self, value: Affine) -> Outcome | None:
        if self.target == "2.0.0":
            if value.symmetric is None or value.symmetric == grids.states_symmetry(value):
                return None
            meant = "symmetric" if value.symmetric else "not symmetric"
            return self._lossy(f"2.0.0 does not say that the {value.dtype} grid is {meant}")
        # A file whose activations were forced to one signedness looks the same for symmetric and merely centred grids.
        centred = (value.zero_point == value.lowest + (1 << (value.bits - 1))).all()
        if value.symmetric is not None or self.entry.is_param or not centred:
            return None
        taken = "symmetric" if grids.is_symmetric(value) else "not symmetric"
        return self._lossy(f"{self.source} does not say whether this centred grid is symmetric; written as {taken}")
