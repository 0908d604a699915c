"""Rules about how a way to deploy was chosen, codes DK201 to DK249, and the list of all registries of the core."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from deploykit.deciding.choice import Chosen
from deploykit.findings import Severity, SubjectKind
from deploykit.graph import rules as graph_rules
from deploykit.numerics import rules as comparison_rules
from deploykit.numerics.samples import guidelines
from deploykit.quantization import rules as encoding_rules
from deploykit.rules import Found, Registry

__all__ = ["CORE_REGISTRIES", "RULES"]

_POOR_DB = 20.0

RULES: Registry[Chosen] = Registry("choice")


def _name(chosen: Chosen) -> str:
    return chosen.situation.request.model.name


@RULES.rule(
    "DK201",
    "graph-rewritten",
    "info",
    what="The packaged model is a rewritten form of the one that was given.",
    why="Huge ranges are often artefacts of how the maths is written; rewritten, integers hold them. Each rewrite was "
    "proven equal in float32 by running both on the samples.",
    fix="compare on your own data (--calibration), or keep the graph with --no-rewrite NAME",
    sources=("ONNX Runtime, run while packaging",),
)
def check_rewritten(chosen: Chosen) -> Iterator[Found]:
    """Which rewrites, and what they brought."""
    if chosen.prepared is None or not chosen.situation.rewritten:
        return
    way = chosen.prepared.way
    data = "the calibration data" if chosen.situation.request.calibration else "random inputs"
    yield Found(
        kind=SubjectKind.MODEL,
        name=_name(chosen),
        message=f"rewritten by {', '.join(way.rewrites) or 'new encodings'}: simulated SQNR {way.overall_db:.1f} dB, "
        f"{chosen.reference_db:.1f} dB as it was given, on {data}",
        evidence={"rewrites": list(way.rewrites), "sqnr_db": way.to_json()["sqnr_db"]},
    )


@RULES.rule(
    "DK202",
    "host-tail",
    "warning",
    what="The end of the model was cut off and runs on the host.",
    why="Outputs of unlike ranges share one grid when they are joined; on the host they keep their own precision.",
    fix="run model/tail.onnx after the device (the run scripts do), or keep it whole with --no-rewrite cut-tail",
    sources=("ONNX Runtime, run while packaging",),
)
def check_tail(chosen: Chosen) -> Iterator[Found]:
    """Said whenever there is a tail."""
    if chosen.situation.tail is not None:
        yield Found(kind=SubjectKind.MODEL, name=_name(chosen), message="model/tail.onnx must run after the device")


@RULES.rule(
    "DK203",
    "not-simulated",
    "warning",
    what="A precision mix that could not be simulated.",
    why="Without numbers no way is better than another; the plan takes the one that changes least.",
    fix="give --calibration data that fits the inputs, or simulate on a larger machine",
    sources=("this run",),
)
def check_simulated(chosen: Chosen) -> Iterator[Found]:
    """The reason why not; an error where segments were insisted on, for only what was simulated is cut."""
    if not chosen.skipped:
        return
    insisted = chosen.situation.request.mixed == "segments"
    yield Found(
        kind=SubjectKind.MODEL,
        name=_name(chosen),
        severity=Severity.ERROR if insisted else None,
        message=f"not simulated{' and therefore not cut into segments' if insisted else ''}: {chosen.skipped}",
    )


@RULES.rule(
    "DK204",
    "mixed-refused",
    "error",
    what="Float16 tensors among integer ones, with --mixed refuse or a kind of mix that is not offered.",
    why="No way that was asked for is available for this target.",
    fix="allow another way: --mixed auto",
    sources=("the request",),
)
def check_refused(chosen: Chosen) -> Iterator[Found]:
    """No way is left."""
    if chosen.choice is not None and chosen.choice.winner is None:
        verdicts = "; ".join(f"{name}: {why}" for name, why in chosen.choice.verdicts.items())
        yield Found(kind=SubjectKind.MODEL, name=_name(chosen), message=f"no way to deploy is left: {verdicts}")


@RULES.rule(
    "DK205",
    "poor-simulation",
    "warning",
    what="The way that was chosen loses much of the signal in simulation.",
    why="Below 20 dB the error is a tenth of the signal and more; detectors and language models rarely survive that.",
    fix="deploykit simulate shows which outputs suffer; use wider activations, or calibrate on real data",
    sources=("simulated while packaging",),
)
def check_quality(chosen: Chosen) -> Iterator[Found]:
    """The overall simulated SQNR."""
    if chosen.prepared is not None and chosen.prepared.way.overall_db < _POOR_DB:
        yield Found(
            kind=SubjectKind.MODEL,
            name=_name(chosen),
            message=f"simulated SQNR {chosen.prepared.way.overall_db:.1f} dB",
        )


@RULES.rule(
    "DK206",
    "segments",
    "warning",
    what="The model is cut into segments that run one after the other.",
    why="Each segment is wholly integer or wholly float, so that no tool has to mix precisions inside one graph. Every "
    "tensor that crosses a border is written by one segment and read by the next.",
    fix="run the segments in order, as the run scripts do, or let the tools mix with --mixed fallback",
    sources=("ONNX Runtime, run while packaging",),
)
def check_segments(chosen: Chosen) -> Iterator[Found]:
    """How many, what crosses, and what runs in float only because of where the cuts are."""
    segments = chosen.situation.segments
    if not segments:
        return
    whole = {*chosen.situation.facts.inputs}
    crossing = sorted({name for segment in segments for name in segment.inputs} - whole)
    changed = [label for segment in segments for label in segment.changed]
    yield Found(
        kind=SubjectKind.MODEL,
        name=_name(chosen),
        message=f"{len(segments)} segments, chained by the run scripts; {len(crossing)} tensors cross between them, "
        f"{len(changed)} operators run in float16 though they have integer encodings",
        evidence={"segments": [segment.name for segment in segments], "crossing": crossing, "changed": changed},
    )


CORE_REGISTRIES: tuple[Registry[Any], ...] = (
    graph_rules.RULES,
    encoding_rules.RULES,
    guidelines.RULES,
    comparison_rules.RULES,
    RULES,
)
"""Every registry of the core, from the lowest room up; those of backends come from their ``registries()``."""
