"""What the conversions of a cut model say together: findings, types, and why the plan is what it is. Pure values."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from deploykit.backend.plans import Precision
from deploykit.findings import Finding
from deploykit_qnn_htp.draft import FLOAT_KINDS, Draft
from deploykit_qnn_htp.parts import Part, in_contexts, precision_of

__all__ = ["explanation", "joined_precision", "segment_findings"]


def segment_findings(parts: Sequence[Part]) -> tuple[Finding, ...]:
    """What is found in the segments; QNN127 is judged on the uncut model (``crossing_findings``)."""
    return tuple(finding for part in parts for finding in part.findings if finding.code != "QNN127")


def joined_precision(whole: Draft, parts: Iterable[Part]) -> Precision:
    """The types of the whole: as the encodings mean it, against as the segment that makes a tensor will have it."""
    intended = precision_of(whole).intended
    expected: dict[str, str] = {}
    for part in parts:
        types = {**part.precision.expected, **_stored_floats(part.draft, intended)}
        expected = {**types, **expected}
    return Precision(intended=intended, expected=expected)


def _stored_floats(draft: Draft, intended: Mapping[str, str]) -> dict[str, str]:
    """Weights that are converted in float although they have entries."""
    tensors = draft.situation.facts.tensors
    kind = FLOAT_KINDS.get(draft.intent)
    return {} if kind is None else {name: kind for name in tensors if tensors[name].is_weight and name in intended}


def explanation(parts: Sequence[Part]) -> str:
    """Why the plan is what it is, with the route of every segment."""
    contexts = in_contexts(parts)
    if parts[0].context:
        graphs, one = len(contexts[0]), parts[0].candidate.route
        cut = f"every graph is cut into {len(contexts)} parts" if len(contexts) > 1 else "nothing is cut"
        each = f"the {graphs} graphs of a context share one copy of their weights" if graphs > 1 else "a context each"
        return f"{cut}, {each}; {one.why}"
    routes = ", ".join(f"{part.segment} by {part.candidate.route.id}" for part in parts)
    return (
        f"the graph is cut at precision borders into {len(parts)} segments that are wholly integer or wholly float, "
        f"each an ordinary conversion with a context binary of its own: {routes}"
    )
