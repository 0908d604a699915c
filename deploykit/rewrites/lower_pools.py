"""Rewrites of pools that devices lack: over three axes, with a dilation, or with a window larger than the map.

A place of a window is a tap: a Gather with stored places. The greatest of the taps is the MaxPool, their sum over
their number the AveragePool. Windows are computed axis by axis, so that 3 x 3 x 3 places cost 9 taps.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from deploykit.model.nodes import attribute
from deploykit.rewrites.contract import Match, ModelLook, NodeSteps, NoMatchError, rewrite

if TYPE_CHECKING:
    from onnx import NodeProto

__all__ = ["global_pool", "pool_by_taps"]

# Taps of all axes together: beyond, the graph grows more than it is worth.
_MOST_TAPS = 32


@rewrite(
    "AveragePool",
    name="global-pool",
    summary="Write an AveragePool whose window is larger than its map as a GlobalAveragePool.",
    none="no AveragePool has a window that is larger than its map",
    note="{} pools are over the whole map",
    ulps=16.0,
)
def global_pool(look: ModelLook, node: NodeProto) -> Match | None:
    """Exporters write such windows counting on the rounding up of their number; the mean is the same."""
    shape = look.shape(node.input[0]) or ()
    window, sizes = attribute(node, "kernel_shape", []), [size for size in shape[2:] if isinstance(size, int)]
    plain = not any(attribute(node, "pads", [0])) and attribute(node, "auto_pad", "NOTSET") in ("NOTSET", "VALID")
    if not plain or not sizes or not len(sizes) == len(shape) - 2 == len(window):
        return None
    covered = all(size <= side for size, side in zip(sizes, window, strict=True))
    if not covered or list(window) == sizes:
        return None
    return Match(
        why=f"its window holds all of {list(shape)}",
        write=lambda to: to.end("GlobalAveragePool", [to.node.input[0]]),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _PoolAxis:
    """Along one axis: for every place of the result, the places that its window covers, and which of them exist.

    ``places`` and ``exists`` are [result, kernel]; a place beyond either end is counted ``padded`` where the operator
    pads there, and not where only rounding up made room for it.
    """

    axis: int
    size: int
    places: npt.NDArray[np.int64]
    exists: npt.NDArray[np.bool_]
    padded: npt.NDArray[np.bool_]


@rewrite(
    *("MaxPool", "AveragePool"),
    name="pool-by-taps",
    summary="Writes pooling over three axes, or with a dilation, as combinations of Gathers.",
    none="no pooling is over three axes or has a dilation",
    note="{} poolings are combinations of taps",
    ulps=16.0,
    completes=True,
)
def pool_by_taps(look: ModelLook, node: NodeProto) -> Match | None:
    """What each place of a window sees, combined."""
    kernel = tuple(attribute(node, "kernel_shape", ()))
    dilations = tuple(attribute(node, "dilations", ())) or (1,) * len(kernel)
    if set(dilations) == {1} and not (len(kernel) == 3 and node.op_type == "MaxPool"):
        return None
    if len([name for name in node.output if name]) > 1:
        raise NoMatchError("it gives the places of the greatest values too")
    given, made = look.sizes(node.input[0]), look.sizes(node.output[0])
    if 0 in (*given, *made):
        raise NoMatchError(f"{node.input[0]} or {node.output[0]} is empty")
    if sum(kernel) > _MOST_TAPS:
        raise NoMatchError(f"its windows need {sum(kernel)} taps, at most {_MOST_TAPS} are made")
    strides = tuple(attribute(node, "strides", ())) or (1,) * len(kernel)
    windows = [
        _window(node, axis, (given[axis + 2], made[axis + 2]), (size, dilations[axis], strides[axis]))
        for axis, size in enumerate(kernel)
    ]
    covered = " x ".join(str(window.places.shape[1]) for window in windows)

    def write(to: NodeSteps) -> None:
        taps = _Taps(to, list(given))
        (taps.greatest if node.op_type == "MaxPool" else taps.average)(windows)
        to.share(to.node.input[0], *taps.moved)

    return Match(why=f"its windows cover {covered} places", write=write)


def _window(node: NodeProto, spatial: int, sizes: tuple[int, int], how: tuple[int, int, int]) -> _PoolAxis:
    """The window along one spatial axis; ``sizes`` are those of input and result, ``how`` kernel, dilation, stride."""
    (size, result), (kernel, dilation, stride) = sizes, how
    word, pads = str(attribute(node, "auto_pad", "NOTSET")), tuple(attribute(node, "pads", ()))
    before, behind = (pads[spatial], pads[spatial + len(pads) // 2]) if pads else (0, 0)
    if word in ("SAME_UPPER", "SAME_LOWER"):
        total = max((result - 1) * stride + (kernel - 1) * dilation + 1 - size, 0)
        before = total // 2 if word == "SAME_UPPER" else total - total // 2
        behind = total - before
    places = np.arange(result)[:, None] * stride + np.arange(kernel)[None, :] * dilation - before
    exists = (places >= 0) & (places < size)
    padded = ~exists & (places >= -before) & (places < size + behind)
    return _PoolAxis(axis=spatial + 2, size=size, places=places.astype(np.int64), exists=exists, padded=padded)


class _Taps:
    """The nodes of one pooling. Each axis is the second of three while it is worked on.

    ``moved`` are tensors that hold nothing but values of the input.
    """

    def __init__(self, to: NodeSteps, shape: list[int]) -> None:
        self.moved: list[str] = []
        self._to, self._shape = to, shape
        self._source, self._made = to.node.input[0], to.node.output[0]

    def greatest(self, windows: list[_PoolAxis]) -> None:
        """A place beyond the end sees a place of the same window that exists: the greatest stays the greatest."""
        source = self._source
        for window in windows:
            nearest = np.argmax(window.exists, axis=1)
            inside = window.places[np.arange(len(nearest)), nearest]
            places = np.where(window.exists, window.places, inside[:, None])
            source = self._combined("Max", self._flat(source, window.axis), window, places)
        self.moved = [node.output[0] for node in self._to.nodes]
        self._to.reshape(source, self._shape, name=f"{self._made}_reshaped")

    def average(self, windows: list[_PoolAxis]) -> None:
        """Sums axis by axis, a zero behind the last place for those beyond, times one over the number that counts."""
        to, source = self._to, self._source
        counted = bool(attribute(to.node, "count_include_pad", 0))
        number = np.ones(1, np.float32)
        for window in windows:
            source = self._flat(source, window.axis)
            if not window.exists.all():
                source = to.listed("Pad", source, "pads", [0, 0, 0, 0, 1, 0], to.graph.fresh(f"{source}_padded"))
            source = self._combined("Sum", source, window, np.where(window.exists, window.places, window.size))
            along = (window.exists | (window.padded & counted)).sum(axis=1)
            number = number[..., None] * along.astype(np.float32)
        summed = to.reshape(source, self._shape, f"{self._made}_sum")
        to.end("Mul", [summed, to.store(f"{self._made}_share", 1 / number)])

    def _flat(self, source: str, axis: int) -> str:
        """What is in front of the axis is one, and what is behind."""
        shape = (math.prod(self._shape[:axis]), self._shape[axis], math.prod(self._shape[axis + 1 :]))
        made = self._to.reshape(source, shape, f"{self._made}_axis{axis}_given")
        if axis == 2:
            self.moved.append(made)
        return made

    def _combined(self, op_type: str, source: str, window: _PoolAxis, places: npt.NDArray[np.int64]) -> str:
        """What the windows along one axis give."""
        taps = []
        for number in range(places.shape[1]):
            tap = f"{self._made}_axis{window.axis}_tap{number}"
            stored = self._to.store(f"{tap}_places", np.ascontiguousarray(places[:, number]))
            taps.append(self._to.add("Gather", [source, stored], tap, axis=1))
        if window.axis == 2:
            self.moved += taps
        self._shape[window.axis] = len(places)
        return self._to.add(op_type, taps, f"{self._made}_axis{window.axis}")
