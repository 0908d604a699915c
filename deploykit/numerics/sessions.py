"""Runs ONNX models on the CPU exactly as written: no graph optimisation, asked tensors added as outputs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, TypeAlias

import numpy.typing as npt
import onnx
import onnxruntime as ort
from onnx import ModelProto, ValueInfoProto

from deploykit.errors import InputError
from deploykit.graph.running import CpuSession
from deploykit.system.workspaces import scratch

__all__ = ["Feed", "Session", "check_feed"]

Feed: TypeAlias = Mapping[str, npt.NDArray[Any]]
"""One sample: arrays by input name."""

_PROTOBUF_LIMIT = 1_900_000_000
_PLANNED_NODES = 1500
"""Above it memory is not planned: the time that takes grows with the square of the number of nodes (20 s for 9,000)."""

_ONE_THREAD = 32 << 20
"""Bytes of weights below which one thread is enough: handing small operators out costs more than it gains."""


class Session:
    """One opened model. ``optimize`` allows the runtime's graph optimisations: faster, and not bit exact."""

    def __init__(self, model: ModelProto, *, capture: Iterable[str] = (), optimize: bool = False) -> None:
        self.outputs: tuple[str, ...] = tuple(o.name for o in model.graph.output)
        self._session = _open(_with_outputs(model, capture), optimize)
        self._wanted = [o.name for o in self._session.outputs()]
        self.inputs = frozenset(i.name for i in self._session.inputs())

    def run(self, feed: Feed) -> dict[str, npt.NDArray[Any]]:
        """All outputs and captured tensors by name. Raises InputError when an input is missing or does not fit."""
        check_feed(feed, self.inputs)
        try:
            values = self._session.run(None, {name: feed[name] for name in self.inputs})
        except Exception as error:
            raise InputError("the model does not run on this sample", why=_first_line(error)) from None
        return dict(zip(self._wanted, values, strict=True))


def check_feed(feed: Feed, inputs: Iterable[str]) -> None:
    """Raises InputError when a sample lacks one of the inputs."""
    missing = sorted(set(inputs) - feed.keys())
    if missing:
        raise InputError(f"the sample has no value for input {missing[0]!r}", next="name arrays after the inputs")


def _with_outputs(model: ModelProto, capture: Iterable[str]) -> ModelProto:
    known = {o.name for o in model.graph.output}
    extra = [name for name in dict.fromkeys(capture) if name not in known]
    if not extra:
        return model
    copy = ModelProto()
    copy.CopyFrom(model)
    copy.graph.output.extend(ValueInfoProto(name=name) for name in extra)
    return copy


def _open(model: ModelProto, optimize: bool) -> CpuSession:
    weights = sum(len(t.raw_data) for t in model.graph.initializer)
    options = _options(len(model.graph.node), weights)
    if not optimize:
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    try:
        if weights < _PROTOBUF_LIMIT:
            return CpuSession(model.SerializeToString(), options)
        return _open_large(model, options, weights)
    except Exception as error:
        name = model.graph.name
        raise InputError(f"{name}: the model does not load in ONNX Runtime", why=_first_line(error)) from None


def _options(nodes: int, weight_bytes: int) -> Any:
    """Quiet, and without threads that spin while they wait: they would burn the time of whatever runs beside them."""
    options = ort.SessionOptions()
    options.log_severity_level = 3
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    if weight_bytes < _ONE_THREAD:
        options.intra_op_num_threads = 1
    if nodes > _PLANNED_NODES:
        options.enable_mem_reuse = options.enable_mem_pattern = False
    return options


def _open_large(model: ModelProto, options: Any, size: int) -> CpuSession:
    with scratch() as folder:
        path = folder / "model.onnx"
        onnx.save(model, path, save_as_external_data=True, location="weights.bin")
        return CpuSession(str(path), options, size=size)


def _first_line(error: Exception) -> str:
    return str(error).splitlines()[0] if str(error) else type(error).__name__
