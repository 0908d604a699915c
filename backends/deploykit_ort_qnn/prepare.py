"""The stage ``prepare``: the wheel, the chip's abilities, the chosen
options, the model to compile, and the rules' input.

Weights are loaded here only; nothing is written.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import TYPE_CHECKING, Literal

from deploykit.accuracy.latency import read_time
from deploykit.backend.backend import Same, SharedWork, Situation
from deploykit.backend.options import MAX_TIME
from deploykit.errors import DeploykitError, InputError, UnknownTargetError, UsageError
from deploykit.findings import Finding, Findings
from deploykit.findings.records import Json, Record, replace
from deploykit.model.load import wrap_proto
from deploykit.model.nodes import copy_of, label
from deploykit.model.operators import QUANTIZERS
from deploykit.model.weights import load_weights
from deploykit_ort_qnn.provider_keys import Chosen, choose_options, has_option
from deploykit_qualcomm.carriers import RULES as CARRIER_RULES
from deploykit_qualcomm.carriers import Carried, forms_of
from deploykit_qualcomm.devices import capability, has
from deploykit_qualcomm.rules.converters import FLOAT16_RULES, Float16Plan
from deploykit_qualcomm.rules.registries import PROVIDER, run_lint
from deploykit_qualcomm.tables import Wheel, tables

if TYPE_CHECKING:
    from onnx import ModelProto

    from deploykit.encodings.backward import Evidence
    from deploykit_ort_qnn.provider_model import ProviderModel

__all__ = ["ProviderDraft", "compiled_model", "prepare", "prepared_model", "wheel_for", "whole_model"]

Source = Literal["encodings", "qdq", "float"]
_INTEGER = ("w8a8", "w8a16", "w4a8", "w4a16", "w16a16")
_STEPS = {"centred-softmax": "softmax-rounding"}
"""The step of the preparation that writes a form, by the name a wheel's row has for the form if it refuses it."""
_MOST_BYTES = 1_800_000_000
_SUSPECT = ("wrong", "narrowed", "refused")


class ProviderDraft(Record):
    """The facts a plan is made of.

    ``prepared`` is the QDQ model to compile, None for a float one; ``lint`` holds the shared rules' findings on the
    model as given. ``cleared`` are nodes with a fault in the atlas as given, and none as prepared. ``max_time_us`` is
    the time limit in microseconds for the compiler's estimate, 0 for none.
    """

    situation: Situation
    wheel: Wheel
    soc_model: int | None
    fp16: bool | None
    source: Source
    precision: str
    chosen: Chosen
    prepared: ProviderModel | None
    options: Json
    lint: Findings
    cleared: frozenset[str]
    max_time_us: float

    @property
    def is_strict(self) -> bool:
        """True if any change of precision is an error."""
        return bool(self.options.get("strict_precision"))


def wheel_for(requested: str | None) -> Wheel:
    """The wheel for a version as typed: its own (2.7.0), or that of the QAIRT inside (2.51); None means the newest.

    A wheel whose compiler does not run on this kind of machine is planned for as well; QNN296 says so.
    """
    wheels = tables().wheels
    if not requested:
        return wheels[-1]
    for wheel in wheels:
        if requested in (wheel.version, wheel.version.removesuffix(".0")):
            return wheel
    words = requested.split(".")
    series = [wheel for wheel in wheels if wheel.sdk.split(".")[: len(words)] == words[:3]]
    if series:
        return series[-1]
    known = ", ".join(f"{wheel.version} (QAIRT {wheel.sdk})" for wheel in wheels)
    raise UnknownTargetError(
        f"no onnxruntime-qnn wheel for SDK {requested!r}",
        why=f"known wheels: {known}",
        next="name one of them",
    )


def prepare(situation: Situation, shared: SharedWork) -> ProviderDraft:
    """Gathers the facts for one request and the model to compile. Raises
    UsageError for options the wheel does not know.
    """
    from deploykit.flow.samples import largest_seen

    request, device = situation.request, situation.target.device
    wheel = wheel_for(situation.target.requested or None)
    fp16 = capability("fp16", device=device)
    soc = device.fact("soc_model")
    source: Source = "encodings" if situation.encodings is not None else "qdq" if situation.facts.is_qdq else "float"
    if request.adapter_options.get("dlc"):
        # UsageError for a wheel that writes no DLC, or whose provider runs on another machine only.
        name = f"--dlc: onnxruntime-qnn {wheel.version} (QAIRT {wheel.sdk})"
        if not has_option("dump_qnn_ir_dlc", wheel.version):
            raise UsageError(f"{name} writes none", next="leave it out, or use --sdk 2.47 or later")
        if not wheel.runs_on_linux:
            raise UsageError(f"{name} does not run here", next="leave it out, or use --sdk 2.47 or later")
    limit = read_time(str(request.adapter_options.get(MAX_TIME.name) or ""))
    prepared = None if source == "float" else prepared_model(situation, shared, wheel)
    given, prepared = _repaired(situation, prepared) if request.adapter_options.get("repair") else (situation, prepared)
    # A float model is compiled in float16 as a whole; one with Q/DQ pairs or encodings is judged once compiled.
    tensors = situation.facts.tensors if source == "float" else {}
    halves = Float16Plan(
        situation=situation,
        tensors={name for name, fact in tensors.items() if fact.is_float},
        seen=partial(largest_seen, situation, shared),
    )
    # A user who names the wheel and not its QAIRT insists on it.
    insisted = request.sdk == wheel.version
    carried = Carried(wheel, device, insisted=insisted, ask="" if insisted else f"--sdk {wheel.version}")
    lint = (*run_lint(situation, PROVIDER), *FLOAT16_RULES.run(halves), *CARRIER_RULES.run(carried))
    # The precision by name; UsageError for one that the provider's compiler cannot be asked for.
    if request.precision not in (None, "fp16", *_INTEGER):
        known = ", ".join(("fp16", *_INTEGER))
        raise UsageError(f"--precision {request.precision}: not a precision of ort-qnn", next=f"one of {known}")
    # A Cast of an input may have become what a grid with steps of 1 stands for.
    makers = [node.inputs[0] for node in situation.facts.nodes if node.op_type in QUANTIZERS]
    if request.precision == "fp16" and {*makers} - {*situation.facts.inputs}:
        raise UsageError("--precision fp16: the model holds Q/DQ nodes", next="give the float model, or no --precision")
    return ProviderDraft(
        situation=given,
        wheel=wheel,
        soc_model=soc if isinstance(soc, int) else None,
        fp16=None if fp16 is None else bool(fp16.value),
        source=source,
        precision=request.precision or "",
        chosen=choose_options(request.options, wheel.version, {node.op_type for node in situation.facts.nodes}),
        prepared=prepared,
        lint=lint,
        cleared=_cleared(lint, prepared, shared),
        max_time_us=limit,
        options=request.adapter_options,
    )


def _repaired(situation: Situation, prepared: ProviderModel | None) -> tuple[Situation, ProviderModel | None]:
    """The situation and prepared model with repaired nodes; without a prepared
    model the situation's float model is changed.
    """
    from deploykit_ort_qnn.bench.repair import repaired_model, repairs_of
    from deploykit_ort_qnn.bench.ways import WAYS
    from deploykit_ort_qnn.provider_model import PreparationStep

    repairs = repairs_of(situation.request.adapter_options)
    if prepared is None:
        made = wrap_proto(repaired_model(whole_model(situation), repairs), path=situation.model.path)
        return replace(situation, model=made, rewritten=True), None
    ways = sorted(set(repairs.values()))
    names = {way: tuple(node for node, done in repairs.items() if done == way) for way in ways}
    steps = tuple(PreparationStep(id=way, why=WAYS[way].told, names=names[way]) for way in ways)
    made = repaired_model(prepared.model, repairs)
    return situation, replace(prepared, model=made, steps=(*prepared.steps, *steps))


def _cleared(lint: Iterable[Finding], prepared: ProviderModel | None, shared: SharedWork) -> frozenset[str]:
    """The nodes with a fault in the atlas as given, for which no row of the atlas holds as prepared."""
    found = frozenset(finding.subject.name for finding in lint if finding.code == "QNN320")
    if prepared is None or not found:
        return frozenset()
    model = prepared.model

    def look() -> frozenset[str]:
        from deploykit_qualcomm.rules.atlas import suspects_in

        left = found & {label(node) for node in model.graph.node}
        return left - suspects_in(model, verdicts=_SUSPECT, only=left)

    return shared.once(("cleared", Same(model), found), look)


def prepared_model(situation: Situation, shared: SharedWork, wheel: Wheel | None) -> ProviderModel:
    """The model prepared for a wheel (None means the newest); made once for equal model, encodings and abilities."""
    wheel = wheel or wheel_for(None)
    request, forms = situation.request, forms_of(wheel)
    # Operands of MatMuls of two activations keep 16 bits as symmetric int16 if chip and provider take them.
    int16 = has("matmul_16bit", situation.target.device) and "symmetric-int16" not in forms.refuses
    lpbq = bool(request.adapter_options.get("lpbq"))
    without = (*request.no_rewrite, *(step for form, step in _STEPS.items() if form in forms.refuses))

    def make() -> ProviderModel:
        from deploykit_ort_qnn.provider_model import provider_model

        model, encodings = whole_model(situation), situation.encodings
        return provider_model(
            model,
            encodings,
            int16_matmul=int16,
            without=without,
            lpbq=lpbq,
            observer=lambda model: _evidence(model, situation, shared),
            lacks=forms.lacks,
        )

    given = (Same(situation.model.proto), situation.encodings)
    key = ("provider model", *given, int16, lpbq, without, forms.lacks)
    return shared.once(key, make)


def _evidence(model: ModelProto, situation: Situation, shared: SharedWork) -> Evidence:
    """The evidence of the user's data; empty if the data does not fit, which the judge of the numbers reports."""
    from deploykit.encodings.backward import Evidence
    from deploykit.flow.samples import evidence_of, samples_of

    try:
        return evidence_of(model, samples_of(situation, shared))
    except DeploykitError:
        return Evidence()


def whole_model(situation: Situation) -> ModelProto:
    """The model with its weights. Raises InputError if it is too large for one file."""
    given = situation.model
    if situation.facts.weight_bytes > _MOST_BYTES:
        parts = -(-situation.facts.weight_bytes // _MOST_BYTES)
        raise InputError(
            f"{given.path}: {situation.facts.weight_bytes:,} bytes of weights",
            why="a quantized model is written as one ONNX file, which ends at 2 GiB",
            next=f"python -c \"import deploykit; deploykit.split(['{given.path.name}'], 'parts', parts={parts})\"",
        )
    return copy_of(load_weights(given))


def compiled_model(draft: ProviderDraft) -> ModelProto:
    """The model that is compiled: the prepared one, or the float model with its weights."""
    return whole_model(draft.situation) if draft.prepared is None else draft.prepared.model
