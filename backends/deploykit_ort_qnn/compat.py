"""Rows of ``deploykit compat`` about provider options and session entries; the shared tables have the rest."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

from deploykit.tables.capabilities import CompatRow, Status, release_range
from deploykit_ort_qnn.provider_keys import load_options
from deploykit_qualcomm.tables import tables

__all__ = ["option_rows"]

_FAMILY = "QAIRT in onnxruntime-qnn"
"""The releases in these rows are those of the QAIRT inside: what is asked for by ``--sdk`` is one of them."""


def option_rows() -> Iterator[CompatRow]:
    """One row per option, entry and name that never was."""
    table = load_options()
    for option in table.option:
        values = f"; values {' '.join(option.values)}" if option.values else ""
        limits = f"; {option.range[0]} to {option.range[1]}" if option.range else ""
        absent = f"; in no wheel up to {option.not_in}" if option.not_in else ""
        first = f"; from wheel {option.since} on" if option.since else f"; first seen in {table.checked_with}{absent}"
        managed = "; deploykit sets it" if option.managed else ""
        managed += f"; not beside {', '.join(option.excludes)}" if option.excludes else ""
        note = f"{option.type}, when {_when(option.phase)}; {option.note}{values}{limits}{managed}{first}"
        yield _row(f"provider-option {option.name}", note, option, since=_inside(option.since))
        if before := _before(option.since):
            note = f"not before wheel {option.since}; an older one ignores it without a word"
            lacking = {"status": Status.UNSUPPORTED, "since": tables().wheels[0].sdk, "until": before}
            yield _row(f"provider-option {option.name}", note, option, **lacking)
    for entry in table.entry:
        yield _row(f"session-entry {entry.name}", entry.note, entry)
    for refused in table.refused:
        yield _row(
            f"provider-option {refused.name}",
            f"{refused.why}; use {refused.instead}" if refused.instead else refused.why,
            refused,
            status=Status.UNSUPPORTED,
            renamed_to=f"provider-option {refused.instead}" if refused.instead else "",
        )


def _inside(wheel: str) -> str:
    """The QAIRT inside a wheel, "" where none is named."""
    return next((row.sdk for row in tables().wheels if row.version == wheel), "")


def _before(wheel: str) -> str:
    """The QAIRT inside the wheel before one, "" where that is the first or none is named."""
    sdks = [(row.version, row.sdk) for row in tables().wheels]
    return next((sdk for (_, sdk), (version, _) in pairwise(sdks) if version == wheel), "")


def _when(phase: str) -> str:
    return {"compile": "compiling", "run": "running", "both": "compiling and running"}[phase]


def _row(feature: str, note: str, row: Any, **more: Any) -> CompatRow:
    fields = {"tool": "onnxruntime-qnn", "status": Status.SUPPORTED, "since": "", "until": "", **more}
    return CompatRow(
        feature=feature,
        backend="ort-qnn",
        note=note,
        source=row.source,
        confidence=row.confidence,
        sdk=release_range(fields["since"], fields["until"]) if fields["since"] else "",
        family=_FAMILY,
        **fields,
    )
