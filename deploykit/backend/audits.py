"""What an audit of a model's kernels comes to: each distinct one with its verdict, as plain values. Nothing is run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from deploykit.findings import Finding
from deploykit.system.aliases import Json
from deploykit.system.published import Published, published

__all__ = ["Audit", "AuditedKernel", "settled_findings"]


def settled_findings(findings: Iterable[Finding], settled: Mapping[tuple[str, str], str]) -> tuple[Finding, ...]:
    """Findings of a plan, those marked as handled that running showed to be about nothing here."""
    told = ((finding, settled.get((finding.code, finding.subject.name))) for finding in findings)
    return tuple(finding if how is None else finding.with_handled(how) for finding, how in told)


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditedKernel(Published):
    """One distinct kernel: an operator with its attributes, shapes, types, grids and constants.

    ``node`` is the first node that it is of, ``count`` how many of the model are the same. ``place`` is ``alone``, or
    ``inside`` for the operators in ``operators`` together. ``verdict`` is right, narrowed, wrong, refused or not
    judged, and ``why`` says why not right. ``measured`` are the numbers: deviations are in ``unit``. ``nodes`` are
    all of the same kernel, where that is told. ``ways`` are those in which it was done and is right, the one to take
    first, each with its name and, in words, what is done; None where none was tried. ``shown_by`` is what alone shows
    that it is not right, "" where anything does.
    """

    node: str
    operators: tuple[str, ...]
    type: str
    place: str
    verdict: str
    count: int = 1
    why: str = ""
    measured: Json = field(default_factory=dict)
    nodes: tuple[str, ...] = ()
    ways: tuple[str, ...] | None = None
    shown_by: str = ""

    def as_published(self) -> Json:
        """Of its nodes the first and their number."""
        return published(self, without=("nodes",))


@dataclass(frozen=True, slots=True, kw_only=True)
class Audit(Published):
    """All kernels that were looked at, by whom (``by``), and what follows; ``level`` is quick, auto or full.

    ``left_out`` are those that the level had no room for. ``settled`` says of findings of the plan, by code and name of
    the subject, what was seen instead.
    """

    level: str
    by: str
    kernels: tuple[AuditedKernel, ...] = ()
    findings: tuple[Finding, ...] = ()
    known: int = 0
    """How many of them had been measured before."""
    left_out: int = 0
    settled: Mapping[tuple[str, str], str] = field(default_factory=dict)

    @property
    def counts(self) -> Mapping[str, int]:
        """How many kernels have each verdict."""
        return dict(sorted(Counter(kernel.verdict for kernel in self.kernels).items()))

    def as_published(self) -> Json:
        """What was found, the same whether it was measured now or before."""
        return {**published(self, without=("known", "settled")), "summary": self.counts}
