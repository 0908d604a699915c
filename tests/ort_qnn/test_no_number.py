"""Stored values that are no numbers: said, and no reason to break off."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

import deploykit

BLOCKS = Path(__file__).parents[1] / "data" / "aimet" / "mlp" / "bq-w4a16.qdq.onnx"


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_bias_that_is_no_number_gives_its_product_no_grid(value: float, tmp_path: Path) -> None:
    model = onnx.load(BLOCKS)
    (bias,) = [item for item in model.graph.initializer if item.name == "fc2.bias"]
    values = numpy_helper.to_array(bias).copy()
    values[0] = value
    bias.CopyFrom(numpy_helper.from_array(values, bias.name))
    onnx.save(model, tmp_path / "m.onnx")
    findings = deploykit.plan(tmp_path / "m.onnx", target="sm8650", backend="ort-qnn").findings
    assert "DK008" in {finding.code for finding in findings}
