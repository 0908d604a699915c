"""The rule that counts the kernels that were run by themselves. Code QNN325."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from deploykit.backend.audits import Audit
from deploykit.findings import SubjectKind
from deploykit.findings.rules import Found, Registry
from deploykit_ort_qnn.rules.audit import LAB

__all__ = ["RULES", "Counted"]

_VERDICTS = ("right", "wrong", "narrowed", "refused", "not judged")


@dataclass(frozen=True, slots=True, kw_only=True)
class Counted:
    """An audit that is part of something larger, and how many nodes are done in another way than they were given."""

    audit: Audit
    otherwise: int = 0


RULES: Registry[Counted] = Registry("audit-count")


@RULES.rule(
    "QNN325",
    "kernels-run",
    "info",
    what="So many kernels of this model were run by themselves, over all that their grids hold, with these verdicts.",
    why="It says how much of the model was looked at: a kernel that was not run is right only as far as anyone knows.",
    fix="'deploykit check --audit full' lists them one by one",
    sources=(LAB,),
)
def check_count(scope: Counted) -> Iterator[Found]:
    """By verdict, the same whether they were run now or before."""
    audit = scope.audit
    counts = {word: audit.counts[word] for word in _VERDICTS if word in audit.counts}
    if not audit.kernels:
        return
    told = ", ".join(f"{count} {word}" for word, count in counts.items())
    more = f"; {scope.otherwise} done in another way" if scope.otherwise else ""
    left = f"; {audit.left_out} left out (QNN324)" if audit.left_out else ""
    plural = "" if len(audit.kernels) == 1 else "s"
    yield Found(
        kind=SubjectKind.MODEL,
        name="model",
        message=f"{len(audit.kernels)} kernel{plural} run on the emulator: {told}{more}{left}",
        sources=(audit.by,),
        evidence={"run": len(audit.kernels), **counts, "otherwise": scope.otherwise, "left_out": audit.left_out},
    )
