"""Writes pooling over three axes, or with a dilation, axis by axis: what each place of the window sees, combined.

Each place of a window is a tap: a Gather with stored places. The greatest of the taps is the MaxPool, their sum over
their number the AveragePool. Overlapping windows are computed axis by axis, so that 3 x 3 x 3 places cost 9 taps.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
from onnx import helper

from deploykit.encodings.place import keep_entries, share_entry
from deploykit.model.graph import GraphCopy, view_of
from deploykit.model.nodes import attribute, label
from deploykit.model.operators import is_standard
from deploykit.model.shape_inference import Shape, infer
from deploykit.rewrites.contract import MatchResult, NoMatchError, Refusal, Rewritten, Site, Transform

if TYPE_CHECKING:
    from onnx import ModelProto, NodeProto

    from deploykit.encodings.values import EncodingSet

__all__ = ["transform"]

_PADS_ARE_AN_INPUT = 11
"""From this opset on Pad takes what it adds as an input."""

_MOST_TAPS = 32
"""Taps of all axes together: beyond, the graph grows more than it is worth."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Window:
    """Along one axis: for every place of the result, the places that its window covers, and which of them exist.

    ``places`` and ``exists`` are [result, kernel]; a place beyond either end is counted ``padded`` where the operator
    pads there, and not where only rounding up made room for it.
    """

    axis: int
    size: int
    places: npt.NDArray[np.int64]
    exists: npt.NDArray[np.bool_]
    padded: npt.NDArray[np.bool_]


def match(model: ModelProto) -> MatchResult:
    """Every MaxPool and AveragePool of rank 5 or with a dilation."""
    graph = view_of(model)
    pools = [n for n in graph.nodes if n.op_type in ("MaxPool", "AveragePool") and is_standard(n)]
    types = infer(model).types if pools else {}
    sites, refusals = list[Site](), list[Refusal]()
    for node in pools:
        try:
            shape, windows = _windows(node, types)
        except NoMatchError as error:
            refusals.append(Refusal(nodes=(label(node),), reason=error.reason))
            continue
        if windows:
            why = f"its windows cover {' x '.join(str(window.places.shape[1]) for window in windows)} places"
            sites.append(Site(nodes=(label(node),), tensors=(node.output[0],), why=why, data=(shape, windows)))
    reason = "" if sites or refusals else "no pooling is over three axes or has a dilation"
    return MatchResult(sites=tuple(sites), refusals=tuple(refusals), reason=reason)


def _windows(node: NodeProto, types: Mapping[str, tuple[str, Shape]]) -> tuple[tuple[int, ...], tuple[_Window, ...]]:
    """The shape of the input, and one window for each axis; none where the pooling is an ordinary one."""
    kernel = tuple(attribute(node, "kernel_shape", ()))
    dilations = tuple(attribute(node, "dilations", ())) or (1,) * len(kernel)
    if set(dilations) == {1} and not (len(kernel) == 3 and node.op_type == "MaxPool"):
        return (), ()
    if len([name for name in node.output if name]) > 1:
        raise NoMatchError("it gives the places of the greatest values too")
    given, made = (_static(types.get(name), name) for name in (node.input[0], node.output[0]))
    if sum(kernel) > _MOST_TAPS:
        raise NoMatchError(f"its windows need {sum(kernel)} taps, at most {_MOST_TAPS} are made")
    strides = tuple(attribute(node, "strides", ())) or (1,) * len(kernel)
    windows = tuple(
        _window(axis + 2, given[axis + 2], made[axis + 2], (size, dilations[axis], strides[axis]), _pads(node, axis))
        for axis, size in enumerate(kernel)
    )
    return given, windows


def _static(known: tuple[str, Shape] | None, name: str) -> tuple[int, ...]:
    shape = known[1] if known is not None else None
    sizes = tuple(dim for dim in shape or () if isinstance(dim, int))
    if shape is None or len(sizes) != len(shape) or 0 in sizes:
        raise NoMatchError(f"the shape of {name} is not known")
    return sizes


def _pads(node: NodeProto, axis: int) -> tuple[int, int] | str:
    """(before, behind) along one spatial axis, or the word of auto_pad that says it."""
    word = attribute(node, "auto_pad", b"NOTSET")
    text = word.decode() if isinstance(word, bytes) else str(word)
    if text in ("SAME_UPPER", "SAME_LOWER"):
        return text
    pads = tuple(attribute(node, "pads", ()))
    return (pads[axis], pads[axis + len(pads) // 2]) if pads else (0, 0)


def _window(axis: int, size: int, result: int, how: tuple[int, int, int], pads: tuple[int, int] | str) -> _Window:
    """The window along one axis of ``size`` places, ``result`` of them made; ``how`` is kernel, dilation, stride."""
    kernel, dilation, stride = how
    if isinstance(pads, str):
        total = max((result - 1) * stride + (kernel - 1) * dilation + 1 - size, 0)
        before = total // 2 if pads == "SAME_UPPER" else total - total // 2
        pads = (before, total - before)
    places = np.arange(result)[:, None] * stride + np.arange(kernel)[None, :] * dilation - pads[0]
    exists = (places >= 0) & (places < size)
    padded = ~exists & (places >= -pads[0]) & (places < size + pads[1])
    return _Window(axis=axis, size=size, places=places.astype(np.int64), exists=exists, padded=padded)


def apply(model: ModelProto, encodings: EncodingSet | None, matched: MatchResult) -> Rewritten:
    """Combine the taps of each axis; what a MaxPool makes on the way holds values of its input."""
    graph = GraphCopy(model)
    touched: set[str] = set()
    for site in matched.sites:
        node = graph.makers[site.tensors[0]]
        shape, windows = site.data
        steps = _Steps(graph, node, shape)
        (steps.greatest if node.op_type == "MaxPool" else steps.average)(windows)
        encodings = share_entry(encodings, node.input[0], steps.moved)
        touched.update(step.output[0] for step in steps.nodes)
        graph.replace_nodes([node], {graph.index_of(node): steps.nodes})
    kept = keep_entries(encodings, graph)
    fresh = frozenset(name for name in touched if kept is None or name not in kept)
    note = f"{len(matched.sites)} poolings are combinations of taps"
    return Rewritten(model=graph.model, encodings=kept, touched=fresh, notes=(note,))


class _Steps:
    """The nodes that take the place of one pooling. Each axis is the second of three while it is worked on."""

    def __init__(self, graph: GraphCopy, node: NodeProto, shape: tuple[int, ...]) -> None:
        self.nodes: list[NodeProto] = []
        self.moved: list[str] = []
        self._graph, self._node, self._shape = graph, node, list(shape)
        self._made = node.output[0]

    def greatest(self, windows: tuple[_Window, ...]) -> None:
        """A place beyond the end sees a place of the same window that exists: the greatest stays the greatest."""
        source = self._node.input[0]
        for window in windows:
            nearest = np.argmax(window.exists, axis=1)
            inside = window.places[np.arange(len(nearest)), nearest]
            places = np.where(window.exists, window.places, inside[:, None])
            source = self._combined("Max", self._flat(source, window.axis), window, places)
        self.moved = [node.output[0] for node in self.nodes]
        self._whole(source, self._made)

    def average(self, windows: tuple[_Window, ...]) -> None:
        """Sums axis by axis, a zero behind the last place for those beyond, times one over the number that counts."""
        source, counted = self._node.input[0], bool(attribute(self._node, "count_include_pad", 0))
        number = np.ones(1, np.float32)
        for window in windows:
            source = self._flat(source, window.axis)
            if not window.exists.all():
                source = self._with_zero(source)
            source = self._combined("Sum", source, window, np.where(window.exists, window.places, window.size))
            along = (window.exists | (window.padded & counted)).sum(axis=1)
            number = number[..., None] * along.astype(np.float32)
        summed = self._whole(source, self._graph.fresh(f"{self._made}_sum"))
        share = self._graph.store(f"{self._made}_share", 1 / number)
        self.nodes.append(helper.make_node("Mul", [summed, share], [self._made], name=self._node.name))

    def _flat(self, source: str, axis: int) -> str:
        """What is in front of the axis is one, and what is behind."""
        shape = (math.prod(self._shape[:axis]), self._shape[axis], math.prod(self._shape[axis + 1 :]))
        made = self._graph.fresh(f"{self._made}_axis{axis}_given")
        self.nodes.append(self._reshape(source, made, shape))
        if axis == 2:
            self.moved.append(made)
        return made

    def _whole(self, source: str, made: str) -> str:
        self.nodes.append(self._reshape(source, made, tuple(self._shape)))
        return made

    def _reshape(self, source: str, made: str, shape: tuple[int, ...]) -> NodeProto:
        stored = self._graph.store(f"{made}_shape", np.asarray(shape, np.int64))
        return helper.make_node("Reshape", [source, stored], [made], name=f"{made}_reshaped")

    def _with_zero(self, source: str) -> str:
        """One zero more at the end of the axis."""
        made, pads = self._graph.fresh(f"{source}_padded"), [0, 0, 0, 0, 1, 0]
        if self._graph.opset < _PADS_ARE_AN_INPUT:
            step = helper.make_node("Pad", [source], [made], name=made, pads=pads)
        else:
            stored = self._graph.store(f"{made}_by", np.asarray(pads, np.int64))
            step = helper.make_node("Pad", [source, stored], [made], name=made)
        self.nodes.append(step)
        return made

    def _combined(self, op_type: str, source: str, window: _Window, places: npt.NDArray[np.int64]) -> str:
        """What the windows along one axis give."""
        taps = []
        for number in range(places.shape[1]):
            tap = self._graph.fresh(f"{self._made}_axis{window.axis}_tap{number}")
            stored = self._graph.store(f"{tap}_places", np.ascontiguousarray(places[:, number]))
            self.nodes.append(helper.make_node("Gather", [source, stored], [tap], name=tap, axis=1))
            taps.append(tap)
        if window.axis == 2:
            self.moved += taps
        made = self._graph.fresh(f"{self._made}_axis{window.axis}")
        self.nodes.append(helper.make_node(op_type, taps, [made], name=made))
        self._shape[window.axis] = len(places)
        return made


transform = Transform(
    name="pool-by-taps",
    summary="Writes pooling over three axes, or with a dilation, as combinations of Gathers.",
    match=match,
    apply=apply,
    ulps=16.0,
)
