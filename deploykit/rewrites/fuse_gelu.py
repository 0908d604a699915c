"""Fuses the exact GELU that exporters write with Erf into one Gelu operator.

It matches ``0.5 * x * (1 + erf(x / sqrt(2)))`` in every order of its factors, and nothing that is only close to it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from deploykit.encodings.values import EncodingSet
from deploykit.graph.editing import (
    constant_values,
    consumers_of,
    drop_unused_constants,
    label,
    opset_of,
    producers_of,
    read_elsewhere,
    set_nodes,
    stored_tensors,
    usable_copy,
)
from deploykit.rewrites.contract import MatchResult, Refusal, Rewritten, Site, Transform

if TYPE_CHECKING:
    from onnx import GraphProto, ModelProto, NodeProto, TensorProto

__all__ = ["transform"]

_TOLERANCE = 1e-5


@dataclass(frozen=True, slots=True)
class _Gelu:
    source: str
    output: str
    erf: str
    inner: tuple[str, ...]


class _NoGeluError(Exception):
    """Looks like a GELU, is none; the text says why."""


@dataclass(slots=True, kw_only=True)
class _Reader:
    stored: dict[str, TensorProto]
    producers: dict[str, NodeProto]
    consumers: dict[str, list[tuple[NodeProto, int]]]
    outputs: set[str]

    def scalar(self, name: str) -> float | None:
        tensor = self.stored.get(name)
        if tensor is None:
            return None
        values = constant_values(tensor)
        return float(values.reshape(-1)[0]) if values.size == 1 else None

    def times(self, name: str) -> list[str]:
        """The factors of a product, through any number of Mul nodes; the name itself when it is none."""
        node = self.producers.get(name)
        if node is None or node.op_type != "Mul":
            return [name]
        return [factor for source in node.input for factor in self.times(source)]

    def only_reader(self, name: str) -> NodeProto:
        found = {id(node): node for node, _ in self.consumers.get(name, ())}
        if name in self.outputs or len(found) != 1:
            raise _NoGeluError(f"{name} is read elsewhere too")
        return next(iter(found.values()))


def _reader(graph: GraphProto) -> _Reader:
    return _Reader(
        stored=stored_tensors(graph),
        producers=producers_of(graph),
        consumers=consumers_of(graph),
        outputs=read_elsewhere(graph),
    )


def _match(model: ModelProto) -> MatchResult:
    reader = _reader(model.graph)
    sites, refusals = list[Site](), list[Refusal]()
    for node in model.graph.node:
        if node.op_type != "Erf":
            continue
        try:
            found = _gelu(reader, node)
        except _NoGeluError as error:
            refusals.append(Refusal(nodes=(label(node),), reason=str(error)))
            continue
        why = f"0.5 * x * (1 + erf(x / sqrt(2))) of {found.source}"
        sites.append(Site(nodes=(label(node),), tensors=found.inner, why=why, data=found))
    reason = "" if sites or refusals else "the graph has no Erf"
    return MatchResult(sites=tuple(sites), refusals=tuple(refusals), reason=reason)


def _gelu(reader: _Reader, erf: NodeProto) -> _Gelu:
    source, inner = _argument(reader, erf.input[0])
    plus_one = reader.only_reader(erf.output[0])
    if plus_one.op_type != "Add" or not any(_near(reader.scalar(name), 1.0) for name in plus_one.input):
        raise _NoGeluError("1 is not added to its result")
    last, seen = plus_one, [*inner, erf.output[0], plus_one.output[0]]
    while True:
        last = reader.only_reader(last.output[0])
        if last.op_type != "Mul":
            raise _NoGeluError("its result is not multiplied by x and by 0.5")
        factors = sorted(reader.times(last.output[0]))
        if _is_gelu(reader, factors, source, plus_one.output[0]):
            break
        seen.append(last.output[0])
        if len(factors) > 3:
            raise _NoGeluError("the product has other factors")
    inner_products = [name for name in last.input if name not in (source, plus_one.output[0]) and name not in seen]
    seen += [name for name in inner_products if name in reader.producers and name not in reader.stored]
    return _Gelu(source=source, output=last.output[0], erf=label(erf), inner=tuple(dict.fromkeys(seen)))


def _argument(reader: _Reader, name: str) -> tuple[str, list[str]]:
    """x and the tensors on the way, where ``name`` is x / sqrt(2)."""
    node = reader.producers.get(name)
    if node is not None and node.op_type == "Div" and _near(reader.scalar(node.input[1]), 2**0.5):
        return node.input[0], [name]
    if node is not None and node.op_type == "Mul":
        for i in (0, 1):
            if _near(reader.scalar(node.input[i]), 0.5**0.5):
                return node.input[1 - i], [name]
    raise _NoGeluError("its argument is not x / sqrt(2)")


def _is_gelu(reader: _Reader, factors: list[str], source: str, plus_one: str) -> bool:
    rest = [name for name in factors if name not in (source, plus_one)]
    return len(factors) == 3 and {source, plus_one} <= set(factors) and _near(reader.scalar(rest[0]), 0.5)


def _near(value: float | None, wanted: float) -> bool:
    return value is not None and abs(value - wanted) <= _TOLERANCE * wanted


def _apply(model: ModelProto, encodings: EncodingSet | None, found: MatchResult) -> Rewritten:
    from onnx import helper

    copy = usable_copy(model)
    domain = "" if opset_of(copy) >= 20 else "com.microsoft"
    if domain and not opset_of(copy, domain):
        copy.opset_import.add(domain=domain, version=1)
    gone, constants = set[str](), list(stored_tensors(copy.graph))
    made: dict[str, NodeProto] = {}
    for site in found.sites:
        gelu: _Gelu = site.data
        gone |= {*gelu.inner, gelu.output}
        made[gelu.output] = helper.make_node(
            "Gelu", [gelu.source], [gelu.output], name=gelu.erf.removesuffix("/Erf") + "/Gelu", domain=domain
        )
    nodes = [made.get(node.output[0], node) for node in copy.graph.node if node.output[0] not in gone - set(made)]
    set_nodes(copy.graph, nodes)
    drop_unused_constants(copy.graph, constants)
    vanished = gone - set(made)
    if encodings is not None:
        alive = {name for node in copy.graph.node for name in (*node.input, *node.output)}
        kept = {name: entry for name, entry in encodings.entries.items() if name in alive or name not in constants}
        kept = {name: entry for name, entry in kept.items() if name not in vanished}
        encodings = replace(encodings, entries=kept, float_tensors=encodings.float_tensors - vanished)
    return Rewritten(model=copy, encodings=encodings)


transform = Transform(
    name="fuse-gelu",
    summary="Fuse the exact GELU written with Erf into one Gelu operator.",
    match=_match,
    apply=_apply,
    ulps=16.0,
)
