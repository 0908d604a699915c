"""Rewrites of operators that devices lack with operators that they have; ranks and orders are in ``lower_shapes``.

A tap is one place of a pool's window: a Gather with stored places. The greatest of the taps is the MaxPool, their sum
over their number the AveragePool. Windows are computed axis by axis, so that 3 x 3 x 3 places cost 9 taps.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import reduce

import numpy as np
import numpy.typing as npt
from onnx import NodeProto, TensorProto, helper

from deploykit.findings.records import Record
from deploykit.model.nodes import attribute, attributes, label, operand, opset_of
from deploykit.model.operators import CONTRIBUTED
from deploykit.model.ranges import ANYTHING, graph_bounds
from deploykit.rewrites.contract import Match, ModelLook, NodeSteps, NoMatchError, rewrite

__all__ = ["PoolAxis", "pool_windows"]


# The most values of a kernel with zeros in it: 128 MB.
_LARGEST_KERNEL = 1 << 25
# The most factors of one product: each doubling costs three nodes, and float products of more mean little.
_MOST_FACTORS = 4096


@rewrite("Einsum", none="there is no Einsum", note="{} Einsums are products of matrices", ulps=16.0, completes=True)
def einsum_to_matmul(look: ModelLook, node: NodeProto) -> Match:
    """Writes an Einsum of two operands as a MatMul between transpositions and reshapes.

    Letters of both operands that the result keeps are batches, those that it lacks are summed over.
    """
    given, arrow, result = str(attribute(node, "equation", "")).replace(" ", "").partition("->")
    terms = given.split(",")
    if len(terms) != 2 or len(node.input) != 2:
        raise NoMatchError("it has other than two operands")
    a, b = terms
    if not arrow:
        result = "".join(sorted(letter for letter in {*a, *b} if (a + b).count(letter) == 1))
    if "." in given or any(len({*term}) != len(term) for term in (a, b, result)):
        raise NoMatchError("its equation has dots, or a letter twice in one term")
    if not ({*a} ^ {*b}) <= {*result} <= {*a, *b}:
        raise NoMatchError("it sums one operand alone")
    size = dict[str, int]()
    for name, term in zip(node.input, terms, strict=True):
        known = look.sizes(name)
        if len(known) != len(term) or any(size.setdefault(x, n) != n for x, n in zip(term, known, strict=True)):
            raise NoMatchError(f"the shape of {name} does not fit its equation")
    batch = "".join(letter for letter in result if letter in a and letter in b)
    left = "".join(letter for letter in result if letter not in b)
    summed = "".join(letter for letter in a if letter not in result)
    right = "".join(letter for letter in result if letter not in a)

    def ordered(to: NodeSteps, source: str, term: str, order: str) -> str:
        perm = [term.index(letter) for letter in order]
        return source if term == order else to.add("Transpose", [source], f"{node.output[0]}_transpose", perm=perm)

    def write(to: NodeSteps) -> None:
        made, moved = to.made, list[str]()
        flat = [math.prod(size[letter] for letter in batch)] if batch else []
        rows, inner, columns = (math.prod(size[letter] for letter in part) for part in (left, summed, right))
        factors = []
        for source, term, order, matrix in (
            (to.source, a, batch + left + summed, [*flat, rows, inner]),
            (to.node.input[1], b, batch + summed + right, [*flat, inner, columns]),
        ):
            turned = ordered(to, source, term, order)
            if [size[letter] for letter in order] != matrix:
                turned = to.reshape(turned, matrix, f"{made}_reshape")
            factors.append(turned)
            to.share(source, *(step.output[0] for step in to.nodes if step.output[0] not in {*moved}))
            moved += [step.output[0] for step in to.nodes]
        shaped = product = to.add("MatMul", factors, f"{made}_matmul")
        letters = batch + left + right
        if [*flat, rows, columns] != [size[letter] for letter in letters]:
            shaped = to.reshape(product, [size[letter] for letter in letters], f"{made}_reshape")
        turned = ordered(to, shaped, letters, result)
        to.share(made, product, shaped, turned)
        to.end_here()

    return Match(f"it sums over {summed or 'nothing'} and repeats over {batch or 'nothing'}", write)


@rewrite("Gather", none="no stored table is read by a layer too", note="{} tables are no longer a layer's weight")
def table_of_its_own(look: ModelLook, node: NodeProto) -> Match | None:
    """Gives a Gather its own copy of a stored table that something else reads as well, as tied embeddings are.

    A quantizer gives a table and a weight encodings of their own.
    """
    name = node.input[0]
    if look.array(name) is None or all(reader.op_type == "Gather" for reader in look.readers(name)):
        return None

    def write(to: NodeSteps) -> None:
        to.gone = []
        to.node.input[0] = to.store(f"{name}_table", look.values(name))

    return Match(f"{name} is no table alone", write)


@rewrite("GatherND", none="no GatherND has stored indices", note="{} GatherNDs take rows")
def gathernd_to_gather(look: ModelLook, node: NodeProto) -> Match | None:
    """Write a GatherND with stored indices as a Gather from rows, or as a Reshape.

    The axes that an index points into become one axis of rows, and each index the number of a row.
    """
    indices = look.array(node.input[1])
    if indices is None or node.input[0] in look.static():
        return None
    shape = look.sizes(node.input[0])
    if attribute(node, "batch_dims", 0):
        raise NoMatchError("it takes other rows of each sample")
    pointed, rest = shape[: indices.shape[-1]], shape[indices.shape[-1] :]
    counted = np.where(indices < 0, indices + np.asarray(pointed), indices)
    numbers = np.ravel_multi_index(tuple(np.moveaxis(counted, -1, 0)), pointed).reshape(-1)
    result = (*indices.shape[:-1], *rest)

    def write(to: NodeSteps) -> None:
        source, made = to.source, to.made
        if not np.array_equal(numbers, np.arange(math.prod(pointed))):
            rows = to.reshape(source, (math.prod(pointed), *rest), f"{made}_rows")
            picked = to.add("Gather", [rows, to.store(f"{made}_picked_numbers", numbers)], f"{made}_picked", axis=0)
            to.share(source, rows)
            to.share(made, picked)
            source = picked
        to.reshape(source, result)

    return Match("its indices are stored", write)


@rewrite("ArgMax", "Cast", "Gather", none="no labels are given out", note="{} labels are given out by int32")
def cast_labels(look: ModelLook, node: NodeProto) -> Match | None:
    """Casts what an ArgMax, a Cast or a Gather gives out as int64 or uint8 to int32 and back, as a list.

    Nothing changes; some compilers take no such Gather as the last node, and turn the axes of no such map.
    """
    made, dtype = node.output[0], look.dtype(node.output[0])
    if (
        made not in look.outputs
        or dtype not in ("int64", "uint8")
        or (node.op_type != "Gather" and look.rank(made) < 3)
    ):
        return None
    shape = look.sizes(made)

    def write(to: NodeSteps) -> None:
        picked = to.source  # of two Casts in a row the provider leaves out both, and what they cut off
        if node.op_type != "Cast" or look.dtype(picked) != "float":
            picked = to.add(node.op_type, node.input, f"{made}_picked", **attributes(node))
        flat = to.reshape(to.add("Cast", [picked], f"{made}_wide", to=TensorProto.INT32), [-1], f"{made}_flat")
        to.reshape(to.add("Cast", [flat], f"{made}_list", to=helper.np_dtype_to_tensor_dtype(np.dtype(dtype))), shape)

    return Match(f"it gives out {dtype}", write)


@rewrite(
    "Gather",
    none="no computed list is gathered from by a stored index of several dimensions",
    note="{} lists are gathered from by flat indices",
)
def flat_index(look: ModelLook, node: NodeProto) -> Match | None:
    """Gather from a list by a flat index and shape the result, instead of by an index of several dimensions.

    An index that counts through the whole list leaves nothing to gather.
    """
    index = look.array(node.input[1])
    if index is None or index.ndim < 2 or node.input[0] in look.static() or look.rank(node.input[0]) != 1:
        return None
    whole = look.shape(node.input[0]) == (index.size,) and np.array_equal(index.reshape(-1), np.arange(index.size))

    def write(to: NodeSteps) -> None:
        source, made = to.source, to.made
        if whole:
            to.reshape(source, index.shape)
            return
        stored = to.store(f"{made}_flat_index", index.reshape(-1))
        flat = to.add("Gather", [source, stored], f"{made}_flat", name=to.node.name, axis=0)
        to.share(made, flat)
        to.reshape(flat, index.shape, name=to.graph.fresh(f"{made}_shaped"))

    return Match(f"an index of {index.ndim} dimensions into a list", write)


@rewrite(
    *("Gather", "GatherElements", "GatherND", "TopK"),
    none="no stored index of a Gather, GatherElements or GatherND is negative, nor the axis of a TopK",
    note="{} index lists and axes count from the front",
)
def index_from_front(look: ModelLook, node: NodeProto) -> Match | None:
    """Counts the stored indices of Gather, GatherElements and GatherND, and the axis of TopK, from the front.

    Devices count from the front only; the sum is stored beside the indices, which others may read as they are.
    """
    first, count = int(attribute(node, "axis", 0)), 1
    if node.op_type == "TopK":
        if first >= -1:
            return None
        kept = attributes(node) | {"axis": first % look.rank(node.input[0])}
        same = helper.make_node("TopK", node.input, node.output, name=node.name, **kept)
        return Match(f"its axis is {first}", lambda to: to.nodes.append(same))
    indices = look.array(node.input[1])
    if indices is None or indices.dtype.kind != "i" or not (indices < 0).any():
        return None
    if node.op_type == "GatherND":
        first, count = int(attribute(node, "batch_dims", 0)), indices.shape[-1]
    sizes = look.sizes(node.input[0], *range(first, first + count))
    added = np.asarray(sizes if len(sizes) > 1 else sizes[0], indices.dtype)

    def write(to: NodeSteps) -> None:
        to.gone = []
        counted = np.where(indices < 0, indices + added, indices)
        to.node.input[1] = to.store(f"{to.node.input[1]}_from_front", counted)

    return Match(f"{node.input[1]} counts from the end of a dimension that is known", write, tensors=(node.input[1],))


@rewrite(
    "CumSum",
    none="no CumSum is exclusive or reversed",
    note="{} cumulative sums run forwards over all values",
    ulps=4.0,
)
def cumulate_forward(look: ModelLook, node: NodeProto) -> Match | None:
    """Writes a reversed or exclusive CumSum with one that is neither.

    Turn, shift by a zero, cumulate, turn back.
    """
    shifts, turns = (bool(attribute(node, name, 0)) for name in ("exclusive", "reverse"))
    if not (shifts or turns):
        return None
    rank = look.rank(node.input[0])
    axis = 0 if rank == 1 else int(look.values(node.input[1]).reshape(())) % rank  # a vector has one axis
    (size,) = look.sizes(node.input[0], axis)
    if size < 1:
        raise NoMatchError(f"{node.input[0]} is empty")

    def write(to: NodeSteps) -> None:
        made, source = to.made, to.source
        order = to.store(f"{made}_order", np.arange(size - 1, -1, -1)) if turns else ""
        given = to.add("Gather", [source, order], f"{made}_turned", axis=axis) if turns else source
        if shifts:  # one zero in front, and the last value gone
            pads = [int(at == axis) for at in range(2 * rank)]
            longer = to.add("Pad", [given, to.store(f"{made}_longer_pads", pads)], f"{made}_longer")
            bounds = [to.store(f"{made}_shifted_{w}", [at]) for w, at in (("start", 0), ("end", size), ("axis", axis))]
            given = to.add("Slice", [longer, *bounds], f"{made}_shifted")
        to.share(source, *(step.output[0] for step in to.nodes))
        place = to.store(f"{made}_axis", axis)
        if not turns:
            to.end("CumSum", [given, place])
            return
        summed = to.add("CumSum", [given, place], f"{made}_forward", name=to.node.name)
        to.share(made, summed)
        to.end("Gather", [summed, order], name=f"{made}_turn", axis=axis)

    return Match("it is exclusive or reversed", write)


@rewrite("Mod", none="no Mod keeps the sign of its dividend", note="{} remainders of integers need no fmod")
def integer_remainder(look: ModelLook, node: NodeProto) -> Match | None:
    """Writes Mod with fmod = 1 of integers with what devices have.

    The other Mod where signs cannot differ, else a - (a / b) * b: integer division cuts towards zero.
    """
    if not attribute(node, "fmod", 0):
        return None
    if "int" not in look.dtype(node.input[0]):
        raise NoMatchError("it is a remainder of floats")
    bounds = graph_bounds(look)
    positive = all(bounds.get(name, ANYTHING)[0] >= 0 for name in node.input)

    def write(to: NodeSteps) -> None:
        (dividend, divisor), made = to.node.input, to.made
        if positive:
            to.end("Mod", [dividend, divisor])
            return
        whole = [to.add("Div", [dividend, divisor], f"{made}_quotient"), divisor]
        to.end("Sub", [dividend, to.add("Mul", whole, f"{made}_whole")])

    return Match("it is a remainder of integers", write)


@rewrite("ReduceProd", none="there is no ReduceProd", note="{} products are made by halves", ulps=64.0, completes=True)
def product_by_halves(look: ModelLook, node: NodeProto) -> Match:
    """Writes ReduceProd as products of halves.

    Axes are brought to the end and made one; then one half times the other, until one value is left.
    """
    sizes = look.sizes(node.input[0])
    axes = look.axes(node, len(sizes))
    kept = [axis for axis in range(len(sizes)) if axis not in axes]
    rows, columns = (math.prod(sizes[axis] for axis in part) for part in (kept, axes))
    if not 0 < columns <= _MOST_FACTORS:
        raise NoMatchError(f"it multiplies {columns} values, from 1 to {_MOST_FACTORS} are written out")
    keeps = bool(attribute(node, "keepdims", 1))
    result = [1 if axis in axes else size for axis, size in enumerate(sizes) if keeps or axis not in axes]

    def write(to: NodeSteps) -> None:
        made = to.made
        ordered = to.add("Transpose", [to.source], f"{made}_ordered", perm=[*kept, *axes])
        last, left = to.reshape(ordered, [rows, columns], f"{made}_matrix"), columns
        to.share(to.source, ordered, last)
        while left > 1:
            half, odd = divmod(left, 2)
            names = [to.graph.fresh(f"{made}_{what}{left}") for what in ("front", "back", "rest")[: 2 + odd]]
            to.listed("Split", last, "split", [half, half, odd][: 2 + odd], names, axis=1)
            last = to.add("Mul", names[:2], f"{made}_product{left}")
            if odd:  # the last column goes on as it is
                last = to.add("Concat", [last, names[2]], f"{made}_joined{left}", axis=1)
            left = half + odd
        to.reshape(last, result)
        to.share(made, last)

    return Match(f"it multiplies {columns} values", write)


@rewrite("Pad", none="no Pad goes round, or repeats its ends over three axes", note="{} Pads take their borders")
def pad_by_borders(look: ModelLook, node: NodeProto) -> Match | None:
    """Joins what is padded with borders that are gathered from it, axis by axis.

    A Pad of three axes with the mode edge or reflect, and one of any with the mode wrap.
    """
    mode, sizes = str(attribute(node, "mode", "constant")), look.sizes(node.input[0])
    if mode == "constant" or (mode != "wrap" and len(sizes) < 5):
        return None
    given, pads = operand(node, 3), look.values(operand(node, 1)).tolist()
    axes = look.values(given).tolist() if given else range(len(sizes))
    grown = [(axis, *ends) for axis, *ends in zip(axes, pads[: len(axes)], pads[len(axes) :], strict=True) if any(ends)]
    if not grown or min(pads) < 0 or 0 in sizes:
        raise NoMatchError("it adds nothing, or takes values away")

    def write(to: NodeSteps) -> None:
        last, made = to.source, to.made
        for axis, before, behind in grown:
            places = np.pad(np.arange(sizes[axis]), (before, behind), mode=mode)  # type: ignore[call-overload]
            parts = [
                to.add("Gather", [last, to.store(f"{made}_places", part)], f"{made}_border", axis=axis)
                for part in (places[:before], places[before + sizes[axis] :])
                if part.size
            ]
            parts.insert(1 if before else 0, last)
            joined = made if axis == grown[-1][0] else to.graph.fresh(f"{made}_along{axis}")
            last = to.write("Concat", parts, joined, axis=axis)
            to.share(to.source, *parts, last)

    return Match(f"its mode is {mode}", write)


@rewrite(
    "LayerNormalization",
    none="no LayerNormalization gives its statistics",
    note="{} normalizations give their result only",
    ulps=64.0,
    completes=True,
)
def norm_statistics(look: ModelLook, node: NodeProto) -> Match | None:
    """Computes the statistics that a LayerNormalization gives on their own.

    Mean, deviation from it, its square's mean, and one over the root; what nothing reads is dropped.
    """
    if not any(node.output[1:]):
        return None
    rank, dtype = look.rank(node.input[0]), look.dtype(node.input[0])
    if dtype != "float":
        raise NoMatchError(f"{node.input[0]} is {dtype or 'of unknown type'}, its statistics need not be")
    axes = list(range(int(attribute(node, "axis", -1)) % rank, rank))

    def write(to: NodeSteps) -> None:
        source, made = to.source, to.made
        given = zip([*to.node.output[1:], ""][:2], ("mean", "inverse"), strict=True)
        mean, inverse = (name or to.graph.fresh(f"{made}_{what}") for name, what in given)
        to.gone = []
        del to.node.output[1:]
        to.listed("ReduceMean", source, "axes", axes, mean, keepdims=1)
        off = to.add("Sub", [source, mean], f"{inverse}_deviation")
        square = to.add("Mul", [off, off], f"{inverse}_square")
        variance = to.listed("ReduceMean", square, "axes", axes, to.graph.fresh(f"{inverse}_variance"), keepdims=1)
        epsilon = to.store(f"{inverse}_epsilon", float(attribute(to.node, "epsilon", 1e-5)))
        total = to.add("Add", [variance, epsilon], f"{inverse}_sum")
        # The statistics keep their names, so the last step takes the given one.
        to.write("Reciprocal", [to.add("Sqrt", [total], f"{inverse}_root")], inverse)

    return Match("it gives its statistics beside its result", write)


@rewrite(
    "Reciprocal",
    none="the graph has no Reciprocal of a Sqrt",
    note="{} products with the reciprocal of a root are quotients",
    ulps=4.0,
)
def divide_by_root(look: ModelLook, node: NodeProto) -> Match | None:
    """Divide by a Sqrt where a graph multiplies by its Reciprocal.

    As norms have it; it changes the order of two roundings and nothing else.
    """
    root, inverse = node.input[0], node.output[0]
    if look.maker(root, "Sqrt") is None:
        return None
    product = look.only_reader(inverse, "Mul")
    if product is None or list(product.input).count(inverse) != 1:
        raise NoMatchError(f"{inverse} is read by something else than one product")

    def write(to: NodeSteps) -> None:
        (dividend,) = (name for name in to.node.input if name != inverse)
        to.gone = [to.node, to.graph.makers[inverse]]
        to.end("Div", [dividend, root])

    return Match(
        f"{product.output[0]} is a quotient by {root}",
        write,
        output=product.output[0],
        nodes=(label(node), label(product)),
        tensors=(inverse,),
    )


@rewrite("ReduceSum", none="no ReduceSum is divided by the number of its values", note="{} sums are means", ulps=16.0)
def sum_to_mean(look: ModelLook, node: NodeProto) -> Match | None:
    """Write a sum that is divided by the number of its values as a ReduceMean.

    As jax writes the statistics of a norm; float16 holds the mean long after the sum has left it.
    """
    total = node.output[0]
    quotient = look.only_reader(total, "Div", "Mul")
    if quotient is None:
        return None
    factor = next((look.array(name) for name in quotient.input if name != total), None)
    if factor is None or factor.size != 1 or (quotient.op_type == "Div" and quotient.input[0] != total):
        return None
    sizes = look.sizes(node.input[0])
    if factor.ndim > look.rank(total):
        raise NoMatchError(f"{quotient.output[0]} has more axes than {total}")
    axes = look.axes(node, len(sizes))
    count, by = math.prod(sizes[axis] for axis in axes), float(factor.item())
    if not math.isclose(by if quotient.op_type == "Div" else 1 / (by or math.inf), count, rel_tol=1e-6):
        return None

    def write(to: NodeSteps) -> None:
        to.gone = [to.node, to.graph.makers[total]]
        to.listed("ReduceMean", node.input[0], "axes", axes, to.made, keepdims=attribute(node, "keepdims", 1))

    return Match(f"it divides by {count}", write, output=quotient.output[0], tensors=(total,))


@rewrite("Equal", none="no Equal compares bools", note="{} bools are compared by what they differ in")
def equal_of_bools(look: ModelLook, node: NodeProto) -> Match | None:
    """Writes an Equal of two bools as a Not of their Xor."""
    if look.dtype(node.input[0]) != "bool":
        return None
    return Match("it compares bools", lambda to: to.end("Not", [to.add("Xor", node.input, f"{to.made}_differs")]))


@rewrite("Cast", none="no Cast makes floats of small integers", note="{} Casts go by int32, or by a grid")
def cast_by_int32(look: ModelLook, node: NodeProto) -> Match | None:
    """Makes floats of uint8 and int16 by way of int32, and of int8 and uint16 as a grid with steps of 1."""
    dtype = look.dtype(node.input[0])
    if dtype not in ("uint8", "int16", "int8", "uint16") or attribute(node, "to") != TensorProto.FLOAT:
        return None

    def write(to: NodeSteps) -> None:
        if dtype in ("uint8", "int16"):
            integers = to.add("Cast", [to.source], f"{to.made}_integers", to=TensorProto.INT32)
            to.end("Cast", [integers], to=TensorProto.FLOAT)
            return
        where = CONTRIBUTED if dtype == "uint16" and to.graph.opset < 21 else ""  # since 21 ONNX has its own
        if where and not opset_of(to.graph.model, where):
            to.graph.model.opset_import.add(domain=where, version=1)
        step, zero = to.store(f"{to.made}_step", np.ones((), "f")), to.store(f"{to.made}_zero", np.zeros((), dtype))
        to.end("DequantizeLinear", [to.source, step, zero], domain=where)

    return Match("it makes floats of small integers", write)


@rewrite("OneHot", none="no OneHot has stored values but floats", note="{} OneHots give floats, and cast them")
def one_hot_of_floats(look: ModelLook, node: NodeProto) -> Match | None:
    """Stores the two values of a OneHot as floats, and casts what it gives to their type."""
    values = look.array(node.input[2])
    if values is None or values.dtype.kind not in "biu":
        return None

    def write(to: NodeSteps) -> None:
        inputs = [*to.node.input[:2], to.store(f"{to.node.input[2]}_as_float", values.astype(np.float32))]
        spread = to.add("OneHot", inputs, f"{to.made}_floats", axis=attribute(to.node, "axis", -1))
        to.end("Cast", [spread], to=helper.np_dtype_to_tensor_dtype(values.dtype))

    return Match(f"its values are {values.dtype}", write)


@rewrite("Pow", none="no Pow has a stored exponent of integers", note="{} exponents are of the type of their base")
def float_exponent(look: ModelLook, node: NodeProto) -> Match | None:
    """Stores an exponent of integers in the type of its base."""
    exponent, dtype = look.array(node.input[1]), look.dtype(node.input[0])
    if exponent is None or exponent.dtype.kind not in "iu" or dtype != "float":
        return None

    def write(to: NodeSteps) -> None:
        to.gone = []
        to.node.input[1] = to.store(f"{to.node.input[1]}_as_float", exponent.astype(np.float32))

    return Match("its exponent is of integers", write)


@rewrite("Clip", none="no Clip has computed bounds", note="{} Clips are made of Max and Min", completes=True)
def clip_to_extremes(look: ModelLook, node: NodeProto) -> Match | None:
    """Writes a Clip with computed bounds as a Max and a Min.

    A bound that is infinite bounds nothing and is left out.
    """
    bounds = [*node.input[1:], "", ""][:2]
    if all(not name or look.array(name) is not None for name in bounds):
        return None

    def write(to: NodeSteps) -> None:
        source, made = to.source, to.made
        for op_type, name in zip(("Max", "Min"), bounds, strict=True):
            value = look.array(name) if name else None
            if name and (value is None or np.isfinite(value).all()):
                source = to.add(op_type, [source, name], f"{made}_{op_type.lower()}")
        to.share(made, *(step.output[0] for step in to.nodes))
        to.end_here()

    return Match("its bounds are computed", write)


# Compilers tile a convolution at great cost where its places lie so many steps apart.
_FAR = 256


@rewrite(
    "Conv",
    none=f"no Conv has places that lie {_FAR} steps apart",
    note="{} Convs see their places as channels",
    ulps=64.0,
)
def conv_by_shifts(look: ModelLook, node: NodeProto) -> Match | None:
    """Writes a convolution whose places lie far apart as a 1x1 Conv of parts that are shifted.

    The parts are the source's values, so they have its entry; the weight keeps one scale per result.
    """
    far, pads = attribute(node, "dilations", ()), attribute(node, "pads", (0, 0))
    if max(far, default=1) < _FAR:
        return None
    weight, length = look.values(node.input[1]), look.sizes(node.output[0])[2]
    entry = look.entry(node.input[1])
    axes = len(far), attribute(node, "group", 1), *attribute(node, "strides", [1])
    if (
        axes != (1, 1, 1)
        or attribute(node, "auto_pad", "NOTSET") != "NOTSET"
        or getattr(entry and entry.value, "block_size", None)
    ):
        raise NoMatchError("it has two axes, groups, a stride, scales per block, or padding without numbers")

    def write(to: NodeSteps) -> None:
        source, parts = to.source, list[str]()
        if any(pads):
            edges = to.store(f"{to.made}_edges", [0, 0, pads[0], 0, 0, pads[1]])
            source = to.add("Pad", [source, edges], f"{to.made}_padded")
        for start in range(0, weight.shape[2] * far[0], far[0]):
            ends = [to.store(f"{to.made}_bound", [value]) for value in (start, start + length, 2)]
            parts.append(to.add("Slice", [source, *ends], f"{to.made}_part"))
        joined = to.add("Concat", parts, f"{to.made}_parts", axis=1)
        to.share(to.source, *(step.output[0] for step in to.nodes))
        kernel = to.store(f"{node.input[1]}_parts", weight.transpose(0, 2, 1).reshape(len(weight), -1, 1))
        to.put(entry, name=kernel)
        to.end("Conv", [joined, kernel, *node.input[2:]], kernel_shape=[1])

    return Match(f"its places lie {far[0]} steps apart", write, opset=13)


@rewrite("Conv", none="no Conv over three axes has dilation", note="{} kernels hold zeros for dilation", ulps=64.0)
def zeros_in_kernel(look: ModelLook, node: NodeProto) -> Match | None:
    """Writes the dilation of a convolution over three axes as zeros in its kernel."""
    far, name = attribute(node, "dilations", [1]), node.input[1]
    if max(far) == 1 or len(far) < 3:
        return None
    weight = look.values(name)
    sizes = [(size - 1) * steps + 1 for size, steps in zip(weight.shape[2:], far, strict=False)]
    if len(far) != weight.ndim - 2 or math.prod((*weight.shape[:2], *sizes)) > _LARGEST_KERNEL:
        raise NoMatchError("its kernel has other axes, or would be too large")

    def write(to: NodeSteps) -> None:
        wide = np.zeros((*weight.shape[:2], *sizes), weight.dtype)
        wide[:, :, *(slice(None, None, steps) for steps in far)] = weight
        kernel = to.store(f"{name}_wide", wide)
        to.put(to.entry(name), name=kernel)
        changed = {"dilations": [1] * len(far), "kernel_shape": sizes}
        to.end("Conv", [to.source, kernel, *node.input[2:]], **attributes(node) | changed)

    return Match(f"its places lie {max(far)} steps apart", write)


@rewrite(
    "ConvTranspose",
    none="no ConvTranspose has dilation",
    note="{} transposed convolutions are Convs",
    ulps=64.0,
)
def transposed_to_conv(look: ModelLook, node: NodeProto) -> Match | None:
    """Writes a transposed convolution with dilation as a Conv with the kernel turned round.

    What is cut off the result is padding that the Conv does without.
    """
    far, name = attribute(node, "dilations", [1]), node.input[1]
    if max(far) == 1:
        return None
    weight, group, entry = look.values(name), attribute(node, "group", 1), look.entry(name)
    pads = np.tile(np.multiply(far, np.subtract(weight.shape[2:], 1)), 2) - attribute(node, "pads", 0)
    if max(attribute(node, "strides", [1])) > 1 or min(pads) < 0 or (entry and look.grid(name) is None):
        raise NoMatchError("it has a stride, scales per channel, or more padding than its kernel reaches")

    def write(to: NodeSteps) -> None:
        parts = weight.reshape(group, -1, *weight.shape[1:]).swapaxes(1, 2)
        kernel = to.store(f"{name}_turned", np.flip(parts.reshape(-1, *parts.shape[2:]), tuple(range(2, weight.ndim))))
        to.put(entry, name=kernel)
        to.end("Conv", [to.source, kernel, *node.input[2:]], dilations=far, group=group, pads=pads.tolist())

    return Match(f"its places lie {max(far)} steps apart", write)


# The activations of the ONNX operators where none are named.
_USUAL = {"GRU": [b"Sigmoid", b"Tanh"], "LSTM": [b"Sigmoid", b"Tanh", b"Tanh"]}


@rewrite(
    *_USUAL,
    none="no GRU or LSTM names the activations that it has anyway",
    note="{} recurrent layers name no activations",
)
def usual_activations(_: ModelLook, node: NodeProto) -> Match | None:
    """Leaves out the activations of a GRU or LSTM that it has anyway.

    Nothing else changes.
    """
    kept, usual = attributes(node), _USUAL[node.op_type]
    if kept.pop("activations", None) not in (usual, usual * 2):  # of one direction, or of both
        return None
    same = helper.make_node(node.op_type, node.input, node.output, name=node.name, **kept)
    return Match("it has them anyway", lambda to: to.nodes.append(same))


# The most taps of all axes together: beyond, the graph grows more than it is worth.
_MOST_TAPS = 32


@rewrite(
    "AveragePool",
    none="no AveragePool has a window that is larger than its map",
    note="{} pools are over the whole map",
    ulps=16.0,
)
def global_pool(look: ModelLook, node: NodeProto) -> Match | None:
    """Write an AveragePool whose window is larger than its map as a GlobalAveragePool.

    Exporters write such windows counting on the rounding up of their number; the mean is the same.
    """
    shape = look.shape(node.input[0]) or ()
    window, sizes = attribute(node, "kernel_shape", []), [size for size in shape[2:] if isinstance(size, int)]
    plain = not any(attribute(node, "pads", [0])) and attribute(node, "auto_pad", "NOTSET") in ("NOTSET", "VALID")
    if not plain or not sizes or not len(sizes) == len(shape) - 2 == len(window):
        return None
    if list(window) == sizes or any(size > side for size, side in zip(sizes, window, strict=True)):
        return None
    return Match(f"its window holds all of {list(shape)}", lambda to: to.end("GlobalAveragePool", [to.source]))


class PoolAxis(Record):
    """The windows along one axis: for every place of the result, the places that its window covers, and which exist.

    ``places`` and ``exists`` are [result, kernel]; a place beyond either end is ``padded`` where the operator pads
    there, and not where only rounding up made room for it.
    """

    axis: int
    size: int
    places: npt.NDArray[np.int64]
    exists: npt.NDArray[np.bool_]
    padded: npt.NDArray[np.bool_]


@rewrite(
    *("MaxPool", "AveragePool"),
    none="no pooling is over three axes or has a dilation",
    note="{} poolings are combinations of taps",
    ulps=16.0,
    completes=True,
)
def pool_by_taps(look: ModelLook, node: NodeProto) -> Match | None:
    """Writes pooling over three axes, or with a dilation, as combinations of Gathers.

    What each place of a window sees, combined.
    """
    kernel = tuple(attribute(node, "kernel_shape", ()))
    dilations = tuple(attribute(node, "dilations", ())) or (1,) * len(kernel)
    if set(dilations) == {1} and not (len(kernel) == 3 and node.op_type == "MaxPool"):
        return None
    if len([name for name in node.output if name]) > 1:
        raise NoMatchError("it gives the places of the greatest values too")
    given, made = look.sizes(node.input[0]), look.sizes(node.output[0])
    if 0 in (*given, *made):
        raise NoMatchError(f"{node.input[0]} or {node.output[0]} is empty")
    if sum(kernel) > _MOST_TAPS:
        raise NoMatchError(f"its windows need {sum(kernel)} taps, at most {_MOST_TAPS} are made")
    windows = pool_windows(node, given, made)
    covered = " x ".join(str(window.places.shape[1]) for window in windows)

    combined = _Taps.greatest if node.op_type == "MaxPool" else _Taps.average
    return Match(f"its windows cover {covered} places", lambda to: combined(_Taps(to, list(given)), windows))


def pool_windows(node: NodeProto, given: Sequence[int], made: Sequence[int]) -> list[PoolAxis]:
    """The windows of a pool along each spatial axis; ``given`` and ``made`` are the sizes of its input and result."""
    kernels, pads, word = (attribute(node, name, ()) for name in ("kernel_shape", "pads", "auto_pad"))
    dilations, strides = (attribute(node, name, ()) or (1,) * len(kernels) for name in ("dilations", "strides"))
    windows = []
    for axis, (kernel, dilation, stride) in enumerate(zip(kernels, dilations, strides, strict=True)):
        size, result = given[axis + 2], made[axis + 2]
        before, behind = (pads[axis], pads[axis + len(pads) // 2]) if pads else (0, 0)
        if word in ("SAME_UPPER", "SAME_LOWER"):
            total = max((result - 1) * stride + (kernel - 1) * dilation + 1 - size, 0)
            before = total // 2 if word == "SAME_UPPER" else total - total // 2
            behind = total - before
        places = np.arange(result)[:, None] * stride + np.arange(kernel)[None, :] * dilation - before
        exists = (places >= 0) & (places < size)
        padded = ~exists & (places >= -before) & (places < size + behind)
        windows.append(PoolAxis(axis=axis + 2, size=size, places=places.astype(np.int64), exists=exists, padded=padded))
    return windows


class _Taps:
    """The nodes of one pooling. While an axis is worked on, the tensor has three axes and this one is the second."""

    def __init__(self, to: NodeSteps, shape: list[int]) -> None:
        self._to, self._shape = to, shape
        self._source, self._made = to.source, to.made

    def greatest(self, windows: list[PoolAxis]) -> None:
        """Write a MaxPool.

        A place beyond the end reads a place of the same window that exists: the greatest stays the greatest.
        """
        source = self._source
        for window in windows:
            nearest = np.argmax(window.exists, axis=1)
            inside = window.places[np.arange(len(nearest)), nearest]
            places = np.where(window.exists, window.places, inside[:, None])
            source = self._combined("Max", self._flat(source, window.axis), window, places)
        self._to.reshape(source, self._shape, name=f"{self._made}_reshaped")

    def average(self, windows: list[PoolAxis]) -> None:
        """Write an AveragePool: sums along each axis, times one over the number of places that count.

        Places beyond the end read a zero that is put behind the last place.
        """
        to, source = self._to, self._source
        counted = bool(attribute(to.node, "count_include_pad", 0))
        number = np.ones(1, np.float32)
        for window in windows:
            source = self._flat(source, window.axis)
            if not window.exists.all():
                pads = to.store(f"{source}_padded_pads", [0, 0, 0, 0, 1, 0])
                source = to.add("Pad", [source, pads], f"{source}_padded")
            source = self._combined("Sum", source, window, np.where(window.exists, window.places, window.size))
            along = (window.exists | (window.padded & counted)).sum(axis=1)
            number = number[..., None] * along.astype(np.float32)
        summed = to.reshape(source, self._shape, f"{self._made}_sum")
        to.end("Mul", [summed, to.store(f"{self._made}_share", 1 / number)])

    def _flat(self, source: str, axis: int) -> str:
        """Reshape to three axes: all in front of ``axis`` as one, ``axis``, and all behind it as one."""
        shape = (math.prod(self._shape[:axis]), self._shape[axis], math.prod(self._shape[axis + 1 :]))
        return self._to.reshape(source, shape, f"{self._made}_axis{axis}_given")

    def _combined(self, op_type: str, source: str, window: PoolAxis, places: npt.NDArray[np.int64]) -> str:
        """Combine the taps of all windows along one axis; returns the result's name."""
        taps = []
        for number in range(places.shape[1]):
            tap = f"{self._made}_axis{window.axis}_tap{number}"
            stored = self._to.store(f"{tap}_places", np.ascontiguousarray(places[:, number]))
            taps.append(self._to.add("Gather", [source, stored], tap, axis=1))
        self._shape[window.axis] = len(places)
        # Compilers take no Max of one operand, nor of more than two in integers.
        return reduce(lambda one, two: self._to.add(op_type, [one, two], f"{self._made}_axis{window.axis}"), taps)
