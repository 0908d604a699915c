"""The script of the embedded quantizer: ONNX Runtime's static quantization of the job in the current folder."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import onnx
import onnxruntime
from onnxruntime.quantization import CalibrationDataReader, CalibrationMethod, QuantFormat, QuantType, quantize_static

from deploykit.errors import InputError
from deploykit.flow.quantizing import child
from deploykit.model.nodes import opset_of, raise_opset

__all__ = ["main"]

QDQ = "model.qdq.onnx"


class _SampleReader(CalibrationDataReader):  # type: ignore[misc]  # its package has no types
    """What ONNX Runtime asks for: one sample after the other, then None."""

    def __init__(self, samples: child.SampleFiles) -> None:
        self._samples = samples
        self.rewind()

    def get_next(self) -> Any:
        """The next sample."""
        return next(self._rest, None)

    def rewind(self) -> None:
        """Start again."""
        self._rest = iter(self._samples)


_AXES_SINCE = 13
"""The first operator set whose QuantizeLinear and DequantizeLinear have an axis, which a scale per channel needs."""


def _with_axes(job: child.ChildJob) -> Path:
    """The job's model, as a copy of a newer operator set where its own knows no scale per channel."""
    model = onnx.load(job.model)
    if opset_of(model) >= _AXES_SINCE:
        return job.model
    job.result["notes"].append(f"operator set {opset_of(model)} was raised to {_AXES_SINCE} for scales per channel")
    raised = job.folder / "raised.onnx"
    try:
        onnx.save(raise_opset(model, _AXES_SINCE), raised)
    except InputError as error:
        raise InputError(error.what, why=error.why, next="or quantize with the option per_channel=false") from None
    return raised


def work(job: child.ChildJob) -> None:
    """Calibrate, write the QDQ model, run it on the samples that were held out."""
    settings = job.settings
    job.result["versions"] = {"onnxruntime": onnxruntime.__version__, "onnx": onnx.__version__}
    quantize_static(
        str(_with_axes(job) if settings["per_channel"] else job.model),
        str(job.out / QDQ),
        _SampleReader(job.calibration),
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
