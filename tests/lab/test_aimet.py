"""Every option of the real AIMET against deploykit's own simulation."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

import deploykit
from deploykit.backend.backend import Request
from deploykit.flow.quantizing.making import Making
from deploykit.flow.read import read_situation
from real_aimet import install_aimet, unpacked

pytestmark = pytest.mark.xdist_group("aimet")

DATA = Path(__file__).parents[1] / "data"
ZOO = ("superres", "gru_lstm", "resnet")
"""Convolutions with PRelu, recurrent layers, BatchNormalization that is folded: the small ones of the zoo."""


@pytest.fixture(scope="module", autouse=True)
def installed() -> None:
    """As a user would; found again where it is there already."""
    install_aimet()


@pytest.mark.parametrize("name", ZOO)
def test_both_simulations_are_the_same_to_the_bit(name: str, tmp_path: Path) -> None:
    model, samples = unpacked(name, tmp_path)
    done = deploykit.quantize(
        model, target="sm8550", precision="w8a16", quantizer="aimet", calibration=samples, out=tmp_path / "out"
    )
    own = done.record["numbers"]["quantizers_own"]
    assert own["exact"], own
    assert own["largest_difference"] == 0
    assert done.record["versions"]["aimet-onnx"] == "2.42.0"
    assert done.record["numbers"]["sqnr_db"] > 30
    assert "DK222" not in {finding.code for finding in done.findings}
    folded = {node.op_type for node in onnx.load(tmp_path / "out" / "model.onnx").graph.node}
    assert "BatchNormalization" not in folded


@pytest.mark.parametrize(
    "options",
    [[("lpbq", "true"), ("block_size", "16")], [("adaround", "true"), ("iterations", "10")]],
    ids=["blocks", "rounded"],
)
def test_improved_weights_are_the_same_in_both_simulations(options: list[tuple[str, str]], tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.random.default_rng(0).normal(size=(10, 1, 8, 64)).astype(np.float32))
    done = deploykit.quantize(
        DATA / "aimet" / "mlp" / "model.onnx",
        target="sm8650",
        precision="w4a16",
        quantizer="aimet",
        calibration=tmp_path / "x.npy",
        options=options,
        out=tmp_path / "out",
    )
    assert done.record["numbers"]["quantizers_own"]["exact"]
    assert done.record["numbers"]["sqnr_db"] > 10


@pytest.mark.parametrize(
    "options",
    [[("lite_mp", "20"), ("lite_mp_to", "float16")], [("amp", "45")]],
    ids=["lite", "automatic"],
)
def test_mixed_precision_is_the_same_in_both_simulations_and_legal(
    options: list[tuple[str, str]], tmp_path: Path
) -> None:
    np.save(tmp_path / "x.npy", np.random.default_rng(0).normal(size=(10, 1, 3, 16, 16)).astype(np.float32))
    done = deploykit.quantize(
        DATA / "aimet" / "cnn" / "model.onnx",
        target="sm8650",
        precision="w8a8",
        quantizer="aimet",
        calibration=tmp_path / "x.npy",
        options=options,
        out=tmp_path / "out",
    )
    assert done.record["numbers"]["quantizers_own"]["exact"]
    raised = next(note for note in done.record["notes"] if "in a wider type" in note)
    assert int(raised.split()[0]) > 0
    model, encodings = tmp_path / "out" / "model.onnx", tmp_path / "out" / "model.encodings"
    found = deploykit.check(model, target="sm8650", encodings=encodings)
    assert not [finding.message for finding in found if finding.blocks]


def test_a_candidate_with_better_weights_says_so(tmp_path: Path) -> None:
    """What --precision auto tries where weights are the cause: the same precision, another option, its own name."""
    np.save(tmp_path / "x.npy", np.random.default_rng(0).normal(size=(10, 1, 8, 64)).astype(np.float32))
    request = Request(
        model=DATA / "aimet" / "mlp" / "model.onnx",
        target="sm8650",
        calibration=tmp_path / "x.npy",
        quantizer="aimet",
    )
    backend, situation = read_situation(request)
    making = Making(backend=backend, given=situation, progress=lambda _: None)
    made = making.candidate("w4a16+SeqMSE")
    assert made.precision == "w4a16+SeqMSE"
    assert made.options["seq_mse"] is True
    assert "seq_mse" in made.ran.result["seconds"]
    assert made.numbers.agreement_db == float("inf")
