"""The contract of rewrites, graphs that are made simpler, and those with branches."""

from typing import Any

import numpy as np
import onnx

from deploykit.accuracy.simulate.sessions import Session
from deploykit.encodings.new_grids import GridKind, affine_for_range
from deploykit.encodings.values import Encoding, EncodingSet
from deploykit.flow.cure import Rewriting, rewrite
from deploykit.model.graph import GraphCopy
from deploykit.rewrites.fold import fold
from sample_models.feeds import random_feeds
from tables import each_row
from text_models import text_model


def simplified(model: onnx.ModelProto, encodings: EncodingSet | None = None) -> Rewriting:
    """The model simplified, with the same outputs and results bit for bit."""
    feeds = random_feeds(model, samples=2)
    done = rewrite(model, encodings, ["simplify"], feeds)
    onnx.checker.check_model(onnx.shape_inference.infer_shapes(done.model))
    assert [item.name for item in done.model.graph.output] == [item.name for item in model.graph.output]
    for feed in feeds:
        before, after = Session(model).run(feed), Session(done.model).run(feed)
        for name, value in before.items():
            np.testing.assert_array_equal(after[name], value)
    return done


def ops(done: Rewriting) -> str:
    return " ".join(node.op_type for node in done.model.graph.node if node.op_type != "Constant")


def entries(names: str) -> EncodingSet:
    grid = affine_for_range(-1.0, 1.0, GridKind(bits=16, signed=False, symmetric=False))
    return EncodingSet(version="1.0.0", entries={name: Encoding(name=name, value=grid) for name in names.split()})


ANGLES = 'angles = Einsum <equation = "i,j->ij"> (places, rates)  waves = Sin (angles)  y = Add (x, waves)'
COPIES = "c1 = Identity (x)  c2 = Identity (c1)  same = Cast <to = 1> (c2)  flat = Reshape (same, shape)"
COPIES += "  still = Transpose <perm = [0, 1]> (flat)  y = Relu (still)"
TURNED = "wt = Transpose <perm = [1, 0]> (w)  y = MatMul (x, wt)"
SCALED = "scaled = Mul (a, b)  copy = Identity (x)  sum = Add (copy, scaled)  y = Relu (sum)"
LIKE = "one = CastLike (a, x)  s = Add (x, one)  t = CastLike (s, x)  y = CastLike (t, n)"
STORED: dict[str, Any] = {"places": [0.0, 1.0, 2.0, 3.0], "rates": [1.0] * 3, "shape": [2, 3], "a": [2.0], "b": [3.0]}
STORED |= {"lowest": -np.inf, "nought": np.float32(0), "yes": np.bool_(True), "w": np.ones((4, 3), np.float32)}


@each_row(
    ("given_", "body", "before", "left", "after"),
    ("float[2,3] x", COPIES, "", "Relu", None),
    ("float[2,3] x", "m = Max (lowest, x)  d = Dropout (m)  y = Relu (d)", "", "Relu", None),
    ("float[2,3] x", "d = Dropout (x, nought, yes)  y = Relu (d)", "", "Dropout Relu", None),  # in training
    ("float[2] x, int32 n", LIKE, "", "Add Cast", None),
    ("float[4,3] x", ANGLES, "x angles waves y", "Add", "x waves y"),  # a position embedding
    # entries of kept tensors stay, and a named copy too
    ("float[2,3] x", SCALED, "x copy a scaled sum y", "Identity Add Relu", "x copy scaled sum y"),
    # folded without an entry of its own, a weight would no longer be quantized
    ("float[2,3] x", TURNED, "w", "Transpose MatMul", "w"),
    ("float[2,3] x", TURNED, "w wt", "MatMul", "wt"),
)
def test_what_hands_on_or_is_constant_goes(given_: str, body: str, before: str, left: str, after: str | None) -> None:
    done = simplified(text_model(given_, body, **STORED), entries(before) if before else None)
    assert ops(done) == left
    assert after is None or (done.encodings is not None and set(done.encodings.entries) == {*after.split()})


@each_row(("size", "folded"), (1024, 1), (1025, 0))
def test_a_copy_of_a_large_weight_is_not_stored_twice(size: int, folded: int) -> None:
    model = text_model("float[1] x", "c = Identity (w)  y = Add (x, c)", "y", w=np.ones(size, np.float32))
    assert fold(GraphCopy(model)) == folded


NAME = "inline-control-flow"
THEN, ELSE = "(float[2,3] t) { t = Relu (x) }", "(float[2,3] e) { e = Neg (x) }"


def _branching(
    condition: str, then: str = THEN, made: str = "float[2,3] y", other: str = ELSE, **stored: Any
) -> onnx.ModelProto:
    """Relu or Neg of the input, by a condition that is made as ``which``."""
    body = f"{condition}  y = If (which) <then_branch = t () => {then}, else_branch = e () => {other}>"
    return text_model("float[2,3] x", body, made, **stored)


CELL = "(float[2,3] t) <int64[1] k = {0}> { u = Unsqueeze (x, k)  , h = LSTM <hidden_size = 3> (u, w, r)"


@each_row(("then", "kept"), (THEN, "Relu"), (CELL + "  [end] t = Squeeze (h, k) }", "LSTM"))
def test_a_branch_that_the_shape_of_an_input_settles_is_put_in(then: str, kept: str) -> None:
    weights: dict[str, Any] = dict.fromkeys("wr", np.ones((1, 12, 3), np.float32))
    model = _branching("n = Size (x)  which = Greater (n, five)", then, five=5, **weights)
    done = rewrite(model, None, [NAME], random_feeds(model))
    assert done.kept == (NAME,)
    operators = [node.op_type for node in done.model.graph.node]
    assert kept in operators and "If" not in operators and "Neg" not in operators


def test_a_branch_that_values_decide_stays_or_both_are_computed() -> None:
    model = _branching("sum = ReduceSum <keepdims = 0> (x)  which = Greater (sum, half)", half=0.5)
    done = rewrite(model, None, ["both-branches"], random_feeds(model, samples=4))
    assert done.kept == ("both-branches",), done.steps
    operators = {node.op_type for node in done.model.graph.node}
    assert {"Relu", "Neg", "Where"} <= operators and "If" not in operators


def _looped(body: str, made: str = "y", more: str = "float[2,3] c") -> str:
    head = f"{made} = Loop (count, on, x) <body = b (int64 i, bool go, float[2,3] a) => (bool more, {more})"
    return f"{head} {{ {body} }}>"


LOOPED = _looped("more = Identity (go)  c = Add (a, a)")


@each_row(("count", "on", "left"), (3, True, "Add Add Add"), (0, True, "Loop"), (3, False, "Loop"), (3, None, "Loop"))
def test_a_loop_whose_rounds_are_settled_is_written_out(count: int, on: bool | None, left: str) -> None:
    stored: dict[str, Any] = {} if on is None else {"on": np.asarray(on)}
    given = "float[2,3] x, bool on" if on is None else "float[2,3] x"
    model = text_model(given, LOOPED, "float[2,3] y", count=count, **stored)
    done = rewrite(model, None, [NAME], random_feeds(model))
    assert [one.op_type for one in done.model.graph.node if one.op_type not in ("Identity", "Constant")] == left.split()


ALWAYS = "more = Constant <value = bool {1}> ()  "
INNER = "d = If (go) <then_branch = t () => (float[2,3] t) { h = Relu (a)  t = Neg (h) }, "
INNER += "else_branch = e () => (float[2,3] e) { e = Identity (a) }>  c = Add (d, a)"


@each_row(
    ("body", "made", "more"),
    ("c = Add (a, a)", "y, rows", "float[2,3] c, float[2,3] c"),  # given on and collected
    ("c = Neg (a)", "y, rows", "float[2,3] c, float[2,3] a"),  # what it was given is collected
    (INNER, "y", "float[2,3] c"),
)
def test_what_a_loop_gives_is_what_its_rounds_gave(body: str, made: str, more: str) -> None:
    ends = "float[2,3] y, float[3,2,3] rows" if "rows" in made else "float[2,3] y"
    model = text_model("float[2,3] x", _looped(ALWAYS + body, made, more), ends, count=3, on=np.asarray(True))
    done = rewrite(model, None, [NAME], random_feeds(model))
    assert done.kept == (NAME,), done.steps
    assert not {"Loop", "If"} & {node.op_type for node in done.model.graph.node}
