"""Finds the operator where a device first differs from the CPU on the same model, by exposing intermediate tensors.

Each round packages the model with additional outputs and runs that on the device. A compiler may fuse this model
differently from the original; if the pieces agree but the whole does not, no operator is reported.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from onnx import ModelProto, TensorProto, helper, save_model

from deploykit.accuracy.judge.verdict import Thresholds
from deploykit.accuracy.search.locate import Located, ModelProbe, locate
from deploykit.devices.places import DeviceRow
from deploykit.devices.run import RunOptions, run_there
from deploykit.errors import ToolError, UsageError
from deploykit.findings.records import Arrays, Json, Tell, replace
from deploykit.model.facts import GraphFacts
from deploykit.model.load import load_model
from deploykit.model.weights import lean_weights, whole_model
from deploykit.packages.manifests import read_manifest
from deploykit.packages.rejudging import judge_of
from deploykit.system.folders import scratch

__all__ = ["locate_on"]

Make = Callable[[Path, Json, Path], None]
_SAMPLES = 2  # as in a search between two files: a wrong kernel is wrong on every sample
_SESSIONS = 16  # on both sides together; each one on the device needs a compilation


def locate_on(
    package: Path, row: DeviceRow, make: Make, tell: Tell, *, threshold_db: float, samples: int | None
) -> Located:
    """Find the first operator whose output differs between device and CPU although its inputs agree.

    ``make`` packages a model, as its manifest describes, into a folder. ``samples`` of None means two. Raises
    DeploykitError; UsageError for a package of several models.
    """
    manifest = read_manifest(package)
    paths = sorted((package / "model").glob("*.onnx"))
    if len(paths) != 1:
        raise UsageError(f"{package}: is run in pieces", why="the device is asked about one model")
    judge = judge_of(package, manifest, Thresholds())
    model, facts = lean_weights(load_model(paths[0])), judge.facts

    def outputs(wanted: ModelProto, feeds: Sequence[Arrays]) -> Sequence[Arrays]:
        tell(f"compiling with {len(wanted.graph.output)} outputs")
        with scratch() as folder:
            path, out = folder / "pieces.onnx", folder / "package"
            save_model(wanted, path)
            make(path, manifest, out)
            if not out.is_dir():
                raise ToolError("the model with more outputs cannot be packaged", next="locate without --on")
            return _outputs_on(out, row, feeds, tell)

    sides = ModelProbe(model), _DeviceProbe(model, facts, outputs)
    feeds = [dict(feed) for feed in judge.feeds[: samples or _SAMPLES]]
    found = locate(facts, *sides, feeds, threshold_db=threshold_db, per_round=32, sessions=_SESSIONS)
    first = found.first
    # The quantize/dequantize pair after an operator carries the operator's output.
    node = None if first is None else facts.producer_of(first.output.name)
    for kind in ("DequantizeLinear", "QuantizeLinear"):
        node = facts.producer_of(node.inputs[0]) if node is not None and node.op_type == kind else node
    if first is None or node is None:
        return found
    return replace(found, first=replace(first, node=node.label, op_type=node.op_type))


class _DeviceProbe(ModelProbe):
    """Runs a model on a device. If the model has quantize/dequantize pairs, only values after a pair are exposed.

    These values exist on the device even after fusing.
    """

    def __init__(
        self,
        model: ModelProto,
        facts: GraphFacts,
        outputs: Callable[[ModelProto, Sequence[Arrays]], Sequence[Arrays]],
    ) -> None:
        super().__init__(model)
        self._facts, self._outputs = facts, outputs
        shaped = {name for name, fact in facts.tensors.items() if fact.shape is not None}
        known = {name: node for node in facts.nodes for name in node.outputs if name in shaped}
        behind = {
            name
            for name, node in known.items()
            if node.op_type == "DequantizeLinear" and facts.producer_of(node.inputs[0], "QuantizeLinear")
        }
        self.tensors = frozenset((behind or set(known)) | set(facts.outputs))

    def show_all(self, names: Sequence[str], feeds: Sequence[Arrays]) -> Sequence[Arrays]:
        """Return the values of the named tensors for each sample, using one compilation and one run on the device."""
        whole = whole_model(self._model)
        have = {value.name for value in whole.graph.output}
        for name in (name for name in names if name not in have):
            shape = self._facts.tensors[name].shape
            whole.graph.output.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, shape))
        return self._outputs(whole, feeds)


def _outputs_on(package: Path, row: DeviceRow, feeds: Sequence[Arrays], tell: Tell) -> tuple[Arrays, ...]:
    """Return the outputs of a package on a device, without judging or
    recording them. Raises ToolError if the run fails.
    """
    with scratch() as folder:
        run = run_there(package, row, RunOptions(iterations=0, warmup=0, profile=False), feeds, folder, tell)
        if run.results is None:
            why = "\n".join(run.end.log.read_text("utf-8", "replace").splitlines()[-3:])
            raise ToolError(f"{row.at}: the program on the device failed (status {run.end.status})", why=why)
        return run.results.outputs
