"""Fuses a function that is written out in scalar steps into one operator, times a factor: the part all such share.

The form is not what counts: scalar steps are the function where they have its values. Which function, and which
operator computes it, is what each rewrite says.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from onnx import helper

from deploykit.encodings.place import keep_entries
from deploykit.encodings.values import Affine, EncodingSet
from deploykit.model.graph import GraphCopy, copy_of, view_of
from deploykit.model.nodes import changed_operators, label, opset_of, raise_opset
from deploykit.model.operators import is_standard
from deploykit.model.shape_inference import Shape, infer
from deploykit.rewrites.contract import MatchResult, NoMatchError, Refusal, Rewritten, Site
from deploykit.rewrites.scalar_functions import Floats, ScalarFunction, functions_through

if TYPE_CHECKING:
    from onnx import ModelProto, NodeProto

__all__ = ["POINTS", "Form", "WrittenOut", "apply_fusion", "match_fusion"]

POINTS: Floats = np.linspace(-6.0, 6.0, 241)
"""Where a function is looked at."""

_AT = 200
"""The index of a point, 4.0, where a gated function is far from zero."""

_TOLERANCE = 1e-5
"""Of values, relative to the factor: constants of six digits pass, an approximation of the same function does not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Form:
    """One way to write a function out: its ``values`` at the points, and the attributes that its operator then needs.

    ``since`` is the operator set that has the operator. ``elsewhere`` is the domain that has it before, "" for none.
    A near miss is a refusal only where the form is ``telling``: where hardly anything else looks like it.
    """

    values: Floats
    since: int
    elsewhere: str = ""
    attributes: Mapping[str, Any] = field(default_factory=dict)
    telling: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenOut:
    """A function: the operator for it, and its forms by the operator that each is found by (``Erf``)."""

    op_type: str
    forms: Mapping[str, Form]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Found:
    """``output`` is ``factor`` times the function of ``source``; ``inner`` are the tensors that vanish."""

    source: str
    output: str
    inner: tuple[str, ...]
    factor: float
    form: Form
    name: str


def match_fusion(model: ModelProto, wanted: WrittenOut) -> MatchResult:
    """Every place where the function is written out, and where it nearly is."""
    graph = view_of(model)
    anchors = [node for node in graph.nodes if node.op_type in wanted.forms and is_standard(node)]
    if not anchors:
        return MatchResult(reason=f"the graph has no {' and no '.join(wanted.forms)}")
    shapes = {name: known[1] for name, known in infer(model).types.items()}
    sites, refusals = list[Site](), list[Refusal]()
    for node in anchors:
        form = wanted.forms[node.op_type]
        try:
            found = _found(graph, node, wanted, shapes)
        except NoMatchError as error:
            refusals += [Refusal(nodes=(label(node),), reason=error.reason)] if form.telling else []
            continue
        if cannot := _cannot_raise(model, form):
            refusals.append(Refusal(nodes=(label(node),), reason=cannot))
            continue
        times = "" if found.factor == 1.0 else f"{found.factor:g} times "
        why = f"{found.output} is {times}the {wanted.op_type} of {found.source}"
        sites.append(Site(nodes=(label(node),), tensors=found.inner, why=why, data=found))
    reason = "" if sites or refusals else f"no {' or '.join(wanted.forms)} belongs to a {wanted.op_type}"
    return MatchResult(sites=tuple(sites), refusals=tuple(refusals), reason=reason)


def _cannot_raise(model: ModelProto, form: Form) -> str:
    """Why the operator cannot be had in the model's operator set or a newer one."""
    if form.elsewhere or opset_of(model) >= form.since:
        return ""
    changed = changed_operators(model, form.since)
    return f"it needs operator set {form.since}, until which {', '.join(changed)} changed" if changed else ""


def _found(graph: GraphCopy, node: NodeProto, wanted: WrittenOut, shapes: Mapping[str, Shape]) -> _Found:
    """The function around a node: without a factor if there is one, else the first that has one."""
    form, named = wanted.forms[node.op_type], label(node).removesuffix(f"/{node.op_type}")
    found: list[_Found] = []
    tried = False
    for function in functions_through(graph, node):
        tried = True
        factor = _factor(function.values(graph, POINTS), form.values)
        if factor is None or not _keeps_shape(graph, function, shapes):
            continue
        made = _Found(
            source=function.source,
            output=function.output,
            inner=function.inner,
            factor=factor,
            form=form,
            name=f"{named}/{wanted.op_type}",
        )
        if factor == 1.0:
            return made
        found.append(made)
    if not found:
        alone = "its result goes into no function of one tensor that is read nowhere else"
        close = f"nothing around it has the values of a {wanted.op_type}, whatever the factor"
        raise NoMatchError(close if tried else alone)
    return found[0]


def _factor(values: Floats, wanted: Floats) -> float | None:
    """The positive number that ``wanted`` has to be multiplied by, None where there is none."""
    factor = float(values[_AT] / wanted[_AT])
    if not np.isfinite(values).all() or factor <= 0.0 or np.abs(values - factor * wanted).max() > _TOLERANCE * factor:
        return None
    return 1.0 if abs(factor - 1.0) <= _TOLERANCE else float(np.float32(factor))


def _keeps_shape(graph: GraphCopy, function: ScalarFunction, shapes: Mapping[str, Shape]) -> bool:
    """True unless a scalar stored with more dimensions than x has may add some to the result."""
    scalars = [graph.stored.get(graph.origin(name)) for node in function.nodes for name in node.input]
    flat = all(tensor is None or len(tensor.dims) <= 1 for tensor in scalars)
    made = shapes.get(function.output)
    return flat or (made is not None and made == shapes.get(function.source))


def apply_fusion(
    model: ModelProto, encodings: EncodingSet | None, matched: MatchResult, wanted: WrittenOut
) -> Rewritten:
    """One operator for each site, and a product where the function has a factor."""
    copy = copy_of(model)
    # The operator of another domain stands in only where no site needs a newer operator set anyway.
    least = max((site.data.form.since for site in matched.sites if not site.data.form.elsewhere), default=0)
    graph = GraphCopy(raise_opset(copy, least) if least else copy, copy=False)
    gone: list[NodeProto] = []
    made: dict[int, list[NodeProto]] = {}
    touched: set[str] = set()
    for site in matched.sites:
        found: _Found = site.data
        last = graph.makers[found.output]
        gone += [last, *(graph.makers[name] for name in found.inner)]
        nodes = _nodes(graph, found, wanted.op_type)
        made[graph.index_of(last)] = nodes
        if len(nodes) > 1:
            plain, factor = nodes[1].input
            touched |= {plain, factor}
            encodings = _scaled(encodings, found, plain)
    graph.replace_nodes(gone, made)
    kept = keep_entries(encodings, graph)
    known = frozenset() if kept is None else frozenset(kept.entries)
    note = f"{len(matched.sites)} times what is written out became one {wanted.op_type}"
    return Rewritten(model=graph.model, encodings=kept, touched=frozenset(touched) - known, notes=(note,))


def _nodes(graph: GraphCopy, found: _Found, op_type: str) -> list[NodeProto]:
    """The operator, and the product with the factor where there is one."""

    domain = "" if graph.opset >= found.form.since else found.form.elsewhere
    if domain and not opset_of(graph.model, domain):
        graph.model.opset_import.add(domain=domain, version=1)
    plain = found.output if found.factor == 1.0 else graph.fresh(f"{found.output}_plain")
    given = dict(found.form.attributes)
    node = helper.make_node(op_type, [found.source], [plain], name=found.name, domain=domain, **given)
    if found.factor == 1.0:
        return [node]
    factor = graph.store(f"{found.output}_factor", np.asarray(found.factor, np.float32))
    return [node, helper.make_node("Mul", [plain, factor], [found.output], name=f"{found.name}_factor")]


def _scaled(encodings: EncodingSet | None, found: _Found, plain: str) -> EncodingSet | None:
    """The result's grid for the function before its factor: the same integers, each standing for less or more."""
    entry = None if encodings is None else encodings.get(found.output)
    if encodings is None or entry is None or not isinstance(entry.value, Affine):
        return encodings
    value = replace(entry.value, scale=entry.value.scale / found.factor)
    return replace(encodings, entries={**encodings.entries, plain: replace(entry, name=plain, value=value)})
