"""Compiles one network for one chip and prints the compiler's estimate as JSON: FILE PRECISION SOC_MODEL MODE."""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import onnxruntime_qnn
from onnxruntime.quantization import CalibrationDataReader, QuantType, quantize
from onnxruntime.quantization.execution_providers.qnn import get_qnn_qdq_config, qnn_preprocess_model

from deploykit_ort_qnn.compiler.estimates import read_estimate


class _Random(CalibrationDataReader):  # type: ignore[misc]
    """Two made-up samples: the grids need a range, their values take no time on a chip."""

    def __init__(self, model: Path) -> None:
        graph = onnx.load(model, load_external_data=False).graph
        known = {item.name for item in graph.initializer}
        generator = np.random.default_rng(0)
        samples = []
        for _ in range(2):
            sample = {}
            for item in graph.input:
                if item.name in known:
                    continue
                shape = [dim.dim_value for dim in item.type.tensor_type.shape.dim]
                kind = onnx.helper.tensor_dtype_to_np_dtype(item.type.tensor_type.elem_type)
                sample[item.name] = (np.ones(shape) if kind.kind == "i" else generator.random(shape)).astype(kind)
            samples.append(sample)
        self.samples = iter(samples)

    def get_next(self) -> dict[str, np.ndarray] | None:
        return next(self.samples, None)


def _quantized(model: Path, precision: str, folder: Path) -> Path:
    prepared, made = folder / "prepared.onnx", folder / "quantized.onnx"
    source = prepared if qnn_preprocess_model(str(model), str(prepared)) else model
    wide = QuantType.QUInt16 if precision == "w8a16" else QuantType.QUInt8
    config = get_qnn_qdq_config(
        str(source), _Random(source), activation_type=wide, weight_type=QuantType.QInt8, weight_symmetric=True
    )
    quantize(str(source), str(made), config)
    return made


def main(model: Path, precision: str, soc: str, mode: str) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if precision != "float":
            model = _quantized(model, precision, folder)
        ort.register_execution_provider_library("QNN", onnxruntime_qnn.get_library_path())
        device = next(found for found in ort.get_ep_devices() if found.ep_name == "QNN")
        options = ort.SessionOptions()
        options.add_session_config_entry("ep.context_enable", "1")
        options.add_session_config_entry("ep.context_file_path", str(folder / "context.onnx"))
        options.add_session_config_entry("ep.context_embed_mode", "0")
        profile = folder / "profile.csv"
        given = {
            "backend_path": onnxruntime_qnn.get_qnn_htp_path(),
            "soc_model": soc,
            "htp_arch": "73",
            "profiling_level": "detailed",
            "profiling_file_path": str(profile),
            "enable_htp_fp16_precision": "1",
            "offload_graph_io_quantization": "0",
        }
        if mode != "default":
            given["htp_graph_finalization_optimization_mode"] = mode
        options.add_provider_for_devices([device], given)
        ort.InferenceSession(model, options)
        contexts = list(onnx.load(folder / "context.onnx", load_external_data=False).graph.node)
        estimate = read_estimate(profile, (), (), chip=soc)
        if estimate is None:
            raise SystemExit("no estimate")
        told = {
            "time_us": estimate.time_us,
            "lower_us": estimate.lower_us,
            "upper_us": estimate.upper_us,
            "missing_ops": estimate.missing_ops,
            "ddr": dict(estimate.ddr),
            "contexts": sum(node.op_type == "EPContext" for node in contexts),
            "cpu": sorted(node.op_type for node in contexts if node.op_type != "EPContext"),
        }
        print(json.dumps(told))


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
