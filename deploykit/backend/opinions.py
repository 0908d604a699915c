"""What a compiler said of a model: opinions on findings that claim that something is not taken, and audits of kernels.

It asks nobody and runs nothing: the deciding room does, through ``Backend.settle`` and ``Backend.audit``.
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
    """What became of a claim: the compiler takes it after all, it does not, or it did not tell."""

    REFUTED = "refuted"
    CONFIRMED = "confirmed"
    OPEN = "open"


class Compiler(Record):
    """A compiler that can be asked here, by its name for people; ``missing`` is why none can, and ``instead`` the cure.

    ``release`` is the SDK release it belongs to, as the tables name it.
    """

    name: str = ""
    release: str = ""
    missing: str = ""
    instead: str = ""


class Opinion(Published):
    """The answer about one finding, which ``code`` and ``subject`` name.

    ``scope`` is what was compiled for it ("2 operators", "the model"), "" where nothing was. ``by`` is whose it is
    where several were asked, None for the compiler of all.
    """

    code: str
    subject: str
    state: OpinionState
    why: str
    scope: str = ""
    by: Compiler | None = None

    @classmethod
    def on(cls, finding: Finding, state: OpinionState, why: str, scope: str = "") -> Opinion:
        """The opinion on a finding."""
        return cls(code=finding.code, subject=finding.subject.name, state=state, why=why, scope=scope)

    def as_published(self) -> Json:
        """Whose it is where several were asked."""
        by = {} if self.by is None else {"by": self.by.name}
        return {**published(self, without=("by",)), **by}


class Opinions(Record):
    """Every opinion on one situation, whose they are (``compiler``: the nearest), and for which SDK they do not speak.

    ``unasked`` is the SDK of the package where the compiler is another release's, else "". Where ``compiler`` is
    missing nothing was asked, and the opinions say for what there would have been a question.
    """

    compiler: Compiler
    opinions: tuple[Opinion, ...] = ()
    unasked: str = ""

    @property
    def any_refuted(self) -> bool:
        """True when some claim does not hold."""
        return any(opinion.state is OpinionState.REFUTED for opinion in self.opinions)

    def applied(self, findings: Iterable[Finding]) -> Findings:
        """The findings as they are with these opinions; what was not asked about stays, and twice does no harm."""
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

    ``node`` is the first node that it is of, ``count`` how many of the model are the same. ``place`` is ``alone``, or
    ``inside`` for the operators in ``operators`` together. ``verdict`` is right, narrowed, wrong, refused or not
    judged, and ``why`` says why not right. ``measured`` are the numbers: deviations are in ``unit``. ``nodes`` are
    all of the same kernel, where that is told. ``ways`` are those in which it was done and is right, the one to take
    first, each with its name and, in words, what is done; None where none was tried. ``shown_by`` is what alone shows
    that it is not right, "" where anything does.
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
    ways: tuple[str, ...] | None = None
    shown_by: str = ""


class Audit(Published):
    """All kernels that were looked at, by whom (``by``), and what follows; ``level`` is quick, auto or full.

    ``left_out`` are those that the level had no room for. ``settled`` says of findings of the plan, by code and name of
    the subject, what was seen instead.
    """

    level: str
    by: str
    kernels: tuple[AuditedKernel, ...] = ()
    findings: Findings = ()
    known: int = 0
    """How many of them had been measured before."""
    left_out: int = 0
    settled: Mapping[tuple[str, str], str] = {}

    @property
    def counts(self) -> Mapping[str, int]:
        """How many kernels have each verdict."""
        return dict(sorted(Counter(kernel.verdict for kernel in self.kernels).items()))

    def as_published(self) -> Json:
        """What was found, the same whether it was measured now or before."""
        return {**published(self, without=("known", "settled")), "summary": self.counts}
