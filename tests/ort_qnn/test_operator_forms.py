"""Forms of operators that the provider refuses, makes float, or computes wrong as they are: really compiled and run."""

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import ModelProto, numpy_helper

from deploykit.accuracy.simulate.sessions import Feed
from deploykit.backend.backend import Request
from deploykit.encodings.formats.aimet import write_encodings
from deploykit.encodings.insert_qdq import insert_qdq
from deploykit.encodings.new_grids import GridKind, affine_for_range
from deploykit.encodings.values import Encoding, EncodingSet
from deploykit.flow.pipeline import Packaged, make_package
from deploykit.flow.samples import observed_ranges
from deploykit.model.collect import collect_facts
from deploykit.model.load import wrap_proto
from deploykit.model.patterns import fusions
from sample_models.tiny_graphs import TinyGraph
from tables import each_row

pytest.importorskip("onnxruntime_qnn", reason="the wheel is for Linux x86-64 only")
pytestmark = pytest.mark.heavy
WIDE, NARROW = GridKind(bits=16, signed=False), GridKind(bits=8, signed=False)
WEIGHT = GridKind(bits=8, signed=True, symmetric=True)


class Weights:
    """Random values that are the same on every call of one builder."""

    def __init__(self) -> None:
        self._random = np.random.default_rng(11)

    def __call__(self, *shape: int) -> np.ndarray[Any, Any]:
        return self._random.normal(0.0, 1.2 / np.sqrt(np.prod(shape[1:])), shape)

    def between(self, low: float, high: float, *shape: int) -> np.ndarray[Any, Any]:
        return self._random.uniform(low, high, shape)


Act = Callable[[TinyGraph, Weights], str]


def convolved(act: Act, opset: int = 17) -> ModelProto:
    """Conv to ``h``, the activation, Conv."""
    weights, graph = Weights(), TinyGraph(opset)
    graph.input("x", (1, 3, 16, 16))
    first = [graph.stored("in.weight", weights(8, 3, 3, 3)), graph.stored("in.bias", weights(8, 8)[0])]
    graph.op("Conv", ["x", *first], "h", pads=[1] * 4)
    last = [graph.stored("out.weight", weights(4, 8, 3, 3)), graph.stored("out.bias", weights(4, 4)[0])]
    return graph.model(graph.op("Conv", [act(graph, weights), *last], "y", pads=[1] * 4))


def projected(act: Act, opset: int = 17, length: int = 10) -> ModelProto:
    """MatMul and Add to ``h`` of [2, length, 32], the operator, MatMul and Add."""
    weights, graph = Weights(), TinyGraph(opset)
    graph.input("x", (2, length, 32))
    graph.op("MatMul", ["x", graph.stored("in.weight", weights(32, 32))], "in")
    graph.op("Add", ["in", graph.stored("in.bias", weights(32, 32)[0])], "h")
    graph.op("MatMul", [act(graph, weights), graph.stored("out.weight", weights(32, 16))], "out")
    return graph.model(graph.op("Add", ["out", graph.stored("out.bias", weights(16, 16)[0])], "y"))


def written(text: str) -> Act:
    """``h`` through a chain of steps, ``Op input input -> output`` each; numbers are stored, the last is the result."""

    def act(graph: TinyGraph, _: Weights) -> str:
        for step in text.split(";"):
            (op, *inputs), made = step.partition("->")[0].split(), step.partition("->")[2].strip()
            stored = {word: graph.stored(f"{made}.{word}", float(word)) for word in inputs if word[0].isdigit()}
            graph.op(op, [stored.get(word, word) for word in inputs], made)
        return made

    return act


def one(op: str, **settings: Any) -> Act:
    return lambda graph, _: graph.op(op, ["h"], "a", **settings)


def prelu(*shape: int, low: float = 0.05) -> Act:
    return lambda graph, weights: graph.op(
        "PRelu", ["h", graph.stored("slopes", weights.between(low, 0.4, *shape))], "a"
    )


DOUBLED = "Div h 1.41421356 -> scaled; Erf scaled -> erf; Add erf 1 -> gate; Mul h gate -> a"
CONVOLVED: dict[str, Act] = {
    "gelu, doubled": written(DOUBLED),
    "gelu over two": written(f"{DOUBLED}; Div a 2 -> b"),
    "gelu by tanh": written(
        "Pow h 3 -> cube; Mul cube 0.044715 -> c; Add h c -> total; Mul total 0.79788456 -> inner; "
        "Tanh inner -> tanh; Add tanh 1 -> gate; Mul h 0.5 -> halved; Mul halved gate -> a"
    ),
    "quick gelu": written("Mul h 1.702 -> scaled; Sigmoid scaled -> gate; Mul h gate -> a"),
    "silu": written("Sigmoid h -> gate; Mul h gate -> a"),
    "x times HardSigmoid": lambda graph, _: graph.op(
        "Mul", ["h", graph.op("HardSigmoid", ["h"], "gate", alpha=1 / 6, beta=0.5)], "a"
    ),
    "HardSwish": one("HardSwish"),
    "LeakyRelu": one("LeakyRelu", alpha=0.1),
    "PRelu by channel": prelu(8, 1, 1),
    "PRelu, one slope": prelu(1),
    "PRelu, rank 4": prelu(1, 8, 1, 1),
    "PRelu, partly falling": prelu(8, 1, 1, low=-0.3),
}
PROJECTED = {"gelu, doubled": written(DOUBLED), "PRelu by channel": prelu(32)}


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


def proven(folder: Path, model: ModelProto, encodings: EncodingSet | None, least: float) -> Packaged:
    """A package whose outputs are that near to float, with nothing on the CPU and no grid left for float."""
    onnx.save(model, folder / "m.onnx")
    (folder / "data").mkdir()
    for number, feed in enumerate(feeds(model)):
        np.savez(folder / "data" / f"{number}.npz", x=feed["x"])
    path = None
    if encodings is not None:
        path = folder / "m.encodings"
        path.write_text(write_encodings(encodings, "1.0.0"))
    asked = Request(
        model=folder / "m.onnx", encodings=path, calibration=folder / "data", target="sm8650", backend="ort-qnn"
    )
    made = make_package(asked, folder / "p")
    assert made.exit_status == 0, [finding.message for finding in made.findings if finding.blocks]
    assert float(json.loads((folder / "p/artifacts/numbers.json").read_text())["agreement_db"]["y"]) > least
    assert json.loads((folder / "p/manifest.json").read_text())["record"]["compile"]["nodes_on_cpu"] == 0
    assert not {"ORT101", "ORT104", "ORT105"} & {finding.code for finding in made.findings}
    return made


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


def single(op_type: str, shape: tuple[int, ...], opset: int = 18, **attributes: Any) -> ModelProto:
    graph = TinyGraph(opset)
    return graph.model(graph.op(op_type, [graph.input("x", shape)], "y", **attributes))


def reversed_sum() -> ModelProto:
    graph = TinyGraph()
    axis = graph.stored("axis", 1, "int64")
    return graph.model(graph.op("CumSum", [graph.input("x", (3, 8)), axis], "y", reverse=1, exclusive=1))


def normalized() -> ModelProto:
    graph, random = TinyGraph(), np.random.default_rng(2)
    stored = [graph.stored(name, random.uniform(0.5, 1.5, 4)) for name in ("scale", "shift", "mean", "var")]
    return graph.model(graph.op("BatchNormalization", [graph.input("x", (1, 4, 3, 5, 6)), *stored], "y"))


def unbound() -> ModelProto:
    graph = TinyGraph()
    graph.op("SplitToSequence", [graph.input("x", (3, 8))], "parts", axis=0, keepdims=0)
    graph.op("SequenceAt", ["parts", graph.stored("last", -1, "int64")], "one")
    return graph.model(graph.op("Sigmoid", ["one"], "y"))


FLOATS: dict[str, ModelProto] = {
    "": positioned(16, computed=True),
    "divide-by-root": projected(rms_by_reciprocal, 17, 16),
    "norm-rows": projected(rms_of_two, 23, 16),
    " ": projected(norm_of_two_axes, 17, 16),
    "pool-by-taps": single("MaxPool", (1, 4, 6, 8, 8), kernel_shape=[2, 3, 3], strides=[2, 2, 2], pads=[0, 1, 1] * 2),
    "cumulate-forward": reversed_sum(),
    "product-by-halves": single("ReduceProd", (3, 5), opset=17, axes=[1]),
    "rank-four": normalized(),
    "resolve-sequences": unbound(),
    "write-out-functions": single("Softsign", (3, 8)),
}


@pytest.mark.parametrize("cure", FLOATS)
def test_what_is_refused_or_wrong_in_float_is_cured(cure: str, tmp_path: Path) -> None:
    made = proven(tmp_path, FLOATS[cure], None, 50.0)
    said = [finding.message for finding in made.findings if finding.code == "DK210"]
    assert not cure.strip() or any(message.startswith(f"{cure}: ") for message in said)


@pytest.mark.parametrize("precision", ["float", "w8a16"])
@each_row("length", 10, 16)
def test_a_table_of_positions_of_any_length(length: int, precision: str, tmp_path: Path) -> None:
    model = positioned(length)
    proven(tmp_path, model, None if precision == "float" else calibrated(model, ["scale", "shift"]), 60.0)


@pytest.mark.parametrize("precision", ["float", "w8a16, interior left out"])
@each_row(
    ("model", "least"),
    *((convolved(act), 45.0) for act in CONVOLVED.values()),
    *((projected(act), 50.0) for act in PROJECTED.values()),
)
def test_every_form_of_an_activation(model: ModelProto, least: float, precision: str, tmp_path: Path) -> None:
    fused = fusions(collect_facts(wrap_proto(model, path=Path("m.onnx"))))
    inside = {name for fusion in fused for name in (*fusion.inside, *fusion.settings)}
    proven(tmp_path, model, None if precision == "float" else calibrated(model, inside), least)


def test_a_quantized_layer_normalization_in_single_operators_is_compiled_as_one(tmp_path: Path) -> None:
    """What an export with operator set 13 looks like after quantization to 8 bits."""
    graph = TinyGraph(13)
    mean = graph.op("ReduceMean", [graph.input("x", (1, 16, 64))], "mean", axes=[-1])
    square = graph.op("Pow", [graph.op("Sub", ["x", mean], "sub"), graph.stored("two", 2.0)], "square")
    plus = graph.op("Add", [graph.op("ReduceMean", [square], "variance", axes=[-1]), graph.stored("eps", 1e-5)], "plus")
    norm = graph.op("Div", ["sub", graph.op("Sqrt", [plus], "root")], "div")
    scaled = graph.op("Mul", [norm, graph.stored("gamma", np.linspace(0.5, 1.5, 64))], "scaled")
    model = graph.model(graph.op("Add", [scaled, graph.stored("beta", np.linspace(-1, 1, 64))], "y"))
    limits: dict[str, tuple[float, float]] = {"x": (-4, 4), "sub": (-4, 4), "square": (0, 16)}
    limits |= dict.fromkeys(("variance", "plus", "root"), (0, 2))
    limits |= {"mean": (-1, 1), "div": (-4, 4), "scaled": (-6, 6), "y": (-6, 6), "gamma": (0, 1.5)}
    grids = {name: Encoding(name=name, value=affine_for_range(*ends, NARROW)) for name, ends in limits.items()}
    proven(tmp_path, insert_qdq(model, EncodingSet(version="2", entries=grids)).model, None, 30.0)
    told = json.loads((tmp_path / "p/config/intended_types.json").read_text())["steps"]
    assert [step["count"] for step in told if step["id"] == "fuse-layernorm"] == [1]
