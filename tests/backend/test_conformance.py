"""Every installed backend holds the contract, by the suite that third parties use."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest

import deploykit
from deploykit.backend.conformance import backend_problems, package_problems
from deploykit.backend.plugins import backend_ids

DATA = Path(__file__).parents[1] / "data"
PACKAGES: dict[str, dict[str, Any]] = {
    "qnn-htp": {
        "model": DATA / "aimet/mlp/model.onnx",
        "target": "sm8650",
        "sdk": "2.33",
        "encodings": DATA / "aimet/mlp/w8a16.v1.0.0.encodings",
    },
    "ort-qnn": {
        "model": DATA / "aimet/mlp/model.onnx",
        "target": "sm8550",
        "encodings": DATA / "aimet/mlp/w8a16.v1.0.0.encodings",
    },
    "vitis-ai": {"model": DATA / "quark/fp32.onnx", "target": "vek385", "precision": "bf16"},
}


@pytest.mark.parametrize("backend_id", backend_ids())
def test_a_backend_holds_the_contract(backend_id: str) -> None:
    assert backend_problems(backend_id) == ()


@pytest.mark.parametrize("backend_id", backend_ids())
def test_its_packages_hold_it_too(backend_id: str, tmp_path: Path) -> None:
    make = partial(deploykit.package, backend=backend_id, **PACKAGES[backend_id])
    assert package_problems(make, deploykit.verify, tmp_path) == ()
    assert (tmp_path / "first" / "manifest.json").is_file()
