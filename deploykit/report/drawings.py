"""Graphs as pictures: where each node stands and how the wires run, for templates to draw as SVG. Pure arithmetic.

Layers by depth, each ordered by what feeds it; a deep graph is folded into columns that read from top to bottom. It
knows neither types nor pages.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from deploykit.model.facts import NodeFact

__all__ = ["BOX_HEIGHT", "BOX_WIDTH", "Box", "Drawing", "lay_out"]

BOX_WIDTH, BOX_HEIGHT = 92, 20
_ACROSS, _DOWN, _BETWEEN = 10, 16, 34
"""Room between boxes of a layer, between layers, and between the columns of a folded graph."""
_LANDSCAPE = 1.6
"""Width to height that a folded graph aims at: that of a screen."""
_FOLDED_FROM = 24


@dataclass(frozen=True, slots=True, kw_only=True)
class Box:
    """One node and the upper left corner of its box."""

    node: NodeFact
    x: int
    y: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawing:
    """Boxes and wires within ``width`` by ``height``; ``wires`` is the path data of all of them."""

    boxes: tuple[Box, ...]
    wires: str
    width: int
    height: int


def lay_out(nodes: Sequence[NodeFact]) -> Drawing:
    """The picture of nodes in graph order; those without inputs, stored constants, are left out."""
    shown = [node for node in nodes if any(node.inputs)]
    feeds = _feeds(shown)
    layers = _layers(feeds)
    places, width, height = _places(layers, feeds)
    boxes = tuple(Box(node=shown[index], x=x, y=y) for index, (x, y) in sorted(places.items()))
    wires = [_wire(places[source], places[index]) for index, sources in enumerate(feeds) for source in sources]
    return Drawing(boxes=boxes, wires="".join(wires), width=width, height=height)


def _feeds(nodes: Sequence[NodeFact]) -> list[tuple[int, ...]]:
    """For each node the indices of those that it reads from, each once."""
    makers = {name: index for index, node in enumerate(nodes) for name in node.outputs if name}
    return [
        tuple(dict.fromkeys(makers[name] for name in node.inputs if makers.get(name, index) < index))
        for index, node in enumerate(nodes)
    ]


def _layers(feeds: Sequence[tuple[int, ...]]) -> list[list[int]]:
    depths: list[int] = []
    for sources in feeds:
        depths.append(1 + max((depths[source] for source in sources), default=-1))
    layers: list[list[int]] = [[] for _ in range(max(depths, default=-1) + 1)]
    for index, depth in enumerate(depths):
        layers[depth].append(index)
    return layers


def _places(
    layers: Sequence[list[int]], feeds: Sequence[tuple[int, ...]]
) -> tuple[dict[int, tuple[int, int]], int, int]:
    """Where each node stands, and the size of all."""
    per_column = _column_height(layers)
    places: dict[int, tuple[int, int]] = {}
    centres: dict[int, float] = {}
    left = 0
    for start in range(0, len(layers), per_column):
        column = layers[start : start + per_column]
        width = max(len(layer) for layer in column) * (BOX_WIDTH + _ACROSS) - _ACROSS
        for row, layer in enumerate(column):
            margin = (width - len(layer) * (BOX_WIDTH + _ACROSS) + _ACROSS) // 2
            for slot, index in enumerate(sorted(layer, key=lambda index: _centre(index, feeds, centres))):
                places[index] = (left + margin + slot * (BOX_WIDTH + _ACROSS), row * (BOX_HEIGHT + _DOWN))
                # Within its column, so that what follows in the next one keeps its order.
                centres[index] = places[index][0] - left - width / 2
        left += width + _BETWEEN
    rows = min(per_column, len(layers))
    return places, max(left - _BETWEEN, 0), max(rows * (BOX_HEIGHT + _DOWN) - _DOWN, 0)


def _centre(index: int, feeds: Sequence[tuple[int, ...]], centres: dict[int, float]) -> float:
    known = [centres[source] for source in feeds[index]]
    return sum(known) / len(known) if known else 0.0


def _column_height(layers: Sequence[list[int]]) -> int:
    """How many layers one column holds, so that the whole has about the shape of a screen."""
    if len(layers) <= _FOLDED_FROM:
        return max(len(layers), 1)
    widest = sorted(map(len, layers))[len(layers) * 9 // 10]
    column = widest * (BOX_WIDTH + _ACROSS) + _BETWEEN
    return max(_FOLDED_FROM, math.ceil(math.sqrt(len(layers) * column / (_LANDSCAPE * (BOX_HEIGHT + _DOWN)))))


def _wire(source: tuple[int, int], target: tuple[int, int]) -> str:
    x1, y1 = source[0] + BOX_WIDTH // 2, source[1] + BOX_HEIGHT
    x2, y2 = target[0] + BOX_WIDTH // 2, target[1]
    return f"M{x1} {y1}C{x1} {y1 + _DOWN} {x2} {y2 - _DOWN} {x2} {y2}"
