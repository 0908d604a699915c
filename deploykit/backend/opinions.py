"""What a compiler said of findings that claim that something is not taken, and what becomes of the findings by it.

It asks nobody: the deciding room does, through ``Backend.settle``.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import StrEnum

from deploykit.findings import Confidence, Finding, Severity
from deploykit.system.aliases import Json
from deploykit.system.published import Published, published

__all__ = ["Compiler", "Opinion", "OpinionState", "Opinions"]

_EVIDENCE = "second_opinion"


class OpinionState(StrEnum):
    """What became of a claim: the compiler takes it after all, it does not, or it did not tell."""

    REFUTED = "refuted"
    CONFIRMED = "confirmed"
    OPEN = "open"


@dataclass(frozen=True, slots=True, kw_only=True)
class Compiler:
    """A compiler that can be asked here, by its name for people; ``missing`` is why none can, and ``instead`` the cure.

    ``release`` is the SDK release it belongs to, as the tables name it.
    """

    name: str = ""
    release: str = ""
    missing: str = ""
    instead: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Opinions:
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

    def of_state(self, state: OpinionState) -> tuple[Opinion, ...]:
        """The opinions with that outcome."""
        return tuple(opinion for opinion in self.opinions if opinion.state is state)

    def applied(self, findings: Iterable[Finding]) -> tuple[Finding, ...]:
        """The findings as they are with these opinions; what was not asked about stays, and twice does no harm."""
        by_subject = {(opinion.code, opinion.subject): opinion for opinion in self.opinions}
        return tuple(
            finding
            if (opinion := by_subject.get((finding.code, finding.subject.name))) is None
            else self._settled(finding, opinion)
            for finding in findings
        )

    def _settled(self, finding: Finding, opinion: Opinion) -> Finding:
        if not finding.blocks or finding.claim is None or _EVIDENCE in finding.evidence or self.compiler.missing:
            return finding
        by = opinion.by or self.compiler
        evidence: Json = {**finding.evidence, _EVIDENCE: opinion.to_json()}
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
