"""Runs a compiled model on the emulator and its file on the CPU, has both
judged, and finds the first node that differs.

Emulated times depend on the build machine and are not kept. The judge sets limits and verdicts. No model is changed.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from functools import partial
from operator import add
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import ModelProto, TensorProto, helper

from deploykit.accuracy.judge.judge import judge_outputs
from deploykit.accuracy.judge.measures import overall_db, sqnr_db
from deploykit.accuracy.judge.rows import ChosenRows
from deploykit.accuracy.judge.verdict import Against, Context, Measure, Verdict
from deploykit.accuracy.samples.gathering import EXPECTED_FILE, record_expected
from deploykit.accuracy.samples.inputs import Label
from deploykit.accuracy.simulate.sessions import Session, run_chain
from deploykit.accuracy.simulate.simulation import Original, settled
from deploykit.backend.backend import Seen, SharedWork
from deploykit.backend.status import Correctness, correctness_of
from deploykit.errors import InputError, ToolError
from deploykit.findings.records import Arrays, Feeds, Json, Record, Tell, finite, plain, replace, silent
from deploykit.model.collect import facts_of
from deploykit.model.facts import GraphFacts, NodeFact
from deploykit.model.operators import QUANTIZERS
from deploykit_ort_qnn.compiler.hosts import Host
from deploykit_ort_qnn.compiler.jobs import CompileJob, compile_model, execute_both
from deploykit_ort_qnn.rules.numerics import NumericScope

__all__ = ["NUMBERS", "EmulationJob", "compare", "correctness", "narrowest", "numbers_json", "numbers_scope"]

NUMBERS = "artifacts/numbers.json"


def numbers_json(scope: NumericScope) -> Json:
    """The JSON value of a comparison."""
    told = {
        "schema": 1,
        "device": scope.device,
        "quantization": scope.quantization,
        "agreement_db": scope.agreement,
        "first_node": scope.first,
        "first_node_type": scope.first_type,
        "first_node_db": scope.first_db,
    }
    return dict(plain(told))


def numbers_scope(value: Json) -> NumericScope:
    """The numbers that the rules look at, from the JSON value. Raises InputError."""
    try:
        verdicts = [value[name] and Verdict.from_json(value[name]) for name in ("device", "quantization")]
        return NumericScope(
            device=verdicts[0],
            quantization=verdicts[1],
            agreement={n: math.nan if db is None else float(db) for n, db in value["agreement_db"].items()},
            first=value["first_node"],
            first_type=value["first_node_type"],
            first_db=value["first_node_db"],
        )
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(f"{NUMBERS}: not the numbers of a comparison", why=repr(error)) from None


def correctness(scope: NumericScope) -> Correctness:
    """Whether the package does its task as well as its precision allows; with numbers of the device against the CPU."""
    verdict = scope.device
    if verdict is None:
        failed = "" if scope.is_spared else "the emulation failed: "
        return Correctness(why=f"{failed}{scope.not_run}", broken=not scope.is_spared)
    right = correctness_of(verdict, where="emulator")
    if verdict.right is False and scope.first:  # the loss comes first, the operator second
        right = replace(right, why=f"{right.why}; first at {scope.first_type} {scope.first}".strip())
    if not right.label:
        return right
    beside = Context(right.label, count=right.count, against=Against.QUANTIZED)
    note = "the device beside the same file on the CPU"
    numbers = [beside.number(name, "", Measure.SQNR, db, note=note) for name, db in scope.agreement.items()]
    return replace(right, numbers=(*right.numbers, *(number.to_json() for number in numbers)))


_SHOWN = 64  # intermediate results per run: this many more outputs hardly slow a model down
_TRIED = 2  # samples that show whether another architecture gives the same bits: tests/lab/evidence/benchmarks.md
_SEEN = 3  # samples whose outputs are kept for the page
_LEAST_DB = 20.0  # below this a tensor on the emulator counts as different from the CPU's


class EmulationJob(Record):
    """What to compare: paths relative to ``root``, input sets by input name, and where these come from (``label``).

    ``facts`` are those of the file, ``bits`` is the narrowest activation type (0: float). ``original`` judges the
    outputs by the model as given, on the same inputs; without it the file is its own reference. ``tail`` is a model
    that the host runs afterwards. Inputs that the file does not have are left out. ``host`` compiled the context and
    runs it if it can; else the provider installed beside this Python does. ``keep`` writes the emulator's and the
    original's outputs into the package, to compare a device's with. ``shared`` keeps the outputs for
    later targets under ``kernels``, of which all but the first part is that of any other chip; with () it keeps none.
    """

    root: Path
    qdq: str
    facts: GraphFacts
    context: str
    options: Mapping[str, str]
    inputs: tuple[Arrays, ...]
    label: Label
    bits: int
    original: Original | None
    tail: str
    allow_cpu: bool
    timeout: float
    host: Host | None
    keep: bool
    shared: SharedWork
    kernels: tuple[Hashable, ...]


def narrowest(types: Iterable[str]) -> int:
    """The width of the narrowest activation type, 0 if none has 8 or 16 bits."""
    bits = [int("".join(c for c in kind if c.isdigit())) for kind in types if kind.startswith(("uint", "int"))]
    return min((width for width in bits if width in (8, 16)), default=0)


def compare(job: EmulationJob, progress: Tell = silent) -> NumericScope:
    """The verdict on the package's outputs on the emulator, and the first node that differs. Raises ToolError."""
    facts = job.facts
    run = partial(execute_both, options=job.options, timeout=job.timeout, progress=progress, host=job.host)
    feeds = [{name: feed[name] for name in facts.inputs} for feed in job.inputs]
    if job.original is None:
        try:  # with limits of time and memory: the emulator takes hundreds of times as long
            Session(onnx.load(job.root / job.qdq)).run(feeds[0])
        except InputError as error:
            raise ToolError(f"{job.qdq}: does not run on the CPU", why=error.why or error.what) from None
    sides, shared = _both_sides(job, feeds, partial(run, job.root, job.qdq, job.context))
    job = replace(job, inputs=job.inputs[: len(sides[1])])
    ends = [Session(onnx.load(job.root / job.tail))] if job.tail else []
    given = ([{**fed, **made} for fed, made in zip(job.inputs, side, strict=True)] for side in sides)
    cpu, npu = (run_chain(ends, fed) for fed in given)
    device, quantization = _judged(job, facts, cpu, npu)
    original = job.original
    if job.keep and original is not None:
        told = {"emulator": [{name: one[name] for name in original.judge.names if name in one} for one in npu]}
        if original.quantization is not None or not facts.is_qdq:  # without it the original is quantized itself
            told["float"] = [dict(one) for one in original.judge.reference[: len(npu)]]
        kept = record_expected(job.inputs, told, job.label)
        if kept is not None:
            (job.root / EXPECTED_FILE).write_bytes(kept)
    located: Json = {}
    pairs = list(zip(*sides, strict=True))
    if device.right is False:  # on the sample that is farthest off: each sample takes much longer with more outputs
        losses = [[sqnr_db(one[name], two[name]) for name in facts.outputs] for one, two in pairs]
        farthest = int(np.nan_to_num(losses, nan=-math.inf).min(axis=1).argmin())
        located = _first_difference(job, feeds[farthest], run, progress)
    return NumericScope(
        device=device,
        quantization=quantization,
        agreement={name: overall_db([(one[name], two[name]) for one, two in pairs]) for name in facts.outputs},
        shared=shared,
        seen=Seen("the emulated device", tuple(job.inputs[:_SEEN]), tuple(npu[:_SEEN])),
        **located,
    )


def _both_sides(job: EmulationJob, feeds: Feeds, run: Callable[[Feeds], Any]) -> tuple[Any, str]:
    """The outputs on the CPU and the emulator, and why those of another target are taken, "" if they are not."""
    keys = job.kernels, job.kernels[1:]
    same, near = map(job.shared.known, keys)
    if same:
        return same, "for which the same operations were compiled"
    tried = _TRIED if near and len(feeds) > _TRIED else len(feeds)
    sides, why = run(feeds[:tried]), ""
    if tried == len(sides[1]) < len(feeds):
        pairs = zip(sides[1], near[1], strict=False)
        if all(one[name].tobytes() == two[name].tobytes() for one, two in pairs for name in one):
            sides, why = near, f"which gave the same bits for {tried} samples"
        else:
            sides = [*map(add, sides, run(feeds[tried:]))]
    for key in filter(None, keys):
        job.shared.keep(key, sides)
    return sides, why


def _judged(
    job: EmulationJob, facts: GraphFacts, cpu: Sequence[Arrays], npu: Sequence[Arrays]
) -> tuple[Verdict, Verdict | None]:
    """The verdict on the emulator's outputs, and on the quantization against float (None without a float original)."""
    original = job.original
    if original is None or not all(name in values for name in original.judge.names for values in npu):
        # A float file is its own reference: any difference from float is the device's alone.
        against = Against.QUANTIZED if job.bits or facts.is_qdq else Against.FLOAT
        context = Context(job.label, against=against, bits=job.bits, same_graph=True)
        return judge_outputs(facts, context, cpu, npu, job.inputs), None
    device, quantization = original.judge.compare(npu), original.quantization
    of = len(original.judge.feeds)
    few = len(npu) < of
    said = f"{len(npu)} of {of} samples, as many as --option time_limit={job.timeout:g} is enough for"
    if quantization is None:
        return replace(device, cost=said) if few else device, None
    # The loss of the file itself on the CPU counts as well, as the encodings may have been cured since; but only if the
    # file does what the encodings do: a wrong file does not excuse the device that runs it.
    of_file = original.judge.compare(cpu)
    is_faithful = of_file.beside(quantization).right is True
    # If fewer samples ran than the encodings were simulated on, only the file on the same samples is comparable.
    beside = device.beside(of_file if few and is_faithful else quantization)
    if beside.right is not True and is_faithful and device.beside(of_file).right is True:
        beside, quantization = device.beside(of_file), of_file
    beside = replace(beside, cost=f"{beside.cost}; {said}") if few else beside
    # If the encodings lose too, a wider type has already been advised.
    if beside.right and beside.loses and original.quantization is not None and not original.quantization.wider:
        wider = original.wider()
        beside = replace(beside, cost=f"{beside.cost}; {wider}") if wider else beside
    return settled(beside, job.label), settled(quantization, job.label)


def _first_difference(
    job: EmulationJob,
    feed: Arrays,
    run: Callable[..., tuple[list[Arrays], list[Arrays]]],
    progress: Tell,
) -> Json:
    """The first node whose result differs, its type and its dB: found by compiling again with inner results as outputs.

    With all results of a large model at once the emulator takes tens of times as long. So results spread over the graph
    are looked at first, then those before the first wrong one.
    """
    model, shown = onnx.load(job.root / job.qdq), dict[str, NodeFact]()
    # The result of every pair, or of every operator in a model without pairs; by such a tensor, in graph order, the
    # node that computes it.
    facts = facts_of(model)
    halves = [node for node in facts.nodes if node.op_type == "DequantizeLinear"]
    for name in (name for node in halves or facts.nodes for name in node.outputs):
        maker = facts.maker_behind(name, QUANTIZERS)
        if maker is not None and maker.op_type != "Constant" and facts.tensors[name].dtype == "float":
            shown[name] = maker
    names, found = list(shown), dict[str, object]()
    while names:
        step = -(-len(names) // _SHOWN)
        parts = [names[start : start + step] for start in range(0, len(names), step)]
        del model.graph.output[len(facts.outputs) :]
        ends = [part[-1] for part in parts]
        model.graph.output.extend(
            helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in ends if name not in facts.outputs
        )
        losses = _losses(job, model, ends, feed, run, progress)
        wrong = next((at for at, loss in enumerate(losses) if not loss >= _LEAST_DB), None)
        if wrong is None:
            break
        node = shown[ends[wrong]]
        found = {"first": node.label, "first_type": node.op_type, "first_db": finite(losses[wrong])}
        names = parts[wrong] if step > 1 else []
    return found


def _losses(
    job: EmulationJob,
    model: ModelProto,
    names: Sequence[str],
    feed: Arrays,
    run: Callable[..., tuple[list[Arrays], list[Arrays]]],
    progress: Tell,
) -> list[float]:
    """The dB of each of these outputs against the CPU's; empty if the model does not compile."""
    with tempfile.TemporaryDirectory(prefix=".numbers-", dir=job.root) as folder:
        root = Path(folder)
        onnx.save(model, root / "model.onnx")
        again = CompileJob(
            root,
            "model.onnx",
            context="c.onnx",
            options=job.options,
            allow_cpu=job.allow_cpu,
            trace=False,
            timeout=job.timeout,
            host=job.host,
        )
        if not compile_model(again, progress).ok:
            return []
        (cpu,), (npu,) = run(root, "model.onnx", "c.onnx", [feed])
    rows = ChosenRows(facts_of(model))
    found = (rows.matched(name, cpu[name], npu[name]) for name in names)
    # A kernel's result may have another shape than the model says: then all of it is wrong.
    return [sqnr_db(one.left, one.right) if one.left.shape == one.right.shape else -math.inf for one in found]
