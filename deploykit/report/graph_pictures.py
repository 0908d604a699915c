"""The pictures of a report: the whole graph in the colours of its types, and each kind of change before and after.

Pure: from the plan, the facts and the findings. It judges nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from deploykit.backend.plans import Precision
from deploykit.findings import Finding
from deploykit.model.changes import Change
from deploykit.model.facts import GraphFacts, NodeFact
from deploykit.report.drawings import Box, Drawing, lay_out

__all__ = ["ChangePicture", "MappedNode", "PrecisionMap", "change_pictures", "precision_map"]

_MOST_NODES = 2500
"""A page of more would be slow to open; what is behind is said in words."""
_MOST_PICTURES = 12
_MOST_IN_PICTURE = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class MappedNode:
    """One node: the type of what it gives as it was intended and as it is expected ("" where nothing is said).

    ``codes`` are the rules that have something open about it, ``verdict`` what an audit says of it ("" without one).
    """

    box: Box
    intended: str
    expected: str
    codes: tuple[str, ...]
    verdict: str = ""

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
        return "\n".join([node.label, f"{node.op_type}: {', '.join(node.outputs)}", types, *audited, *self.codes])


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


def precision_map(
    precision: Precision, facts: GraphFacts, findings: Iterable[Finding], verdicts: Mapping[str, str] | None = None
) -> PrecisionMap | None:
    """The whole graph; None where it has no node. ``verdicts`` are an audit's, by the nodes' labels."""
    computing = [node for node in facts.nodes if any(node.inputs)]
    if not computing:
        return None
    drawing = lay_out(computing[:_MOST_NODES])
    codes = _codes(findings)
    nodes = tuple(_mapped(box, precision, codes, verdicts or {}) for box in drawing.boxes)
    return PrecisionMap(drawing=drawing, nodes=nodes, total=len(computing))


def _codes(findings: Iterable[Finding]) -> Mapping[str, tuple[str, ...]]:
    found: dict[str, dict[str, None]] = {}
    for finding in findings:
        if finding.handled is None:
            found.setdefault(finding.subject.name, {})[f"{finding.code} {finding.slug}"] = None
    return {name: tuple(codes) for name, codes in found.items()}


def _mapped(
    box: Box, precision: Precision, codes: Mapping[str, tuple[str, ...]], verdicts: Mapping[str, str]
) -> MappedNode:
    node = box.node
    return MappedNode(
        box=box,
        intended=_first(precision.intended, node),
        expected=_first(precision.expected, node),
        codes=tuple(dict.fromkeys(code for name in (node.label, *node.outputs) for code in codes.get(name, ()))),
        verdict=verdicts.get(node.label, ""),
    )


def _first(types: Mapping[str, str], node: NodeFact) -> str:
    return next((types[name] for name in node.outputs if name in types), "")


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangePicture:
    """A change as it was made at ``count`` places; drawings are of the first, None where that is too large."""

    words: str
    count: int
    places: tuple[str, ...]
    before: Drawing | None
    after: Drawing | None


def change_pictures(changes: Sequence[Change]) -> tuple[ChangePicture, ...]:
    """Each kind of change once, the most frequent first."""
    kinds: dict[str, list[Change]] = {}
    for change in changes:
        kinds.setdefault(str(change), []).append(change)
    ordered = sorted(kinds.items(), key=lambda item: -len(item[1]))
    return tuple(_picture(words, alike, index < _MOST_PICTURES) for index, (words, alike) in enumerate(ordered))


def _picture(words: str, alike: Sequence[Change], drawn: bool) -> ChangePicture:
    first = alike[0]
    fits = drawn and max(len(first.before), len(first.after)) <= _MOST_IN_PICTURE
    return ChangePicture(
        words=words,
        count=len(alike),
        places=tuple(change.where for change in alike[:5]),
        before=lay_out(first.before) if fits else None,
        after=lay_out(first.after) if fits else None,
    )
