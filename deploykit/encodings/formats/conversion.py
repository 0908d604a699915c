"""Converts encodings between versions and says, tensor by tensor, what that loses.

The outcomes follow one matrix (docs/encodings.md). What cannot be said in the target version is left out of the
result and reported as impossible; nothing is approximated and no axis is guessed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, Literal

from deploykit.encodings.formats import grids
from deploykit.encodings.formats.aimet import WRITTEN_VERSIONS, write_encodings
from deploykit.encodings.formats.differences import Signedness, restated
from deploykit.encodings.place import Layout
from deploykit.encodings.read import with_float_tensors
from deploykit.encodings.values import Affine, Encoding, EncodingSet, Float, Float8, Lpbq, Value
from deploykit.errors import UsageError

__all__ = ["Conversion", "Loss", "Outcome", "OutcomeKind", "Question", "convert", "loss_of"]


@dataclass(frozen=True, slots=True)
class Loss:
    """What is lost, or why the version cannot hold the entry."""

    kind: Literal["lossy", "impossible"]
    what: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """One entry, as it would be written, between two versions; ``layout`` is what the graph says, where it is known."""

    entry: Encoding
    source: str
    target: str
    layout: Layout | None = None

    @property
    def value(self) -> Value:
        """The value in question."""
        return self.entry.value

    @property
    def from_older(self) -> bool:
        """True when the source file stated no axes either."""
        return self.source.startswith(("0.6", "1."))


def loss_of(question: Question) -> Loss | None:
    """None when nothing is lost."""
    if question.target != "2.0.0" and question.entry.is_param is None:
        return _impossible("activation or parameter: 2.0.0 does not say, the model does")
    return _JUDGES[type(question.value)](question)


def _float(question: Question) -> Loss | None:
    if question.target == "2.0.0":
        return _lossy(f"{question.value.dtype} has no entry in 2.0.0; the tensor must be named beside the file")
    if question.value.dtype != "float16":
        return _impossible(f"{question.target} knows no {question.value.dtype}")
    return None


def _float8(question: Question) -> Loss | None:
    if question.target == "2.0.0":
        return None
    return _impossible(f"{question.target} has no float8 entries")


def _lpbq(question: Question) -> Loss | None:
    value = question.value
    assert isinstance(value, Lpbq)
    if question.target == "0.6.1":
        return _impossible("0.6.1 has no LPBQ entries")
    if question.target == "1.0.0":
        return None if not value.placed else _block_axes(question, value)
    if not value.placed:
        return _impossible(_unplaced(question))
    if value.decompressed_bits != 2 * value.bits:
        return _impossible(
            f"2.0.0 implies decompression to {2 * value.bits} bits, but this weight is decompressed to "
            f"{value.decompressed_bits}"
        )
    return None


def _affine(question: Question) -> Loss | None:
    value = question.value
    assert isinstance(value, Affine)
    layout_loss = _unplaced_affine(question, value) if not value.placed else _placed(question, value)
    if layout_loss is not None and layout_loss.kind == "impossible":
        return layout_loss
    return layout_loss or _symmetry(question, value)


def _placed(question: Question, value: Affine) -> Loss | None:
    if question.target == "2.0.0" or value.granularity == "per-tensor":
        return None
    if value.block_size is None:
        # Older versions state no axis: nothing is lost only where every reader will find the same one.
        if question.from_older or (value.bits == grids.WIDEST and value.axis == 0):
            return None
        expected = _expected_axis(question.layout, value)
        if expected is None:
            return _lossy(f"{question.target} does not state the axis {value.axis}")
        if expected != value.axis:
            return _impossible(
                f"{question.target} states no axis, and readers would take axis {expected}, not {value.axis}"
            )
        return None
    if question.target == "1.0.0":
        return _block_axes(question, value)
    return _lossy(f"0.6.1 states neither the block size {value.block_size} nor the axis; no reader can place the list")


def _unplaced_affine(question: Question, value: Affine) -> Loss | None:
    if question.target == "2.0.0":
        return _impossible(_unplaced(question))
    if question.target == "0.6.1":
        order = "0.6.1 lists blocks in the tensor's own order, which only the model tells"
        return None if value.block_size is None else _impossible(order)
    if not question.source.startswith("0.6"):
        return None
    layout = question.layout
    if layout is None or layout.shape is None:
        return _lossy("taken as per-channel; only the model tells a list of channels from a list of blocks")
    return None if layout.channel_axis is None else _impossible(_unplaced(question))


def _unplaced(question: Question) -> str:
    """Why a value has no axes."""
    layout = question.layout
    if layout is None:
        return f"{question.source} states no axis, and no model was given that has this tensor"
    if layout.shape is None:
        return f"{question.source} states no axis, and the shape of the tensor is not known"
    if layout.channel_axis is None:
        return f"{question.source} states no axis, and several axes of the tensor would fit"
    return f"the list is longer than the channel axis: blocks, whose size {question.source} does not state"


def _expected_axis(layout: Layout | None, value: Affine) -> int | None:
    if layout is None or layout.shape is None:
        return None
    if layout.channel_axis is not None:
        return layout.channel_axis
    fitting = [axis for axis, length in enumerate(layout.shape) if length == value.scale.size]
    return fitting[0] if len(fitting) == 1 else None


def _block_axes(question: Question, value: Affine | Lpbq) -> Loss | None:
    if question.from_older:
        return None
    layout = question.layout
    if layout is None or layout.channel_axis is None or value.axis is None:
        return _lossy(f"1.0.0 states neither the block axis {value.block_axis} nor the channel axis")
    if (layout.channel_axis, layout.block_axis) != (value.axis, value.block_axis):
        return _impossible(
            f"1.0.0 states no axes, and readers would take channels along {layout.channel_axis} and blocks along "
            f"{layout.block_axis}, not {value.axis} and {value.block_axis}"
        )
    return None


def _symmetry(question: Question, value: Affine) -> Loss | None:
    if question.target == "2.0.0":
        if value.symmetric is None or value.symmetric == grids.states_symmetry(value):
            return None
        return _lossy(f"2.0.0 does not say that the {value.dtype} grid is {'' if value.symmetric else 'not '}symmetric")
    if value.symmetric is not None or question.entry.is_param:
        return None
    # A file whose activations were forced to one signedness looks the same for symmetric and merely centred grids.
    middle = value.lowest + (1 << (value.bits - 1))
    if not (value.zero_point == middle).all():
        return None
    taken = "symmetric" if grids.is_symmetric(value) else "not symmetric"
    return _lossy(f"{question.source} does not say whether this centred grid is symmetric; written as {taken}")


def _lossy(what: str) -> Loss:
    return Loss("lossy", what)


def _impossible(why: str) -> Loss:
    return Loss("impossible", why)


_JUDGES: dict[type[Value], Callable[[Question], Loss | None]] = {
    Affine: _affine,
    Float: _float,
    Float8: _float8,
    Lpbq: _lpbq,
}


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
