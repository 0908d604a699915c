"""Writes the inverse sigmoid of a Sigmoid as one Clip of the Sigmoid's own input.

The chain Log(Clip(s, eps) / Clip(1 - s, eps)) with s = Sigmoid(u) gives u back, cut at +-log(eps). In float32 the
chain is the less exact of the two: near s = 1 it loses all but a few digits of 1 - s.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from onnx import helper

from deploykit.encodings.place import keep_entries
from deploykit.model.graph import GraphCopy, view_of
from deploykit.model.nodes import label
from deploykit.model.ranges import clip_bounds
from deploykit.rewrites.contract import MatchResult, NoMatchError, Refusal, Rewritten, Site, Transform

if TYPE_CHECKING:
    from onnx import ModelProto, NodeProto

    from deploykit.encodings.values import EncodingSet

__all__ = ["transform"]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Chain:
    """One inverse sigmoid: its last node's output, the Sigmoid's input, and the two cuts."""

    output: str
    logit: str
    low: float
    high: float
    nodes: tuple[str, ...]


def match(model: ModelProto) -> MatchResult:
    """Every inverse sigmoid over a Sigmoid, or what is missing where a Log of a ratio of clipped values ends one."""
    graph = view_of(model)
    sites, refusals = [], []
    for node in graph.nodes:
        pair = _operands(graph, node)
        if pair is None:
            continue
        try:
            chain = _chain(graph, node, *pair)
        except NoMatchError as why:
            refusals.append(Refusal(nodes=(label(node),), reason=str(why)))
            continue
        why_ = f"it undoes the Sigmoid of {chain.logit}"
        sites.append(Site(nodes=chain.nodes, tensors=(chain.logit, chain.output), why=why_, data=chain))
    reason = "" if sites else "no inverse sigmoid over a Sigmoid"
    return MatchResult(sites=tuple(sites), refusals=tuple(refusals), reason=reason)


def _operands(graph: GraphCopy, node: NodeProto) -> tuple[str, str] | None:
    """(p, n) of Log(p / n), or of Log(p) - Log(n) as log-of-ratio leaves it."""
    if node.op_type == "Log":
        ratio = graph.maker(node.input[0], "Div")
        return (ratio.input[0], ratio.input[1]) if ratio is not None else None
    if node.op_type != "Sub":
        return None
    above, below = (graph.maker(name, "Log") for name in node.input)
    return (above.input[0], below.input[0]) if above is not None and below is not None else None


def _chain(graph: GraphCopy, last: NodeProto, above: str, below: str) -> _Chain:
    base, low = _clipped(graph, above)
    complement, high = _clipped(graph, below)
    sub = graph.maker(complement, "Sub")
    if sub is None or graph.scalar(sub.input[0]) != 1.0:
        raise NoMatchError(f"{complement} is not 1 minus something")
    if sub.input[1] != base:
        raise NoMatchError(f"the ratio is of {base} and of 1 - {sub.input[1]}: not the same tensor")
    sigmoid = _sigmoid(graph, base)
    nodes = tuple(label(node) for node in (sigmoid, sub, last))
    return _Chain(output=last.output[0], logit=sigmoid.input[0], low=math.log(low), high=-math.log(high), nodes=nodes)


def _clipped(graph: GraphCopy, name: str) -> tuple[str, float]:
    """What a tensor is a Clip of, and the Clip's lower bound, which must lie strictly between 0 and 1/2."""
    clip = graph.maker(name, "Clip")
    if clip is None:
        raise NoMatchError(f"{name} is not clipped away from zero")
    floor, ceiling = clip_bounds(graph, clip)
    if not 0 < floor < 0.5 or ceiling < 1:
        raise NoMatchError(f"{name} is clipped to [{floor:g}, {ceiling:g}], not to [eps, 1]")
    return clip.input[0], floor


def _sigmoid(graph: GraphCopy, name: str) -> NodeProto:
    """The Sigmoid behind a tensor, through Identity and Clips that change nothing of 0..1."""
    while True:
        node = graph.maker(name)
        if node is not None and node.op_type == "Sigmoid":
            return node
        idle = node is not None and (node.op_type == "Identity" or _is_idle_clip(graph, node))
        if node is None or not idle:
            raise NoMatchError(f"{name} is not a Sigmoid's output")
        name = node.input[0]


def _is_idle_clip(graph: GraphCopy, node: NodeProto) -> bool:
    if node.op_type != "Clip":
        return False
    floor, ceiling = clip_bounds(graph, node)
    return floor <= 0 and ceiling >= 1


def apply(model: ModelProto, encodings: EncodingSet | None, matched: MatchResult) -> Rewritten:
    """Rewrite every site; the chain's last output keeps its name and lies in [log(eps), -log(eps)]."""
    graph = GraphCopy(model)
    old, new = [], {}
    for site in matched.sites:
        last = graph.makers[site.data.output]
        new[graph.index_of(last)] = [_clip(graph, site.data, last)]
        old.append(last)
    graph.replace_nodes(old, new)
    chains = [site.data for site in matched.sites]
    return Rewritten(
        model=graph.model,
        encodings=keep_entries(encodings, graph),
        touched=frozenset(chain.output for chain in chains),
        ranges={chain.output: (chain.low, chain.high) for chain in chains},
        notes=tuple(f"{c.output}: now {c.logit} clipped to [{c.low:.6g}, {c.high:.6g}]" for c in chains),
    )


def _clip(graph: GraphCopy, chain: _Chain, last: NodeProto) -> NodeProto:
    name, output = f"{label(last)}/logit", [chain.output]
    if graph.opset < 11:
        return helper.make_node("Clip", [chain.logit], output, name=name, min=chain.low, max=chain.high)
    ends = [
        graph.store(f"{chain.output}_{end}", np.asarray(value, dtype=np.float32))
        for end, value in (("lowest", chain.low), ("highest", chain.high))
    ]
    return helper.make_node("Clip", [chain.logit, *ends], output, name=name)


transform = Transform(
    name="logit-of-sigmoid",
    summary="Writes the inverse sigmoid of a Sigmoid as a Clip of the Sigmoid's input.",
    match=match,
    apply=apply,
    ulps=64.0,
)
