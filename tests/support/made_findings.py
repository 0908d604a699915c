"""A finding with something in every field that tests look at, to be changed field by field."""

from typing import Any

from msgspec.structs import replace

from deploykit.findings import Finding, Severity, Subject, SubjectKind

_ONE = Finding(
    code="DK901",
    slug="made-up",
    severity=Severity.ERROR,
    subject=Subject(kind=SubjectKind.NODE, name="n"),
    message="it is not taken",
)


def a_finding(**changes: Any) -> Finding:
    """An error about the node ``n``; ``name`` and ``kind`` change its subject, everything else the finding itself."""
    subject = {key: changes.pop(key) for key in ("name", "kind") if key in changes}
    return replace(_ONE, subject=replace(_ONE.subject, **subject), **changes)
