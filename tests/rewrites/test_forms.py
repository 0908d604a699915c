"""Operators in another form: the same results, the operators that are left, and the grids that go along; others stay.

Each row is one model in ONNX's text form.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import ModelProto, numpy_helper

from deploykit.accuracy.simulate.sessions import Session
from deploykit.backend.backend import Request
from deploykit.encodings.formats.aimet import write_encodings
from deploykit.encodings.values import Affine, Encoding, EncodingSet
from deploykit.flow.cure import rewrite
from deploykit.flow.pipeline import make_package
from deploykit.model.shape_inference import infer
from deploykit.rewrites.contract import load_transform
from sample_models.feeds import random_feeds
from tables import each_row
from text_models import text_model
from written import assert_as_written

A, B = (Affine(bits=16, signed=False, scale=np.asarray(scale), zero_point=np.asarray(32768)) for scale in (1e-4, 2e-4))


@dataclass(frozen=True)
class Row:
    """A model and what becomes of it: ``left`` are the operators, in order, or those of which it may consist; "-X" says
    that none has an X in its name, None nothing.

    ``holds`` has lists of stored integers and tuples of dimensions by name, ``gone`` what is not stored any more.
    ``after`` are all entries with their grids; ``covered`` says that every result has one, but for those named;
    ``has`` names some.
    """

    name: str
    model: ModelProto
    left: str | frozenset[str] | None
    feed: Mapping[str, Any] | None = None
    holds: Mapping[str, Any] = field(default_factory=dict)
    gone: str = ""
    axes: list[int] | None = None
    before: Mapping[str, Affine] = field(default_factory=dict)
    after: Mapping[str, Affine] = field(default_factory=dict)
    covered: frozenset[str] | None = None
    has: str = ""

    def __repr__(self) -> str:
        return f"{self.name}: {onnx.printer.to_text(self.model.graph)}"


def grids(names: str, grid: Affine = A) -> dict[str, Affine]:
    return dict.fromkeys(names.split(), grid)


def reduced(model: ModelProto) -> list[int]:
    """The axes of the only reduction."""
    (node,) = [node for node in model.graph.node if node.op_type.startswith("Reduce")]
    if len(node.input) == 1:
        return next(list(a.ints) for a in node.attribute if a.name == "axes")
    return next(numpy_helper.to_array(t).tolist() for t in model.graph.initializer if t.name == node.input[1])


# Lists and tables by index.
LIST = "l = Relu (x)  t = Gather (l, index)  y = Sigmoid (t)"
COUNTED = np.arange(48)
PAIRS = np.stack(np.meshgrid(np.arange(2), np.arange(3), indexing="ij"), -1)


def flat(index: Any, given: str = "float[48] x", body: str = LIST, **stored: Any) -> ModelProto:
    return text_model(given, body, index=np.asarray(index, np.int64), **stored)


def from_front(op: str, index: Any, given: str = "float[2,4,3] x") -> ModelProto:
    return text_model(given, f"y = {op} (x, index)", index=np.asarray(index, np.int64))


def nd(index: Any, attributes: str = "", given: str = "float[2,3,4] x") -> ModelProto:
    return text_model(given, f"y = GatherND {attributes} (x, index)", index=np.asarray(index, np.int64))


INDICES = [
    Row("flat-index", flat(COUNTED.reshape(1, 48, 1, 1)), "Relu Reshape Sigmoid"),
    *(
        Row("flat-index", flat(index), "Relu Gather Reshape Sigmoid", before={"t": B}, after=after)
        for index in (COUNTED.reshape(6, 8)[:, ::-1], np.arange(12).reshape(3, 4), [[-1, 0], [5, -48]])
        for after in ({"t": B, "t_flat": B},)
    ),
    *(
        Row("index-from-front", from_front(op, index), op.split()[0], holds={"index_from_front": counted})
        for op, index, counted in (
            ("Gather <axis = 1>", [-1, 2, -4], [3, 2, 0]),
            ("Gather <axis = -1>", -2, 1),
            ("GatherElements <axis = 0>", np.tile([[[-1]], [[0]]], (1, 4, 3)), [[[1] * 3] * 4, [[0] * 3] * 4]),
            ("GatherND", [[-1, -4, 2], [1, 0, -3]], [[1, 0, 2], [1, 0, 0]]),
            ("GatherND <batch_dims = 1>", [[-1], [2]], [[3], [2]]),
        )
    ),
    # other readers keep the index as it was
    Row(
        "index-from-front",
        text_model(
            *("float[4] x, float[9] z", "a = Gather (x, index)  b = Gather (z, index)  c = Identity (index)"),
            *("a, b, int64[1] c",),
            index=[-1],
        ),
        "Gather Gather Identity",
        holds={"index": [-1], "index_from_front": [3], "index_from_front_1": [8]},
    ),
    *(
        Row("gathernd-to-gather", nd(index), left)
        for index, left in (
            ([[1], [0], [-1]], "Reshape Gather Reshape"),
            ([[[[[1, 2, 3]]]]], "Reshape Gather Reshape"),
            (PAIRS.reshape(1, 1, 2, 3, 2), "Reshape"),
            ([[0], [1]], "Reshape"),
        )
    ),
    Row(
        "gathernd-to-gather",
        nd([[1, 2], [0, 0], [-1, -3]]),
        "Reshape Gather Reshape",
        before={"x": A, "y": B},
        after={"x": A, "y_rows": A, "y_picked": B, "y": B},
    ),
]

# Arithmetic: remainders, quotients, products of matrices, windows over whole maps.
ROOT = "q = Mul (x, x)  p = Add (q, eps)  r = Sqrt (p)  i = Reciprocal (r)"
SIGNED = {"x": np.array([-7, 7, -8, 8, -1, 1, 0, 50], np.int64)}
BY = [3, 3, 4, 4, 5, 5, 7, 7]
SIZES = {"b": 2, "h": 3, "q": 5, "k": 4, "d": 6}
EQUATIONS = ["bqd, bkd -> bqk", "bqd,bdhk->bqhk", "qd,dk->kq", "bhqd,bhkd->bhqk", "hbqd,bkd->bqhk", "qd,kd", "q,k->kq"]
EQUATIONS += ["bqd,bqd->bq", "bq,bq->qb", "dhb,dq->hqb", "d,d->"]


def product(equation: str) -> ModelProto:
    terms = equation.replace(" ", "").replace("...", "bh").split("->")[0].split(",")
    shapes = (",".join(str(SIZES[letter]) for letter in term) for term in terms)
    given = ", ".join(f"float[{shape}] x{number}" for number, shape in enumerate(shapes))
    operands = ", ".join(f"x{number}" for number in range(len(terms)))
    return text_model(given, f'y = Einsum <equation = "{equation}"> ({operands})')


def pooled(side: int, more: str = "") -> ModelProto:
    settings = f"kernel_shape = [{side}, {side}], strides = [{side}, {side}], ceil_mode = 1{more}"
    return text_model("float[2,3,6,6] x", f"y = AveragePool <{settings}> (x)", opset=19)


def as_sum(end: str, *, opset: int = 17) -> ModelProto:
    """Sums of eight values, and what they end in."""
    body = "ReduceSum (x, axes)" if opset >= 13 else "ReduceSum <axes = [2]> (x)"
    stored: dict[str, Any] = {"part": 0.125, "count": 8.0, "wide": np.full((1, 1, 1, 1), 0.125, np.float32)}
    stored["axes"] = [2]
    used = {name: value for name, value in stored.items() if name in f"{body} {end}".replace("<axes", "")}
    return text_model("float[2,3,8] x", f"s = {body}  y = {end}", opset=opset, **used)


ARITHMETIC = [
    Row("integer-remainder", text_model("int64[8] x", "y = Mod <fmod = 1> (x, by)", by=BY), "Div Mul Sub", feed=SIGNED),
    Row(
        "integer-remainder",
        text_model("int64[8] x", "c = Clip (x, low, high)  y = Mod <fmod = 1> (c, by)", by=BY, low=0, high=99),
        "Clip Mod",
        feed=SIGNED,
    ),
    *(
        Row("divide-by-root", text_model("float[2,8] x", f"{ROOT}  y = Mul ({pair})", eps=0.1), left)
        for pair in ("x, i", "i, x")
        for left in ("Mul Add Sqrt Div",)
    ),
    *(
        Row("einsum-to-matmul", product(equation), frozenset({"MatMul", "Reshape", "Transpose"}))
        for equation in EQUATIONS
    ),
    Row("einsum-to-matmul", product("bqd,bdk->bqk"), "MatMul"),
    Row(
        "einsum-to-matmul",
        product("bqd,bhkd->bhqk"),
        frozenset({"MatMul", "Reshape", "Transpose"}),
        before=grids("x0 x1 y"),
        covered=frozenset(),
    ),
    *(
        Row("sum-to-mean", as_sum(end, opset=opset), "ReduceMean")
        for opset in (12, 18)
        for end in ("Mul (s, part)", "Mul (part, s)", "Div (s, count)")
    ),
    *(
        Row("global-pool", pooled(side, f", count_include_pad = {counted}"), "GlobalAveragePool")
        for side in (7, 320)
        for counted in (0, 1)
    ),
]


# Shapes: normalizations over rows, orders of many axes, axes of length 1, operands of one shape.
def normed(op: str, shape: tuple[int, ...], axis: int, opset: int = 23, given: str = "") -> ModelProto:
    random = np.random.default_rng(5)
    stored: dict[str, Any] = {"scale": random.uniform(0.5, 1.5, shape[axis:]).astype(np.float32)}
    if op == "LayerNormalization" and opset > 17:
        stored["shift"] = random.normal(0, 1, shape[axis:]).astype(np.float32)
    body = f"y = {op} <axis = {axis}, epsilon = 0.001> (x, {', '.join(stored)})"
    return text_model(f"float[{given or ','.join(map(str, shape))}] x", body, opset=opset, **stored)


CHAIN = "p = Reshape (x, s1)  t = Transpose <perm = [5, 4, 3, 2, 1, 0]> (p)  w = Reshape (t, s2)  y = Relu (w)"


def chain(between: list[int], order: list[int], last: list[int], made: str = "y") -> ModelProto:
    body = CHAIN.replace("[5, 4, 3, 2, 1, 0]", str(order))
    return text_model(f"float[{int(np.prod(between))}] x", body, made, s1=between, s2=last)


def over(op: str = "ReduceMean", axes: Any = (-1, -2), keepdims: int = 1, opset: int = 17) -> ModelProto:
    """Nine tokens of 16 channels, turned to [1, 16, 1, 9] and pooled."""
    listed = opset >= 18 or op == "ReduceSum"
    call = f"<keepdims = {keepdims}> (i, axes)" if listed else f"<keepdims = {keepdims}, axes = {list(axes)}> (i)"
    body = f"t = Transpose <perm = [0, 2, 1]> (x)  i = Unsqueeze (t, at)  y = {op} {call}"
    stored: dict[str, Any] = {"axes": list(axes)} if listed else {}
    return text_model("float[1,9,16] x", body, opset=opset, at=[2], **stored)


def summed(op: str, shape: tuple[int, ...], given: str = "2,16,8", norm: str = "", made: str = "y") -> ModelProto:
    table = np.random.default_rng(3).normal(0, 1, shape).astype(np.float32)
    body = f"s = {op} (x, table)  {norm or 'y = LayerNormalization (s, scale)'}"
    return text_model(f"float[{given}] x", body, made, table=table, scale=np.ones(8, "f4"), eps=1e-5, rows=[32, 8])


WRITTEN = "m = ReduceMean <axes = [-1]> (s)  c = Sub (s, m)  q = Mul (c, c)  v = ReduceMean <axes = [-1]> (q)"
WRITTEN += "  p = Add (v, eps)  r = Sqrt (p)  y = Div (c, r)"
REPEATED = {"table_repeated": (2, 16, 8), "scale": (8,)}
SHAPES = [
    *(
        Row("norm-rows", normed(op, shape, axis), f"Reshape {op} Reshape", holds={"y_rows_shape": matrix})
        for op, shape, axis, matrix in (
            ("LayerNormalization", (2, 4, 8), -2, [2, 32]),
            ("LayerNormalization", (2, 4, 8), 1, [2, 32]),
            ("LayerNormalization", (1, 3, 4, 8), 1, [1, 96]),
            ("RMSNormalization", (1, 4, 8), -2, [1, 32]),
            ("RMSNormalization", (3, 4, 8), -1, [12, 8]),
        )
    ),
    Row(
        "norm-rows",
        normed("LayerNormalization", (2, 4, 8), -2, 17),
        "Reshape LayerNormalization Reshape",
        before=grids("x scale y"),
        after=grids("x y_rows scale_row y_computed y"),
    ),
    *(
        Row("merge-axes", chain(*how), left, before=grids("x p t y"), covered=frozenset({"w"}))
        for left, ways in {
            "Reshape Transpose Reshape Relu": [
                ([1, 2, 7, 2, 7, 3], [0, 1, 3, 2, 4, 5], [4, 49, 3]),  # a window partition
                ([1, 2, 2, 7, 7, 3], [0, 1, 3, 2, 4, 5], [1, 14, 14, 3]),  # and back
                ([1, 2, 2, 7, 7, 3], [0, 1, 3, 2, 4, 5], [1, 2, 7, 14, 3]),  # to five
                ([2, 3, 2, 2, 4, 5], [0, 1, 4, 2, 5, 3], [2, 3, 8, 10]),  # a pixel shuffle
            ],
            "Reshape Transpose Reshape Transpose Reshape Relu": [  # nothing stays beside anything
                ([2, 3, 2, 3, 2, 3], [5, 3, 1, 4, 2, 0], [6, -1]),
                ([2, 3, 2, 3, 2, 3], [5, 4, 3, 2, 1, 0], [0, 12, 6]),
            ],
        }.items()
        for how in ways
    ),
    *(
        Row(
            "longer-axes",
            over(op, keepdims=keepdims, opset=opset),
            f"Transpose Unsqueeze {op}" + ("" if keepdims else " Reshape"),
            axes=[3],
            before=grids("x t i", A) | {"y": B},
            after=grids("x t i", A) | {"y": B} | ({} if keepdims else {"y_kept": B}),
        )
        for op, opset in (("ReduceMean", 17), ("ReduceMean", 18), ("ReduceSum", 13))
        for keepdims in (0, 1)
    ),
    # all axes are meant where none is named
    Row(
        "longer-axes",
        text_model("float[1,9,16] x", "t = Transpose <perm = [0, 2, 1]> (x)  y = ReduceMean (t)"),
        "Transpose ReduceMean",
        axes=[1, 2],
    ),
    *(
        Row(
            "expand-before-norm",
            summed(op, shape),
            f"{op} LayerNormalization",
            holds=REPEATED,
            gone="table",
            before=grids("x s y", B) | {"table": A},
            after=grids("x s y", B) | {"table_repeated": A},
        )
        for op in ("Add", "Mul")
        for shape in ((1, 16, 8), (16, 8), (2, 1, 8))
    ),
    *(
        Row("expand-before-norm", text_model("float[2,16,8] x", f"{mean}  {NORM}", scale=[1.0] * 8), left)
        for NORM in ("s = Add (m, x)  y = LayerNormalization (s, scale)",)
        for mean, left in (
            ("m = ReduceMean <axes = [0], keepdims = 0> (x)", "ReduceMean Reshape Tile Add LayerNormalization"),
            ("m = ReduceMean <axes = [0], keepdims = 1> (x)", "ReduceMean Tile Add LayerNormalization"),
            ("m = ReduceMean <axes = [1], keepdims = 1> (x)", "ReduceMean Tile Add LayerNormalization"),
        )
    ),
    # a written-out norm is one, and a Reshape in between hides nothing
    Row("expand-before-norm", summed("Add", (16, 8), norm=WRITTEN), "Add ReduceMean Sub Mul ReduceMean Add Sqrt Div"),
    Row(
        "expand-before-norm",
        summed("Add", (16, 8), norm="f = Reshape (s, rows)  y = LayerNormalization (f, scale)"),
        "Add Reshape LayerNormalization",
    ),
    # other readers keep the table as it was
    Row(
        "expand-before-norm",
        summed("Add", (1, 16, 8), norm="y = LayerNormalization (s, scale)  z = Relu (table)", made="y, z"),
        "Add LayerNormalization Relu",
        holds=REPEATED | {"table": (1, 16, 8)},
    ),
]


# Operators that devices lack, written with those they have.
POOL = "y = MaxPool <kernel_shape = [2, 3, 2], strides = [2, 1, 1], pads = [0, 1, 0, 1, 1, 0]> (x)"
STRIDED = "kernel_shape = [3, 2, 2], strides = [2, 2, 3], auto_pad"
DILATED = "y = AveragePool <kernel_shape = [3, 2], dilations = [2, 2], pads = [2, 1, 2, 1]{}> (x)"
COUNTED_IN = "kernel_shape = [2, 2, 2], dilations = [1, 2, 3], pads = [1, 1, 1, 0, 1, 1], count_include_pad = 1"
NORMED: dict[str, Any] = {name: np.random.default_rng(2).uniform(0.5, 1.5, 3).astype("f4") for name in "sbmv"}
UNBOUND = "parts = SplitToSequence <axis = 0, keepdims = 0> (x)  one = SequenceAt (parts, last)"
UNBOUND += "  other = SequenceAt (parts, front)  y = Sub (one, other)"
STACKED = "a = SequenceConstruct (x, z)  n = Neg (x)  b = SequenceInsert (a, n, at)  c = SequenceErase (b, back)"
STACKED += "  y = ConcatFromSequence <axis = 1, new_axis = 1> (c)"
PLACES: dict[str, Any] = {"last": -1, "front": 0, "size": 3, "at": 1, "back": -3, "unit": 1}


def with_statistics(opset: int, outputs: str, axis: int = -1) -> ModelProto:
    scale = np.random.default_rng(1).uniform(0.5, 1.5, (3, 4, 5)[axis:]).astype(np.float32)
    body = f"y, mean, inverse = LayerNormalization <axis = {axis}, epsilon = 0.01> (x, scale)"
    model = text_model("float[3,4,5] x", body, f"y{outputs}", opset=opset, scale=scale)
    for place, name in enumerate(("y", "mean", "inverse")):
        if name != "y" and name not in outputs:
            model.graph.node[0].output[place] = ""
    return model


def old(step: str, *more: str, **stored: Any) -> ModelProto:
    """A model of operator set 6, which lists stored tensors among the inputs."""
    given = ["float[2,3,4,4] x", *(f"float[{','.join(map(str, array.shape))}] {n}" for n, array in stored.items())]
    model = text_model(
        ", ".join(given), f"y = {step} ({', '.join(['x', *stored])})", "float[2,3,4,4] y", opset=6, **stored
    )
    model.ir_version = 3
    return model


def batched(*symbols: str | None, shape: str = "1,4") -> ModelProto:
    """A sum over inputs whose first dimensions are symbols."""
    names = [f"x{number}" for number in range(len(symbols))]
    body = f"shape = Shape (x0)  sum = Sum ({', '.join(names)})  y = Reshape (sum, shape)"
    model = text_model(", ".join(f"float[{shape}] {name}" for name in names), body)
    for item, symbol in zip(model.graph.input, symbols, strict=True):
        if symbol is not None:
            item.type.tensor_type.shape.dim[0].dim_param = symbol
    return model


MEAN = "y = AveragePool <kernel_shape = [2, 2], dilations = [2, 2]> (x)"
CHANNELS = np.asarray([0.5, -1.0, 2.0], np.float32)
BOTH = grids("x y")
FIVE = "float[2,3,4,5,6]"
TAPS = frozenset(["Gather", "Max", "Sum", "Mul", "Pad", "Reshape"])
SPLIT = "parts = SplitToSequence <axis = 1> (x, size)  y = ConcatFromSequence <axis = 1> (parts)"
LENGTH = "parts = SplitToSequence <axis = 1> (x)  n = SequenceLength (parts)  y = Add (n, unit)"
LOWERED = [
    Row("pool-by-taps", text_model("float[1,2,6,5,7] x", POOL), TAPS, before=BOTH, covered=frozenset()),
    Row(
        "pool-by-taps",
        text_model("float[1,2,9,9] x", MEAN, opset=19),
        TAPS,
        before=BOTH,
        has="x y y_axis2_given y_axis2_tap0",
    ),
    *(
        Row("pool-by-taps", text_model(f"float[{shape}] x", body, opset=19), TAPS)
        for shape, body in (
            ("1,2,9,8", "y = MaxPool <kernel_shape = [3, 2], dilations = [2, 3], pads = [2, 1, 2, 1]> (x)"),
            ("2,3,5,6,7", f'y = MaxPool <{STRIDED} = "SAME_UPPER"> (x)'),
            ("2,3,5,6,7", f'y = MaxPool <{STRIDED} = "SAME_LOWER"> (x)'),
            ("2,3,17", "y = MaxPool <kernel_shape = [3], dilations = [2], strides = [3]> (x)"),
            ("1,2,9,8", DILATED.format("")),
            ("1,2,9,8", DILATED.format(", ceil_mode = 1")),
            ("1,2,6,7,8", f"y = AveragePool <{COUNTED_IN}> (x)"),
            ("1,2,6,7,8", f"y = AveragePool <{COUNTED_IN}, strides = [2, 2, 2], ceil_mode = 1> (x)"),
        )
    ),
    *(
        Row(
            "cumulate-forward",
            text_model(f"float[{shape}] x", f"y = CumSum <{words}> (x, axis)", axis=axis),
            None,
            before=BOTH,
            covered=frozenset(),
        )
        for words in ("reverse = 1", "exclusive = 1", "reverse = 1, exclusive = 1")
        for shape, axis in (("3,4", -1), ("3,1,4", 0))
    ),
    *(
        Row(
            "product-by-halves",
            text_model(f"float[{shape}] x", f"y = ReduceProd{words} (x)"),
            "-ReduceProd",
            before=BOTH,
            has="y_ordered y_matrix",
        )
        for shape, words in (
            ("3,4", ""),
            ("3,5,2", " <axes = [1], keepdims = 0>"),
            ("2,7", " <axes = [-1]>"),
            ("2,3,4", " <axes = [0, 2]>"),
            ("4,1", " <axes = [1]>"),
        )
    ),
    Row("product-by-halves", text_model("float[3,4] x", "y = ReduceProd (x, axes)", opset=18, axes=[1]), "-ReduceProd"),
    Row(
        "rank-four",
        text_model("float[2,3,4,5,6] x", "y = BatchNormalization (x, s, b, m, v)", **NORMED),
        "Reshape BatchNormalization Reshape",
        before=BOTH,
        has="y_merged y_computed",
    ),
    Row("rank-four", text_model(f"{FIVE} x", "y = Tanh (x)"), "Reshape Tanh Reshape", before=BOTH, has="y_merged"),
    Row(
        "rank-four", text_model(f"{FIVE} x, float[2,3,4,6,5] z", "y = MatMul (x, z)"), "Reshape Reshape MatMul Reshape"
    ),
    Row("rank-four", text_model(f"{FIVE} x", "y = MatMul (x, w)", w=[[1.0]] * 6), "Reshape MatMul Reshape"),
    Row(
        "norm-rows",
        text_model(f"{FIVE} x", "y = LayerNormalization (x, s)", s=[1.0] * 6),
        "Reshape LayerNormalization Reshape",
    ),
    Row("write-out-functions", text_model("float[2,3] x", "y = ReduceSumSquare (x)"), "Mul ReduceSum"),
    Row(
        "simplify",
        text_model("float[2,3] x", "n = Slice (x, at, at, at) c = Concat <axis = 1> (x, n) y = Neg (c)", at=[1]),
        "Neg",
    ),
    *(
        Row("norm-statistics", with_statistics(opset, outputs, axis), None)
        for opset, outputs, axis in ((17, ", mean", -1), (18, ", inverse", 1), (18, ", mean, inverse", -1))
    ),
    # a computed scale is made a row at run time
    Row(
        "norm-rows",
        text_model("float[2,4,8] x, float[4,8] s", "scale = Relu (s)  y = LayerNormalization <axis = -2> (x, scale)"),
        frozenset(["Relu", "Reshape", "LayerNormalization"]),
        before=grids("x scale y"),
        has="scale_row",
    ),
    *(
        Row("resolve-sequences", text_model(given, body, made, opset=opset, **PLACES), "-Sequence")
        for opset, given, body, made in (
            (12, "float[3,7] x", SPLIT, "y"),
            (17, "float[3,7] x", SPLIT, "y"),
            (17, "float[3,4] x, float[3,4] z", STACKED, "y"),
            (17, "float[3,4] x", LENGTH, "int64[] y"),
        )
    ),
    Row("resolve-sequences", text_model("float[3,4] x", UNBOUND, **PLACES), "-Sequence", before=BOTH, has="one other"),
    *(
        Row("raise-opset", model, model.graph.node[0].op_type if model.graph.node[0].op_type != "Add" else ADDS)
        for ADDS in (frozenset(["Add", "Unsqueeze", "Reshape"]),)
        for model in (
            old("Sigmoid"),
            old("PRelu", slope=CHANNELS),
            old("Add <broadcast = 1, axis = 1>", other=CHANNELS[:, None, None]),
            old("BatchNormalization <is_test = 1>", s=CHANNELS, b=CHANNELS, m=CHANNELS, v=np.abs(CHANNELS)),
        )
    ),
    *(
        Row(
            "write-out-functions",
            text_model("float[3,4] x", f"y = {step} (x)", opset=opset),
            f"-{step.split()[0]}",
            before=BOTH,
            has="x y",
        )
        for step, opset in (
            ("Celu <alpha = 2.0>", 17),
            ("Shrink <lambd = 0.7, bias = 0.2>", 17),
            ("Softsign", 15),
            ("Mish", 18),
            ("ReduceL1", 18),
            ("ReduceSumSquare <keepdims = 0>", 18),
        )
    ),
    # comparisons are raised to where their shapes are known
    Row("raise-opset", text_model("float[2,3] x", "y=GreaterOrEqual(x, v)", "bool[2,3] y", opset=13, v=CHANNELS), None),
    *(
        Row(
            "clip-to-extremes",
            text_model("float[3,4] x", "least = ReduceMean <keepdims = 0> (x)  y = Clip (x, least, most)", most=most),
            left,
        )
        for most, left in ((float("inf"), "ReduceMean Max"), (0.5, "ReduceMean Max Min"))
    ),
    *(
        Row("batch-of-one", batched(*symbols), frozenset(["Sum", "Shape", "Reshape", "Identity"]))
        for symbols in (("batch",), ("n", "n"), ("n", "m"), ("n", None))
    ),
]


ROWS = [*INDICES, *ARITHMETIC, *SHAPES, *LOWERED]


def encodings_of(row: Row) -> EncodingSet | None:
    entries = {name: Encoding(name=name, value=grid) for name, grid in row.before.items()}
    return EncodingSet(version="2.0.0", entries=entries) if entries else None


def test_each_says_what_it_is_for_and_what_it_did() -> None:
    """In the order of the tables, each line once."""
    said: list[str] = []
    left = [(*row, None, False) for row in STAYS]
    for name, model, encodings, is_for in (*((r.name, r.model, encodings_of(r), True) for r in ROWS), *left):
        transform = load_transform(name)
        found = transform.match(model, encodings)
        assert bool(found) is is_for, (name, found)
        said += [f"{name}: {', '.join(at.nodes)} ({', '.join(at.tensors)}): {at.why}" for at in found.sites]
        said += [f"{name}, not {', '.join(at.nodes)}: {at.reason}" for at in found.refusals if at.nodes]
        notes = transform.apply(model, encodings, found).notes if found else (f"nothing: {found.reason}",)
        said += [f"{name}: {note}" for note in notes]
    assert_as_written(Path(__file__).with_name("told.txt"), dict.fromkeys(said))


@each_row("row", *ROWS)
def test_it_is_written_in_another_form(row: Row) -> None:
    feeds = random_feeds(row.model, samples=2) if row.feed is None else [dict(row.feed)]
    made = rewrite(row.model, encodings_of(row), [row.name], feeds)
    assert made.kept == (row.name,), made.steps
    onnx.checker.check_model(onnx.shape_inference.infer_shapes(made.model), full_check=True)
    operators = [node.op_type for node in made.model.graph.node]
    if isinstance(row.left, str) and row.left.startswith("-"):
        assert not any(row.left[1:] in kind for kind in operators)
    else:
        assert (
            operators == row.left.split() if isinstance(row.left, str) else {*operators} <= (row.left or {*operators})
        )
    exact = load_transform(row.name).ulps == 0
    for feed in feeds if row.name != "raise-opset" else ():  # the runtime knows no such old operators
        wanted, got = Session(row.model).run(feed), Session(made.model).run(feed)
        for name, value in wanted.items():
            assert got[name].shape == value.shape
            np.testing.assert_allclose(got[name], value, rtol=0 if exact else 1e-5, atol=0 if exact else 1e-6)
    stored = {tensor.name: numpy_helper.to_array(tensor) for tensor in made.model.graph.initializer}
    for name, held in row.holds.items():
        assert (stored[name].shape if isinstance(held, tuple) else stored[name].tolist()) == held, name
    assert row.gone not in stored
    if row.axes is not None:
        assert reduced(made.model) == row.axes
    types = infer(made.model).types
    if row.name in ("merge-axes", "pool-by-taps"):
        assert all(len(shape or ()) <= 5 for _, shape in types.values())
    if row.name == "pool-by-taps":
        taps = [node.output[0] for node in made.model.graph.node if node.op_type in ("Max", "Sum")]
        assert taps and all(len(types[name][1] or ()) == 3 for name in taps)
    if row.name == "cumulate-forward":
        assert not {"reverse", "exclusive"} & {a.name for node in made.model.graph.node for a in node.attribute}
    if row.name == "raise-opset":
        raised = 16 if "GreaterOrEqual" in operators else 13
        assert [entry.version for entry in made.model.opset_import] == [raised]
        assert [item.name for item in made.model.graph.input] == ["x"]
    if row.name == "norm-statistics":
        assert all([*node.output] == ["y"] for node in made.model.graph.node if node.op_type == "LayerNormalization")
    if made.encodings is not None:
        given = {name: entry.value for name, entry in made.encodings.entries.items()}
        assert row.covered is not None or row.has or given == dict(row.after)
        assert {*row.has.split()} <= given.keys()
        results = {name for node in made.model.graph.node for name in node.output}
        assert row.covered is None or results - given.keys() <= row.covered
        assert row.has or not made.open


LARGE = "y = MaxPool <kernel_shape = [30, 9], dilations = [2, 2]> (x)"
WANTED = "y, places = MaxPool <kernel_shape = [2, 2, 2]> (x)"
TOO_LONG = batched("n")
TOO_LONG.graph.input[0].type.tensor_type.shape.dim[1].dim_param = "length"
SEQUENCE = "parts = SplitToSequence <axis = 0> (x)  y = SequenceAt (parts, at)"
NORM = "y = BatchNormalization (c, s, b, m, v)"
UNFOLDED = [
    text_model(given, f"{body}  {NORM}", w=np.eye(3, dtype=np.float32), **NORMED)
    for given, body in (
        ("float[2,3] x", "c = Relu (x)"),
        ("float[2,3] x", "c = Gemm <alpha = 0.5> (x, w)"),
        ("float[2,3] x, float[3,3] k", "c = Gemm (x, k)"),
        ("float[2,3] x", "c = Gemm (x, w)  d = MatMul (x, w)"),
    )
]
STAYS: list[tuple[str, ModelProto]] = [
    *(
        ("pool-by-taps", text_model(f"float[{shape}] x", f"y = {step} (x)"))
        for shape, step in (
            ("1,2,8,8", "MaxPool <kernel_shape = [3, 3], strides = [2, 2]>"),
            ("1,2,8,8,8", "AveragePool <kernel_shape = [2, 2, 2]>"),
            ("1,2,8,8", "AveragePool <kernel_shape = [2, 2], pads = [1, 1, 1, 1]>"),
        )
    ),
    ("pool-by-taps", text_model("float[1,1,90,90] x", LARGE)),
    ("pool-by-taps", text_model("float[1,1,4,4,4] x", WANTED, "y, int64[n] places")),
    ("cumulate-forward", text_model("float[3,4] x", "y = CumSum (x, axis)", axis=0)),
    ("cumulate-forward", text_model("float[3,4] x, int64[] axis", "y = CumSum <reverse = 1> (x, axis)")),
    ("product-by-halves", text_model("float[3,4] x, int64[1] axes", "y = ReduceProd (x, axes)", opset=18)),
    ("rank-four", text_model("float[2,3,4,5] x", "y = BatchNormalization (x, s, b, m, v)", **NORMED)),
    ("norm-statistics", with_statistics(17, "")),
    (
        "rank-four",
        text_model("float[2,3,4,5,6] x", "y, p, q = BatchNormalization <training_mode = 1> (x, s, b, m, v)", **NORMED),
    ),
    ("rank-four", text_model(f"{FIVE} x, float[1,3,4,6,5] z", "y = MatMul (x, z)")),
    ("product-by-halves", text_model("float[3,4097] x", "y = ReduceProd <axes = [1]> (x)")),
    ("cumulate-forward", text_model("float[0,4] x", "y = CumSum <reverse = 1> (x, axis)", axis=0)),
    ("integer-remainder", text_model("int32[8] x, int32[8] z", "y = Mod (x, z)", "int32[8] y")),
    ("clip-to-extremes", text_model("float[8] x", "y = Clip (x, low)", low=0.0)),
    ("pool-by-taps", text_model("float[0,2,9,9,9] x", "y = MaxPool <kernel_shape = [2, 2, 2]> (x)")),
    (
        "norm-statistics",
        text_model("double[4] x, double[4] s", "y, m = LayerNormalization (x, s)", "double[4] y, float[1] m"),
    ),
    ("resolve-sequences", text_model("float[3,4] x, int64[] at", SEQUENCE)),
    ("resolve-sequences", text_model("float[3] x", "y = Relu (x)")),
    ("resolve-sequences", text_model("float[3,4] x", SEQUENCE, at=3)),
    ("resolve-sequences", text_model("float[1025,4] x", SEQUENCE, at=3)),
    (
        "resolve-sequences",
        text_model("float[3,4] x", SEQUENCE.replace("(parts", "(same").replace("y", "same = Identity (parts) y"), at=1),
    ),
    ("raise-opset", old("Add <broadcast = 1, axis = 1>", other=CHANNELS)),
    ("raise-opset", text_model("float[3] x", "y = Relu (x)", opset=13)),
    ("write-out-functions", text_model("float[3,4] x", "y = Gelu (x)", opset=20)),
    ("batch-of-one", batched(None)),
    ("batch-of-one", batched("length", shape="4")),
    ("batch-of-one", TOO_LONG),
    ("flat-index", flat(COUNTED)),
    ("flat-index", flat(COUNTED.reshape(6, 8), "float[48] x", "y = Gather (table, index)", table=[1.0] * 48)),
    ("flat-index", flat([[0, 1]], "float[8,6] x", "y = Gather (x, index)")),
    ("flat-index", flat(np.arange(12).reshape(3, 4), "float[] x")),
    ("index-from-front", from_front("Gather <axis = 1>", [-1], "float[2,N,3] x")),
    ("index-from-front", from_front("Gather <axis = 1>", [0, 3])),
    ("gathernd-to-gather", nd([[1], [2]], "<batch_dims = 1>")),
    ("gathernd-to-gather", nd([[1], [0]], given="float[2,3,N] x")),
    ("gathernd-to-gather", text_model("float[2,3,4] x, int64[2,1] i", "y = GatherND (x, i)")),
    ("integer-remainder", text_model("float[8] x", "y = Mod <fmod = 1> (x, by)", by=[3.0] * 8)),
    ("divide-by-root", text_model("float[2,8] x", f"{ROOT}  y = Relu (i)", eps=0.1)),
    ("divide-by-root", text_model("float[2,8] x", f"{ROOT}  y = Mul (i, i)", eps=0.1)),
    (
        "divide-by-root",
        text_model("float[2,8] x", f"{ROOT.replace('Sqrt', 'Exp')}  y = Mul (i, x)", eps=0.1),
    ),
    ("einsum-to-matmul", product("bqd,bdk,bk->bq")),
    ("einsum-to-matmul", product("bqq,bqd->bd")),
    ("einsum-to-matmul", product("bqd,bkh->bqk")),
    ("einsum-to-matmul", product("...qd,...dk->...qk")),
    *(("sum-to-mean", as_sum(end)) for end in ("Mul (s, count)", "Div (part, s)", "Add (s, part)", "Mul (s, s)")),
    ("sum-to-mean", as_sum("Mul (s, wide)")),
    *(("global-pool", pooled(*how)) for how in ((6,), (3,), (7, ", pads = [1, 1, 1, 1]"))),
    ("global-pool", pooled(7, ', auto_pad = "SAME_UPPER"')),
    ("norm-rows", normed("LayerNormalization", (2, 4, 8), -1)),
    ("norm-rows", normed("LayerNormalization", (2, 4, 8), 2)),
    ("norm-rows", with_statistics(17, ", mean", -2)),
    ("expand-before-norm", summed("Add", (16, 8), "1048576,16,8")),
    ("norm-rows", normed("RMSNormalization", (1, 4, 8), -1)),
    ("norm-rows", normed("RMSNormalization", (4, 8), -1)),
    ("norm-rows", normed("LayerNormalization", (2, 4, 8), -2, given="N,4,8")),
    (
        "norm-rows",
        text_model("float[2,4,8] x", "y = LayerNormalization <axis = -2> (x, scale)", scale=[[1.0] * 8]),
    ),
    ("merge-axes", chain([1, 2, 7, 2, 7, 3], [0, 1, 3, 2, 4, 5], [4, 49, 3], "y, t")),
    ("merge-axes", chain([2, 7, 2, 7, 3], [0, 2, 1, 3, 4], [4, 49, 3])),
    ("merge-axes", chain([2, 2, 2, 2, 2, 2], [5, 4, 3, 2, 1, 0], [2, 2, 2, 2, 2, 2])),
    ("merge-axes", chain([2] * 8, [7, 6, 5, 4, 3, 2, 1, 0], [16, 16])),
    ("merge-axes", text_model("float[N] x", CHAIN, s1=[-1, 2, 2, 2, 2, 2], s2=[-1, 2])),
    *(("fold-batchnorm", model) for model in UNFOLDED),
    *(("longer-axes", over(axes=axes)) for axes in ([3], [2], [1, 3])),
    (
        "longer-axes",  # nothing is turned
        text_model("float[1,16,9] x", "i = Unsqueeze (x, at)  y = ReduceMean <axes = [2, 3]> (i)", at=[2]),
    ),
    (
        "longer-axes",
        text_model(
            "float[1,9,16] x, int64[2] a",
            "t = Transpose <perm = [0, 2, 1]> (x)  i = Unsqueeze (t, at)  y = ReduceMean (i, a)",
            "float[1,16,1,1] y",
            opset=18,
            at=[2],
        ),
    ),
    *(
        ("expand-before-norm", summed(op, shape, given))
        for op, shape, given in (
            ("Add", (2, 16, 8), "2,16,8"),
            ("Add", (8,), "2,16,8"),
            ("Add", (16, 1), "2,16,8"),
            ("Add", (1, 16, 8), "1,16,8"),
            ("Sub", (1, 16, 8), "2,16,8"),
        )
    ),
]


def test_attention_is_written_out_with_its_sizes_settled_or_refused() -> None:
    find = load_transform("write-out-functions").match
    given_ = "float[1,2,3,4] q, float[1,2,5,4] k, float[1,2,5,4] v"
    model = text_model(given_, "y = Attention (q, k, v)", opset=23)
    made = rewrite(model, None, ["write-out-functions"], random_feeds(model, samples=2))
    assert made.kept and not {"Attention", "Shape", "Range"} & {node.op_type for node in made.model.graph.node}
    masked = text_model(f"{given_}, float[3,5] mask", "y = Attention (q, k, v, mask)", opset=23)
    assert find(masked)
    del masked.graph.input[-1]
    assert "onnx does not write it out" in find(masked).refusals[0].reason


@pytest.mark.heavy
def test_the_compiler_is_given_the_longer_axes(tmp_path: Path) -> None:
    """As it is the kernel gives 13 dB less than nothing; the day it is right, the second half says so."""
    pytest.importorskip("onnxruntime_qnn")
    onnx.save(onnx.shape_inference.infer_shapes(over()), tmp_path / "m.onnx")
    entries = {name: Encoding(name=name, value=A, is_param=False) for name in ("x", "t", "i", "y")}
    text = write_encodings(EncodingSet(version="1.0.0", entries=entries), "1.0.0")
    (tmp_path / "m.encodings").write_text(text)
    data = np.random.default_rng(0).uniform(-2, 3, (4, 1, 9, 16)).astype(np.float32)
    np.savez(tmp_path / "data.npz", x=data)

    def compiled(*without: str) -> Any:
        given = Request(
            model=tmp_path / "m.onnx",
            encodings=tmp_path / "m.encodings",
            calibration=tmp_path / "data.npz",
            target="sm8650",
            backend="ort-qnn",
            no_rewrite=without,
            adapter_options={"kernels": "off"},  # else another way is found for it
        )
        return make_package(given, tmp_path / "_".join(("p", *without)))

    assert compiled().exit_status == 0
    spoilt = compiled("longer-axes")
    assert spoilt.exit_status == 1
    assert {"ORT120"} <= {finding.code for finding in spoilt.findings if finding.blocks}
