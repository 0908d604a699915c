"""One conversion with everything that follows from it: the whole model, or one segment of a cut one. Pure values."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from typing import TYPE_CHECKING, Any

from deploykit.backend.plans import Precision
from deploykit.errors import DefectError
from deploykit.findings import Finding
from deploykit_qnn_htp.commands import Paths
from deploykit_qnn_htp.draft import FLOAT_KINDS, Candidate, Draft
from deploykit_qnn_htp.encodings import written
from deploykit_qnn_htp.lending import Lent
from deploykit_qnn_htp.prepare import DraftedPart
from deploykit_qnn_htp.selection import Selection, select_route

if TYPE_CHECKING:
    from deploykit.encodings.formats.conversion import Conversion

__all__ = ["Part", "in_contexts", "part_of", "precision_of"]


@dataclass(frozen=True, kw_only=True)
class Part:
    """A draft, the route selected for it, and where its files lie. ``segment`` is "" for a whole model.

    ``context`` names the context that it shares with other graphs, where a model is cut by size; else it is "".
    ``lent`` is what another backend decided for it, where the route is that one's.
    """

    draft: Draft
    selection: Selection
    paths: Paths
    segment: str = ""
    context: str = ""
    lent: Lent | None = None

    @property
    def candidate(self) -> Candidate:
        """The route with its draft; only for parts that have one."""
        if self.selection.candidate is None:
            raise DefectError(f"{self.paths.graph}: rendered without a route")
        return self.selection.candidate

    @property
    def findings(self) -> tuple[Finding, ...]:
        """About the draft, the graph and the routes; where no converter runs, nothing of what only those do."""
        if self.lent is not None:
            return (*self.lent.decision.findings, *self.selection.findings)
        return (*self.draft.findings, *self.selection.findings)

    @cached_property
    def conversion(self) -> Conversion | None:
        """The encodings as the converter gets them."""
        return written(self.candidate)

    @property
    def precision(self) -> Precision:
        """Intended and expected type of every tensor of this conversion that has one."""
        return precision_of(self.draft) if self.lent is None else self.lent.decision.precision


def in_contexts(parts: Iterable[Part]) -> tuple[tuple[Part, ...], ...]:
    """The parts whose graphs are in one context together, in order; each part alone where none is shared."""
    return tuple(tuple(group) for _, group in groupby(parts, key=lambda part: part.context or part.paths.graph))


def part_of(drafted: DraftedPart) -> Part:
    """Select the route of one draft, and have the lender decide where it is the lender's."""
    selection, paths, lent = select_route(drafted.draft), drafted.paths, None
    if drafted.lent is not None and selection.candidate is not None:
        lent = drafted.lent.planned()
        if lent.decision.route is None:
            selection = selection.without(lent.decision)
        else:
            paths = paths.of(model=lent.model, context=paths.context if lent.dlc else lent.binary, dlc=lent.dlc)
    return Part(
        draft=drafted.draft,
        selection=selection,
        paths=paths,
        segment=drafted.segment,
        context=drafted.context,
        lent=lent,
    )


def precision_of(draft: Draft) -> Precision:
    """Intended and expected type of every tensor of a draft that has one."""
    if draft.source is None or draft.after is None or draft.completed is None:
        return _whole(draft)
    intended = {entry.name: entry.dtype for entry in draft.completed}
    intended |= dict.fromkeys(sorted(draft.float_set), "float16")
    expected: dict[str, Any] = {entry.name: entry.dtype for entry in draft.completed}
    expected |= dict.fromkeys(sorted(draft.after.predicted), "float16")
    return Precision(intended=intended, expected=expected)


def _whole(draft: Draft) -> Precision:
    if draft.intent not in FLOAT_KINDS:
        return Precision()
    names = [name for name, fact in draft.situation.facts.tensors.items() if fact.is_float and not fact.is_weight]
    types = dict.fromkeys(names, FLOAT_KINDS[draft.intent])
    return Precision(intended=types, expected=types)
