"""Rules about compiled models: refused nodes, crashes, what stays on the CPU. Codes ORT110 to ORT119.

They look at what a compilation left behind and start nothing.
"""

from __future__ import annotations

from collections.abc import Iterator

from deploykit.findings import SubjectKind, listed
from deploykit.findings.rules import Found, Registry
from deploykit_ort_qnn.compiler import CompileOutcome

__all__ = ["RULES"]

_LAB = "onnxruntime-qnn 2.7.0 (QAIRT 2.51) with ONNX Runtime 1.31.1, run on Linux x86-64 without hardware"

RULES: Registry[CompileOutcome] = Registry("compilation")


@RULES.rule(
    "ORT110",
    "nodes-refused",
    "error",
    what="The provider does not take these nodes, so that the model would not run wholly on the NPU.",
    why="With CPU fallback the model would open without a word and run in pieces, copied to and fro.",
    fix="Rewrite the nodes or give their tensors encodings; --option session.disable_cpu_ep_fallback=0 leaves them "
    "on the CPU.",
    sources=[_LAB],
)
def check_refused(outcome: CompileOutcome) -> Iterator[Found]:
    """Nodes named in the log of a refused compilation."""
    if outcome.status == "refused":
        for node in outcome.refused:
            yield Found(
                kind=SubjectKind.NODE,
                name=node.name,
                message=f"{node.type} {node.name} is not taken by the provider{f': {node.why}' if node.why else ''}",
                evidence={"type": node.type, **({"why": node.why} if node.why else {})},
            )


@RULES.rule(
    "ORT111",
    "compiler-failed",
    "error",
    what="The compiler ended with an error that names no node.",
    why="There is no context binary.",
    fix="Read the log under logs/; 'deploykit diagnose' knows some of its messages.",
    sources=[_LAB],
)
def check_failed(outcome: CompileOutcome) -> Iterator[Found]:
    """An error without refused nodes."""
    if outcome.status == "failed":
        cause = next((line for line in outcome.log if "Error:" in line or "failed" in line.lower()), "")
        yield Found(
            kind=SubjectKind.MODEL,
            name="model",
            message=f"the compiler failed: {outcome.message}",
            evidence={"log": cause} if cause else {},
        )


@RULES.rule(
    "ORT112",
    "compiler-crashed",
    "error",
    what="The compiler's process died.",
    why="A crash of the vendor's library leaves nothing that could be relied on.",
    fix="Report it with the model to the makers of the provider; try another finalization mode or wheel.",
    sources=[_LAB],
)
def check_crashed(outcome: CompileOutcome) -> Iterator[Found]:
    """A worker that died of a signal or ended without an answer."""
    if outcome.status == "crashed":
        evidence = {"log": list(outcome.log[-5:]), "nodes": [node.name for node in outcome.culprit]}
        message = outcome.message + _on(outcome)
        yield Found(kind=SubjectKind.MODEL, name="model", message=message, evidence=evidence)


def _on(outcome: CompileOutcome) -> str:
    """The operators that do it alone, in words; "" where they were not found."""
    named = [f"{node.type} {node.name}" for node in outcome.culprit]
    return f"; {len(named)} operators do it alone: {listed(named, most=8)}" if named else ""


@RULES.rule(
    "ORT113",
    "compiler-timed-out",
    "error",
    what="The compiler did not finish within the time limit.",
    why="Finalizing a large graph can take minutes in one mode and seconds in another.",
    fix="Try --finalization-mode 3 or 1; another mode makes another graph, whose numbers are checked again.",
    sources=[_LAB],
)
def check_timed_out(outcome: CompileOutcome) -> Iterator[Found]:
    """A compilation that was ended."""
    if outcome.status == "timed-out":
        evidence = {"nodes": [node.name for node in outcome.culprit]} if outcome.culprit else {}
        message = f"the compiler was ended: {outcome.message}{_on(outcome)}"
        yield Found(kind=SubjectKind.MODEL, name="model", message=message, evidence=evidence)


@RULES.rule(
    "ORT114",
    "runs-on-cpu-too",
    "warning",
    what="Some nodes of the compiled model stay on the CPU.",
    why="Every border copies and converts tensors.",
    fix="Leave --option session.disable_cpu_ep_fallback=0 out to see why each node was refused.",
    sources=[_LAB],
)
def check_cpu_nodes(outcome: CompileOutcome) -> Iterator[Found]:
    """A mixed model that was allowed."""
    if outcome.ok and outcome.cpu_nodes:
        names = [node.name for node in outcome.cpu_nodes]
        yield Found(
            kind=SubjectKind.MODEL,
            name="model",
            message=f"{len(names)} nodes stay on the CPU: {listed(names, most=6)}",
            evidence={"nodes": names},
        )
