"""A compiler's answers about a model: opinions on findings that claim that
something is not taken, and audits of kernels.

These are values only: the flow asks through ``Backend.settle`` and ``Backend.audit``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from enum import StrEnum

from deploykit.findings import Confidence, Finding, Findings, Severity
from deploykit.findings.records import Json, Names, Published, Record, field, published, replace

__all__ = ["Audit", "AuditedKernel", "Compiler", "Opinion", "OpinionState", "Opinions"]

_EVIDENCE = "second_opinion"


class OpinionState(StrEnum):
    """The state of a claim: the compiler takes the operator (refuted), does not (confirmed), or gave no
    answer (open).
    """

    REFUTED = "refuted"
    CONFIRMED = "confirmed"
    OPEN = "open"


class Compiler(Record):
    """A compiler that can be asked here, with a name for people;
    ``missing`` is why none can, ``instead`` how to get one.

    ``release`` is its SDK release, as the tables name it.
    """

    name: str = ""
    release: str = ""
    missing: str = ""
    instead: str = ""


class Opinion(Published):
    """The answer about one finding, identified by ``code`` and ``subject``.

    ``scope`` is what was compiled for it ("2 operators", "the model"), "" for nothing. ``by`` is the compiler that
    answered if several were asked, else None.
    """

    code: str
    subject: str
    state: OpinionState
    why: str
    scope: str = ""
    by: Compiler | None = None

    @classmethod
    def on(cls, finding: Finding, state: OpinionState, why: str, scope: str = "") -> Opinion:
        """Makes the opinion on a finding."""
        return cls(code=finding.code, subject=finding.subject.name, state=state, why=why, scope=scope)

    def as_published(self) -> Json:
        """The published fields; ``by`` only if several compilers were asked."""
        by = {} if self.by is None else {"by": self.by.name}
        return {**published(self, without=("by",)), **by}


class Opinions(Record):
    """Every opinion on one situation, the nearest compiler that gave them, and the SDK they do not hold for.

    ``unasked`` is the SDK of the package if the compiler is of another release, else "". If ``compiler`` is missing,
    nothing was asked, and the opinions list the findings that would have been asked about.
    """

    compiler: Compiler
    opinions: tuple[Opinion, ...]
    unasked: str = ""

    @property
    def any_refuted(self) -> bool:
        """True if some claim is refuted."""
        return any(opinion.state is OpinionState.REFUTED for opinion in self.opinions)

    def applied(self, findings: Iterable[Finding]) -> Findings:
        """The findings changed by these opinions; others stay, and applying twice changes nothing more."""
        by_subject = {(opinion.code, opinion.subject): opinion for opinion in self.opinions}
        return tuple(
            finding if (opinion := by_subject.get(finding.about)) is None else self._settled(finding, opinion)
            for finding in findings
        )

    def _settled(self, finding: Finding, opinion: Opinion) -> Finding:
        if not finding.blocks or finding.claim is None or _EVIDENCE in finding.evidence or self.compiler.missing:
            return finding
        by = opinion.by or self.compiler
        evidence = {**finding.evidence, _EVIDENCE: opinion.to_json()}
        if opinion.state is OpinionState.OPEN:
            return replace(finding, evidence=evidence)
        if opinion.state is OpinionState.CONFIRMED:
            claim = replace(finding.claim, confidence=Confidence.OBSERVED, seen_with=by.release)
            message = f"{finding.message} (confirmed by {by.name})"
            return replace(finding, message=message, evidence=evidence, claim=claim)
        limit = f"; {self.unasked} itself was not asked" if self.unasked else ""
        return replace(
            finding,
            severity=Severity.WARNING if self.unasked else Severity.INFO,
            message=f"{finding.message}: refuted by {by.name}{limit}",
            hint=finding.hint if self.unasked else "",
            evidence=evidence,
        )


class AuditedKernel(Published):
    """One distinct kernel: an operator with its attributes, shapes, types, grids and constants.

    ``node`` is the first node with this kernel, ``count`` the number of such nodes. ``place`` is ``alone``, or
    ``inside`` for the operators in ``operators`` together. ``verdict`` is right, narrowed, wrong, refused or not
    judged, and ``why`` says why it is not right. ``measured`` are the numbers: deviations are in ``unit``.
    ``nodes`` are all nodes with this kernel, if known. ``ways`` are the repair ways that are right, the
    preferred one first, each with its name and a description; None if none was tried. ``shown_by`` is the only
    kind of input that shows the fault, "" if all do.
    """

    WITHOUT = ("nodes",)

    node: str
    operators: Names
    type: str
    place: str
    verdict: str
    count: int = 1
    why: str = ""
    measured: Json = field(default_factory=dict)
    nodes: Names = ()
    ways: Names | None = None
    shown_by: str = ""


class Audit(Published):
    """All kernels that were run, the compiler (``by``), and the findings; ``level`` is quick, auto or full.

    ``left_out`` is the number of kernels that the level had no room for. ``settled`` holds, by code and subject name,
    what was seen instead of a plan's finding.
    """

    level: str
    by: str
    kernels: tuple[AuditedKernel, ...] = ()
    findings: Findings = ()
    known: int = 0
    """The number of kernels that had been measured before."""
    left_out: int = 0
    settled: Mapping[tuple[str, str], str] = {}

    @property
    def counts(self) -> Mapping[str, int]:
        """The number of kernels with each verdict."""
        return dict(sorted(Counter(kernel.verdict for kernel in self.kernels).items()))

    def as_published(self) -> Json:
        """The published audit, the same whether kernels were measured now or before."""
        return {**published(self, without=("known", "settled")), "summary": self.counts}
