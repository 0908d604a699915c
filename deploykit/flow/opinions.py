"""Puts findings that would refuse a model, and are not sure, to the compiler that is installed here.

It asks only what a compiler can answer, and judges no answer: the backend that has the compiler does.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import replace

from packaging.version import InvalidVersion, Version

from deploykit.backend.backend import AnyBackend, Progress, SharedWork, Situation
from deploykit.backend.opinions import Compiler, Opinion, Opinions, OpinionState
from deploykit.backend.plugins import load_backends
from deploykit.findings import Answerer, Claim, Confidence, Finding

__all__ = ["SECONDS", "second_opinions"]

SECONDS = 120.0
"""What all questions about one model may take together."""


def second_opinions(
    backend: AnyBackend, situation: Situation, findings: Iterable[Finding], shared: SharedWork, tell: Progress
) -> Opinions | None:
    """What the compiler says of each such finding, or why none was asked; None where there is nothing to ask."""
    claims = [finding for finding in findings if finding.blocks and finding.claim is not None]
    if not claims:
        return None
    device = situation.target.device
    givers = (known for known in load_backends() if known.offers("settle") and known.id in device.backends)
    giver = next(givers, None)
    if giver is None:
        return None
    if not situation.request.second_opinion:
        off = Compiler(missing="switched off", instead="leave --no-second-opinion out to have it asked")
        return _unasked(claims, off)
    compilers = giver.compilers(device, "" if situation.target.sdk is None else situation.target.sdk.version)
    usable = [compiler for compiler in compilers if not compiler.missing]
    if not usable:
        return _unasked(claims, compilers[0])
    own = giver.id == backend.id
    asked = [finding for finding in claims if any(_is_open(finding.claim, one, own=own) for one in usable)]
    if not asked:
        return None
    found = _asked(giver, usable, situation, asked, shared, tell)
    return Opinions(compiler=usable[0], opinions=found, unasked=_other_sdk(situation, usable[0]))


def _asked(
    giver: AnyBackend,
    compilers: Sequence[Compiler],
    situation: Situation,
    asked: Sequence[Finding],
    shared: SharedWork,
    tell: Progress,
) -> tuple[Opinion, ...]:
    """Each finding to the nearest compiler, to the next what that one left open: of two answers the nearer counts."""
    started, by = time.monotonic(), dict[int, Opinion]()
    left = list(range(len(asked)))
    for compiler in compilers:
        rest = SECONDS - (time.monotonic() - started) if by else SECONDS
        if not left or (by and rest <= 0):
            break
        tell(f"asking {compiler.name} about what is not sure")
        findings = [asked[place] for place in left]
        told = giver.settle(situation, findings, compiler=compiler, shared=shared, seconds=rest, progress=tell)
        for place, opinion in zip(left, told, strict=True):
            if place not in by or opinion.state is not OpinionState.OPEN:
                by[place] = replace(opinion, by=compiler) if len(compilers) > 1 else opinion
        left = [place for place in left if by[place].state is OpinionState.OPEN]
    return tuple(by[place] for place in range(len(asked)))


def _unasked(claims: Sequence[Finding], compiler: Compiler) -> Opinions:
    opinions = tuple(Opinion.on(finding, OpinionState.OPEN, compiler.missing) for finding in claims)
    return Opinions(compiler=compiler, opinions=opinions)


def _is_open(claim: Claim | None, compiler: Compiler, *, own: bool) -> bool:
    """True where this compiler may answer, and nobody has seen with its release what it would say."""
    if claim is None or (claim.answered_by is Answerer.TOOLS and not own):
        return False
    return claim.confidence.rank >= Confidence.REPORTED.rank or _is_older(claim.seen_with, compiler.release)


def _is_older(seen_with: str, release: str) -> bool:
    """By series (2.51 of 2.51.0); what nobody dated, or with another kind of number, counts as older."""
    try:
        return Version(seen_with).release[:2] < Version(release).release[:2]
    except InvalidVersion:
        return True


def _other_sdk(situation: Situation, compiler: Compiler) -> str:
    """The SDK of the package where the compiler does not belong to it."""
    sdk = situation.target.sdk
    if sdk is None or sdk.version == compiler.release:
        return ""
    return f"{sdk.sdk} {situation.target.requested or sdk.version}"
