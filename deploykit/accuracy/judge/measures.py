"""Numbers about two arrays, or about pairs of them over samples. It knows no limits, no graph and no models.

First the numbers of the vendor's evaluation tool, to the last bit; then measures that look for damage; then measures of
decisions on both sides: classes, texts, areas of a picture, labels. Near ties are no loss.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import starmap
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from deploykit.findings.records import Doubles, Numbers, Record

__all__ = ["Pair", "PairQuality", "Slices", "agreement", "among_five", "answers", "at_points"]
__all__ += ["cosine", "decisions_kept", "embeddings", "gain_error", "max_error"]
__all__ += ["mean_overlap", "measure", "overall_db", "picture_db", "psnr_db", "runs_of"]
__all__ += ["sqnr_db", "ssim", "texts_read", "worst_sample", "worst_slice"]

Pair: TypeAlias = tuple[Numbers, Numbers]

# The constants of SSIM for images of 0..255, and its 11 by 11 window.
_SSIM_C1, _SSIM_C2 = (0.01 * 255) ** 2, (0.03 * 255) ** 2
_SSIM_RADIUS, _SSIM_SIGMA = 5, 1.5
_TINY = 1e-10

# Fewer numbers do not make a slice: their variance says nothing. Fewer samples are not compared with one another.
_LEAST_ELEMENTS, _LEAST_SAMPLES = 16, 3
# Values that vary less than float16 can show beside the largest of them are no signal.
_FLOAT16_BITS = 11
# A slice counts where it varies by a tenth of the usual slice: less is neither heard nor seen beside the others.
_LEAST_SPREAD = 0.1


class PairQuality(Record):
    """The numbers for one pair of tensors. ``nan`` where a number is not defined (cosine of a zero tensor)."""

    cosine: float
    l2: float
    psnr_db: float
    ssim: float
    sqnr_db: float
    max_error: float

    def to_json(self) -> dict[str, float | str | None]:
        """Numbers, None where a number is not defined, and the word ``infinite`` for an unbounded one."""

        def told(value: float) -> float | str | None:
            if math.isnan(value):
                return None
            return value if math.isfinite(value) else ("infinite" if value > 0 else "-infinite")

        return {name: told(getattr(self, name)) for name in self.__struct_fields__}


def measure(baseline: Numbers, candidate: Numbers) -> PairQuality:
    """All numbers for one pair of tensors of the same shape, of any rank."""
    told = (cosine, _l2_distance, psnr_db, ssim, sqnr_db, max_error)
    names = PairQuality.__struct_fields__
    return PairQuality(**{name: number(baseline, candidate) for name, number in zip(names, told, strict=True)})


def cosine(baseline: Numbers, candidate: Numbers) -> float:
    """The cosine of the angle between two tensors of the same shape, flattened; nan when one of them is all zero."""
    a, b = _flat(baseline), _flat(candidate)
    norms = float(np.linalg.norm(a)) * float(np.linalg.norm(b))
    return float(a @ b) / norms if norms else math.nan


def _l2_distance(baseline: Numbers, candidate: Numbers) -> float:
    """The Euclidean norm of the difference of two tensors of the same shape."""
    return float(np.linalg.norm(_flat(baseline) - _flat(candidate)))


def max_error(baseline: Numbers, candidate: Numbers) -> float:
    """The largest absolute difference of two tensors of the same shape; 0 for empty ones."""
    return float(np.abs(_flat(baseline) - _flat(candidate)).max(initial=0.0))


def psnr_db(baseline: Numbers, candidate: Numbers) -> float:
    """Peak signal to noise, in dB. The peak is the baseline's largest value, not its range and not an absolute value.

    A mean square error of 0 and a peak that is not positive are taken as 1e-10, so no result is infinite.
    """
    a, b = _flat(baseline), _flat(candidate)
    if not a.size:
        return math.nan
    error = float(np.mean((a - b) ** 2)) or _TINY
    peak = float(a.max())
    return 20 * math.log10(peak if peak > 0 else _TINY) - 10 * math.log10(error)


def sqnr_db(baseline: Numbers, candidate: Numbers) -> float:
    """Signal to quantization noise, in dB: energy of the baseline over energy of the difference.

    Infinite without a difference; minus infinity when the baseline is all zero and the candidate is not, and for
    another number of values.
    """
    a, b = _flat(baseline), _flat(candidate)
    if a.size != b.size:
        return -math.inf
    return _db(float(a @ a), float((a - b) @ (a - b)))


def ssim(baseline: Numbers, candidate: Numbers) -> float:
    """Structural similarity with the constants of 0..255 images, the first two axes as height and width.

    Every further axis counts as channels; a vector is one column. The second moments are not centred, as in the tool
    whose numbers these are: near 1 for whatever stays far under 255, so only meaningful for images.
    """
    if baseline.size == 0:
        return math.nan
    x, y = (np.asarray(side, np.float64) for side in (baseline, candidate))
    x, y = (s.reshape(-1, 1, 1) if s.ndim < 2 else s.reshape(*s.shape[:2], -1) for s in (x, y))
    mean_x, mean_y = _blur(x), _blur(y)
    above = (2 * mean_x * mean_y + _SSIM_C1) * (2 * _blur(x * y) + _SSIM_C2)
    below = (mean_x**2 + mean_y**2 + _SSIM_C1) * (_blur(x * x) + _blur(y * y) + _SSIM_C2)
    return float(np.mean(above / (below + _TINY)))


def _blur(image: Doubles) -> Doubles:
    """An 11 by 11 Gaussian of sigma 1.5 over the first two axes, mirrored at the borders without repeating the edge."""
    kernel = np.exp(-(np.arange(-_SSIM_RADIUS, _SSIM_RADIUS + 1) ** 2) / (2 * _SSIM_SIGMA**2))
    kernel /= kernel.sum()
    for axis in (0, 1):
        padding = [(0, 0)] * image.ndim
        padding[axis] = (_SSIM_RADIUS, _SSIM_RADIUS)
        padded, result = np.pad(image, padding, mode="reflect"), np.zeros_like(image)
        moved, shifted = np.moveaxis(result, axis, 0), np.moveaxis(padded, axis, 0)  # views
        for index, weight in enumerate(kernel):
            moved += weight * shifted[index : index + image.shape[axis]]
        image = result
    return image


def _flat(values: Numbers) -> Doubles:
    return np.asarray(values, dtype=np.float64).ravel()


def _db(signal: float, noise: float) -> float:
    if noise == 0:
        return math.inf
    return 10 * math.log10(signal / noise) if signal / noise > 0 else -math.inf


# Measures over pairs of one output's samples. Only ``overall_db`` is given values that are not finite.


def overall_db(pairs: Sequence[Pair]) -> float:
    """Energy of the left side over that of the difference, in dB, where both are finite. Infinite without difference.

    Minus infinity where the left side is all zero and the right side is not, or has another number of values.
    """
    signal = noise = 0.0
    for one, two in pairs:
        a, b = _flat(one), _flat(two)
        if a.size != b.size:
            return -math.inf
        both = np.isfinite(a) & np.isfinite(b)
        a, b = a[both], b[both]
        signal += float(a @ a)
        noise += float((a - b) @ (a - b))
    return _db(signal, noise)


def picture_db(pairs: Sequence[Pair]) -> tuple[float, list[float]]:
    """Peak signal to noise in dB, of all pictures (along the first axis) and of each one, its own range as the peak.

    Of all it is the mean, and no more than with the range of all as the peak. A picture of a tenth of the usual range
    has none of its own, and takes that of all. Infinite without a difference or a range.
    """
    pictures = [(_flat(one), _flat(two)) for pair in pairs for one, two in zip(*pair, strict=True)]
    noise = np.asarray([np.mean((one - two) ** 2) for one, two in pictures])
    ranges, whole = np.asarray([np.ptp(one) for one, _ in pictures]), float(np.ptp(_all_of(pairs)[0])) or math.inf
    peaks = np.where(ranges > _LEAST_SPREAD * np.sqrt(np.mean(ranges**2)), ranges, whole)
    alone = [_db(1.0, share) for share in noise / peaks**2]
    return min(_db(1.0, float(np.mean(noise)) / whole**2), float(np.mean(alone))), alone


def gain_error(pairs: Sequence[Pair]) -> float:
    """The share by which the right side is larger or smaller than the left as a whole, without noise.

    0 for no signal.
    """
    left, right = _all_of(pairs)
    energy = float(left @ left)
    return abs(float(left @ right) / energy - 1) if energy else 0.0


def _all_of(pairs: Sequence[Pair]) -> tuple[Doubles, Doubles]:
    """Both sides of all samples, flattened."""
    left, right = (np.concatenate([_flat(pair[side]) for pair in pairs]) for side in (0, 1))
    return left, right


def worst_sample(pairs: Sequence[Pair], *, tolerance: float) -> tuple[int, float] | None:
    """The sample that differs most and its decibels: energy over that of the difference; None for a single sample.

    A sample that holds less than the mean counts as the mean: the steps of a grid are as large there as elsewhere.
    Samples whose largest error is within ``tolerance`` are passed over.
    """
    some = [(one, two) for one, two in pairs if one.size]
    if len(some) < 2:
        return None
    energies = [float(np.sum(_flat(one) ** 2)) for one, _ in some]
    mean = sum(energies) / len(energies)
    found = [
        (number, _db(max(energy, mean), _l2_distance(*pair) ** 2))
        for number, (energy, pair) in enumerate(zip(energies, some, strict=True))
        if max_error(*pair) > tolerance
    ]
    return min(found, key=lambda item: item[1], default=None)


class Slices:
    """Per slice along one axis, pooled over samples: elements, energies, the largest error, the ranges of both sides.

    ``signal`` is the reference's energy, ``noise`` that of the difference.
    """

    def __init__(self, axis: int, count: int) -> None:
        self.axis, self.elements = axis, 0
        self.total, self.signal, self.noise, self.worst = np.zeros((4, count))
        # Per side (reference, candidate) and slice.
        self.low, self.high = np.full((2, count), np.inf), np.full((2, count), -np.inf)

    def add(self, one: Doubles, two: Doubles) -> None:
        """Add one sample of both sides."""
        others = tuple(axis for axis in range(one.ndim) if axis != self.axis)
        difference = np.abs(one - two)
        self.total += one.sum(axis=others)
        self.signal += (one**2).sum(axis=others)
        self.noise += (difference**2).sum(axis=others)
        self.worst = np.maximum(self.worst, difference.max(axis=others))
        self.low = np.minimum(self.low, [side.min(axis=others) for side in (one, two)])
        self.high = np.maximum(self.high, [side.max(axis=others) for side in (one, two)])
        self.elements += one.size // max(1, len(self.signal))

    @property
    def sqnr_db(self) -> Doubles:
        """Signal to noise per slice, in dB; infinite without a difference."""
        return self._beside_noise(self.signal)

    @property
    def dead(self) -> npt.NDArray[np.bool_]:
        """Slices in which the candidate never changes although the reference does, by more than its own rounding."""
        varies = self.high[0] - self.low[0] > np.ldexp(self.peaks, -_FLOAT16_BITS)
        return np.asarray((self.low[1] == self.high[1]) & varies, dtype=np.bool_)

    def least_left(self, tolerance: float) -> tuple[float, int]:
        """The slice that keeps least of what varies in it: what varies over what differs, in dB, and its index.

        Infinite for none. Slices that hardly vary, beside themselves or beside the others, and small errors are passed
        over.
        """
        energy = np.maximum(self.signal - self.total**2 / max(self.elements, 1), 0.0)
        spread = np.sqrt(energy / max(self.elements, 1))
        usual = _LEAST_SPREAD * math.sqrt(float(np.mean(spread**2)))
        varies = (spread > np.ldexp(self.peaks, -_FLOAT16_BITS)) & (spread >= usual) & (self.worst > tolerance)
        left = np.where(varies & (self.elements >= _LEAST_ELEMENTS), self._beside_noise(energy), np.inf)
        return float(left.min()), int(left.argmin())

    @property
    def peaks(self) -> Doubles:
        """The reference's largest magnitude per slice."""
        return np.asarray(np.maximum(np.abs(self.low[0]), np.abs(self.high[0])))

    def _beside_noise(self, energy: Doubles) -> Doubles:
        with np.errstate(divide="ignore", invalid="ignore"):
            values = 10 * np.log10(energy / self.noise)
        return np.where(self.noise == 0, np.inf, values)


def runs_of(chosen: npt.NDArray[np.bool_]) -> list[tuple[int, int]]:
    """Runs of neighbouring chosen slices, each as its first index and the one behind its last."""
    edges = np.flatnonzero(np.diff(np.concatenate(([False], chosen, [False])).astype(np.int8))).tolist()
    return list(zip(edges[::2], edges[1::2], strict=True))


def worst_slice(pairs: Sequence[Pair], *, tolerance: float, axes: int | None) -> tuple[float, str] | None:
    """The worst of all values together, of the differences between samples, and of every slice along each of the axes.

    It is given as the energy of what varies over that of what differs, in dB, and its place ("" for all values); None
    where nothing is lost. A constant in the place of a slice leaves nothing of it, whatever its mean. ``axes`` is how
    many axes after the batch axis are looked along, None for all.
    """
    some = [(np.asarray(one, np.float64), np.asarray(two, np.float64)) for one, two in pairs if one.size]
    found = [(_along([(one.reshape(1, -1), two.reshape(1, -1)) for one, two in some], 0).least_left(tolerance)[0], "")]
    shape = some[0][0].shape
    if len(some) >= _LEAST_SAMPLES and all(one.shape == shape for one, _ in some):
        left, right = map(np.stack, zip(*some, strict=True))
        # What differs from sample to sample: an answer that is the same for all may look good, and answers nothing.
        energy = float(((left - left.mean(axis=0)) ** 2).sum())
        spread, difference = math.sqrt(energy / left.size), np.abs(left - right)
        varies = left.size >= _LEAST_ELEMENTS and spread > math.ldexp(float(np.abs(left).max()), -_FLOAT16_BITS)
        if varies and difference.max() > tolerance:
            found.append((_db(energy, float((difference**2).sum())), "between samples"))
    for axis in range(1, len(shape))[:axes]:
        if shape[axis] > 1 and all(one.ndim == len(shape) and one.shape[axis] == shape[axis] for one, _ in some):
            db, index = _along(some, axis).least_left(tolerance)
            found.append((db, f"slice {index} of axis {axis}"))
    worst = min(found, key=lambda item: item[0])
    return worst if worst[0] < math.inf else None


def _along(pairs: Sequence[tuple[Doubles, Doubles]], axis: int) -> Slices:
    slices = Slices(axis, pairs[0][0].shape[axis])
    for one, two in pairs:
        slices.add(one, two)
    return slices


_CLEAR = 0.1  # a class leads where it leads by this share of the spread; closer races may end either way
_LEADING = 10  # the spread is that of so many leading classes: hundreds that never lead would make any lead a near tie
_NEAR = 0.05  # and a probability decides nothing within so much of a half
_LONGEST_LETTER = 3  # steps on average
_RARE, _LEAST_RARE = 0.1, 20  # positive decisions are counted alone where they are rare, and enough to count


def at_points(pairs: Sequence[Pair], scores: Sequence[Pair], least: float) -> list[Pair]:
    """Maps [N, C, H, W] where a map of scores of either side is at least ``least``, as [places, C] for each sample.

    Empty where the maps are not of one size, and where such places are no points: too many, or too few to count.
    """
    chosen = [np.maximum(one, two).max(1) >= least for one, two in scores if one.ndim == 4]
    are_few = _LEAST_RARE <= sum(map(np.sum, chosen)) < _RARE * sum(map(np.size, chosen))
    if not are_few or [at.shape for at in chosen] != [one[:, 0].shape for one, _ in pairs]:
        return []
    moved = ((np.moveaxis(one, 1, -1), np.moveaxis(two, 1, -1)) for one, two in pairs)
    return [(one[at], two[at]) for (one, two), at in zip(moved, chosen, strict=True)]


def answers(pairs: Sequence[Pair], axis: int | None, *, forgives: bool = True) -> list[Pair]:
    """The decisions of both sides: the class that leads along ``axis``; for None, which probabilities lie above a half.

    In a near tie of the left side the right side is taken to agree, unless nothing is forgiven.
    """
    found = list[Pair]()
    for one, two in pairs:
        a, b = np.asarray(one, np.float64), np.asarray(two, np.float64)
        if axis is None:
            left, right, near = a > 0.5, b > 0.5, np.abs(a - 0.5) < _NEAR
        else:
            left, right = a.argmax(axis), b.argmax(axis)
            values = np.take_along_axis(a, np.expand_dims(right, axis), axis).squeeze(axis)
            best = np.moveaxis(np.sort(a, axis), axis, -1)[..., -_LEADING:]
            near = a.max(axis) - values <= _CLEAR * min(np.std(a), np.sqrt(best.var(-1).mean()))
        found.append((left, np.where(near & forgives, left, right)))
    return found


def agreement(pairs: Sequence[Pair]) -> tuple[int, int]:
    """How many whole numbers are equal, and of how many; a device that gives them as floats may be an ulp off."""
    left, right = map(np.rint, _all_of(pairs))
    return int((left == right).sum()), left.size


def among_five(pairs: Sequence[Pair], axis: int) -> tuple[int, int]:
    """How often the reference's class is among the first five of the right side, and of how many times."""
    same = total = 0
    for (_, two), (left, right) in zip(pairs, answers(pairs, axis), strict=True):
        ranked = np.argsort(-1.0 * two, axis).take(range(5), axis)
        hit = (left == right) | (ranked == np.expand_dims(left, axis)).any(axis)
        same, total = same + int(hit.sum()), total + hit.size
    return same, total


def decisions_kept(pairs: Sequence[Pair], what: str) -> tuple[int, int, str]:
    """How many answers are equal, of how many, and of what.

    Where nearly all are one, such as the silence among all notes that could sound, only those count that are another
    on either side: the rest would hide what is lost.
    """
    left, right = map(np.rint, _all_of(pairs))
    usual = _usual(left, right)
    counts = (left != usual) | (right != usual)
    return int((left == right)[counts].sum()), int(counts.sum()), what if counts.all() else f"rarer {what}"


def _usual(left: Doubles, right: Doubles) -> float:
    """The label of nearly everything, where enough lies elsewhere on either side; NaN for none."""
    labels, counts = np.unique(left, return_counts=True)
    most = float(labels[counts.argmax()])
    elsewhere = ((left != most) | (right != most)).sum() >= _LEAST_RARE
    return most if elsewhere and counts.max() > (1 - _RARE) * left.size else math.nan


def are_letters(pairs: Sequence[Pair]) -> bool:
    """True where steps of the left side are letters: CTC's last a step or two, a sound as long as it is heard."""
    steps = np.concatenate([one.ravel() for one, _ in pairs])
    letters = steps != np.bincount(steps).argmax()  # which is the blank
    return bool(letters.sum() <= _LONGEST_LETTER * (letters & (steps != np.roll(steps, 1))).sum())


def texts_read(pairs: Sequence[Pair]) -> tuple[int, int, float]:
    """How many lines are read alike, of how many, and the share of letters to edit.

    Inputs are letters by (samples, steps). Steps that repeat are one letter, and the letter that is most frequent in
    all lines is CTC's blank. The steps of one line may come first.
    """
    blank = int(np.bincount(np.concatenate([one.ravel() for one, _ in pairs])).argmax())

    def lines(side: Numbers) -> Numbers:
        return side.reshape(1 if side.shape[1:2] == (1,) else len(side), -1)

    def letters(steps: Numbers) -> list[int]:
        return [int(letter) for letter in steps[np.r_[True, steps[1:] != steps[:-1]]] if letter != blank]

    read = [(letters(a), letters(b)) for pair in pairs for a, b in zip(*map(lines, pair), strict=True)]
    length, changed = sum(len(one) for one, _ in read), sum(starmap(_edits, read))
    return sum(one == two for one, two in read), len(read), changed / max(length, 1)


def _edits(one: Sequence[int], two: Sequence[int]) -> int:
    """The fewest letters to insert, delete and replace (Levenshtein)."""
    row = list(range(len(two) + 1))
    for at, letter in enumerate(one, 1):
        before, row[0] = row[0], at
        for to, other in enumerate(two, 1):
            before, row[to] = row[to], min(row[to] + 1, row[to - 1] + 1, before + (letter != other))
    return row[-1]


def mean_overlap(pairs: Sequence[Pair], background: float | None) -> float:
    """The mean over labels of intersection over union, pooled over samples; NaN for nothing but the background.

    A label of nearly everything is the background as well, where enough lies elsewhere: it would hide what is lost.
    """
    left, right = _all_of(pairs)
    usual = _usual(left, right)
    background = background if math.isnan(usual) else usual
    areas = [(left == label, right == label) for label in np.union1d(left, right) if label != background]
    return float(np.mean([(a & b).sum() / (a | b).sum() for a, b in areas])) if areas else math.nan


def embeddings(pairs: Sequence[Pair]) -> tuple[float, int, int]:
    """The mean cosine of both sides' vectors (last axis), how often the nearest neighbour is the same, of how many.

    A vector that lost its direction (all zero) has a cosine of 0; NaN where the left side has none. Fewer than three
    vectors have no neighbours.
    """
    left, right = (np.concatenate([p[at].reshape(-1, p[at].shape[-1]) for p in pairs]) for at in (0, 1))
    units = [side / np.maximum(np.linalg.norm(side, axis=1, keepdims=True), 1e-12) for side in (left, right)]
    cosines = (units[0] * units[1]).sum(1)[left.any(1)]
    one, two = (unit @ unit.T - 4 * np.eye(len(unit)) for unit in units)  # nobody is near himself
    same = one.max(1) - one[np.arange(len(one)), two.argmax(1)] <= 1e-2
    return float(cosines.mean()) if cosines.size else math.nan, int(same.sum()), len(one) if len(one) > 2 else 0
