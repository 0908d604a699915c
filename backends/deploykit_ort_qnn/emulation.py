"""Runs a compiled model on the emulator and the QDQ model on the CPU, compares outputs, and finds where they part.

Emulated times are host noise and are not even kept. It judges by a threshold and changes no model.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper

from deploykit.numerics.quality import cosine, max_error, sqnr_db
from deploykit_ort_qnn.compiler import CompileJob, Progress, compile_model, execute_both
from deploykit_ort_qnn.rules.numerics import NumericScope

if TYPE_CHECKING:
    from onnx import ModelProto


__all__ = ["Comparison", "compare", "threshold"]

Numbers = npt.NDArray[Any]

_THRESHOLDS = {8: 20.0, 16: 35.0, 0: 35.0}
"""Least SQNR in dB between emulator and CPU, by the narrowest activation type (0: float).

Over the models of the test data the right ones had at least 30 dB with 8 bits, 45 with 16 and 56 in float; the wrong
kernels known so far had at most 22.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """What to compare: paths relative to ``root``, and input sets by input name."""

    root: Path
    qdq: str
    context: str
    options: Mapping[str, str]
    inputs: tuple[Mapping[str, Numbers], ...]
    threshold_db: float
    allow_cpu: bool = False
    timeout: float = 1800.0


def threshold(types: Iterable[str]) -> float:
    """The threshold for a model whose quantized activations have these types."""
    bits = [int("".join(c for c in kind if c.isdigit())) for kind in types if kind.startswith(("uint", "int"))]
    activations = [width for width in bits if width in (8, 16)]
    return _THRESHOLDS[min(activations) if activations else 0]


def compare(job: Comparison, progress: Progress | None = None) -> NumericScope:
    """Outputs of both runs, and the first node after which they differ where they do. Raises ToolError."""
    with tempfile.TemporaryDirectory(prefix=".numbers-", dir=job.root) as folder:
        inputs = Path(folder) / "inputs.npz"
        _save(inputs, job.inputs)
        cpu, npu = execute_both(
            job.root,
            job.qdq,
            job.context,
            inputs,
            options=job.options,
            timeout=job.timeout,
            progress=progress,
        )
        outputs = _numbers(cpu, npu)
        failed = tuple(name for name, numbers in outputs.items() if _below(numbers["sqnr_db"], job.threshold_db))
        if not failed:
            return NumericScope(outputs=outputs, threshold_db=job.threshold_db)
        first, kind, value = _first_difference(job, Path(folder), inputs, progress)
    return NumericScope(
        outputs=outputs,
        threshold_db=job.threshold_db,
        failed=failed,
        first=first,
        first_type=kind,
        first_db=value,
    )


def _save(path: Path, sets: Iterable[Mapping[str, Numbers]]) -> None:
    arrays = {f"{index}:{name}": value for index, feed in enumerate(sets) for name, value in feed.items()}
    with path.open("wb") as file:
        np.savez(file, **arrays)  # type: ignore[arg-type]


def _numbers(cpu: Mapping[str, Numbers], npu: Mapping[str, Numbers]) -> dict[str, dict[str, Any]]:
    """Per output, the worst of all input sets."""
    found: dict[str, dict[str, Any]] = {}
    for key, wanted in cpu.items():
        name, got = key.split(":", 1)[1], npu[key]
        numbers = {
            "sqnr_db": _rounded(sqnr_db(wanted, got), 1),
            "cosine": _rounded(cosine(wanted, got), 6),
            "max_error": float(f"{max_error(wanted, got):.4g}"),
        }
        known = found.get(name)
        if known is None or _below(numbers["sqnr_db"], known["sqnr_db"]):
            found[name] = numbers
    return found


def _rounded(value: float, digits: int) -> float | str:
    return round(value, digits) if np.isfinite(value) else ("undefined" if np.isnan(value) else "infinite")


def _below(value: float | str, limit: float | str) -> bool:
    """Equal outputs are infinitely good; an undefined number (a reference that is all zero) is not."""
    order = {"infinite": float("inf"), "undefined": float("-inf")}
    a, b = (order[v] if isinstance(v, str) else v for v in (value, limit))
    return a < b


def _first_difference(
    job: Comparison, folder: Path, inputs: Path, progress: Progress | None
) -> tuple[str, str, float | None]:
    """Compile once more with every quantized tensor as an output; name the node that makes the first that differs."""
    model = onnx.load(job.root / job.qdq)
    shown = _show_all(model)
    root = folder / "located"
    root.mkdir()
    onnx.save(model, root / "model.onnx")
    again = CompileJob(
        root=root,
        model="model.onnx",
        context="c.onnx",
        options=job.options,
        allow_cpu=job.allow_cpu,
        trace=False,
        timeout=job.timeout,
    )
    done = compile_model(again, progress)
    if not done.ok:
        return "", "", None
    cpu, npu = execute_both(
        root, "model.onnx", "c.onnx", inputs, options=job.options, timeout=job.timeout, progress=progress
    )
    shutil.rmtree(root)
    numbers = _numbers(cpu, npu)
    for tensor, (node, kind) in shown.items():
        value = numbers[tensor]["sqnr_db"]
        if _below(value, job.threshold_db):
            return node, kind, value if isinstance(value, float) else None
    return "", "", None


def _show_all(model: ModelProto) -> dict[str, tuple[str, str]]:
    """Make the result of every pair an output; per such tensor, in graph order, the node (and type) before the pair."""
    graph = model.graph
    producers = {name: node for node in graph.node for name in node.output}
    outputs = {value.name for value in graph.output}
    shown: dict[str, tuple[str, str]] = {}
    for node in graph.node:
        source = producers.get(node.input[0]) if node.op_type == "DequantizeLinear" else None
        if source is None or source.op_type != "QuantizeLinear":
            continue
        maker = producers.get(source.input[0])
        if maker is None or maker.op_type == "DequantizeLinear":
            continue
        name = node.output[0]
        shown[name] = (maker.name, maker.op_type)
        if name not in outputs:
            graph.output.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, None))
    return shown
