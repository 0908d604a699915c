"""Graphs as pictures: the whole one in the colours of its types, and each kind of change before and after.

Layers by depth, each ordered by what feeds it; a deep graph is folded into columns that read from top to bottom. Pure:
from the plan, the facts and the findings.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

from deploykit.backend.plans import PlannedPrecision
from deploykit.findings import Finding, Severity
from deploykit.model.facts import GraphChange, GraphFacts, NodeFact

__all__ = [
    "BOX_HEIGHT",
    "BOX_WIDTH",
    "Box",
    "ChangePicture",
    "Drawing",
    "MappedNode",
    "PrecisionMap",
    "StripRun",
    "change_pictures",
    "lay_out",
    "precision_map",
]

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
    makers = {name: index for index, node in enumerate(shown) for name in node.outputs if name}
    # For each node those that it reads from, each once, and how deep that puts it.
    feeds: list[list[int]] = []
    layers: list[list[int]] = []
    depths: list[int] = []
    for index, node in enumerate(shown):
        feeds.append(list(dict.fromkeys(makers[name] for name in node.inputs if makers.get(name, index) < index)))
        depths.append(1 + max((depths[source] for source in feeds[-1]), default=-1))
        if depths[-1] == len(layers):
            layers.append([])
        layers[depths[-1]].append(index)
    places, width, height = _places(layers, feeds)
    wires = []
    for index, sources in enumerate(feeds):
        for source in sources:
            x1, y1 = places[source][0] + BOX_WIDTH // 2, places[source][1] + BOX_HEIGHT
            x2, y2 = places[index][0] + BOX_WIDTH // 2, places[index][1]
            wires.append(f"M{x1} {y1}C{x1} {y1 + _DOWN} {x2} {y2 - _DOWN} {x2} {y2}")
    boxes = tuple(Box(node=shown[index], x=x, y=y) for index, (x, y) in sorted(places.items()))
    return Drawing(boxes=boxes, wires="".join(wires), width=width, height=height)


def _places(layers: Sequence[list[int]], feeds: Sequence[Sequence[int]]) -> tuple[dict[int, tuple[int, int]], int, int]:
    """Where each node stands, and the size of all: columns of so many layers that the whole is shaped like a screen."""
    per_column = max(len(layers), 1)
    if len(layers) > _FOLDED_FROM:
        widest = sorted(map(len, layers))[len(layers) * 9 // 10]
        column_width = widest * (BOX_WIDTH + _ACROSS) + _BETWEEN
        square = math.sqrt(len(layers) * column_width / (_LANDSCAPE * (BOX_HEIGHT + _DOWN)))
        per_column = max(_FOLDED_FROM, math.ceil(square))
    places: dict[int, tuple[int, int]] = {}
    centres: dict[int, float] = {}

    def centre(index: int) -> float:
        known = [centres[source] for source in feeds[index]]
        return sum(known) / len(known) if known else 0.0

    left = 0
    for start in range(0, len(layers), per_column):
        column = layers[start : start + per_column]
        width = max(len(layer) for layer in column) * (BOX_WIDTH + _ACROSS) - _ACROSS
        for row, layer in enumerate(column):
            margin = (width - len(layer) * (BOX_WIDTH + _ACROSS) + _ACROSS) // 2
            for slot, index in enumerate(sorted(layer, key=centre)):
                places[index] = (left + margin + slot * (BOX_WIDTH + _ACROSS), row * (BOX_HEIGHT + _DOWN))
                # Within its column, so that what follows in the next one keeps its order.
                centres[index] = places[index][0] - left - width / 2
        left += width + _BETWEEN
    rows = min(per_column, len(layers))
    return places, max(left - _BETWEEN, 0), max(rows * (BOX_HEIGHT + _DOWN) - _DOWN, 0)


_MOST_NODES = 2500
"""A page of more would be slow to open; what is behind is said in words."""
_MOST_PICTURES = 12
_MOST_IN_PICTURE = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class MappedNode:
    """One node: the type of what it gives as it was intended and as it is expected ("" where nothing is said).

    ``codes`` are the rules that have something open about it, ``verdict`` what an audit says of it ("" without one),
    ``share`` its part of the estimated time.
    """

    box: Box
    intended: str
    expected: str
    codes: tuple[str, ...]
    verdict: str = ""
    share: float = 0.0

    @property
    def kind(self) -> str:
        """The type by whose colour it is shown."""
        return self.expected or self.intended

    @property
    def changed(self) -> bool:
        """True where the tool chain is expected to make something else of it than was intended."""
        return bool(self.intended and self.expected and self.intended != self.expected)

    @property
    def words(self) -> str:
        """What it is, for whoever points at it."""
        node = self.box.node
        types = f"{self.intended} → {self.expected}" if self.changed else self.kind or "type not spoken about"
        audited = [f"audited: {self.verdict}"] if self.verdict else []
        timed = [f"{self.share:.1%} of the time"] if self.share else []
        told = [node.label, f"{node.op_type}: {', '.join(node.outputs)}", types, *timed, *audited, *self.codes]
        return "\n".join(told)


# From which share of the time a node has a colour of the heat; of a thousand nodes, one in the middle has 0.1 %.
_HEAT = ((0.15, "h-4"), (0.05, "h-3"), (0.02, "h-2"), (0.005, "h-1"), (0.0, "h-0"))


@dataclass(frozen=True, slots=True, kw_only=True)
class StripRun:
    """Neighbours of one type, or of one heat, in the strip of the network; ``noted`` where something is open there."""

    kind: str
    count: int
    words: str
    noted: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class PrecisionMap:
    """The graph as far as it is drawn: its first ``len(nodes)`` of ``total`` nodes that compute something."""

    drawing: Drawing
    nodes: tuple[MappedNode, ...]
    total: int

    @property
    def kinds(self) -> tuple[str, ...]:
        """Every type that occurs, for the key of the colours."""
        return tuple(sorted({node.kind for node in self.nodes if node.kind}))

    @property
    def verdicts(self) -> tuple[str, ...]:
        """Every verdict of an audit that occurs beside right."""
        return tuple(sorted({node.verdict for node in self.nodes} - {"", "right"}))

    @property
    def noted(self) -> bool:
        """True where something is open about any node."""
        return any(node.codes for node in self.nodes)

    @property
    def strip(self) -> tuple[StripRun, ...]:
        """The nodes from input to output, those side by side that are of one type and equally open taken together."""
        runs = []
        for (kind, noted), alike in groupby(self.nodes, key=lambda node: (node.kind, bool(node.codes))):
            nodes = list(alike)
            first, last = nodes[0].box.node.label, nodes[-1].box.node.label
            where = first if len(nodes) == 1 else f"{len(nodes)} nodes, {first} to {last}"
            codes = dict.fromkeys(code for node in nodes for code in node.codes)
            words = "\n".join([kind or "no type of its own", where, *codes])
            runs.append(StripRun(kind=kind, count=len(nodes), noted=noted, words=words))
        return tuple(runs)

    @property
    def heat(self) -> tuple[StripRun, ...]:
        """The same nodes by their share of the time, as far as it is estimated."""
        if not any(node.share for node in self.nodes):
            return ()
        runs = []
        for heat, alike in groupby(
            self.nodes, key=lambda node: next(heat for least, heat in _HEAT if node.share >= least)
        ):
            nodes = list(alike)
            names = [f"{node.box.node.label}: {node.share:.1%}" for node in nodes[:10]]
            more = [f"and {len(nodes) - 10} more nodes"] if len(nodes) > 10 else []
            total = f"{sum(node.share for node in nodes):.1%} of the time"
            runs.append(StripRun(kind=heat, count=len(nodes), words="\n".join([total, *names, *more])))
        return tuple(runs)

    @property
    def heat_key(self) -> tuple[tuple[str, str], ...]:
        """The colours of the heat in words."""
        return tuple((heat, f"from {least:.1%}" if least else "less") for least, heat in reversed(_HEAT))


def precision_map(
    precision: PlannedPrecision,
    facts: GraphFacts,
    findings: Iterable[Finding],
    verdicts: Mapping[str, str] | None = None,
    *,
    shares: Mapping[str, float] | None = None,
    kind: str = "",
) -> PrecisionMap | None:
    """The whole graph; None where it has no node. ``verdicts`` are an audit's and ``shares`` those of the time, by the
    nodes' labels; ``kind`` is the type of all where the plan speaks about none.
    """
    computing = [node for node in facts.nodes if any(node.inputs)]
    if not computing:
        return None
    drawing = lay_out(computing[:_MOST_NODES])
    codes: dict[str, dict[str, None]] = {}
    for finding in findings:
        if finding.handled is None and finding.severity is not Severity.INFO:
            codes.setdefault(finding.subject.name, {})[f"{finding.code} {finding.slug}"] = None

    def first(types: Mapping[str, str], node: NodeFact) -> str:
        return next((types[name] for name in node.outputs if name in types), "" if types else kind)

    nodes = tuple(
        MappedNode(
            box=box,
            intended=first(precision.intended, box.node),
            expected=first(precision.expected, box.node),
            codes=tuple(
                dict.fromkeys(code for name in (box.node.label, *box.node.outputs) for code in codes.get(name, ()))
            ),
            verdict=(verdicts or {}).get(box.node.label, ""),
            share=(shares or {}).get(box.node.label, 0.0),
        )
        for box in drawing.boxes
    )
    return PrecisionMap(drawing=drawing, nodes=nodes, total=len(computing))


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangePicture:
    """A change as it was made at ``count`` places; drawings are of the first, None where that is too large."""

    words: str
    count: int
    places: tuple[str, ...]
    before: Drawing | None
    after: Drawing | None


def change_pictures(changes: Sequence[GraphChange]) -> tuple[ChangePicture, ...]:
    """Each kind of change once, the most frequent first."""
    kinds: dict[str, list[GraphChange]] = {}
    for change in changes:
        kinds.setdefault(str(change), []).append(change)
    pictures: list[ChangePicture] = []
    for words, alike in sorted(kinds.items(), key=lambda item: -len(item[1])):
        first = alike[0]
        fits = len(pictures) < _MOST_PICTURES and max(len(first.before), len(first.after)) <= _MOST_IN_PICTURE
        pictures.append(
            ChangePicture(
                words=words,
                count=len(alike),
                places=tuple(change.where for change in alike[:5]),
                before=lay_out(first.before) if fits else None,
                after=lay_out(first.after) if fits else None,
            )
        )
    return tuple(pictures)
