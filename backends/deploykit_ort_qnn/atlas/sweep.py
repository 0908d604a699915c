"""Runs units through one release's compiler and an emulator, many at a time, and halves whatever dies or never ends.

It judges nothing: an answer and a number per unit come out.
"""

from __future__ import annotations

import math
import re
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from deploykit.errors import ToolError
from deploykit.numerics.quality import sqnr_db
from deploykit_ort_qnn.atlas.units import Unit, joined
from deploykit_ort_qnn.compiler import CompileJob, CompileOutcome, compile_model, execute_both
from deploykit_ort_qnn.hosts import NOTHING_TAKEN, Host

__all__ = ["SAME", "Measured", "sweep"]

SAME = 200.0
"""dB of equal outputs: more than float32 can tell apart."""

_TOGETHER = 120
_SECONDS = 30.0
"""For one unit; a batch gets a tenth of it for each of its units, and as much again to start with."""
_NUMBER = re.compile(r"u\d+/")
"""The prefix of a unit inside a name: ONNX Runtime puts words of its own before names."""
_MIXING = "ConstantSharing;CommonSubexpressionElimination"
"""Rewrites of ONNX Runtime that make one node of two in different units, which then are no longer on their own."""
_PAIR = ("QuantizeLinear", "DequantizeLinear")


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """What one release makes of one unit.

    ``answer`` is taken, refused, failed, crashed or timed-out; ``decibels`` of the worst output against the CPU, None
    where nothing ran, and ``why`` says why not.
    """

    unit: Unit
    answer: str
    decibels: float | None = None
    why: str = ""


def sweep(
    units: Sequence[Unit], *, host: Host | None, soc_model: int, progress: Callable[[str], None]
) -> Iterator[Measured]:
    """Every unit, in batches of one type and one operator set; ``host`` None is the wheel beside this Python."""
    groups: dict[Any, list[Unit]] = {}
    for one in units:
        opsets = tuple(sorted((entry.domain, entry.version) for entry in one.model.opset_import))
        groups.setdefault((one.kind, opsets), []).append(one)
    done = 0
    for group in groups.values():
        for start in range(0, len(group), _TOGETHER):
            batch = group[start : start + _TOGETHER]
            yield from _measured(batch, host, soc_model)
            done += len(batch)
            progress(f"{done} of {len(units)} units")


def _measured(batch: Sequence[Unit], host: Host | None, soc_model: int) -> Iterator[Measured]:
    """A batch, or its halves where it cannot be compiled or run as one."""
    with tempfile.TemporaryDirectory() as folder:
        found = _attempt(batch, host, soc_model, Path(folder))
    if isinstance(found, list):
        yield from found
    elif len(batch) > 1:
        middle = len(batch) // 2
        yield from _measured(batch[:middle], host, soc_model)
        yield from _measured(batch[middle:], host, soc_model)
    else:
        yield found


def _attempt(batch: Sequence[Unit], host: Host | None, soc_model: int, root: Path) -> list[Measured] | Measured:
    """What comes of each unit; or the one answer of all, where they could not be compiled or run together."""
    (root / "model.onnx").write_bytes(joined(batch).SerializeToString())
    # The pairs at the border are part of the question; without the option the CPU computes them.
    options = {"soc_model": str(soc_model), "offload_graph_io_quantization": "0"}
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
            return Measured(unit=batch[0], answer="refused", why=batch[0].form.op)
        return Measured(unit=batch[0], answer=outcome.status, why=_reason(outcome))
    left = _left_over(root / "c.onnx", outcome)
    try:
        sides = execute_both(
            root, "model.onnx", "c.onnx", _inputs(batch, root), options=options, timeout=limit, host=host
        )
    except ToolError as error:
        why = _left(left, batch[0])
        return Measured(unit=batch[0], answer="refused" if why else "taken", why=why or f"not run: {error.why}")
    return [_one(unit, _left(left, unit), *sides) for unit in batch]


def _one(unit: Unit, left: str, cpu: Mapping[str, Any], npu: Mapping[str, Any]) -> Measured:
    if left:
        return Measured(unit=unit, answer="refused", why=left)
    values = [_decibels(cpu[key], npu[key]) for key in cpu if key.partition(":")[2].startswith(unit.prefix)]
    worst = min(values)
    if math.isnan(worst):
        return Measured(unit=unit, answer="taken", decibels=-SAME, why="not finite")
    return Measured(unit=unit, answer="taken", decibels=round(max(-SAME, min(SAME, worst)), 1))


def _decibels(wanted: Any, got: Any) -> float:
    if wanted.shape != got.shape:
        return -SAME
    return sqnr_db(np.asarray(wanted, np.float64), np.asarray(got, np.float64))


def _left_over(context: Path, outcome: CompileOutcome) -> dict[str, set[str]]:
    """By the prefix of a unit, what is said of its nodes that stayed outside of the compiled graph."""
    graph = onnx.load(context, load_external_data=False).graph
    whys = {node.name: node.why for node in outcome.refused}
    # A stored value may be shared by units that have the same one.
    stored = {tensor.name for tensor in graph.initializer}
    found: dict[str, set[str]] = {}
    for node in graph.node:
        if node.op_type != "EPContext":
            words = f"{node.op_type}{f': {why}' if (why := whys.get(node.name)) else ''}"
            read = (name for name in node.input if name not in stored)
            for prefix in _NUMBER.findall(" ".join((node.name, *node.output, *read))):
                found.setdefault(prefix, set()).add(words)
    return found


def _left(left: Mapping[str, set[str]], unit: Unit) -> str:
    """Why a unit was not taken, "" where it was: the operators left out, pairs only where nothing else was."""
    words = left.get(unit.prefix, set())
    operators = {why for why in words if not why.startswith(_PAIR)}
    return ", ".join(sorted(operators or words))


def _reason(outcome: CompileOutcome) -> str:
    named = sorted({f"{node.type}{f': {node.why}' if node.why else ''}" for node in outcome.refused})
    return ", ".join(named) or outcome.message


def _inputs(batch: Sequence[Unit], root: Path) -> Path:
    """Both samples of every unit; a tensor that a graph does not read any more is left out."""
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
