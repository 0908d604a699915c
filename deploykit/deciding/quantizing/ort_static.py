"""The script of the embedded quantizer: ONNX Runtime's static quantization of the job in the current folder."""

from __future__ import annotations

import sys
from typing import Any

import onnx
import onnxruntime
from onnxruntime.quantization import CalibrationDataReader, CalibrationMethod, QuantFormat, QuantType, quantize_static

from deploykit.deciding.quantizing import child

__all__ = ["main"]

QDQ = "model.qdq.onnx"


class _Reader(CalibrationDataReader):  # type: ignore[misc]  # its package has no types
    """What ONNX Runtime asks for: one sample after the other, then None."""

    def __init__(self, samples: child.Samples) -> None:
        self._samples = samples
        self.rewind()

    def get_next(self) -> Any:
        """The next sample."""
        return next(self._rest, None)

    def rewind(self) -> None:
        """Start again."""
        self._rest = iter(self._samples)


def work(job: child.Job) -> None:
    """Calibrate, write the QDQ model, run it on the samples that were held out."""
    settings = job.settings
    job.result["versions"] = {"onnxruntime": onnxruntime.__version__, "onnx": onnx.__version__}
    quantize_static(
        str(job.model),
        str(job.out / QDQ),
        _Reader(job.calibration),
        quant_format=QuantFormat.QDQ,
        per_channel=bool(settings["per_channel"]),
        activation_type=QuantType[settings["activation"]],
        weight_type=QuantType[settings["weight"]],
        calibrate_method=CalibrationMethod[settings["method"]],
        extra_options=dict(settings["extra_options"]),
    )
    job.stage_done("quantize")
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(str(job.out / QDQ), options, providers=["CPUExecutionProvider"])
    names = [value.name for value in session.get_outputs()]
    job.save_simulated(names, lambda feed: session.run(None, feed))
    job.stage_done("simulate")


def main() -> int:
    """Run the job in the current folder."""
    return child.main(work)


if __name__ == "__main__":
    sys.exit(main())
