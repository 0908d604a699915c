"""The arithmetic of turning per-block scales into LPBQ ones: a float scale per channel times a whole number per block.

For channel c: ``s_c = max over blocks of s[c, b] / 16`` and ``k[c, b] = clip(round(s[c, b] / s_c), 1, 16)``. It is
lossy, so every conversion comes with its loss. Pure numpy, a few blocks at a time; nothing is read or written.
"""

from __future__ import annotations

import numpy as np

from deploykit.encodings.values import Affine, EncodingSet, Lpbq, on_axis
from deploykit.findings.records import Json, Numbers, Published, Record, Shape, replace

__all__ = [
    "BlockWeight",
    "LpbqLoss",
    "lpbq_encodings",
    "lpbq_integers",
    "lpbq_scales",
    "scale_error",
]


BITS = 4
DECOMPRESSED_BITS = 8
LARGEST = 1 << (DECOMPRESSED_BITS - BITS)
"""The largest whole block scale, 16: it does not fit a uint4, so these scales are stored as uint8."""

_CHUNK = 1 << 17


class LpbqLoss(Published):
    """What LPBQ costs one weight: the largest relative change of a scale, and the SQNR of the dequantized weight.

    ``refined_sqnr_db`` is the SQNR after re-rounding the integers to the new scales; None when it was not computed.
    """

    scale_error: float
    sqnr_db: float
    refined_sqnr_db: float | None = None

    def as_published(self) -> Json:
        """The published fields; an SQNR is ``infinite`` where nothing is lost."""
        return {
            "scale_error": round(self.scale_error, 6),
            "sqnr_db": _json_db(self.sqnr_db),
            "refined_sqnr_db": None if self.refined_sqnr_db is None else _json_db(self.refined_sqnr_db),
        }


class BlockWeight(Record, eq=False):
    """A 4-bit weight as ONNX stores it: two integers to a byte, the first in the low half.

    ``scale`` is of the weight's rank, with the block axis divided by ``block_size``.
    """

    packed: Numbers
    shape: Shape
    scale: Numbers
    block_axis: int
    channel_axis: int
    block_size: int


def lpbq_scales(scale: Numbers, channel_axis: int) -> tuple[Numbers, Numbers]:
    """Channel scales (1-d) and whole block scales (of the shape of ``scale``). A channel of zeros keeps scale 0."""
    others = tuple(axis for axis in range(scale.ndim) if axis != channel_axis)
    channel = scale.max(axis=others, keepdims=True).astype(np.float64) / LARGEST
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = np.where(channel > 0, scale / channel, 1.0)
    return channel.reshape(-1), np.clip(np.rint(ratio), 1, LARGEST)


def lpbq_integers(weight: BlockWeight, *, refined: bool) -> tuple[Numbers, LpbqLoss]:
    """The packed integers and the loss: the integers as they are or, ``refined``, re-rounded to the new scales.

    The loss is computed from sums of products per block.
    """
    channel, blocks = lpbq_scales(weight.scale, weight.channel_axis)
    new = np.asarray(blocks * on_axis(channel.astype(np.float32), weight.channel_axis, blocks.ndim), np.float32)
    old = weight.scale.astype(np.float32)
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = np.where(new > 0, old / new, 1.0).astype(np.float32)
    packed = np.empty_like(weight.packed) if refined else weight.packed
    sums = np.zeros((3, *old.shape), np.float64)

    # Rows of the first axis at a time: whole blocks, whole bytes, few enough for the cache.
    axis, size, width = weight.block_axis, weight.block_size, int(np.prod(weight.shape[1:]))
    unit = (size if axis == 0 else 1) * 2
    step = max(unit, _CHUNK // max(width, 1) // unit * unit)
    for first in range(0, weight.shape[0], step):
        count = min(step, weight.shape[0] - first)
        span = slice(first * width // 2, -(-(first + count) * width // 2))
        scales = slice(first // size, -(-(first + count) // size)) if axis == 0 else slice(first, first + count)
        # Both halves of each byte as int8, with the block axis split in two: blocks, and the values of one block.
        halves = np.stack([weight.packed[span] << 4, weight.packed[span]], axis=-1).view(np.int8) >> 4
        shape = (count, *weight.shape[1:])
        values = halves.reshape(-1)[: count * width].reshape(*shape[:axis], -1, size, *shape[axis + 1 :])
        sums[0, scales] = _dots(values, values, axis + 1)
        if refined:
            after = np.clip(np.rint(values * np.expand_dims(ratio[scales], axis + 1)), -8, 7).astype(np.int8)
            sums[1, scales], sums[2, scales] = _dots(values, after, axis + 1), _dots(after, after, axis + 1)
            low, high = np.append(after, [0] * (after.size % 2)).reshape(-1, 2).T.astype(np.uint8) & 0x0F
            packed[span] = low | high << 4
    before, mixed, after = sums
    new, old = new.astype(np.float64), old.astype(np.float64)  # squares of nearly equal numbers are subtracted below
    signal, kept = float((before * old**2).sum()), float((before * (new - old) ** 2).sum())
    # The square of q' * new - q * old, summed per block; rounding may take a tiny sum below 0.
    rest = max(0.0, float((after * new**2 - 2 * mixed * new * old + before * old**2).sum()))
    loss = LpbqLoss(scale_error=scale_error(old, new), sqnr_db=_db(signal, kept))
    return packed, replace(loss, refined_sqnr_db=_db(signal, rest)) if refined else loss


def scale_error(old: Numbers, new: Numbers) -> float:
    """The largest change of a scale, relative to its old value; scales of 0 are left out."""
    change = np.abs(new.astype(np.float64) - old)  # beside the smallest float32 numbers its quotient is none
    return float(np.divide(change, old, out=np.zeros(old.shape), where=old > 0).max(initial=0.0))


def lpbq_encodings(encodings: EncodingSet) -> tuple[EncodingSet, dict[str, str]]:
    """The encodings with every per-block 4-bit entry as LPBQ; the second value says why an entry is left as it was."""
    entries, left = dict(encodings.entries), dict[str, str]()
    for name, entry in encodings.entries.items():
        value = entry.value
        if not isinstance(value, Affine) or value.block_size is None:
            continue
        if value.bits != BITS:
            left[name] = f"{value.bits}-bit blocks; LPBQ expands 4-bit ones"
        elif np.any(value.zero_point - (0 if value.signed else 8)):
            left[name] = "its zero point is not that of a symmetric grid"
        elif value.axis is None or value.block_axis is None:
            left[name] = "its channel axis is not known"
        elif not np.all(value.scale >= 0):
            left[name] = "a scale is negative"
        if name in left or value.axis is None:
            continue
        channel, blocks = lpbq_scales(value.scale, value.axis)
        entries[name] = replace(
            entry,
            value=Lpbq(
                bits=BITS,
                decompressed_bits=DECOMPRESSED_BITS,
                channel_scale=on_axis(channel, value.axis, blocks.ndim),
                block_scale=blocks,
                axis=value.axis,
                block_axis=value.block_axis,
                block_size=value.block_size,
            ),
        )
    return replace(encodings, entries=entries), left


def _dots(a: Numbers, b: Numbers, axis: int) -> Numbers:
    """The sum of products per block. Products of 4-bit integers are whole numbers that float32 sums exactly."""
    return np.asarray(np.multiply(a, b, dtype=np.float32).sum(axis=axis))


def _db(signal: float, noise: float) -> float:
    if noise <= 0:
        return float("inf")
    return float("-inf") if signal <= 0 else 10 * float(np.log10(signal / noise))


def _json_db(value: float) -> float | str:
    return round(value, 2) if np.isfinite(value) else "infinite"
