"""Every installed backend holds the contract, by the suite that third parties use."""

from __future__ import annotations

from pathlib import Path

import pytest

from deploykit.adapter import Request
from deploykit.plugins import backend_ids
from deploykit.testing.conformance import backend_problems, package_problems

DATA = Path(__file__).parents[1] / "data"
REQUESTS = {
    "qnn-htp": Request(
        model=DATA / "aimet/mlp/model.onnx",
        target="sm8650",
        sdk="2.33",
        backend="qnn-htp",
        encodings=DATA / "aimet/mlp/w8a16.v1.0.0.encodings",
    ),
    "ort-qnn": Request(
        model=DATA / "aimet/mlp/model.onnx",
        target="sm8550",
        backend="ort-qnn",
        encodings=DATA / "aimet/mlp/w8a16.v1.0.0.encodings",
    ),
    "vitis-ai": Request(model=DATA / "quark/fp32.onnx", target="vek385", backend="vitis-ai", precision="bf16"),
}


@pytest.mark.parametrize("backend_id", backend_ids())
def test_a_backend_holds_the_contract(backend_id: str) -> None:
    assert backend_problems(backend_id) == ()


@pytest.mark.parametrize("backend_id", backend_ids())
def test_its_packages_hold_it_too(backend_id: str, tmp_path: Path) -> None:
    assert package_problems(REQUESTS[backend_id], tmp_path) == ()
    assert (tmp_path / "first" / "manifest.json").is_file()
