"""Grids that kernels compute rightly with, on the emulator: what is wrong without each of them."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import ModelProto

import deploykit
from deploykit.accuracy.judge.measures import sqnr_db
from deploykit.encodings.values import EncodingSet
from deploykit_ort_qnn.compiler.jobs import CompileJob, compile_model, execute_both
from deploykit_ort_qnn.provider_model import ProviderModel, provider_model
from sample_models.tiny_graphs import TinyGraph

pytest.importorskip("onnxruntime_qnn", reason="the wheel is for Linux x86-64 only")
PATH = Path(__file__).parents[1] / "ort_qnn" / "test_grids.py"
SPEC = importlib.util.spec_from_file_location("ort_qnn_test_grids", PATH)
assert SPEC is not None and SPEC.loader is not None
GRIDS = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(GRIDS)


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
    graph = TinyGraph()
    made = graph.op("Softmax", [graph.input("x", (1, 64, 16))], "p", axis=-1)
    model = graph.model(graph.op("Transpose", [made], "y", perm=[0, 2, 1]) if goes_on else made)
    return lambda: (
        model,
        GRIDS.encodings_of(x=GRIDS.stepped(units), p=GRIDS.grid(0, 1), **({"y": GRIDS.grid(0, 1)} if goes_on else {})),
    )


KERNELS: dict[str, tuple[Callable[[], tuple[ModelProto, EncodingSet]], str, float, float, float]] = {
    # The step that mends it, dB with it at least, and without it between two values.
    "a fully connected layer takes its bias in the steps before a conversion": (
        lambda: (GRIDS.attention("Gemm"), GRIDS.attended()),
        *("even-results", 60.0, -99.0, 25.0),
    ),
    "a convolution does not": (lambda: (GRIDS.attention("Conv"), GRIDS.attended(0)), "even-results", 60.0, 60.0, 999.0),
    "a Softmax of small steps": (softmax(4.5), "softmax-step", 70.0, -99.0, 25.0),
    "a Softmax of larger ones": (softmax(17.95), "softmax-step", 70.0, -99.0, 65.0),
    "a Clip is one operator with a convolution": (lambda: GRIDS.activated("Clip"), "clip-ends", 65.0, -99.0, 20.0),
    "a gate, too": (lambda: GRIDS.activated("Sigmoid"), "gate-apart", 65.0, -99.0, 20.0),
}


def with_and_without(
    folder: Path, model: ModelProto, given: EncodingSet, step: str, feed: dict[str, Any]
) -> tuple[tuple[Any, Any], tuple[Any, Any]]:
    def made(**more: Any) -> ProviderModel:
        return provider_model(model, given, int16_matmul=True, **more)

    assert step in {one.id for one in made().steps}
    return emulated(folder / "with", made().model, feed), emulated(folder / "left", made(without=(step,)).model, feed)


@pytest.mark.parametrize("name", KERNELS)
def test_a_kernel_is_right_on_its_grid(name: str, tmp_path: Path) -> None:
    make, step, least, low, high = KERNELS[name]
    (model, given), random = make(), np.random.default_rng(3)
    feed = {}
    for item in model.graph.input:
        shape = [dim.dim_value for dim in item.type.tensor_type.shape.dim]
        low_, high_ = GRIDS.ends(GRIDS.value_of(given, item.name))
        feed[item.name] = random.uniform(low_, high_, shape).astype(np.float32)
    right, wrong = with_and_without(tmp_path, model, given, step, feed)
    assert sqnr_db(*right) > least and low < sqnr_db(*wrong) < high


def test_a_softmax_that_goes_on_is_rounded_and_not_cut_off(tmp_path: Path) -> None:
    model, given = softmax(400.001, goes_on=True)()
    feed = {"x": np.random.default_rng(9).uniform(-2, 2, (1, 64, 16)).astype(np.float32)}
    right, wrong = with_and_without(tmp_path, model, given, "softmax-rounding", feed)
    values = np.exp(feed["x"].astype(np.float64)).transpose(0, 2, 1)
    biases = [float(np.mean(npu - values / values.sum(axis=1))) * 65535 for _, npu in (right, wrong)]
    assert abs(biases[0]) < 0.15 and biases[1] < -0.35


@pytest.mark.parametrize("read_twice", [False, True])
def test_a_move_to_another_grid_is_right_and_was_not(tmp_path: Path, read_twice: bool) -> None:
    """QAIRT 2.51 takes the integers over: three times what it should be, without a word."""
    onnx.save(GRIDS.moved(read_twice=read_twice), tmp_path / "moved.onnx")
    asked: dict[str, Any] = {"target": "sm8650", "backend": "ort-qnn", "audit": "off"}
    for without, status in (((), 0), (("one-grid",), 1)):
        out = tmp_path / f"out{status}"
        made = deploykit.package(tmp_path / "moved.onnx", out=out, no_rewrite=without, **asked)
        assert made.exit_status == status and ("ORT120" in {one.code for one in made.findings}) is bool(status)
