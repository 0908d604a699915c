"""Runs a compiled model on the emulator and its file on the CPU, has both judged, and finds where they part.

Emulated times are host noise and are not even kept. Limits and verdicts are the judge's; it changes no model.
"""

from __future__ import annotations

import math
import shutil
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper

from deploykit.accuracy.judge.alignment import match_contents
from deploykit.accuracy.judge.judging import made_by
from deploykit.accuracy.judge.output_judging import OutputJudge
from deploykit.accuracy.judge.quality import sqnr_db
from deploykit.accuracy.judge.row_sets import RowSets
from deploykit.accuracy.judge.thresholds import Against, Measure, limit_for
from deploykit.accuracy.judge.verdicts import Verdict
from deploykit.accuracy.samples.labels import Label
from deploykit.accuracy.simulate.fitting import settled
from deploykit.accuracy.simulate.sessions import Session
from deploykit.backend.backend import Seen
from deploykit.backend.status import Correctness, Right
from deploykit.errors import InputError
from deploykit.model import Model, load_model
from deploykit.model.collect import collect_facts, facts_of
from deploykit.model.weights import load_weights
from deploykit_ort_qnn.compiler.hosts import Host
from deploykit_ort_qnn.compiler.jobs import CompileJob, Progress, compile_model, execute_both
from deploykit_ort_qnn.rules.numerics import NumericScope

if TYPE_CHECKING:
    from onnx import ModelProto

    from deploykit.accuracy.judge.judging import Judge
    from deploykit.accuracy.judge.verdicts import Verdict
    from deploykit.model.facts import GraphFacts

__all__ = ["NUMBERS", "Comparison", "compare", "correctness", "narrowest", "numbers_json", "numbers_scope"]

NUMBERS = "artifacts/numbers.json"


def numbers_json(scope: NumericScope) -> dict[str, Any]:
    """The JSON value of a comparison."""
    return {
        "schema": 1,
        "device": _verdict_json(scope.device),
        "quantization": _verdict_json(scope.quantization),
        "first_node": scope.first,
        "first_node_type": scope.first_type,
        "first_node_db": scope.first_db,
    }


def _verdict_json(verdict: Verdict | None) -> dict[str, Any] | None:
    return None if verdict is None else verdict.to_json()


def numbers_scope(value: Mapping[str, Any]) -> NumericScope:
    """What the rules look at, from the JSON value; raises InputError."""
    try:
        return NumericScope(
            device=_verdict(value["device"]),
            quantization=_verdict(value["quantization"]),
            first=value["first_node"],
            first_type=value["first_node_type"],
            first_db=value["first_node_db"],
        )
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(f"{NUMBERS}: not the numbers of a comparison", why=repr(error)) from None


def _verdict(value: Any) -> Verdict | None:
    return None if value is None else Verdict.from_json(value)


def correctness(scope: NumericScope) -> Correctness:
    """Right where the device computes what the file says and that is close to float, as far as either was judged."""
    if scope.device is None:
        return Correctness(why=f"the emulation failed: {scope.not_run}", broken=True)
    verdicts = [verdict for verdict in (scope.device, scope.quantization) if verdict is not None]
    deciding = min(verdicts, key=lambda verdict: (False, None, True).index(verdict.right))
    first = next(iter(deciding.numbers), None)
    return Correctness(
        state={True: Right.YES, False: Right.NO, None: Right.NOT_JUDGED}[deciding.right],
        label="" if first is None else str(first.label),
        count=0 if first is None else first.count,
        against="" if first is None else str(first.against),
        why=deciding.reason,
        numbers=tuple(number.to_json() for verdict in verdicts for number in verdict.numbers),
    )


Numbers = npt.NDArray[Any]

_LOCATED_ON = 2
_SEEN = 3
"""So many samples' outputs are handed on, for a page to show."""
"""Samples on which the first node that differs is looked for: with every tensor shown, each costs many times more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """What to compare: paths relative to ``root``, input sets by input name, and what those mean (``label``).

    ``bits`` is the narrowest activation type (0: float), ``original`` judges against the model before it was quantized,
    on these very inputs, where there is one beside the file. Inputs that the file does not have are left out. ``host``
    compiled the context and runs it where it can; else the provider installed beside this Python does.
    """

    root: Path
    qdq: str
    context: str
    options: Mapping[str, str]
    inputs: tuple[Mapping[str, Numbers], ...]
    label: Label
    bits: int = 0
    original: Judge | None = None
    allow_cpu: bool = False
    timeout: float = 1800.0
    host: Host | None = None


def narrowest(types: Iterable[str]) -> int:
    """The width of the narrowest of some activation types, 0 when none is of 8 or 16 bits."""
    bits = [int("".join(c for c in kind if c.isdigit())) for kind in types if kind.startswith(("uint", "int"))]
    return min((width for width in bits if width in (8, 16)), default=0)


def compare(job: Comparison, progress: Progress | None = None) -> NumericScope:
    """Both verdicts on what the emulator gives, and the first node after which it differs. Raises ToolError."""
    file = load_model(job.root / job.qdq)
    facts = collect_facts(file)
    with tempfile.TemporaryDirectory(prefix=".numbers-", dir=job.root) as folder:
        inputs = Path(folder) / "inputs.npz"
        _save(inputs, [{name: feed[name] for name in facts.inputs} for feed in job.inputs])
        cpu, npu = execute_both(
            job.root,
            job.qdq,
            job.context,
            inputs,
            options=job.options,
            timeout=job.timeout,
            progress=progress,
            host=job.host,
        )
        device, quantization = _judged(job, file, facts, _samples(cpu), _samples(npu))
        first, kind, value = "", "", None
        if device.right is False:
            first, kind, value = _first_difference(job, facts, Path(folder), progress)
    return NumericScope(
        device=device,
        quantization=quantization,
        first=first,
        first_type=kind,
        first_db=value,
        seen=Seen(by="the emulated device", feeds=tuple(job.inputs[:_SEEN]), outputs=tuple(_samples(npu)[:_SEEN])),
    )


def _judged(
    job: Comparison,
    file: Model,
    facts: GraphFacts,
    cpu: Sequence[Mapping[str, Numbers]],
    npu: Sequence[Mapping[str, Numbers]],
) -> tuple[Verdict, Verdict | None]:
    """The device against the same file on the CPU, and what the file loses against the float model, if there is one."""
    # A float file is its own reference: then what is missing against float was lost by the device alone.
    against = Against.QUANTIZED if job.bits or facts.is_qdq else Against.FLOAT
    judge = OutputJudge(facts, label=job.label, against=against, bits=job.bits, same_graph=True)
    device = judge.compare(cpu, npu, job.inputs)
    if job.original is None:
        return device, None
    # Where the device does as the file says, what the file loses is seen on the CPU, which shows what it chose inside.
    shown = _with_choices(job, file, cpu) if device.right else npu
    return device, settled(job.original.compare(shown), job.label)


def _with_choices(
    job: Comparison, file: Model, cpu: Sequence[Mapping[str, Numbers]]
) -> Sequence[Mapping[str, Numbers]]:
    """The outputs of the file on the CPU with the inner tensors that tell which rows were chosen."""
    assert job.original is not None
    if not job.original.choices:
        return cpu
    model = load_weights(file)
    choices = made_by(model, job.original.choices)
    session = Session(model, capture=choices)
    runs = [session.run(feed) for feed in job.inputs]
    return [{**{name: run[name] for name in choices}, **outputs} for run, outputs in zip(runs, cpu, strict=True)]


def _samples(outputs: Mapping[str, Numbers]) -> list[dict[str, Numbers]]:
    """Outputs by name, one mapping per input set, from keys ``<set>:<name>``."""
    found: dict[int, dict[str, Numbers]] = {}
    for key, value in outputs.items():
        number, name = key.split(":", 1)
        found.setdefault(int(number), {})[name] = value
    return [found[number] for number in sorted(found)]


def _save(path: Path, sets: Iterable[Mapping[str, Numbers]]) -> None:
    arrays = {f"{index}:{name}": value for index, feed in enumerate(sets) for name, value in feed.items()}
    with path.open("wb") as file:
        np.savez(file, **arrays)  # type: ignore[arg-type]


def _first_difference(
    job: Comparison, facts: GraphFacts, folder: Path, progress: Progress | None
) -> tuple[str, str, float | None]:
    """Compile once more with every quantized tensor as an output; name the node that makes the first that differs."""
    model = onnx.load(job.root / job.qdq)
    shown = _show_all(model)
    root = folder / "located"
    root.mkdir()
    inputs = folder / "few.npz"
    _save(inputs, [{name: feed[name] for name in facts.inputs} for feed in job.inputs[:_LOCATED_ON]])
    onnx.save(model, root / "model.onnx")
    again = CompileJob(
        root=root,
        model="model.onnx",
        context="c.onnx",
        options=job.options,
        allow_cpu=job.allow_cpu,
        trace=False,
        timeout=job.timeout,
        host=job.host,
    )
    done = compile_model(again, progress)
    if not done.ok:
        return "", "", None
    cpu, npu = execute_both(
        root,
        "model.onnx",
        "c.onnx",
        inputs,
        options=job.options,
        timeout=job.timeout,
        progress=progress,
        host=job.host,
    )
    shutil.rmtree(root)
    sides = list(zip(_samples(cpu), _samples(npu), strict=True))
    rows = RowSets(facts_of(model))
    least = limit_for(Measure.SQNR, same_graph=True, bits=job.bits).value
    for tensor, (node, kind) in shown.items():
        value = min(_tensor_db(one[tensor], two[tensor], rows.axes(tensor)) for one, two in sides)
        if not value >= least:
            return node, kind, value if np.isfinite(value) else None
    return "", "", None


def _tensor_db(one: Numbers, two: Numbers, axes: Sequence[object]) -> float:
    """SQNR of an inner tensor in dB, its rows matched by what they hold where they were chosen.

    A kernel may give another shape than the model says: then nothing of it is right.
    """
    if one.shape != two.shape:
        return -math.inf
    chosen = [axis for axis, rows in enumerate(axes) if rows is not None]
    if len(chosen) == 1 and one.ndim == len(axes) and one.shape == two.shape:
        tables = [np.moveaxis(side, chosen[0], 0).reshape(one.shape[chosen[0]], -1) for side in (one, two)]
        pairs = match_contents(tables[:1], tables[1:])
        if pairs is not None:
            one, two = tables[0][pairs[0]], tables[1][pairs[1]]
    return sqnr_db(one, two)


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
