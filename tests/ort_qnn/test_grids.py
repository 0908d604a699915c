"""Grids that kernels compute rightly with: which tensors get them, and on the emulator what is wrong without."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from msgspec.structs import replace
from onnx import ModelProto

import deploykit
from deploykit.accuracy.judge.measures import sqnr_db
from deploykit.encodings.backward import Evidence
from deploykit.encodings.new_grids import GridKind, affine_for_range
from deploykit.encodings.values import Affine, Encoding, EncodingSet
from deploykit.flow.samples import observed_ranges
from deploykit_ort_qnn.compiler.jobs import CompileJob, compile_model, execute_both
from deploykit_ort_qnn.forms.missing_grids import fused_grids
from deploykit_ort_qnn.provider_model import ProviderModel, provider_model
from deploykit_qualcomm.qnn_types import step_units, whole_step
from tables import each_row
from text_models import text_model

UNIT = math.log(2) / 2**22


def grid(low: float, high: float, bits: int = 16) -> Affine:
    return affine_for_range(low, high, GridKind(bits=bits, signed=False))


def stepped(units: float, bits: int = 16) -> Affine:
    """A grid around 0 whose step is so many units."""
    unit = UNIT if bits == 16 else 16 * UNIT
    return replace(grid(-1, 1, bits), scale=np.asarray(units * unit), zero_point=np.asarray(2.0 ** (bits - 1)))


def encodings_of(**grids: Affine) -> EncodingSet:
    entries = {name: Encoding(name=name, value=value, is_param=name == "w") for name, value in grids.items()}
    return EncodingSet(version="1.0.0", entries=entries)


def value_of(encodings: EncodingSet, name: str) -> Affine:
    value = encodings.entries[name].value
    assert isinstance(value, Affine)
    return value


def ends(value: Affine) -> tuple[float, float]:
    return float(value.minimum), float(value.maximum)


@each_row(("units", "wanted"), (1.5, 16), (15.9, 16), (16.5, 17), (17.0005, None), (99.2, 100), (5000.4, 5001))
def test_a_step_becomes_the_next_whole_number_of_units(units: float, wanted: int | None) -> None:
    for bits in (8, 16):
        step = whole_step(stepped(units, bits))
        if wanted is None:
            assert step is None
            continue
        assert step is not None
        stored = replace(stepped(1, bits), scale=np.float32(step).astype(float))
        assert wanted < (step_units(stored) or 0) < wanted + 0.01


def attention(layer: str) -> ModelProto:
    """A product of two activations, moved, through a layer with a bias."""
    rng, is_conv = np.random.default_rng(5), layer == "Conv"
    weight = rng.normal(0, 0.3, (6, 8, 1, 1) if is_conv else (12, 6)).astype("f4")
    stored: Any = {"w": weight, "bias": rng.normal(0, 1, 6).astype("f4"), "shape": [1, 8, 3, 4] if is_conv else [8, 12]}
    body = f"product = MatMul (a, b)  moved = Reshape (product, shape)  y = {layer} (moved, w, bias)"
    return text_model("float[1,8,16] a, float[1,16,12] b", body, **stored)


def attended(axis: int = 1) -> EncodingSet:
    """All tensors of ``attention``; the product's range is far from even."""
    uneven = grid(-8, 2)
    weight = Affine(bits=8, signed=True, scale=np.full(6, 0.01), zero_point=np.zeros(6), symmetric=True, axis=axis)
    return encodings_of(a=grid(0, 1), b=grid(-1, 0.25), product=uneven, moved=uneven, w=weight, y=grid(-8, 8))


def activated(op: str) -> tuple[ModelProto, EncodingSet]:
    """A convolution of 16 x 8 values, and what follows it: a Clip at 0 and 2, or x times Sigmoid(x)."""
    rng = np.random.default_rng(5)
    stored: Any = {"w": rng.normal(0, 0.6, (6, 4, 1, 1)).astype("f4"), "bias": rng.normal(0, 0.3, 6).astype("f4")}
    ending = "y = Clip (h, low, high)" if op == "Clip" else "gate = Sigmoid (h)  y = Mul (gate, h)"
    ends: Any = {"low": 0.0, "high": 2.0} if op == "Clip" else {}
    model = text_model("float[1,4,16,8] x", f"h = Conv (x, w, bias)  {ending}", **stored, **ends)
    weight = Affine(bits=8, signed=True, scale=np.asarray(0.02), zero_point=np.asarray(0.0), symmetric=True)
    common = {"x": grid(-3, 3), "w": weight, "h": grid(-6, 6)}
    made = {"y": grid(-6, 6)} if op == "Clip" else {"gate": grid(0, 1), "y": grid(-0.3, 6)}
    return model, encodings_of(**common, **made)


def moved(*, kind: str = "uint8", read_twice: bool = False, behind: str = "") -> ModelProto:
    """x, then a move whose result has steps three times as large; ``behind`` is an operator between the two."""
    pair = "{1} = QuantizeLinear ({0}, {2}, z) {3} = DequantizeLinear ({1}, {2}, z)"
    steps, outputs = [pair.format("x", "q0", "s", "a")], "float[1,8,3,3] y"
    if behind:
        steps += [f"r = {behind} (a)", pair.format("r", "q1", "s", "b")]
    steps += [f"m = SpaceToDepth <blocksize = 2> ({'b' if behind else 'a'})", pair.format("m", "q2", "t", "y")]
    if read_twice:
        steps += ["e = Relu (a)", pair.format("e", "q3", "s", "w")]
        outputs += ", float[1,2,6,6] w"
    grids = f"float s = {{0.02}}, float t = {{0.06}}, {kind} z = {{{ {'uint8': 128, 'uint16': 32768}[kind] }}}"
    graph = f"g (float[1,2,6,6] x) => ({outputs}) <{grids}> {{ {' '.join(steps)} }}"
    return onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : 21]> {graph}')


@each_row(("bits", "made"), (16, {"centred", "mean", "plus", "root", "square", "variance"}), (8, set()))
def test_the_interior_of_a_norm_gets_grids_only_where_they_can_hold_it(bits: int, made: set[str]) -> None:
    body = "mean = ReduceMean <axes = [0]> (x)  centred = Sub (x, mean)  square = Pow (centred, two)"
    body += "  variance = ReduceMean <axes = [0]> (square)  plus = Add (variance, least)  root = Sqrt (plus)"
    model = text_model("float[2,32] x", f"{body}  y = Div (centred, root)", two=2.0, least=1e-5)
    feeds = [{"x": np.random.default_rng(seed).normal(size=(2, 32)).astype(np.float32)} for seed in range(4)]
    seen = Evidence(inputs=frozenset({"x"}), observe=lambda names: observed_ranges(model, names, feeds))
    given = encodings_of(x=grid(-2, 6, bits), y=grid(-2, 6, bits))
    assert set(fused_grids(model, given, lambda _: seen)[1]) == made


def emulated(folder: Path, made: ModelProto, feed: dict[str, Any]) -> tuple[Any, Any]:
    """The first output on the CPU and on the emulator."""
    folder.mkdir()
    onnx.save(made, folder / "model.onnx")
    options = {"soc_model": "57"}
    outcome = compile_model(CompileJob(root=folder, model="model.onnx", context="c.onnx", options=options, trace=False))
    assert outcome.ok, outcome.message
    (cpu,), (npu,) = execute_both(folder, "model.onnx", "c.onnx", [feed], options=options)
    return next(iter(cpu.values())), next(iter(npu.values()))


def softmax(units: float, *, goes_on: bool = False) -> Callable[[], tuple[ModelProto, EncodingSet]]:
    more = "  y = Transpose <perm = [0, 2, 1]> (p)" if goes_on else ""
    model = text_model("float[1,64,16] x", f"p = Softmax (x){more}", "y" if goes_on else "p")
    return lambda: (model, encodings_of(x=stepped(units), p=grid(0, 1), **({"y": grid(0, 1)} if goes_on else {})))


KERNELS: dict[str, tuple[Callable[[], tuple[ModelProto, EncodingSet]], str, float, float, float]] = {
    # The step that mends it, dB with it at least, and without it between two values.
    "a fully connected layer takes its bias in the steps before a conversion": (
        lambda: (attention("Gemm"), attended()),
        *("even-results", 60.0, -99.0, 25.0),
    ),
    "a convolution does not": (lambda: (attention("Conv"), attended(0)), "even-results", 60.0, 60.0, 999.0),
    "a Softmax of small steps": (softmax(4.5), "softmax-step", 70.0, -99.0, 25.0),
    "a Softmax of larger ones": (softmax(17.95), "softmax-step", 70.0, -99.0, 65.0),
    "a Clip is one operator with a convolution": (lambda: activated("Clip"), "clip-ends", 65.0, -99.0, 20.0),
    "a gate, too": (lambda: activated("Sigmoid"), "gate-apart", 65.0, -99.0, 20.0),
}


def with_and_without(
    folder: Path, model: ModelProto, given: EncodingSet, step: str, feed: dict[str, Any]
) -> tuple[tuple[Any, Any], tuple[Any, Any]]:
    def made(**more: Any) -> ProviderModel:
        return provider_model(model, given, int16_matmul=True, **more)

    assert step in {one.id for one in made().steps}
    return emulated(folder / "with", made().model, feed), emulated(folder / "left", made(without=(step,)).model, feed)


@pytest.mark.heavy
@pytest.mark.parametrize("name", KERNELS)
def test_a_kernel_is_right_on_its_grid(name: str, tmp_path: Path) -> None:
    make, step, least, low, high = KERNELS[name]
    (model, given), random = make(), np.random.default_rng(3)
    feed = {}
    for item in model.graph.input:
        shape = [dim.dim_value for dim in item.type.tensor_type.shape.dim]
        feed[item.name] = random.uniform(*ends(value_of(given, item.name)), shape).astype(np.float32)
    right, wrong = with_and_without(tmp_path, model, given, step, feed)
    assert sqnr_db(*right) > least and low < sqnr_db(*wrong) < high


@pytest.mark.heavy
def test_a_softmax_that_goes_on_is_rounded_and_not_cut_off(tmp_path: Path) -> None:
    model, given = softmax(400.001, goes_on=True)()
    feed = {"x": np.random.default_rng(9).uniform(-2, 2, (1, 64, 16)).astype(np.float32)}
    right, wrong = with_and_without(tmp_path, model, given, "softmax-rounding", feed)
    values = np.exp(feed["x"].astype(np.float64)).transpose(0, 2, 1)
    biases = [float(np.mean(npu - values / values.sum(axis=1))) * 65535 for _, npu in (right, wrong)]
    assert abs(biases[0]) < 0.15 and biases[1] < -0.35


@pytest.mark.heavy
@pytest.mark.parametrize("read_twice", [False, True])
def test_a_move_to_another_grid_is_right_and_was_not(tmp_path: Path, read_twice: bool) -> None:
    """QAIRT 2.51 takes the integers over: three times what it should be, without a word."""
    onnx.save(moved(read_twice=read_twice), tmp_path / "moved.onnx")
    asked: dict[str, Any] = {"target": "sm8650", "backend": "ort-qnn", "kernels": "off"}
    for without, status in (((), 0), (("one-grid",), 1)):
        out = tmp_path / f"out{status}"
        made = deploykit.package(tmp_path / "moved.onnx", out=out, no_rewrite=without, **asked)
        assert made.exit_status == status and ("ORT120" in {one.code for one in made.findings}) is bool(status)
