"""Widens the encoding of a 16-bit Log output whose range is below 4; the graph stays as it is.

A kernel for such outputs was seen to return the lowest value of the range everywhere (docs/rewrites.md).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from deploykit.encodings.values import Affine
from deploykit.model.graph import view_of
from deploykit.model.nodes import label
from deploykit.model.operators import is_standard
from deploykit.rewrites.contract import MatchResult, Rewritten, Site, Transform

if TYPE_CHECKING:
    from onnx import ModelProto

    from deploykit.encodings.values import EncodingSet

__all__ = ["LEAST_RANGE", "narrow_logs", "transform"]

LEAST_RANGE = 4.0
"""The smallest range (highest minus lowest real value) that was seen to work."""

_WIDENED = 4.01


def match(model: ModelProto) -> MatchResult:
    """Every Log; only the encodings, which ``apply`` sees, tell whether its range is too narrow."""
    graph = view_of(model)
    logs = [node for node in graph.nodes if node.op_type == "Log" and is_standard(node)]
    sites = (Site(nodes=(label(n),), tensors=(n.output[0],), why="a Log", data=n.output[0]) for n in logs)
    return MatchResult(sites=tuple(sites), reason="" if logs else "the graph has no Log")


def narrow_logs(encodings: EncodingSet | None, matched: MatchResult) -> dict[str, tuple[float, float]]:
    """The matched tensors with a 16-bit entry that is too narrow, with the range they should have."""
    found = {}
    for site in matched.sites:
        entry = encodings.get(site.data) if encodings is not None else None
        value = entry.value if entry is not None else None
        if isinstance(value, Affine) and value.bits == 16:
            low, high = float(value.minimum.min()), float(value.maximum.max())
            if high - low < LEAST_RANGE:
                found[site.data] = (high - _WIDENED, high)
    return found


def apply(model: ModelProto, encodings: EncodingSet | None, matched: MatchResult) -> Rewritten:
    """Ask for wider entries, and for the same on whatever only copies the Log's output and shares its entry."""
    wider = narrow_logs(encodings, matched)
    for name, ends in list(wider.items()):
        wider.update(dict.fromkeys(_copies(model, encodings, name), ends))
    notes = tuple(f"{name}: the range is now [{low:.6g}, {high:.6g}]" for name, (low, high) in wider.items())
    return Rewritten(model=model, encodings=encodings, touched=frozenset(wider), ranges=wider, notes=notes)


def _copies(model: ModelProto, encodings: EncodingSet | None, name: str) -> list[str]:
    graph = view_of(model)
    original = encodings.get(name) if encodings is not None else None
    found, todo = [], [name]
    while todo and encodings is not None and original is not None:
        for node in graph.readers(todo.pop()):
            entry = encodings.get(node.output[0]) if node.output else None
            if entry is not None and _same_grid(entry.value, original.value):
                found.append(entry.name)
                todo.append(entry.name)
    return found


def _same_grid(a: object, b: object) -> bool:
    if not isinstance(a, Affine) or not isinstance(b, Affine) or a.dtype != b.dtype:
        return False
    return a.scale.tobytes() == b.scale.tobytes() and a.zero_point.tobytes() == b.zero_point.tobytes()


transform = Transform(
    name="log-range",
    summary="Widens 16-bit encodings of Log outputs to a range of at least 4.",
    match=match,
    apply=apply,
    ulps=0.0,
)
