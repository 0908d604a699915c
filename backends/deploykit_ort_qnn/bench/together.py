"""Runs many small graphs through a release's compiler and an emulator at once, and halves whatever dies or hangs.

It judges nothing: what became of each graph and the outputs of both sides come out.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt
import onnx
from onnx import ModelProto, helper

from deploykit.errors import ToolError
from deploykit_ort_qnn.compiler.hosts import NOTHING_TAKEN, Host
from deploykit_ort_qnn.compiler.jobs import CompileJob, CompileOutcome, compile_model, execute_both

if TYPE_CHECKING:
    from deploykit_ort_qnn.bench.inputs import Numbers

__all__ = ["Outputs", "Probe", "Ran", "joined", "run_together"]

Outputs: TypeAlias = "Mapping[str, Sequence[npt.NDArray[Any]]]"
"""By the name of an output its value on every input set, in their order."""

_TOGETHER = 120
_SECONDS = 30.0
"""For one graph; a batch gets a tenth of it for each of its graphs, and as much again to start with."""
_NUMBER = re.compile(r"u\d+/")
"""The prefix of a graph inside a name: ONNX Runtime puts words of its own before names."""
_MIXING = "ConstantSharing;CommonSubexpressionElimination"
"""Rewrites of ONNX Runtime that make one node of two in different graphs, which then are no longer on their own."""
_NO_GRAPH = "Load model from"
"""ONNX Runtime's words for a graph that it does not read: the provider was not asked."""
_PAIR = ("QuantizeLinear", "DequantizeLinear")


class Probe(Protocol):
    """One graph to run: every name in it begins with ``prefix`` (``u`` and a number and ``/``)."""

    @property
    def prefix(self) -> str:
        """Where its names begin."""

    @property
    def model(self) -> ModelProto:
        """The graph with its weights."""

    @property
    def samples(self) -> Sequence[Mapping[str, Numbers]]:
        """Input sets by the names of its inputs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ran:
    """What became of one graph: ``answer`` is taken, refused, failed (to be finalized), crashed, timed-out or invalid.

    ``wanted`` are the outputs of the file on the CPU, ``got`` those of the emulator; empty where nothing ran, and
    ``why`` says why.
    """

    probe: Probe
    answer: str
    why: str = ""
    wanted: Outputs = field(default_factory=dict)
    got: Outputs = field(default_factory=dict)

    @property
    def ran(self) -> bool:
        """True where there are outputs to compare."""
        return bool(self.got)


def run_together(
    probes: Sequence[Probe],
    *,
    host: Host | None,
    soc_model: int,
    progress: Callable[[str], None],
    together: int = _TOGETHER,
    options: Mapping[str, str] | None = None,
) -> Iterator[Ran]:
    """Every graph, in batches of one operator set; ``host`` None is the wheel beside this Python.

    ``options`` are further provider options. Graphs of one batch should have as many input sets each.
    """
    groups: dict[Any, list[Probe]] = {}
    for one in probes:
        opsets = tuple(sorted((entry.domain, entry.version) for entry in one.model.opset_import))
        groups.setdefault((opsets, len(one.samples)), []).append(one)
    # The pairs at the border are part of the question; without the option the CPU computes them.
    asked = {"soc_model": str(soc_model), "offload_graph_io_quantization": "0", **(options or {})}
    done = 0
    for group in groups.values():
        for start in range(0, len(group), together):
            batch = group[start : start + together]
            yield from _halved(batch, host, asked)
            done += len(batch)
            progress(f"{done} of {len(probes)} units")


def joined(models: Iterable[ModelProto]) -> ModelProto:
    """All graphs side by side in one model: nothing in one touches another."""
    chosen = list(models)
    whole = ModelProto()
    whole.CopyFrom(chosen[0])
    highest: dict[str, int] = {}
    for model in chosen:
        if model is not chosen[0]:
            whole.graph.node.extend(model.graph.node)
            whole.graph.initializer.extend(model.graph.initializer)
            whole.graph.input.extend(model.graph.input)
            whole.graph.output.extend(model.graph.output)
        for entry in model.opset_import:
            highest[entry.domain] = max(highest.get(entry.domain, 0), entry.version)
    del whole.opset_import[:]
    whole.opset_import.extend(helper.make_opsetid(domain, version) for domain, version in sorted(highest.items()))
    return whole


def _halved(batch: Sequence[Probe], host: Host | None, options: Mapping[str, str]) -> Iterator[Ran]:
    """A batch, or its halves where it cannot be compiled or run as one."""
    with tempfile.TemporaryDirectory() as folder:
        found = _attempt(batch, host, options, Path(folder))
    if isinstance(found, list):
        yield from found
    elif len(batch) > 1:
        middle = len(batch) // 2
        yield from _halved(batch[:middle], host, options)
        yield from _halved(batch[middle:], host, options)
    else:
        yield found


def _attempt(batch: Sequence[Probe], host: Host | None, options: Mapping[str, str], root: Path) -> list[Ran] | Ran:
    """What comes of each graph; or the one answer of all, where they could not be compiled or run together."""
    (root / "model.onnx").write_bytes(joined(one.model for one in batch).SerializeToString())
    limit = _SECONDS * (1 + len(batch) / 10)
    job = CompileJob(
        root=root,
        model="model.onnx",
        context="c.onnx",
        options=options,
        entries={"optimization.disable_specified_optimizers": _MIXING},
        allow_cpu=True,
        trace=False,
        timeout=limit,
        host=host,
    )
    outcome = compile_model(job)
    if not outcome.ok:
        if outcome.message == NOTHING_TAKEN:
            kinds = (node.op_type for node in batch[0].model.graph.node if node.op_type not in _PAIR)
            return Ran(probe=batch[0], answer="refused", why=", ".join(dict.fromkeys(kinds)))
        answer = "invalid" if _NO_GRAPH in outcome.message else outcome.status
        named = sorted({f"{node.type}{f': {node.why}' if node.why else ''}" for node in outcome.refused})
        return Ran(probe=batch[0], answer=answer, why=", ".join(named) or outcome.message)
    left = _left_over(root / "c.onnx", outcome)
    try:
        cpu, npu = execute_both(
            root, "model.onnx", "c.onnx", _inputs(batch, root), options=options, timeout=limit, host=host
        )
    except ToolError as error:
        why = _left(left, batch[0])
        return Ran(probe=batch[0], answer="refused" if why else "taken", why=why or f"not run: {error.why}")
    return [_one(probe, _left(left, probe), cpu, npu) for probe in batch]


def _one(probe: Probe, left: str, cpu: Mapping[str, Any], npu: Mapping[str, Any]) -> Ran:
    if left:
        return Ran(probe=probe, answer="refused", why=left)
    names = [value.name for value in probe.model.graph.output]
    sides = [
        {name: [side[f"{number}:{name}"] for number in range(len(probe.samples))] for name in names}
        for side in (cpu, npu)
    ]
    return Ran(probe=probe, answer="taken", wanted=sides[0], got=sides[1])


def _left_over(context: Path, outcome: CompileOutcome) -> dict[str, set[str]]:
    """By the prefix of a graph, what is said of its nodes that stayed outside of the compiled one."""
    graph = onnx.load(context, load_external_data=False).graph
    whys = {node.name: node.why for node in outcome.refused}
    # A stored value may be shared by graphs that have the same one.
    stored = {tensor.name for tensor in graph.initializer}
    found: dict[str, set[str]] = {}
    for node in graph.node:
        if node.op_type != "EPContext":
            words = f"{node.op_type}{f': {why}' if (why := whys.get(node.name)) else ''}"
            read = (name for name in node.input if name not in stored)
            for prefix in _NUMBER.findall(" ".join((node.name, *node.output, *read))):
                found.setdefault(prefix, set()).add(words)
    return found


def _left(left: Mapping[str, set[str]], probe: Probe) -> str:
    """Why a graph was not taken, "" where it was: the operators left out, pairs only where nothing else was."""
    words = left.get(probe.prefix, set())
    operators = {why for why in words if not why.startswith(_PAIR)}
    return ", ".join(sorted(operators or words))


def _inputs(batch: Sequence[Probe], root: Path) -> Path:
    """Every input set of every graph; a tensor that a graph does not read any more is left out."""
    wanted = {value.name for one in batch for value in one.model.graph.input}
    feeds = {
        f"{number}:{name}": value
        for one in batch
        for number, sample in enumerate(one.samples)
        for name, value in sample.items()
        if name in wanted
    }
    target = root / "inputs.npz"
    with target.open("wb") as file:
        np.savez(file, **feeds)  # type: ignore[arg-type]
    return target
