"""Forms of operators that the provider refuses, makes float, or computes wrong as they are: really compiled and run."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import ModelProto, numpy_helper

from deploykit.accuracy.simulate.sessions import Feed
from deploykit.backend.backend import Request
from deploykit.encodings.backward import Evidence
from deploykit.encodings.formats.aimet import write_encodings
from deploykit.encodings.new_grids import GridKind, affine_for_range
from deploykit.encodings.values import Affine, Encoding, EncodingSet
from deploykit.flow.pipeline import Packaged, make_package
from deploykit.flow.samples import observed_ranges
from deploykit.model.collect import collect_facts
from deploykit.model.load import wrap_proto
from deploykit.model.patterns import fusions
from deploykit_ort_qnn.forms.missing_grids import fused_grids
from sample_models.tiny_graphs import TinyGraph
from tables import each_row

ZOO = Path(__file__).parents[1] / "data" / "zoo"
WIDE = GridKind(bits=16, signed=False)
NARROW = GridKind(bits=8, signed=False)
WEIGHT = GridKind(bits=8, signed=True, symmetric=True)


class Weights:
    """Random values that are the same on every call of one builder."""

    def __init__(self) -> None:
        self._random = np.random.default_rng(11)

    def __call__(self, *shape: int) -> np.ndarray[Any, Any]:
        return self._random.normal(0.0, 1.2 / np.sqrt(np.prod(shape[1:])), shape)

    def between(self, low: float, high: float, *shape: int) -> np.ndarray[Any, Any]:
        return self._random.uniform(low, high, shape)


def convolved(act: Callable[[TinyGraph, Weights], str], opset: int = 17) -> ModelProto:
    """Conv to ``h``, the activation, Conv."""
    weights, graph = Weights(), TinyGraph(opset)
    graph.input("x", (1, 3, 16, 16))
    first = [graph.stored("in.weight", weights(8, 3, 3, 3)), graph.stored("in.bias", weights(8, 8)[0])]
    graph.op("Conv", ["x", *first], "h", pads=[1] * 4)
    last = [graph.stored("out.weight", weights(4, 8, 3, 3)), graph.stored("out.bias", weights(4, 4)[0])]
    return graph.model(graph.op("Conv", [act(graph, weights), *last], "y", pads=[1] * 4))


def projected(act: Callable[[TinyGraph, Weights], str], opset: int = 17, length: int = 10) -> ModelProto:
    """MatMul and Add to ``h`` of [2, length, 32], the operator, MatMul and Add."""
    weights, graph = Weights(), TinyGraph(opset)
    graph.input("x", (2, length, 32))
    graph.op("MatMul", ["x", graph.stored("in.weight", weights(32, 32))], "in")
    graph.op("Add", ["in", graph.stored("in.bias", weights(32, 32)[0])], "h")
    graph.op("MatMul", [act(graph, weights), graph.stored("out.weight", weights(32, 16))], "out")
    return graph.model(graph.op("Add", ["out", graph.stored("out.bias", weights(16, 16)[0])], "y"))


def gate(graph: TinyGraph) -> str:
    """1 + erf(h / sqrt(2))."""
    scaled = graph.op("Div", ["h", graph.stored("root", 2**0.5)], "scaled")
    return graph.op("Add", [graph.op("Erf", [scaled], "erf"), graph.stored("one", 1.0)], "gate")


def doubled_gelu(graph: TinyGraph, _: Weights) -> str:
    return graph.op("Mul", ["h", gate(graph)], "a")


def gelu_over_two(graph: TinyGraph, weights: Weights) -> str:
    return graph.op("Div", [doubled_gelu(graph, weights), graph.stored("two", 2.0)], "b")


def gelu_by_tanh(graph: TinyGraph, _: Weights) -> str:
    cube = graph.op(
        "Mul", [graph.op("Pow", ["h", graph.stored("three", 3.0)], "cube"), graph.stored("k", 0.044715)], "c"
    )
    inner = graph.op("Mul", [graph.op("Add", ["h", cube], "total"), graph.stored("root", (2 / np.pi) ** 0.5)], "inner")
    bent = graph.op("Add", [graph.op("Tanh", [inner], "tanh"), graph.stored("one", 1.0)], "gate")
    return graph.op("Mul", [graph.op("Mul", ["h", graph.stored("half", 0.5)], "halved"), bent], "a")


def quick_gelu(graph: TinyGraph, _: Weights) -> str:
    scaled = graph.op("Mul", ["h", graph.stored("k", 1.702)], "scaled")
    return graph.op("Mul", ["h", graph.op("Sigmoid", [scaled], "gate")], "a")


def silu(graph: TinyGraph, _: Weights) -> str:
    return graph.op("Mul", ["h", graph.op("Sigmoid", ["h"], "gate")], "a")


def hard_gate(graph: TinyGraph, _: Weights) -> str:
    return graph.op("Mul", ["h", graph.op("HardSigmoid", ["h"], "gate", alpha=1 / 6, beta=0.5)], "a")


def hardswish(graph: TinyGraph, _: Weights) -> str:
    return graph.op("HardSwish", ["h"], "a")


def leaky(graph: TinyGraph, _: Weights) -> str:
    return graph.op("LeakyRelu", ["h"], "a", alpha=0.1)


def prelu(*shape: int, low: float = 0.05) -> Callable[[TinyGraph, Weights], str]:
    def act(graph: TinyGraph, weights: Weights) -> str:
        return graph.op("PRelu", ["h", graph.stored("slopes", weights.between(low, 0.4, *shape))], "a")

    return act


CONVOLVED = {
    "gelu, doubled": doubled_gelu,
    "gelu over two": gelu_over_two,
    "gelu by tanh": gelu_by_tanh,
    "quick gelu": quick_gelu,
    "silu": silu,
    "x times HardSigmoid": hard_gate,
    "HardSwish": hardswish,
    "LeakyRelu": leaky,
    "PRelu by channel": prelu(8, 1, 1),
    "PRelu, one slope": prelu(1),
    "PRelu, rank 4": prelu(1, 8, 1, 1),
    "PRelu, partly falling": prelu(8, 1, 1, low=-0.3),
}
PROJECTED = {"gelu, doubled": doubled_gelu, "PRelu by channel": prelu(32)}


def feeds(model: ModelProto) -> list[Feed]:
    shape = [dim.dim_value for dim in model.graph.input[0].type.tensor_type.shape.dim]
    return [{"x": np.random.default_rng(seed).normal(0, 1, shape).astype(np.float32)} for seed in range(4)]


def calibrated(model: ModelProto, omitted: Iterable[str]) -> EncodingSet:
    """W8A16 as AIMET writes it: ranges seen on the feeds, biases of layers and what is ``omitted`` without entries."""
    stored = {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
    layers = [node for node in model.graph.node if node.op_type in ("Conv", "MatMul")]
    left_out = {*omitted, *(node.input[2] for node in layers if len(node.input) > 2)}
    seen = observed_ranges(model, ["x", *(name for node in model.graph.node for name in node.output)], feeds(model))
    entries = {}
    for name in {*stored, *seen} - left_out:
        kind = WEIGHT if name in {node.input[1] for node in layers} else WIDE
        ends = seen.get(name) or (float(stored[name].min()), float(stored[name].max()))
        entries[name] = Encoding(name=name, value=affine_for_range(*ends, kind), is_param=name in stored)
    return EncodingSet(version="1.0.0", entries=entries)


def packaged(folder: Path, model: ModelProto, encodings: EncodingSet | None) -> Packaged:
    onnx.save(model, folder / "m.onnx")
    (folder / "data").mkdir()
    for number, feed in enumerate(feeds(model)):
        np.savez(folder / "data" / f"{number}.npz", x=feed["x"])
    path = None
    if encodings is not None:
        path = folder / "m.encodings"
        path.write_text(write_encodings(encodings, "1.0.0"))
    given = Request(
        model=folder / "m.onnx", encodings=path, calibration=folder / "data", target="sm8650", backend="ort-qnn"
    )
    return make_package(given, folder / "p")


def decibels(folder: Path) -> float:
    return float(json.loads((folder / "p/artifacts/numbers.json").read_text())["agreement_db"]["y"])


def inside(model: ModelProto) -> set[str]:
    found = fusions(collect_facts(wrap_proto(model, path=Path("m.onnx"))))
    return {name for fusion in found for name in (*fusion.inside, *fusion.settings)}


def proven(folder: Path, model: ModelProto, encodings: EncodingSet | None, least: float) -> None:
    made = packaged(folder, model, encodings)
    assert made.exit_status == 0, [finding.message for finding in made.findings if finding.blocks]
    assert decibels(folder) > least
    # Nothing that has an integer grid is computed in float.
    assert not {"ORT101", "ORT104", "ORT105"} & {finding.code for finding in made.findings}


def positioned(length: int, *, computed: bool = False) -> ModelProto:
    """What is added to both samples, a stored table or their own mean, right in front of a normalization."""
    weights, graph = Weights(), TinyGraph()
    graph.input("x", (2, length, 32))
    if computed:
        added = graph.op("ReduceMean", ["x"], "added", axes=[0], keepdims=0)
    else:
        added = graph.stored("table", weights.between(-1, 1, 1, length, 32))
    graph.op("Add", ["x", added], "sum")
    stored = [graph.stored("scale", weights.between(0.5, 1.5, 32)), graph.stored("shift", weights(32, 32)[0])]
    return graph.model(graph.op("LayerNormalization", ["sum", *stored], "y"))


@pytest.mark.heavy
def test_every_sample_is_right_behind_a_repeated_operand(tmp_path: Path) -> None:
    proven(tmp_path, positioned(16, computed=True), None, 60.0)


def rms_by_reciprocal(graph: TinyGraph, weights: Weights) -> str:
    """h times the reciprocal of the root of its mean square, as language models have it."""
    square = graph.op("Pow", ["h", graph.stored("two", 2.0)], "square")
    mean = graph.op("ReduceMean", [square], "mean", axes=[-1])
    root = graph.op("Sqrt", [graph.op("Add", [mean, graph.stored("epsilon", 1e-5)], "plus")], "root")
    norm = graph.op("Mul", ["h", graph.op("Reciprocal", [root], "inverse")], "norm")
    return graph.op("Mul", [graph.stored("scale", weights.between(0.5, 1.5, 32)), norm], "a")


def rms_of_two(graph: TinyGraph, weights: Weights) -> str:
    return graph.op("RMSNormalization", ["h", graph.stored("scale", weights.between(0.5, 1.5, 32))], "a")


def norm_of_two_axes(graph: TinyGraph, weights: Weights) -> str:
    stored = [graph.stored("scale", weights.between(0.5, 1.5, 16, 32)), graph.stored("shift", weights(16, 32))]
    return graph.op("LayerNormalization", ["h", *stored], "a", axis=-2)


@pytest.mark.heavy
@pytest.mark.parametrize(("norm", "opset"), [(rms_by_reciprocal, 17), (rms_of_two, 23), (norm_of_two_axes, 17)])
def test_a_norm_that_is_refused_or_wrong_as_it_is(norm: Any, opset: int, tmp_path: Path) -> None:
    proven(tmp_path, projected(norm, opset, 16), None, 55.0)


@pytest.mark.heavy
@pytest.mark.parametrize("precision", ["float", "w8a16"])
@each_row("length", [10, 16])
def test_a_table_of_positions_of_any_length(length: int, precision: str, tmp_path: Path) -> None:
    model = positioned(length)
    proven(tmp_path, model, None if precision == "float" else calibrated(model, ["scale", "shift"]), 60.0)


@pytest.mark.heavy
@pytest.mark.parametrize("precision", ["float", "w8a16, interior left out"])
@each_row("form", CONVOLVED)
def test_every_form_between_convolutions(form: str, precision: str, tmp_path: Path) -> None:
    model = convolved(CONVOLVED[form])
    proven(tmp_path, model, None if precision == "float" else calibrated(model, inside(model)), 45.0)


@pytest.mark.heavy
@pytest.mark.parametrize("precision", ["float", "w8a16, interior left out"])
@each_row("form", PROJECTED)
def test_every_form_between_linear_layers(form: str, precision: str, tmp_path: Path) -> None:
    model = projected(PROJECTED[form])
    proven(tmp_path, model, None if precision == "float" else calibrated(model, inside(model)), 50.0)


@pytest.mark.heavy
def test_a_network_with_prelu_needs_no_data(tmp_path: Path) -> None:
    """The ranges between Conv and PRelu follow from the results of the PRelu."""
    folder = ZOO / "superres"
    given = Request(
        model=folder / "model.onnx",
        encodings=folder / "w8a16.v1.0.0.encodings",
        target="sm8650",
        backend="ort-qnn",
    )
    made = make_package(given, tmp_path / "p")
    assert made.exit_status == 0, [finding.message for finding in made.findings if finding.blocks]
    steps = json.loads((tmp_path / "p/config/intended_types.json").read_text())["steps"]
    assert [step["count"] for step in steps if step["id"] == "fused-grids"] == [5]


def with_grids(model: ModelProto, bits: int, names: Sequence[str]) -> EncodingSet:
    kind = WIDE if bits == 16 else NARROW
    return EncodingSet(
        version="1.0.0",
        entries={name: Encoding(name=name, value=affine_for_range(-2.0, 6.0, kind)) for name in names},
    )


@pytest.mark.parametrize(
    ("bits", "made"), [(16, {"centred", "mean", "plus", "root", "square", "variance"}), (8, set())]
)
def test_the_interior_of_a_norm_gets_grids_only_where_they_can_hold_it(bits: int, made: set[str]) -> None:
    graph = TinyGraph()
    graph.input("x", (2, 32))
    mean = graph.op("ReduceMean", ["x"], "mean", axes=[0])
    centred = graph.op("Sub", ["x", mean], "centred")
    square = graph.op("Pow", [centred, graph.stored("two", 2.0)], "square")
    variance = graph.op("ReduceMean", [square], "variance", axes=[0])
    root = graph.op("Sqrt", [graph.op("Add", [variance, graph.stored("epsilon", 1e-5)], "plus")], "root")
    model = graph.model(graph.op("Div", [centred, root], "y"))
    seen = Evidence(inputs=frozenset({"x"}), observe=lambda names: observed_ranges(model, names, feeds(model)))
    _, names = fused_grids(model, with_grids(model, bits, ["x", "y"]), lambda _: seen)
    assert set(names) == made


def test_without_data_an_operator_gets_all_of_its_grids_or_none() -> None:
    model = convolved(gelu_by_tanh)
    given = with_grids(model, 16, ["a", "y"])
    completed, names = fused_grids(model, given, None)
    assert names == () and completed is given


def test_a_tensor_that_is_stated_to_be_float_stays_float() -> None:
    model = convolved(leaky)
    stated = with_grids(model, 16, ["x", "a", "y"])
    assert fused_grids(model, stated, None)[1] == ("h",)
    floats = EncodingSet(version="1.0.0", entries=stated.entries, float_tensors=frozenset({"h"}))
    assert fused_grids(model, floats, None)[1] == ()


def test_new_grids_are_of_the_kind_that_most_entries_have() -> None:
    model = convolved(leaky)
    completed, _ = fused_grids(model, with_grids(model, 8, ["x", "a", "y"]), None)
    value = completed.entries["h"].value
    assert isinstance(value, Affine) and value.dtype == "uint8"
    assert (float(value.minimum), float(value.maximum)) == pytest.approx((-20.0, 6.0), abs=0.2)
