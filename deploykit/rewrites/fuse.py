"""Fuses a function that is written out in scalar steps into one operator, times a factor: GELU and HardSwish.

The form is not what counts: scalar steps are the function where they have its values at points. Norms are in
``fuse_norms``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from deploykit.encodings.values import Affine
from deploykit.model.graph import GraphCopy
from deploykit.model.nodes import attribute, changed_operators, label, opset_of
from deploykit.model.operators import is_standard
from deploykit.rewrites.contract import Match, ModelLook, NodeSteps, NoMatchError, rewrite

if TYPE_CHECKING:
    from onnx import NodeProto

__all__ = ["fuse_gelu", "fuse_hardswish"]

_Floats = npt.NDArray[np.float64]

# Where a function is looked at, and the index of 4.0, where a gated function is far from zero.
_POINTS: _Floats = np.linspace(-6.0, 6.0, 241)
_AT = 200
# Of values, relative to the factor: constants of six digits pass, an approximation of the same function does not.
_TOLERANCE = 1e-5
# Exporters write a GELU in at most eight steps.
_MOST_STEPS = 10

_erf = np.vectorize(math.erf, otypes=[np.float64])


def _clip(node: NodeProto, x: _Floats, low: _Floats | None = None, high: _Floats | None = None) -> _Floats:
    least = attribute(node, "min", -math.inf) if low is None else low
    most = attribute(node, "max", math.inf) if high is None else high
    return np.asarray(np.minimum(np.maximum(x, least), most))


# Operators that work element by element, by their ONNX definitions.
_STEPS: Mapping[str, Callable[..., Any]] = {
    "Add": lambda _, a, b: a + b,
    "Clip": _clip,
    "Div": lambda _, a, b: a / b,
    "Erf": lambda _, x: _erf(x),
    "HardSigmoid": lambda n, x: np.clip(attribute(n, "alpha", 0.2) * x + attribute(n, "beta", 0.5), 0.0, 1.0),
    "Mul": lambda _, a, b: a * b,
    "Neg": lambda _, x: -x,
    "Pow": lambda _, a, b: a**b,
    "Relu": lambda _, x: np.maximum(x, 0.0),
    "Sigmoid": lambda _, x: 1.0 / (1.0 + np.exp(-x)),
    "Sub": lambda _, a, b: a - b,
    "Tanh": lambda _, x: np.tanh(x),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class _ScalarFunction:
    """What a graph computes element by element from ``source`` and stored scalars; ``output`` is the result.

    ``nodes`` are in graph order; nothing outside of them reads what they make, the result apart.
    """

    source: str
    output: str
    nodes: tuple[NodeProto, ...]

    def factor(self, graph: GraphCopy, wanted: _Floats) -> float | None:
        """The positive number that ``wanted``, values at the points, is multiplied by; None where there is none."""
        known: dict[str, _Floats] = {self.source: _POINTS}
        with np.errstate(all="ignore"):
            for node in self.nodes:
                given = [known[n] if n in known else np.asarray(graph.scalar(n)) if n else None for n in node.input]
                known[node.output[0]] = np.asarray(_STEPS[node.op_type](node, *given), np.float64)
        values = known[self.output]
        factor = float(values[_AT] / wanted[_AT])
        if not np.isfinite(values).all() or factor <= 0.0:
            return None
        if np.abs(values - factor * wanted).max() > _TOLERANCE * factor:
            return None
        return 1.0 if abs(factor - 1.0) <= _TOLERANCE else float(np.float32(factor))

    def keeps_shape(self, look: ModelLook) -> bool:
        """True unless a scalar stored with more dimensions than x has may add some to the result."""
        scalars = [look.graph.stored.get(look.graph.origin(name)) for node in self.nodes for name in node.input]
        made = look.shape(self.output)
        flat = all(tensor is None or len(tensor.dims) <= 1 for tensor in scalars)
        return flat or (made is not None and made == look.shape(self.source))


def _functions_through(graph: GraphCopy, node: NodeProto) -> Iterator[_ScalarFunction]:
    """Every scalar function that ``node`` takes part in, results near the node first, then sources near it."""
    sources = [name for name in node.input if name and graph.scalar(name) is None]
    for name in sources:  # grows while it is walked: what the operands are made of, the nearest first
        maker = graph.maker(name, *_STEPS)
        if maker is not None and len(sources) <= _MOST_STEPS:
            sources += [n for n in maker.input if n and n not in sources and graph.scalar(n) is None]
    last: NodeProto | None = node
    for _ in range(_MOST_STEPS):
        if last is None or last.op_type not in _STEPS or not is_standard(last):
            return
        for source in sources:
            nodes = _between(graph, source, last.output[0])
            if any(found is node for found in nodes):
                yield _ScalarFunction(source=source, output=last.output[0], nodes=nodes)
        last = graph.only_reader(last.output[0])


def _between(graph: GraphCopy, source: str, output: str) -> tuple[NodeProto, ...]:
    """The steps that make ``output`` of ``source`` and scalars; none where something else takes part or reads them."""
    found: dict[int, NodeProto] = {}
    todo = [output]
    while todo:
        name = todo.pop()
        if name == source or not name or graph.scalar(name) is not None:
            continue
        node = graph.maker(name, *_STEPS)
        if node is None or len(found) > _MOST_STEPS:
            return ()
        if id(node) not in found:
            found[id(node)] = node
            todo += node.input
    nodes = tuple(node for node in graph.nodes if id(node) in found)
    for name in (node.output[0] for node in nodes[:-1]):
        if name in graph.outputs or any(id(reader) not in found for reader in graph.readers(name)):
            return ()
    return nodes


def _fused(
    look: ModelLook, node: NodeProto, op_type: str, values: _Floats, *, since: int, domain: str = "", **attributes: Any
) -> Match:
    """The function around a node: without a factor if there is one, else the first that has one.

    ``since`` is the operator set that has the operator, ``domain`` one that has it before.
    """
    found: tuple[_ScalarFunction, float] | None = None
    tried = False
    for function in _functions_through(look.graph, node):
        tried = True
        factor = function.factor(look.graph, values)
        if factor is not None and function.keeps_shape(look) and (found is None or factor == 1.0):
            found = function, factor
            if factor == 1.0:
                break
    if found is None and not tried:
        raise NoMatchError("its result goes into no function of one tensor that is read nowhere else")
    if found is None:
        raise NoMatchError(f"nothing around it has the values of a {op_type}, whatever the factor")
    function, factor = found
    inner = tuple(step.output[0] for step in function.nodes[:-1])
    name = f"{label(node).removesuffix(f'/{node.op_type}')}/{op_type}"

    def write(to: NodeSteps) -> None:
        to.gone = [to.node, *(to.graph.makers[made] for made in inner)]
        # The operator of another domain stands in only where no other site needs a newer operator set anyway.
        where = "" if to.graph.opset >= since else domain
        if where and not opset_of(to.graph.model, where):
            to.graph.model.opset_import.add(domain=where, version=1)
        if factor == 1.0:
            to.end(op_type, [function.source], name=name, domain=where, **attributes)
            return
        plain = f"{function.output}_plain"
        plain = to.add(op_type, [function.source], plain, name=name, domain=where, **attributes)
        times = to.graph.store(f"{function.output}_factor", np.asarray(factor, np.float32))
        to.end("Mul", [plain, times], name=f"{name}_factor")
        entry = None if to.encodings is None else to.encodings.get(function.output)
        if entry is not None and isinstance(entry.value, Affine):
            # The same integers, each standing for less or more.
            to.put(replace(entry, name=plain, value=replace(entry.value, scale=entry.value.scale / factor)))
        to.needs(plain, times)

    times = "" if factor == 1.0 else f"{factor:g} times "
    why = f"{function.output} is {times}the {op_type} of {function.source}"
    opset = 0 if domain else since
    return Match(why=why, write=write, output=function.output, tensors=inner, opset=opset)


def _check_opset(look: ModelLook, since: int) -> None:
    changed = changed_operators(look.model, since) if opset_of(look.model) < since else ()
    if changed:
        raise NoMatchError(f"it needs operator set {since}, until which {', '.join(changed)} changed")


# GELU is an operator of ONNX since this set.
_GELU_SINCE = 20
_EXACT_GELU = np.asarray([0.5 * x * (1.0 + math.erf(x * 0.5**0.5)) for x in _POINTS])
_TANH_GELU = 0.5 * _POINTS * (1.0 + np.tanh((2.0 / math.pi) ** 0.5 * (_POINTS + 0.044715 * _POINTS**3)))
_HARDSWISH_SINCE = 14
_HARDSWISH = _POINTS * np.clip(_POINTS / 6.0 + 0.5, 0.0, 1.0)


@rewrite(
    *("Erf", "Tanh"),
    name="fuse-gelu",
    summary="Fuse a GELU written out with Erf or Tanh into one Gelu operator, times a factor where it has one.",
    none="no Erf or Tanh belongs to a Gelu",
    note="{} times what is written out became one Gelu",
    ulps=16.0,
)
def fuse_gelu(look: ModelLook, node: NodeProto) -> Match | None:
    """Exact with Erf, approximated with Tanh. A near miss is worth a word only for Erf: hardly anything else has it."""
    if node.op_type == "Erf":
        return _fused(look, node, "Gelu", _EXACT_GELU, since=_GELU_SINCE, domain="com.microsoft")
    try:
        # Compilers do not take the operator that com.microsoft has for this kind.
        found = _fused(look, node, "Gelu", _TANH_GELU, since=_GELU_SINCE, approximate="tanh")
    except NoMatchError:
        return None
    _check_opset(look, _GELU_SINCE)
    return found


@rewrite(
    *("HardSigmoid", "Clip"),
    name="fuse-hardswish",
    summary="Fuse a HardSwish written out with HardSigmoid or Clip into one operator, times a factor where it has one.",
    none="no HardSigmoid or Clip belongs to a HardSwish",
    note="{} times what is written out became one HardSwish",
    ulps=16.0,
)
def fuse_hardswish(look: ModelLook, node: NodeProto) -> Match | None:
    """Clips are everywhere, so that one that belongs to no HardSwish is no near miss."""
    try:
        found = _fused(look, node, "HardSwish", _HARDSWISH, since=_HARDSWISH_SINCE)
    except NoMatchError:
        return None
    _check_opset(look, _HARDSWISH_SINCE)
    return found
