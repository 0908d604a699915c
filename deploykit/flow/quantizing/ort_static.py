"""The script of the embedded quantizer: it runs ONNX Runtime's static quantization on the job in the current folder."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnxruntime.quantization import CalibrationDataReader, CalibrationMethod, QuantFormat, QuantType, quantize_static
from onnxruntime.quantization.calibrate import create_calibrator

from deploykit.encodings.qdq import DEQUANTIZE, QUANTIZE
from deploykit.errors import InputError
from deploykit.flow.quantizing import child
from deploykit.model.graph import GraphCopy
from deploykit.model.nodes import opset_of
from deploykit.model.weights import stored_values

__all__ = ["main"]

QDQ = "model.qdq.onnx"


class _SampleReader(CalibrationDataReader):  # type: ignore[misc]  # its package has no types
    """Gives ONNX Runtime one sample after the other, then None."""

    def __init__(self, samples: child.SampleFiles, taken: set[str]) -> None:
        self._samples, self._taken = samples, taken
        self.rewind()

    def get_next(self) -> Any:
        """The next sample, None at the end."""
        feed = next(self._rest, None)
        return feed and {f"{name}{_APART}" if name in self._taken else name: feed[name] for name in feed}

    def rewind(self) -> None:
        """Starts again with the first sample."""
        self._rest = iter(self._samples)


_AXES_SINCE = 13
"""The first operator set whose QuantizeLinear and DequantizeLinear have an axis, as a scale per channel needs."""

# quantize_static names its new tensors after the original one, even if a tensor has that name already.
_MADE = ("_scale", "_zero_point", "_quantized", "_QuantizeLinear_Output", "_DequantizeLinear_Output")
_APART, _GRID = "::apart", "::grid"


def _prepared(job: child.ChildJob, *, per_channel: bool) -> tuple[Path, set[str]]:
    """The path of a model that can be quantized: the job's own, or a copy with other names if names would collide.

    Also the names that were changed.
    """
    model = onnx.load(job.model)
    if per_channel and opset_of(model) < _AXES_SINCE:
        raise InputError(
            f"operator set {opset_of(model)} has no scales per channel, and cannot be raised to {_AXES_SINCE}",
            next="quantize with the option per_channel=false",
        )
    graph = model.graph
    names = {name for node in graph.node for name in (*node.input, *node.output)} | {item.name for item in graph.input}
    taken = {name + made for name in names for made in _MADE} & names
    if not taken:
        return job.model, set()
    _rename(model, lambda name: f"{name}{_APART}" if name in taken else name)
    onnx.save(model, job.folder / "prepared.onnx")
    return job.folder / "prepared.onnx", taken


def _rename(model: onnx.ModelProto, rename: Callable[[str], str]) -> None:
    for node in model.graph.node:
        node.input[:] = map(rename, node.input)
        node.output[:] = map(rename, node.output)
    for item in (*model.graph.initializer, *model.graph.input, *model.graph.output, *model.graph.value_info):
        item.name = rename(item.name)


def _leave_infinite(path: Path, floats: Path) -> None:
    """Turns each pair with an infinite scale into a copy, so that its tensor stays float: no grid holds an infinity."""
    graph, plain = GraphCopy(onnx.load(path), copy=False), GraphCopy(onnx.load(floats), copy=False)
    pairs = [node for node in graph.nodes if node.op_type in (QUANTIZE, DEQUANTIZE)]
    endless = [node for node in pairs if not np.isfinite(stored_values(graph.stored[node.input[1]])).all()]
    for node in endless:
        name = node.input[0]
        if name in graph.stored:
            name = graph.store(name, stored_values(plain.stored[name.removesuffix("_quantized")]))
        node.CopyFrom(onnx.helper.make_node("Identity", [name], node.output, node.name))
    if endless:
        onnx.save(graph.model, path)


def work(job: child.ChildJob) -> None:
    """Calibrates, writes the QDQ model, and runs it on the held-out samples."""
    settings = job.settings
    job.result["versions"] = {"onnxruntime": onnxruntime.__version__, "onnx": onnx.__version__}
    prepared, taken = _prepared(job, per_channel=bool(settings["per_channel"]))
    extra = dict(settings["extra_options"])
    if settings["activation"] == "QUInt16" and settings["method"] == "MinMax" and len(job.calibration) > 1:
        # The 16-bit ranges of computed tensors, widened as ``child.with_room`` says.
        halves = list[dict[str, tuple[float, float]]]()
        for half in (0, 1):
            calibrator = create_calibrator(str(prepared), augmented_model_path=str(job.folder / "ranges.onnx"))
            calibrator.collect_data(_SampleReader(job.calibration[half::2], taken))
            found = calibrator.compute_data().data.items()
            halves.append({name: (data.range_value[0].item(), data.range_value[1].item()) for name, data in found})
        rooms = ((name, child.with_room(ends, halves[1][name])) for name, ends in halves[0].items())
        extra["TensorQuantOverrides"] = {
            name: [{"rmin": np.float32(low), "rmax": np.float32(high)}] for name, (low, high) in rooms
        }
    quantize_static(
        str(prepared),
        str(job.out / QDQ),
        _SampleReader(job.calibration, taken),
        quant_format=QuantFormat.QDQ,
        per_channel=bool(settings["per_channel"]),
        activation_type=QuantType[settings["activation"]],
        weight_type=QuantType[settings["weight"]],
        calibrate_method=CalibrationMethod[settings["method"]],
        extra_options=extra,
    )
    if taken:  # the tensors get their names back, and grids with these names get others
        model = onnx.load(job.out / QDQ)
        _rename(model, lambda name: f"{name}{_GRID}" if name in taken else name)
        _rename(model, lambda name: name.replace(_APART, ""))
        onnx.save(model, job.out / QDQ)
    _leave_infinite(job.out / QDQ, job.model)
    job.stage_done("quantize")
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(str(job.out / QDQ), options, providers=["CPUExecutionProvider"])
    job.save_simulated([value.name for value in session.get_outputs()], lambda feed: session.run(None, feed))
    job.stage_done("simulate")


def main() -> int:
    """Runs the job in the current folder and gives its exit status."""
    return child.main(work)


if __name__ == "__main__":
    sys.exit(main())
