"""Reads the log of a failed tool: known causes with their way out, and plain words if the cause is unknown."""

from __future__ import annotations

from deploykit.answers.diagnosis.judging import diagnose, diagnose_log
from deploykit.answers.diagnosis.names import MappedName, Names, mangle
from deploykit.answers.diagnosis.verdict import Cause, CodeSeen, Diagnosis

__all__ = [
    "Cause",
    "CodeSeen",
    "Diagnosis",
    "MappedName",
    "Names",
    "diagnose",
    "diagnose_log",
    "mangle",
]
