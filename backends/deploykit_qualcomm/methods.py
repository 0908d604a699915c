"""AIMET's methods as rows of ``deploykit compat``: what they are called, and what of them there is."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from deploykit.findings import Confidence
from deploykit.tables.capabilities import CompatRow, Status
from deploykit.tables.reading import read_toml, structure
from deploykit.tables.sources import read_sources, write_out
from deploykit_qualcomm.tables import DATA

__all__ = ["Method", "load_methods", "method_rows"]

_TOOL = "aimet-onnx"


@dataclass(frozen=True, slots=True, kw_only=True)
class Method:
    """One method: the spellings that find it, and the option of the quantizer that runs it ("" for none)."""

    name: str
    words: tuple[str, ...]
    status: Status
    note: str
    source: tuple[str, ...]
    confidence: Confidence
    option: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class _MethodFile:
    schema: int
    method: tuple[Method, ...]


def load_methods() -> tuple[Method, ...]:
    """Every row of ``methods.toml``, sources written out."""
    table = read_toml(DATA / "methods.toml")
    write_out(table, read_sources(DATA / "sources.toml"))
    return structure(_MethodFile, table, where="methods.toml:").method


def method_rows(backend: str) -> Iterator[CompatRow]:
    """The rows for one backend; they depend on AIMET's version, not on an SDK's."""
    for method in load_methods():
        ran = f"; 'deploykit quantize --with aimet --option {method.option}=…'" if method.option else ""
        yield CompatRow(
            feature=method.name,
            backend=backend,
            tool=_TOOL,
            sdk="",
            status=method.status,
            since="",
            until="",
            note=f"{method.note}{ran}",
            source=method.source,
            confidence=method.confidence,
            words=method.words,
        )
