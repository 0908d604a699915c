"""The compiler's ``final-vaiml-pass-summary.txt``, and the rules about the part on the NPU: VAI401 to VAI403.

The format is that of the logs printed in the examples of repository amd/Vitis-AI, branch 6.3.
"""

from __future__ import annotations

import re
from pathlib import Path

from deploykit.findings.records import Record
from deploykit.findings.rules import Finds, Found, Registry

__all__ = ["RULES", "find_summary"]


SUMMARY = "final-vaiml-pass-summary.txt"
_LINE = re.compile(r"\s*(.+?):\s*([0-9]+(?:\.[0-9]+)?)\s*(?:\(([0-9.]+)%\))?\s*$")


class CompileSummary(Record):
    """The numbers in the compiler's summary; None for a number that the text does not have."""

    offloaded: int | None
    gops_percent: float | None = None
    subgraphs: int | None = None
    failed_subgraphs: int | None = None


def _parse_summary(text: str) -> CompileSummary:
    """Reads the numbers of one summary; unknown lines are ignored."""
    numbers = dict[str, tuple[float, float | None]]()
    for line in text.splitlines():
        match = _LINE.match(line)
        if match:
            numbers[match[1]] = (float(match[2]), float(match[3]) if match[3] else None)
    share = next((share for name, (_, share) in numbers.items() if name == "GOPs offloaded by VAIML"), None)
    return CompileSummary(
        offloaded=_whole(numbers, "Number of operators offloaded by VAIML"),
        gops_percent=share,
        subgraphs=_whole(numbers, "Number of subgraphs offloaded by VAIML"),
        failed_subgraphs=_whole(numbers, "with compilation errors"),
    )


def _whole(numbers: dict[str, tuple[float, float | None]], part: str) -> int | None:
    return next((int(value) for name, (value, _) in numbers.items() if part in name), None)


def find_summary(cache: Path) -> CompileSummary | None:
    """The summary in a cache folder; None if the compiler wrote none."""
    found = sorted(cache.rglob(SUMMARY)) if cache.is_dir() else []
    return _parse_summary(found[0].read_text("utf-8", errors="replace")) if found else None


_SOURCES = ["repository Xilinx/ross-ai-assistant", "repository amd/Vitis-AI, branch 6.3: summaries in the examples"]
RULES = Registry[CompileSummary]("compilation", sources=_SOURCES)


@RULES.rule("VAI401", "nothing-on-the-npu", "error")
def check_offloaded(summary: CompileSummary) -> Finds:
    """The compiler put no operator on the NPU.

    Opening the model succeeds all the same: ONNX Runtime then runs everything on the CPU.

    Fix: Read the compiler's log; 'deploykit diagnose' knows the usual causes.
    """
    if not summary.offloaded:
        yield Found("model", "compiled model", "no operator runs on the NPU")


@RULES.rule("VAI402", "subgraph-failed", "error")
def check_failed(summary: CompileSummary) -> Finds:
    """A part of the model failed to compile and falls back to the CPU.

    The compiler's own errors are swallowed by the provider.

    Fix: Compile with keep_outputs=true and logging_level=info, and diagnose the log.
    """
    if summary.failed_subgraphs:
        yield Found("model", "compiled model", f"subgraphs that failed to compile: {summary.failed_subgraphs}")


@RULES.rule("VAI403", "partly-on-the-cpu", "warning")
def check_share(summary: CompileSummary) -> Finds:
    """Less than the whole work runs on the NPU, or in several pieces.

    Every piece on the CPU costs copies and time. One partition with everything in it is the aim.

    Fix: See which operators fall to the CPU; lower threshold_gops_percent where small parts were left out.
    """
    # A share below 100 %, or more than one subgraph.
    share = summary.gops_percent
    if summary.offloaded and share is not None and share < 100:
        yield Found("model", "compiled model", f"{share}% of the work runs on the NPU")
    if summary.subgraphs is not None and summary.subgraphs > 1:
        yield Found("model", "compiled model", f"the model is split into {summary.subgraphs} pieces")
