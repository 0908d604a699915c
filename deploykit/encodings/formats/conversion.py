"""Converts encodings between versions and says, tensor by tensor, what that loses.

The outcomes follow one matrix (docs/encodings.md). What cannot be said in the target version is left out of the
result and reported as impossible; nothing is approximated and no axis is guessed.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

from deploykit.encodings.formats import grids
from deploykit.encodings.formats.aimet import WRITTEN_VERSIONS, fits, write_encodings
from deploykit.encodings.formats.differences import Signedness, to_unsigned
from deploykit.encodings.place import Layout
from deploykit.encodings.read import with_float_tensors
from deploykit.encodings.values import Affine, Encoding, EncodingSet, Float, Float8, Lpbq
from deploykit.errors import UsageError
from deploykit.findings.records import Json, Published, published, replace

__all__ = ["Conversion", "convert", "writable_versions"]

# The beginnings of the versions whose files state no axes.
_WITHOUT_AXES = ("0.6", "1.")


class OutcomeKind(StrEnum):
    """What became of one tensor."""

    LOSSLESS = "lossless"
    LOSSY = "lossy"
    IMPOSSIBLE = "impossible"


class ConversionOutcome(Published):
    """The outcome of one tensor, and what was lost or why the tensor is left out."""

    name: str
    outcome: OutcomeKind
    what: str


class Conversion(Published):
    """Encodings of another version, with one outcome per tensor of the source, in its order.

    ``encodings`` lacks the tensors whose outcome is impossible; its ``float_tensors`` belong into a side file when the
    version cannot hold them. ``notes`` say what the whole file lost, ``warnings`` what it may hide.
    """

    source_version: str
    encodings: EncodingSet
    outcomes: tuple[ConversionOutcome, ...]
    notes: tuple[str, ...]
    warnings: tuple[str, ...]
    counts: Mapping[str, int]

    @property
    def version(self) -> str:
        """The version converted to."""
        return self.encodings.version

    @property
    def text(self) -> str:
        """The text of the file to write."""
        return write_encodings(self.encodings, self.version)

    @property
    def float_tensors(self) -> frozenset[str]:
        """The tensors that the version has no entry for and that must be named beside the file."""
        return self.encodings.float_tensors

    def of(self, kind: OutcomeKind) -> tuple[ConversionOutcome, ...]:
        """The outcomes of one kind."""
        return tuple(one for one in self.outcomes if one.outcome is kind)

    def as_published(self) -> Json:
        """The published fields; lossless tensors are only counted."""
        return {
            "from": self.source_version,
            "to": self.version,
            **published(self, without=("source_version", "encodings", "outcomes")),
            "losses": [one for one in self.outcomes if one.outcome is not OutcomeKind.LOSSLESS],
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
            Encoding(name, Float("float16"), is_param=name in known and known[name].is_param)
            for name in sorted(encodings.float_tensors - encodings.entries.keys())
        )
    kept = dict[str, Encoding]()
    outcomes = []
    for entry in source:
        # Parameters keep their signedness, as in AIMET.
        if newest and signedness != "as-is" and not entry.is_param and isinstance(entry.value, Affine):
            entry = replace(entry, value=to_unsigned(entry.value, signed=signedness == "signed"))
        kind, what = _loss(entry, encodings.version, to_version, known.get(entry.name))
        outcomes.append(ConversionOutcome(name=entry.name, outcome=kind, what=what))
        if kind is not OutcomeKind.IMPOSSIBLE and not (newest and isinstance(entry.value, Float)):
            kept[entry.name] = entry
    # What the file as a whole loses on its way to 2.0.0, and what the source cannot have said.
    notes, warnings = [], []
    lost = sum(one.outcome is OutcomeKind.IMPOSSIBLE for one in outcomes)
    if newest and encodings.quantizer_args is not None:
        said = "they were defaults of the quantizer, not facts about tensors"
        notes.append(f"quantizer_args have no place in 2.0.0; {said}")
    if newest and encodings.version.startswith(_WITHOUT_AXES) and any(e.is_param is not None for e in encodings):
        notes.append("2.0.0 does not tell parameters from activations; the model does")
    if newest and lost and layouts is None:
        warnings.append(f"without a model {lost} lists of scales have no axis; --model MODEL tells where they run")
    if not newest and encodings.version.startswith("2.") and not encodings.float_tensors:
        warnings.append(
            "2.0.0 has no entry for 16-bit float tensors and none were named: a tensor without an entry may be meant "
            "to be float16, fused with a neighbour, or never quantized"
        )
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
        notes=tuple(notes),
        warnings=tuple(warnings),
        counts={str(kind): sum(one.outcome is kind for one in outcomes) for kind in OutcomeKind},
    )


def writable_versions(encodings: EncodingSet) -> frozenset[str]:
    """The versions for which ``convert`` without layouts would leave no tensor out, and that can be read back."""
    source, impossible = encodings.version, OutcomeKind.IMPOSSIBLE
    return frozenset(
        version
        for version in WRITTEN_VERSIONS
        if fits(encodings, version)
        and all(_loss(entry, source, version, None)[0] is not impossible for entry in encodings)
    )


def _loss(entry: Encoding, source: str, target: str, layout: Layout | None) -> tuple[OutcomeKind, str]:
    """What becomes of one entry between two versions, and what is lost; ``layout`` is what the graph says, if known."""
    value, newest = entry.value, target == "2.0.0"
    kept, lossy, impossible = (OutcomeKind.LOSSLESS, ""), OutcomeKind.LOSSY, OutcomeKind.IMPOSSIBLE
    if not newest and entry.is_param is None:
        return impossible, "activation or parameter: 2.0.0 does not say, the model does"
    if isinstance(value, Float):
        if newest:
            return lossy, f"{value.dtype} has no entry in 2.0.0; the tensor must be named beside the file"
        return kept if value.dtype == "float16" else (impossible, f"{target} knows no {value.dtype}")
    if isinstance(value, Float8):
        return kept if newest else (impossible, f"{target} has no float8 entries")
    if newest and not value.placed:
        return impossible, _why_unplaced(source, layout)
    if isinstance(value, Lpbq):
        if target == "0.6.1":
            return impossible, "0.6.1 has no LPBQ entries"
        if target == "1.0.0" and value.placed:
            return _lost_block_axes(value, source, layout) or kept
        if newest and value.decompressed_bits != 2 * value.bits:
            what = f"{2 * value.bits} bits, but this weight is decompressed to {value.decompressed_bits}"
            return impossible, f"2.0.0 implies decompression to {what}"
        return kept
    lost = None
    if not newest:
        lost = _lost_axes(value, source, target, layout) if value.placed else _unplaced(value, source, target, layout)
    if lost is not None:
        return lost
    if newest:
        if value.symmetric in (None, grids.states_symmetry(value)):
            return kept
        meant = "symmetric" if value.symmetric else "not symmetric"
        return lossy, f"2.0.0 does not say that the {value.dtype} grid is {meant}"
    # A file whose activations were forced to one signedness looks the same for symmetric and merely centred grids.
    centred = (value.zero_point == value.lowest + (1 << (value.bits - 1))).all()
    if value.symmetric is not None or entry.is_param or not centred:
        return kept
    taken = "symmetric" if grids.is_symmetric(value) else "not symmetric"
    return lossy, f"{source} does not say whether this centred grid is symmetric; written as {taken}"


def _lost_axes(value: Affine, source: str, target: str, layout: Layout | None) -> tuple[OutcomeKind, str] | None:
    """The loss of a list because older versions state no axis; None only where every reader finds the same axis."""
    if value.granularity == "per-tensor":
        return None
    if value.block_size is not None:
        if target == "1.0.0":
            return _lost_block_axes(value, source, layout)
        what = f"0.6.1 states neither the block size {value.block_size} nor the axis; no reader can place the list"
        return OutcomeKind.LOSSY, what
    if source.startswith(_WITHOUT_AXES) or (value.bits == grids.WIDEST and value.axis == 0):
        return None
    expected = None
    if layout is not None and layout.shape is not None:
        fitting = [axis for axis, length in enumerate(layout.shape) if length == value.scale.size]
        expected = fitting[0] if layout.channel_axis is None and len(fitting) == 1 else layout.channel_axis
    if expected is None:
        return OutcomeKind.LOSSY, f"{target} does not state the axis {value.axis}"
    if expected == value.axis:
        return None
    what = f"{target} states no axis, and readers would take axis {expected}, not {value.axis}"
    return OutcomeKind.IMPOSSIBLE, what


def _lost_block_axes(value: Affine | Lpbq, source: str, layout: Layout | None) -> tuple[OutcomeKind, str] | None:
    if source.startswith(_WITHOUT_AXES):
        return None
    if layout is None or layout.channel_axis is None or value.axis is None:
        return OutcomeKind.LOSSY, f"1.0.0 states neither the block axis {value.block_axis} nor the channel axis"
    if (layout.channel_axis, layout.block_axis) == (value.axis, value.block_axis):
        return None
    taken = f"channels along {layout.channel_axis} and blocks along {layout.block_axis}"
    what = f"1.0.0 states no axes, and readers would take {taken}, not {value.axis} and {value.block_axis}"
    return OutcomeKind.IMPOSSIBLE, what


def _unplaced(value: Affine, source: str, target: str, layout: Layout | None) -> tuple[OutcomeKind, str] | None:
    if target == "0.6.1":
        order = "0.6.1 lists blocks in the tensor's own order, which only the model tells"
        return None if value.block_size is None else (OutcomeKind.IMPOSSIBLE, order)
    if not source.startswith("0.6"):
        return None
    if layout is None or layout.shape is None:
        what = "taken as per-channel; only the model tells a list of channels from a list of blocks"
        return OutcomeKind.LOSSY, what
    return None if layout.channel_axis is None else (OutcomeKind.IMPOSSIBLE, _why_unplaced(source, layout))


def _why_unplaced(source: str, layout: Layout | None) -> str:
    """Why a value has no axes."""
    if layout is None:
        return f"{source} states no axis, and no model was given that has this tensor"
    if layout.shape is None:
        return f"{source} states no axis, and the shape of the tensor is not known"
    if layout.channel_axis is None:
        return f"{source} states no axis, and several axes of the tensor would fit"
    return f"the list is longer than the channel axis: blocks, whose size {source} does not state"
