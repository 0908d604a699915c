"""Looks for npucc on this machine; it installs nothing."""

from __future__ import annotations

from collections.abc import Iterator

from deploykit.backend.probes import CheckLine, Surroundings, start

__all__ = ["look_for_compiler"]


def look_for_compiler(around: Surroundings) -> Iterator[CheckLine]:
    """Is it on the PATH, and does it start?"""
    found = around.which("npucc")
    if found is None:
        yield CheckLine(id="npucc", state="absent", detail="not on the PATH", next="install the chip's tools")
        return
    answer = start(around, found, "--version")
    said = " ".join(answer.tail)
    yield CheckLine(id="npucc", state="ok" if answer.ok else "problem", detail=f"{found}: {said}")
