"""Rewrites that change the type a graph computes in: layers on integers, doubles and float16.

Dynamic quantization is made for CPUs: no compiler for an NPU takes a network of it. Weights keep their values;
activations are no longer rounded to 8 bits, so that results differ from the given model's by that rounding. Doubles are
Python's numbers that an exporter left as they were; quantizers and some compilers do not take float16.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

from deploykit.encodings.values import EncodingSet
from deploykit.errors import InputError
from deploykit.findings.records import Numbers, replace
from deploykit.model.graph import GraphCopy
from deploykit.model.nodes import attribute, attributes, bodies, label, operand
from deploykit.model.operators import CONTRIBUTED, Trait, data_outputs, has, is_standard, quantizes_at_run_time
from deploykit.model.values import dtype_name
from deploykit.model.weights import stored_values
from deploykit.rewrites.contract import (
    Match,
    MatchResult,
    ModelLook,
    NearMiss,
    NodeSteps,
    NoMatchError,
    Rewritten,
    Site,
    Transform,
    rewrite_graph,
    rewritten,
)

__all__ = ()

_LAYERS = {"ConvInteger": "Conv", "MatMulInteger": "MatMul"}


@rewrite_graph(
    none="no layer has a dynamically quantized input",
    note="{} layers compute in float: their inputs are no longer rounded to 8 bits, their weights keep their values",
    ulps=None,
)
def dequantize_layers(look: ModelLook) -> Iterator[Match | NearMiss]:
    """Writes layers that quantize their input, or hold packed integers, in float with the weights' values.

    ConvInteger and MatMulInteger behind DynamicQuantizeLinear, what quantizes its input by itself, and MatMulNBits.

    Where nothing is quantized before the model runs, tables that are stored as integers become floats beside them.
    """
    contributed = {"DynamicQuantizeMatMul": _product, "MatMulNBits": _blocks, "DynamicQuantizeLSTM": _lstm}
    types = {node.op_type for node in look.nodes}
    all_at_run_time = "QuantizeLinear" not in types and any(map(quantizes_at_run_time, look.nodes))
    for node in look.nodes:
        try:
            if node.op_type in _LAYERS and is_standard(node):
                yield _layer(look, node)
            elif node.op_type == "DequantizeLinear" and look.maker(node.input[1], "DynamicQuantizeLinear"):
                yield _round_trip(look, node)
            elif node.op_type in contributed and node.domain == CONTRIBUTED:
                yield contributed[node.op_type](look, node)
            elif node.op_type == "DequantizeLinear" and all_at_run_time:
                yield _table(look, node)
        except NoMatchError as error:
            yield NearMiss((label(node),), error.reason)


def _quantized_from(look: ModelLook, name: str) -> tuple[NodeProto, list[NodeProto]]:
    """The DynamicQuantizeLinear that made integers, and the operators that moved the integers since."""
    name, moves = _before_moves(look, name)
    maker = look.maker(name, "DynamicQuantizeLinear")
    if maker is None or maker.output[0] != name:
        raise NoMatchError(f"{name} is not quantized at run time")
    return maker, moves


def _before_moves(look: ModelLook, name: str) -> tuple[str, list[NodeProto]]:
    """The tensor that integers come from, and the operators that moved the integers since."""
    moves = list[NodeProto]()
    while (maker := look.maker(name)) is not None and has(maker, Trait.CARRIES_GRID):
        moves.insert(0, maker)
        name = maker.input[0]
    return name, moves


def _moved(to: NodeSteps, source: str, moves: Sequence[NodeProto]) -> str:
    """The float tensor that integers were made of, moved as the integers were."""
    for move in moves:
        source = to.add(move.op_type, [source, *move.input[1:]], f"{move.output[0]}_float", **attributes(move))
    return source


def _zero(look: ModelLook, node: NodeProto, at: int) -> Numbers:
    """The zero point that a node reads at an input; 0 where the input is left out."""
    return look.values(node.input[at]) if any(node.input[at : at + 1]) else np.zeros((), np.int8)


def _round_trip(look: ModelLook, node: NodeProto) -> Match:
    """The match of a DequantizeLinear that only makes floats again of integers quantized at run time."""
    quantizer, moves = _quantized_from(look, node.input[0])
    if quantizer.output[1] != node.input[1]:
        raise NoMatchError(f"{node.input[1]} is not the scale of {node.input[0]}")
    return _whole(node, lambda to: to.end("Identity", [_moved(to, quantizer.input[0], moves)]))


def _table(look: ModelLook, node: NodeProto) -> Match:
    """The match of a stored table of integers, an embedding mostly, with one scale for all rows."""
    name, moves = _before_moves(look, node.input[0])
    scale = look.values(node.input[1])
    if scale.size != 1:
        raise NoMatchError(f"{node.input[1]} is not one scale for all")
    values = _values(look.values(name), scale.reshape(()), _zero(look, node, 2).reshape(()))
    return _whole(node, lambda to: to.end("Identity", [_moved(to, to.store(f"{name}_float", values), moves)]))


def _layer(look: ModelLook, node: NodeProto) -> Match:
    """The match of a layer on integers: DynamicQuantizeLinear, layer, maybe a bias, Cast, and Mul by both scales."""
    quantizer, moves = _quantized_from(look, node.input[0])
    if node.input[2:3] != quantizer.output[2:3]:
        raise NoMatchError(f"{operand(node, 2) or 'nothing'} is not the zero point of its input")
    add, added, inner = look.only_reader(node.output[0], "Add"), "", [*node.output]
    if add is not None:
        (added,) = [name for name in add.input if name != node.output[0]] or [""]
        inner.append(add.output[0])
    cast = look.only_reader(inner[-1], "Cast")
    product = cast and look.only_reader(cast.output[0], "Mul")
    if cast is None or product is None:
        raise NoMatchError("its sums are not multiplied by one scale")
    (factor,) = [name for name in product.input if name != cast.output[0]] or [""]
    both = look.maker(factor, "Mul")
    scales = [] if both is None else [name for name in both.input if name != quantizer.output[1]]
    if len(scales) != 1:
        raise NoMatchError(f"{factor} is not the product of the scales of its input and its weight")
    bias = look.maker(look.origin(added, ("Cast", "Floor", "Reshape", "Round", "Unsqueeze")), "Div")
    divisor = bias and look.maker(bias.input[1], "Mul")
    same = divisor is not None and both is not None and set(divisor.input) == set(both.input)
    if added and (bias is None or not same or bias.input[0] not in look.stored):
        raise NoMatchError(f"{added} is no bias that is rounded to the steps of its sums")
    weights = look.values(node.input[1])
    scale = look.values(scales[0])
    zero = _zero(look, node, 3)
    is_kernel = node.op_type == "ConvInteger"
    channels = (-1, *[1] * (weights.ndim - 1)) if is_kernel else (-1,)  # the last axis of a matrix
    _check_sizes(node, weights, 0 if is_kernel else -1, scale, zero)
    kept = attributes(node)

    def write(to: NodeSteps) -> None:
        # Nothing reads the makers of the scales and the bias any more: they are pruned.
        to.gone = [to.node, *(to.graph.makers[name] for name in (*inner, cast.output[0]))]
        values = _values(weights, scale.reshape(channels), zero.reshape(channels))
        inputs, made = [_moved(to, quantizer.input[0], moves), to.store(f"{node.input[1]}_float", values)], to.made
        if bias is None or node.op_type == "ConvInteger":
            to.end(_LAYERS[node.op_type], [*inputs, *([] if bias is None else bias.input[:1])], name=node.name, **kept)
        else:
            summed = to.add("MatMul", inputs, f"{made}_product", name=node.name)
            to.end("Add", [summed, bias.input[0]], name=f"{made}_bias")

    return Match(
        "its input is quantized at run time",
        write,
        output=product.output[0],
        nodes=(label(node),),
        tensors=(product.output[0],),
    )


def _product(look: ModelLook, node: NodeProto) -> Match:
    """The match of ONNX Runtime's MatMul of a float and an integer matrix, with a bias where it has one."""
    if len(node.input) < 3:
        raise NoMatchError("it has too few inputs")
    weight, scale = node.input[1:3]
    zero = _zero(look, node, 3)
    _check_sizes(node, look.values(weight), -1, look.values(scale), zero)
    return _by_floats(node, _values(look.values(weight), look.values(scale).reshape(-1), zero.reshape(-1)), bias=4)


def _blocks(look: ModelLook, node: NodeProto) -> Match:
    """The match of ONNX Runtime's MatMul by a matrix of few bits, packed by columns in blocks with a scale each."""
    if operand(node, 4):
        raise NoMatchError("its rows are in another order")
    bits, columns, rows = (int(attribute(node, name, 4)) for name in ("bits", "N", "K"))
    integers, scale = _unpacked(look.values(node.input[1]), bits), look.values(node.input[2])
    blocks = (columns, integers.shape[1], -1)
    zero = np.array(1 << bits - 1)
    if operand(node, 3):
        zero = look.values(node.input[3]).reshape(columns, -1)
        zero = (zero if zero.dtype == scale.dtype else _unpacked(zero, bits)[:, : blocks[1]]).reshape(blocks)
    values = _values(integers, scale.reshape(blocks), zero).reshape(columns, -1)[:, :rows]
    return _by_floats(node, np.ascontiguousarray(values.T), bias=5)


def _unpacked(packed: Numbers, bits: int) -> Numbers:
    """Integers of ``bits`` bits, unpacked from bytes along the last axis; the lowest bits come first."""
    parts = [packed >> shift & (1 << bits) - 1 for shift in range(0, 8, bits)]
    return np.stack(parts, axis=-1).reshape(*packed.shape[:-1], -1)


def _by_floats(node: NodeProto, values: npt.NDArray[np.float32], *, bias: int) -> Match:
    """The match that writes a MatMul by a matrix of floats, and an Add of the input at ``bias`` where there is one."""
    added = operand(node, bias)

    def write(to: NodeSteps) -> None:
        inputs = [node.input[0], to.store(f"{node.input[1]}_float", values)]
        if added:
            made = to.add("MatMul", inputs, f"{to.made}_product", name=to.node.name)
            to.end("Add", [made, added], name=f"{to.made}_bias")
        else:
            to.end("MatMul", inputs)

    return _whole(node, write)


def _lstm(look: ModelLook, node: NodeProto) -> Match:
    """The match of a quantized LSTM: transposed weights with a scale for each direction or for each gate's rows."""
    floats = []
    for weight, scale, zero in ((1, 8, 9), (2, 10, 11)):
        if len(node.input) < 12:
            raise NoMatchError("it has too few inputs")
        stored, steps = look.values(node.input[weight]), look.values(node.input[scale])
        zeros = look.values(node.input[zero])
        if stored.ndim != 3 or {steps.size, zeros.size} - {stored.shape[0], stored.shape[0] * stored.shape[2]}:
            raise NoMatchError(f"the scales of {node.input[weight]} are not one for a direction or for a gate's row")
        shape = (stored.shape[0], 1, -1)
        values = _values(stored, steps.reshape(shape), zeros.reshape(shape))
        floats.append(np.ascontiguousarray(values.transpose(0, 2, 1)))
    kept = attributes(node)

    def write(to: NodeSteps) -> None:
        names = (to.store(f"{node.input[at + 1]}_float", values) for at, values in enumerate(floats))
        inputs = [to.source, *names, *to.node.input[3:8]]
        while not inputs[-1]:
            inputs.pop()
        to.nodes.append(helper.make_node("LSTM", inputs, list(to.node.output), name=to.node.name, **kept))

    return _whole(node, write)


def _check_sizes(node: NodeProto, weights: Numbers, axis: int, *grid: Numbers) -> None:
    """NoMatchError unless there is one scale and zero point, or one for each channel."""
    if not weights.ndim or any(part.size not in (1, weights.shape[axis]) for part in grid):
        raise NoMatchError(f"the scales of {node.input[1]} are not one for all or for each channel")


def _values(integers: Numbers, scale: Numbers, zero: Numbers) -> npt.NDArray[np.float32]:
    """The float32 values that integers stand for."""
    return np.asarray((integers.astype(np.float32) - zero.astype(np.float32)) * scale, np.float32)


def _whole(node: NodeProto, write: Any) -> Match:
    made = next(filter(None, node.output))
    return Match("it quantizes its input at run time", write, output=made, nodes=(label(node),), tensors=(made,))


def _of_type(kind: int, graph: ModelLook) -> MatchResult:
    """The nodes that make floats of this type, where float32 holds the stored values."""
    dtype = dtype_name(kind)
    names = [name for name, tensor in graph.stored.items() if tensor.data_type == kind]
    made = [label(node) for node in graph.nodes if dtype in map(graph.dtype, node.output)]
    if not names and not made and dtype not in map(graph.dtype, graph.inputs):
        return MatchResult(reason=f"nothing is a {dtype}")
    values = [value for name in names if (value := graph.array(name)) is not None]
    largest = max((float(np.abs(value[np.isfinite(value)]).max(initial=0.0)) for value in values), default=0.0)
    problem = ""
    if largest > float(np.finfo(np.float32).max) or len(values) < len(names):
        problem = "float32 does not hold what it stores"
    elif any(True for node in graph.nodes for _ in bodies(node)):
        problem = "a node runs another graph"
    if problem:
        return MatchResult(refusals=(NearMiss((), problem),), reason=problem)
    return MatchResult((Site(tuple(made), tensors=tuple(names), why="float32 holds its values"),))


# The constants of GELU; rounded to float16, no tool recognizes the operator any more.
_OF_GELU = np.array([2**0.5, 0.5**0.5, (2 / np.pi) ** 0.5, 0.044715], np.float32)


def _widened(values: Numbers) -> npt.NDArray[np.float32]:
    """The values in float32.

    A single number that is one of GELU's constants rounded to float16 becomes the constant again.
    """
    if values.size == 1 and values.dtype == np.float16:
        meant = _OF_GELU[_OF_GELU.astype(np.float16) == values.item()]
        return np.full(values.shape, meant[0] if meant.size else values, np.float32)
    return values.astype(np.float32)


def _compute_in_float(kind: int, model: ModelProto, encodings: EncodingSet | None, matched: MatchResult) -> Rewritten:
    """Change stored values, the results of Casts and the declared types to float32; inputs of float16 get a Cast."""
    graph = GraphCopy(model)
    for tensor in graph.model.graph.initializer:
        if tensor.data_type == kind:
            tensor.CopyFrom(numpy_helper.from_array(_widened(stored_values(tensor)), tensor.name))
    for node in graph.nodes:
        for found in node.attribute:
            if found.HasField("t") and found.t.data_type == kind:
                found.t.CopyFrom(numpy_helper.from_array(_widened(numpy_helper.to_array(found.t)), found.t.name))
            elif found.name in ("to", "dtype") and found.i == kind:
                found.i = TensorProto.FLOAT
    main = graph.model.graph
    # No device takes doubles, so that whoever feeds them feeds float32 instead.
    fed = [item for item in main.input if item.type.tensor_type.elem_type == kind]
    for item in (*main.value_info, *main.output, *(fed if kind == TensorProto.DOUBLE else ())):
        if item.type.tensor_type.elem_type == kind:
            item.type.tensor_type.elem_type = TensorProto.FLOAT
    casts = [
        helper.make_node("Cast", [item.name], [graph.fresh(f"{item.name}_float")], to=TensorProto.FLOAT)
        for item in fed
        if item.type.tensor_type.elem_type == kind
    ]
    for cast in casts:
        for node, at in graph.uses(cast.input[0]):
            node.input[at] = cast.output[0]
    graph.set_nodes([*casts, *graph.nodes])
    note = f"{len(matched.sites[0].nodes)} nodes compute in float32 instead of {dtype_name(kind)}"
    if fed and not casts:
        note += f"; feed {', '.join(item.name for item in fed)} as float32"
    return rewritten(graph, encodings, note)


double_to_float, half_to_float = (
    Transform(
        f"{word}-to-float",
        summary=f"Computes in float32 what a graph computes in {dtype_name(kind)}.",
        find=partial(_of_type, kind),
        apply=partial(_compute_in_float, kind),
        ulps=ulps,
    )
    for word, kind, ulps in (("double", TensorProto.DOUBLE, 64.0), ("half", TensorProto.FLOAT16, None))
)


# Float operator, then for each quantized operand the places of its integers, scale and zero point; the result's scale
# and zero point stand at the last place that is named. (ONNX operator documentation; ONNX Runtime, ContribOperators.md)
_PAIRED: Mapping[str, tuple[str, tuple[int, ...], int]] = {
    "QLinearConv": ("Conv", (0, 3), 6),
    "QLinearMatMul": ("MatMul", (0, 3), 6),
    "QGemm": ("Gemm", (0, 3), 7),
    "QLinearAdd": ("Add", (0, 3), 6),
    "QLinearMul": ("Mul", (0, 3), 6),
    "QLinearAveragePool": ("AveragePool", (0,), 3),
    "QLinearGlobalAveragePool": ("GlobalAveragePool", (0,), 3),
    "QLinearLeakyRelu": ("LeakyRelu", (0,), 3),
    "QLinearReduceMean": ("ReduceMean", (0,), 3),
    "QLinearSigmoid": ("Sigmoid", (0,), 3),
    "QLinearSoftmax": ("Softmax", (0,), 3),
}
_BIAS_AT = {"QLinearConv": 8, "QGemm": 6}
_PAIRS_SINCE = 13  # grids per channel
_OWN_SETTINGS = frozenset({"channels_last", "opset"})  # of the contributed forms


@rewrite_graph(
    none="no operator computes on quantized integers",
    note="{} operators on integers are float operators between pairs",
    ulps=None,
)
def integers_to_pairs(look: ModelLook) -> Iterator[Match | NearMiss]:
    """Writes QLinearConv and its like as float operators between QuantizeLinear and DequantizeLinear.

    What compilers read; a value may come out one step of its grid away, since the sums are rounded elsewhere.
    """
    grids = dict[str, tuple[str, str]]()  # the names of scale and zero point, by integer tensor
    for node in look.nodes:
        made = node.output[0] if node.output else ""
        joins = node.op_type == "QLinearConcat" and node.domain == CONTRIBUTED
        if node.op_type == "QuantizeLinear" and len(node.input) > 2:
            grids[made] = node.input[1], node.input[2]
        elif joins or (node.op_type in _PAIRED and (is_standard(node) or node.domain == CONTRIBUTED)):
            if attribute(node, "channels_last", 0):
                yield NearMiss((label(node),), "its channels are last")
                continue
            at = 0 if joins else _PAIRED[node.op_type][2]
            if len(node.input) < at + 2 or (joins and len(node.input) % 3 != 2):
                yield NearMiss((label(node),), "it has too few inputs")
                continue
            grids[made] = node.input[at], node.input[at + 1]
            yield replace(_whole(node, _write_pairs), why="it computes on integers", opset=_PAIRS_SINCE)
        elif node.input and node.input[0] in grids and has(node, Trait.CARRIES_GRID):
            grid = grids[node.input[0]]
            grids.update(dict.fromkeys(filter(None, data_outputs(node, node.output)), grid))
            yield replace(_whole(node, partial(_write_moved, grid=grid)), why="it moves integers", opset=_PAIRS_SINCE)


def _write_pairs(to: NodeSteps) -> None:
    node, made = to.node, to.made
    if node.op_type == "QLinearConcat":
        op_type, places, at = "Concat", tuple(range(2, len(node.input), 3)), 0
    else:
        op_type, places, at = _PAIRED[node.op_type]
    floats = []
    for place in places:
        # A kernel and a transposed matrix have their output channels in front.
        axis = 0 if place == 3 and (op_type == "Conv" or attribute(node, "transB", 0)) else 1
        name = f"{node.input[place]}_{made}_float"
        floats.append(to.add("DequantizeLinear", node.input[place : place + 3], name, axis=axis))
    bias = operand(node, _BIAS_AT.get(node.op_type, 99))
    if bias:
        scales = [to.graph.array(node.input[place + 1]) for place in (0, 3)]
        if to.graph.array(bias) is None or scales[0] is None or scales[1] is None:
            raise InputError(f"the bias {bias} is computed", next="export the model with stored weights and scales")
        steps = np.asarray(scales[0] * scales[1] * attribute(node, "alpha", 1.0), np.float32)
        scale = to.store(f"{bias}_scale", steps)
        zero = to.store(f"{bias}_zero", np.zeros_like(steps, np.int32))
        floats.append(to.add("DequantizeLinear", [bias, scale, zero], f"{bias}_float", axis=0))
    kept = {name: value for name, value in attributes(node).items() if name not in _OWN_SETTINGS}
    result = to.add(op_type, floats, f"{made}_float", name=node.name, **kept)
    to.write("QuantizeLinear", [result, *node.input[at : at + 2]], made)


def _write_moved(to: NodeSteps, grid: tuple[str, str]) -> None:
    """Write an operator on integers as one on floats: dequantized in front, each result quantized behind it."""
    node = to.node
    floats = {name: to.graph.fresh(f"{name}_float") for name in data_outputs(node, node.output)}
    given = to.add("DequantizeLinear", [node.input[0], *grid], f"{node.input[0]}_{to.made}_float")
    made = [floats.get(name, name) for name in node.output]
    to.nodes.append(helper.make_node(node.op_type, [given, *node.input[1:]], made, name=node.name, **attributes(node)))
    for name, result in floats.items():
        to.write("QuantizeLinear", [result, *grid], name)
