"""Loads the table of what the HTP cannot take; it checks nothing."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

from deploykit.findings import Answerer, Claim, Finding, Severity
from deploykit.findings.records import Names, Record, replace
from deploykit.tables.sources import NotedRow, SourcedRow, sourced_file
from deploykit_qualcomm.tables import DATA

__all__ = ["claim_of", "constraint", "constraints", "limit", "rated"]


class HtpConstraint(NotedRow):
    """One row: what is not taken, who says so, and the codes of the rules that look for it.

    ``seen_with`` is the newest release with which it was seen, "" where the source does not say, as in every row.
    """

    id: str
    check: str
    severity: Severity
    rules: Names
    ep_limit: bool = False
    confidence_note: str = ""
    seen_with: str = ""


class OpRank(SourcedRow):
    """The ranks, both included, that the first input of an operator may have."""

    op: str
    lowest: int = 0
    highest: int = 5
    seen_with: str = ""


class Refused(SourcedRow):
    """An operator that is refused: always, or if a value of an attribute is no word of ``unless``; with ``rank`` there.

    With ``computed`` it is where the input at that position is given and not stored, with ``gives`` where the output at
    that position is read, with ``types`` where an input, from the one at ``since`` on, is of one of these. ``backend``
    empty: on either route.
    """

    op: str
    why: str
    backend: str = ""
    computed: int = 0
    gives: int = 0
    types: tuple[str, ...] = ()
    since: int = 0
    attribute: str = ""
    unless: str = ""
    rank: int | None = None
    seen_with: str = ""


class Untranslated(SourcedRow):
    """Operators of one domain that nothing is known to translate; ``backend`` empty: on either route.

    ``ops`` are these, or ``all_but`` those that are not meant.
    """

    ops: tuple[str, ...] = ()
    all_but: tuple[str, ...] = ()
    why: str
    domain: str = ""
    backend: str = ""


class WholeOperand(SourcedRow):
    """An operator whose operands had to be in VTCM as a whole, in releases before ``before``."""

    op: str
    before: str
    note: str = ""


class RowOperand(SourcedRow):
    """An operator that needs one row of its last axis in VTCM, at so many bytes per element."""

    op: str
    bytes_per_element: int
    seen_with: str = ""


class ConstraintTable(Record):
    """``constraints.toml``, sources spelled out."""

    schema: int
    constraint: tuple[HtpConstraint, ...]
    sources: Mapping[str, str] = {}
    op_rank: tuple[OpRank, ...] = ()
    refused: tuple[Refused, ...] = ()
    untranslated: tuple[Untranslated, ...] = ()
    whole_operand: tuple[WholeOperand, ...] = ()
    row_operand: tuple[RowOperand, ...] = ()


@cache
def constraints() -> ConstraintTable:
    """The table; a wrong row is an InputError with its dotted path."""
    return sourced_file(ConstraintTable, DATA / "constraints.toml")


def constraint(name: str) -> HtpConstraint:
    """One row by its id."""
    return next(row for row in constraints().constraint if row.id == name)


def claim_of(row: HtpConstraint | OpRank | Refused | RowOperand, *, answered_by: Answerer = Answerer.COMPILER) -> Claim:
    """The claim that something is not taken, as sure as the row is that says so."""
    return Claim(answered_by, row.confidence, seen_with=row.seen_with)


def limit(name: str, *, answered_by: Answerer = Answerer.COMPILER) -> dict[str, Any]:
    """What a rule about one row is registered with: who says so, and that it is not taken."""
    row = constraint(name)
    return {"sources": row.source, "claim": claim_of(row, answered_by=answered_by)}


def rated(finding: Finding) -> Finding:
    """What the core found, as severe as the row says that names its rule; a row never makes it less severe."""
    row = next((row for row in constraints().constraint if finding.code in row.rules), None)
    if row is None or finding.severity.rank <= row.severity.rank:
        return finding
    return replace(finding, severity=row.severity, sources=(*finding.sources, *row.source))
