"""Huge constants, masks, and logarithms of ratios: the same results from small ranges, refusals with the reason."""

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from onnx import ModelProto, numpy_helper

from deploykit.accuracy.simulate.sessions import Session
from deploykit.encodings.new_grids import GridKind, affine_for_range
from deploykit.encodings.values import Encoding, EncodingSet
from deploykit.flow.cure import Rewriting, difference_in_ulps, rewrite
from deploykit.model.graph import GraphCopy
from deploykit.rewrites.contract import load_transform
from sample_models.feeds import random_feeds
from tables import each_row
from text_models import text_model

Array = npt.NDArray[Any]


def text(shape: Any) -> str:
    return ",".join(map(str, shape))


def entries(bits: int = 16, **ranges: tuple[float, float]) -> EncodingSet:
    kind = GridKind(bits=bits, signed=False)
    made = {name: Encoding(name=name, value=affine_for_range(*ends, kind)) for name, ends in ranges.items()}
    return EncodingSet(version="2.0.0", entries=made)


def kept(model: ModelProto, names: list[str], feeds: Any, encodings: EncodingSet | None = None) -> Rewriting:
    done = rewrite(model, encodings, names, feeds)
    assert done.kept == (*names,), [step.reason for step in done.steps]
    return done


def ends_of(model: ModelProto, name: str) -> tuple[float, float]:
    array = GraphCopy(model).array(name)
    assert array is not None
    return float(array.min()), float(array.max())


# saturating-constant: clamps what only saturates.

SATURATING = ["Sigmoid (sum)", "Clip (sum, least, most)", "Tanh (sum)", "HardSigmoid <alpha = 0.25, beta = 0.5> (sum)"]


def anchors(seed: int, rows: int, huge: float) -> Array:
    rng = np.random.default_rng(seed)
    made = rng.normal(size=(1, rows, 4)).astype(np.float32)
    made[0, rng.random(rows) < 0.5] = huge
    made[0, 0] = huge
    return made


def detector(end: str, constant: Array, *, moves: bool = False, made: str = "y") -> ModelProto:
    turned = "a = Transpose <perm = [0, 2, 1]> (anchors)  b = Transpose <perm = [0, 2, 1]> (x)  sum = Add (b, a)"
    body = f"{turned if moves else 'sum = Add (x, anchors)'}  y = {end}"
    return text_model(f"float[{text(constant.shape)}] x", body, made, anchors=constant, k=[2], least=-3.0, most=6.0)


@settings(max_examples=30)
@given(
    end=st.sampled_from(SATURATING),
    rows=st.integers(1, 6),
    huge=st.sampled_from([1e30, 3.4e38, -1e30, 1e5, np.inf, -np.inf]),
    moves=st.booleans(),
    seed=st.integers(0, 1000),
)
def test_results_stay_and_ranges_shrink(end: str, rows: int, huge: float, moves: bool, seed: int) -> None:
    model = detector(end, anchors(seed, rows, huge), moves=moves)
    feeds, before = random_feeds(model, samples=2, seed=seed), model.SerializeToString(deterministic=True)
    done = kept(model, ["saturating-constant"], feeds)
    assert max(map(abs, ends_of(done.model, "anchors"))) < 130
    assert model.SerializeToString(deterministic=True) == before, "the given model is not changed"
    for feed in feeds:
        np.testing.assert_array_equal(Session(model).run(feed)["y"], Session(done.model).run(feed)["y"])


# mask-constant: exact zeros stay.


def masked(mask: Array, more: str = "", made: str = "y", axis: int = -1) -> ModelProto:
    body = f"sum = Add (x, mask)  y = Softmax <axis = {axis}> (sum)  {more}"
    return text_model(f"float[1,2,{text(mask.shape)}] x", body, made, mask=mask.astype(np.float32))


def causal(size: int, huge: float) -> Array:
    return np.where(np.tril(np.ones((size, size))) > 0, 0.0, huge)


@settings(max_examples=30)
@given(size=st.integers(2, 7), huge=st.sampled_from([-1e4, -1e9, -1e30, -3.4e38, -np.inf]), seed=st.integers(0, 1000))
def test_an_added_mask_keeps_its_zeros_and_a_selected_one_its_result(size: int, huge: float, seed: int) -> None:
    model = masked(causal(size, huge))
    feeds = random_feeds(model, samples=2, seed=seed)
    done = kept(model, ["mask-constant"], feeds)
    assert ends_of(done.model, "mask")[0] > -300
    for feed in feeds:
        wanted, got = Session(model).run(feed)["y"], Session(done.model).run(feed)["y"]
        assert (got[wanted == 0] == 0).all()
        np.testing.assert_allclose(got, wanted, rtol=1e-6)
    given_ = f"bool[1,1,{size}] keep, float[1,{size},{size}] x"
    model = text_model(given_, "s = Where (keep, x, mask)  y = Softmax (s)", mask=max(huge, -3.4e38))
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(1, size, size)).astype(np.float32)
    feeds = [{"keep": rng.random((1, 1, size)) < share, "x": x} for share in (0.6, 0.0)]
    done = kept(model, ["mask-constant"], feeds)
    for feed in feeds:
        np.testing.assert_allclose(Session(model).run(feed)["y"], Session(done.model).run(feed)["y"], rtol=1e-6)


# log-of-ratio, logit-of-sigmoid, log-of-scaled and log-range.

SHAPES = st.lists(st.integers(1, 5), min_size=1, max_size=4)


def ratio(shape: list[int], above: str, below: str, made: str = "y") -> ModelProto:
    body = f"a = {above} (xa)  b = {below} (xb)  ratio = Div (a, b)  y = Log (ratio)"
    return text_model(f"float[{text(shape)}] xa, float[{text(shape)}] xb", body, made)


def test_what_differs_by_more_than_is_allowed_is_undone(monkeypatch: pytest.MonkeyPatch) -> None:
    model = ratio([5, 5], "Sigmoid", "Exp")
    feeds, known = random_feeds(model, samples=2), load_transform("log-of-ratio")
    (step,) = rewrite(model, None, [known.name], feeds).steps
    assert step.kept and step.ulps
    monkeypatch.setattr("deploykit.flow.cure.load_transform", lambda name: replace(known, ulps=step.ulps / 2))
    # What inputs that are off by one rounding change four times over may be changed by a rewrite too.
    for own, is_kept in ((step.ulps / 8, False), (step.ulps / 3.9, True)):
        monkeypatch.setattr("deploykit.flow.cure._own_noise", lambda *_, own=own: own)
        assert bool(rewrite(model, None, [known.name], feeds).kept) is is_kept


def test_a_model_that_makes_much_of_a_rounding_is_no_reason_to_undo() -> None:
    body = (
        "a = Sigmoid (xa)  b = Exp (xb)  ratio = Div (a, b)  log = Log (ratio)  wide = Mul (log, many)  y = Sin (wide)"
    )
    model = text_model("float[5,5] xa, float[5,5] xb", body, many=np.float32(3000))
    (step,) = rewrite(model, None, ["log-of-ratio"], random_feeds(model, samples=2)).steps
    assert step.kept and (step.ulps or 0) > 2 * (load_transform("log-of-ratio").ulps or 0)


@settings(max_examples=30)
@given(shape=SHAPES, above=st.sampled_from(["Sigmoid", "Exp", "Softmax"]), below=st.sampled_from(["Sigmoid", "Exp"]))
def test_a_log_of_a_ratio_becomes_a_difference(shape: list[int], above: str, below: str) -> None:
    model = ratio(shape, above, below)
    feeds = random_feeds(model, samples=2)
    done = kept(model, ["log-of-ratio"], feeds)
    assert "Div" not in {node.op_type for node in done.model.graph.node}
    for feed in feeds:
        np.testing.assert_allclose(Session(model).run(feed)["y"], Session(done.model).run(feed)["y"], atol=1e-5)


def test_an_overflowing_ratio_is_found_by_the_proof() -> None:
    """The quotient overflows where the difference does not: the results differ, so the rewrite is undone."""
    feeds = [{"xa": np.asarray([80, 1], np.float32), "xb": np.asarray([-80, 1], np.float32)}]
    done = rewrite(ratio([2], "Exp", "Exp"), None, ["log-of-ratio"], feeds)
    assert done.kept == () and "undone" in done.steps[0].reason


INVERSE = "above = Clip (s, eps, one)  rest = Sub (one, s)  below = Clip (rest, eps)  ratio = Div (above, below)"
INVERSE += "  logit = Log (ratio)"


def refined(shape: list[int], eps: float = 1e-5, *, idle_clip: bool = False, keep: bool = False) -> ModelProto:
    sigmoid = "p = Sigmoid (u)  s = Clip (p, zero, one)" if idle_clip else "s = Sigmoid (u)"
    body = f"{sigmoid}  {INVERSE}  moved = Add (logit, delta)  y = Sigmoid (moved)" + ("  z = Relu (s)" if keep else "")
    given_ = f"float[{text(shape)}] u, float[{text(shape)}] delta"
    return text_model(given_, body, "y, z" if keep else "y", eps=eps, one=1.0, zero=0.0)


@settings(max_examples=30)
@given(
    shape=SHAPES,
    eps=st.sampled_from([1e-5, 1e-3, 1e-6]),
    idle_clip=st.booleans(),
    keep=st.booleans(),
    first=st.sampled_from([(), ("log-of-ratio",)]),
)
def test_an_inverse_sigmoid_becomes_a_clip(
    shape: list[int], eps: float, idle_clip: bool, keep: bool, first: tuple[str, ...]
) -> None:
    model = refined(shape, eps, idle_clip=idle_clip, keep=keep)
    feeds = random_feeds(model, samples=2)
    done = kept(model, [*first, "logit-of-sigmoid"], feeds)
    assert not {"Div", "Log"} & {node.op_type for node in done.model.graph.node}
    for feed in feeds:
        assert difference_in_ulps(Session(model).run(feed), Session(done.model).run(feed)) < 64


@each_row(("factor", "added"), (2.0**20, 1.0), (1e5, 0.0), (1e5, None))
def test_the_log_of_a_huge_multiple_is_a_sum(factor: float, added: float | None) -> None:
    body = "size = Abs (x)  product = Mul (size, k)  "
    body += "y = Log (product)" if added is None else "sum = Add (c, product)  y = Log (sum)"
    model = text_model("float[2,5] x", body, k=factor, c=added or 0.0)
    assert not load_transform("log-of-scaled").match(text_model("float[2,5] x", body, k=2.0, c=added or 0.0))
    done = kept(model, ["log-of-scaled"], random_feeds(model))
    assert max(abs(numpy_helper.to_array(tensor)) for tensor in done.model.graph.initializer) < 20
