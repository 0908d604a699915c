"""AIMET's encodings and its own simulated outputs of one model; exports nothing from torch."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
from aimet_onnx import QuantizationSimModel
from aimet_onnx.utils import duplicate_shared_initializers

CONFIGURATION, VERSIONS = "htp_v73", ("0.6.1", "1.0.0", "2.0.0")

Feed = dict[str, np.ndarray]


def quantize(folder: Path, calibration: list[Feed], held_out: list[Feed]) -> list[Feed]:
    """Writes W8A16 encodings beside the model; the simulation's outputs per held-out sample, in the model's names."""
    path = folder / "model.onnx"
    model = onnx.load(path)
    names = [value.name for value in model.graph.output]
    duplicate_shared_initializers(model.graph)
    onnx.save(model, path)
    sim = QuantizationSimModel(
        model, param_type="int8", activation_type="int16", quant_scheme="min_max", config_file=CONFIGURATION
    )
    sim.compute_encodings(calibration)
    for version in VERSIONS:
        sim.export(str(folder), f"w8a16.v{version}", export_model=False, encoding_version=version)
    return [dict(zip(names, sim.session.run(None, feed), strict=True)) for feed in held_out]
