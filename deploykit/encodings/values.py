"""The vendor-neutral values of quantization encodings; nothing here reads files or looks at a graph.

Real value of a stored integer ``q``: ``(q - zero_point) * scale``. Scales are float64 and are never narrowed here,
because encodings of 1e27 are legal and a detour through float16 or float32 would change them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from functools import cached_property
from typing import TYPE_CHECKING, TypeAlias

from deploykit.findings.records import Interval, Json, Numbers, Record, field, replace

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

__all__ = ["Affine", "Array", "Encoding", "EncodingSet", "Float", "Float8", "Lpbq", "Value", "on_axis"]

Array: TypeAlias = "npt.NDArray[np.float64]"


def on_axis(numbers: Numbers, axis: int | None, rank: int) -> Numbers:
    """Numbers reshaped to lie along one axis of a tensor of that rank."""
    return numbers.reshape([-1 if at == axis else 1 for at in range(rank)])


class Affine(Record, eq=False):
    """An integer grid: per tensor, per channel or per block.

    ``scale`` and ``zero_point`` have the same shape: ``()`` per tensor, ``(channels,)`` per channel along ``axis``,
    and per block the rank of the tensor with the block axis divided by ``block_size`` (other axes full or 1).
    ``zero_point`` is that of the grid of ``dtype`` (0 is symmetric for a signed grid) and is float64 because AIMET's
    shifted zero points are fractional. ``symmetric`` is None where the file does not say. An encoding of a file that
    gives no axis and has not been placed on a graph yet has ``placed=False`` and a flat scale in the file's order.
    """

    bits: int
    signed: bool
    scale: Array
    zero_point: Array
    symmetric: bool | None = None
    axis: int | None = None
    block_axis: int | None = None
    block_size: int | None = None
    placed: bool = True

    @property
    def dtype(self) -> str:
        """The grid's type by its ONNX-like name, for instance ``uint8``."""
        return f"{'int' if self.signed else 'uint'}{self.bits}"

    @property
    def lowest(self) -> int:
        """The smallest stored integer."""
        return -(1 << (self.bits - 1)) if self.signed else 0

    @property
    def highest(self) -> int:
        """The largest stored integer."""
        return self.lowest + (1 << self.bits) - 1

    @property
    def granularity(self) -> str:
        """``per-tensor``, ``per-channel`` or ``per-block``."""
        if self.block_size is not None:
            return "per-block"
        single = self.placed and self.scale.size == 1 and self.axis is None
        return "per-tensor" if single else "per-channel"

    @property
    def ends(self) -> Interval:
        """The least and the greatest real value of the whole grid."""
        if self.scale.size == self.zero_point.size == 1:
            scale, zero_point = self.scale.item(), self.zero_point.item()
            return (self.lowest - zero_point) * scale, (self.highest - zero_point) * scale
        return float(self.minimum.min()), float(self.maximum.max())

    @property
    def minimum(self) -> Array:
        """The real value of the lowest integer, of the shape of ``scale``."""
        return (self.lowest - self.zero_point) * self.scale

    @property
    def maximum(self) -> Array:
        """The real value of the highest integer, of the shape of ``scale``."""
        return (self.highest - self.zero_point) * self.scale


class Lpbq(Record, eq=False):
    """Low-power block quantization: a float scale per channel times an integer scale per block; symmetric.

    ``block_scale`` holds whole numbers in 1 .. 2**(decompressed_bits - bits) inclusive. Placed, both arrays have the
    tensor's rank; the channel axis is the one along which ``channel_scale`` is longer than 1.
    """

    bits: int
    decompressed_bits: int
    channel_scale: Array
    block_scale: Array
    axis: int | None
    block_axis: int | None
    block_size: int
    placed: bool = True

    @property
    def dtype(self) -> str:
        """The type of the stored weights, for instance ``int4``."""
        return f"int{self.bits}"

    @property
    def granularity(self) -> str:
        """Always ``lpbq``."""
        return "lpbq"

    @property
    def scale(self) -> Array:
        """The effective scale per block: integer scale times channel scale."""
        return self.block_scale * self.channel_scale


class Float(Record, kw_only=False):
    """A cast without a scale: the tensor is meant to be float16 or bfloat16."""

    dtype: str

    @property
    def granularity(self) -> str:
        """Always ``per-tensor``."""
        return "per-tensor"


_LARGEST = {"float8e4m3fn": 448.0, "float8e5m2": 57344.0, "float8e4m3fnuz": 240.0, "float8e5m2fnuz": 57344.0}


class Float8(Record, eq=False):
    """A scaled float8: ``float8e4m3fn`` or ``float8e5m2``; ``scale`` is laid out as in ``Affine``."""

    dtype: str
    scale: Array
    axis: int | None = None
    block_axis: int | None = None
    block_size: int | None = None

    @property
    def granularity(self) -> str:
        """``per-tensor``, ``per-channel`` or ``per-block``."""
        if self.block_size is not None:
            return "per-block"
        return "per-tensor" if self.axis is None else "per-channel"

    @property
    def largest(self) -> float:
        """The largest finite value of the type."""
        return _LARGEST[self.dtype]


Value: TypeAlias = Affine | Lpbq | Float | Float8


class Encoding(Record, kw_only=False, eq=False):
    """The encoding of one tensor. ``is_param`` is None where the file does not tell parameters apart."""

    name: str
    value: Value
    is_param: bool | None = None

    @property
    def dtype(self) -> str:
        """The type of the tensor by its ONNX-like name."""
        return self.value.dtype

    @property
    def integer_bits(self) -> int:
        """The width of an integer grid; 0 for LPBQ and floats."""
        return self.value.bits if isinstance(self.value, Affine) else 0


class EncodingSet(Record, eq=False, dict=True, kw_only=False):
    """All encodings of one model, in the file's order, with what the file said about itself.

    ``extra`` keeps unknown top-level keys. ``float_tensors`` are tensors meant to be float16 that the format cannot
    say (2.0.0 has no entry for them): named by the user or by a side file, never guessed. ``source`` is the file it
    was read from, for messages.
    """

    version: str
    entries: Mapping[str, Encoding]
    producer: Json | None = None
    quantizer_args: Json | None = None
    extra: Json = field(default_factory=dict)
    float_tensors: frozenset[str] = frozenset()
    source: str = ""

    def __iter__(self) -> Iterator[Encoding]:
        return iter(self.entries.values())

    def __len__(self) -> int:
        return len(self.entries)

    def __contains__(self, name: object) -> bool:
        return name in self.entries

    def get(self, name: str) -> Encoding | None:
        """The entry of one tensor, or None."""
        return self.entries.get(name)

    def only(self, names: Collection[str]) -> EncodingSet:
        """The set with only the entries and float tensors of these names."""
        entries = {name: entry for name, entry in self.entries.items() if name in names}
        return replace(self, entries=entries, float_tensors=self.float_tensors & frozenset(names))

    def with_entries(self, entries: Iterable[Encoding]) -> EncodingSet:
        """The set with these entries, which replace those of the same names."""
        return replace(self, entries={**self.entries, **{entry.name: entry for entry in entries}})

    @cached_property
    def floats(self) -> frozenset[str]:
        """Tensors that are explicitly meant to be 16-bit float: float entries and ``float_tensors``."""
        return self.float_tensors | {name for name, entry in self.entries.items() if isinstance(entry.value, Float)}
