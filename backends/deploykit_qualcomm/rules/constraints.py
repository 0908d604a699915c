"""Loads the table of the HTP's limits. It checks nothing."""

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
    """One limit, with its source and the codes of the rules that check it.

    ``seen_with`` is the newest release with which it was seen, "" if the source does not say, as in every row.
    """

    id: str
    check: str
    severity: Severity
    rules: Names
    seen_with: str = ""


class OpRank(SourcedRow):
    """The least and the greatest rank that the first input of an operator may have."""

    op: str
    lowest: int = 0
    highest: int = 5
    seen_with: str = ""


class Refused(SourcedRow):
    """A refused operator: always, or if an attribute's value is not in
    ``unless``; with ``rank`` for inputs of that rank.

    With ``computed`` it is refused if the input at that position is computed, with ``gives`` if the
    output at that position is read, with ``types`` if an input, from the one at ``since`` on, has one of
    these types. An empty ``backend`` means both.
    """

    op: str
    why: str
    backend: str = ""
    computed: int = 0
    gives: int = 0
    types: Names = ()
    since: int = 0
    attribute: str = ""
    unless: str = ""
    rank: int | None = None
    seen_with: str = ""


class Untranslated(SourcedRow):
    """Operators of one domain that nothing is known to translate; an empty ``backend`` means both.

    ``ops`` lists them, or ``all_but`` those that are excepted.
    """

    ops: Names = ()
    all_but: Names = ()
    why: str
    domain: str = ""
    backend: str = ""


class WholeOperand(SourcedRow):
    """An operator whose operands had to fit into VTCM as a whole, in releases before ``before``."""

    op: str
    before: str
    note: str = ""


class RowOperand(SourcedRow):
    """An operator that needs one row of its last axis in VTCM, with this many bytes per element."""

    op: str
    bytes_per_element: int
    seen_with: str = ""


class ConstraintTable(Record):
    """The content of ``constraints.toml``, with its sources spelled out."""

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
    """The table. Raises InputError for a wrong row, with its dotted path."""
    return sourced_file(ConstraintTable, DATA / "constraints.toml")


def constraint(name: str) -> HtpConstraint:
    """The row with this id."""
    return next(row for row in constraints().constraint if row.id == name)


def claim_of(row: HtpConstraint | OpRank | Refused | RowOperand, *, answered_by: Answerer = Answerer.COMPILER) -> Claim:
    """The claim that a row's operator is not taken, with the row's confidence."""
    return Claim(answered_by, row.confidence, seen_with=row.seen_with)


def limit(name: str, *, answered_by: Answerer = Answerer.COMPILER) -> dict[str, Any]:
    """The arguments that register a rule about one row: its sources, and the claim that it is not taken."""
    row = constraint(name)
    return {"sources": row.source, "claim": claim_of(row, answered_by=answered_by)}


def rated(finding: Finding) -> Finding:
    """The finding, at least as severe as the row that names its rule."""
    row = next((row for row in constraints().constraint if finding.code in row.rules), None)
    if row is None or finding.severity.rank <= row.severity.rank:
        return finding
    return replace(finding, severity=row.severity, sources=(*finding.sources, *row.source))
