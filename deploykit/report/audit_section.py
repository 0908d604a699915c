"""What an audit found of a package's kernels, as values for the page: counts, what is not right, a verdict per node.

Pure: it weighs nothing anew.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from deploykit.backend.audits import Audit, AuditedKernel

__all__ = ["AuditSection", "audit_section", "verdicts_by_node"]

_WORST_FIRST = ("wrong", "refused", "narrowed", "not judged", "right")
_MOST_ROWS = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditSection:
    """``open`` are the kernels that are not right, worst first; ``right`` the others; ``left_out`` beyond the table."""

    by: str
    level: str
    counts: Mapping[str, int]
    open: tuple[AuditedKernel, ...]
    right: tuple[AuditedKernel, ...]
    left_out: int


def audit_section(audit: Audit | None) -> AuditSection | None:
    """None without an audit."""
    if audit is None:
        return None
    ranked = sorted(audit.kernels, key=lambda kernel: _rank(kernel.verdict))
    right = [kernel for kernel in ranked if kernel.verdict == "right"]
    still_open = [kernel for kernel in ranked if kernel.verdict != "right"]
    return AuditSection(
        by=audit.by,
        level=audit.level,
        counts={verdict: audit.counts[verdict] for verdict in sorted(audit.counts, key=_rank)},
        open=tuple(still_open[:_MOST_ROWS]),
        right=tuple(right[:_MOST_ROWS]),
        left_out=len(still_open[_MOST_ROWS:]) + len(right[_MOST_ROWS:]),
    )


def verdicts_by_node(audit: Audit | None) -> Mapping[str, str]:
    """The worst verdict about each node, by its label; a node that was not looked at is not there."""
    found: dict[str, str] = {}
    for kernel in () if audit is None else audit.kernels:
        for node in kernel.nodes or (kernel.node,):
            found[node] = min(found.get(node, "right"), str(kernel.verdict), key=_rank)
    return found


def _rank(verdict: str) -> int:
    return _WORST_FIRST.index(verdict) if verdict in _WORST_FIRST else 0
