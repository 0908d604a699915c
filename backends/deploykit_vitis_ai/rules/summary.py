"""Rules about the compiler's own summary of what it put on the NPU. Codes VAI401 to VAI403."""

from __future__ import annotations

from collections.abc import Iterator

from deploykit.findings import SubjectKind
from deploykit.findings.rules import Found, Registry
from deploykit_vitis_ai.summary import CompileSummary

__all__ = ["RULES"]

RULES: Registry[CompileSummary] = Registry("compilation")


_SOURCES = ["repository Xilinx/ross-ai-assistant", "repository amd/Vitis-AI, branch 6.3: summaries in the examples"]


@RULES.rule(
    "VAI401",
    "nothing-on-the-npu",
    "error",
    what="The compiler put no operator on the NPU.",
    why="Opening the model succeeds all the same: ONNX Runtime then runs everything on the CPU.",
    fix="Read the compiler's log; 'deploykit diagnose' knows the usual causes.",
    sources=_SOURCES,
)
def check_offloaded(summary: CompileSummary) -> Iterator[Found]:
    """No operator offloaded."""
    if not summary.offloaded:
        yield Found(kind=SubjectKind.MODEL, name="compiled model", message="no operator runs on the NPU")


@RULES.rule(
    "VAI402",
    "subgraph-failed",
    "error",
    what="A part of the model failed to compile and falls back to the CPU.",
    why="The compiler's own errors are swallowed by the provider.",
    fix="Compile with keep_outputs=true and logging_level=info, and diagnose the log.",
    sources=_SOURCES,
)
def check_failed(summary: CompileSummary) -> Iterator[Found]:
    """Subgraphs with compilation errors."""
    if summary.failed_subgraphs:
        message = f"{summary.failed_subgraphs} subgraphs failed to compile"
        yield Found(kind=SubjectKind.MODEL, name="compiled model", message=message)


@RULES.rule(
    "VAI403",
    "partly-on-the-cpu",
    "warning",
    what="Less than the whole work runs on the NPU, or in several pieces.",
    why="Every piece on the CPU costs copies and time. One partition with everything in it is the aim.",
    fix="See which operators fall to the CPU; lower threshold_gops_percent where small parts were left out.",
    sources=_SOURCES,
)
def check_share(summary: CompileSummary) -> Iterator[Found]:
    """A share under 100 %, or more than one subgraph."""
    share = summary.gops_percent
    if summary.offloaded and share is not None and share < 100:
        message = f"{share}% of the work runs on the NPU"
        yield Found(kind=SubjectKind.MODEL, name="compiled model", message=message)
    if summary.subgraphs is not None and summary.subgraphs > 1:
        message = f"the model is split into {summary.subgraphs} pieces"
        yield Found(kind=SubjectKind.MODEL, name="compiled model", message=message)
