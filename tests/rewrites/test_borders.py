"""--io nhwc: the same numbers with the channels last, bit for bit, whatever lies between; wrong samples are found."""

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deploykit.accuracy.judge.judge import Judge
from deploykit.accuracy.samples.gathering import gather
from deploykit.accuracy.simulate.sessions import Session
from deploykit.accuracy.simulate.simulation import Simulator
from deploykit.encodings.insert_qdq import insert_qdq
from deploykit.encodings.new_grids import GridKind, affine_for_range
from deploykit.encodings.values import Encoding, EncodingSet
from deploykit.errors import UsageError
from deploykit.findings.records import Arrays
from deploykit.model.collect import facts_of
from deploykit.rewrites.borders import asked_borders, turn_borders
from sample_models.feeds import random_feeds
from tables import each_row
from text_models import text_model

CONV = "c = Conv <pads = [1, 1, 1, 1]> (x, w)  y = Relu (c)"
CLASSES = 5


def conv(size: int = 6, **more: Any) -> onnx.ModelProto:
    weight = np.random.default_rng(0).normal(size=(CLASSES, 3, 3, 3)).astype(np.float32)
    return text_model(f"float[1,3,{size},{size}] x", CONV, f"float[1,{CLASSES},{size},{size}] y", w=weight, **more)


def last(value: npt.NDArray[Any]) -> npt.NDArray[Any]:
    return np.ascontiguousarray(value.transpose(0, 2, 3, 1))


def moved(feed: Arrays, names: frozenset[str]) -> dict[str, npt.NDArray[Any]]:
    return {name: last(value) if name in names else value for name, value in feed.items()}


def turned(model: onnx.ModelProto, *asked: str) -> tuple[onnx.ModelProto, frozenset[str]]:
    names = asked_borders(asked or ["nhwc"], facts_of(model))
    made, _ = turn_borders(model, None, names)
    onnx.checker.check_model(made, full_check=True)
    return made, names


def assert_same(model: onnx.ModelProto, made: onnx.ModelProto, names: frozenset[str], samples: int = 2) -> None:
    for feed in random_feeds(model, samples=samples):
        wanted, got = moved(Session(model).run(feed), names), Session(made).run(moved(feed, names))
        assert wanted.keys() == got.keys()
        for name, value in wanted.items():
            np.testing.assert_array_equal(got[name], value)


@st.composite
def graphs(draw: st.DrawFn) -> onnx.ModelProto:
    """Two inputs of one shape of any rank, moves and arithmetic; outputs may be read inside, and one is a sum."""
    shape = draw(st.lists(st.integers(1, 4), min_size=1, max_size=5))
    dims, names, body = ",".join(map(str, shape)), ["a", "b"], ""
    for index in range(draw(st.integers(1, 6))):
        op = draw(st.sampled_from(["Relu", "Identity", "Add", "Mul", "Softmax"]))
        sources = [draw(st.sampled_from(names)) for _ in range(2 if op in ("Add", "Mul") else 1)]
        body += f"t{index} = {op} ({', '.join(sources)})  "
        names.append(f"t{index}")
    shown = draw(st.lists(st.sampled_from(names[2:]), max_size=2, unique=True))
    made = ", ".join([*(f"float[{dims}] {name}" for name in shown), f"float[{','.join('1' for _ in shape)}] y"])
    return text_model(f"float[{dims}] a, float[{dims}] b", f"{body}y = ReduceMean <keepdims = 1> ({names[-1]})", made)


@settings(max_examples=8)
@given(model=graphs(), data=st.data())
def test_every_value_stays_and_only_four_axes_are_turned(model: onnx.ModelProto, data: st.DataObject) -> None:
    facts = facts_of(model)
    four = [name for name in (*facts.inputs, *facts.outputs) if facts.tensors[name].rank == 4]
    if not four:
        with pytest.raises(UsageError, match="nhwc or NAME=nhwc"):
            asked_borders(["nhwc"], facts)
        return
    chosen = data.draw(st.lists(st.sampled_from(four), min_size=1, unique=True))
    made, names = turned(model, *(f"{name}=nhwc" for name in chosen))
    assert names == frozenset(chosen) == facts_of(made).channel_last
    assert_same(model, made, names)
    for name in names:
        n, c, h, w = facts.tensors[name].shape or ()
        assert facts_of(made).tensors[name].shape == (n, h, w, c)


def grids() -> EncodingSet:
    kind = GridKind(bits=8, signed=False, symmetric=False)
    ends = {"x": (-3.0, 3.0), "c": (-20.0, 20.0), "y": (0.0, 20.0)}
    entries = {name: Encoding(name=name, value=affine_for_range(*of, kind)) for name, of in ends.items()}
    return EncodingSet(version="1.0.0", entries=entries)


def test_encodings_and_pairs_follow() -> None:
    model, encodings = conv(), grids()
    made, kept = turn_borders(model, encodings, frozenset("xy"))
    assert kept is not None and set(kept.entries) == {"x", "c", "y", "x_nchw", "y_nchw"}
    assert kept.entries["x_nchw"].value is encodings.entries["x"].value
    inserted = [
        insert_qdq(*pair, bias="encoded", unsigned_activations=True).model
        for pair in ((model, encodings), (made, kept))
    ]
    assert_same(inserted[0], inserted[1], frozenset("xy"))
    assert_same(inserted[0], *turned(inserted[0]))  # a model that came quantized
    for feed in random_feeds(model, samples=2):
        wanted, got = Simulator(model, encodings).run(feed), Simulator(made, kept).run(moved(feed, frozenset("x")))
        np.testing.assert_array_equal(last(wanted["y"]), got["y"])


@each_row(("size", "given_last"), (6, False), (6, True), (3, False))
def test_samples_may_have_the_layout_of_the_model_as_it_was_given(tmp_path: Path, size: int, given_last: bool) -> None:
    """In a cube both layouts have one shape: that of the model as it was given is meant."""
    values = np.random.default_rng(1).normal(size=(4, 3, size, size)).astype(np.float32)
    np.savez(tmp_path / "data.npz", x=last(values) if given_last else values)
    made, _ = turned(conv(size))
    samples = gather(made, facts_of(made), calibration=tmp_path / "data.npz")
    np.testing.assert_array_equal(np.concatenate([feed["x"] for feed in samples.feeds]), last(values))


def test_the_verdict_is_that_of_the_model_as_it_was_given_and_a_wrong_layout_is_a_no() -> None:
    """Areas of classes are areas of classes wherever the channels stand."""
    head = text_model(
        "float[1,3,8,8] x", "c = Conv (x, w)  y = Softmax <axis = 1> (c)", "float[1,5,8,8] y",
        w=np.random.default_rng(0).normal(size=(5, 3, 1, 1)).astype(np.float32) * 4,
    )  # fmt: skip
    made, names = turned(head)
    feeds = random_feeds(head, samples=6)
    first, second = (Judge(model, facts_of(model), list(given), label="given") for model, given in (
        (head, feeds), (made, [moved(feed, names) for feed in feeds]),
    ))  # fmt: skip
    run, noise = Session(head).run, np.random.default_rng(2).normal(size=(1, 5, 8, 8)).astype(np.float32) / 50
    outputs = [{"y": run(feed)["y"] + noise} for feed in feeds]
    wanted, got = first.compare(outputs), second.compare([{"y": last(one["y"])} for one in outputs])
    assert wanted == got and got.right is True and any("overlap of areas" in n.words for n in got.numbers)
    # Of eight rows, columns and channels the places are mixed up, and every shape is right.
    swapped = [{"x": np.ascontiguousarray(moved(feed, names)["x"].swapaxes(1, 2))} for feed in feeds]
    assert second.compare([Session(made).run(feed) for feed in swapped]).right is False
    assert second.compare(outputs).right is False
