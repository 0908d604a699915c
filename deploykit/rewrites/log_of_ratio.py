"""Writes Log(Div(a, b)) as Log(a) - Log(b): ranges of +-12 in place of 1e5.

Equal where neither operand can be negative; whether the quotient over- or underflowed before, the proof on data sees.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from onnx import helper

from deploykit.encodings.place import keep_entries
from deploykit.model.graph import GraphCopy, view_of
from deploykit.model.nodes import label
from deploykit.model.ranges import ANYTHING, LateBounds, graph_bounds
from deploykit.rewrites.contract import MatchResult, Refusal, Rewritten, Site, Transform

if TYPE_CHECKING:
    from onnx import ModelProto, NodeProto

    from deploykit.encodings.values import EncodingSet

__all__ = ["transform"]


def match(model: ModelProto) -> MatchResult:
    """Every Log of a Div whose operands cannot be negative, or why not."""
    graph = view_of(model)
    bounds = LateBounds(graph)
    sites, refusals = [], []
    for log in graph.nodes:
        ratio = graph.maker(log.input[0], "Div") if log.op_type == "Log" else None
        if ratio is None:
            continue
        nodes = (label(ratio), label(log))
        negative = [name for name in ratio.input if not bounds.get(name, ANYTHING)[0] >= 0]
        if graph.only_reader(ratio.output[0]) is None:
            refusals.append(Refusal(nodes=nodes, reason=f"{ratio.output[0]} is used elsewhere too"))
        elif negative:
            reason = f"{negative[0]} may be negative: the log of the ratio of two negative numbers exists"
            refusals.append(Refusal(nodes=nodes, reason=reason))
        else:
            why = "both operands are never negative"
            sites.append(Site(nodes=nodes, tensors=(ratio.output[0], log.output[0]), why=why, data=log.output[0]))
    reason = "" if sites else "no Log of a Div of two operands that are never negative"
    return MatchResult(sites=tuple(sites), refusals=tuple(refusals), reason=reason)


def apply(model: ModelProto, encodings: EncodingSet | None, matched: MatchResult) -> Rewritten:
    """Rewrite every site; the Log's output keeps its name and its values."""
    graph = GraphCopy(model)
    old, new, made = [], {}, []
    for site in matched.sites:
        log = graph.makers[site.data]
        ratio = graph.makers[log.input[0]]
        nodes = _difference(graph, ratio, log)
        new[graph.index_of(log)] = nodes
        old += [ratio, log]
        made += [*(node.output[0] for node in nodes[:2]), log.output[0]]
    graph.replace_nodes(old, new)
    bounds = graph_bounds(graph)
    return Rewritten(
        model=graph.model,
        encodings=keep_entries(encodings, graph),
        touched=frozenset(made),
        ranges={name: bounds[name] for name in made if all(math.isfinite(end) for end in bounds[name])},
        notes=tuple(f"{site.tensors[1]}: Log(a / b) is now Log(a) - Log(b)" for site in matched.sites),
    )


def _difference(graph: GraphCopy, ratio: NodeProto, log: NodeProto) -> list[NodeProto]:
    above, below = (graph.fresh(f"{log.output[0]}_{part}") for part in ("dividend", "divisor"))
    stem = label(log)
    return [
        helper.make_node("Log", [ratio.input[0]], [above], name=f"{stem}/dividend"),
        helper.make_node("Log", [ratio.input[1]], [below], name=f"{stem}/divisor"),
        helper.make_node("Sub", [above, below], [log.output[0]], name=f"{stem}/difference"),
    ]


transform = Transform(
    name="log-of-ratio",
    summary="Writes Log(a / b) as Log(a) - Log(b), so that the huge quotient never exists.",
    match=match,
    apply=apply,
    ulps=64.0,
)
