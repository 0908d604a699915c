"""Reads the log of a failed tool: known causes, the way out, and a plain word where it does not know."""

from __future__ import annotations

from deploykit.contract.known_errors import (
    Catalog,
    CodeMeaning,
    KnownError,
    Observation,
    ToolMark,
    load_catalog,
    merge_catalogs,
    search_errors,
)
from deploykit.diagnosis.judging import diagnose, diagnose_log
from deploykit.diagnosis.names import MappedName, Names, mangle
from deploykit.diagnosis.verdict import Cause, CodeSeen, Diagnosis, FollowUp

__all__ = [
    "Catalog",
    "Cause",
    "CodeMeaning",
    "CodeSeen",
    "Diagnosis",
    "FollowUp",
    "KnownError",
    "MappedName",
    "Names",
    "Observation",
    "ToolMark",
    "diagnose",
    "diagnose_log",
    "load_catalog",
    "mangle",
    "merge_catalogs",
    "search_errors",
]
