"""Writes operators and forms that an older wheel's provider lacks in terms of those it has; a wheel's row lists them.

Each form equals what it replaces for every value that can occur; the last two change grids only. ``until`` is the first
release that was seen not to need the form.
"""

from __future__ import annotations

import math
from collections.abc import Collection

import numpy as np
from msgspec.structs import replace
from onnx import NodeProto, TensorProto

from deploykit.encodings.new_grids import GridKind, affine_for_range
from deploykit.encodings.values import Affine, Encoding
from deploykit.model.nodes import attribute, label
from deploykit.model.ranges import ANYTHING, graph_bounds
from deploykit.rewrites.contract import Match, ModelLook, NodeSteps, Transform, regrid, rewrite
from deploykit_ort_qnn.forms.kernel_grids import is_centred, of_16_bits, symmetric_uint16

__all__ = ["older_forms"]

# QAIRT 2.36.1, on two emulators or during compilation: 16, 32, 64 and 128 rows crash; 8, 12, 15, 24 and 48 do not. All
# multiples are avoided, since it is unknown why 48 is an exception.
_ROWS = 16


def older_forms(lacks: Collection[str]) -> tuple[Transform, ...]:
    """The rewrites for the operators and forms in ``lacks``, in the order in which they are applied.

    Nodes for which a rewrite would not be exact stay: the provider then refuses them by name.
    """
    return tuple(form for form in _FORMS if form.name.removeprefix("without-") in lacks)


@rewrite("Mod", none="no Mod", until="2.47")
def without_mod(look: ModelLook, node: NodeProto) -> Match | None:
    """this provider has no Mod: of what is never negative the remainder is a - (a / b) * b, in int32

    The backend refuses to subtract int64, so the arithmetic is done in int32: the chip has no wider integers.
    """
    kind, bounds = look.dtype(node.input[0]), graph_bounds(look)
    if kind not in ("int32", "int64") or any(bounds.get(name, ANYTHING)[0] < 0 for name in node.input):
        return None

    def write(to: NodeSteps) -> None:
        names, made = list(to.node.input), to.made
        if kind == "int64":
            names = [to.add("Cast", [name], f"{made}_cast", to=TensorProto.INT32) for name in names]
        dividend, divisor = names
        whole = to.add("Mul", [to.add("Div", [dividend, divisor], f"{made}_div"), divisor], f"{made}_mul")
        if kind == "int32":
            to.end("Sub", [dividend, whole])
        else:
            to.end("Cast", [to.add("Sub", [dividend, whole], f"{made}_sub")], to=TensorProto.INT64)

    return Match("its operands are never negative", write)


@rewrite("IsNaN", none="no IsNaN of integers", until="2.47")
def without_isnan(look: ModelLook, node: NodeProto) -> Match | None:
    """this provider has no IsNaN: what lies on an integer grid is never NaN

    Where(IsNaN(x), a, b) is b, and what read its result reads b.
    """
    readers = look.readers(node.output[0])
    is_choice = all(reader.op_type == "Where" and reader.output[0] not in look.outputs for reader in readers)
    if look.grid(node.input[0]) is None or not is_choice:
        return None

    def write(to: NodeSteps) -> None:
        to.gone = []
        for choice in to.graph.readers(to.made):
            for reader, at in to.graph.uses(choice.output[0]):
                reader.input[at] = choice.input[2]

    return Match("it reads integers", write)


@rewrite("Reshape", none="no Reshape with allowzero", until="2.47")
def without_allowzero(look: ModelLook, node: NodeProto) -> Match | None:
    """this provider refuses a Reshape with allowzero; without a zero in its shape the two are the same

    The attribute alone goes.
    """
    shape = look.array(node.input[1]) if attribute(node, "allowzero", 0) else None
    if shape is None or 0 in shape:
        return None
    return Match("its shape has no zero", lambda to: to.end("Reshape", to.node.input))


@rewrite("Reciprocal", none="no Reciprocal", until="2.47")
def without_reciprocal(look: ModelLook, node: NodeProto) -> Match | None:
    """this provider has no Reciprocal: it divides one by the value

    The one is a constant beside integers, which gets the grid of its value later.
    """
    if node.input[0] in look.static():
        return None
    return Match("its input is computed", lambda to: to.end("Div", [to.store(f"{to.made}_one", 1.0), to.source]))


@rewrite("Gather", none="no Gather of truth values", quiet=True, until="2.47")
def without_bool_gather(look: ModelLook, node: NodeProto) -> Match | None:
    """this compiler refuses a Gather of truth values (code 3110): they are gathered as int32

    A flat index, since a Cast to truth values is refused on five dimensions; one that counts through needs none.
    """
    index = look.array(node.input[1]) if look.dtype(node.input[0]) == "bool" else None
    if index is None or node.input[0] in look.static():
        return None
    shape = look.sizes(node.input[0])
    axis = int(attribute(node, "axis", 0)) % len(shape)
    whole = index.size == shape[axis] and bool((index.reshape(-1) % shape[axis] == np.arange(index.size)).all())

    def write(to: NodeSteps) -> None:
        source, made = to.source, to.made
        if not whole:
            flat = to.store(f"{made}_index", index.reshape(-1))
            numbers = to.add("Cast", [source], f"{made}_numbers", to=TensorProto.INT32)
            taken = to.add("Gather", [numbers, flat], f"{made}_taken", name=to.node.name, axis=axis)
            source = to.add("Cast", [taken], f"{made}_flags", to=TensorProto.BOOL)
        to.reshape(source, (*shape[:axis], *index.shape, *shape[axis + 1 :]), name=to.graph.fresh(f"{made}_shaped"))

    return Match("its index is stored", write)


@rewrite(*("Gemm", "MatMul"), none="no layer has a bias and a scale per channel", quiet=True, until="2.36")
def without_channel_bias(look: ModelLook, node: NodeProto) -> Match | None:
    """this FullyConnected takes no bias with a scale per channel: a 1x1 Conv, which is the same, does

    A Conv computes the same products and sums; around it tensors only change their shape.

    A layer stays where a shape is not known, where its input or output has no integer grid, and where a Gemm does more
    than multiply and add.
    """
    layer = _biased_layer(look, node)
    if layer is None:
        return None
    bias, channel, last = layer
    (source, weight), output = node.input[:2], last.output[0]
    dims, entry = list(look.stored[weight].dims), look.entry(weight)
    value = entry.value if entry is not None else None
    if len(dims) != 2 or list(look.stored[bias].dims) != [dims[channel]]:
        return None
    if not isinstance(value, Affine) or value.block_size is not None or value.scale.size == 1 or value.axis != channel:
        return None
    ends = [look.entry(name) for name in (source, output)]
    given, made_shape = look.sizes(source), look.sizes(output)
    if min(len(given), len(made_shape)) < 2 or not all(end and isinstance(end.value, Affine) for end in ends):
        return None
    flat = replace(value, scale=value.scale.reshape(-1), zero_point=value.zero_point.reshape(-1), axis=0)

    def write(to: NodeSteps) -> None:
        """Rows become positions of one image with channels last; the provider undoes the transposes around the Conv."""
        name, stored = label(node), look.array(weight)
        assert stored is not None
        turned = np.ascontiguousarray(stored if channel == 0 else stored.T)
        to.gone = [to.node] if last is node else [to.node, to.graph.makers[node.output[0]]]
        kernel = to.store(f"{weight}_conv", turned[:, :, None, None])
        image = to.reshape(source, [1, math.prod(given[:-1]), 1, given[-1]], f"{output}_image", name=f"{name}/image")
        first = to.add("Transpose", [image], f"{output}_channels", name=f"{name}/channels", perm=[0, 3, 1, 2])
        conv = to.add("Conv", [first, kernel, bias], f"{output}_conv", name=name, kernel_shape=[1, 1])
        back = to.add("Transpose", [conv], f"{output}_places", name=f"{name}/places", perm=[0, 2, 3, 1])
        to.reshape(back, made_shape, name=f"{name}/rows")
        to.share(source, image, first)
        to.share(output, conv, back)
        to.put(Encoding(kernel, flat, is_param=True))

    return Match("its weight has a scale per channel", write, output=output)


def _biased_layer(look: ModelLook, node: NodeProto) -> tuple[str, int, NodeProto] | None:
    """(stored bias, the weight's output axis, the last node) of a linear layer with a bias; None for any other node.

    ONNX Runtime makes one layer of a MatMul and an Add if the product has no grid of its own.
    """
    stored = look.stored
    if node.input[1] not in stored:
        return None
    if node.op_type == "Gemm":
        factors = attribute(node, "alpha", 1.0), attribute(node, "beta", 1.0)
        plain = not attribute(node, "transA", 0) and factors == (1.0, 1.0)
        if len(node.input) < 3 or node.input[2] not in stored or not plain:
            return None
        return node.input[2], 0 if attribute(node, "transB", 0) else 1, node
    product = node.output[0]
    add = look.only_reader(product, "Add")
    if add is None or len(set(add.input)) != 2 or product in (look.encodings or ()):
        return None
    bias = next(name for name in add.input if name != product)
    return (bias, 1, add) if bias in stored else None


@rewrite("Gather", none="no row is gathered in front of a Concat", quiet=True, until="2.47")
def without_gather_before_concat(look: ModelLook, node: NodeProto) -> Match | None:
    """a row gathered in front of a Concat comes out wrong (13 to 20 dB); sliced it is right

    Behind LayerNormalization, Gather and Concat, where the Concat has another grid: QAIRT 2.36.1.
    """
    index = look.array(node.input[1])
    if index is None or index.size != 1 or node.input[0] in look.static():
        return None
    sizes = look.sizes(node.input[0])
    if not sizes or not any(reader.op_type == "Concat" for reader in look.readers(node.output[0])):
        return None
    axis = int(attribute(node, "axis", 0)) % len(sizes)
    number = int(index.reshape(())) % sizes[axis]

    def write(to: NodeSteps) -> None:
        made = to.made
        ends = (("start", number), ("end", number + 1), ("axis", axis))
        bounds = [to.store(f"{made}_row_{what}", [value]) for what, value in ends]
        row = to.add("Slice", [to.source, *bounds], f"{made}_row", name=to.node.name)
        shape = (*sizes[:axis], *index.shape, *sizes[axis + 1 :])
        to.reshape(row, shape, name=to.graph.fresh(f"{made}_shaped"))
        to.share(made, row)

    return Match("one row goes into a Concat", write)


@rewrite("Sigmoid", none="no 16-bit Sigmoid lies between a sum or product and a linear layer", quiet=True, until="2.47")
def without_sigmoid_before_linear(look: ModelLook, node: NodeProto) -> Match | None:
    """a Sigmoid between a sum or product and a linear layer dies; on one row it does not

    Its code dies on a number of rows; between two Reshapes the values and their grids stay as they are.
    """
    graph, grids = look, [look.grid(name) for name in (node.input[0], node.output[0])]
    before = graph.maker(node.input[0], "Add", "Mul")
    if before is None or not all(grid is not None and grid.bits == 16 for grid in grids):
        return None
    shape = look.sizes(node.input[0])

    def reads_weights(reader: NodeProto) -> bool:
        return reader.op_type in ("MatMul", "Gemm") and reader.input[1] in graph.stored

    makers = [graph.maker(name, "MatMul") for name in before.input] if before.op_type == "Add" else []
    if any(maker is not None and reads_weights(maker) for maker in makers):
        return None  # the sum is the bias of a linear layer
    readers = graph.readers(node.output[0])
    behind = [after for gate in readers if gate.op_type == "Mul" for after in graph.readers(gate.output[0])]
    if len(shape) < 2 or not shape[-2] or shape[-2] % _ROWS or not any(map(reads_weights, [*readers, *behind])):
        return None

    def write(to: NodeSteps) -> None:
        source, made = to.source, to.made
        row = to.reshape(source, (*shape[:-2], 1, shape[-2] * shape[-1]), f"{made}_row")
        value = to.add("Sigmoid", [row], f"{made}_flat", name=to.node.name)
        to.reshape(value, shape, name=to.graph.fresh(f"{made}_rows"))
        to.share(source, row)
        to.share(made, value)

    return Match(f"it has {shape[-2]} rows", write)


@regrid(until="2.47")
def without_asymmetric_operand(look: ModelLook) -> dict[str, Affine]:
    """a stored 16-bit operand of a MatMul is taken with its 0 in the middle only (code 3110)

    Grids with 0 in the middle for stored operands 1; a step grows to twice its size at most.
    """
    static, grids = look.static() | look.stored.keys(), dict[str, Affine]()
    for node in look.nodes:
        value = look.grid(node.input[1]) if node.op_type == "MatMul" and node.input[1] in static else None
        if value is not None and value.bits == 16 and not is_centred(value):
            grids[node.input[1]] = symmetric_uint16(value)
    return grids


@regrid(until="2.48")
def without_hardsigmoid_range(look: ModelLook) -> dict[str, Affine]:
    """a 16-bit HardSigmoid is right on the grid from 0 to 1 only (6 to 26 dB on any other)

    QAIRT 2.36.1 computes 93 dB on this grid.
    """
    made = (node.output[0] for node in look.nodes if node.op_type == "HardSigmoid")
    return {name: affine_for_range(0.0, 1.0, GridKind(16, signed=False)) for name, _ in of_16_bits(look, made)}


_FORMS: tuple[Transform, ...] = (
    without_mod,
    without_isnan,
    without_allowzero,
    without_reciprocal,
    without_bool_gather,
    without_channel_bias,
    without_gather_before_concat,
    without_sigmoid_before_linear,
    without_asymmetric_operand,
    without_hardsigmoid_range,
)
