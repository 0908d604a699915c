"""What is said about the model as it was given, once another one is packaged."""

from __future__ import annotations

from deploykit.findings import Finding, Severity, Subject, SubjectKind
from deploykit.flow.plan import _avoided


def finding(code: str, name: str, severity: Severity = Severity.ERROR) -> Finding:
    subject = Subject(kind=SubjectKind.NODE, name=name)
    return Finding(code=code, slug="s", severity=severity, subject=subject, message="m", sources=("a test",))


def test_an_error_that_the_packaged_model_lacks_is_handled_and_still_said() -> None:
    core = (finding("DK002", "nms"), finding("DK002", "other"), finding("DK012", "n", Severity.INFO))
    (gone,) = _avoided(core, (finding("DK002", "other"),), "rewritten by cut-tail")
    assert (gone.subject.name, gone.handled, gone.blocks) == ("nms", "rewritten by cut-tail", False)
