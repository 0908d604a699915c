"""Fuses a function that is written out in scalar steps into one operator, times a factor: GELU and HardSwish.

The form is not what counts: scalar steps around a gate are the function where they have its values at points.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from deploykit.encodings.values import Affine
from deploykit.model.collect import facts_seen
from deploykit.model.graph import GraphCopy
from deploykit.model.nodes import attribute, changed_operators, label, opset_of
from deploykit.model.patterns import find_blocks
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


def _factor(graph: GraphCopy, nodes: Sequence[NodeProto], source: str, wanted: _Floats) -> float | None:
    """The positive number that what the nodes make of ``source`` is of ``wanted``; None where it is something else."""
    known: dict[str, _Floats] = {source: _POINTS}
    with np.errstate(all="ignore"):
        for node in nodes:
            given = [known[n] if n in known else np.asarray(graph.scalar(n)) if n else None for n in node.input]
            known[node.output[0]] = np.asarray(_STEPS[node.op_type](node, *given), np.float64)
    values = known[nodes[-1].output[0]]
    factor = float(values[_AT] / wanted[_AT])
    if not np.isfinite(values).all() or factor <= 0.0 or np.abs(values - factor * wanted).max() > _TOLERANCE * factor:
        return None
    return 1.0 if abs(factor - 1.0) <= _TOLERANCE else float(np.float32(factor))


def _fused(
    look: ModelLook, gate: NodeProto, op_type: str, values: _Floats, *, since: int, domain: str = "", **attributes: Any
) -> Match:
    """The function around a gate: without a factor if there is one, else the shortest that has one.

    ``since`` is the operator set that has the operator, ``domain`` one that has it before.
    """
    facts = facts_seen(look)
    blocks = (block for block in find_blocks(facts) if gate.output[0] in block.inside)
    block = next((block for block in blocks if block.kind == op_type), None)
    if block is None:
        raise NoMatchError("its result goes into no function of one tensor that is read nowhere else")
    source, best = block.source, None
    steps = [look.makers[facts.nodes[index].outputs[0]] for index in block.nodes]
    scalars = [look.stored.get(look.origin(name)) for node in steps for name in node.input]
    # A scalar that is stored with more dimensions than x has may add some to the result.
    flat = all(tensor is None or len(tensor.dims) <= 1 for tensor in scalars)
    for end in range(steps.index(gate) + 1, len(steps)):
        made = steps[end].output[0]
        factor = _factor(look, steps[: end + 1], source, values)
        keeps_shape = flat or look.shape(made) == look.shape(source) is not None
        if factor is not None and keeps_shape and (best is None or factor == 1.0):
            best = end, factor
    if best is None:
        raise NoMatchError(f"nothing around it has the values of a {op_type}, whatever the factor")
    (end, factor), output = best, steps[best[0]].output[0]
    inner = tuple(step.output[0] for step in steps[:end])
    name = f"{label(gate).removesuffix(f'/{gate.op_type}')}/{op_type}"

    def write(to: NodeSteps) -> None:
        to.gone = [to.node, *(to.graph.makers[made] for made in inner)]
        # The operator of another domain stands in only where no other site needs a newer operator set anyway.
        where = "" if to.graph.opset >= since else domain
        if where and not opset_of(to.graph.model, where):
            to.graph.model.opset_import.add(domain=where, version=1)
        if factor == 1.0:
            to.end(op_type, [source], name=name, domain=where, **attributes)
            return
        plain = to.add(op_type, [source], f"{output}_plain", name=name, domain=where, **attributes)
        times = to.store(f"{output}_factor", factor)
        to.end("Mul", [plain, times], name=f"{name}_factor")
        entry = to.entry(output)
        if entry is not None and isinstance(entry.value, Affine):
            # The same integers, each standing for less or more.
            to.put(replace(entry, name=plain, value=replace(entry.value, scale=entry.value.scale / factor)))
        to.needed |= {plain, times}

    times = "" if factor == 1.0 else f"{factor:g} times "
    why = f"{output} is {times}the {op_type} of {source}"
    return Match(why=why, write=write, output=output, tensors=inner, opset=0 if domain else since)


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
