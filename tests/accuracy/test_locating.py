"""locate: names the operator that was tampered with, on large graphs too, and is not fooled by TopK's order."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from onnx import shape_inference

from deploykit.accuracy.search import locate as locate_module
from deploykit.accuracy.search.locate import SESSIONS, Located, ModelProbe, locate, locate_files
from deploykit.encodings.new_grids import GridKind, affine_for_range
from deploykit.encodings.values import Affine, Encoding, EncodingSet
from deploykit.errors import InputError, ToolError
from deploykit.findings.records import Feeds
from deploykit.model.collect import facts_of
from sample_models.detectors import UNREACHABLE
from sample_models.feeds import random_feeds
from sample_models.tiny_graphs import TinyGraph
from text_models import text_model

AIMET = Path(__file__).parents[1] / "data" / "aimet"


def _network(count: int, seed: int) -> onnx.ModelProto:
    """A DAG of ``count`` ops with side branches, values kept near 1; the last value is the output."""
    rng = np.random.default_rng(seed)
    graph = TinyGraph()
    names = [graph.input("x", (4, 6))]
    for index in range(count):
        source = names[-1]
        if index % 3 == 2:
            other = names[int(rng.integers(max(0, len(names) - 12), len(names)))]
            names.append(graph.op("Add", [source, other], f"t{index}"))
        elif index % 3 == 1:
            names.append(graph.op("Sin", [source], f"t{index}"))
        else:
            scale = graph.stored(f"s{index}", rng.uniform(0.8, 1.6, 6))
            names.append(graph.op("Mul", [source, scale], f"t{index}"))
    return graph.model(names[-1])


def _tampered(model: onnx.ModelProto, index: int) -> onnx.ModelProto:
    """The model with one op's result negated."""
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    node = copy.graph.node[index]
    wrong = onnx.helper.make_node("Neg", ["honest"], [node.output[0]], name="wrong")
    node.output[0] = "honest"
    copy.graph.node.insert(index + 1, wrong)
    return copy


def _locate(model: onnx.ModelProto, other: onnx.ModelProto, *, seed: int = 0) -> Located:
    return locate(facts_of(model), ModelProbe(model), ModelProbe(other), random_feeds(model, seed=seed))


@settings(max_examples=8, deadline=None)
@given(count=st.integers(1, 80), data=st.data(), seed=st.integers(0, 50))
def test_the_tampered_operator_is_found(count: int, data: st.DataObject, seed: int) -> None:
    model = _network(count, seed)
    index = data.draw(st.integers(0, count - 1))
    found = _locate(model, _tampered(model, index), seed=seed)
    if found.first is None:  # what was spoilt hardly reaches the output
        assert all(view.sqnr_db >= found.threshold_db for view in found.outputs)
        assume(False)
    assert found.first is not None and found.first.output.name == f"t{index}"
    assert all(view.sqnr_db > 100 for view in found.first.inputs)


def test_the_constant_of_a_decoder_detector_is_named(decoder_detector: Any) -> None:
    """Not a convolution of the backbone, and not the decoder, where rows and boxes are far apart already."""
    detector = decoder_detector
    sides = ModelProbe(detector.model), ModelProbe(detector.model, detector.encodings)
    found = locate(detector.facts, *sides, detector.feeds)
    assert found.first is not None and found.first.culprit is not None
    assert found.first.culprit.tensor == "unreachable"
    assert found.first.culprit.value == pytest.approx(UNREACHABLE)
    assert found.first.op_type == "Where" and "3.4e+38" in str(found.first.culprit)
    assert not found.exhausted and 2 * found.rounds <= SESSIONS
    json.dumps(found.to_json(), allow_nan=False)


def test_a_model_that_is_quantized_itself_is_held_against_its_float_form(tmp_path: Path) -> None:
    with np.load(AIMET / "detr" / "w8a16.io.npz") as kept:
        given = {k.split(":", 1)[1]: kept[k] for k in kept.files if k.startswith("input.0:")}
    np.savez(tmp_path / "x.npz", **given)
    found = locate_files(AIMET / "detr" / "w8a16.qdq.onnx", data=tmp_path / "x.npz")
    assert found.first is not None and found.first.culprit is not None
    assert found.first.output.name == "/decoder/Add_2_output_0"
    assert abs(found.first.culprit.value) > 1e29


@pytest.mark.parametrize(
    ("rounds", "in_time", "said"),
    [
        (1, False, "t399"),  # the output is all that was seen
        (1, True, "does not run on this sample"),
        (0, False, "before the outputs were compared"),
    ],
)
def test_a_run_that_fails_is_an_error_unless_its_time_is_over(
    rounds: int, in_time: bool, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When its time is over the nearest known operator is named; without the outputs there is no answer."""
    left = [rounds]

    class Slow(ModelProbe):
        def show_all(self, names: Sequence[str], feeds: Feeds) -> Any:
            left[0] -= 1
            if left[0] < 0:
                monkeypatch.setattr(locate_module, "time_left", lambda: 9.0 if in_time else 0.0)
                raise InputError("the model does not run on this sample", why="Exiting due to terminate flag")
            return super().show_all(names, feeds)

    model = _network(400, 3)
    sides = Slow(model), ModelProbe(_tampered(model, 100))
    feeds = random_feeds(model, seed=1)
    if in_time or not rounds:
        with pytest.raises(InputError if in_time else ToolError, match=said):
            locate(facts_of(model), *sides, feeds, per_round=8)
        return
    found = locate(facts_of(model), *sides, feeds, per_round=8)
    assert found.exhausted and found.rounds == 1
    assert found.first is not None and found.first.output.name == said


def test_an_infinite_constant_on_both_sides_is_survived() -> None:
    mask = np.asarray([[0.0, -np.inf, 0.0, 0.0]], np.float32)
    model = shape_inference.infer_shapes(
        text_model("float[1,4] x", "masked = Add(x, mask) y = Softmax(masked)", mask=mask)
    )
    assert _locate(model, model).first is None
    entries = {"masked": Encoding(name="masked", value=affine_for_range(0, 3, GridKind(bits=8, signed=False)))}
    infinite = Affine(bits=8, signed=False, scale=np.asarray(np.inf), zero_point=np.asarray(0.0))
    for value in (entries, {"masked": Encoding(name="masked", value=infinite)}):
        right = ModelProbe(model, EncodingSet(version="2.0.0", entries=value))
        found = locate(facts_of(model), ModelProbe(model), right, random_feeds(model))
        json.dumps(found.to_json(), allow_nan=False)
        assert found.first is not None and found.first.culprit is not None
        assert found.first.culprit.tensor == "mask"
