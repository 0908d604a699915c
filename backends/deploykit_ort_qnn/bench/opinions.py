"""Asks the compiler inside the wheel whether a finding's claim is true: on the operators it names, else on the model.

It compiles what this backend would compile: the same preparation, pairs and options. Only
answers are kept, under a hash of the question.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from msgspec import Struct
from onnx import ModelProto

from deploykit.backend.backend import Same, SharedWork, Situation
from deploykit.backend.opinions import Compiler, Opinion, OpinionState
from deploykit.errors import DeploykitError, ToolError
from deploykit.findings import Finding
from deploykit.findings.records import Names, Tell
from deploykit.system.folders import scratch
from deploykit.tables.devices import Device
from deploykit_ort_qnn.bench.ask import TimedBench
from deploykit_ort_qnn.bench.pieces import HOLDING, PAIR, Pieces, anonymous
from deploykit_ort_qnn.compiler.hosts import installed_wheel, toolchain_host
from deploykit_ort_qnn.compiler.jobs import CompileJob, CompileOutcome, compile_model
from deploykit_ort_qnn.compiler.precision import precision_scope
from deploykit_ort_qnn.prepare import prepared_model, whole_model
from deploykit_ort_qnn.provider_keys import choose_options
from deploykit_ort_qnn.rules.numerics import PRECISION_RULES
from deploykit_qualcomm.devices import has
from deploykit_qualcomm.tables import Wheel, tables

if TYPE_CHECKING:
    from deploykit_ort_qnn.provider_model import ProviderModel

__all__ = ["compilers_for", "settle", "time_us", "wheels_here"]

# Seconds for one question: one that takes longer is left open, so that others are asked too.
_LONGEST = 60.0


def compilers_for(device: Device, sdk: str) -> tuple[Compiler, ...]:
    """The compilers for a device's chip: the nearest release that can be asked here, then the installed wheel.

    A release that is here is asked alone. If no compiler can be asked, one entry says why.
    """
    soc, runs = device.fact("soc_model"), wheels_here()
    if not runs:
        return (
            Compiler(
                missing="onnxruntime-qnn is not installed",
                instead="pip install 'deploykit[ort-qnn]' (Linux x86-64), so that the real compiler is asked",
            ),
        )
    if not isinstance(soc, int):
        instead = "choose a device whose soc_model is known; 'deploykit targets' shows it"
        return (Compiler(missing=f"the soc_model of {device.id} is not known", instead=instead),)
    wanted = int(sdk.split(".")[1]) if sdk else 0
    series = {wheel.sdk: int(wheel.sdk.split(".")[1]) for wheel in runs}
    # By minor version, 2.36 and 2.33 are 3 apart; of two equally near releases
    # the later is taken. Without an SDK: the newest.
    nearest = min(runs, key=lambda wheel: (abs(series[wheel.sdk] - wanted) if sdk else 0, -series[wheel.sdk]))
    installed = [wheel for wheel in runs if toolchain_host(wheel) is None]
    chosen = [nearest] if nearest.sdk == sdk else dict.fromkeys((nearest, *installed))
    return tuple(
        Compiler(name=f"QAIRT {wheel.sdk.rpartition('.')[0]}'s compiler for soc {soc}", release=wheel.sdk)
        for wheel in chosen
    )


def wheels_here() -> list[Wheel]:
    """The wheels whose compiler runs on this machine: the installed one, and those of toolchains that are ready."""
    installed = (installed_wheel() or {}).get("wheel", "")
    return [wheel for wheel in tables().wheels if wheel.version == installed or toolchain_host(wheel) is not None]


def settle(
    situation: Situation,
    findings: Sequence[Finding],
    *,
    release: str,
    shared: SharedWork,
    seconds: float,
    progress: Tell,
) -> tuple[Opinion, ...]:
    """One release's opinion on each finding, from the operators it is about, else from the whole model."""
    try:
        wheel = next(wheel for wheel in wheels_here() if wheel.sdk == release)
        asking = _Asking.of(situation, wheel, shared, seconds, progress)
        opinions = [asking.about_operators(finding) for finding in findings]
        if all(opinion.state is OpinionState.REFUTED for opinion in opinions):
            return tuple(opinions)
        return tuple(map(asking.about_model, findings, opinions))
    except DeploykitError as error:
        why = f"could not be asked: {error.what}"
        return tuple(Opinion.on(finding, OpinionState.OPEN, why) for finding in findings)


class _Asking(Struct, kw_only=True):
    """The model to cut from, and the compiler with its options."""

    situation: Situation
    prepared: ProviderModel | None
    model: ModelProto
    pieces: Pieces
    bench: TimedBench

    @classmethod
    def of(cls, situation: Situation, wheel: Wheel, shared: SharedWork, seconds: float, progress: Tell) -> _Asking:
        """Prepares the model for a wheel. Raises ToolError if the compiled
        model would not be what the package is made of.
        """
        request, own = situation.request, situation.target.backend == "ort-qnn"
        quantized = situation.encodings is not None or situation.facts.is_qdq
        if situation.segments:
            raise ToolError("the model is cut into segments")
        if not quantized and request.precision not in (None, "fp16"):
            raise ToolError(f"the types of {request.precision} are made by other tools")
        prepared = prepared_model(situation, shared, wheel) if quantized else None
        key = ("float model", Same(situation.model.proto))
        model = shared.once(key, lambda: whole_model(situation)) if prepared is None else prepared.model
        options = choose_options(request.options, wheel.version).compile if own else {}
        soc = str(situation.target.device.fact("soc_model"))
        deadline = time.monotonic() + seconds
        return cls(
            situation=situation,
            prepared=prepared,
            model=model,
            pieces=shared.once(("pieces", Same(model)), lambda: Pieces(model)),
            bench=TimedBench(
                options={**options, "soc_model": soc},
                deadline=deadline,
                longest=_LONGEST,
                progress=progress,
                host=toolchain_host(wheel),
            ),
        )

    def about_operators(self, finding: Finding) -> Opinion:
        """The opinion from the operators alone; open if they cannot be cut out or something else stops them."""
        outputs, kinds = self._operators(finding)
        positions = self.pieces.makers(outputs, kinds)
        piece = self.pieces.cut(positions) if len(positions) == len(outputs) and positions else None
        if piece is None:
            return Opinion.on(finding, OpinionState.OPEN, "its operators cannot be compiled on their own")
        scope = "1 operator" if len(positions) == 1 else f"{len(positions)} operators"
        answer = self.bench.ask(piece, anonymous(piece), self._changes)
        if answer.taken:
            return _taken(finding, scope, [change for _, change in answer.changes])
        only_pairs = bool(answer.refused) and all(kind in PAIR for _, kind in answer.refused)
        if answer.no and not only_pairs:
            return Opinion.on(finding, OpinionState.CONFIRMED, answer.no, scope)
        return Opinion.on(finding, OpinionState.OPEN, answer.message, scope)

    def about_model(self, finding: Finding, before: Opinion) -> Opinion:
        """The opinion after the whole model was compiled too: a model that is taken shows that its parts are."""
        if before.state is OpinionState.REFUTED:
            return before
        answer = self.bench.ask(self.model, bytes(self.model.SerializeToString(deterministic=True)), self._changes)
        outputs, kinds = self._operators(finding)
        found = [self.model.graph.node[position] for position in self.pieces.makers(outputs, kinds)]
        names = {node.name for node in found if node.name}
        if answer.taken and (len(found) == len(outputs) or self.situation.target.backend == "ort-qnn"):
            return _taken(finding, "the model", [one for name, one in answer.changes if name in names or not name])
        if before.state is not OpinionState.OPEN or answer.taken:
            return before
        if names & {name for name, _ in answer.refused}:
            return Opinion.on(finding, OpinionState.CONFIRMED, "it is not taken", "the model")
        why = answer.message if answer.status in ("crashed", "timed-out") else "it is not taken for other reasons"
        return Opinion.on(finding, OpinionState.OPEN, f"{before.why}; the model: {why}", "the model")

    def _operators(self, finding: Finding) -> tuple[Names, frozenset[str]]:
        """(first outputs, operator types) of the operators that a finding is about, without Q/DQ pairs."""
        facts, listed = self.situation.facts, (finding.evidence.get(key, ()) for key in ("nodes", "tensors"))
        names = {finding.subject.name}.union(*listed)
        nodes = [node for node in facts.nodes if node.label in names]
        if not nodes:
            nodes = [node for node in facts.nodes if names & {*node.inputs, *node.outputs}]
        nodes = [node for node in nodes if node.op_type not in HOLDING and node.outputs]
        outputs = tuple(next(name for name in node.outputs if name) for node in nodes)
        return outputs, frozenset(node.op_type for node in nodes)

    def _changes(self, outcome: CompileOutcome) -> Iterator[tuple[str, str]]:
        """Yields (node, reason) for nodes compiled in an unintended type; "" if the finding names no node."""
        for finding in PRECISION_RULES.run(precision_scope(outcome.graphs, outcome.schematics, self.prepared)):
            named = finding.subject.name if finding.subject.kind == "node" else ""
            # A float part without any encoding is not a change: no type was stated for it.
            if finding.code != "ORT101" or "intended" in finding.evidence:
                yield named, f"it is taken, but in another type ({finding.code})"


def _taken(finding: Finding, scope: str, lost: Sequence[str]) -> Opinion:
    """The opinion on a finding whose operators compile: refuted; open if some are compiled in an unintended type."""
    state = OpinionState.OPEN if lost else OpinionState.REFUTED
    return Opinion.on(finding, state, lost[0] if lost else "it is taken", scope)


def time_us(model: bytes, device: Device, progress: Tell) -> float | None:
    """Microseconds of one run by the installed compiler's own cost model; None if it gives no estimate for this chip.

    Raises ToolError if no compiler runs here.
    """
    soc = device.fact("soc_model")
    if installed_wheel() is None or not isinstance(soc, int):
        raise ToolError(
            "--estimate: no compiler runs here",
            why=f"{device.id}: soc_model is not known" if installed_wheel() else "onnxruntime-qnn is not installed",
            next="'deploykit doctor' says what is missing",
        )
    from deploykit_ort_qnn.provider_model import provider_model

    given = ModelProto.FromString(model)
    if any(node.op_type == "DequantizeLinear" for node in given.graph.node):
        given = provider_model(given, None, int16_matmul=has("matmul_16bit", device)).model
    with scratch() as folder:
        (folder / "model.onnx").write_bytes(given.SerializeToString())
        job = CompileJob(folder, "model.onnx", context="context.onnx", options={"soc_model": str(soc)})
        outcome = compile_model(job, progress)
    return None if outcome.estimate is None else outcome.estimate.time_us
