"""Grids that kernels compute rightly with: which tensors get them, and on the emulator what is wrong without."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import ModelProto

from changes import regridded
from deploykit.accuracy.judge.measures import sqnr_db
from deploykit.encodings.values import Affine, Encoding, EncodingSet
from deploykit_ort_qnn.compiler.jobs import CompileJob, compile_model, execute_both
from deploykit_ort_qnn.forms.kernel_grids import (
    clipped_ends,
    even_results,
    gates_apart,
    rounded_softmaxes,
    whole_softmax_steps,
)
from deploykit_ort_qnn.provider_keys import choose_options
from deploykit_ort_qnn.provider_model import ProviderModel, provider_model
from deploykit_qualcomm.qnn_types import step_units, whole_step
from sample_models.tiny_graphs import TinyGraph

UNIT = math.log(2) / 2**22


def grid(low: float, high: float, bits: int = 16) -> Affine:
    scale = (high - low) / (2**bits - 1)
    return Affine(bits=bits, signed=False, scale=np.asarray(scale), zero_point=np.asarray(float(round(-low / scale))))


def stepped(units: float, bits: int = 16) -> Affine:
    """A grid around 0 whose step is so many units."""
    unit = UNIT if bits == 16 else 16 * UNIT
    zero = np.asarray(2.0 ** (bits - 1))
    return Affine(bits=bits, signed=False, scale=np.asarray(units * unit), zero_point=zero)


def encodings_of(**grids: Affine) -> EncodingSet:
    return EncodingSet(
        version="1.0.0",
        entries={name: Encoding(name=name, value=value, is_param=name == "w") for name, value in grids.items()},
    )


def value_of(encodings: EncodingSet, name: str) -> Affine:
    value = encodings.entries[name].value
    assert isinstance(value, Affine)
    return value


def ends(value: Affine) -> tuple[float, float]:
    return float(value.minimum), float(value.maximum)


@pytest.mark.parametrize(
    ("units", "wanted"), [(1.5, 16), (15.9, 16), (16.5, 17), (17.0005, None), (99.2, 100), (5000.4, 5001)]
)
@pytest.mark.parametrize("bits", [8, 16])
def test_a_step_becomes_the_next_whole_number_of_units(units: float, wanted: int | None, bits: int) -> None:
    step = whole_step(stepped(units, bits))
    if wanted is None:
        assert step is None
        return
    assert step is not None
    stored = replace(stepped(1, bits), scale=np.float32(step).astype(float))
    assert wanted < (step_units(stored) or 0) < wanted + 0.01


def softmax_of(*, moved: bool) -> ModelProto:
    """A sum, or the same transposed, through Softmax."""
    graph = TinyGraph()
    total = graph.op("Add", [graph.input("x", (4, 16)), graph.stored("c", np.linspace(-1, 1, 16))], "scores")
    data = graph.op("Identity", [total], "moved") if moved else total
    return graph.model(graph.op("Softmax", [data], "y", axis=-1))


def test_the_input_of_a_softmax_gets_the_step_from_where_it_is_computed() -> None:
    given = encodings_of(x=grid(-1, 1), scores=stepped(20.5), moved=stepped(20.5), y=grid(0, 1))
    done, names = regridded(whole_softmax_steps, softmax_of(moved=True), given)
    assert names == ("scores", "moved") and value_of(done, "scores") is value_of(done, "moved")
    assert step_units(value_of(done, "moved")) == pytest.approx(21.001)
    before, after = (ends(value_of(some, "moved")) for some in (given, done))
    step = float(value_of(done, "moved").scale)
    assert after[0] <= before[0] + step / 2 and after[1] >= before[1] - step / 2


def test_a_step_does_not_go_on_from_another_grid() -> None:
    given = encodings_of(x=grid(-1, 1), scores=stepped(30.5), moved=stepped(20.5), y=grid(0, 1))
    assert regridded(whole_softmax_steps, softmax_of(moved=True), given)[1] == ("moved",)


@pytest.mark.parametrize("missing", ["scores", "y"])
def test_a_float_softmax_is_left_alone(missing: str) -> None:
    given = encodings_of(**{name: stepped(4.5) for name in ("x", "scores", "y") if name != missing})
    assert regridded(whole_softmax_steps, softmax_of(moved=False), given)[1] == ()


def test_results_of_softmax_that_go_on_get_a_grid_to_which_is_rounded() -> None:
    graph = TinyGraph()
    made = graph.op("Softmax", [graph.input("x", (4, 16))], "p", axis=-1)
    again = graph.op("Softmax", [graph.op("Transpose", [made], "t", perm=[1, 0])], "y", axis=-1)
    model = graph.model(again)
    given = encodings_of(x=grid(-1, 1), p=grid(0, 1), t=grid(0, 1), y=grid(0, 1))
    done, names = regridded(rounded_softmaxes, model, given)
    assert names == ("p", "t")  # and not the model's output
    assert ends(value_of(done, "t")) == (-1.0, 1 - 2.0**-15)
    half = encodings_of(x=grid(-1, 1), p=grid(0, 0.5), t=grid(0, 0.5), y=grid(0, 1))
    assert regridded(rounded_softmaxes, model, half)[1] == ()


def attention(layer: str) -> ModelProto:
    """A product of two activations, moved, through a layer with a bias."""
    graph = TinyGraph()
    rng = np.random.default_rng(5)
    product = graph.op("MatMul", [graph.input("a", (1, 8, 16)), graph.input("b", (1, 16, 12))], "product")
    if layer == "Conv":
        data = graph.op("Reshape", [product, graph.stored("shape", [1, 8, 3, 4], "int64")], "moved")
        weight = graph.stored("w", rng.normal(0, 0.3, (6, 8, 1, 1)))
    else:
        data = graph.op("Reshape", [product, graph.stored("shape", [8, 12], "int64")], "moved")
        weight = graph.stored("w", rng.normal(0, 0.3, (12, 6)))
    return graph.model(graph.op(layer, [data, weight, graph.stored("bias", rng.normal(0, 1, 6))], "y"))


def attended(axis: int = 1) -> EncodingSet:
    """All tensors of ``attention``; the product's range is far from even."""
    uneven = grid(-8, 2)
    weight = Affine(bits=8, signed=True, scale=np.full(6, 0.01), zero_point=np.zeros(6), symmetric=True, axis=axis)
    return encodings_of(a=grid(0, 1), b=grid(-1, 0.25), product=uneven, moved=uneven, w=weight, y=grid(-8, 8))


def test_a_product_keeps_the_steps_that_it_is_rounded_to_first() -> None:
    done, names = regridded(even_results, attention("Gemm"), attended())
    assert names == ("product", "moved")
    assert ends(value_of(done, "moved")) == pytest.approx((-8 * 32768 / 32767, 8.0))
    apart = attended()
    apart.entries["moved"] = Encoding(name="moved", value=grid(-4, 4))  # type: ignore[index]
    assert regridded(even_results, attention("Gemm"), apart)[1] == ("product",)


def emulated(folder: Path, made: ModelProto, feed: dict[str, Any]) -> tuple[Any, Any]:
    """The first output on the CPU and on the emulator."""
    folder.mkdir()
    onnx.save(made, folder / "model.onnx")
    options = {"soc_model": "57"}
    outcome = compile_model(CompileJob(root=folder, model="model.onnx", context="c.onnx", options=options, trace=False))
    assert outcome.ok, outcome.message
    (cpu,), (npu,) = execute_both(folder, "model.onnx", "c.onnx", [feed], options=options)
    return next(iter(cpu.values())), next(iter(npu.values()))


def both(
    folder: Path, make: Callable[..., ProviderModel], step: str, feed: dict[str, Any]
) -> tuple[tuple[Any, Any], tuple[Any, Any]]:
    """CPU and emulator with a step, and without it."""
    with_it = make()
    assert step in {one.id for one in with_it.steps}
    return (
        emulated(folder / "with", with_it.model, feed),
        emulated(folder / "without", make(without=(step,)).model, feed),
    )


@pytest.mark.heavy
@pytest.mark.parametrize(("layer", "least"), [("Gemm", None), ("Conv", 60.0)])
def test_a_bias_behind_a_product_of_activations(layer: str, least: float | None, tmp_path: Path) -> None:
    """A fully connected layer takes its bias in the steps before a conversion; a convolution does not."""
    rng = np.random.default_rng(3)
    feed = {"a": rng.uniform(0, 1, (1, 8, 16)), "b": rng.uniform(-1, 0.25, (1, 16, 12))}

    def make(**more: Any) -> ProviderModel:
        return provider_model(attention(layer), attended(0 if layer == "Conv" else 1), int16_matmul=True, **more)

    right, wrong = both(tmp_path, make, "even-results", {name: v.astype(np.float32) for name, v in feed.items()})
    assert sqnr_db(*right) > 60
    assert sqnr_db(*wrong) < 25 if least is None else sqnr_db(*wrong) > least


@pytest.mark.heavy
@pytest.mark.parametrize(("units", "most"), [(4.5, 25.0), (17.95, 65.0)])
def test_a_softmax_of_small_steps(units: float, most: float, tmp_path: Path) -> None:
    half = 2**15 * units * UNIT
    feed = {"x": np.random.default_rng(7).uniform(-half, half, (4, 16)).astype(np.float32)}
    graph = TinyGraph()
    model = graph.model(graph.op("Softmax", [graph.input("x", (4, 16))], "y", axis=-1))
    given = encodings_of(x=stepped(units), y=grid(0, 1))

    def make(**more: Any) -> ProviderModel:
        return provider_model(model, given, int16_matmul=True, **more)

    right, wrong = both(tmp_path, make, "softmax-step", feed)
    assert sqnr_db(*right) > 72
    assert sqnr_db(*wrong) < most


@pytest.mark.heavy
def test_a_softmax_that_goes_on_is_rounded_and_not_cut_off(tmp_path: Path) -> None:
    graph = TinyGraph()
    made = graph.op("Softmax", [graph.input("x", (1, 64, 16))], "p", axis=-1)
    model = graph.model(graph.op("Transpose", [made], "y", perm=[0, 2, 1]))
    given = encodings_of(x=stepped(400.001), p=grid(0, 1), y=grid(0, 1))
    feed = {"x": np.random.default_rng(9).uniform(-2, 2, (1, 64, 16)).astype(np.float32)}

    def make(**more: Any) -> ProviderModel:
        return provider_model(model, given, int16_matmul=True, **more)

    right, wrong = both(tmp_path, make, "softmax-rounding", feed)
    values = np.exp(feed["x"].astype(np.float64)).transpose(0, 2, 1)
    exact = values / values.sum(axis=1)
    biases = [float(np.mean(npu - exact)) * 65535 for _, npu in (right, wrong)]
    assert abs(biases[0]) < 0.15 and biases[1] < -0.35


def activated(op: str) -> tuple[ModelProto, EncodingSet]:
    """A convolution of 16 x 8 values, and what follows it: a Clip at 0 and 2, or x times Sigmoid(x)."""
    rng, graph = np.random.default_rng(5), TinyGraph()
    graph.input("x", (1, 4, 16, 8))
    graph.stored("w", rng.normal(0, 0.6, (6, 4, 1, 1)))
    graph.op("Conv", ["x", "w", graph.stored("bias", rng.normal(0, 0.3, 6))], "h")
    weight = Affine(bits=8, signed=True, scale=np.asarray(0.02), zero_point=np.asarray(0.0), symmetric=True)
    common = {"x": grid(-3, 3), "w": weight, "h": grid(-6, 6)}
    if op == "Clip":
        graph.op("Clip", ["h", graph.stored("low", 0.0), graph.stored("high", 2.0)], "y")
        return graph.model("y"), encodings_of(**common, y=grid(-6, 6))
    gate = graph.op("Sigmoid", ["h"], "gate")
    return graph.model(graph.op("Mul", [gate, "h"], "y")), encodings_of(**common, gate=grid(0, 1), y=grid(-0.3, 6))


def test_a_clip_ends_where_its_grid_does() -> None:
    model, given = activated("Clip")
    done, names = regridded(clipped_ends, model, given)
    assert names == ("y",) and ends(value_of(done, "y")) == (0.0, 2.0)
    assert regridded(clipped_ends, model, done)[1] == ()


@pytest.mark.parametrize("gated", [True, False])
def test_a_gate_reads_other_steps_than_what_it_gates(gated: bool) -> None:
    model, given = activated("Sigmoid")
    if not gated:
        del model.graph.node[-1].input[1]
        model.graph.node[-1].input.append("gate")
    conversions = gates_apart(model, given)
    assert list(conversions) == ([("gate", 0)] if gated else [])
    for value in conversions.values():
        assert float(value.scale) == pytest.approx(12 / 65535 * 33 / 32)
        assert float(value.minimum) <= -6 and float(value.maximum) >= 6


@pytest.mark.heavy
@pytest.mark.parametrize(("op", "step"), [("Clip", "clip-ends"), ("Sigmoid", "gate-apart")])
def test_what_becomes_one_operator_with_a_convolution(op: str, step: str, tmp_path: Path) -> None:
    model, given = activated(op)
    feed = {"x": np.random.default_rng(2).uniform(-3, 3, (1, 4, 16, 8)).astype(np.float32)}

    def make(**more: Any) -> ProviderModel:
        return provider_model(model, given, int16_matmul=True, **more)

    right, wrong = both(tmp_path, make, step, feed)
    assert sqnr_db(*right) > 65
    assert sqnr_db(*wrong) < 20


def test_an_lstm_is_one_operator_unless_the_user_says_otherwise() -> None:
    name = "enable_htp_monolithic_lstm"
    assert choose_options([], "2.7.0", {"LSTM", "Relu"}).compile == {name: "1"}
    assert choose_options([], "2.7.0", {"GRU"}).compile == {}
    assert choose_options([(name, "0")], "2.7.0", {"LSTM"}).compile == {name: "0"}
    assert choose_options([], "2.5.0", {"LSTM"}).compile == {}
