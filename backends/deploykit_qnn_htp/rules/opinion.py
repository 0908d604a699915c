"""The rule about what another backend's compiler said of a conversion. Code QNN131; it asks nobody itself."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from deploykit.findings import Severity
from deploykit.findings.rules import Found, Registry

__all__ = ["RULES", "ConversionOpinion"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ConversionOpinion:
    """What one compiler said of one conversion; ``verdict`` as ``Backend.preflight`` gives it."""

    graph: str
    asked: str
    verdict: Mapping[str, Any]


RULES: Registry[ConversionOpinion] = Registry("second-opinion")


@RULES.rule("QNN131", "second-opinion", "info", sources=("the compiler named in the message, run while packaging",))
def check_opinion(opinion: ConversionOpinion) -> Iterator[Found]:
    """The verdict of another backend's compiler on the quantized form of the model.

    It is the same vendor's compiler, of another release than the package's SDK: what it refuses is worth knowing before
    a device is at hand, what it takes is no proof.

    Fix: read its findings in the manifest's record; package for that backend to see all of them
    """
    # A warning where it refuses, or where there is no compiler to ask.
    verdict = opinion.verdict
    if not verdict.get("available"):
        message = f"no second opinion: {verdict.get('why', 'no backend offers one')}"
        yield Found("model", opinion.graph, message, severity=Severity.WARNING)
        return
    ok = bool(verdict.get("ok"))
    yield Found(
        "model",
        opinion.graph,
        f"{verdict['compiler']} {'compiles' if ok else 'refuses'} {opinion.graph}; {verdict['note']}",
        severity=None if ok else Severity.WARNING,
        evidence={"status": verdict.get("status"), "codes": sorted({f["code"] for f in verdict.get("findings", ())})},
    )
