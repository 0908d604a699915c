"""Loads the table of what the HTP cannot take; it checks nothing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import TypeVar

from deploykit.findings import Answerer, Claim, Confidence, Finding, Severity
from deploykit.tables.reading import read_toml, structure

__all__ = ["ConstraintTable", "Refused", "claim_of", "constraint", "constraints", "rated"]

_FILE = Path(__file__).parents[1] / "data" / "constraints.toml"


@dataclass(frozen=True, slots=True, kw_only=True)
class HtpConstraint:
    """One row: what is not taken, who says so, and the codes of the rules that look for it.

    ``seen_with`` is the newest release with which it was seen, "" where the source does not say, as in every row.
    """

    id: str
    check: str
    severity: Severity
    rules: tuple[str, ...]
    source: tuple[str, ...]
    confidence: Confidence
    ep_limit: bool = False
    note: str = ""
    contradicts: str = ""
    confidence_note: str = ""
    seen_with: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class OpRank:
    """The ranks, both included, that the first input of an operator may have."""

    op: str
    source: tuple[str, ...]
    confidence: Confidence
    lowest: int = 0
    highest: int = 5
    seen_with: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused:
    """An operator that is refused: always, at one rank, or unless every value of an attribute equals ``unless``."""

    op: str
    why: str
    source: tuple[str, ...]
    confidence: Confidence
    attribute: str = ""
    unless: str = ""
    rank: int | None = None
    seen_with: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Untranslated:
    """Operators of one domain that nothing is known to translate; ``backend`` empty: on either route.

    ``together_on`` names the backend that takes them where they are one dynamically quantized layer.
    """

    ops: tuple[str, ...]
    why: str
    source: tuple[str, ...]
    confidence: Confidence
    domain: str = ""
    backend: str = ""
    together_on: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class WholeOperand:
    """An operator whose operands had to be in VTCM as a whole, in releases before ``before``."""

    op: str
    before: str
    source: tuple[str, ...]
    confidence: Confidence
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class RowOperand:
    """An operator that needs one row of its last axis in VTCM, at so many bytes per element."""

    op: str
    bytes_per_element: int
    source: tuple[str, ...]
    confidence: Confidence
    seen_with: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConstraintTable:
    """``constraints.toml``, sources spelled out."""

    schema: int
    constraint: tuple[HtpConstraint, ...]
    sources: Mapping[str, str] = field(default_factory=dict)
    op_rank: tuple[OpRank, ...] = ()
    refused: tuple[Refused, ...] = ()
    untranslated: tuple[Untranslated, ...] = ()
    whole_operand: tuple[WholeOperand, ...] = ()
    row_operand: tuple[RowOperand, ...] = ()


@cache
def constraints() -> ConstraintTable:
    """The table; a wrong row is an InputError with its dotted path."""
    table = structure(ConstraintTable, read_toml(_FILE), where=_FILE.name)
    return replace(
        table,
        constraint=_spelled(table.constraint, table.sources),
        op_rank=_spelled(table.op_rank, table.sources),
        refused=_spelled(table.refused, table.sources),
        untranslated=_spelled(table.untranslated, table.sources),
        whole_operand=_spelled(table.whole_operand, table.sources),
        row_operand=_spelled(table.row_operand, table.sources),
    )


R = TypeVar("R", HtpConstraint, OpRank, Refused, Untranslated, WholeOperand, RowOperand)


def _spelled(rows: tuple[R, ...], sources: Mapping[str, str]) -> tuple[R, ...]:
    return tuple(replace(row, source=tuple(_source(text, sources) for text in row.source)) for row in rows)


def _source(text: str, sources: Mapping[str, str]) -> str:
    key, _, rest = text.partition(" ")
    return f"{sources[key]}{': ' if rest else ''}{rest}" if key in sources else text


def constraint(name: str) -> HtpConstraint:
    """One row by its id."""
    return next(row for row in constraints().constraint if row.id == name)


def claim_of(row: HtpConstraint | OpRank | Refused | RowOperand, *, answered_by: Answerer = Answerer.COMPILER) -> Claim:
    """The claim that something is not taken, as sure as the row is that says so."""
    return Claim(answered_by=answered_by, confidence=row.confidence, seen_with=row.seen_with)


def rated(finding: Finding) -> Finding:
    """What the core found, as severe as the row says that names its rule; a row never makes it less severe."""
    row = next((row for row in constraints().constraint if finding.code in row.rules), None)
    if row is None or finding.severity.rank <= row.severity.rank:
        return finding
    return replace(finding, severity=row.severity, sources=(*finding.sources, *row.source))
