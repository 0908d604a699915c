"""What is said about the model as it was given, once another one is packaged."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from deploykit.findings import Finding, Severity, Subject, SubjectKind
from deploykit.flow.decision import _rewritten

CHOSEN: Any = SimpleNamespace(explains="rewritten by cut-tail")


def finding(code: str, name: str, severity: Severity = Severity.ERROR) -> Finding:
    subject = Subject(kind=SubjectKind.NODE, name=name)
    return Finding(code=code, slug="s", severity=severity, subject=subject, message="m", sources=("a test",))


def test_an_error_that_the_packaged_model_lacks_is_handled_and_still_said() -> None:
    core = (finding("DK002", "nms"), finding("DK002", "other"), finding("DK012", "n", Severity.INFO))
    gone, left, note = _rewritten(core, (finding("DK002", "other"),), CHOSEN)
    assert (gone.handled, gone.blocks) == ("rewritten by cut-tail", False)
    assert (left.handled, left.blocks) == (None, True)
    assert note == core[2], "only what blocks is handled"
