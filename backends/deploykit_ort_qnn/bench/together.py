"""Runs many small graphs at once through a release's compiler and an emulator, and measures how far off they are.

Input sets cover all that a tensor may hold: its whole range in even steps, both ends, zero, equal values, spikes; never
a value outside the range. A batch that crashes or hangs is halved. Deviations are in steps of the output's grid. A
float16 output has no grid: its step is 2^-10 of the reference's largest value, which is the resolution of float16
there. Nothing is judged here.
"""

from __future__ import annotations

import math
import re
import tempfile
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, TypeAlias

import numpy as np
import onnx
from onnx import ModelProto, helper

from deploykit.errors import ToolError
from deploykit.findings.records import Arrays, Numbers, Record, Shape, Tell, field, grouped
from deploykit.model.nodes import copy_of
from deploykit.model.operators import QUANTIZERS
from deploykit_ort_qnn.compiler.hosts import NOTHING_TAKEN, Host
from deploykit_ort_qnn.compiler.jobs import CompileJob, CompileOutcome, compile_model, execute_both

__all__ = [
    "COVERING",
    "BenchGraph",
    "Deviation",
    "Outputs",
    "Ran",
    "Span",
    "covering",
    "deviation",
    "run_together",
]


COVERING = 6
"""The number of input sets that ``covering`` gives with ``dense`` 1."""


class Span(Record):
    """The range of values that an input may have: from ``low`` to ``high``."""

    low: float
    high: float


def covering(shape: Shape, span: Span, seed: int, *, dense: int = 1, turned: bool = False) -> list[Numbers]:
    """Float32 arrays: ``dense`` sorted ones, one shuffled, one constant, one of both ends, one spike, one bell curve.

    The sorted arrays interleave; with ``turned`` they fall, so that two inputs do not rise together.
    """
    random = np.random.default_rng(seed)
    count = int(np.prod(shape))
    low, high = span.low, span.high
    even = np.linspace(low, high, max(count * dense, 2))[: count * dense]
    rising = [even[phase::dense] for phase in range(dense)]
    spike = np.full(count, min(max(0.0, low), high))
    spike[count // 3] = high
    bell = np.clip(random.normal((low + high) / 2, (high - low) / 8, count), low, high)
    values = [
        *(one[::-1] if turned else one for one in rising),
        random.permutation(rising[0] + (high - low) / (4 * count)).clip(low, high),
        np.full(count, low + 0.61 * (high - low)),
        random.choice([low, high], count),
        spike,
        bell,
    ]
    return [value.reshape(shape).astype(np.float32) for value in values]


Outputs: TypeAlias = "Mapping[str, Sequence[Numbers]]"
"""The values of each output by its name, one for every input set in order."""

_TOGETHER = 120
_SECONDS = 30.0
"""Seconds for one graph; a batch gets a tenth for each of its graphs, and this once to start with."""
_NUMBER = re.compile(r"u\d+/")
"""The prefix of a graph inside a name: ONNX Runtime puts text of its own before names."""
_MIXING = "ConstantSharing;CommonSubexpressionElimination"
"""Rewrites of ONNX Runtime that merge equal nodes of different graphs, which are then no longer separate."""
_NO_GRAPH = "Load model from"
"""ONNX Runtime's words for a graph that it cannot read: the provider was not asked."""


class BenchGraph(Protocol):
    """One graph to run: every name in it begins with ``prefix`` (``u`` and a number and ``/``)."""

    @property
    def prefix(self) -> str:
        """The beginning of all its names."""

    @property
    def model(self) -> ModelProto:
        """The graph with its weights."""

    @property
    def samples(self) -> Sequence[Arrays]:
        """Input sets by the names of its inputs."""


class Ran(Record, kw_only=False):
    """The result of one graph: ``answer`` is taken, refused, failed (to be finalized), crashed, timed-out or invalid.

    ``wanted`` holds the file's outputs on the CPU, ``got`` those on the emulator; both are empty if nothing ran, and
    ``why`` says why.
    """

    probe: BenchGraph
    answer: str
    why: str = ""
    wanted: Outputs = field(default_factory=dict)
    got: Outputs = field(default_factory=dict)

    @property
    def ran(self) -> bool:
        """True if there are outputs to compare."""
        return bool(self.got)


def run_together(
    probes: Sequence[BenchGraph],
    *,
    host: Host | None,
    soc_model: int,
    progress: Tell,
    together: int = _TOGETHER,
    options: Mapping[str, str] | None = None,
) -> Iterator[Ran]:
    """Runs every graph, in batches of one operator set; ``host`` None means the wheel beside this Python.

    ``options`` are further provider options. Graphs with unequal numbers of input sets are not run together.
    """

    def alike(one: BenchGraph) -> Hashable:
        return *sorted((entry.domain, entry.version) for entry in one.model.opset_import), len(one.samples)

    # The pairs at the border are part of the question; without the option the CPU computes them.
    asked = {"soc_model": str(soc_model), "offload_graph_io_quantization": "0", **(options or {})}
    done = 0
    for group in grouped((alike(one), one) for one in probes).values():
        for start in range(0, len(group), together):
            batch = group[start : start + together]
            yield from _halved(batch, host, asked)
            done += len(batch)
            progress(f"{done} of {len(probes)} units")


def joined(models: Iterable[ModelProto]) -> ModelProto:
    """All graphs side by side in one model, unconnected."""
    chosen = list(models)
    whole = copy_of(chosen[0])
    highest = dict[str, int]()
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


def _halved(batch: Sequence[BenchGraph], host: Host | None, options: Mapping[str, str]) -> Iterator[Ran]:
    """The results of a batch; of its halves, if it cannot be compiled or run as one."""
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


def _attempt(batch: Sequence[BenchGraph], host: Host | None, options: Mapping[str, str], root: Path) -> list[Ran] | Ran:
    """The result of each graph; or one for all, if they could not be compiled or run together."""
    first, limit = batch[0], _SECONDS * (1 + len(batch) / 10)
    (root / "model.onnx").write_bytes(joined(one.model for one in batch).SerializeToString())
    job = CompileJob(
        root,
        "model.onnx",
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
            kinds = (node.op_type for node in first.model.graph.node if node.op_type not in QUANTIZERS)
            return Ran(first, "refused", why=", ".join(dict.fromkeys(kinds)))
        answer = "invalid" if _NO_GRAPH in outcome.message else outcome.status
        named = sorted({f"{node.type}{f': {node.why}' if node.why else ''}" for node in outcome.refused})
        return Ran(first, answer, why=", ".join(named) or outcome.message)
    left = _left_over(root / "c.onnx", outcome)
    # A tensor that no graph reads any more is left out.
    read = {value.name for one in batch for value in one.model.graph.input}
    merged = [
        {name: value for sample in samples for name, value in sample.items() if name in read}
        for samples in zip(*(one.samples for one in batch), strict=True)
    ]
    try:
        cpu, npu = execute_both(root, "model.onnx", "c.onnx", merged, options=options, timeout=limit, host=host)
    except ToolError as error:
        why = left.get(first.prefix, "")
        return Ran(first, "refused" if why else "taken", why=why or f"not run: {error.why}")
    if len(npu) < len(merged):  # some of the input sets would cover only a part of the range
        return Ran(first, "taken", why=f"not run: {limit:g} s are too few for {len(merged)} inputs")
    found = []
    for one in batch:
        if one.prefix in left:
            found.append(Ran(one, "refused", why=left[one.prefix]))
            continue
        names = [value.name for value in one.model.graph.output]
        meant, got = ({name: [sample[name] for sample in side] for name in names} for side in (cpu, npu))
        found.append(Ran(one, "taken", wanted=meant, got=got))
    return found


def _left_over(context: Path, outcome: CompileOutcome) -> dict[str, str]:
    """The operators left out, by the prefix of the graph; Q/DQ pairs only if nothing else was left out."""
    graph = onnx.load(context, load_external_data=False).graph
    whys = {node.name: node.why for node in outcome.refused}
    # Graphs may share a stored value.
    stored = {tensor.name for tensor in graph.initializer}
    found = dict[str, set[str]]()
    for node in graph.node:
        if node.op_type != "EPContext":
            words = f"{node.op_type}{f': {why}' if (why := whys.get(node.name)) else ''}"
            read = (name for name in node.input if name not in stored)
            for prefix in _NUMBER.findall(" ".join((node.name, *node.output, *read))):
                found.setdefault(prefix, set()).add(words)
    return {
        prefix: ", ".join(sorted({why for why in words if not why.startswith(QUANTIZERS)} or words))
        for prefix, words in found.items()
    }


FLOAT_STEP = 2.0**-10
_MOST = 1e9
_FLOAT16 = float(np.finfo(np.float16).max)


class Deviation(Record):
    """The deviation of one graph's worst output from the reference, over all input sets.

    ``most`` and ``usual`` are the largest deviation and the one that 99 of 100 values stay within, in steps; ``span``
    is the reference's range in steps. ``share`` of the values deviates by more than a hundredth of that range, and by
    two steps at least. ``factor`` is the one by which the reference fits the emulator's values best, ``set`` the input
    set with the largest deviation. ``odd`` counts values that are not finite where the reference is.
    """

    most: float
    usual: float
    span: float
    share: float
    factor: float | None = None
    set: int = 0
    odd: int = 0


def deviation(wanted: Outputs, got: Outputs, steps: Mapping[str, float]) -> Deviation:
    """The worst output's deviation; ``steps`` are the scales of the outputs that have an integer grid."""
    found = [_of_output(values, got[name], steps.get(name)) for name, values in wanted.items()]
    return max(found, key=lambda one: (one.odd, one.share, one.most / max(one.span, 1.0)))


def _of_output(wanted: Sequence[Any], got: Sequence[Any], step: float | None) -> Deviation:
    if any(one.shape != two.shape for one, two in zip(wanted, got, strict=True)):
        return Deviation(most=_MOST, usual=_MOST, span=0.0, share=1.0)
    one, two = (np.concatenate([np.ravel(value).astype(np.float64) for value in side]) for side in (wanted, got))
    ends = np.cumsum([value.size for value in wanted])
    if not np.issubdtype(wanted[0].dtype, np.floating):
        errors, span, odd, factor, far = (one != two).astype(np.float64), 1.0, 0, None, 0.5
    else:
        known = np.isfinite(one)
        if not step:
            # Computed in float16: values beyond its range are no fault of a
            # kernel, so infinite counts as its largest value.
            one, two = np.clip(one, -_FLOAT16, _FLOAT16), np.clip(two, -_FLOAT16, _FLOAT16)
        both = known & np.isfinite(two)
        odd = int(known.sum() - both.sum())
        if not both.any():
            return Deviation(most=_MOST if odd else 0.0, usual=0.0, span=0.0, share=float(bool(odd)), odd=odd)
        step = step or FLOAT_STEP * max(float(np.abs(one[both]).max()), 2.0**-20)
        errors = np.where(both, np.abs(two - one) / step, 0.0)
        span, square = float(np.ptp(one[both])) / step, float(one[both] @ one[both])
        factor, far = round(float(one[both] @ two[both]) / square, 4) if square > 0 else None, max(2.5, span / 100)
    return Deviation(
        most=_rounded(float(errors.max())),
        usual=_rounded(float(np.quantile(errors, 0.99))),
        span=_rounded(span),
        share=_rounded(float((errors > far).mean())),
        factor=factor,
        set=int(np.searchsorted(ends, int(errors.argmax()), side="right")),
        odd=odd,
    )


def _rounded(value: float) -> float:
    """Rounds to three digits: more are not worth recording."""
    return value if value == 0 or math.isinf(value) else float(f"{min(value, _MOST):.3g}")
