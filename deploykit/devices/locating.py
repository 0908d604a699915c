"""Finds the operator at which a device parts from the same file on the CPU, by showing tensors inside of the model.

Each round packages the model with some more outputs and runs that on the device. A compiler may fuse it otherwise than
the package: what agrees in pieces and not as a whole is told as no operator.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from deploykit.accuracy.judge.verdict import Thresholds
from deploykit.accuracy.search.locate import Located, ModelProbe, locate
from deploykit.backend.on_device import DeviceRequest
from deploykit.backend.plugins import load_backend
from deploykit.devices.connection import connection_to
from deploykit.devices.places import DeviceRow
from deploykit.devices.visit import visiting
from deploykit.errors import ToolError, UsageError
from deploykit.model import load_model
from deploykit.model.facts import GraphFacts
from deploykit.model.weights import lean_weights, whole_model
from deploykit.packages.manifests import read_manifest
from deploykit.packages.rejudging import judge_of
from deploykit.system.folders import scratch

if TYPE_CHECKING:
    from onnx import ModelProto

__all__ = ["locate_on"]

Make = Callable[[Path, Mapping[str, Any], Path], None]
_SAMPLES = 2  # as many as a search between two files takes: a kernel is wrong on each
_SESSIONS = 16  # of both sides; each of the device is a compilation


def locate_on(
    package: Path, row: DeviceRow, make: Make, tell: Callable[[str], None], *, threshold_db: float, samples: int | None
) -> Located:
    """The first operator whose output the device computes otherwise than the CPU does, although what it reads agrees.

    ``make`` packages a model as a manifest says, into a folder. Raises DeploykitError, UsageError for a package of
    several models.
    """
    manifest = read_manifest(package)
    paths = sorted((package / "model").glob("*.onnx"))
    if len(paths) != 1:
        raise UsageError(f"{package}: is run in pieces", why="the device is asked about one model")
    judge = judge_of(package, manifest.get("status") or {}, Thresholds())
    model = lean_weights(load_model(paths[0]))
    facts = judge.facts
    left = ModelProbe(model)
    right = _DeviceProbe(model, facts, manifest, row, make, tell)
    feeds = [dict(feed) for feed in judge.feeds[: samples or _SAMPLES]]
    found = locate(facts, left, right, feeds, threshold_db=threshold_db, per_round=32, sessions=_SESSIONS)
    first = found.first
    if first is None or first.op_type != "DequantizeLinear":
        return found
    # The pair behind an operator shows what it computes.
    pair = facts.producer_of(first.output.name)
    inner = None if pair is None else facts.producer_of(pair.inputs[0])
    maker = None if inner is None else facts.producer_of(inner.inputs[0])
    if maker is None:
        return found
    return replace(found, first=replace(first, node=maker.label, op_type=maker.op_type))


class _DeviceProbe(ModelProbe):
    """A model as a device computes it. Of one with pairs the values behind a pair are shown: fusing leaves those."""

    def __init__(
        self,
        model: ModelProto,
        facts: GraphFacts,
        manifest: Mapping[str, Any],
        row: DeviceRow,
        make: Make,
        tell: Callable[[str], None],
    ) -> None:
        super().__init__(model)
        self._facts, self._manifest, self._row, self._make, self._tell = facts, manifest, row, make, tell
        made = {name: node for node in facts.nodes for name in node.outputs}
        behind = {
            name
            for name, node in made.items()
            if node.op_type == "DequantizeLinear"
            and (source := made.get(node.inputs[0])) is not None
            and source.op_type == "QuantizeLinear"
        }
        known = {name for name in made if name in facts.tensors and facts.tensors[name].shape is not None}
        self.tensors = frozenset(((behind or set(made)) & known) | set(facts.outputs))

    def show_all(self, names: Sequence[str], feeds: Sequence[Mapping[str, Any]]) -> Sequence[Mapping[str, Any]]:
        """The values of some tensors for each sample, from one compilation and one run there."""
        from onnx import TensorProto, helper, save_model

        whole = whole_model(self._model)
        have = {value.name for value in whole.graph.output}
        for name in (name for name in names if name not in have):
            shape = self._facts.tensors[name].shape
            whole.graph.output.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, shape))
        with scratch() as folder:
            path, out = folder / "pieces.onnx", folder / "package"
            save_model(whole, path)
            self._tell(f"compiling with {len(names)} outputs")
            self._make(path, self._manifest, out)
            if not out.is_dir():
                raise ToolError("the model with more outputs cannot be packaged", next="locate without --on")
            return _outputs_on(out, self._row, feeds, self._tell)


def _outputs_on(
    package: Path, row: DeviceRow, feeds: Sequence[Mapping[str, Any]], tell: Callable[[str], None]
) -> tuple[Mapping[str, Any], ...]:
    """The outputs of a package on a device, neither judged nor recorded."""
    manifest = read_manifest(package)
    backend = load_backend(str(manifest["backend"]))
    with scratch() as folder:
        here = row.at == "local"
        connection = connection_to(row.at, folder=str(folder / "device") if here else row.folder)
        python = row.python or (sys.executable if here else "python3")
        with visiting(connection, python=python, tell=tell) as visit:
            request = DeviceRequest(feeds=feeds, place=visit.place, iterations=0, warmup=0, profile=False)
            job = backend.device_job(package, manifest, request)
            if job is None:
                raise UsageError(f"--on {row.at}: {backend.id} runs nothing there")
            end = visit.run(job, folder)
            if end.status:
                why = "\n".join(end.log.read_text("utf-8", "replace").splitlines()[-3:])
                raise ToolError(f"{connection.where}: the program on the device failed (status {end.status})", why=why)
            return backend.device_results(package, request, end.pulled).outputs
