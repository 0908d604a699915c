"""Forms of operators that the provider refuses, makes float, or computes wrong as they are: really compiled and run."""

import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import ModelProto, numpy_helper, shape_inference

from deploykit.backend.backend import Request
from deploykit.encodings.formats.aimet import write_encodings
from deploykit.encodings.insert_qdq import insert_qdq
from deploykit.encodings.new_grids import GridKind, affine_for_range
from deploykit.encodings.values import Encoding, EncodingSet
from deploykit.findings.records import Arrays
from deploykit.flow.pipeline import Packaged, make_package
from deploykit.flow.samples import observed_ranges
from deploykit.model.collect import collect_facts
from deploykit.model.load import wrap_proto
from deploykit.model.patterns import fusions
from tables import each_row
from text_models import text_model

pytest.importorskip("onnxruntime_qnn", reason="the wheel is for Linux x86-64 only")
pytestmark = pytest.mark.heavy
WIDE, NARROW = GridKind(bits=16, signed=False), GridKind(bits=8, signed=False)
WEIGHT = GridKind(bits=8, signed=True, symmetric=True)


# Among what an operator reads: random weights of a shape, positive ones behind a plus, and numbers.
STORED = re.compile(r"\+?\[[\d,]+\]|(?<![\w.])\d[\d.e-]*(?!\w)")


def built(shape: str, text: str, opset: int = 17) -> ModelProto:
    """A model from ``x`` to ``y``; the random values are the same on every call."""
    random, stored = np.random.default_rng(11), dict[str, Any]()

    def name_of(found: re.Match[str]) -> str:
        word, sizes = found[0], [*map(int, re.findall(r"\d+", found[0]))]
        value: Any = float(word) if "[" not in word else random.normal(0, 1.2 / np.sqrt(np.prod(sizes[1:] or 8)), sizes)
        stored[f"k{len(stored)}"] = np.asarray(random.uniform(0.1, 0.9, sizes) if word[0] == "+" else value, np.float32)
        return f"k{len(stored) - 1}"

    body = re.sub(r"\(([^()]*)\)", lambda read: f"({STORED.sub(name_of, read[1])})", text)
    return shape_inference.infer_shapes(text_model(f"float[{shape}] x", body, opset=opset, **stored))


def convolved(act: str) -> ModelProto:
    """Conv to ``h``, the activation to ``a``, Conv."""
    conv = "Conv <pads = [1, 1, 1, 1]>"
    return built("1,3,16,16", f"h = {conv} (x, [8,3,3,3], [8])  {act}  y = {conv} (a, [4,8,3,3], [4])")


def projected(act: str, opset: int = 17, length: int = 10) -> ModelProto:
    """MatMul and Add to ``h`` of [2, length, 32], the operator to ``a``, MatMul and Add."""
    body = f"i = MatMul (x, [32,32])  h = Add (i, [32])  {act}  o = MatMul (a, [32,16])  y = Add (o, [16])"
    return built(f"2,{length},32", body, opset)


DOUBLED = "scaled = Div (h, 1.41421356)  erf = Erf (scaled)  gate = Add (erf, 1)  {} = Mul (h, gate)"
ACTIVATIONS = {
    "gelu, doubled": DOUBLED.format("a"),
    "gelu over two": f"{DOUBLED.format('twice')}  a = Div (twice, 2)",
    "gelu by tanh": "cube = Pow (h, 3)  c = Mul (cube, 0.044715)  total = Add (h, c)  inner = Mul (total, 0.79788456)"
    "  tanh = Tanh (inner)  gate = Add (tanh, 1)  halved = Mul (h, 0.5)  a = Mul (halved, gate)",
    "quick gelu": "scaled = Mul (h, 1.702)  gate = Sigmoid (scaled)  a = Mul (h, gate)",
    "silu": "gate = Sigmoid (h)  a = Mul (h, gate)",
    "x times HardSigmoid": "gate = HardSigmoid <alpha = 0.16666667, beta = 0.5> (h)  a = Mul (h, gate)",
    "HardSwish": "a = HardSwish (h)",
    "LeakyRelu": "a = LeakyRelu <alpha = 0.1> (h)",
    "PRelu by channel": "a = PRelu (h, +[8,1,1])",
    "PRelu, one slope": "a = PRelu (h, +[1])",
    "PRelu, rank 4": "a = PRelu (h, +[1,8,1,1])",
    "PRelu, partly falling": "a = PRelu (h, [8,1,1])",
}


def feeds(model: ModelProto) -> list[Arrays]:
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


# What is added to both samples, a stored table or their own mean, right in front of a normalization.
POSITIONED = "s = Add (x, {})  y = LayerNormalization (s, +[32], [32])"
RMS = "q = Pow (h, 2)  m = ReduceMean <axes = [-1]> (q)  p = Add (m, 1e-5)  r = Sqrt (p)  v = Reciprocal (r)"
FLOATS: dict[str, ModelProto] = {
    "": built("2,16,32", f"m = ReduceMean <axes = [0], keepdims = 0> (x)  {POSITIONED.format('m')}"),
    "divide-by-root": projected(f"{RMS}  n = Mul (h, v)  a = Mul (+[32], n)", 17, 16),
    "norm-rows": projected("a = RMSNormalization (h, +[32])", 23, 16),
    " ": projected("a = LayerNormalization <axis = -2> (h, +[16,32], [16,32])", 17, 16),
}
for line in Path(__file__).with_name("cured.txt").read_text("utf-8").splitlines():
    name, shape, opset, body = line.split(" | ")
    FLOATS[name] = built(shape, body, int(opset))


@pytest.mark.parametrize("cure", FLOATS)
def test_what_is_refused_or_wrong_in_float_is_cured(cure: str, tmp_path: Path) -> None:
    made = proven(tmp_path, FLOATS[cure], None, 50.0)
    said = [finding.message for finding in made.findings if finding.code == "DK210"]
    assert not cure.strip() or any(message.startswith(f"{cure}: ") for message in said)


def test_a_kernel_that_is_wrong_is_found_on_made_up_inputs_too(tmp_path: Path) -> None:
    pool = "AveragePool <count_include_pad = 1, kernel_shape = [3,3,3], strides = [2,2,2], pads = [1,1,1,1,1,1]>"
    onnx.save(built("1,4,8,8,8", f"y = {pool} (x)"), tmp_path / "m.onnx")
    made = make_package(Request(model=tmp_path / "m.onnx", target="sm8650", backend="ort-qnn"), tmp_path / "p")
    assert {"QNN321"} == {finding.code for finding in made.findings if finding.handled}
    assert float(json.loads((tmp_path / "p/artifacts/numbers.json").read_text())["agreement_db"]["y"]) > 50.0


@pytest.mark.parametrize("precision", ["float", "w8a16"])
@each_row("length", 10, 16)
def test_a_table_of_positions_of_any_length(length: int, precision: str, tmp_path: Path) -> None:
    model = built(f"2,{length},32", POSITIONED.format(f"[1,{length},32]"))
    unknown = model.graph.node[-1].input[1:]
    proven(tmp_path, model, None if precision == "float" else calibrated(model, unknown), 60.0)


@pytest.mark.parametrize("precision", ["float", "w8a16, interior left out"])
@each_row(
    ("model", "least"),
    *((convolved(act), 45.0) for act in ACTIVATIONS.values()),
    *((projected(act), 50.0) for act in (ACTIVATIONS["gelu, doubled"], "a = PRelu (h, +[32])")),
)
def test_every_form_of_an_activation(model: ModelProto, least: float, precision: str, tmp_path: Path) -> None:
    fused = fusions(collect_facts(wrap_proto(model, path=Path("m.onnx"))))
    inside = {name for fusion in fused for name in (*fusion.inside, *fusion.settings)}
    proven(tmp_path, model, None if precision == "float" else calibrated(model, inside), least)


def test_a_quantized_layer_normalization_in_single_operators_is_compiled_as_one(tmp_path: Path) -> None:
    """What an export with operator set 13 looks like after quantization to 8 bits."""
    body = "mean = ReduceMean <axes = [-1]> (x)  sub = Sub (x, mean)  square = Pow (sub, 2)"
    body += "  variance = ReduceMean <axes = [-1]> (square)  plus = Add (variance, 1e-5)  root = Sqrt (plus)"
    body += "  div = Div (sub, root)  scaled = Mul (div, +[64])  y = Add (scaled, [64])"
    model = built("1,16,64", body, 13)
    gamma = next(node.input[1] for node in model.graph.node if node.output[0] == "scaled")
    limits: dict[str, tuple[float, float]] = {"x": (-4, 4), "sub": (-4, 4), "square": (0, 16)}
    limits |= dict.fromkeys(("variance", "plus", "root"), (0, 2))
    limits |= {"mean": (-1, 1), "div": (-4, 4), "scaled": (-4, 4), "y": (-5, 5), gamma: (0, 1)}
    grids = {name: Encoding(name=name, value=affine_for_range(*ends, NARROW)) for name, ends in limits.items()}
    proven(tmp_path, insert_qdq(model, EncodingSet(version="2", entries=grids)).model, None, 30.0)
    told = json.loads((tmp_path / "p/config/intended_types.json").read_text())["steps"]
    assert [step["count"] for step in told if step["id"] == "fuse-layernorm"] == [1]
