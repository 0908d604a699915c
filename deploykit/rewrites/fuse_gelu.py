"""Fuses the exact GELU that exporters write with Erf into one Gelu operator.

It matches ``0.5 * x * (1 + erf(x / sqrt(2)))`` in every order of its factors, and nothing that is only close to it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from onnx import helper

from deploykit.graph.graph_copy import GraphCopy
from deploykit.graph.nodes import label
from deploykit.graph.opset import opset_of
from deploykit.quantization.entries import keep_entries
from deploykit.rewrites.contract import MatchResult, NoMatchError, Refusal, Rewritten, Site, Transform

if TYPE_CHECKING:
    from onnx import ModelProto, NodeProto

    from deploykit.encodings.values import EncodingSet

__all__ = ["transform"]

_TOLERANCE = 1e-5


@dataclass(frozen=True, slots=True)
class _Gelu:
    source: str
    output: str
    erf: str
    inner: tuple[str, ...]


def _factors(graph: GraphCopy, name: str) -> list[str]:
    """The factors of a product, through any number of Mul nodes; the name itself when it is none."""
    node = graph.maker(name, "Mul")
    return [name] if node is None else [factor for source in node.input for factor in _factors(graph, source)]


def _only_reader(graph: GraphCopy, name: str) -> NodeProto:
    found = graph.only_reader(name)
    if found is None:
        raise NoMatchError(f"{name} is read elsewhere too")
    return found


def _match(model: ModelProto) -> MatchResult:
    graph = GraphCopy(model, copy=False)
    sites, refusals = list[Site](), list[Refusal]()
    for node in graph.nodes:
        if node.op_type != "Erf":
            continue
        try:
            found = _gelu(graph, node)
        except NoMatchError as error:
            refusals.append(Refusal(nodes=(label(node),), reason=str(error)))
            continue
        why = f"0.5 * x * (1 + erf(x / sqrt(2))) of {found.source}"
        sites.append(Site(nodes=(label(node),), tensors=found.inner, why=why, data=found))
    reason = "" if sites or refusals else "the graph has no Erf"
    return MatchResult(sites=tuple(sites), refusals=tuple(refusals), reason=reason)


def _gelu(graph: GraphCopy, erf: NodeProto) -> _Gelu:
    source, inner = _argument(graph, erf.input[0])
    plus_one = _only_reader(graph, erf.output[0])
    if plus_one.op_type != "Add" or not any(_near(graph.scalar(name), 1.0) for name in plus_one.input):
        raise NoMatchError("1 is not added to its result")
    last, seen = plus_one, [*inner, erf.output[0], plus_one.output[0]]
    while True:
        last = _only_reader(graph, last.output[0])
        if last.op_type != "Mul":
            raise NoMatchError("its result is not multiplied by x and by 0.5")
        factors = sorted(_factors(graph, last.output[0]))
        if _is_gelu(graph, factors, source, plus_one.output[0]):
            break
        seen.append(last.output[0])
        if len(factors) > 3:
            raise NoMatchError("the product has other factors")
    inner_products = [name for name in last.input if name not in (source, plus_one.output[0]) and name not in seen]
    seen += [name for name in inner_products if name in graph.makers and name not in graph.stored]
    return _Gelu(source=source, output=last.output[0], erf=label(erf), inner=tuple(dict.fromkeys(seen)))


def _argument(graph: GraphCopy, name: str) -> tuple[str, list[str]]:
    """x and the tensors on the way, where ``name`` is x / sqrt(2)."""
    node = graph.maker(name)
    if node is not None and node.op_type == "Div" and _near(graph.scalar(node.input[1]), 2**0.5):
        return node.input[0], [name]
    if node is not None and node.op_type == "Mul":
        for i in (0, 1):
            if _near(graph.scalar(node.input[i]), 0.5**0.5):
                return node.input[1 - i], [name]
    raise NoMatchError("its argument is not x / sqrt(2)")


def _is_gelu(graph: GraphCopy, factors: list[str], source: str, plus_one: str) -> bool:
    rest = [name for name in factors if name not in (source, plus_one)]
    return len(factors) == 3 and {source, plus_one} <= set(factors) and _near(graph.scalar(rest[0]), 0.5)


def _near(value: float | None, wanted: float) -> bool:
    return value is not None and abs(value - wanted) <= _TOLERANCE * wanted


def _apply(model: ModelProto, encodings: EncodingSet | None, found: MatchResult) -> Rewritten:
    graph = GraphCopy(model)
    domain = "" if graph.opset >= 20 else "com.microsoft"
    if domain and not opset_of(graph.model, domain):
        graph.model.opset_import.add(domain=domain, version=1)
    gone: list[NodeProto] = []
    made: dict[int, list[NodeProto]] = {}
    for site in found.sites:
        gelu: _Gelu = site.data
        last = graph.makers[gelu.output]
        gone += [last, *(graph.makers[name] for name in gelu.inner)]
        name = gelu.erf.removesuffix("/Erf") + "/Gelu"
        node = helper.make_node("Gelu", [gelu.source], [gelu.output], name=name, domain=domain)
        made[graph.index_of(last)] = [node]
    graph.replace_nodes(gone, made)
    return Rewritten(model=graph.model, encodings=keep_entries(encodings, graph))


transform = Transform(
    name="fuse-gelu",
    summary="Fuse the exact GELU written with Erf into one Gelu operator.",
    match=_match,
    apply=_apply,
    ulps=16.0,
)
